"""Waiting for a result without depending on a free worker."""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future
from typing import Any

from toolnexus.cancel import CancelToken
from toolnexus.clock import Signal
from toolnexus.errors import ConfigError
from toolnexus.results import TaskResult
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.run import Run, current_run
from toolnexus.threads import OwnThread, WrapJob
from toolnexus.workers import Job

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

    def help(self, handle: Handle, future: Future[TaskResult], timeout: float | None) -> None:
        """Like `wait`, for a holder of the future who may come again: it stays registered."""
        refuse_self_wait(self._core, handle)
        self._wait(handle, future, seconds_of(timeout), None)

    def is_worker_here(self) -> bool:
        """Whether this thread may be the last one that could execute something."""
        return current_run.get() is not None or self._core.pool.is_worker_here()

    def start_elsewhere(self, handle: Handle, future: Future[TaskResult]) -> None:
        """Have the turn of `handle` executed on a thread of its own, so that this one can wait.

        One that is queued is waited for here.
        """
        with self._core.lock:
            run = handle._run
            if run is not None and run.is_started and not run.claim():
                return  # somebody is at it
        if run is not None and run.is_started:
            _execute(run, on_own_thread=True)
        else:
            self.help(handle, future, None)

    def _leave(self, handle: Handle, future: Future[TaskResult]) -> None:
        """Take the future back, and give a run that counted on this thread to the workers."""
        with self._core.deciding() as effects:
            self._core.forget_future_locked(handle, future)
            if handle._run is not None:
                _give_locked(handle._run, effects)

    def give_to_workers(self, run: Run) -> None:
        """Break the promise to take `run` over: a worker executes it, now or once it starts."""
        with self._core.deciding() as effects:
            _give_locked(run, effects)

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
            run, watched = self._claim_or_watch(handle, changed, has_limit=limit is not None)
            if run is not None:
                _execute(run, on_own_thread=limit is not None)
                continue
            left = None if limit is None else max(limit - core.clock.monotonic(), 0)
            forget = _nothing
            if cancel is not None:
                forget = cancel.on_cancel(changed.set, is_urgent=True)
            try:
                if not core.clock.wait(changed, left) and not future.done():
                    return None
            finally:
                forget()
                with core.lock:
                    for one in watched:
                        core.unwatch_locked(one, changed)

    def _claim_or_watch(
        self, handle: Handle, changed: Signal, *, has_limit: bool
    ) -> tuple[Run | None, list[Handle]]:
        """Return a run for this thread to see to, claimed, or whom `changed` now watches."""
        is_worker = self.is_worker_here()
        with self._core.lock:
            awaited = [handle]
            run = handle._run
            if is_worker and run is not None and not run.is_started and handle.parent:
                # It is queued behind siblings, and this thread may be the last that could
                # execute one of those.
                awaited += [one for one in handle.parent._children.values() if one._run]
            # With a limit it is left to the workers, unless this thread may be the last.
            for one in awaited if is_worker or not has_limit else ():
                if one._run is not None and one._run.is_started and one._run.claim():
                    return one._run, []
            # Also told when a run starts, so that it can be taken over then.
            for one in awaited:
                self._core.watch_locked(one, changed)
        return None, awaited


def _give_locked(run: Run, effects: Effects) -> None:
    if run.is_awaited:
        run.is_awaited = False
        if run.is_started:
            effects.run(run)


def _execute(run: Run, *, on_own_thread: bool) -> None:
    """Execute a claimed run here, or on a thread of its own.

    That is where it must not keep the caller, and where turns are nested too deeply.
    """
    options = run.handle._core.options
    if options.inline or (run.handle.depth % _NESTED_TURNS and not on_own_thread):
        run.execute()
        return
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run.execute()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            errors.append(error)

    thread = OwnThread(work, "toolnexus-turn", options.wrap_job)
    try:
        thread.start()
    except RuntimeError:
        # The machine gives no more threads, and nobody else may execute what is claimed.
        run.execute()
        return
    if on_own_thread:
        return
    thread.join()
    if errors:
        raise errors[0]


def _nothing() -> None:
    return None


def seconds_of(timeout: Any) -> float | None:
    """Return a time limit that locks can take; an infinite one is none.

    Raises:
        ConfigError: It is no number.
    """
    if timeout is None or timeout == math.inf:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, float | int) or math.isnan(timeout):
        raise ConfigError(f"timeout must be seconds or None, not {timeout!r}")
    return min(max(float(timeout), 0.0), threading.TIMEOUT_MAX)


def refuse_self_wait(core: Core, handle: Handle) -> None:
    """Refuse to wait for a turn from within it, or within one that it waits for.

    Raises:
        ConfigError: That is asked for; it could never end.
    """
    mine = current_run.get()
    if mine is None or mine.is_over:
        return
    with core.lock:
        one: Handle | None = mine.handle
        while one is not None and one is not handle:
            one = one.parent if _waits_for(one.parent, one) else None
        if one is None or one._run is None:
            return
    raise ConfigError(
        f"{handle.id} is in a turn that waits for this tool to end ({mine.handle.id}); "
        "waiting for it here could never end"
    )


def _waits_for(parent: Handle | None, child: Handle) -> bool:
    """Whether a call of the parent's turn is waiting for `child` now. Lock held."""
    if parent is None or parent._run is None or parent._run.turn is None:
        return False
    calls = parent._run.turn.calls
    return any(call.child == child.id and call.status == "started" for call in calls)


def finish_or_start(job: Job, timeout: float | None, wrap_job: WrapJob | None) -> None:
    """Do a job that no worker has begun: here, or elsewhere if it must not keep the caller."""
    if timeout is None:
        job.run_if_unclaimed()
    else:
        thread = OwnThread(job.run_if_unclaimed, "toolnexus-resume", wrap_job)
        try:
            thread.start()
        except RuntimeError:  # the machine gives no more threads
            job.run_if_unclaimed()
