"""Closing while others answer, close and stay stuck."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from tests.runtime.support import Make, Probe, in_thread, start, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    Handle,
    NothingSuspended,
    State,
    TaskResult,
    ToolContext,
    ToolResult,
    UnknownRequest,
)
from toolnexus.testing import ScriptedLlm, VirtualClock, text, tool_call

# Closing the root ends what is in memory; of a store it lets go.
pytestmark = pytest.mark.in_memory


class SlowClose:
    """An `on_close` that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, handle: Handle, reason: str) -> None:
        self.inside.set()
        assert self.go_on.wait(LIMIT)


def answer_to(parked: TaskResult) -> Answer:
    assert parked.pending is not None
    return Answer(parked.pending.id, ok=True)


def test_an_answer_is_refused_while_close_waits_for_a_running_sibling(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    hold, clock, charge = threading.Event(), VirtualClock(), Charge()
    llm.say("pay", tool_call("charge_card"))
    llm.say("work", text("finished").held_by(hold))
    rt = make_runtime(
        AgentDef("pay", model="pay", tools=[charge]),
        AgentDef("work", model="work"),
        clock=clock,
        shutdown_ms=60_000,
    )
    asker, parked = start(rt, "pay")
    worker = rt.spawn(rt.root, "work").handle
    finished = rt.future_result(worker)
    rt.wake(worker, "go")
    llm.wait_asked("work")

    closing = in_thread(rt.close)
    clock.wait_parked(1)
    with pytest.raises(NothingSuspended):
        within(rt.resume, answer_to(parked))
    assert rt.pending() == ()
    assert asker.pending_request is None
    hold.set()
    closing.result(LIMIT)

    assert finished.result(LIMIT).text == "finished"
    last = asker.last_result
    assert last is not None
    assert last.status == "closed"
    with pytest.raises(NothingSuspended):
        within(rt.resume, answer_to(parked))
    assert asker.last_result is last
    assert (asker.state, worker.state) == (State.CLOSED, State.CLOSED)
    assert charge.charged == []
    assert len(llm.requests) == 2


def test_an_answer_is_unknown_where_another_question_stays_open(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    hold, clock, charge = threading.Event(), VirtualClock(), Charge()
    llm.say("pay", tool_call("charge_card"), tool_call("charge_card"), text("charged"))
    llm.say("work", text("finished").held_by(hold))
    rt = make_runtime(
        AgentDef("pay", model="pay", tools=[charge]),
        AgentDef("work", model="work"),
        AgentDef("top"),
        clock=clock,
        shutdown_ms=60_000,
    )
    other, other_parked = start(rt, "pay")
    top = rt.spawn(rt.root, "top").handle
    asker, worker = (rt.spawn(top, name).handle for name in ("pay", "work"))
    parked = within(rt.run_turn, asker, "go")
    rt.wake(worker, "go")
    llm.wait_asked("work")

    closing = in_thread(rt.close, top)
    clock.wait_parked(1)
    with pytest.raises(UnknownRequest):
        within(rt.resume, answer_to(parked))
    assert [one.path for one in rt.pending()] == [tuple(other.id.split("/"))]
    hold.set()
    closing.result(LIMIT)
    with pytest.raises(UnknownRequest):
        within(rt.resume, answer_to(parked))
    assert asker.state is State.CLOSED
    assert charge.charged == []

    within(rt.resume, answer_to(other_parked))
    assert rt.wait_on(other, LIMIT).text == "charged"
    assert len(charge.charged) == 1


def test_an_answer_is_refused_while_on_close_is_slow(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """And the place below the parent is neither taken for ever nor given twice."""
    slow, hold, charge = SlowClose(), threading.Event(), Charge()
    llm.say("pay", tool_call("charge_card"))
    llm.say("work", text("one").held_by(hold), text("two"), text("three"))
    rt = make_runtime(
        AgentDef("pay", model="pay", tools=[charge], on_close=slow),
        AgentDef("work", model="work"),
        budget=Budget(max_concurrent=1),
    )
    asker, parked = start(rt, "pay")
    closing = in_thread(rt.close, asker)
    assert slow.inside.wait(LIMIT)
    with pytest.raises(NothingSuspended):
        within(rt.resume, answer_to(parked))
    assert rt.pending() == ()

    first, second = (rt.spawn(rt.root, "work").handle for _ in range(2))
    ends = [rt.future_result(one) for one in (first, second)]
    rt.wake(first, "go")
    llm.wait_asked("work")
    rt.wake(second, "go")
    assert second.state is State.IDLE, "the only place is taken"
    slow.go_on.set()
    closing.result(LIMIT)
    assert second.state is State.IDLE, "a closed agent had no place to give up"
    hold.set()
    assert [end.result(LIMIT).text for end in ends] == ["one", "two"]
    assert within(rt.run_turn, first, "again").text == "three"

    assert asker.last_result is not None
    assert asker.last_result.status == "closed"
    assert charge.charged == []


def test_a_parent_is_not_set_going_by_an_answer_to_its_closing_child(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    slow, charge = SlowClose(), Charge()
    llm.say("lead", tool_call("task", {"agent": "pay", "prompt": "x"}), text("without it"))
    llm.say("pay", tool_call("charge_card"))
    rt = make_runtime(
        AgentDef("lead", model="lead", team=["pay"]),
        AgentDef("pay", model="pay", tools=[charge], on_close=slow),
    )
    lead, parked = start(rt, "lead")
    waiting = rt.future_result(lead)
    closing = in_thread(rt.close, lead.children[0])
    assert slow.inside.wait(LIMIT)
    with pytest.raises(NothingSuspended):
        within(rt.resume, answer_to(parked))
    assert len(llm.requests_of("lead")) == 1
    slow.go_on.set()
    closing.result(LIMIT)
    assert waiting.result(LIMIT).text == "without it"
    assert charge.charged == []
    assert len(llm.requests_of("pay")) == 1


def closes(whom: Callable[[Handle], Handle | None], found: list[AgentRuntime]) -> Any:
    """Return an `on_close` that closes something once more; None is the root."""
    calls: list[str] = []

    def on_close(handle: Handle, reason: str) -> None:
        calls.append(handle.id)
        target = whom(handle)
        if target is None:
            found[0].close()
        else:
            found[0].close(target)

    on_close.calls = calls  # type: ignore[attr-defined]
    return on_close


@pytest.mark.parametrize("target", ["itself", "its parent", "the root"])
@pytest.mark.parametrize("begins_at", ["child", "parent", "root"])
def test_an_on_close_that_closes_what_is_being_closed_comes_back(
    make_runtime: Make, target: str, begins_at: str
) -> None:
    found: list[AgentRuntime] = []
    whom = {
        "itself": lambda handle: handle,
        "its parent": lambda handle: handle.parent,
        "the root": lambda handle: None,
    }
    on_close = closes(whom[target], found)
    # Who waits here for a close that is its own waits for far longer than LIMIT.
    rt = make_runtime(AgentDef("a", on_close=on_close), AgentDef("top"), shutdown_ms=600_000)
    found.append(rt)
    top = rt.spawn(rt.root, "top").handle
    child = rt.spawn(top, "a").handle
    waiting = rt.future_result(child)

    within(rt.close, {"child": child, "parent": top, "root": rt.root}[begins_at])

    assert child.state is State.CLOSED
    assert waiting.result(LIMIT).status == "closed"
    assert on_close.calls == [child.id]
    assert (rt.root.state is State.CLOSED) is ("root" in (begins_at, target.split()[-1]))
    within(rt.close)
    assert {one.state for one in (rt.root, top, child)} == {State.CLOSED}


def test_a_forced_close_waits_once_for_all_stuck_tools(
    llm: ScriptedLlm, make_runtime: Make, caplog: pytest.LogCaptureFixture
) -> None:
    stuck_agents, let_go = 14, threading.Event()
    inside = threading.Barrier(stuck_agents + 1)

    def stick(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        inside.wait(LIMIT)
        let_go.wait(6 * LIMIT)
        return ToolResult.ok("at last")

    llm.answer("m", lambda request: tool_call("stick"))
    rt = make_runtime(
        AgentDef("a", tools=[Probe("stick", stick)]),
        budget=Budget(max_concurrent=stuck_agents),
        max_concurrent_turns=stuck_agents,
    )
    handles = [rt.spawn(rt.root, "a").handle for _ in range(stuck_agents)]
    ends: list[Future[TaskResult]] = [rt.future_result(one) for one in handles]
    for one in handles:
        rt.wake(one, "go")
    inside.wait(LIMIT)
    try:
        # One second for each of the threads would be more than LIMIT.
        within(rt.close, rt.root, force=True)
    finally:
        let_go.set()
    assert {end.result(LIMIT).status for end in ends} == {"interrupted"}
    assert {one.state for one in handles} == {State.CLOSED}
    (warned,) = [one.message for one in caplog.records if "still runs" in one.message]
    assert all(one.id in warned for one in handles)
