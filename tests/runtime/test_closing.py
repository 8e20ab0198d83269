"""Closing: leaves first, every waiter released, and nothing left behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from tests.runtime.support import Make, Probe, approve, in_thread, start, within
from toolnexus import (
    AgentDef,
    Answer,
    Handle,
    NothingSuspended,
    State,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import ScriptedLlm, VirtualClock, text, tool_call


class Closings:
    """Remembers every `on_close`."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, State]] = []

    def __call__(self, handle: Handle, reason: str) -> None:
        self.seen.append((handle.id, reason, handle.state))


@pytest.mark.parametrize(
    ("how", "reason"),
    [({}, "closed"), ({"force": True}, "interrupted"), ({"reason": "bye"}, "bye")],
)
def test_the_cascade_goes_from_the_leaves_up(
    make_runtime: Make, how: dict[str, Any], reason: str
) -> None:
    closings = Closings()
    rt = make_runtime(AgentDef("w", on_close=closings))
    top = rt.spawn(rt.root, "w").handle
    left, right = rt.spawn(top, "w").handle, rt.spawn(top, "w").handle
    leaf = rt.spawn(left, "w").handle
    other = rt.spawn(rt.root, "w").handle
    within(rt.close, top, **how)

    closed = [one[0] for one in closings.seen]
    assert sorted(closed) == sorted(h.id for h in (top, left, right, leaf))
    assert closed.index(leaf.id) < closed.index(left.id) < closed.index(top.id)
    assert closed.index(right.id) < closed.index(top.id)
    assert {one[1] for one in closings.seen} == {reason}
    lines = [line for line in rt.trace() if "→closed" in line]
    assert lines == [f"{handle_id}: idle→closed ({reason})" for handle_id in closed]
    assert {h.state for h in (top, left, right, leaf)} == {State.CLOSED}
    assert State.CLOSED not in {one[2] for one in closings.seen}, "called before the end"
    assert rt.root.children == (other,)

    within(rt.close, top)
    assert len(closings.seen) == 4
    view = rt.inspect(top.id)
    assert view is not None
    assert view.state is State.CLOSED
    assert rt.handle(leaf.id) is leaf


