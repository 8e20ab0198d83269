"""Runs that share a login move on, each when it likes."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from tests.conftest import LIMIT
from tests.durable.hooked import HookedStore
from tests.durable.test_stopped_answers import Desk
from tests.runtime.support import within
from tests.runtime.test_shared_logins import crm
from toolnexus import AgentDef, AgentRuntime, Answer, PendingRequest, Request
from toolnexus.stores import MemoryStore
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]


@pytest.mark.parametrize("verb", ["resume", "pending"])
def test_one_of_them_asks_for_something_else_in_the_middle_of_a_look(
    make_runtime: Make, llm: ScriptedLlm, verb: str
) -> None:
    seen: list[PendingRequest] = []
    store, desk = HookedStore(), Desk()
    agents = (
        AgentDef("one", model="one", tools=[crm()]),
        AgentDef("two", model="two", tools=[crm(), *desk.agent().tools]),
    )
    llm.say("one", tool_call("crm"), text("one is in"))
    llm.say("two", tool_call("crm"), tool_call("pay", {"n": 1}))
    other = make_runtime(*agents, store=store)
    rt = make_runtime(
        *agents, store=store, authorize=lambda _, pending: seen.append(pending) or True
    )
    one, two = (other.spawn(other.root, name).handle for name in ("one", "two"))
    for handle in (one, two):
        assert other.run_turn(handle, "go").status == "pending"
    (login,) = rt.pending()

    def move_on() -> None:
        other.interrupt(two)
        assert other.run_turn(two, "pay").pending.prompt == "Pay 1?"

    store.before["load_handle"] = move_on
    if verb == "pending":
        assert rt.pending(under=two.id) == ()
    else:
        answer = Answer(login.request.id, ok=True)
        within(rt.resume, answer, principal="ann")
        assert {one.request.id for one in seen} == {login.request.id}
        assert rt.wait_on(rt.handle(one.id), LIMIT).text == "one is in"
    assert [one.handle_id for one in rt.pending(kind="approval")] == [two.id]
    assert desk.paid == []


def test_a_write_that_is_taken_anew_does_not_end_a_wait_that_goes_on(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    """A call was about to wait for another login, and waits for the first one after all."""
    llm.say("m", tool_call("crm"), text("in"))
    rt = make_runtime(AgentDef("a", tools=[crm()]), store=MemoryStore())
    handle = rt.spawn(rt.root, "a").handle
    first = rt.run_turn(handle, "go").pending
    assert first is not None

    def ask_for(request: Request) -> None:
        rt._core.book.forget(handle)
        (call,) = handle._parked.calls
        calls = (attrs.evolve(call, request=request),)
        handle._parked = attrs.evolve(handle._parked, calls=calls)
        rt._core.book.reopen_all(handle)

    with rt._core.holding(handle), rt._core.lock:
        tree = handle._tree
        ask_for(attrs.evolve(first, id="another"))
        step = tree.step_locked()
        assert [one.request_id for one in step.change.done] == [first.id]
        tree.undo_locked(step)
        ask_for(first)
    assert [one.request.id for one in rt.pending()] == [first.id]
    within(rt.resume, Answer(first.id, ok=True))
    assert rt.wait_on(handle, LIMIT).text == "in"
