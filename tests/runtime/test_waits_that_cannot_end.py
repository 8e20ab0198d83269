"""A wait that could never end is refused; any other one is served, also by one worker."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Pay, Probe, in_thread, run_turn, start, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    ConfigError,
    Handle,
    State,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    text,
    tool_call,
    tool_calls,
)


class Waiter(Probe):
    """A tool that makes a blocking call with the handle it runs for; keeps what that raised."""

    def __init__(self, work: Callable[[Handle], object]) -> None:
        self.told: list[object] = []
        self.rt: AgentRuntime | None = None

        def execute(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            assert self.rt is not None
            handle = self.rt.handle(ctx.handle_id or "")
            assert handle is not None
            try:
                self.told.append(work(handle))
            except Exception as error:
                self.told.append(type(error))
                raise
            return ToolResult.ok("waited")

        super().__init__("wait", execute)


def wait_then_say(said: str) -> Callable[[RecordedRequest], Reply]:
    def answer(request: RecordedRequest) -> Reply:
        return text(said) if request.messages[-1]["role"] == "tool" else tool_call("wait")

    return answer


# -- a wait for oneself -----------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("workers", [1, 32])
def test_a_tool_that_waits_for_its_own_handle_is_told_that_this_cannot_end(
    llm: ScriptedLlm, make_runtime: Make, workers: int, timeout: float | None
) -> None:
    llm.say("m", tool_call("wait", id="c1"), text("end"))
    waiter = Waiter(lambda handle: rt.wait_on(handle, timeout))
    rt = waiter.rt = make_runtime(AgentDef("a", tools=[waiter]), max_workers=workers)
    _, result = start(rt, "a")
    assert (result.text, waiter.told) == ("end", [ConfigError])
    assert "wait" in llm.requests[-1].tool_results["c1"]


@pytest.mark.parametrize("above", [1, 2])
@pytest.mark.parametrize("workers", [1, 32])
def test_a_tool_that_waits_for_an_ancestor_that_waits_for_it_is_told(
    llm: ScriptedLlm, make_runtime: Make, workers: int, above: int
) -> None:
    def ancestor(handle: Handle) -> Handle:
        for _ in range(above):
            assert handle.parent is not None
            handle = handle.parent
        return handle

    llm.say("top", tool_call("task", {"agent": "mid", "prompt": "x"}), text("top end"))
    llm.say("mid", tool_call("task", {"agent": "low", "prompt": "x"}), text("mid end"))
    llm.answer("low", wait_then_say("low end"))
    waiter = Waiter(lambda handle: rt.wait_on(ancestor(handle)))
    rt = waiter.rt = make_runtime(
        AgentDef("top", model="top", team=["mid"]),
        AgentDef("mid", model="mid", team=["low"]),
        AgentDef("low", model="low", tools=[waiter]),
        max_workers=workers,
    )
    assert start(rt, "top")[1].text == "top end"
    assert waiter.told == [ConfigError]


def test_parallel_calls_are_told_as_well(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_calls(call("wait"), call("wait"), call("wait")), text("end"))
    waiter = Waiter(lambda handle: rt.wait_on(handle))
    rt = waiter.rt = make_runtime(AgentDef("a", tools=[waiter]))
    assert start(rt, "a")[1].text == "end"
    assert waiter.told == [ConfigError] * 3


def test_a_tool_may_wait_for_an_ancestor_that_does_not_wait_for_it(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """The host woke both; the parent's turn ends whether or not the child's does."""
    hold, inside = threading.Event(), threading.Event()

    def wait_for_parent(handle: Handle) -> str:
        assert handle.parent is not None
        inside.set()
        return rt.wait_on(handle.parent).text

    llm.say("p", text("parent end").held_by(hold))
    llm.answer("c", wait_then_say("child end"))
    waiter = Waiter(wait_for_parent)
    rt = waiter.rt = make_runtime(
        AgentDef("p", model="p"), AgentDef("c", model="c", tools=[waiter])
    )
    parent = rt.spawn(rt.root, "p").handle
    child = rt.spawn(parent, "c").handle
    rt.wake(parent, "go")
    llm.wait_asked("p")
    ended = in_thread(run_turn, rt, child)
    assert inside.wait(LIMIT)
    hold.set()
    assert ended.result(LIMIT).text == "child end"
    assert waiter.told == ["parent end"]


def test_a_settled_ancestor_is_read_at_once(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("p", text("parent end"))
    llm.answer("c", wait_then_say("child end"))
    waiter = Waiter(lambda handle: rt.wait_on(handle.parent or handle).text)
    rt = waiter.rt = make_runtime(
        AgentDef("p", model="p"), AgentDef("c", model="c", tools=[waiter])
    )
    parent, _ = start(rt, "p")
    child = rt.spawn(parent, "c").handle
    assert within(rt.run_turn, child, "go").text == "child end"
    assert waiter.told == ["parent end"]


# -- one worker serves them all ---------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, LIMIT])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_tool_that_waits_on_a_future_of_another_agent_is_served(
    llm: ScriptedLlm, make_runtime: Make, workers: int, timeout: float | None
) -> None:
    def ask_other(handle: Handle) -> str:
        future = rt.future_result(other)
        rt.wake(other, "go")
        return future.result(timeout).text

    llm.answer("m", wait_then_say("end"))
    llm.answer("o", lambda request: text("other end"))
    waiter = Waiter(ask_other)
    rt = waiter.rt = make_runtime(
        AgentDef("a", tools=[waiter]), AgentDef("o", model="o"), max_workers=workers
    )
    other = rt.spawn(rt.root, "o").handle
    assert (start(rt, "a")[1].text, waiter.told) == ("end", ["other end"])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_tool_that_waits_on_a_future_of_a_resume_is_served(
    llm: ScriptedLlm, make_runtime: Make, workers: int
) -> None:
    def answer_it(handle: Handle) -> str:
        answer = Answer(rt.pending()[0].request.id, ok=True)
        rt.future_resume(answer).result(LIMIT)
        return rt.wait_on(asker).text

    pay = Pay()
    llm.answer("m", wait_then_say("end"))
    llm.say("o", tool_call("pay"), text("paid"))
    waiter = Waiter(answer_it)
    rt = waiter.rt = make_runtime(
        AgentDef("a", tools=[waiter]),
        AgentDef("o", model="o", tools=[pay]),
        max_workers=workers,
    )
    asker, _ = start(rt, "o")
    assert (start(rt, "a")[1].text, waiter.told) == ("end", ["paid"])
    assert len(pay.paid) == 1


@pytest.mark.parametrize("verb", ["run_turn", "wait_on"])
def test_a_verb_with_a_timeout_in_a_tool_is_served_by_one_worker(
    llm: ScriptedLlm, make_runtime: Make, verb: str
) -> None:
    def ask_other(handle: Handle) -> str:
        if verb == "run_turn":
            return rt.run_turn(other, "go", timeout=LIMIT).status
        rt.wake(other, "go")
        return rt.wait_on(other, timeout=LIMIT).status

    llm.answer("m", wait_then_say("end"))
    llm.answer("o", lambda request: text("other end"))
    waiter = Waiter(ask_other)
    rt = waiter.rt = make_runtime(
        AgentDef("a", tools=[waiter]), AgentDef("o", model="o"), max_workers=1
    )
    other = rt.spawn(rt.root, "o").handle
    assert (start(rt, "a")[1].text, waiter.told) == ("end", ["done"])


@pytest.mark.parametrize("workers", [1, 32])
def test_a_callback_may_wait_for_the_sibling_that_got_the_place(
    llm: ScriptedLlm, make_runtime: Make, workers: int
) -> None:
    hold, told, finished = threading.Event(), [], threading.Event()

    def wait_for_second(_: Future[Any]) -> None:
        try:
            told.append(results[1].result(LIMIT).text)
        except Exception as error:
            told.append(repr(error))
        finished.set()

    llm.say("m", text("first").held_by(hold), text("second"))
    rt = make_runtime(
        AgentDef("a"), budget=Budget(max_concurrent=1), max_workers=workers, shutdown_ms=0
    )
    handles = [rt.spawn(rt.root, "a").handle for _ in range(2)]
    results = [rt.future_result(one) for one in handles]
    results[0].add_done_callback(wait_for_second)
    rt.wake(handles[0], "go")
    llm.wait_asked("m")
    rt.wake(handles[1], "go")
    hold.set()
    assert finished.wait(2 * LIMIT)
    assert told == ["second"]


# -- odd time limits --------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [math.inf, 1e12])
def test_a_limit_without_end_is_no_limit(
    llm: ScriptedLlm, make_runtime: Make, timeout: float
) -> None:
    llm.answer("m", lambda request: text("fine"))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    assert within(rt.run_turn, handle, "go", timeout=timeout).text == "fine"
    assert within(rt.wait_on, handle, timeout=timeout).text == "fine"
    rt.wake(handle, "again")
    assert within(rt.wait_on, handle, timeout=timeout).text == "fine"


@pytest.mark.parametrize("timeout", [math.nan, -1, -math.inf])
def test_a_limit_that_is_none_is_refused_or_nothing(
    llm: ScriptedLlm, make_runtime: Make, timeout: float
) -> None:
    hold = threading.Event()
    llm.answer("m", lambda request: text("fine").held_by(hold))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    for verb in (partial(rt.run_turn, handle, "go"), partial(rt.wait_on, handle)):
        try:
            told = within(verb, timeout=timeout).status
        except ConfigError as error:
            told = str(error)
        assert "timeout" in told
    hold.set()
    if handle.state is State.IDLE and handle.last_result is None:
        rt.wake(handle, "go")
    assert within(rt.wait_on, handle).text == "fine"


def test_no_time_at_all_is_one_look(llm: ScriptedLlm, make_runtime: Make) -> None:
    hold = threading.Event()
    llm.answer("m", lambda request: text("fine").held_by(hold))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    assert within(rt.run_turn, handle, "go", timeout=0).status == "timeout"
    assert within(rt.wait_on, handle, timeout=0).status == "timeout"
    hold.set()
    assert within(rt.wait_on, handle).text == "fine"
    assert within(rt.wait_on, handle, timeout=0).text == "fine"


def test_many_looks_leave_nothing_with_the_handle(llm: ScriptedLlm, make_runtime: Make) -> None:
    hold = threading.Event()
    llm.say("m", text("fine").held_by(hold))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    rt.wake(handle, "go")
    for _ in range(200):
        rt.wait_on(handle, timeout=0)
    assert (len(handle._waiters or ()), len(handle._watchers or ())) == (0, 0)
    hold.set()
    assert within(rt.wait_on, handle).text == "fine"


def test_a_resume_from_a_tool_whose_replay_must_queue_is_seen_through(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """The asker's place below the parent is taken; whoever frees it sees to the replay."""
    hold, pay = threading.Event(), Pay()
    llm.say("c", tool_call("pay"), text("paid"))
    llm.say("d", text("d end").held_by(hold))
    llm.answer("p", wait_then_say("p end"))
    waiter = Waiter(lambda handle: rt.resume(Answer(rt.pending()[0].request.id, ok=True)))
    rt = waiter.rt = make_runtime(
        AgentDef("p", model="p", tools=[waiter], budget=Budget(max_concurrent=1)),
        AgentDef("c", model="c", tools=[pay]),
        AgentDef("d", model="d"),
    )
    parent = rt.spawn(rt.root, "p").handle
    asker, other = rt.spawn(parent, "c").handle, rt.spawn(parent, "d").handle
    run_turn(rt, asker)
    rt.wake(other, "go")
    llm.wait_asked("d")
    paid = rt.future_result(asker)
    assert run_turn(rt, parent).text == "p end"
    hold.set()
    assert paid.result(LIMIT).text == "paid"
    assert len(pay.paid) == 1