def test_a_closed_agent_keeps_a_finished_result(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", text("finished"))
    rt = make_runtime(AgentDef("a"))
    handle, result = start(rt, "a")
    rt.close(handle)
    assert rt.wait_on(handle, LIMIT) == result
    ack = rt.wake(handle, "more")
    assert (ack.ok, ack.error) == (False, "closed")
    assert rt.run_turn(handle, "more").status == "closed"
    assert rt.future_result(handle).result(LIMIT).status == "closed"


def test_a_closed_agent_that_never_ran_is_closed(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    future = rt.future_result(handle)
    rt.close(handle, reason="bye")
    assert future.result(LIMIT).status == "closed"
    assert rt.wait_on(handle, LIMIT).status == "closed"


def test_closing_a_parked_agent_ends_its_question(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("lead", tool_call("task", {"agent": "pay", "prompt": "x"}))
    llm.say("pay", tool_call("charge_card"))
    charge = Charge()
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"]),
        AgentDef("pay", "", "", "pay", tools=[charge]),
    )
    lead, parked = start(rt, "lead")
    waiting = rt.future_result(lead)
    child = lead.children[0]
    within(rt.close, lead)
    assert waiting.result(LIMIT).status == "closed"
    assert rt.wait_on(lead, LIMIT).status == "closed"
    assert rt.wait_on(child, LIMIT).status == "closed"
    assert rt.trace_has(f"{child.id}: suspended→closed (closed)")
    assert rt.trace_has(f"{lead.id}: suspended→closed (closed)")
    assert rt.pending() == ()
    assert parked.pending is not None
    with pytest.raises(NothingSuspended):
        within(rt.resume, Answer(parked.pending.id, ok=True))
    assert charge.charged == []


def test_closing_a_parked_child_lets_the_parent_go_on(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", tool_call("task", {"agent": "pay", "prompt": "x"}), text("without it"))
    llm.say("pay", tool_call("charge_card"))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"]),
        AgentDef("pay", "", "", "pay", tools=[Charge()]),
    )
    lead, _ = start(rt, "lead")
    waiting = rt.future_result(lead)
    within(rt.close, lead.children[0])
    assert waiting.result(LIMIT).text == "without it"
    (told,) = llm.requests[-1].tool_results.values()
    assert told.startswith("[closed]")


def test_a_graceful_close_lets_the_turn_finish(llm: ScriptedLlm, make_runtime: Make) -> None:
    hold = threading.Event()
    llm.say("m", text("finished").held_by(hold))
    clock = VirtualClock()
    rt = make_runtime(AgentDef("a"), clock=clock)
    handle = rt.spawn(rt.root, "a").handle
    future = rt.future_result(handle)
    rt.wake(handle, "go")
    llm.wait_asked("m")
    closing = in_thread(rt.close, handle)
    clock.wait_parked(1)
    hold.set()
    closing.result(LIMIT)
    assert future.result(LIMIT).text == "finished"
    assert rt.wait_on(handle, LIMIT).text == "finished"
    assert handle.state is State.CLOSED
    assert not rt.trace_has("escalate to interrupt")


def test_a_graceful_close_escalates_after_shutdown_ms(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    never = threading.Event()
    llm.say("m", text("never").held_by(never))
    clock = VirtualClock()
    rt = make_runtime(AgentDef("a"), clock=clock, shutdown_ms=5000)
    handle = rt.spawn(rt.root, "a").handle
    future = rt.future_result(handle)
    rt.wake(handle, "go")
    llm.wait_asked("m")
    closing = in_thread(rt.close, handle)
    clock.wait_parked(1)
    clock.advance(4.9)
    assert not closing.done()
    assert not future.done()
    assert rt.spawn(handle, "a").error == "parent closed"
    assert rt.wake(handle, "more").error in ("closed", "busy (running)")
    clock.advance(0.2)
    closing.result(LIMIT)
    assert future.result(LIMIT).status == "interrupted"
    assert f"{handle.id}: escalate to interrupt" in rt.trace()
    assert handle.state is State.CLOSED


def closes_itself(find: Any) -> Any:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        rt, handle = find()
        rt.close(handle)
        return ToolResult.ok("closed myself")

    return work


def test_a_tool_may_close_its_own_agent(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("leave"))
    found: list[Any] = []
    closings = Closings()
    rt = make_runtime(
        AgentDef("a", tools=[Probe("leave", closes_itself(lambda: found))], on_close=closings)
    )
    handle = rt.spawn(rt.root, "a").handle
    found += [rt, handle]
    future = rt.future_result(handle)
    rt.wake(handle, "go")
    assert future.result(LIMIT).status in ("interrupted", "closed")
    assert within(rt.wait_on, handle).is_error
    assert len(closings.seen) == 1
    assert len(llm.requests) == 1


def test_a_tool_may_close_its_parent(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("lead", tool_call("task", {"agent": "w", "prompt": "x"}))
    llm.say("w", tool_call("leave"))
    found: list[Any] = []
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["w"]),
        AgentDef("w", "", "", "w", tools=[Probe("leave", closes_itself(lambda: found))]),
    )
    lead = rt.spawn(rt.root, "lead").handle
    found += [rt, lead]
    future = rt.future_result(lead)
    rt.wake(lead, "go")
    assert future.result(LIMIT).is_error
    within(rt.close, lead)
    assert lead.state is State.CLOSED
    assert rt.root.children == ()


@pytest.mark.parametrize("taken_over", [True, False])
def test_a_tool_may_close_the_runtime(
    llm: ScriptedLlm, make_runtime: Make, taken_over: bool
) -> None:
    llm.say("m", tool_call("leave"))
    found: list[Any] = []
    rt = make_runtime(AgentDef("a", tools=[Probe("leave", closes_itself(lambda: found))]))
    handle = rt.spawn(rt.root, "a").handle
    found += [rt, rt.root]
    if taken_over:
        result = within(rt.run_turn, handle, "go")
    else:
        future = rt.future_result(handle)
        rt.wake(handle, "go")
        result = future.result(LIMIT)
    assert result.is_error
    within(rt.close, rt.root)
    assert rt.root.state is State.CLOSED


@pytest.mark.in_memory
def test_a_closed_runtime_refuses_and_leaves_no_connection(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", text("x"), tool_call("charge_card"))
    rt = make_runtime(AgentDef("a", tools=[Charge()]))
    start(rt, "a")
    handle, parked = start(rt, "a")
    within(rt.close, rt.root)
    llm.wait_connections(0)
    assert rt.spawn(rt.root, "a").error == "parent closed"
    assert rt.wake(handle, "go").error == "closed"
    assert rt.list() == ()
    with pytest.raises(NothingSuspended):
        approve(rt, parked.pending)


def test_wait_on_gives_up_after_its_timeout(llm: ScriptedLlm, make_runtime: Make) -> None:
    hold = threading.Event()
    llm.say("m", text("late").held_by(hold))
    clock = VirtualClock()
    rt = make_runtime(AgentDef("a"), clock=clock)
    handle = rt.spawn(rt.root, "a").handle
    rt.wake(handle, "go")
    llm.wait_asked("m")
    waiting = in_thread(rt.wait_on, handle, 1.5)
    clock.wait_parked(1)
    clock.advance(1.5)
    result = waiting.result(LIMIT)
    assert (result.status, result.is_error) == ("timeout", True)
    assert result.text == "wait timeout after 1500ms (child still running)"
    hold.set()
    assert within(rt.wait_on, handle).text == "late"
