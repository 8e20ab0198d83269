"""Closing against resuming, waking, spawning and closing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from tests.threads.invariants import check_path
from tests.threads.racing import race
from toolnexus import AgentDef, AgentRuntime, Answer, ResumeError, State
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    text,
    tool_call,
    tool_calls,
)

Make = Callable[..., AgentRuntime]
ROUNDS = 50

pytestmark = pytest.mark.usefixtures("threads_change_often")


def charge_once(request: RecordedRequest) -> Reply:
    asks = request.messages[-1]["role"] != "tool"
    return tool_call("charge_card") if asks else text("done")


def test_close_against_resume_runs_the_tool_once_or_not_at_all(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    charge = Charge()
    llm.answer("m", charge_once)
    rt = make_runtime(AgentDef("pay", tools=[charge]))
    for _ in range(ROUNDS):
        charge.charged.clear()
        handle = rt.spawn(rt.root, "pay").handle
        parked = rt.run_turn(handle, "Charge.")
        assert parked.pending is not None
        answer = Answer(parked.pending.id, True)

        resumed, _ = race(lambda a=answer: rt.resume(a), lambda h=handle: rt.close(h))

        assert resumed is None or isinstance(resumed, ResumeError)
        assert len(charge.charged) == (1 if resumed is None else 0)
        assert handle.state is State.CLOSED
        assert rt.wait_on(handle, LIMIT).status in ("done", "interrupted", "closed")
        assert rt.pending() == ()
        assert rt.list() == ()
    check_path(rt.trace())


def test_close_of_the_tree_against_the_answers_of_its_leaves(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    charge = Charge()
    llm.answer("pay", charge_once)
    tasks = [call("task", {"agent": "pay", "prompt": "go"})] * 2
    llm.answer(
        "boss",
        lambda request: (
            text("done") if request.messages[-1]["role"] == "tool" else tool_calls(*tasks)
        ),
    )
    rt = make_runtime(
        AgentDef("boss", model="boss", team=["pay"]),
        AgentDef("pay", model="pay", tools=[charge]),
    )
    for _ in range(ROUNDS):
        charge.charged.clear()
        boss = rt.spawn(rt.root, "boss").handle
        assert rt.run_turn(boss, "Go.").status == "pending"
        answers = [Answer(one.request.id, True) for one in rt.pending()]

        given = race(
            *(lambda a=one: rt.resume(a) for one in answers),
            lambda b=boss: rt.close(b, force=True),
        )

        assert all(one is None or isinstance(one, ResumeError) for one in given)
        assert len(charge.charged) <= given[:2].count(None)
        assert boss.state is State.CLOSED
        assert rt.list() == ()
        assert rt.pending() == ()
    check_path(rt.trace())


def test_close_against_wake_leaves_a_closed_handle_and_no_open_future(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.answer("m", lambda request: text("done"))
    rt = make_runtime(AgentDef("a"))
    for _ in range(ROUNDS):
        handle = rt.spawn(rt.root, "a").handle
        future = rt.future_result(handle)
        ack, _, late = race(
            lambda h=handle: rt.wake(h, "Go."),
            lambda h=handle: rt.close(h),
            lambda h=handle: rt.future_result(h),
        )
        assert handle.state is State.CLOSED
        assert future.result(LIMIT).status in ("done", "interrupted", "closed")
        assert late.result(LIMIT).status in ("done", "interrupted", "closed")
        assert ack.ok or ack.error == "closed"
    check_path(rt.trace())


def test_spawn_against_close_never_leaves_a_child_of_a_closed_parent(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt = make_runtime(AgentDef("a"))
    for _ in range(ROUNDS):
        parent = rt.spawn(rt.root, "a").handle
        spawned, _, again = race(
            lambda p=parent: rt.spawn(p, "a"),
            lambda p=parent: rt.close(p),
            lambda p=parent: rt.spawn(p, "a"),
        )
        for one in (spawned, again):
            assert one.error == "parent closed" or one.handle.state is State.CLOSED
        assert rt.list() == ()
    check_path(rt.trace())


def test_close_comes_back_to_everybody_only_when_the_handle_is_closed(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    gate = threading.Event()
    llm.say("m", text("done").held_by(gate))
    rt = make_runtime(AgentDef("a"), shutdown_ms=60_000)
    handle = rt.spawn(rt.root, "a").handle
    rt.wake(handle, "Go.")
    llm.wait_asked("m")
    first = threading.Thread(target=rt.close, args=(handle,), daemon=True)
    first.start()
    while rt.spawn(handle, "a").ok:
        assert first.is_alive()
    seen: list[Any] = []

    def close_too() -> None:
        rt.close(handle)
        seen.append(handle.state)

    second = threading.Thread(target=close_too, daemon=True)
    second.start()
    second.join(0.2)
    gate.set()
    for thread in (first, second):
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert seen == [State.CLOSED]
    assert rt.wait_on(handle, LIMIT).text == "done"
