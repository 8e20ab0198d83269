"""The clock: the only file that reads the time, and the latch that threads wait on."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone
from typing import Protocol, runtime_checkable


class Signal:
    """A one-shot latch: threads wait for it through a `Clock`, any thread sets it.

    Like `threading.Event`, but open to a clock that must wake its waiters when virtual time
    moves. Thread-safe.
    """

    __slots__ = ("_is_set", "condition")

    def __init__(self) -> None:
        self.condition = threading.Condition(threading.Lock())
        self._is_set = False

    def is_set(self) -> bool:
        """Say whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Open the latch for good and wake every waiter."""
        with self.condition:
            self._is_set = True
            self.condition.notify_all()


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
        with signal.condition:
            return signal.condition.wait_for(signal.is_set, timeout)
