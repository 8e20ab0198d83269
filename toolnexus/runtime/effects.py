"""Effects: what was decided under the lock and is done after it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import attrs

from toolnexus.errors import StoreError
from toolnexus.messages import Status
from toolnexus.results import TaskResult
from toolnexus.suspension import copy_of

if TYPE_CHECKING:
    from toolnexus.runtime.handle import Handle
    from toolnexus.runtime.keeping import Keeper
    from toolnexus.runtime.run import Run
    from toolnexus.runtime.tree import Tree

logger = logging.getLogger(__name__)
_trace_logger: Final = logging.getLogger("toolnexus.trace")


class Effects:
    """Collects calls while the lock is held; `perform` makes them once it is not.

    First everything that lets work go on, then the futures of waiters: their callbacks are
    foreign code, which may call a blocking verb and wait for just that work. A call that raises
    is logged and the others still happen.
    """

    __slots__ = (
        "_calls",
        "_keeper",
        "_lines",
        "_promised",
        "_settled",
        "_submit",
        "_to_run",
        "_told",
        "_touched",
    )

    def __init__(
        self,
        submit: Callable[[Run], object],
        keeper: Keeper | None = None,
    ) -> None:
        """Collect effects of one decision.

        Args:
            submit: Hands a run to the workers.
            keeper: Writes what the decision has changed; None where nothing is written.
        """
        self._submit = submit
        self._keeper = keeper
        self._touched: set[Tree] = set()
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._settled: list[tuple[Future[Any], object]] = []
        self._told: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._lines: list[str] = []
        self._to_run: list[Run] = []
        self._promised: list[Run] = []

    def touch(self, tree: Tree | None) -> None:
        """Note that the decision has changed something of `tree`."""
        if tree is not None:
            self._touched.add(tree)

    def leave(self, tree: Tree) -> None:
        """Let the next step write what was decided of `tree`: it follows from what is written.

        A process that ends before that leaves behind what the same decision is made of again.
        """
        self._touched.discard(tree)

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
        self._settled.append((future, result))

    def tell(self, call: Callable[..., object], *args: Any) -> None:
        """Do `call(*args)` last of all: a host's code, which nobody waits for."""
        self._told.append((call, args))

    def log(self, line: str) -> None:
        """Write a trace line to the log after the lock is released."""
        self._lines.append(line)

    def perform(self, stopped: BaseException | None = None) -> None:
        """Write what has changed, then do everything. The caller holds no lock.

        Where it cannot be written, the runs that it belongs to are this process's no more:
        nothing goes on, and who waits is told so.

        Args:
            stopped: What was raised in the middle of the decision. If that ends the thread,
                half of it is made, and must not be written.

        Raises:
            StoreError: It could not be written.
            BaseException: A SystemExit or the like out of a callback, once all is done.
        """
        ending = self._write(stopped) if self._touched else None
        failure = None if ending is None else _failure(ending)
        calls = self._calls
        if self._to_run and failure is None:
            calls += [(self._submit, (run,)) for run in self._to_run]
        if self._lines and _trace_logger.isEnabledFor(logging.DEBUG):
            calls += [(_trace_logger.debug, ("%s", line)) for line in self._lines]
        if self._settled:
            calls += [
                (future.set_result, (self._result(result, failure),))
                for future, result in self._settled
            ]
        if self._told and failure is None:
            calls += self._told
        ending = (_call_all(calls) if calls else None) or ending
        is_ended = ending is not None and ending is not failure
        if is_ended or stopped is not None:
            for run in self._promised:
                run.is_awaited = False
                if run.is_started and not run.is_over:
                    self._submit(run)
        if ending is not None:
            raise ending

    def _write(self, stopped: BaseException | None) -> BaseException | None:
        if self._keeper is None:
            return None
        try:
            if stopped is not None and not isinstance(stopped, Exception):
                self._keeper.losing.give_up(self._touched, stopped)
                return stopped
            self._keeper.flush(self._touched)
        except BaseException as error:  # noqa: BLE001 - raised once everybody is told
            return error
        return None

    def _result(self, result: object, failure: StoreError | None) -> object:
        """Return what a future is to give once it is known what was written."""
        if failure is not None:
            return lost_result(failure)
        if isinstance(result, TaskResult) and result.pending is not None:
            for tree in self._touched:
                now = tree.renamed.get(result.pending.id)
                if now is not None:
                    return attrs.evolve(result, pending=copy_of(now))
        return result


def _failure(ending: BaseException) -> StoreError:
    return ending if isinstance(ending, StoreError) else StoreError(f"stopped by {ending!r}")


def lost_result(error: StoreError, status: Status = "error") -> TaskResult:
    """Return what somebody is told who waits for a run that is not this process's any more."""
    return TaskResult(f"{error}; recover() goes on from there", is_error=True, status=status)


def _call_all(
    calls: list[tuple[Callable[..., object], tuple[Any, ...]]],
) -> BaseException | None:
    """Make the calls; return what ended one of them in a way that ends a thread."""
    ending: BaseException | None = None
    for call, args in calls:
        try:
            call(*args)
        except Exception:  # noqa: BLE001 - foreign code; one failure must not stop the others
            _report(call)
        except BaseException as error:  # noqa: BLE001 - raised by the caller, after the others
            ending = error
    return ending


def _report(call: object) -> None:
    with contextlib.suppress(Exception):  # the log itself may be what fails
        logger.error("%r failed", call, exc_info=True)  # noqa: LOG014 - called by a handler
