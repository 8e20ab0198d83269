"""`timeout_ms`: what waits for a turn is told in time, wherever the turn is held up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.http.raw_servers import Background, Peer, RawServer
from tests.runtime.support import Make, Probe, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Budget,
    LlmClient,
    RunTimeoutError,
    State,
    TaskResult,
    ToolContext,
    ToolResult,
)
from toolnexus.clock import RealClock, Signal
from toolnexus.testing import ScriptedLlm, VirtualClock, text, tool_call

LATE = "run timeout after 5000ms"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def woken(rt: AgentRuntime, name: str) -> tuple[Any, Future[TaskResult]]:
    """Spawn an agent and begin a turn."""
    handle = rt.spawn(rt.root, name).handle
    future = rt.future_result(handle)
    assert rt.wake(handle, "go").ok
    return handle, future


def is_late(result: TaskResult) -> bool:
    return (result.status, result.is_error, result.text) == ("error", True, LATE)


class Watched(VirtualClock):
    """Tells when a thread begins a wait that has no time limit."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked = threading.Semaphore(0)

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        if timeout is None:
            self.blocked.release()
        return super().wait(signal, timeout)


def test_at_the_turn_gate(llm: ScriptedLlm, make_runtime: Make) -> None:
    clock, hold = Watched(), threading.Event()
    llm.say("m", text("first").held_by(hold))
    llm.say("waits", text("after all"))

    class Late:
        """Lets the second agent come to the gate last, though it began first."""

        go_on = threading.Event()

        def before_llm(self, request: object) -> None:
            assert self.go_on.wait(LIMIT)

    rt = make_runtime(
        AgentDef("waits", model="waits", hooks=Late()),
        AgentDef("holds"),
        clock=clock,
        timeout_ms=5000,
        max_concurrent_turns=1,
    )
    waiting, waited = woken(rt, "waits")
    clock.wait_parked(1)
    clock.advance(1)
    _, held = woken(rt, "holds")
    llm.wait_asked("m")
    Late.go_on.set()
    assert clock.blocked.acquire(timeout=LIMIT)
    clock.advance(4)
    assert is_late(waited.result(LIMIT))
    assert (waiting.state, held.done()) == (State.IDLE, False)
    hold.set()
    assert held.result(LIMIT).text == "first"
    assert llm.requests_of("waits") == []
    assert within(rt.retry, waiting).text == "after all"


def test_in_a_request_that_gets_no_answer(
    llm: ScriptedLlm, make_runtime: Make, clock: VirtualClock
) -> None:
    llm.say("m", text("never").held_by(threading.Event()), text("in time"))
    rt = make_runtime(AgentDef("a"), clock=clock, timeout_ms=5000)
    handle, end = woken(rt, "a")
    llm.wait_asked("m")
    clock.wait_parked(1)
    clock.advance(4.9)
    assert not end.done()
    clock.advance(0.1)
    assert is_late(end.result(LIMIT))
    llm.wait_connections(0)
    assert within(rt.retry, handle).text == "in time"


