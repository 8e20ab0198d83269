"""An answer that meets a close is refused or seen through, never taken and lost."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Pay, Probe, in_thread, run_turn, start, within
from toolnexus import (
    AgentDef,
    Answer,
    Budget,
    Handle,
    Request,
    ResumeError,
    State,
    TaskResult,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, text, tool_call

ROUNDS = 25


class SlowClose:
    """An `on_close` that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __call__(self, handle: Handle, reason: str) -> None:
        self.inside.set()
        assert self.go_on.wait(LIMIT)


class AskAgain(Probe):
    """Asks; with an answer it works until the test lets it go on, then asks once more."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.answers: list[Answer] = []
        super().__init__("ask", self._ask)

    def _ask(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is not None:
            self.answers.append(ctx.answer)
            self.inside.set()
            assert self.go_on.wait(LIMIT)
        return ToolResult.pending(Request("approval", "May I?"))


def yes(parked: TaskResult) -> Answer:
    assert parked.pending is not None
    return Answer(parked.pending.id, ok=True)


def asks_once(request: RecordedRequest) -> Reply:
    return text("end") if request.messages[-1]["role"] == "tool" else tool_call("pay")


def test_an_answer_while_on_close_runs_is_refused_and_executes_nothing(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("ask"))
    llm.say("b", text("fine"))
    ask, on_close = AskAgain(), SlowClose()
    rt = make_runtime(
        AgentDef("a", tools=[ask], on_close=on_close),
        AgentDef("b", model="b"),
        budget=Budget(max_concurrent=1),
    )
    handle, parked = start(rt, "a")
    closing = in_thread(rt.close, handle)
    assert on_close.inside.wait(LIMIT)
    with pytest.raises(ResumeError):
        within(rt.resume, yes(parked))
    with pytest.raises(ResumeError):
        rt.future_resume(yes(parked)).result(LIMIT)
    assert rt.pending() == ()
    on_close.go_on.set()
    closing.result(LIMIT)
    assert (handle.state, ask.answers) == (State.CLOSED, [])
    assert within(rt.wait_on, handle).status == "closed"
    assert start(rt, "b")[1].text == "fine"


def test_on_close_finds_nothing_to_answer(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.answer("m", asks_once)
    pay, told = Pay(), []

    def on_close(handle: Handle, reason: str) -> None:
        told.append(rt.pending())
        try:
            rt.resume(yes(parked))
        except ResumeError as error:
            told.append(type(error).__bases__)

    rt = make_runtime(AgentDef("a", tools=[pay], on_close=on_close))
    handle, parked = start(rt, "a")
    within(rt.close, handle)
    assert told == [(), (ResumeError,)]
    assert (handle.state, pay.paid) == (State.CLOSED, [])
    assert within(rt.wait_on, handle).status == "closed"


def test_on_close_may_answer_an_agent_that_goes_on(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.answer("m", asks_once)
    pay = Pay()

    def on_close(handle: Handle, reason: str) -> None:
        rt.resume(yes(parked))

    rt = make_runtime(AgentDef("a", tools=[pay]), AgentDef("b", on_close=on_close))
    asker, parked = start(rt, "a")
    other = rt.spawn(rt.root, "b").handle
    within(rt.close, other)
    assert (other.state, asker.state, len(pay.paid)) == (State.CLOSED, State.IDLE, 1)
    assert within(rt.wait_on, asker).text == "end"


def test_the_parent_of_a_child_that_is_closed_while_it_asks_goes_on(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("p", tool_call("task", {"agent": "c", "prompt": "x"}, "t1"), text("told"))
    llm.say("c", tool_call("ask"))
    ask, on_close = AskAgain(), SlowClose()
    rt = make_runtime(
        AgentDef("p", model="p", team=["c"]),
        AgentDef("c", model="c", tools=[ask], on_close=on_close),
    )
    parent, parked = start(rt, "p")
    (child,) = parent.children
    after = rt.future_result(parent)
    closing = in_thread(rt.close, child)
    assert on_close.inside.wait(LIMIT)
    with pytest.raises(ResumeError):
        within(rt.resume, yes(parked))
    on_close.go_on.set()
    closing.result(LIMIT)
    assert after.result(LIMIT).text == "told"
    assert (parent.state, child.state, ask.answers) == (State.IDLE, State.CLOSED, [])
    assert "[closed]" in llm.requests[-1].tool_results["t1"]
    assert rt.pending() == ()


@pytest.mark.parametrize("force", [False, True])
def test_a_close_under_an_accepted_answer_leaves_no_ghost_request(
    llm: ScriptedLlm, make_runtime: Make, *, force: bool
) -> None:
    """The answered tool is in its work when the close begins, and asks again afterwards."""
    llm.say("m", tool_call("ask"))
    llm.say("b", text("fine"))
    ask = AskAgain()
    rt = make_runtime(
        AgentDef("a", tools=[ask]),
        AgentDef("b", model="b"),
        budget=Budget(max_concurrent=1),
        shutdown_ms=0,
    )
    handle, parked = start(rt, "a")
    resuming = in_thread(rt.resume, yes(parked))
    assert ask.inside.wait(LIMIT)
    within(rt.close, handle, force=force)
    assert handle.state is State.CLOSED
    ask.go_on.set()
    resuming.result(LIMIT)
    assert (handle.state, len(ask.answers), rt.pending()) == (State.CLOSED, 1, ())
    with pytest.raises(ResumeError):
        within(rt.resume, Answer("ghost", ok=True))
    assert start(rt, "b")[1].text == "fine"


@pytest.mark.parametrize("force", [False, True])
def test_the_parent_of_a_child_closed_under_its_answer_goes_on(
    llm: ScriptedLlm, make_runtime: Make, *, force: bool
) -> None:
    llm.say("p", tool_call("task", {"agent": "c", "prompt": "x"}, "t1"), text("told"))
    llm.answer("p", lambda request: text("fine"))
    llm.say("c", tool_call("ask"))
    ask = AskAgain()
    rt = make_runtime(
        AgentDef("p", model="p", team=["c"]),
        AgentDef("c", model="c", tools=[ask]),
        shutdown_ms=0,
    )
    parent, parked = start(rt, "p")
    (child,) = parent.children
    after = rt.future_result(parent)
    resuming = in_thread(rt.resume, yes(parked))
    assert ask.inside.wait(LIMIT)
    within(rt.close, child, force=force)
    try:
        assert after.result(LIMIT).text == "told"
    finally:
        ask.go_on.set()
    resuming.result(LIMIT)
    assert (parent.state, child.state) == (State.IDLE, State.CLOSED)
    assert run_turn(rt, parent).text == "fine"


def test_at_the_same_moment_an_answer_is_executed_or_refused(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.answer("m", asks_once)
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay]), shutdown_ms=60_000)
    barrier = threading.Barrier(2)

    def resume(answer: Answer) -> bool:
        barrier.wait(LIMIT)
        try:
            rt.resume(answer)
        except ResumeError:
            return False
        return True

    def close(handle: Handle) -> None:
        barrier.wait(LIMIT)
        rt.close(handle)

    accepted = set()
    for _ in range(ROUNDS):
        handle, parked = start(rt, "a")
        answer = yes(parked)
        closing = in_thread(close, handle)
        if within(resume, answer):
            accepted.add(answer.id)
        closing.result(LIMIT)
        assert (handle.state, rt.pending()) == (State.CLOSED, ())
    assert {answer_id for _, answer_id in pay.paid} == accepted
    assert len(pay.paid) == len(accepted)
