"""Waiting for a result without depending on a free worker."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from toolnexus.cancel import CancelToken
from toolnexus.clock import Signal
from toolnexus.results import TaskResult
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.run import Run

_NESTED_TURNS: int = 16
"""Turns that one thread runs inside each other before it takes a fresh one: each costs about
twenty frames of Python's recursion limit."""


class Waiting:
    """How a thread waits for a handle: it takes over the turn that nobody has begun."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def wait(
        self,
        handle: Handle,
        future: Future[TaskResult],
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> TaskResult | None:
        """Return the future's result; run the turn here if no thread has begun.

        Args:
            handle: Whose result it is.
            future: Where it will stand.
            timeout: Seconds; with one, this thread only waits and takes nothing over.
            cancel: Stops the waiting.

        Returns:
            None where `timeout` passed or `cancel` was thrown first.

        Raises:
            BaseException: A KeyboardInterrupt in a turn that was taken over.
        """
        try:
            return self._wait(handle, future, timeout, cancel)
        except BaseException:
            self._hand_over(handle)
            raise

    def _hand_over(self, handle: Handle) -> None:
        """Leave a run that counted on this thread to the workers."""
        core = self._core
        with core.deciding() as effects:
            run = handle._run
            if run is not None and not run.submits:
                run.submits = True
                if run.is_started:
                    effects.add(core.pool.submit, run)

    def _wait(
        self,
        handle: Handle,
        future: Future[TaskResult],
        timeout: float | None,
        cancel: CancelToken | None,
    ) -> TaskResult | None:
        core = self._core
        limit = None if timeout is None else core.clock.monotonic() + timeout
        while not future.done():
            signal = Signal()
            with core.lock:
                run = handle._run
                mine = run is not None and run.is_started and timeout is None and run.claim()
                if not mine:
                    # Also told when a run starts, so that it can be taken over then.
                    core.watch_locked(handle, signal)
            if mine and run is not None:
                _execute(run)
                continue
            left = None if limit is None else limit - core.clock.monotonic()
            if left is not None and left <= 0:
                return None
            future.add_done_callback(lambda _, told=signal: told.set())  # type: ignore[misc]
            forget = cancel.on_cancel(signal.set) if cancel is not None else _nothing
            try:
                core.clock.wait(signal, left)
            finally:
                forget()
            if cancel is not None and cancel.is_cancelled and not future.done():
                return None
        return future.result()


def _execute(run: Run) -> None:
    """Execute here, or on a thread of its own where the turns are nested too deeply."""
    if run.handle.depth % _NESTED_TURNS:
        run.execute()
        return
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run.execute()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            errors.append(error)

    thread = threading.Thread(target=work, name="toolnexus-deep", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _nothing() -> None:
    return None
