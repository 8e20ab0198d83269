"""Announcing: what is done about requests once they are open."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime

from toolnexus.deadlines import Deadlines
from toolnexus.runtime.answers import Answers
from toolnexus.runtime.book import OpenRequest
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import PendingRequest
from toolnexus.runtime.views import view_locked

logger = logging.getLogger(__name__)


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
        self._next: datetime | None = None
        self._forget: Callable[[], None] | None = None

    def announce(self, opened: list[OpenRequest]) -> None:
        """Call `on_suspend` with each request that is still open, and set the timer."""
        self.watch()
        on_suspend = self._core.options.on_suspend
        if on_suspend is None:
            return
        for one in opened:
            pending = self._view(one)
            if pending is None:
                continue
            try:
                on_suspend(pending)
            except Exception:
                logger.exception("on_suspend failed; the request stays open")

    def watch(self) -> None:
        """Let the timer go off when the next request expires, where the host asked for one."""
        core = self._core
        if not core.options.expire_requests:
            return
        with core.lock:
            due = core.book.next_expiry()
        with self._lock:
            if due is None or (self._next is not None and self._next <= due):
                return
            if self._forget is not None:
                self._forget()
            seconds = (due - core.clock.now()).total_seconds()
            self._next = due
            self._forget = self._deadlines.call_at(core.clock.monotonic() + seconds, self._fire)

    def _fire(self) -> None:
        with self._lock:
            self._next = self._forget = None
        try:
            self._answers.expire_due()
        finally:
            self.watch()

    def _view(self, one: OpenRequest) -> PendingRequest | None:
        with self._core.lock:
            is_open = one.places and one.request.id in self._core.book
            return view_locked(self._core, one) if is_open else None
