"""What a turn's end calls may wait for what that end has set going: it then does it itself."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Probe, chain_of, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    PendingRequest,
    Request,
    TaskResult,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import ScriptedLlm, text, tool_call


def _ask_thrice(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
    return ToolResult.ok("".join(ctx.ask("question", prompt).data for prompt in "123"))


def _agents(llm: ScriptedLlm, depth: int) -> list[AgentDef]:
    for level in range(1, depth):
        task = tool_call("task", {"agent": f"d{level + 1}", "prompt": "go"})
        llm.say(f"d{level}", task, text("end"))
    llm.say(f"d{depth}", tool_call("q"), text("end"))
    return chain_of(depth, [Probe("q", _ask_thrice)])


def _said(request: Request) -> Answer:
    return Answer(request.id, ok=True, data=request.prompt)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_on_suspend_answers_a_later_question_itself(
    llm: ScriptedLlm, make_runtime: Make, depth: int, workers: int
) -> None:
    runtimes: list[AgentRuntime] = []

    def on_suspend(pending: PendingRequest) -> None:
        if pending.request.prompt != "1":
            runtimes[0].resume(_said(pending.request))

    rt = make_runtime(
        *_agents(llm, depth),
        on_suspend=on_suspend,
        budget=Budget(max_depth=6),
        max_workers=workers,
    )
    runtimes.append(rt)
    handle = rt.spawn(rt.root, "d1").handle
    assert within(rt.run_turn, handle, "go").status == "pending"
    within(rt.resume, _said(rt.pending()[0].request))
    assert within(rt.wait_on, handle).text == "end"


@pytest.mark.parametrize("depth", [2, 4])
def test_a_callback_of_the_leaf_answers_its_next_question(
    llm: ScriptedLlm, make_runtime: Make, depth: int
) -> None:
    rt = make_runtime(*_agents(llm, depth), budget=Budget(max_depth=6))
    handle = rt.spawn(rt.root, "d1").handle
    assert within(rt.run_turn, handle, "go").status == "pending"
    leaf = rt.handle(rt.pending()[0].handle_id)
    assert leaf is not None

    def answer(ended: Future[TaskResult]) -> None:
        asked = ended.result().pending
        if asked is not None:
            rt.future_result(leaf).add_done_callback(answer)
            rt.resume(_said(asked))

    rt.future_result(leaf).add_done_callback(answer)
    within(rt.resume, _said(rt.pending()[0].request))
    assert within(rt.wait_on, handle, LIMIT).text == "end"
