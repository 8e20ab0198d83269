"""Streaming: what a handle's turn does, told to the host while it happens."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Final, TypeAlias

from toolnexus.events import Done, Event
from toolnexus.parts.part import Content
from toolnexus.results import TaskResult
from toolnexus.runtime.answers import Answers
from toolnexus.runtime.core import Core
from toolnexus.runtime.feeds import Feed
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.outcomes import Outcomes, refused_end
from toolnexus.runtime.spawning import Spawning
from toolnexus.runtime.tree import NotHeld, held_result
from toolnexus.runtime.waiting import Waiting, refuse_self_wait
from toolnexus.suspension import Answer

_FORKED: Final = TaskResult("forked", is_error=True, status="interrupted")

EventStream: TypeAlias = Generator[Event, None, None]


class Streaming:
    """Generators of events. Dropping one neither stops nor slows the turn."""

    def __init__(
        self,
        core: Core,
        spawning: Spawning,
        waiting: Waiting,
        outcomes: Outcomes,
        answers: Answers,
    ) -> None:
        self._core = core
        self._spawning = spawning
        self._waiting = waiting
        self._outcomes = outcomes
        self._answers = answers

    def turn(self, handle: Handle, prompt: Content, *, tree: bool) -> EventStream:
        """Start a turn and yield its events."""
        refuse_self_wait(self._core, handle)
        try:
            feed, future, refused = self._begin(handle, prompt, tree=tree)
        except NotHeld as why:
            yield Done(held_result(why), handle.id)
            return
        yield from self._until_settled(feed, future, refused)

    def _begin(
        self, handle: Handle, prompt: Content, *, tree: bool
    ) -> tuple[Feed, Future[TaskResult], TaskResult | None]:
        core = self._core
        with core.holding(handle), core.deciding() as effects:
            ack, run = self._spawning.wake_locked(handle, prompt, effects, streams=True)
            refused: TaskResult | None = None
            if run is None and not ack.ok:
                refused = core.result_locked(handle, refused_end(ack))
            elif run is not None and run.is_over:
                refused = handle.last_result
            feed, future = self._listen_locked(handle, tree=tree, joins=False)
        self._outcomes.be_there()
        return feed, future, refused

    def joined(self, handle: Handle, *, tree: bool) -> EventStream:
        """Yield the events of the turn that is under way, or of the last, or first to come."""
        core = self._core
        refuse_self_wait(core, handle)
        with core.lock:
            feed, future = self._listen_locked(handle, tree=tree, joins=True)
            standing, kept_in = self._outcomes.standing_here_locked(handle), handle._tree
        self._outcomes.be_there()
        if standing is not None:
            standing = self._outcomes.lost_in(kept_in) or standing
        # Looked at once there is a future, so that no result comes in between.
        standing = standing or self._outcomes.standing_elsewhere(handle)
        yield from self._until_settled(feed, future, standing)

    def resumed(
        self, handle: Handle, answer: Answer, principal: object = None, *, tree: bool
    ) -> EventStream:
        """Yield what `handle` does once `answer` is accepted, until nothing can go on."""
        core = self._core
        refuse_self_wait(core, handle)
        feed = core.feeds.open(handle, tree=tree, is_for_turn=False)
        results: list[TaskResult] = []

        def end(_: object) -> None:
            # Now, for the reader may be slow and the handle in another turn by then.
            with core.lock:
                result = self._outcomes.standing_locked(handle) or handle.last_result
            if result is not None:
                results.append(result)
            feed.finish()

        try:
            over = self._answers.future_resume([answer], principal)
            over.add_done_callback(end)
            if self._waiting.is_worker_here() and over.help is not None:
                # It may be the last one, and is about to wait: the work is done elsewhere.
                over.help(0)
            yield from self._told(feed)
            if feed.is_lost:
                results.append(_FORKED)
            else:
                over.result()
            yield Done(results[0] if results else self._outcomes.wait_on(handle, 0), handle.id)
        finally:
            core.feeds.close(feed)

    def _listen_locked(
        self, handle: Handle, *, tree: bool, joins: bool
    ) -> tuple[Feed, Future[TaskResult]]:
        feeds = self._core.feeds
        feed = feeds.open(handle, tree=tree, is_for_turn=True, joins=joins)
        future = self._core.new_future_locked(handle)
        self._outcomes.watch_locked(handle, future)
        future.add_done_callback(lambda _: feed.finish())
        return feed, future

    def _until_settled(
        self, feed: Feed, future: Future[TaskResult], result: TaskResult | None
    ) -> EventStream:
        """Yield what is told until the future is done, or was told where there is a result."""
        handle = feed.handle
        try:
            if result is not None:
                feed.finish()
            elif self._waiting.is_worker_here():
                # It may be the last one, and is about to wait.
                self._waiting.start_elsewhere(handle, future)
            yield from self._told(feed)
            if result is None:
                result = _FORKED if feed.is_lost else future.result()
            yield Done(result, handle.id)
        finally:
            # No lock: the garbage collector may do this in the middle of anything.
            self._core.feeds.close(feed)
            self._core.drop_future(handle, future)

    def _told(self, feed: Feed) -> EventStream:
        while (events := feed.take(self._core.clock)) is not None:
            yield from events
