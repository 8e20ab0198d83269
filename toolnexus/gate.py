"""FifoGate: how many may be inside at once."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager

from toolnexus.cancel import CancelToken
from toolnexus.clock import Clock, Signal


class _Place:
    """A place to be had; a generator would cost as much again for each request."""

    __slots__ = ("_cancel", "_gate")

    def __init__(self, gate: FifoGate, cancel: CancelToken) -> None:
        self._gate = gate
        self._cancel = cancel

    def __enter__(self) -> None:
        self._gate.enter(self._cancel)

    def __exit__(self, *ending: object) -> None:
        self._gate.leave()


class FifoGate:
    """A first-in-first-out gate that a cancelled waiter leaves at once. Thread-safe.

    The runtime's is held for a request only, never for a turn: a parent that waits for its
    child holds no place, so one place is enough for any tree.
    """

    def __init__(self, places: int, clock: Clock) -> None:
        self._places = places
        self._clock = clock
        self.after_fork()

    def after_fork(self) -> None:
        """Forget who held a place in the parent process."""
        # Guards _free and _waiting. Re-entrant, for a dropped stream may be finalised in the
        # middle of anything.
        self._lock = threading.RLock()
        self._free = self._places
        self._waiting: deque[Signal] = deque()

    def hold(self, cancel: CancelToken) -> AbstractContextManager[None]:
        """Wait for a place and give it back at the end.

        Raises:
            Cancelled: The token was thrown while waiting.
        """
        return _Place(self, cancel)

    def enter(self, cancel: CancelToken) -> None:
        """Wait for a place; see `hold`."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
        # Made before the next look: a finaliser may give a place back in the middle of it.
        turn = Signal()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._waiting.append(turn)
        forget = cancel.on_cancel(turn.set, is_urgent=True)
        try:
            self._clock.wait(turn)
        except BaseException:
            self._withdraw(turn)
            raise
        finally:
            forget()
        if cancel.is_cancelled:
            self._withdraw(turn)
            cancel.raise_if_cancelled()

    def _withdraw(self, turn: Signal) -> None:
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return
        # The place came at the same moment as the cancel: it goes to the next.
        self.leave()

    def leave(self) -> None:
        """Give a place back: to the first who waits."""
        with self._lock:
            if self._waiting:
                following = self._waiting.popleft()
            else:
                self._free += 1
                return
        following.set()