def test_in_a_tool_that_looks_at_its_token(
    llm: ScriptedLlm, make_runtime: Make, clock: VirtualClock
) -> None:
    inside = threading.Event()

    def look(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        inside.set()
        assert ctx.cancel.wait(RealClock(), LIMIT)
        ctx.cancel.raise_if_cancelled()
        return ToolResult.ok("never")

    # One after the other, so that the mail is certainly recorded when the time is up.
    llm.say("m", tool_call("mail", {}, "c1"), tool_call("look", {}, "c2"), text("went on"))
    mail, looking = Probe("mail"), Probe("look", look)
    rt = make_runtime(AgentDef("a", tools=[mail, looking]), clock=clock, timeout_ms=5000)
    handle, end = woken(rt, "a")
    assert inside.wait(LIMIT)
    clock.wait_parked(1)
    clock.advance(5)
    assert is_late(end.result(LIMIT))
    assert handle.state is State.IDLE
    assert within(rt.retry, handle).text == "went on"
    results = llm.requests[-1].tool_results
    assert results["c1"] == "mail done"
    assert "may or may not have taken effect" in results["c2"]
    assert (len(mail.runs), len(looking.runs)) == (1, 1)


class Dropped(logging.Handler):
    """Hears when the thread of a turn that was settled without it is back."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "what a stopped turn still did is dropped" in record.getMessage():
            self.heard.set()


@pytest.fixture
def dropped() -> Iterator[Dropped]:
    logger, handler = logging.getLogger("toolnexus.runtime"), Dropped()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


class Stuck(Probe):
    """A tool that looks at nothing until the test lets it go."""

    def __init__(self, on_cancel: Callable[[], object] | None = None) -> None:
        self.inside, self.let_go = threading.Event(), threading.Event()
        self._on_cancel = on_cancel
        super().__init__("stick", self._stick)

    def _stick(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if self._on_cancel is not None:
            ctx.cancel.on_cancel(self._on_cancel)
        self.inside.set()
        self.let_go.wait(2 * LIMIT)
        return ToolResult.ok("too late to count")


def test_in_a_tool_that_is_stuck(
    llm: ScriptedLlm, make_runtime: Make, clock: VirtualClock, dropped: Dropped
) -> None:
    stuck = Stuck()
    llm.say("m", tool_call("stick", {}, "c1"), text("went on"))
    rt = make_runtime(AgentDef("a", tools=[stuck]), clock=clock, timeout_ms=5000)
    handle, end = woken(rt, "a")
    assert stuck.inside.wait(LIMIT)
    clock.wait_parked(1)
    clock.advance(5)
    assert is_late(end.result(LIMIT))
    assert handle.state is State.IDLE
    assert is_late(within(rt.wait_on, handle))
    assert within(rt.retry, handle).text == "busy (its interrupted turn is still in a tool)"
    stuck.let_go.set()
    assert dropped.heard.wait(LIMIT)
    assert within(rt.retry, handle).text == "went on"
    assert "may or may not have taken effect" in llm.requests[-1].tool_results["c1"]
    assert (len(stuck.runs), len(llm.requests)) == (1, 2)


def trickle_body(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while not peer.closing.wait(0.005):
        peer.send(b" ")


def trickle_headers(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\n")
    for number in range(90):
        peer.send(b"x-%d: y\r\n" % number)
        if peer.closing.wait(0.02):
            return
    peer.wait_gone()


def trickle_status_line(peer: Peer) -> None:
    peer.request()
    while not peer.closing.wait(0.005):
        peer.send(b"H")


TRICKLES = pytest.mark.parametrize(
    "play", [trickle_body, trickle_headers, trickle_status_line], ids=lambda one: one.__name__
)


@TRICKLES
def test_in_a_reply_that_trickles_to_a_client(
    serve: Callable[..., RawServer], play: Callable[[Peer], None]
) -> None:
    server = serve(play)
    with LlmClient(
        base_url=server.base_url, api_key="k", model="m", retries=5, timeout_ms=200
    ) as client:
        run = Background(lambda: client.run("hi"))
        with pytest.raises(RunTimeoutError, match=r"^run timeout after 200ms$"):
            run.result()
        run.join()
    assert server.accepted == 1


@TRICKLES
def test_in_a_reply_that_trickles_to_an_agent(
    make_runtime: Make, serve: Callable[..., RawServer], play: Callable[[Peer], None]
) -> None:
    server = serve(play)
    rt = make_runtime(
        AgentDef("a"), base_url=server.base_url, api_key="k", retries=5, timeout_ms=200
    )
    handle = rt.spawn(rt.root, "a").handle
    result = within(rt.run_turn, handle, "hi")
    assert (result.status, result.text) == ("error", "run timeout after 200ms")
    assert handle.state is State.IDLE
    assert server.accepted == 1


@pytest.mark.parametrize("workers", [1, 32])
def test_in_a_nested_child(
    llm: ScriptedLlm, make_runtime: Make, clock: VirtualClock, workers: int
) -> None:
    llm.say("top", tool_call("task", {"agent": "mid", "prompt": "x"}, "t1"), text("went on"))
    llm.say("mid", tool_call("task", {"agent": "low", "prompt": "x"}, "t2"))
    llm.say("low", text("never").held_by(threading.Event()))
    rt = make_runtime(
        AgentDef("top", model="top", team=["mid"]),
        AgentDef("mid", model="mid", team=["low"]),
        AgentDef("low", model="low"),
        clock=clock,
        timeout_ms=5000,
        max_workers=workers,
    )
    top, end = woken(rt, "top")
    llm.wait_asked("low")
    below = [one.id for one in rt.list()[1:]]
    assert len(below) == 2
    clock.wait_parked(1)
    clock.advance(5)
    assert is_late(end.result(LIMIT))
    assert top.state is State.IDLE
    llm.wait_connections(0)
    assert State.RUNNING not in {one.state for one in rt.list()}
    assert within(rt.retry, top).text == "went on"
    assert "t1" in llm.requests[-1].tool_results
    assert len(llm.requests) == 4


def deadline_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "toolnexus-deadlines"]


def test_one_thread_sees_to_all_deadlines_and_is_gone_after_close(
    llm: ScriptedLlm, make_runtime: Make, clock: VirtualClock
) -> None:
    hold = threading.Event()
    llm.say("m", *[text("done").held_by(hold)] * 20)
    rt = make_runtime(
        AgentDef("a"),
        clock=clock,
        timeout_ms=5000,
        budget=Budget(max_concurrent=20),
        max_concurrent_turns=20,
    )
    ends = [woken(rt, "a")[1] for _ in range(20)]
    llm.wait_asked("m", 20)
    assert len(deadline_threads()) == 1
    clock.wait_parked(1)
    assert clock.parked == 1
    clock.advance(5)
    assert all(is_late(end.result(LIMIT)) for end in ends)
    within(rt.close)
    assert deadline_threads() == []


def test_close_ends_the_thread_before_its_time(
    llm: ScriptedLlm, make_runtime: Make, clock: VirtualClock
) -> None:
    llm.say("m", text("never").held_by(threading.Event()))
    rt = make_runtime(AgentDef("a"), clock=clock, timeout_ms=3_600_000, shutdown_ms=0)
    _, end = woken(rt, "a")
    llm.wait_asked("m")
    within(rt.close)
    assert end.result(LIMIT).status == "interrupted"
    assert deadline_threads() == []


@pytest.mark.parametrize("what", ["blocks", "ends its thread"])
@pytest.mark.parametrize("kind", ["a future's callback", "a cancel callback"])
def test_foreign_code_at_one_deadline_does_not_cost_another_its_own(
    llm: ScriptedLlm, make_runtime: Make, clock: VirtualClock, kind: str, what: str
) -> None:
    begun, end_it = threading.Event(), threading.Event()

    def act(*_: object) -> None:
        begun.set()
        if what == "blocks":
            end_it.wait(2 * LIMIT)
        else:
            raise SystemExit(1)

    stuck = Stuck(act if kind == "a cancel callback" else None)
    llm.say("tool", tool_call("stick"))
    llm.say("m", text("never").held_by(threading.Event()))
    rt = make_runtime(
        AgentDef("first", model="tool", tools=[stuck]),
        AgentDef("second"),
        clock=clock,
        timeout_ms=5000,
    )
    first = rt.spawn(rt.root, "first").handle
    end = rt.future_result(first)
    if kind == "a future's callback":
        end.add_done_callback(act)
    rt.wake(first, "go")
    assert stuck.inside.wait(LIMIT)
    clock.wait_parked(1)
    clock.advance(1)
    _, other = woken(rt, "second")
    llm.wait_asked("m")
    try:
        clock.wait_parked(1)
        clock.advance(4)
        assert begun.wait(LIMIT)
        assert is_late(end.result(LIMIT))
        clock.advance(1)
        assert is_late(other.result(LIMIT / 2))
    finally:
        end_it.set()
        stuck.let_go.set()
