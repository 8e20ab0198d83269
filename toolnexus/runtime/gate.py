"""TurnGate: how many LLM requests are on the wire at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from toolnexus.cancel import CancelToken
from toolnexus.clock import Clock, Signal


class TurnGate:
    """A first-in-first-out gate that a cancelled waiter leaves at once. Thread-safe.

    It is held for a request only, never for a turn: a parent that waits for its child holds
    no place, so one place is enough for any tree.
    """

    def __init__(self, places: int, clock: Clock) -> None:
        self._places = places
        self._clock = clock
        self.after_fork()

    def after_fork(self) -> None:
        """Forget who held a place in the parent process."""
        # Guards _free and _waiting.
        self._lock = threading.Lock()
        self._free = self._places
        self._waiting: deque[Signal] = deque()

    def hold(self, cancel: CancelToken) -> AbstractContextManager[None]:
        """Wait for a place and give it back at the end.

        Raises:
            Cancelled: The token was thrown while waiting.
        """
        return self._hold(cancel)

    @contextmanager
    def _hold(self, cancel: CancelToken) -> Iterator[None]:
        self._enter(cancel)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, cancel: CancelToken) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = Signal()
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
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            if self._waiting:
                following = self._waiting.popleft()
            else:
                self._free += 1
                return
        following.set()
