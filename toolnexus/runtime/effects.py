"""Effects: what was decided under the lock and is done after it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

logger = logging.getLogger(__name__)
_trace_logger: Final = logging.getLogger("toolnexus.trace")


class Effects:
    """Collects calls while the lock is held; `perform` makes them once it is not.

    A call that raises is logged and the others still happen: a waiter never hangs because
    another one's callback failed.
    """

    __slots__ = ("_calls", "_lines")

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._lines: list[str] = []

    def add(self, call: Callable[..., object], *args: Any) -> None:
        """Do `call(*args)` after the lock is released."""
        self._calls.append((call, args))

    def settle(self, future: Future[Any], result: object) -> None:
        """Resolve `future` after the lock is released."""
        self._calls.append((future.set_result, (result,)))

    def log(self, line: str) -> None:
        """Write a trace line to the log after the lock is released."""
        self._lines.append(line)

    def perform(self) -> None:
        """Do everything, in the order it was added. The caller holds no lock.

        Raises:
            BaseException: A SystemExit or the like out of a callback, once all is done.
        """
        ending: BaseException | None = None
        if self._lines and _trace_logger.isEnabledFor(logging.DEBUG):
            self._calls[:0] = [(_trace_logger.debug, ("%s", line)) for line in self._lines]
        for call, args in self._calls:
            try:
                call(*args)
            except Exception:  # noqa: BLE001 - foreign code; one failure must not stop the others
                _report(call)
            except BaseException as error:  # noqa: BLE001 - raised below, after the others
                ending = error
        if ending is not None:
            raise ending


def _report(call: object) -> None:
    with contextlib.suppress(Exception):  # the log itself may be what fails
        logger.error("%r failed", call, exc_info=True)  # noqa: LOG014 - called by a handler
