"""The id of a delegating call's child: set aside in call order, kept until there is a child."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, approve, start, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Checkpoint,
    ProposedCall,
    Request,
    ToolContext,
    ToolResult,
    agent,
)
from toolnexus.approvals import Verdict
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

TASK = {"agent": "bob", "prompt": "go"}
BOB = AgentDef("bob", model="b")


def ask_of_tasks(proposed: ProposedCall) -> Verdict:
    return "ask" if proposed.tool == "task" else "allow"


def lead() -> AgentDef:
    return AgentDef("lead", team=["bob"], approval_policy=ask_of_tasks)


def spawned(rt: AgentRuntime) -> list[str]:
    lines = rt.trace()
    return [line.partition(":")[0] for line in lines if ": spawned" in line and "bob" in line]


def test_a_gated_task_leaves_no_gap(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("task", TASK), tool_call("task", TASK), text("done"))
    llm.say("b", text("one"), text("two"))
    rt = make_runtime(lead(), BOB)
    handle, first = start(rt, "lead")
    approve(rt, first.pending)
    approve(rt, rt.wait_on(handle, LIMIT).pending)

    assert rt.wait_on(handle, LIMIT).text == "done"
    assert spawned(rt) == ["root/lead.1/bob.1", "root/lead.1/bob.2"]
    llm.assert_done()


def test_numbers_follow_the_calls_whichever_is_answered_first(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_calls(call("task", TASK), call("task", TASK)), text("done"))
    llm.say("b", text("it"), text("it"))
    rt = make_runtime(lead(), BOB)
    handle, _ = start(rt, "lead")
    one, two = rt.pending()
    approve(rt, two.request)
    approve(rt, one.request)

    assert rt.wait_on(handle, LIMIT).text == "done"
    assert spawned(rt) == ["root/lead.1/bob.2", "root/lead.1/bob.1"]


@pytest.mark.parametrize("ok", [True, False])
def test_a_tool_that_asks_before_it_delegates_keeps_its_number(
    llm: ScriptedLlm, make_runtime: Make, ok: bool
) -> None:
    class Careful:
        name, description, source = "careful", "Asks, then delegates", "custom"
        input_schema: ClassVar[Any] = {"type": "object", "properties": {}}

        def delegates(self, arguments: str) -> bool:
            return True

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            ctx.ask("approval", "Shall bob?")
            assert ctx.delegate is not None
            return ctx.delegate("bob", "go")

    llm.say("m", tool_calls(call("careful"), call("task", TASK)), text("done"))
    llm.say("b", *[text("it")] * (1 + ok))
    rt = make_runtime(AgentDef("lead", team=["bob"], tools=[Careful()]), BOB)
    handle, parked = start(rt, "lead")
    assert parked.pending is not None
    assert spawned(rt) == ["root/lead.1/bob.2"]
    within(rt.resume, Answer(parked.pending.id, ok))

    assert rt.wait_on(handle, LIMIT).text == "done"
    assert spawned(rt) == ["root/lead.1/bob.2", "root/lead.1/bob.1"][: 1 + ok]
    llm.assert_done()


@pytest.mark.in_memory
def test_the_number_is_in_the_parked_turn_and_its_json(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_calls(call("task", TASK), call("task", {"agent": "x", "prompt": ""})))
    rt = make_runtime(lead(), BOB)
    handle, _ = start(rt, "lead")
    parked = handle._parked
    assert parked is not None
    kept = Checkpoint.from_dict(json.loads(json.dumps(parked.to_dict())))

    # The second names nobody: it will have no child.
    assert [one.number for one in kept.calls] == [1, None]
    assert kept == parked


def test_an_agent_as_a_tool_has_its_number_too(llm: ScriptedLlm, make_runtime: Make) -> None:
    def ask(proposed: ProposedCall) -> Verdict:
        return "ask"

    helper = agent("bob", model="b").as_tool()
    llm.say("m", tool_call("bob", {"prompt": "go"}), text("done"))
    llm.say("b", text("it"))
    rt = make_runtime(AgentDef("lead", tools=[helper], approval_policy=ask))
    handle, parked = start(rt, "lead")
    assert isinstance(parked.pending, Request)
    approve(rt, parked.pending)

    assert rt.wait_on(handle, LIMIT).text == "done"
    assert spawned(rt) == ["root/lead.1/bob.1"]
