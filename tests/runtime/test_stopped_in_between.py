"""Turns that are stopped between two steps: while they ask, or while a gate is open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from tests.runtime.support import Probe, in_thread
from toolnexus import AgentDef, AgentRuntime, Answer, InboxItem, ResumeError, State
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]


def test_a_turn_that_asks_while_it_is_closed_leaves_no_request(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    hold = threading.Event()
    llm.say("m", tool_call("charge_card").held_by(hold))
    charge = Charge()
    rt = make_runtime(AgentDef("a", tools=[charge]), shutdown_ms=5_000)
    handle = rt.spawn(rt.root, "a").handle
    rt.wake(handle, "go")
    llm.wait_asked("m")
    closing = in_thread(rt.close, handle)
    hold.set()
    closing.result(LIMIT)
    assert handle.state is State.CLOSED
    assert rt.pending() == ()
    with pytest.raises(ResumeError):
        rt.resume(Answer("anything", ok=True))
    assert charge.charged == []


@pytest.mark.parametrize("verb", ["interrupt", "close"])
def test_no_tool_begins_once_its_turn_was_stopped_in_a_hook(
    llm: ScriptedLlm, make_runtime: Make, verb: str
) -> None:
    inside, leave, left = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def before_tool(self, *_: Any) -> None:
            inside.set()
            leave.wait(LIMIT)

    llm.say("m", tool_call("mail"))
    mail = Probe("mail")
    rt = make_runtime(AgentDef("a", tools=[mail], hooks=Slow()), shutdown_ms=0)
    handle = rt.spawn(rt.root, "a").handle
    in_turn = in_thread(lambda: (rt.run_turn(handle, "go"), left.set()))
    assert inside.wait(LIMIT)
    in_thread(getattr(rt, verb), handle).result(LIMIT)
    leave.set()
    in_turn.result(LIMIT)
    assert left.wait(LIMIT)
    assert len(mail.runs) == 0


def test_a_bare_wake_of_a_turn_whose_question_is_withdrawn_is_forgotten(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    hold = threading.Event()
    llm.say("m", tool_call("charge_card").held_by(hold), text("fine"))
    rt = make_runtime(AgentDef("a", tools=[Charge()]))
    handle = rt.spawn(rt.root, "a").handle
    future = rt.future_result(handle)
    rt.wake(handle, "go")
    llm.wait_asked("m")
    rt.post(handle, InboxItem("someone", "note", "hello"))
    assert rt.wake(handle).ok
    hold.set()
    assert future.result(LIMIT).status == "pending"
    rt.interrupt(handle)
    assert rt.run_turn(handle, "again").text == "fine"
    assert handle.state is State.IDLE
    assert len(llm.requests) == 2
