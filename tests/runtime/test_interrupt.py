"""Interrupt ends what is under way, withdraws what is asked, and leaves nobody waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge, moves
from tests.runtime.support import Make, Probe, chain_of, in_thread, run_turn, start, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Handle,
    NothingSuspended,
    Request,
    State,
    TaskResult,
    ToolContext,
    ToolResult,
    UnknownRequest,
)
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls


def parked_chain(
    llm: ScriptedLlm, make_runtime: Make, depth: int = 3
) -> tuple[AgentRuntime, list[Handle], TaskResult, Charge]:
    """Return a chain whose leaf asks, from the top down."""
    for level in range(1, depth):
        llm.say(f"d{level}", tool_call("task", {"agent": f"d{level + 1}", "prompt": "x"}))
    llm.say(f"d{depth}", tool_call("charge_card"))
    charge = Charge()
    rt = make_runtime(*chain_of(depth, [charge]))
    top, parked = start(rt, "d1")
    handles = [top]
    while handles[-1].children:
        handles.append(handles[-1].children[0])
    assert len(handles) == depth
    return rt, handles, parked, charge


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_handle_of_a_parked_chain_withdraws_it_all(
    llm: ScriptedLlm, make_runtime: Make, which: int
) -> None:
    rt, handles, parked, charge = parked_chain(llm, make_runtime)
    waiting = [rt.future_result(handle) for handle in handles]
    within(rt.interrupt, handles[which])

    for handle, future in zip(handles, waiting, strict=True):
        assert handle.state is State.IDLE
        assert future.result(LIMIT).status == "interrupted"
        assert within(rt.wait_on, handle).status == "interrupted"
        assert handle.pending_request is None
        line = f'{handle.id}: suspended→idle (interrupt cancelled pending "approval")'
        assert line in rt.trace()
        assert moves(rt.trace(), handle.id) == ["idle", "running", "suspended", "idle"]
    assert rt.pending() == ()
    assert parked.pending is not None
    with pytest.raises(NothingSuspended):
        within(rt.resume, Answer(parked.pending.id, ok=True))
    assert charge.charged == []


def test_an_answer_after_the_interrupt_is_unknown_where_others_are_open(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("charge_card"), tool_call("charge_card"))
    rt = make_runtime(AgentDef("a", tools=[Charge()]))
    first, gone = start(rt, "a")
    second, _ = start(rt, "a")
    within(rt.interrupt, first)
    assert gone.pending is not None
    with pytest.raises(UnknownRequest):
        within(rt.resume, Answer(gone.pending.id, ok=True))
    assert second.state is State.SUSPENDED


def test_an_interrupt_of_one_leaf_spares_no_sibling_of_the_same_turn(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """The parent goes to idle, so what its other task calls ask could reach nobody."""
    tasks = [call("task", {"agent": "pay", "prompt": str(n)}) for n in range(2)]
    llm.say("lead", tool_calls(*tasks))
    llm.answer("pay", lambda request: tool_call("charge_card"))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"]),
        AgentDef("pay", "", "", "pay", tools=[Charge()]),
    )
    lead, _ = start(rt, "lead")
    one, two = lead.children
    within(rt.interrupt, one)
    assert {h.state for h in (lead, one, two)} == {State.IDLE}
    assert rt.pending() == ()


def test_a_transcript_after_an_interrupt_is_balanced_and_true(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_calls(call("mail", {}, "c1"), call("charge_card", {}, "c2")), text("ok"))
    mail = Probe("mail")
    rt = make_runtime(AgentDef("a", tools=[mail, Charge()]))
    handle, _ = start(rt, "a", "mail and charge")
    within(rt.interrupt, handle)
    assert run_turn(rt, handle, "never mind").text == "ok"
    results = llm.requests[-1].tool_results
    assert results["c1"] == "mail done"
    assert "not executed" in results["c2"]
    assert len(mail.runs) == 1
    users = [m["content"] for m in llm.requests[-1].messages if m["role"] == "user"]
    assert users == ["mail and charge", "never mind"]
    llm.assert_done()


def test_an_interrupted_parent_stops_the_childs_request_too(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    never = threading.Event()
    llm.say("lead", tool_call("task", {"agent": "w", "prompt": "x"}), text("next"))
    llm.say("w", text("never").held_by(never))
    rt = make_runtime(AgentDef("lead", "", "", "lead", team=["w"]), AgentDef("w", "", "", "w"))
    lead = rt.spawn(rt.root, "lead").handle
    future = rt.future_result(lead)
    rt.wake(lead, "go")
    llm.wait_asked("w")
    (child,) = lead.children
    below = rt.future_result(child)
    within(rt.interrupt, lead)
    assert future.result(LIMIT).status == "interrupted"
    assert below.result(LIMIT).status == "interrupted"
    assert (lead.state, child.state) == (State.IDLE, State.IDLE)
    assert run_turn(rt, lead, "go on").text == "next"


def test_an_interrupted_child_is_a_result_for_its_parent(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    never = threading.Event()
    llm.say("lead", tool_call("task", {"agent": "w", "prompt": "x"}), text("without it"))
    llm.say("w", text("never").held_by(never))
    rt = make_runtime(AgentDef("lead", "", "", "lead", team=["w"]), AgentDef("w", "", "", "w"))
    lead = rt.spawn(rt.root, "lead").handle
    future = rt.future_result(lead)
    rt.wake(lead, "go")
    llm.wait_asked("w")
    within(rt.interrupt, lead.children[0])
    assert future.result(LIMIT).text == "without it"
    assert list(llm.requests[-1].tool_results.values()) == ["[interrupted] interrupted"]


def test_interrupting_an_idle_agent_does_nothing(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", text("x"))
    rt = make_runtime(AgentDef("a"))
    handle, result = start(rt, "a")
    before = rt.trace()
    within(rt.interrupt, handle)
    within(rt.interrupt, rt.root)
    assert rt.trace() == before
    assert rt.wait_on(handle, LIMIT) == result


class Blocking:
    """A `wait_for` that blocks until the test lets it answer."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()

    def __call__(self, request: Request) -> Answer:
        self.entered.set()
        assert self.leave.wait(LIMIT)
        return Answer(request.id, ok=True)


