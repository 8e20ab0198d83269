"""Foreign code that ends its thread, blocks, or closes what it is in leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.listening import listening
from tests.runtime.support import Make, Probe, in_thread, run_turn, start, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Budget,
    Handle,
    RealClock,
    State,
    ToolContext,
    ToolResult,
)
from toolnexus.clock import Signal
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

# Closing the root ends what is in memory; of a store it lets go.
pytestmark = pytest.mark.in_memory

ENDINGS = (SystemExit, KeyboardInterrupt, GeneratorExit)


def close_suppressed(rt: AgentRuntime, handle: Handle, *, force: bool = False) -> None:
    """Close on a thread of its own; what foreign code raised may come out of it."""
    with suppress(*ENDINGS):
        within(rt.close, handle, force=force)


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def work(*args: Any) -> Any:
        raise error("ended")

    return work


# -- on_close ---------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ENDINGS)
def test_on_close_that_ends_its_thread_leaves_no_half_closed_tree(
    make_runtime: Make, error: type[BaseException]
) -> None:
    rt = make_runtime(AgentDef("p"), AgentDef("c", on_close=raising(error)))
    parent = rt.spawn(rt.root, "p").handle
    children = [rt.spawn(parent, "c").handle for _ in range(2)]
    waiting = [rt.future_result(one) for one in (parent, *children)]
    close_suppressed(rt, rt.root)
    assert {one.state for one in (rt.root, parent, *children)} == {State.CLOSED}
    assert [one.result(LIMIT).status for one in waiting] == ["closed"] * 3
    assert rt.list() == ()


@pytest.mark.parametrize("error", ENDINGS)
def test_the_task_child_whose_on_close_ends_the_thread_is_gone(
    llm: ScriptedLlm, make_runtime: Make, error: type[BaseException]
) -> None:
    llm.say("lead", tool_call("task", {"agent": "w", "prompt": "x"}), text("1"), text("2"))
    llm.answer("w", lambda request: text("worked"))
    rt = make_runtime(
        AgentDef("lead", model="lead", team=["w"], budget=Budget(max_children=1)),
        AgentDef("w", model="w", on_close=raising(error)),
    )
    lead, _ = start(rt, "lead")
    assert [one.state for one in lead.children if one.state is not State.IDLE] == []
    llm.say("lead", text("fine"))
    assert run_turn(rt, lead).is_error is False
    close_suppressed(rt, lead)
    assert (lead.state, lead.children) == (State.CLOSED, ())


@pytest.mark.parametrize("whom", ["own", "root"])
def test_on_close_may_close_what_is_being_closed(make_runtime: Make, whom: str) -> None:
    """An hour to shut down shows that nobody waits for himself."""
    closed: list[str] = []

    def on_close(handle: Handle, reason: str) -> None:
        rt.close(handle if whom == "own" else rt.root)
        closed.append(handle.id)

    rt = make_runtime(AgentDef("a", on_close=on_close), shutdown_ms=3_600_000)
    handles = [rt.spawn(rt.root, "a").handle for _ in range(5)]
    within(rt.close)
    assert {one.state for one in (rt.root, *handles)} == {State.CLOSED}
    assert sorted(closed) == sorted(one.id for one in handles)


@pytest.mark.parametrize("waits_by", ["wait_on", "future_result"])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("whom", ["other", "own", "parent"])
def test_on_close_that_waits_for_an_agent_of_the_closing_tree_comes_back(
    make_runtime: Make, whom: str, waits_by: str, *, force: bool
) -> None:
    """What it is told is the runtime's choice; that close goes on is not."""
    handles: dict[str, Handle] = {}
    told: list[object] = []

    def on_close(handle: Handle, reason: str) -> None:
        target = {**handles, "own": handle}[whom]
        try:
            if waits_by == "wait_on":
                told.append(rt.wait_on(target).status)
            else:
                told.append(rt.future_result(target).result(2 * LIMIT).status)
        except Exception as error:
            told.append(error)

    rt = make_runtime(AgentDef("o"), AgentDef("a", on_close=on_close))
    handles["parent"] = rt.spawn(rt.root, "o").handle
    handles["other"] = rt.spawn(rt.root, "o").handle
    rt.spawn(handles["parent"], "a")
    within(rt.close, rt.root, force=force)
    assert rt.root.state is State.CLOSED
    assert rt.list() == ()
    assert len(told) == 1
    assert told[0] == "closed" or isinstance(told[0], Exception)


