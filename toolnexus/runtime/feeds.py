"""Feeds: what streams of handles are told, and have not given to their callers yet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from toolnexus.clock import Clock, Signal
from toolnexus.events import Event, TextDelta

if TYPE_CHECKING:
    from toolnexus.runtime.handle import Handle
    from toolnexus.runtime.run import Run


class EventLog:
    """Events in order; pieces of one handle's text that nobody has read yet become one piece.

    So a slow reader gets longer pieces, never fewer events, and what waits for it is bounded by
    what the model said. Guarded by the lock of its `Feeds`.
    """

    __slots__ = ("_events", "_texts")

    def __init__(self) -> None:
        # A text is its pieces, behind its handle's id.
        self._events: list[Event | list[str]] = []
        # Of each handle that speaks: the text that its next piece belongs to.
        self._texts: dict[str, list[str]] = {}

    def add(self, event: Event) -> None:
        """Append `event`, which has its handle's id."""
        who = event.handle_id or ""
        if not isinstance(event, TextDelta):
            self._texts.pop(who, None)
            self._events.append(event)
        elif who in self._texts:
            self._texts[who].append(event.delta)
        else:
            self._texts[who] = [who, event.delta]
            self._events.append(self._texts[who])

    def __bool__(self) -> bool:
        return bool(self._events)

    def __iter__(self) -> Iterator[Event]:
        for event in self._events:
            if isinstance(event, list):
                yield TextDelta("".join(event[1:]), event[0])
            else:
                yield event


class Feed:
    """One stream's view of a handle, and of everything below it if asked for.

    Attributes:
        handle: Whose events.
        tree: Whether its descendants' events are told too.
        is_for_turn: Whether it ends with the turn that is under way or about to begin.
        is_closed: Whether nobody reads it any more.
        is_lost: Whether it was opened by a process that this one is a fork of.
    """

    def __init__(self, feeds: Feeds, handle: Handle, *, tree: bool, is_for_turn: bool) -> None:
        self.handle = handle
        self.tree = tree
        self.is_for_turn = is_for_turn
        self.is_closed = False
        self.is_lost = False
        self._feeds = feeds
        # -- guarded by the lock of feeds -------------------------------------------------
        self._unread = EventLog()
        self._is_over = False
        self._changed = Signal()

    def take(self, clock: Clock) -> list[Event] | None:
        """Wait for events and return them; None once it is over and all were taken."""
        while True:
            with self._feeds.holding():
                if self._unread:
                    unread, self._unread = self._unread, EventLog()
                    return list(unread)
                if self._is_over:
                    return None
                changed = self._changed = Signal()
            clock.wait(changed)

    def add_locked(self, event: Event) -> None:
        """Append an event and wake the reader."""
        if not self._is_over:
            self._unread.add(event)
            if not self._changed.is_set():
                self._changed.set()

    def stop_locked(self) -> None:
        """Take nothing more; the reader is told by `finish`."""
        self._is_over = True

    def finish(self) -> None:
        """Nothing follows."""
        with self._feeds.holding():
            self._is_over = True
            changed = self._changed
        changed.set()

    def lose(self) -> None:
        """Be over in a forked child. Whoever held the lock and the signal is not there."""
        self._unread, self._changed = EventLog(), Signal()
        self._is_over = self.is_lost = True


class Feeds:
    """Who listens to which handle. Thread-safe; costs next to nothing where nobody does."""

    def __init__(self) -> None:
        self._open: tuple[Feed, ...] = ()
        self.after_fork()

    def after_fork(self) -> None:
        """Forget who listened in the parent process."""
        # Guards what feeds and handles' logs hold. Taken under the runtime's lock at times,
        # never the other way round.
        self._lock = threading.Lock()
        self._is_swept = True
        lost, self._open = self._open, ()
        for feed in lost:
            feed.lose()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the lock, then sweep up what was closed meanwhile."""
        with self._lock:
            yield
        self._sweep()

    def open(
        self, handle: Handle, *, tree: bool, is_for_turn: bool, joins: bool = False
    ) -> Feed:
        """Begin to listen to `handle`.

        Args:
            handle: Whose events.
            tree: Whether its descendants' events are told too.
            is_for_turn: Whether it hears nothing any more once a turn of `handle` has ended.
            joins: Whether what its present or last turn has told so far comes first.
        """
        feed = Feed(self, handle, tree=tree, is_for_turn=is_for_turn)
        with self.holding():
            for event in (handle._event_log or ()) if joins else ():
                feed.add_locked(event)
            self._open = (*self._open, feed)
        return feed

    def close(self, feed: Feed) -> None:
        """Listen no more. Never waits: a finaliser may call it in the middle of anything."""
        feed.is_closed = True
        self._is_swept = False
        self._sweep()

    def stop(self, handle: Handle) -> None:
        """A turn of `handle` has ended: the next one is none of its streams' business."""
        if not self._open:
            return
        with self.holding():
            for feed in self._open:
                if feed.is_for_turn and feed.handle is handle:
                    feed.stop_locked()

    def listens(self, handle: Handle) -> bool:
        """Say whether anybody wants to know what `handle` does."""
        return any(_hears(feed, handle) for feed in self._open if not feed.is_closed)

    def tell(self, run: Run, event: Event) -> None:
        """Tell whoever listens to the run's handle."""
        handle = run.handle
        if run.is_over or (not self._open and handle._event_log is None):
            return
        if isinstance(event, TextDelta):
            event = TextDelta(event.delta, handle.id)
        else:
            event = attrs.evolve(event, handle_id=handle.id)
        with self._lock:  # not `holding`, which costs as much again for each event
            # Found under the lock, so that who joins meanwhile is told it once, here or there.
            listeners = [feed for feed in self._open if _hears(feed, handle)]
            if listeners and handle._event_log is None:
                handle._event_log = EventLog()
            if handle._event_log is not None:
                handle._event_log.add(event)
            for feed in listeners:
                feed.add_locked(event)
        if not self._is_swept:
            self._sweep()

    def _sweep(self) -> None:
        """Drop closed feeds. Whoever has the lock does it once that is free."""
        while not self._is_swept and self._lock.acquire(blocking=False):
            try:
                self._is_swept = True
                self._open = tuple(one for one in self._open if not one.is_closed)
            finally:
                self._lock.release()


def _hears(feed: Feed, handle: Handle) -> bool:
    one: Handle | None = handle
    while one is not None:
        if one is feed.handle:
            return feed.tree or one is handle
        one = one.parent
    return False
