"""Settling: how a run ends, and what its end sets going."""

from __future__ import annotations

from functools import partial

from toolnexus.checkpoint import Checkpoint
from toolnexus.client.tracing import NO_SPAN, end_run
from toolnexus.client.turn import Turn, settled_checkpoint, stalled_checkpoint
from toolnexus.messages import Usage
from toolnexus.runtime import ledger
from toolnexus.runtime.admission import Admission
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import FailedTurn, Handle
from toolnexus.runtime.run import End, Run
from toolnexus.runtime.state import Cause, State
from toolnexus.suspension import Answer


class Settling:
    """Ends runs: commits or undoes the turn, tells the waiters, wakes the parent."""

    def __init__(self, core: Core, admission: Admission) -> None:
        self._core = core
        self._admission = admission

    def settle_locked(self, run: Run, end: End, effects: Effects) -> None:
        """End `run`, and set its parent going if that waited for it.

        The first to call this for a run decides; nobody else may.
        """
        self._end_locked(run, end, effects)
        self._wake_again_locked(run, end, effects)
        self.continue_parent_locked(run.handle, effects)

    def _end_locked(self, run: Run, end: End, effects: Effects) -> None:
        handle = run.handle
        run.is_over = True
        handle._run = None
        if end.status == "pending":
            self._park_locked(run, effects)
        else:
            self._leave_locked(run, end, effects)
        run.asking = None
        self._core.publish_locked(handle, end, effects)
        self._meter_locked(run, end, effects)
        effects.add(end_run, run.span, end.status, end.error_type)
        if run.is_started:
            self._admission.release_place_locked(handle.parent, effects)
        elif handle.parent is not None:
            handle.parent.unqueue(run)

    def _park_locked(self, run: Run, effects: Effects) -> None:
        handle = run.handle
        assert run.turn is not None  # noqa: S101 - a turn that parks has begun
        self._core.park_locked(handle, run.turn.checkpoint(), effects)
        request = self._core.pending_of_locked(handle)
        kind, prompt = ("", "") if request is None else (request.kind, request.prompt)
        self._core.move_locked(handle, Cause.SUSPEND, f'pending "{kind}": {prompt}', effects)

    def _leave_locked(self, run: Run, end: End, effects: Effects) -> None:
        """Commit the transcript, or undo the turn, and go to `idle`."""
        handle, turn = run.handle, run.turn
        why = self._why_locked(run, end)
        if turn is not None:
            self._core.withdraw_locked(handle, turn.calls, "interrupt", effects)
            if not end.stalls:
                self._core.vault.drop(turn.all_secrets())
        if run.asking is not None:
            gone = Answer(run.asking.id, ok=False, reason="cancelled")
            self._core.settle_request_locked(run.asking, gone, "interrupt", effects)
        if end.status == "done" and turn is not None:
            handle._transcript = turn.messages
            handle._failed = None
        elif turn is None or turn.turns == 0:
            # Nothing was said yet: the turn leaves nothing behind, and a retry begins anew.
            handle._inbox[:0] = run.drained
            handle._failed = FailedTurn(run.prompt, None, end.stalls)
        else:
            reason = "interrupted" if end.status == "interrupted" else "the turn failed"
            handle._transcript = turn.settled_transcript(reason)
            handle._failed = FailedTurn(run.prompt, _resumable(turn, end), end.stalls)
        if handle._state is State.SUSPENDED:
            self._core.move_locked(handle, Cause.WITHDRAW, why, effects)
        elif handle._state is State.RUNNING:
            cause = Cause.INTERRUPT if end.status == "interrupted" else Cause.FINISH
            self._core.move_locked(handle, cause, why, effects)

    def _why_locked(self, run: Run, end: End) -> str:
        """Return what the trace says of an end that is no suspension."""
        handle = run.handle
        if end.status == "done" and run.turn is not None:
            turn = run.turn
            return f"done, turns={turn.turns}, tokens={turn.usage.total_tokens}"
        if end.status == "incomplete":
            value = handle.budget.max_turns
            if end.limit != "maxTurns":
                spent = ledger.exhausted(handle, self._core.clock.monotonic())
                value = None if spent is None else spent.allowed
            return f"INCOMPLETE at {end.limit} {value}"
        if end.status == "interrupted":
            if handle._state is State.SUSPENDED and run.asking is not None:
                return f'interrupt cancelled pending "{run.asking.kind}"'
            return "interrupted; inbox intact"
        return f"error: {end.text}"

    def _meter_locked(self, run: Run, end: End, effects: Effects) -> None:
        turn = run.turn
        emit = partial(
            self._core.meter_of(run.handle).emit,
            "run",
            (self._core.clock.monotonic() - run.began) * 1000,
            model=run.model or self._core.model_of(run.handle),
            status=end.status,
            usage=Usage() if turn is None else turn.usage,
            error=end.text if end.status == "error" else None,
        )
        effects.add(emit)

    def _wake_again_locked(self, run: Run, end: End, effects: Effects) -> None:
        """Start the turn that a bare wake of a running handle asked for."""
        handle = run.handle
        if end.status == "pending":
            return  # the turn is not over yet
        again, handle._wake_again = handle._wake_again, False
        # After a failure that a retry can finish, a fresh turn would give that up.
        is_over = end.status in ("done", "incomplete") and not end.stalls
        if not again or not handle._inbox or handle._is_closing:
            return
        if is_over:
            handle._event_log = None
            self._admission.admit_locked(Run(handle, Cause.WAKE), effects)
        else:
            self._core.note_locked(handle, f"bare wake DROPPED (turn {end.status})", effects)

    def continue_parent_locked(self, child: Handle, effects: Effects) -> None:
        """Set the parent going if its halted `task` call waited for `child`.

        Decided in the same lock hold as the child's end, so no wake-up is lost however two
        children end.
        """
        parent = child.parent
        if parent is None or parent._run is not None or parent._is_closing:
            return
        halted = parent._parked
        if halted is None and parent._failed is not None and not self._core.is_stalled(child):
            halted = parent._failed.checkpoint
        if halted is None:
            return
        if any(call.child == child.id and call.status != "done" for call in halted.calls):
            self.replay_locked(parent, halted, effects)

    def replay_locked(
        self,
        handle: Handle,
        halted: Checkpoint,
        effects: Effects,
        *,
        is_retry: bool = False,
        is_awaited: bool = False,
    ) -> Run:
        """Go on with a halted turn.

        Args:
            handle: Suspended, or idle after a failed turn.
            halted: Where the turn stands.
            effects: Collects what follows.
            is_retry: Whether children that failed are retried as well.
            is_awaited: Whether the caller takes the run over, also once a queued one starts.
        """
        # Whatever can fail comes before the first change.
        turn = Turn.restore(halted, self._core.lock)
        if is_retry:
            turn.retry_stalled()
        run = Run(
            handle,
            Cause.REPLAY,
            prompt=handle._failed.prompt if handle._failed is not None else None,
            turn=turn,
            is_retry=is_retry,
            is_awaited=is_awaited,
        )
        if handle._parked is not None:
            why = "Answer accepted, checkpoint restored"
            self._core.move_locked(handle, Cause.ACCEPT, why, effects)
        handle._parked = handle._failed = None
        self._admission.admit_locked(run, effects)
        return run

    def after_fork_locked(self, effects: Effects) -> None:
        """Go on in a forked child: what ran belongs to the parent process and ends here."""
        core = self._core
        for handle in core.handles.values():
            # Their locks may be held by threads that do not exist here.
            handle._waiters = handle._watchers = handle._queue = None
            handle._stale_runs = 0
            handle._running_children = 0
            # Whoever was closing it is a thread of the parent process.
            handle._is_closing = False
        for handle in core.handles.values():
            run = handle._run
            if run is None:
                continue
            run.is_started = False
            run.span = NO_SPAN  # the parent process ends it
            if run.turn is not None:
                run.turn.lock = core.lock
            # Ancestors are not set going: their work goes on in the parent process.
            self._end_locked(run, End("interrupted", "forked"), effects)


def _resumable(turn: Turn, end: End) -> Checkpoint:
    """Return where a retry goes on: finished calls stay finished, lost ones are settled."""
    reason = "interrupted" if end.status == "interrupted" else "the turn failed"
    keep = stalled_checkpoint if end.stalls else settled_checkpoint
    return keep(turn, reason)