# -- on_spawn ---------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ENDINGS)
def test_on_spawn_that_ends_its_thread_leaves_no_handle(
    make_runtime: Make, error: type[BaseException]
) -> None:
    rt = make_runtime(AgentDef("c", on_spawn=raising(error)), budget=Budget(max_children=1))
    for _ in range(2):
        spawned = None
        with suppress(*ENDINGS):
            spawned = within(rt.spawn, rt.root, "c")
        assert spawned is None or not spawned.ok
        assert (rt.list(), rt.root.children) == ((), ())


@pytest.mark.parametrize("error", ENDINGS)
def test_on_spawn_of_a_task_child_that_ends_the_thread_ends_the_turn(
    llm: ScriptedLlm, make_runtime: Make, error: type[BaseException]
) -> None:
    llm.say("m", tool_call("task", {"agent": "w", "prompt": "x"}))
    llm.answer("m", lambda request: text("fine"))
    rt = make_runtime(AgentDef("lead", team=["w"]), AgentDef("w", on_spawn=raising(error)))
    lead, _ = start(rt, "lead")
    assert (lead.state, lead.children) == (State.IDLE, ())
    assert run_turn(rt, lead).text == "fine"


def test_an_interrupt_while_on_spawn_of_a_task_child_runs_leaves_no_child(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    inside, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def on_spawn(handle: Handle) -> None:
        inside.set()
        assert go_on.wait(LIMIT)

    llm.say("m", tool_call("task", {"agent": "w", "prompt": "x"}))
    rt = make_runtime(
        AgentDef("lead", team=["w"]),
        AgentDef("w", on_spawn=on_spawn, on_close=lambda handle, why: closed.set()),
    )
    lead = rt.spawn(rt.root, "lead").handle
    future = rt.future_result(lead)
    rt.wake(lead, "go")
    assert inside.wait(LIMIT)
    within(rt.interrupt, lead)
    assert future.result(LIMIT).status == "interrupted"
    with listening("w.1: idle→closed") as ended:
        go_on.set()
        assert closed.wait(LIMIT), "the child stays"
        ended.wait()
    assert lead.children == ()


# -- tools beside task calls ------------------------------------------------------------------


def throw_own_token(ctx: ToolContext) -> None:
    ctx.cancel.cancel("enough")


@pytest.fixture(params=[*ENDINGS, None], ids=lambda e: e.__name__ if e else "own token")
def ending(request: pytest.FixtureRequest) -> Callable[[ToolContext], Any]:
    """What a tool does to its own run."""
    return throw_own_token if request.param is None else raising(request.param)


class Beside:
    """A turn whose tool ends it while one `task` child is asked and the next is queued."""

    def __init__(self, llm: ScriptedLlm, make: Make, ending: Callable[..., Any]) -> None:
        self.llm = llm
        self.ending = ending
        self.go_on, self.at_end = threading.Event(), threading.Event()
        tasks = [call("task", {"agent": "w", "prompt": f"job {n}"}) for n in range(2)]
        llm.say("lead", tool_calls(call("work"), *tasks), text("later"))
        llm.answer("w", lambda request: text("worked").held_by(self.go_on))
        tools = [Probe("work", self.work)]
        budget = Budget(max_concurrent=1)
        self.rt = make(
            AgentDef("lead", model="lead", team=["w"], tools=tools, budget=budget),
            AgentDef("w", model="w"),
        )
        self.lead = self.rt.spawn(self.rt.root, "lead").handle
        self.future = self.rt.future_result(self.lead)
        with listening("wake QUEUED") as self.queued:
            self.rt.wake(self.lead, "go")
            assert self.at_end.wait(LIMIT)
        self.children = list(self.lead.children)

    def work(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        self.llm.wait_asked("w")
        self.queued.wait()
        ctx.cancel.on_cancel(self.at_end.set)
        self.ending(ctx)
        return ToolResult.ok()


def test_a_tool_that_ends_its_turn_leaves_no_running_sibling(
    llm: ScriptedLlm, make_runtime: Make, ending: Callable[..., Any]
) -> None:
    beside = Beside(llm, make_runtime, ending)
    beside.go_on.set()
    assert beside.future.result(LIMIT).status in ("error", "interrupted")
    unfinished = [one for one in beside.children if one.last_result is None]
    assert [beside.rt.wait_on(one, LIMIT).status for one in unfinished] == []
    assert {one.state for one in beside.children} <= {State.IDLE, State.CLOSED}
    assert run_turn(beside.rt, beside.lead).text == "later"


def test_a_tool_that_ends_its_turn_is_not_held_up_by_a_siblings_provider(
    llm: ScriptedLlm, make_runtime: Make, ending: Callable[..., Any]
) -> None:
    """A run that is over reaches what works for it, as an interrupt does."""
    beside = Beside(llm, make_runtime, ending)
    try:
        assert beside.future.result(LIMIT / 2).status in ("error", "interrupted")
    finally:
        beside.go_on.set()


# -- cancel callbacks -------------------------------------------------------------------------


def woken_with_callback(
    llm: ScriptedLlm, make: Make, callback: Callable[[], Any]
) -> tuple[AgentRuntime, Handle, threading.Event]:
    """Start a turn that is in a tool which cannot be stopped and has a cancel callback."""
    inside, leave = threading.Event(), threading.Event()

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        ctx.cancel.on_cancel(callback)
        inside.set()
        leave.wait(LIMIT)
        return ToolResult.ok()

    llm.say("m", tool_call("work"))
    rt = make(AgentDef("a", tools=[Probe("work", work)]))
    handle = rt.spawn(rt.root, "a").handle
    rt.wake(handle, "go")
    assert inside.wait(LIMIT)
    return rt, handle, leave


@pytest.mark.parametrize("error", [*ENDINGS, RuntimeError])
def test_a_cancel_callback_that_raises_does_not_stop_the_interrupt(
    llm: ScriptedLlm, make_runtime: Make, error: type[BaseException]
) -> None:
    rt, handle, leave = woken_with_callback(llm, make_runtime, raising(error))
    future = rt.future_result(handle)
    with suppress(*ENDINGS):
        within(rt.interrupt, handle)
    try:
        assert future.result(LIMIT).status == "interrupted"
        assert handle.state is State.IDLE
        close_suppressed(rt, rt.root, force=True)
        assert handle.state is State.CLOSED
    finally:
        leave.set()


@pytest.mark.parametrize("error", ENDINGS)
def test_a_cancel_callback_that_raises_does_not_stop_the_close(
    llm: ScriptedLlm, make_runtime: Make, error: type[BaseException]
) -> None:
    rt, handle, leave = woken_with_callback(llm, make_runtime, raising(error))
    future = rt.future_result(handle)
    try:
        close_suppressed(rt, rt.root, force=True)
        assert {handle.state, rt.root.state} == {State.CLOSED}
        assert future.result(LIMIT).is_error
    finally:
        leave.set()


def test_a_cancel_callback_that_blocks_holds_up_no_waiter(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    unblock = threading.Event()
    rt, handle, leave = woken_with_callback(llm, make_runtime, lambda: unblock.wait(2 * LIMIT))
    future = rt.future_result(handle)
    interrupting = in_thread(rt.interrupt, handle)
    try:
        assert future.result(LIMIT / 2).status == "interrupted"
        assert handle.state is State.IDLE
    finally:
        unblock.set()
        leave.set()
        interrupting.result(LIMIT)


# -- a close that was broken off --------------------------------------------------------------


class BrokenClock(RealClock):
    """A clock whose next wait on the chosen thread is Ctrl-C."""

    def __init__(self) -> None:
        self.victim: threading.Thread | None = None

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        if threading.current_thread() is self.victim:
            self.victim = None
            raise KeyboardInterrupt
        return super().wait(signal, timeout)


def test_a_second_close_finishes_what_one_that_was_broken_off_left(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    inside, leave = threading.Event(), threading.Event()

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        inside.set()
        leave.wait(LIMIT)
        return ToolResult.ok()

    def broken_close() -> None:
        clock.victim = threading.current_thread()
        rt.close(rt.root)

    llm.say("m", tool_call("work"))
    clock = BrokenClock()
    rt = make_runtime(
        AgentDef("a", tools=[Probe("work", work)]), clock=clock, shutdown_ms=60_000
    )
    handle = rt.spawn(rt.root, "a").handle
    idle = rt.spawn(handle, "a").handle
    futures = [rt.future_result(one) for one in (handle, idle)]
    rt.wake(handle, "go")
    assert inside.wait(LIMIT)
    try:
        with pytest.raises(KeyboardInterrupt):
            within(broken_close)
        within(rt.close, rt.root, force=True)
        assert {one.state for one in (rt.root, handle, idle)} == {State.CLOSED}
        assert [one.result(LIMIT).is_error for one in futures] == [True, True]
        assert rt.list() == ()
    finally:
        leave.set()
