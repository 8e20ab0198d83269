"""Interrupting and closing: how turns are stopped and handles end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Final

from toolnexus.checkpoint import CallState
from toolnexus.client.turn import Turn, settled_checkpoint
from toolnexus.clock import Clock, RealClock, Signal
from toolnexus.errors import ConfigError
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import FailedTurn, Handle
from toolnexus.runtime.run import INTERRUPTED, End, Run, current_run, throw
from toolnexus.runtime.settling import Settling
from toolnexus.runtime.state import Cause, State

logger = logging.getLogger(__name__)

_NOTHING: Final[Mapping[str, Sequence[CallState]]] = {}

_GRACE_SECONDS: Final = 0.05
"""How long an interrupted turn has to unwind by itself: an aborted request takes under a
millisecond, foreign code may take for ever."""

# How long foreign code takes to let go of a thread is not virtual.
_real: Final = RealClock()

_in_on_close: Final[ContextVar[bool]] = ContextVar("toolnexus_in_on_close", default=False)


class Closing:
    """Stops turns, and ends handles with everything below them."""

    def __init__(self, core: Core, settling: Settling) -> None:
        self._core = core
        self._settling = settling

    def interrupt(self, handle: Handle) -> None:
        """End what `handle` is doing, and what its halted or running task calls do."""
        self._stop_all(lambda: self._below_locked(self._top_locked(handle)))

    def interrupt_children(self, handle: Handle) -> None:
        """End what the task calls of `handle` do, and nothing of its own."""
        self._stop_all(lambda: self._below_locked(handle)[1:])

    def _stop_all(self, choose: Callable[[], list[Handle]]) -> None:
        runs: list[Run] = []
        try:
            with self._core.deciding() as effects:
                runs = self._stop_locked(choose(), effects)
        finally:
            # Also where a cancel callback of foreign code ends this thread.
            self._see_stopped(runs)

    def time_out(self, run: Run) -> None:
        """End `run` because its deadline has passed, and what its task calls do."""
        with self._core.deciding() as effects:
            if run.is_over:
                return
            # Thrown before the others, so that this one is late and no mere interrupt.
            reason = run.cancel.late_reason
            effects.add(throw, run.cancel, reason, self._core.options.wrap_job)
            runs = self._stop_locked(self._below_locked(run.handle), effects)
        self._see_stopped(runs)

    def _stop_locked(self, handles: list[Handle], effects: Effects) -> list[Run]:
        """Withdraw what is parked and cancel what runs; return the runs."""
        # First, so that no end below sets a parked ancestor going again.
        self._withdraw_locked(handles, effects)
        runs = [one._run for one in handles if one._run is not None]
        for run in runs:
            run.is_stopping = True
            effects.add(throw, run.cancel, "interrupted", self._core.options.wrap_job)
        return runs

    def _see_stopped(self, runs: list[Run]) -> None:
        """Let cancelled runs unwind for a moment, then settle those that do not."""
        if not runs:
            return
        inside = _runs_of_this_thread()
        begun = [run for run in runs if run.is_started and run not in inside]
        self._await_end(begun, _real, _GRACE_SECONDS)
        with self._core.deciding() as effects:
            self._force_locked(runs, effects)
            self._withdraw_locked([run.handle for run in runs], effects)

    @staticmethod
    def require_sense(force: object, reason: object) -> None:
        """Refuse what another process could not be told.

        Raises:
            ConfigError: An argument of a close makes no sense.
        """
        if not isinstance(force, bool):
            raise ConfigError(f"force must be True or False, not {force!r}")
        if reason is not None and not isinstance(reason, str):
            raise ConfigError(f"reason must be a text, not {reason!r}")

    def close(self, handle: Handle, *, force: bool = False, reason: str | None = None) -> None:
        """End `handle` and everything below it, leaves first. Idempotent.

        Raises:
            BaseException: A KeyboardInterrupt, or what an `on_close` ended its thread with; by
                then everything is closed.
        """
        core = self._core
        with core.deciding() as effects:
            below = [
                one for one in core.subtree_locked(handle) if one._state is not State.CLOSED
            ]
            others = [one for one in below if one._is_closing]
            runs = self._doom_locked(below, effects)
        endings = []
        if runs and not force:
            endings += _attempt(self._let_finish, runs)
        if others:
            endings += _attempt(self._await_closed, others)
        endings += _attempt(self._stop, runs)
        why = reason or ("interrupted" if force else "closed")
        # Children were appended after their parents, so from the back it is leaves first. What
        # another thread was closing is closed by then, or is finished here.
        for one in reversed(below):
            endings += _attempt(self._end, one, why)
        if endings:
            raise endings[0]

    def _doom_locked(self, handles: list[Handle], effects: Effects) -> list[Run]:
        """Let `handles` accept nothing more; return the runs that were not doomed before."""
        runs = []
        for one in handles:
            if one._is_closing:
                continue
            one._is_closing = True
            if one._tree is not None:
                # Written with the requests that are taken back below, if any are.
                one._tree.doomed.add(one.id)
            if one._parked is not None:
                # From here on no answer is accepted: nobody would see it through.
                self._core.withdraw_locked(one, one._parked.calls, "close", effects)
            if one._run is not None:
                runs.append(one._run)
        for run in runs:
            if not run.is_started:
                self._settling.settle_locked(run, INTERRUPTED, effects)
        return runs

    def _stop(self, runs: list[Run]) -> None:
        with self._core.deciding() as effects:
            late = [run for run in runs if not run.is_over]
            for run in late:
                self._core.note_locked(run.handle, "escalate to interrupt", effects)
            self._stop_locked([run.handle for run in late], effects)
        self._see_stopped(late)

    def _end(self, handle: Handle, why: str) -> None:
        """Take one handle to `closed`; its children are closed already."""
        core = self._core
        with core.lock:
            is_first = not handle._was_told and handle._state is not State.CLOSED
            handle._was_told = True
        try:
            if is_first and handle.definition.on_close is not None:
                self._tell(handle, handle.definition.on_close, why)
        finally:
            with core.deciding() as effects:
                self._close_locked(handle, why, effects)

    @staticmethod
    def _tell(handle: Handle, on_close: Callable[[Handle, str], object], why: str) -> None:
        outer = _in_on_close.set(True)
        try:
            on_close(handle, why)
        except Exception:
            logger.exception("%s: on_close failed; the handle closes all the same", handle.id)
        finally:
            _in_on_close.reset(outer)

    def _close_locked(self, handle: Handle, why: str, effects: Effects) -> None:
        core = self._core
        if handle._state is State.CLOSED:
            return
        if handle._run is not None:
            # A thread that was ended in the middle of closing may have left one.
            self._force_locked([handle._run], effects)
        if handle._parked is not None:
            core.withdraw_locked(handle, handle._parked.calls, "close", effects)
            core.vault.drop(Turn.restore(handle._parked, core.lock).all_secrets())
        core.move_locked(handle, Cause.CLOSE, why, effects)
        last = handle.last_result
        closed = core.result_locked(handle, End("closed", why))
        if last is None or last.status == "pending":
            handle.last_result = closed
        core.settle_waiters_locked(handle, closed, effects)
        core.remove_locked(handle)
        self._settling.continue_parent_locked(handle, effects)

    # -- whom an interrupt reaches ------------------------------------------------------------

    def _top_locked(self, handle: Handle) -> Handle:
        """Return the highest suspended ancestor that waits, call by call, for `handle`."""
        top = handle
        if handle._parked is None:
            return top
        while top.parent is not None and top.parent._parked is not None:
            if not any(call.child == top.id for call in top.parent._parked.calls):
                break
            top = top.parent
        return top

    def reached_locked(
        self, handle: Handle, halted: Mapping[str, Sequence[CallState]]
    ) -> list[Handle]:
        """Return whom an interrupt of `handle` ends.

        Args:
            handle: In a run that has just been taken.
            halted: The calls of turns that were left under way, by handle id.
        """
        return self._below_locked(self._top_locked(handle), halted)

    def _below_locked(
        self, top: Handle, halted: Mapping[str, Sequence[CallState]] = _NOTHING
    ) -> list[Handle]:
        """Return `top` and, through their unfinished calls, everybody who works for it."""
        found = [top]
        for one in found:
            for call in halted.get(one.id) or self._core.calls_locked(one):
                child = self._core.handles.get(call.child or "")
                if child is not None and call.status != "done":
                    found.append(child)
        return found

    def workers_locked(self, handle: Handle) -> list[Handle]:
        """Return everybody who works for an unfinished call of `handle`."""
        return self._below_locked(handle)[1:]

    # -- how it ends them ---------------------------------------------------------------------

    def let_finish(self) -> None:
        """Give everything that runs the shutdown time."""
        with self._core.lock:
            runs = [one._run for one in self._core.handles.values() if one._run is not None]
        self._let_finish(runs)

    def _let_finish(self, runs: list[Run]) -> None:
        """Give running turns the shutdown time; a queued one will not begin any more."""
        inside = _runs_of_this_thread()
        waited = [run for run in runs if run.is_started and run not in inside]
        self._await_end(waited, self._core.clock, self._core.options.shutdown_ms / 1000)

    def _await_end(self, runs: list[Run], clock: Clock, seconds: float) -> None:
        limit = clock.monotonic() + seconds
        for run in runs:
            self._await(run.handle, lambda run=run: run.is_over, clock, limit)  # type: ignore[misc]

    def _await_closed(self, handles: list[Handle]) -> None:
        """Let another thread finish closing what is below."""
        if _in_on_close.get():
            return  # it may be this thread, further up
        limit = _real.monotonic() + self._core.options.shutdown_ms / 1000 + 1
        for one in handles:
            self._await(one, lambda one=one: one._state is State.CLOSED, _real, limit)  # type: ignore[misc]

    def _await(
        self, handle: Handle, has_happened: Callable[[], bool], clock: Clock, limit: float
    ) -> None:
        """Wait until `has_happened`, or until `clock` reads `limit`."""
        while True:
            changed = Signal()
            with self._core.lock:
                if has_happened():
                    return
                self._core.watch_locked(handle, changed)
            left = limit - clock.monotonic()
            if left <= 0 or not clock.wait(changed, left):
                return

    def _force_locked(self, runs: list[Run], effects: Effects) -> None:
        """Settle what has not ended: its thread is in foreign code, or never began."""
        for run in runs:
            if run.is_over:
                continue
            if run.is_started and not run.claim():
                run.is_stale = True
                run.handle._stale_runs += 1
            end = INTERRUPTED
            if run.cancel.is_late:
                reason = run.cancel.late_reason
                end = End("error", reason, stalls=True, error_type="RunTimeoutError")
            self._settling.settle_locked(run, end, effects)

    def withdraw_unanswerable_locked(self, effects: Effects) -> None:
        """After a fork: no parked handle waits for what only the parent process could give."""
        core = self._core
        dead = [
            one
            for one in core.handles.values()
            if one._parked is not None and core.pending_of_locked(one) is None
        ]
        self._withdraw_locked(dead, effects)

    def _withdraw_locked(self, handles: list[Handle], effects: Effects) -> None:
        """Take back the requests of parked handles; all of them go to `idle`."""
        core = self._core
        for handle in handles:
            parked = handle._parked
            if parked is None:
                continue
            request = core.pending_of_locked(handle)
            kind = "" if request is None else request.kind
            core.withdraw_locked(handle, parked.calls, "interrupt", effects)
            turn = Turn.restore(parked, core.lock)
            core.vault.drop(turn.all_secrets())
            handle._transcript = turn.settled_transcript("interrupted")
            handle._failed = FailedTurn(None, settled_checkpoint(turn, "interrupted"))
            handle._parked = None
            handle._wake_again = False
            why = f'interrupt cancelled pending "{kind}"'
            core.move_locked(handle, Cause.WITHDRAW, why, effects)
            core.publish_locked(handle, INTERRUPTED, effects)


def _attempt(work: Callable[..., object], *args: object) -> list[BaseException]:
    """Do a step of closing that must not keep the next one from being done."""
    try:
        work(*args)
    except BaseException as error:  # noqa: BLE001 - raised once the tree is closed
        return [error]
    return []


def _runs_of_this_thread() -> list[Run]:
    """Return the run whose tool this is, and the runs of the ancestors that wait for it."""
    run = current_run.get()
    found = []
    while run is not None:
        found.append(run)
        parent = run.handle.parent
        run = None if parent is None else parent._run
    return found
