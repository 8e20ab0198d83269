"""Streams that are stopped and forked at any moment."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.process.child import running
from tests.process.test_fork import FORK
from tests.runtime.streams import (
    Reader,
    assert_nobody_listens,
    one_handle,
    read,
    result_of,
    spoken,
    text_of,
    told,
    until,
)
from tests.runtime.support import Make, Probe, in_thread
from tests.threads.racing import race
from toolnexus import (
    AgentDef,
    MetricEvent,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import ScriptedLlm, VirtualClock, text, tool_call

PIECES = tuple(f"{number} " for number in range(10))

# -- stopping -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["interrupt", "close", "force"])
def test_stopping_a_turn_ends_its_stream_and_aborts_the_request(
    llm: ScriptedLlm, make_runtime: Make, way: str
) -> None:
    rt, handle = one_handle(make_runtime, shutdown_ms=0)
    never = threading.Event()
    llm.say("m", spoken("a", "b").paused_after(1, never))
    reader = Reader(rt.stream(handle, "go"))
    reader.wait("text")
    if way == "interrupt":
        rt.interrupt(handle)
    else:
        rt.close(handle, force=way == "force")

    assert told(reader.finish()) == [("text", "a"), ("done", "interrupted")]
    llm.wait_connections(0, LIMIT)
    assert_nobody_listens(rt, handle)


def test_a_close_lets_a_streamed_turn_finish(llm: ScriptedLlm, make_runtime: Make) -> None:
    rt, handle = one_handle(make_runtime, shutdown_ms=60_000)
    gate = threading.Event()
    llm.say("m", spoken("a", "b").paused_after(1, gate))
    reader = Reader(rt.stream(handle, "go"))
    reader.wait("text")
    closed = in_thread(rt.close, handle)
    until(lambda: handle._is_closing)
    (refused,) = read(rt.stream(handle, "more"))
    gate.set()
    closed.result(LIMIT)

    assert text_of(reader.finish()) == "ab"
    assert result_of(reader.events).status == "done"
    assert result_of([refused]).status == "closed"


def test_a_deadline_ends_the_stream(llm: ScriptedLlm, make_runtime: Make) -> None:
    clock = VirtualClock()
    rt, handle = one_handle(make_runtime, clock=clock, timeout_ms=1000)
    never = threading.Event()
    llm.say("m", spoken("a", "b").paused_after(1, never))
    reader = Reader(rt.stream(handle, "go"))
    reader.wait("text")
    clock.advance(1.0)

    result = result_of(reader.finish())
    assert (result.status, result.text) == ("error", "run timeout after 1000ms")
    assert told(reader.events) == [("text", "a"), ("done", "error")]
    llm.wait_connections(0, LIMIT)


@pytest.mark.usefixtures("threads_change_often")
@pytest.mark.parametrize("way", ["interrupt", "close"])
def test_a_stop_at_any_moment_ends_the_stream_once_and_truthfully(
    llm: ScriptedLlm, make_runtime: Make, way: str
) -> None:
    rt = make_runtime(AgentDef("a"), shutdown_ms=0)
    llm.answer("m", lambda request: spoken(*PIECES))
    for _ in range(25):
        handle = rt.spawn(rt.root, "a").handle
        stop = rt.interrupt if way == "interrupt" else rt.close
        stream = rt.stream(handle, "go")
        events, _ = race(partial(list, stream), partial(stop, handle))
        result = result_of(events)
        assert result.status in ("done", "interrupted", "closed")
        assert sum(event.kind == "usage" for event in events) == (result.status == "done")
        whole = "".join(PIECES)
        assert (
            text_of(events) == whole
            if result.status == "done"
            else whole.startswith(text_of(events))
        )
        rt.close(handle)
        assert_nobody_listens(rt, handle)


# -- what does not belong to the turn -------------------------------------------------------


def test_a_stream_ends_with_its_turn_though_the_next_one_has_begun(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    def begin_another(event: MetricEvent) -> None:
        if event.kind == "run" and handle.turns_total == 1:
            rt.run_turn(handle, "next")

    rt = make_runtime(AgentDef("a"), on_metric=begin_another)
    handle = rt.spawn(rt.root, "a").handle
    llm.say("m", text("first"), text("second"))
    events = read(rt.stream(handle, "go"))

    assert (text_of(events), result_of(events).text) == ("first", "first")
    assert sum(event.kind == "usage" for event in events) == 1


def test_what_a_stopped_turn_still_does_is_not_told(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    inside, gate, speak = (threading.Event() for _ in range(3))

    def stay(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        inside.set()
        assert gate.wait(LIMIT)
        return ToolResult.ok("too late")

    rt = make_runtime(
        AgentDef("top"), AgentDef("kid", "", "", "kid", tools=[Probe("stay", stay)])
    )
    top = rt.spawn(rt.root, "top").handle
    kid = rt.spawn(top, "kid").handle
    llm.say("m", text("top done").held_by(speak))
    llm.say("kid", tool_call("stay"))
    reader = Reader(rt.stream(top, "go", tree=True))
    llm.wait_asked("m")
    rt.wake(kid, "go")
    assert inside.wait(LIMIT)
    rt.interrupt(kid)
    gate.set()
    until(lambda: not kid._stale_runs)
    speak.set()

    assert [one.kind for one in reader.finish() if one.handle_id == kid.id] == ["tool_call"]


# -- forks ----------------------------------------------------------------------------------


def test_a_fork_in_mid_stream_disturbs_neither_side(llm: ScriptedLlm) -> None:
    gate = threading.Event()
    llm.say("m", spoken("a", "b").paused_after(1, gate))
    llm.answer("m", lambda request: text("child"))
    script = """
    rt = make()
    handle = rt.spawn(rt.root, "a").handle
    stream = rt.stream(handle, "go")
    assert next(stream).delta == "a"

    def work():
        assert not rt._core.feeds._open
        assert handle.state is State.IDLE
        *_, done = rt.stream(handle, "again")
        assert done.result.text == "child", done
        rt.close(rt.root)

    say(str(join(in_child(work))))
    sys.stdin.readline()
    *_, done = stream
    say(done.result.text)
    assert not rt._core.feeds._open
    rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        child.expect("0")
        gate.set()
        child.go_on()
        child.expect("ab")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_a_stream_from_before_a_fork_ends_in_the_child(llm: ScriptedLlm) -> None:
    gate = threading.Event()
    llm.say("m", spoken("a", "b").paused_after(1, gate))
    script = """
    rt = make()
    handle = rt.spawn(rt.root, "a").handle
    stream = rt.stream(handle, "go")
    assert next(stream).delta == "a"

    def work():
        events = []
        reader = threading.Thread(target=lambda: events.extend(stream), daemon=True)
        reader.start()
        reader.join(3)
        assert not reader.is_alive(), "it waits for the parent process"
        assert [one.result.status for one in events] == ["interrupted"], events

    say(str(join(in_child(work))))
    rt.close(rt.root, force=True)
    """
    with running(FORK + script, llm.base_url) as child:
        child.expect("0")
        child.end()
