"""Recovering: going on with turns that were under way when their process ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from toolnexus.client.recovering import recover_calls
from toolnexus.client.turn import Turn
from toolnexus.grants import is_under
from toolnexus.runtime import letters
from toolnexus.runtime.admission import Admission
from toolnexus.runtime.closing import Closing
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import Handle, surfaced
from toolnexus.runtime.keeping import Keeper
from toolnexus.runtime.run import INTERRUPTED, End, Run
from toolnexus.runtime.settling import Settling
from toolnexus.runtime.state import Cause
from toolnexus.runtime.stored import Halted
from toolnexus.runtime.tree import CLOSE, HeldElsewhere, RuntimeClosed, Stop, Tree
from toolnexus.stores.records import Mail

logger = logging.getLogger(__name__)


class Recovering:
    """Takes over what nobody is at any more."""

    def __init__(
        self,
        core: Core,
        admission: Admission,
        settling: Settling,
        closing: Closing,
        keeper: Keeper,
    ) -> None:
        self._core = core
        self._closing = closing
        self._admission = admission
        self._settling = settling
        self._keeper = keeper

    def recover(self) -> tuple[str, ...]:
        """Take over runs that were left in the middle. See `AgentRuntime.recover`."""
        keeper, taken = self._keeper, list[str]()
        keeper.owing.pay()
        for run_id in keeper.store.abandoned(keeper.name):
            try:
                tree, mail = keeper.pin_unread(run_id, takes_busy=True)
            except HeldElsewhere:
                continue  # another process was faster
            except RuntimeClosed:
                break
            except Exception:
                logger.exception("%s cannot be recovered now", run_id)
                continue
            taken.append(run_id)
            try:
                self._see_to(tree, mail)
            except Exception:
                logger.exception("what has come for %s cannot be seen to now", run_id)
        return tuple(taken)

    def _see_to(self, tree: Tree, mail: Mail | None) -> None:
        keeper = self._keeper
        try:
            keeper.hand_over(keeper.take_letters(tree, mail))
        finally:
            keeper.unpin(tree)

    def go_on(
        self,
        tree: Tree,
        halted: Sequence[tuple[Handle, Halted]],
        mail: Mail,
        stopping: Stop | None,
    ) -> Callable[[Effects], None]:
        """Return what lets the turns of a run go on, on the workers; to be called locked.

        Args:
            tree: The run.
            halted: Its turns.
            mail: What has come for it; turns that are to stop by that are at their end.
            stopping: What it was taken for to be stopped; None where it goes on.
        """
        assert tree.lease is not None  # noqa: S101 - it was just taken
        limit = self._core.options.max_recoveries
        count = tree.lease.recoveries
        ending = [handle for handle, one in halted if one.is_closing]
        # Before the lock: tools say what becomes of calls that were in flight.
        stops = [*letters.stopping(mail), *([] if stopping is None else [stopping])]
        stopped = self._stopped(tree, halted, stops) if stops else set[str]()
        ended, runs = list[Run](), list[Run]()
        for handle, one in halted:
            if not one.is_closing:
                goes_on = handle.id not in stopped
                (runs if goes_on else ended).append(self._run(handle, one, goes_on=goes_on))

        def begin_locked(effects: Effects) -> None:
            tree.doomed.update(one.id for one in ending)
            for handle in ending:
                if handle.parent not in ending:
                    effects.add(partial(self._closing.close, handle, force=True))
            self._end_locked(ended, INTERRUPTED, effects)
            if count > limit:
                text = (
                    f"given up: its process ended in the middle of this turn {limit + 1} times"
                )
                self._end_locked(runs, End("error", text, stalls=True), effects)
                return
            for run in runs:
                text = f"recovered ({count} of {limit})" if count else "goes on"
                self._core.note_locked(run.handle, text, effects)
                self._admission.admit_locked(run, effects)

        return begin_locked

    def _stopped(
        self, tree: Tree, halted: Sequence[tuple[Handle, Halted]], stops: Sequence[Stop]
    ) -> set[str]:
        """Return the ids of the handles whose turns end here."""
        calls = {
            handle.id: one.checkpoint.calls
            for handle, one in halted
            if one.checkpoint is not None
        }
        found: set[str] = set()
        with self._core.lock:
            for stop in stops:
                handle = tree.handles.get(stop.handle_id)
                if stop.verb == CLOSE:
                    found.update(i for i in tree.handles if is_under(i, stop.handle_id))
                elif handle is not None:
                    reached = self._closing.reached_locked(handle, calls)
                    found.update(one.id for one in reached)
        return found

    def _run(self, handle: Handle, halted: Halted, *, goes_on: bool) -> Run:
        saved = halted.checkpoint
        if saved is None:
            return Run(handle, Cause.WAKE, prompt=halted.prompt, is_retry=halted.is_retry)
        turn = Turn.restore(saved, self._core.lock, keeps_in_flight=goes_on)
        if goes_on:
            recover_calls(
                turn,
                {one.name: one for one in handle.definition.tools},
                surface=lambda request: surfaced(request, handle),
                clock=self._core.clock,
            )
        return Run(handle, Cause.REPLAY, turn=turn, is_retry=halted.is_retry)

    def _end_locked(self, runs: Sequence[Run], end: End, effects: Effects) -> None:
        """End turns that do not go on. Where `end` stalls, a retry tries once more."""
        for run in runs:
            run.handle._run = run
        for run in reversed(runs):
            if not run.is_over:
                self._settling.settle_locked(run, end, effects)
