"""Admission: when a run may begin, and who gets the place that a finished one leaves."""

from __future__ import annotations

from collections import deque

from toolnexus.runtime import ledger
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import FailedTurn, Handle
from toolnexus.runtime.run import End, Run
from toolnexus.runtime.state import Cause


class Admission:
    """Lets runs begin within their parent's places and the chain's budgets."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def admit_locked(self, run: Run, effects: Effects) -> None:
        """Let `run` begin, or queue it for one of its parent's places, in order."""
        handle, parent = run.handle, run.handle.parent
        handle._run = run
        run.began = self._core.clock.monotonic()
        if run.is_awaited:
            effects.promise(run)
        if parent is not None:
            limit = ledger.max_concurrent(parent)
            if parent._running_children >= limit:
                if parent._queue is None:
                    parent._queue = deque()
                parent._queue.append(run)
                self._core.note_locked(
                    handle, f"wake QUEUED (parent concurrency {limit})", effects
                )
                return
        self._start_locked(run, effects)

    def _start_locked(self, run: Run, effects: Effects) -> bool:
        """Start a run that has a place; False where the budget refuses it."""
        handle = run.handle
        if run.cause is Cause.WAKE:
            spent = ledger.exhausted(handle, self._core.clock.monotonic())
            if spent is not None:
                self._refuse_locked(run, spent.limit, effects)
                return False
            run.drained, handle._inbox = handle._inbox, []
        if handle.parent is not None:
            handle.parent._running_children += 1
        run.is_started = True
        why = "wake" if run.cause is Cause.WAKE else "replay"
        self._core.move_locked(handle, run.cause, why, effects)
        self._core.tell_watchers_locked(handle, effects)
        if not run.is_awaited:
            effects.run(run)
        return True

    def _refuse_locked(self, run: Run, spent: str, effects: Effects) -> None:
        handle = run.handle
        run.is_over = True
        handle._run = None
        handle._failed = FailedTurn(run.prompt, None, stalls=True)
        self._core.note_locked(
            handle, f"wake refused SETTLED incomplete (budget {spent})", effects
        )
        end = End("incomplete", ledger.spent_text(spent), spent)
        self._core.publish_locked(handle, end, effects)

    def release_place_locked(self, parent: Handle | None, effects: Effects) -> None:
        """Give a finished child's place to the next queued one that can use it."""
        if parent is None:
            return
        parent._running_children -= 1
        limit = ledger.max_concurrent(parent)
        while parent._queue and parent._running_children < limit:
            following = parent._queue.popleft()
            self._core.note_locked(following.handle, "DEQUEUED wake (slot freed)", effects)
            self._start_locked(following, effects)
