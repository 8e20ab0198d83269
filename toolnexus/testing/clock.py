"""A clock whose time moves only when a test says so."""

from __future__ import annotations

import math
import threading
from datetime import datetime, timedelta, timezone
from typing import Final

from toolnexus.clock import Signal

_EPOCH: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
_ORIGIN: Final = 1000.0  # not 0: code that takes a reading for true or false shows itself
_GRID: Final = 1 << 24
"""Ticks in a second. On a binary grid sums are exact, and `advance` rounds up to it; so a wait
of 0.3 seconds ends after `advance(0.3)`, whichever way its deadline was added up."""


class VirtualClock:
    """A `toolnexus.clock.Clock` that stands still until `advance`.

    The fence before an `advance` is `wait_parked`, not a sleep:

        clock.wait_parked(1)      # the thread under test waits with its time limit
        clock.advance(30.0)       # and now that limit has passed

    Waiters register before they look at the time, and `advance` moves it before it wakes
    them, so no wake-up is lost. Thread-safe.
    """

    def __init__(self, start: datetime = _EPOCH) -> None:
        if start.tzinfo is None:
            raise ValueError(f"start must be an aware datetime, not {start!r}")
        self._start = start.astimezone(timezone.utc)
        # Guards _waiters and writes of _time; notified when a waiter registers. Never held
        # while a signal is waited for.
        self._changed = threading.Condition(threading.Lock())
        self._time = _ORIGIN
        self._waiters: dict[object, tuple[Signal, float]] = {}

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC: the start plus all that was advanced."""
        return self._start + timedelta(seconds=self._time - _ORIGIN)

    def monotonic(self) -> float:
        """Return the seconds of this clock; the first reading is 1000.0."""
        return self._time

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        """Block until `signal` is set or `timeout` virtual seconds pass; say whether it is set.

        Args:
            signal: What ends the wait.
            timeout: Virtual seconds; None waits for the signal alone and is not counted as
                parked.
        """
        if timeout is None:
            return signal.wait_for(signal.is_set)
        if timeout <= 0:
            return signal.is_set()
        waiter = object()
        with self._changed:
            deadline = self._time + timeout
            self._waiters[waiter] = (signal, deadline)
            self._changed.notify_all()
        try:
            signal.wait_for(lambda: signal.is_set() or self._time >= deadline)
            return signal.is_set()
        finally:
            with self._changed:
                del self._waiters[waiter]

    def advance(self, seconds: float) -> None:
        """Move the time, in one step, and wake whoever waited for less.

        The step is rounded up to 60 nanoseconds. Returns at once: the woken threads run on
        by themselves.

        Raises:
            ValueError: `seconds` is negative or not finite.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"time can only go forward, not by {seconds!r} seconds")
        with self._changed:
            self._time += math.ceil(seconds * _GRID) / _GRID
            signals = [signal for signal, deadline in self._waiters.values()]
        for signal in signals:
            signal.wake()

    @property
    def parked(self) -> int:
        """How many threads wait with a time limit that has not passed."""
        with self._changed:
            return self._count_parked()

    def wait_parked(self, count: int, timeout: float = 5.0) -> None:
        """Block until at least `count` threads wait with a time limit that has not passed.

        Args:
            count: How many threads.
            timeout: Real seconds.

        Raises:
            TimeoutError: There were fewer after `timeout`.
        """
        with self._changed:
            if self._changed.wait_for(lambda: self._count_parked() >= count, timeout):
                return
            parked = self._count_parked()
        raise TimeoutError(
            f"{parked} of {count} threads wait in the clock after {timeout:g} real seconds"
        )

    def _count_parked(self) -> int:
        # A waiter that is over but has not woken yet does not count, or a second
        # wait_parked after an advance would let the test run ahead of it.
        return sum(
            deadline > self._time and not signal.is_set()
            for signal, deadline in self._waiters.values()
        )
