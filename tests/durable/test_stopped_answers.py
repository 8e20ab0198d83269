"""Answers that were accepted meet an interrupt, a close, or a write that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.durable.hooked import HookedStore, claim_only, fails
from tests.durable.staying import Staying
from tests.runtime.streams import until
from tests.runtime.support import in_thread, within
from tests.runtime.test_shared_logins import crm
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    ConfigError,
    Handle,
    Request,
    RequestConflict,
    State,
    StoreError,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.contrib.recovering import recover as command
from toolnexus.stores import MemoryStore
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

Make = Callable[..., AgentRuntime]


class Desk:
    """A tool that asks before it pays; what `paying` does is done before that."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.paying: Callable[[], object] = lambda: None

    def agent(self, **options: Any) -> AgentDef:
        @tool
        def pay(n: int, ctx: ToolContext) -> ToolResult:
            """Pay.

            Args:
                n: Which.
            """
            if ctx.answer is None:
                return ToolResult.pending(Request("approval", f"Pay {n}?"))
            self.paying()
            self.paid.append(n)
            return ToolResult.ok(f"paid {n}")

        return AgentDef("a", tools=[pay], **options)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def parked(rt: AgentRuntime) -> tuple[Handle, str]:
    handle = rt.spawn(rt.root, "a").handle
    pending = rt.run_turn(handle, "go").pending
    assert pending is not None
    return handle, pending.id


@pytest.mark.parametrize("verb", ["interrupt", "close", "force"])
def test_what_stops_an_agent_does_not_carry_its_answer_out_first(
    make_runtime: Make, llm: ScriptedLlm, desk: Desk, verb: str
) -> None:
    llm.say("m", tool_call("pay", {"n": 1}))
    store = MemoryStore()
    first = make_runtime(desk.agent(), store=store)
    handle, request_id = parked(first)
    claim_only(store, request_id, id=request_id, ok=True)
    first.close()
    rt = make_runtime(desk.agent(), store=store)
    again = rt.handle(handle.id)
    if verb == "interrupt":
        within(rt.interrupt, again)
    else:
        within(rt.close, again, force=verb == "force")
    assert rt.recover() == ()
    rt.close(force=True)  # and whatever would still be at it
    assert desk.paid == []
    assert "not executed" in str(first.transcript(handle)[-1]["content"])


