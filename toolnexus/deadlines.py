"""Deadlines: one thread that sees to it that things are done when their time has come."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Final

from toolnexus.clock import Clock, Signal
from toolnexus.threads import OwnThread, WrapJob, wrapped

logger = logging.getLogger(__name__)

_JOIN_SECONDS: Final = 1.0


class _Entry:
    """Something to do at an instant; None once it is done or taken back."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action


class Deadlines:
    """Calls functions at instants of a clock, each on a thread of its own.

    The thread that watches the clock lives while something is due. Thread-safe. What a function
    raises is logged.
    """

    def __init__(self, clock: Clock, wrap_job: WrapJob | None = None) -> None:
        """Watch `clock`; `wrap_job` is the host's hook around what is called."""
        self._clock = clock
        self._wrap_job = wrap_job
        self.after_fork()

    def after_fork(self) -> None:
        """Forget what the parent process waits for."""
        # Guards everything below. Re-entrant, for a dropped stream may be finalised in the
        # middle of anything.
        self._lock = threading.RLock()
        self._heap: list[tuple[float, int, _Entry]] = []
        self._serial = itertools.count()
        self._live = 0
        self._changed = Signal()
        self._thread: threading.Thread | None = None
        self._doing: list[threading.Thread] = []

    def call_at(self, instant: float, action: Callable[[], object]) -> Callable[[], None]:
        """Call `action` once the clock reads `instant`.

        Returns:
            A function that takes it back; without effect once the call has begun.
        """
        entry = _Entry(action)
        with self._lock:
            heapq.heappush(self._heap, (instant, next(self._serial), entry))
            self._live += 1
            if self._thread is None:
                self._thread = OwnThread(self._watch, "toolnexus-deadlines", self._wrap_job)
                self._start_locked()
            changed = self._changed
        changed.set()
        return lambda: self._take_back(entry)

    def close(self, *, is_due_kept: bool = False) -> None:
        """Take everything back and join the threads, but for this one.

        Args:
            is_due_kept: Whether what is due is done all the same; the threads end with it.
        """
        with self._lock:
            if is_due_kept and self._live:
                return
            for _, _, entry in self._heap:
                entry.action = None
            self._live = 0
            threads, changed = [*self._doing, self._thread], self._changed
        changed.set()
        for thread in threads:
            if thread is not None and thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)

    def _start_locked(self) -> None:
        assert self._thread is not None  # noqa: S101 - made by the caller
        try:
            self._thread.start()
        except RuntimeError:
            # The machine gives no more threads; who looks at the time still finds it passed.
            logger.exception("no thread to watch deadlines with")
            self._thread = None

    def _take_back(self, entry: _Entry) -> None:
        with self._lock:
            if entry.action is None:
                return
            entry.action = None
            self._live -= 1
            if self._live:
                return
            changed = self._changed
        changed.set()

    def _watch(self) -> None:
        while True:
            with self._lock:
                due = self._take_due()
                if due is None and not self._live:
                    self._heap.clear()
                    self._thread = None
                    return
                self._changed = changed = Signal()
                left = 0.0 if not self._heap else self._heap[0][0] - self._clock.monotonic()
            if due is None:
                self._clock.wait(changed, max(left, 0.0))
                continue
            # Foreign code may be called: it must not keep the other deadlines waiting.
            thread = OwnThread(_do, "toolnexus-deadline", self._wrap_job, (due,))
            if not self._started(thread):
                # The machine gives no more threads; late is better than never.
                _do(due)

    def _started(self, thread: threading.Thread) -> bool:
        with self._lock:
            self._doing = [one for one in self._doing if one.is_alive()]
            try:
                thread.start()
            except RuntimeError:
                return False
            self._doing.append(thread)
            return True

    def _take_due(self) -> Callable[[], object] | None:
        """Return the next thing whose time has come. The caller holds the lock."""
        now = self._clock.monotonic()
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].action is None):
            entry = heapq.heappop(self._heap)[2]
            action, entry.action = entry.action, None
            if action is not None:
                self._live -= 1
                return action
        return None


def _do(action: Callable[[], object]) -> None:
    try:
        wrapped(action)
    except BaseException:
        logger.exception("what was to be done at a deadline failed")
