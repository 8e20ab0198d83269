"""Waiting for a result without depending on a free worker."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from toolnexus.cancel import CancelToken
from toolnexus.clock import Signal
from toolnexus.results import TaskResult
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.run import Run, current_run

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
            timeout: Seconds; with one, this thread only waits, and executes nothing itself.
            cancel: Stops the waiting.

        Returns:
            None where `timeout` passed or `cancel` was thrown first.

        Raises:
            BaseException: A KeyboardInterrupt in a turn that was taken over.
        """
        try:
            result = self._wait(handle, future, timeout, cancel)
        except BaseException:
            self._leave(handle, future)
            raise
        if result is None:
            self._leave(handle, future)
        return result

    def _leave(self, handle: Handle, future: Future[TaskResult]) -> None:
        """Take the future back, and give a run that counted on this thread to the workers."""
        with self._core.deciding() as effects:
            if handle._waiters is not None and future in handle._waiters:
                handle._waiters.remove(future)
            run = handle._run
            if run is not None and run.is_awaited:
                run.is_awaited = False
                if run.is_started:
                    effects.run(run)

    def _wait(
        self,
        handle: Handle,
        future: Future[TaskResult],
        timeout: float | None,
        cancel: CancelToken | None,
    ) -> TaskResult | None:
        core = self._core
        limit = None if timeout is None else core.clock.monotonic() + timeout
        latest = [Signal()]
        future.add_done_callback(lambda _: latest[0].set())
        while True:
            # Before the look at the future, so that its end after that sets this one.
            changed = latest[0] = Signal()
            if future.done():
                return future.result()
            if cancel is not None and cancel.is_cancelled:
                return None
            run = self._claim_or_watch(handle, changed, has_limit=limit is not None)
            if run is not None:
                _execute(run, on_own_thread=limit is not None)
                continue
            left = None if limit is None else max(limit - core.clock.monotonic(), 0)
            forget = cancel.on_cancel(changed.set) if cancel is not None else _nothing
            try:
                if not core.clock.wait(changed, left) and not future.done():
                    return None
            finally:
                forget()
                with core.lock:
                    core.unwatch_locked(handle, changed)

    def _claim_or_watch(
        self, handle: Handle, changed: Signal, *, has_limit: bool
    ) -> Run | None:
        """Return the run of `handle`, claimed, if this thread should see to it; else watch."""
        # With a limit it is left to the workers, unless this thread may be the last of them.
        takes_over = not has_limit or current_run.get() is not None
        with self._core.lock:
            run = handle._run
            if takes_over and run is not None and run.is_started and run.claim():
                return run
            # Also told when a run starts, so that it can be taken over then.
            self._core.watch_locked(handle, changed)
        return None


def _execute(run: Run, *, on_own_thread: bool) -> None:
    """Execute a claimed run here, or on a thread of its own.

    That is where it must not keep the caller, and where turns are nested too deeply.
    """
    if run.handle.depth % _NESTED_TURNS and not on_own_thread:
        run.execute()
        return
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run.execute()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            errors.append(error)

    thread = threading.Thread(target=work, name="toolnexus-turn", daemon=True)
    thread.start()
    if on_own_thread:
        return
    thread.join()
    if errors:
        raise errors[0]


def _nothing() -> None:
    return None