def test_an_interrupt_reaches_the_same_agents_after_a_crash(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    """Not a child that the host has spawned, and that works for no call of its parent."""
    stay = Staying(retry_safe=True)

    llm.say("b", tool_call("stay"), text("done"))
    store = MemoryStore()
    agents = AgentDef("a"), AgentDef("b", tools=[stay.tool], model="b")
    first = make_runtime(*agents, store=store)
    top = first.spawn(first.root, "a").handle
    child = first.spawn(top, "b").handle
    first.wake(child, "go")
    assert stay.inside.wait(LIMIT)
    first.close(force=True)
    stay.go.set()
    rt = make_runtime(*agents, store=store)
    within(rt.interrupt, rt.handle(top.id))
    assert rt.wait_on(rt.handle(child.id), LIMIT).text == "done"


@pytest.mark.parametrize("is_command", [False, True])
def test_runs_that_wait_for_their_place_are_under_way(
    make_runtime: Make, llm: ScriptedLlm, desk: Desk, is_command: bool
) -> None:
    count = 5
    for reply in ("pay", "text"):
        for n in range(count):
            llm.say("m", tool_call("pay", {"n": n}) if reply == "pay" else text("done"))
    store = MemoryStore()
    first = make_runtime(desk.agent(), store=store)
    for _ in range(count):
        _, request_id = parked(first)
        claim_only(store, request_id, id=request_id, ok=True)
    first.close()

    rt = make_runtime(desk.agent(), store=store, budget=Budget(max_concurrent=1))
    if is_command:
        told: list[str] = []
        within(command, rt, None, told.append)
        assert sorted(told) == [f"root/a.{n}: done" for n in range(1, count + 1)]
    else:
        go = threading.Event()
        desk.paying = lambda: go.wait(LIMIT)
        runs = rt.recover()
        assert [one.is_busy for one in rt.list()] == [True] * count
        assert all(rt.inspect(one).is_busy for one in runs)
        go.set()
        assert [rt.wait_on(rt.handle(one), LIMIT).text for one in runs] == ["done"] * count
    assert sorted(desk.paid) == list(range(count))


def test_who_answers_is_told_of_a_write_that_has_failed_by_then(
    make_runtime: Make, llm: ScriptedLlm, desk: Desk
) -> None:
    """Another thread has carried the answer out, and lost the run."""
    llm.say("m", tool_call("pay", {"n": 1}))
    store, inside, go = HookedStore(), threading.Event(), threading.Event()

    @tool
    def stay() -> str:
        """Keep the one worker."""
        inside.set()
        assert go.wait(LIMIT)
        return "stayed"

    llm.say("s", tool_call("stay"), text("stayed"))
    keeper = AgentDef("keeper", tools=[stay], model="s")
    rt = make_runtime(desk.agent(), keeper, store=store, max_workers=1)
    handle, request_id = parked(rt)
    rt.wake(rt.spawn(rt.root, "keeper").handle, "go")
    assert inside.wait(LIMIT)
    store.before["write"] = fails
    resumed = rt.future_resume(Answer(request_id, ok=True))
    assert "nobody knows" in rt.wait_on(handle).text  # which takes the turn over
    go.set()
    with pytest.raises(StoreError, match="nobody knows"):
        resumed.result(LIMIT)


def test_who_answers_elsewhere_waits_for_no_later_turn(
    make_runtime: Make, llm: ScriptedLlm, desk: Desk
) -> None:
    inside, go, later = threading.Event(), threading.Event(), threading.Event()
    desk.paying = lambda: (inside.set(), go.wait(LIMIT))
    llm.say("m", tool_call("pay", {"n": 1}), text("done"), text("later").held_by(later))
    store = HookedStore()
    one, two = (make_runtime(desk.agent(), store=store) for _ in range(2))
    handle, request_id = parked(one)
    first = in_thread(one.resume, Answer(request_id, ok=True))
    assert inside.wait(LIMIT)
    second = in_thread(two.resume, Answer(request_id, ok=True))  # the same webhook twice
    woken = threading.Event()

    def wake(_: object) -> None:
        assert one.wake(handle, "next").ok
        woken.set()

    one.future_result(handle).add_done_callback(wake)
    go.set()
    first.result(LIMIT)
    assert woken.wait(LIMIT)
    second.result(LIMIT)
    later.set()
    assert desk.paid == [1]


def test_an_answer_stays_where_the_runtime_is_closed_in_this_moment(
    make_runtime: Make, llm: ScriptedLlm, desk: Desk
) -> None:
    llm.say("m", tool_call("pay", {"n": 1}), text("done"))
    store = HookedStore()
    rt = make_runtime(desk.agent(), store=store)
    _, request_id = parked(rt)
    store.after["claim"] = rt.close
    rt.resume(Answer(request_id, ok=True))
    assert rt.recover() == ()
    other = make_runtime(desk.agent(), store=store)
    assert other.recover() == ("root/a.1",)
    assert other.wait_on(other.handle("root/a.1"), LIMIT).text == "done"


@pytest.mark.parametrize("verb", ["mend", "close", "interrupt"])
def test_a_good_answer_is_carried_out_beside_a_damaged_one(
    make_runtime: Make,
    llm: ScriptedLlm,
    desk: Desk,
    caplog: pytest.LogCaptureFixture,
    verb: str,
) -> None:
    """And the run is nobody's then, for somebody may be able to read it."""
    llm.say("m", tool_calls(call("pay", {"n": 1}), call("pay", {"n": 2})), text("done"))
    store = MemoryStore()
    first = make_runtime(desk.agent(), store=store)
    handle, _ = parked(first)
    good, damaged = (one.request.id for one in first.pending())
    claim_only(store, good, id=good, ok=True)
    claim_only(store, damaged, id=damaged)
    first.close()
    rt = make_runtime(desk.agent(), store=store)
    assert rt.recover() == (handle.id,)
    again = rt.handle(handle.id)
    owner = rt._core.keeper.owner
    until(lambda: desk.paid == [1] and store.owned("default", owner) == {})
    if verb == "close":
        other = make_runtime(desk.agent(), store=store)
        within(other.close, other.handle(handle.id), force=True)
        assert store.abandoned("default") == ()
        return
    if verb == "interrupt":
        within(rt.interrupt, again)
        assert store.abandoned("default") == ()
        return
    ended = rt.future_result(again)
    assert f"the answer to request {damaged!r} cannot be read" in caplog.text
    store.database.write(
        lambda session: session.run(
            "UPDATE toolnexus_request SET answer = replace(answer, ?, ?) WHERE name = ?",
            f'{{"id":"{damaged}"}}',
            f'{{"id":"{damaged}","ok":true}}',
            damaged,
        )
    )
    assert rt.recover() == (handle.id,)
    assert ended.result(LIMIT).text == "done"
    assert desk.paid == [1, 2]


@pytest.mark.parametrize("name", ["write", "requests"])
def test_recover_goes_on_where_the_store_fails_for_one_run(
    make_runtime: Make, llm: ScriptedLlm, desk: Desk, name: str
) -> None:
    for n in range(2):
        llm.say("m", tool_call("pay", {"n": n}))
    store = HookedStore()
    first = make_runtime(desk.agent(), store=store)
    runs = tuple(parked(first)[0].id for _ in range(2))
    for run_id in runs:
        store.send("default", run_id, {"verb": "unknown", "handle": run_id})
    first.close()
    rt = make_runtime(desk.agent(), store=store, on_suspend=lambda _: None)
    store.before[name] = fails
    assert rt.recover() == runs
    rt.recover()
    assert store.abandoned("default") == ()
    assert len(rt.pending()) == 2


def test_a_login_that_others_open_again_and_again_is_asked_for_in_the_end(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    llm.say("m", tool_call("crm"), text("in"))
    store, left = HookedStore(), list(range(12))

    def conflict() -> None:
        if left:
            left.pop()
            store.before["write"] = conflict
            raise RequestConflict("another", "open")

    rt = make_runtime(AgentDef("a", tools=[crm()]), store=store)
    handle = rt.spawn(rt.root, "a").handle
    llm_asked = in_thread(rt.run_turn, handle, "go")
    store.before["write"] = conflict
    assert llm_asked.result(LIMIT).status == "pending"
    assert left == []
    (pending,) = rt.pending()
    rt.resume(Answer(pending.request.id, ok=True))
    assert rt.wait_on(handle, LIMIT).text == "in"


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_closed_runtime_keeps_nobody_waiting(
    make_runtime: Make, llm: ScriptedLlm, has_begun: bool
) -> None:
    llm.say("m", text("first"), text("lost").held_by(threading.Event()))
    rt = make_runtime(AgentDef("a"), store=MemoryStore())
    handle = rt.spawn(rt.root, "a").handle
    assert rt.run_turn(handle, "go").text == "first"
    if has_begun:
        rt.wake(handle, "go")
        llm.wait_asked("m", 2)
    rt.close()
    status = "interrupted" if has_begun else "done"
    assert within(rt.wait_on, handle).status == status
    assert rt.future_result(handle).result(LIMIT).status == status
    assert within(rt.run_turn, handle, "more").status == "closed"
    assert [one.result.status for one in within(lambda: list(rt.stream(handle, "more")))] == [
        "closed"
    ]


def test_a_child_is_closed_elsewhere_long_before_its_parent_rests(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    llm.say("m", text("done").held_by(go := threading.Event()))
    store, agents = MemoryStore(), (AgentDef("a"), AgentDef("b"))
    one, two = (make_runtime(*agents, store=store) for _ in range(2))
    top = one.spawn(one.root, "a").handle
    child = one.spawn(top, "b").handle
    one.wake(top, "go")
    llm.wait_asked("m")
    seen = two.handle(child.id)
    within(two.close, seen)
    assert seen.state is State.CLOSED
    assert top.state is State.RUNNING
    go.set()


@pytest.mark.parametrize("odd", [{"force": 1}, {"reason": 5}, {"reason": ["a"]}])
def test_a_close_that_makes_no_sense_is_refused(
    make_runtime: Make, odd: dict[str, Any]
) -> None:
    rt = make_runtime(AgentDef("a"), store=MemoryStore())
    handle = rt.spawn(rt.root, "a").handle
    with pytest.raises(ConfigError, match="must be"):
        rt.close(handle, **odd)
    assert handle.state is State.IDLE
