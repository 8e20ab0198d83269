"""How the tests of streams read them, and feeds that no runtime uses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.conftest import LIMIT
from tests.runtime.support import Make, in_thread
from toolnexus import AgentDef, AgentRuntime, Budget, Handle, ToolCall
from toolnexus.clock import RealClock
from toolnexus.codec import dumps
from toolnexus.events import Done, Event, TextDelta, ToolCallStarted
from toolnexus.runtime.feeds import Feed, Feeds
from toolnexus.runtime.run import Run
from toolnexus.runtime.state import Cause
from toolnexus.testing import Reply, raw

_SLICE = 0.005
"""How often `until` looks again."""


class Reader:
    """Reads a stream on a thread of its own; the test waits for what it has read."""

    def __init__(self, stream: Iterator[Event]) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._over = in_thread(self._read, stream)

    def _read(self, stream: Iterator[Event]) -> None:
        for event in stream:
            with self._changed:
                self.events.append(event)
                self._changed.notify_all()

    def wait(self, kind: str, count: int = 1) -> None:
        """Block until that many events of a kind were read."""
        with self._changed:
            has_come = self._changed.wait_for(
                lambda: sum(one.kind == kind for one in self.events) >= count, LIMIT
            )
        assert has_come, f"{count} of {kind} did not come: {self.events}"

    def wait_text(self, said: str) -> None:
        """Block until all text together is `said`."""
        with self._changed:
            has_come = self._changed.wait_for(lambda: text_of(self.events) == said, LIMIT)
        assert has_come, f"{said!r} did not come: {self.events}"

    def finish(self) -> list[Event]:
        """Return all events once the stream has ended."""
        self._over.result(LIMIT)
        return self.events


def read(stream: Iterator[Event]) -> list[Event]:
    """Return all events of a stream; fail where it does not end."""
    return Reader(stream).finish()


def text_of(events: Sequence[Event], handle_id: str | None = None) -> str:
    """Return the text of all handles, or of one, in one piece."""
    texts = (one for one in events if isinstance(one, TextDelta))
    return "".join(one.delta for one in texts if handle_id in (None, one.handle_id))


def result_of(events: Sequence[Event]) -> Any:
    """Return the result of the last event; it is the only one that has one."""
    *others, last = events
    assert isinstance(last, Done)
    assert not any(isinstance(one, Done) for one in others)
    return last.result


def told(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Return events in short: the kind, and the part that says most."""
    return [(one.kind, short(one)) for one in events]


def short(event: Any) -> str:
    """Return the part of an event that says most."""
    match event.kind:
        case "text":
            return str(event.delta)
        case "tool_call":
            return str(event.call.name)
        case "tool_result":
            return str(event.result.output)
        case "pending":
            return str(event.request.prompt)
        case "usage":
            return str(event.usage.total_tokens)
        case _:
            return str(event.result.status)


def until(holds: Callable[[], object]) -> None:
    """Block until something holds that nobody announces."""
    for _ in range(int(LIMIT / _SLICE)):
        if holds():
            return
        threading.Event().wait(_SLICE)
    raise AssertionError("it never came about")


def spoken(*pieces: str) -> Reply:
    """Return a reply that can only be streamed, each piece in an event of its own."""
    head = {"id": "x", "object": "chat.completion.chunk", "model": "m"}
    deltas: list[tuple[dict[str, Any], str | None]] = [
        ({"content": one}, None) for one in pieces
    ]
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        for delta, finish in [*deltas, ({}, "stop")]
    ]
    body = "".join(f"data: {dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return raw(body, headers={"content-type": "text/event-stream"})


def one_handle(make: Make, *tools: Any, **options: Any) -> tuple[AgentRuntime, Handle]:
    """Return a runtime with one agent, spawned."""
    budget = options.pop("budget", Budget())
    rt = make(AgentDef("a", tools=tools, budget=budget), **options)
    return rt, rt.spawn(rt.root, "a").handle


def assert_nobody_listens(rt: AgentRuntime, *handles: Handle) -> None:
    """Nothing is left of any stream."""
    assert not rt._core.feeds._open
    assert [one for one in handles if one._waiters] == []


def started(number: int, handle_id: str | None = None) -> ToolCallStarted:
    """Return the event of a call, told apart by its number."""
    return ToolCallStarted(ToolCall(str(number), "look", "{}"), handle_id)


class Tree:
    """A parent, its child and its grandchild, and feeds that no runtime uses."""

    def __init__(self, make: Make) -> None:
        rt = make(AgentDef("a"), AgentDef("b"))
        self.parent = rt.spawn(rt.root, "a").handle
        self.child = rt.spawn(self.parent, "a").handle
        self.other = rt.spawn(self.parent, "b").handle
        self.grandchild = rt.spawn(self.child, "a").handle
        self.feeds = Feeds()

    def run_of(self, handle: Handle) -> Run:
        return Run(handle, Cause.WAKE)

    def listen(self, *, tree: bool = False, joins: bool = False) -> Feed:
        """Begin to listen to the child."""
        return self.feeds.open(self.child, tree=tree, is_for_turn=True, joins=joins)


def taken(feed: Feed) -> list[Event]:
    """Return what is left in a feed that is over."""
    feed.finish()
    events: list[Event] = []
    while (more := in_thread(feed.take, RealClock()).result(LIMIT)) is not None:
        events += more
    return events
