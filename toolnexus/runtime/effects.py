"""Effects: what was decided under the lock and is done after it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolnexus.runtime.handle import Handle
    from toolnexus.runtime.run import Run

logger = logging.getLogger(__name__)
_trace_logger: Final = logging.getLogger("toolnexus.trace")


class Effects:
    """Collects calls while the lock is held; `perform` makes them once it is not.

    First everything that lets work go on, then the futures of waiters: their callbacks are
    foreign code, which may call a blocking verb and wait for just that work. A call that raises
    is logged and the others still happen.
    """

    __slots__ = ("_calls", "_lines", "_promised", "_settled", "_submit", "_to_run", "_told")

    def __init__(self, submit: Callable[[Run], object]) -> None:
        """Collect effects of one decision.

        Args:
            submit: Hands a run to the workers.
        """
        self._submit = submit
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._settled: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._told: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._lines: list[str] = []
        self._to_run: list[Run] = []
        self._promised: list[Run] = []

    def add(self, call: Callable[..., object], *args: Any) -> None:
        """Do `call(*args)` after the lock is released."""
        self._calls.append((call, args))

    def run(self, run: Run) -> None:
        """Have a worker execute `run`, unless the caller takes it with `take_run`."""
        self._to_run.append(run)

    def promise(self, run: Run) -> None:
        """Note that the caller takes `run` over, unless what follows ends its thread first."""
        self._promised.append(run)

    def take_run(self, handle: Handle | None) -> Run | None:
        """Return the run of `handle` for this thread to claim and execute; None without one.

        Not claimed yet: what `perform` calls is foreign code, which may wait for that run, and
        then it takes it over.
        """
        for run in self._to_run:
            if run.handle is handle:
                self._to_run.remove(run)
                return run
        return None

    def settle(self, future: Future[Any], result: object) -> None:
        """Resolve `future` after the lock is released and work has been let go on."""
        self._settled.append((future.set_result, (result,)))

    def tell(self, call: Callable[..., object], *args: Any) -> None:
        """Do `call(*args)` last of all: a host's code, which nobody waits for."""
        self._told.append((call, args))

    def log(self, line: str) -> None:
        """Write a trace line to the log after the lock is released."""
        self._lines.append(line)

    def perform(self) -> None:
        """Do everything. The caller holds no lock.

        Raises:
            BaseException: A SystemExit or the like out of a callback, once all is done.
        """
        calls = [*self._calls, *((self._submit, (run,)) for run in self._to_run)]
        if self._lines and _trace_logger.isEnabledFor(logging.DEBUG):
            calls += [(_trace_logger.debug, ("%s", line)) for line in self._lines]
        ending: BaseException | None = None
        for call, args in (*calls, *self._settled, *self._told):
            try:
                call(*args)
            except Exception:  # noqa: BLE001 - foreign code; one failure must not stop the others
                _report(call)
            except BaseException as error:  # noqa: BLE001 - raised below, after the others
                ending = error
        if ending is not None:
            for run in self._promised:
                run.is_awaited = False
                if run.is_started:
                    self._submit(run)
            raise ending


def _report(call: object) -> None:
    with contextlib.suppress(Exception):  # the log itself may be what fails
        logger.error("%r failed", call, exc_info=True)  # noqa: LOG014 - called by a handler
