"""Announcing: what is done about requests once they are open."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from toolnexus.deadlines import Deadlines
from toolnexus.errors import StoreError
from toolnexus.runtime.answers import Answers
from toolnexus.runtime.begun import Begun
from toolnexus.runtime.book import OpenRequest
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import PendingRequest
from toolnexus.runtime.views import view_locked

logger = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 1.0
"""The least between two looks at what has expired and is still open."""


class Announcing:
    """Tells the host of what has parked, and sees to it that it expires. Thread-safe."""

    def __init__(self, core: Core, answers: Answers, deadlines: Deadlines) -> None:
        self._core = core
        self._answers = answers
        self._deadlines = deadlines
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the timer of the parent process."""
        # A leaf, for `Deadlines` has a lock of its own.
        self._lock = threading.Lock()
        self._next: float | None = None
        self._forget: Callable[[], None] | None = None
        self._is_closed = False
        self._is_watched = False
        # Requests that the host is being told of: it may call `recover` while it is.
        self._being_told: set[str] = set()

    def close(self) -> None:
        """Set no timer any more; one that is set is the owner's of the deadlines."""
        with self._lock:
            self._is_closed = True

    def announce(self, opened: list[OpenRequest]) -> None:
        """Call `on_suspend` with each request that is still open, and set the timer."""
        self.watch()
        on_suspend = self._core.options.on_suspend
        if on_suspend is None:
            return
        for one in opened:
            pending = self._view(one)
            if pending is not None:
                self._tell(on_suspend, pending)

    def announce_again(self) -> None:
        """Call `on_suspend` with what it was not told of: the process ended before that."""
        keeper, on_suspend = self._core.keeper, self._core.options.on_suspend
        self.watch()
        if keeper is None or on_suspend is None:
            return
        for pending in keeper.archive.unannounced():
            self._tell(on_suspend, pending)

    def _tell(
        self, on_suspend: Callable[[PendingRequest], object], pending: PendingRequest
    ) -> None:
        request_id = pending.request.id
        with self._lock:
            if request_id in self._being_told:
                return
            self._being_told.add(request_id)
        try:
            _call(on_suspend, pending)
            keeper = self._core.keeper
            if keeper is not None:
                keeper.store.announced(keeper.name, [request_id])
        finally:
            with self._lock:
                self._being_told.discard(request_id)

    def watch_soon(self) -> None:
        """Do what `watch` does, once in this process, on a thread of the timer's own."""
        with self._lock:
            was_watched, self._is_watched = self._is_watched, True
        if self._core.options.expire_requests and not was_watched:
            self._deadlines.call_at(self._core.clock.monotonic(), self.watch)

    def watch(self) -> None:
        """Let the timer go off when the next request expires, where the host asked for one."""
        if not self._core.options.expire_requests:
            return
        due = self._next_look()
        if due is not None:
            self._call_at(due)

    def _next_look(self) -> float | None:
        """Return when to look at what has expired, by the clock's `monotonic`."""
        core = self._core
        soon = core.clock.monotonic() + _PAUSE_SECONDS
        try:
            if core.keeper is not None:
                due = core.keeper.store.next_expiry(core.keeper.name)
            else:
                with core.lock:
                    due = core.book.next_expiry()
        except StoreError as error:
            logger.warning("what expires next cannot be asked for now: %s", error)
            return soon
        if due is None:
            return None
        seconds = (due - core.clock.now()).total_seconds()
        # What has expired and cannot be settled is due for ever.
        return soon if seconds <= 0 else core.clock.monotonic() + seconds

    def _call_at(self, instant: float) -> None:
        with self._lock:
            if self._is_closed or (self._next is not None and self._next <= instant):
                return
            if self._forget is not None:
                self._forget()
            self._next = instant
            self._forget = self._deadlines.call_at(instant, self._fire)

    def _fire(self) -> None:
        with self._lock:
            self._next = self._forget = None
        begun: list[Begun] = []
        try:
            begun, _ = self._answers.settle_due()
        except StoreError as error:
            logger.warning("what has expired cannot be settled now: %s", error)
        finally:
            # Before what that lets go on, which may take its time.
            self.watch()
        self._answers.see_through(begun)

    def _view(self, one: OpenRequest) -> PendingRequest | None:
        if self._core.keeper is not None:
            return self._core.keeper.archive.open_request(one.request.id)
        with self._core.lock:
            is_open = one.places and one.request.id in self._core.book
            return view_locked(self._core, one) if is_open else None


def _call(on_suspend: Callable[[PendingRequest], object], pending: PendingRequest) -> None:
    try:
        on_suspend(pending)
    except Exception:
        logger.exception("on_suspend failed; the request stays open")
