"""The clock: the only file that reads the time, and the latch that threads wait on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final, Protocol, runtime_checkable

_NAP_SECONDS: Final = 86_400.0
"""The longest that a lock is waited for at once: the platform's own limit is a time, too."""


class Signal:
    """A one-shot latch: threads wait for it through a `Clock`, any thread sets it.

    Like `threading.Event`, but open to a clock that must wake its waiters when virtual time
    moves, and `set` takes no lock: a dropped stream may be finalised in the middle of anything,
    on the very thread that waits here. Thread-safe.
    """

    __slots__ = ("_is_set", "_sleepers")

    def __init__(self) -> None:
        self._is_set = False
        # A held lock for each thread that sleeps; whoever takes one out releases it.
        self._sleepers: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Say whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Open the latch for good and wake every waiter."""
        self._is_set = True
        self.wake()

    def wake(self) -> None:
        """Let every waiter look again at what it waits for."""
        while self._sleepers:
            try:
                sleeper = self._sleepers.pop()
            except IndexError:  # another thread has woken the last one
                return
            sleeper.release()

    def wait_for(self, is_over: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block until `is_over`, which is looked at after each `wake`; return what it says.

        Args:
            is_over: Changes before `wake` is called.
            timeout: Real seconds; None for no limit.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        while not is_over():
            left = -1.0 if limit is None else limit - time.monotonic()
            if limit is not None and left <= 0:
                return False
            sleeper = threading.Lock()
            sleeper.acquire()
            self._sleepers.append(sleeper)
            try:
                # Once more, for the wake-up may have come before the sleeper was there.
                if not is_over():
                    sleeper.acquire(timeout=min(left, _NAP_SECONDS))
            finally:
                with contextlib.suppress(ValueError):
                    self._sleepers.remove(sleeper)
        return True


@runtime_checkable
class Clock(Protocol):
    """What toolnexus asks of time. Every wait and every reading goes through one of these."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back."""

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        """Block until `signal` is set or `timeout` seconds pass; say whether it is set."""


class RealClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        """Block until `signal` is set or `timeout` seconds pass; say whether it is set."""
        return signal.wait_for(signal.is_set, timeout)
