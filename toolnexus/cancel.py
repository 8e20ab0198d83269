"""CancelToken: how a thread is asked to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from toolnexus.clock import Clock, Signal
from toolnexus.errors import Cancelled

logger = logging.getLogger(__name__)


class CancelToken:
    """A one-way switch that says "stop", and what is to happen when it is thrown.

    A token is looked at in named places; nothing is ever thrown into a running thread.
    Thread-safe.
    """

    __slots__ = (
        "_callbacks",
        "_clock",
        "_late",
        "_lock",
        "_reason",
        "_urgent",
        "deadline",
    )

    def __init__(self) -> None:
        self.deadline: float | None = None
        self._clock: Clock | None = None
        self._late = ""
        # Guards the callbacks and the flip of _reason from None to a text.
        # Re-entrant, for a dropped stream may be finalised in the middle of anything.
        self._lock = threading.RLock()
        self._reason: str | None = None
        self._urgent: list[Callable[[], object]] = []
        self._callbacks: list[Callable[[], object]] = []

    def set_deadline(self, clock: Clock, instant: float, reason: str) -> None:
        """Let `raise_if_cancelled` throw the switch once `clock` reads `instant`.

        Called before the token is shared. Nothing wakes a thread that waits for something else
        at that instant; whoever sets the deadline sees to that.
        """
        self._clock, self.deadline, self._late = clock, instant, reason

    @property
    def late_reason(self) -> str:
        """What passing the deadline throws the switch with."""
        return self._late

    @property
    def is_late(self) -> bool:
        """Whether it was the deadline that threw the switch."""
        return self._reason is not None and self._reason is self._late

    def expire(self) -> bool:
        """Throw the switch for the deadline's reason; False where it was thrown before."""
        return self.cancel(self._late)

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """What the first `cancel` said; None before it."""
        return self._reason

    def cancel(self, reason: str = "run cancelled") -> bool:
        """Throw the switch and run the callbacks on this thread.

        Returns:
            True for the call that threw it, False for every later one.
        """
        callbacks = self.throw(reason)
        if callbacks is None:
            return False
        run_callbacks(callbacks)
        return True

    def throw(self, reason: str) -> list[Callable[[], object]] | None:
        """Throw the switch and run the urgent callbacks only.

        Returns:
            The other callbacks, for the caller to run; None where it was thrown before.
        """
        with self._lock:
            if self._reason is not None:
                return None
            self._reason = reason
            urgent, self._urgent = self._urgent, []
            callbacks, self._callbacks = self._callbacks, []
        run_callbacks(urgent)
        return callbacks

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` once the switch is thrown or the deadline has passed."""
        clock, deadline = self._clock, self.deadline
        if clock is not None and deadline is not None and clock.monotonic() >= deadline:
            self.expire()
        if self._reason is not None:
            raise Cancelled(self._reason)

    def on_cancel(
        self, callback: Callable[[], object], *, is_urgent: bool = False
    ) -> Callable[[], None]:
        """Run `callback` when the token is cancelled; at once if it already is.

        Args:
            callback: What to run, on the cancelling thread.
            is_urgent: Whether it goes before the others, whose code may be slow.

        Returns:
            A function that takes the callback back. It may run once more concurrently with a
            `cancel` in progress.
        """
        with self._lock:
            if self._reason is None:
                (self._urgent if is_urgent else self._callbacks).append(callback)
                return lambda: self._forget(callback)
        callback()
        return _nothing

    def wait(self, clock: Clock, timeout: float) -> bool:
        """Sleep for `timeout` seconds; wake at once, and return True, when cancelled."""
        signal = Signal()
        forget = self.on_cancel(signal.set, is_urgent=True)
        try:
            return clock.wait(signal, timeout)
        finally:
            forget()

    def _forget(self, callback: Callable[[], object]) -> None:
        with self._lock:
            for callbacks in (self._urgent, self._callbacks):
                if callback in callbacks:
                    callbacks.remove(callback)


def run_callbacks(callbacks: Iterable[Callable[[], object]]) -> None:
    """Run cancel callbacks; what one raises is logged and the others still run.

    Raises:
        BaseException: A SystemExit or the like out of one, once all have run.
    """
    ending: BaseException | None = None
    for callback in callbacks:
        try:
            callback()
        except Exception:
            logger.exception("a cancel callback failed")
        except BaseException as error:  # noqa: BLE001 - raised below, after the others
            ending = error
    if ending is not None:
        raise ending


def _nothing() -> None:
    return None
