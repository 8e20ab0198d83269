"""Streams that are joined and dropped at any moment."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import LIMIT
from tests.process.child import running
from tests.runtime.streams import (
    Reader,
    Tree,
    assert_nobody_listens,
    one_handle,
    read,
    spoken,
    started,
    taken,
    text_of,
    told,
    until,
)
from tests.runtime.support import Make, Probe, within
from tests.threads.racing import race
from toolnexus import (
    AgentDef,
    AgentRuntime,
    ToolContext,
    ToolResult,
)
from toolnexus.events import Event
from toolnexus.runtime.feeds import Feed
from toolnexus.testing import ScriptedLlm, text, tool_call

PIECES = tuple(f"{number} " for number in range(200))
WHOLE = "".join(PIECES)


def merged(events: Iterable[Event]) -> list[tuple[str, str]]:
    """Return events in short, with text that follows on text as one."""
    found: list[tuple[str, str]] = []
    for kind, part in told(list(events)):
        if kind == "text" and found and found[-1][0] == "text":
            part = found.pop()[1] + part
        found.append((kind, part))
    return found


# -- joining --------------------------------------------------------------------------------


class Scene:
    """One streamed turn that goes on, step by step, as its gates are opened in order."""

    def __init__(self, llm: ScriptedLlm) -> None:
        self.gates = [threading.Event() for _ in range(6)]
        self.inside = threading.Event()
        first = tool_call("hold", content="abcdef")
        first = first.paused_after(2, self.gates[0]).paused_after(3, self.gates[1])
        second = spoken("g", "h", "i")
        for sent, gate in enumerate(self.gates[3:]):
            second = second.paused_after(sent, gate)
        llm.say("m", first, second)
        self.llm = llm
        agent = AgentDef("a", tools=[Probe("hold", self._hold)])
        self.rt = AgentRuntime(
            base_url=llm.base_url, api_key="k", default_model="m", registry=[agent]
        )
        self.handle = self.rt.spawn(self.rt.root, "a").handle
        self.opened = 0
        self.readers = [Reader(self.rt.stream(self.handle, "go"))]
        self.readers[0].wait_text("abc")

    def _hold(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        self.inside.set()
        assert self.gates[2].wait(LIMIT)
        return ToolResult.ok("held")

    def go_on(self) -> None:
        """Open the next gate but the last, and wait until the turn stands still again."""
        if self.opened >= 5:
            return
        self.gates[self.opened].set()
        self.opened += 1
        self.readers[0].wait_text(
            ("abcdef", "abcdef", "abcdef", "abcdefg", "abcdefgh")[self.opened - 1]
        )
        if self.opened == 2:
            assert self.inside.wait(LIMIT)
        if self.opened == 3:
            self.llm.wait_asked("m", 2)

    def join(self) -> None:
        """Let one more reader come, and wait until it has begun."""
        self.readers.append(Reader(self.rt.stream(self.handle)))
        self.readers[-1].wait("text")

    def look_in(self) -> None:
        """Let a reader come that goes after its first event."""
        stream = self.rt.stream(self.handle)
        within(next, stream)
        stream.close()


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(st.sampled_from(["go_on", "join", "look_in"]), max_size=10))
def test_whoever_joins_whenever_is_told_everything_once(steps: list[str]) -> None:
    with ScriptedLlm() as llm:
        scene = Scene(llm)
        with scene.rt:
            for step in steps:
                getattr(scene, step)()
            for gate in scene.gates:
                gate.set()
            for reader in scene.readers:
                assert merged(reader.finish()) == [
                    ("text", "abcdef"),
                    ("tool_call", "hold"),
                    ("tool_result", "held"),
                    ("text", "ghi"),
                    ("usage", "40"),
                    ("done", "done"),
                ]
            assert_nobody_listens(scene.rt, scene.handle)


@pytest.mark.usefixtures("threads_change_often")
def test_who_joins_in_the_middle_of_an_event_gets_it_too(make_runtime: Make) -> None:
    tree = Tree(make_runtime)
    for _ in range(20):
        run, over = tree.run_of(tree.child), threading.Event()
        feeds = [tree.listen()]

        def tell(run: Any = run, over: threading.Event = over) -> None:
            for number in range(300):
                tree.feeds.tell(run, started(number))
            over.set()

        def join(run: Any = run, over: Any = over, feeds: list[Feed] = feeds) -> None:
            while not over.is_set() and len(feeds) < 20:
                feeds.append(tree.listen(joined=run))

        race(tell, join)
        everything = [started(number, tree.child.id) for number in range(300)]
        assert all(taken(feed) == everything for feed in feeds)


@pytest.mark.usefixtures("threads_change_often")
def test_streams_that_join_a_flood_of_text_lose_nothing(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime)
    for _ in range(5):
        flood, end = threading.Event(), threading.Event()
        llm.say("m", spoken(*PIECES).paused_after(1, flood).paused_after(len(PIECES), end))
        readers = [Reader(rt.stream(handle, "go"))]
        readers[0].wait("text")

        def join(readers: list[Reader] = readers) -> None:
            readers.append(Reader(rt.stream(handle)))

        race(flood.set, join, join, join)
        for reader in readers:
            reader.wait("text")
        end.set()
        assert [text_of(reader.finish()) for reader in readers] == [WHOLE] * 4


def test_a_reader_that_comes_back_is_told_what_was_said_while_nobody_listened(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    inside, hold, end = (threading.Event() for _ in range(3))

    def stay(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        inside.set()
        assert hold.wait(LIMIT)
        return ToolResult.ok("stayed")

    rt, handle = one_handle(make_runtime, Probe("stay", stay))
    llm.say("m", tool_call("stay", content="I stay"), text("I stayed").held_by(end))
    stream = rt.stream(handle, "go")
    within(next, stream)
    assert inside.wait(LIMIT)
    stream.close()
    hold.set()
    llm.wait_asked("m", 2)
    reader = Reader(rt.stream(handle))
    reader.wait("tool_result")
    end.set()

    assert text_of(reader.finish()) == "I stayI stayed"


def test_who_joins_a_turn_that_nobody_streams_is_told_the_reply_it_waits_for(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime)
    gate = threading.Event()
    llm.say("m", text("hi").held_by(gate))
    rt.wake(handle, "go")
    llm.wait_asked("m")
    reader = Reader(rt.stream(handle))
    until(lambda: rt._core.feeds.listens(handle))
    gate.set()

    assert merged(reader.finish()) == [("text", "hi"), ("usage", "40"), ("done", "done")]


# -- slow readers, and readers that go ------------------------------------------------------


def test_a_slow_reader_gets_longer_pieces_and_keeps_nobody_waiting(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime, Probe("look"))
    gate = threading.Event()
    llm.say("m", tool_call("look"), spoken(*PIECES).paused_after(1, gate))
    stream = rt.stream(handle, "go")
    begun = [within(next, stream)]
    while begun[-1].kind != "text":
        begun.append(within(next, stream))
    future = rt.future_result(handle)
    gate.set()
    assert future.result(LIMIT).text == WHOLE
    events = [*begun, *read(stream)]

    assert merged(events)[-3:] == [("text", WHOLE), ("usage", "40"), ("done", "done")]
    assert sum(event.kind == "text" for event in events) == 2


@pytest.mark.parametrize("way", ["close", "drop"])
def test_a_stream_that_is_dropped_leaves_the_turn_alone_and_nothing_behind(
    llm: ScriptedLlm, make_runtime: Make, way: str
) -> None:
    rt, handle = one_handle(make_runtime, Probe("look"))
    gate = threading.Event()
    llm.say("m", spoken("a", "b").paused_after(1, gate))
    stream = rt.stream(handle, "go")
    within(next, stream)
    if way == "close":
        stream.close()
    del stream
    assert_nobody_listens(rt, handle)
    future = rt.future_result(handle)
    gate.set()

    assert future.result(LIMIT).text == "ab"
    assert_nobody_listens(rt, handle)


@pytest.mark.usefixtures("threads_change_often")
def test_streams_dropped_at_any_moment_leave_nothing_behind(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime)
    llm.answer("m", lambda request: spoken(*PIECES[:20]))
    for count in range(1, 13):

        def read_some(stream: Any, count: int = count) -> None:
            for _, _ in zip(range(count), stream, strict=False):
                pass
            stream.close()

        future = rt.future_result(handle)
        streams = [rt.stream(handle, "go"), rt.stream(handle), rt.stream(handle)]
        race(*(partial(read_some, stream) for stream in streams))
        assert future.result(LIMIT).text == "".join(PIECES[:20])
        assert_nobody_listens(rt, handle)


def test_a_dropped_stream_may_be_collected_in_the_middle_of_anything(llm: ScriptedLlm) -> None:
    llm.answer("m", lambda request: spoken(*PIECES))
    script = """
    import gc

    class Loop:
        pass

    rt = make()
    gc.set_threshold(1, 1, 1)
    for number in range(40):
        handle = rt.spawn(rt.root, "a").handle
        future = rt.future_result(handle)
        for prompt in ("go", None, None, None):
            loop = Loop()
            loop.me, loop.stream = loop, rt.stream(handle, prompt)
            next(loop.stream)
            del loop
        assert future.result(8).status == "done"
    gc.set_threshold(0)
    gc.collect()
    assert not rt._core.feeds._open
    rt.close(rt.root)
    say("done")
    """
    with running(script, llm.base_url) as child:
        child.expect("done")
        child.end()