def test_no_second_turn_starts_on_top_of_a_blocked_wait_for(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("charge_card"), text("second turn"))
    charge, person = Charge(), Blocking()
    rt = make_runtime(AgentDef("a", tools=[charge], wait_for=person))
    handle = rt.spawn(rt.root, "a").handle
    future = rt.future_result(handle)
    rt.wake(handle, "go")
    assert person.entered.wait(LIMIT)
    assert moves(rt.trace(), handle.id)[-1] == "suspended"
    within(rt.interrupt, handle)
    assert future.result(LIMIT).status == "interrupted"
    assert handle.state is State.IDLE
    ack = rt.wake(handle, "on top")
    assert not ack.ok
    assert ack.error is not None
    assert ack.error.startswith("busy")
    assert len(llm.requests) == 1

    person.leave.set()
    settled: Future[TaskResult] = in_thread(_wake_until_taken, rt, handle)
    assert settled.result(LIMIT).text == "second turn"
    assert charge.charged == [], "an answer that comes after the interrupt executes nothing"
    llm.assert_done()


def _wake_until_taken(rt: AgentRuntime, handle: Handle) -> TaskResult:
    for _ in range(1_000_000):
        result = rt.run_turn(handle, "go")
        if not result.text.startswith("busy"):
            return result
    raise AssertionError("still busy")


def own_handle(act: Callable[[AgentRuntime, Handle], Any], found: list[Any]) -> Probe:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        act(*found)
        return ToolResult.ok("and went on")

    return Probe("stop", work)


def test_a_tool_may_interrupt_its_own_agent(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("stop"), text("next turn"))
    found: list[Any] = []
    stop = own_handle(lambda rt, handle: rt.interrupt(handle), found)
    rt = make_runtime(AgentDef("a", tools=[stop]))
    handle = rt.spawn(rt.root, "a").handle
    found += [rt, handle]
    assert run_turn(rt, handle).status == "interrupted"
    assert handle.state is State.IDLE
    result = within(_wake_until_taken, rt, handle)
    assert result.text == "next turn"
    assert len(stop.runs) == 1
    llm.assert_done()


def test_a_tool_may_interrupt_its_parent(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("lead", tool_call("task", {"agent": "w", "prompt": "x"}), text("next"))
    llm.say("w", tool_call("stop"))
    found: list[Any] = []
    stop = own_handle(lambda rt, handle: rt.interrupt(handle), found)
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["w"]), AgentDef("w", "", "", "w", tools=[stop])
    )
    lead = rt.spawn(rt.root, "lead").handle
    found += [rt, lead]
    assert run_turn(rt, lead).status == "interrupted"
    assert within(_wake_until_taken, rt, lead).text == "next"
    llm.assert_done()


def test_a_tool_may_resume_another_agent(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("pay", tool_call("charge_card"), text("charged"))
    llm.say("boss", tool_call("say_yes"), text("said yes"))
    charge = Charge()

    def say_yes(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        (one,) = rt.pending()
        rt.resume(Answer(one.request.id, ok=True))
        return ToolResult.ok(rt.wait_on(parked).text)

    rt = make_runtime(
        AgentDef("pay", "", "", "pay", tools=[charge]),
        AgentDef("boss", "", "", "boss", tools=[Probe("say_yes", say_yes)]),
        max_workers=1,
    )
    parked, _ = start(rt, "pay")
    _, result = start(rt, "boss")
    assert result.text == "said yes"
    assert list(llm.requests_of("boss")[-1].tool_results.values()) == ["charged"]
    assert len(charge.charged) == 1
