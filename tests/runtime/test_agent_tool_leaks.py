"""An agent as a tool of a bare client leaves no runtime behind that nobody can reach."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Pay, Probe, in_thread
from toolnexus import (
    Answer,
    Cancelled,
    CancelToken,
    LlmClient,
    Request,
    ToolContext,
    ToolResult,
    agent,
)
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, text, tool_call

ROUNDS = 5


def serve(llm: ScriptedLlm, inner_tool: str) -> None:
    def answering(name: str, call: Reply) -> Callable[[RecordedRequest], Reply]:
        def answer(request: RecordedRequest) -> Reply:
            is_back = request.messages[-1]["role"] == "tool"
            return text(f"{name} done") if is_back else call

        return answer

    llm.answer("in", answering("inner", tool_call(inner_tool)))
    llm.answer("out", answering("outer", tool_call("inner", {"prompt": "x"}, "c1")))


def asks_for_ever() -> Probe:
    return Probe("ask", lambda args, ctx: ToolResult.pending(Request("question", "again?")))


def inner(llm: ScriptedLlm, tool: Any) -> Any:
    made = agent("inner", model="in", tools=[tool])
    return made.as_tool(base_url=llm.base_url, api_key="k", retries=0)


def client(llm: ScriptedLlm, **options: Any) -> LlmClient:
    return LlmClient(base_url=llm.base_url, api_key="k", model="out", retries=0, **options)


def yes(request: Request) -> Answer:
    return Answer(request.id, ok=True)


def no(request: Request) -> Answer:
    return Answer(request.id, ok=False)


def test_a_second_question_that_stays_unresolved_leaves_no_parked_runtime(
    llm: ScriptedLlm,
) -> None:
    serve(llm, "ask")
    tool = inner(llm, asks_for_ever())
    with client(llm, wait_for=yes) as outer:
        for _ in range(ROUNDS):
            assert outer.run("x", tools=[tool]).text == "outer done"
            assert llm.requests[-1].tool_results["c1"] == "unresolved: again?"
    llm.wait_connections(0, LIMIT)


def test_the_inner_agent_is_told_no_more_after_its_question_stays_unresolved(
    llm: ScriptedLlm,
) -> None:
    serve(llm, "ask")
    ask = asks_for_ever()
    with client(llm, wait_for=yes) as outer:
        outer.run("x", tools=[inner(llm, ask)])
    assert len(ask.runs) == 2
    assert len(llm.requests_of("in")) == 1


@pytest.mark.parametrize(("word", "paid"), [(yes, 1), (no, 0)])
def test_a_question_that_is_answered_leaves_no_parked_runtime(
    llm: ScriptedLlm, word: Callable[[Request], Answer], paid: int
) -> None:
    serve(llm, "pay")
    pay = Pay()
    tool = inner(llm, pay)
    with client(llm, wait_for=word) as outer:
        assert outer.run("x", tools=[tool]).text == "outer done"
        assert llm.requests[-1].tool_results["c1"] == "inner done"
    assert len(pay.paid) == paid
    llm.wait_connections(0, LIMIT)


def test_a_run_that_is_cancelled_while_a_person_decides_leaves_no_parked_runtime(
    llm: ScriptedLlm,
) -> None:
    asked, decide = threading.Event(), threading.Event()

    def slowly(request: Request) -> Answer:
        asked.set()
        assert decide.wait(LIMIT)
        return yes(request)

    serve(llm, "pay")
    pay, cancel = Pay(), CancelToken()
    tool = inner(llm, pay)
    with client(llm, wait_for=slowly) as outer:
        running = in_thread(outer.run, "x", tools=[tool], cancel=cancel)
        assert asked.wait(LIMIT)
        cancel.cancel()
        decide.set()
        with pytest.raises(Cancelled):
            running.result(LIMIT)
    assert pay.paid == []
    llm.wait_connections(0, LIMIT)


def test_a_run_whose_interpreter_ends_the_thread_leaves_no_parked_runtime(
    llm: ScriptedLlm,
) -> None:
    def leave(request: Request) -> Answer:
        raise SystemExit

    serve(llm, "pay")
    tool = inner(llm, Pay())
    with client(llm, wait_for=leave) as outer, pytest.raises(SystemExit):
        in_thread(outer.run, "x", tools=[tool]).result(LIMIT)
    llm.wait_connections(0, LIMIT)


def test_a_parked_run_is_kept_until_the_tool_is_closed(llm: ScriptedLlm) -> None:
    """Its checkpoint is in the caller's hands, and an answer may still come."""
    serve(llm, "pay")
    tool = inner(llm, Pay())
    with client(llm) as outer:
        assert outer.run("x", tools=[tool]).status == "pending"
    assert llm.open_connections > 0
    tool.close()
    llm.wait_connections(0, LIMIT)


def test_an_agent_behind_a_gate_runs_once_the_gate_is_open(llm: ScriptedLlm) -> None:
    """The gate's answer is none of the agent's, and there is no parked run to look for."""

    class Gate:
        def before_tool(self, call: Any, args: Any, ctx: ToolContext) -> ToolResult:
            return ToolResult.pending(Request("gate", "may it?"))

    serve(llm, "pay")
    pay = Pay()
    tool = inner(llm, pay)
    asked: list[str] = []

    def decide(request: Request) -> Answer:
        asked.append(request.prompt)
        return yes(request)

    with client(llm, wait_for=decide, hooks=Gate()) as outer:
        assert outer.run("x", tools=[tool]).text == "outer done"
        assert llm.requests[-1].tool_results["c1"] == "inner done"
    assert (asked, len(pay.paid)) == (["may it?", "Pay None?"], 1)
    llm.wait_connections(0, LIMIT)
