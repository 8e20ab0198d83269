"""Losing: a run that this process has no more, whatever of it was under way."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from toolnexus.client.tracing import end_run
from toolnexus.errors import LeaseLost, StoreError
from toolnexus.messages import Status
from toolnexus.runtime.admission import Admission
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects, lost_result
from toolnexus.runtime.owing import Owing
from toolnexus.runtime.run import throw
from toolnexus.runtime.shells import Shells
from toolnexus.runtime.tree import Tree

logger = logging.getLogger(__name__)


class Losing:
    """Drops runs. What of them is written goes on from the store."""

    def __init__(
        self,
        core: Core,
        admission: Admission,
        shells: Shells,
        owing: Owing,
        trees: dict[str, Tree],
    ) -> None:
        """Have nothing dropped yet.

        Args:
            core: The runtime's.
            admission: Gives the places of what is dropped to others.
            shells: What is left of their handles.
            owing: Gives their leases back.
            trees: The runs of this process, guarded by the runtime's lock.
        """
        self._core = core
        self._admission = admission
        self._shells = shells
        self._owing = owing
        self._trees = trees

    def give_up(self, trees: Iterable[Tree], error: BaseException) -> None:
        """Drop runs in the midst of whose decision this thread was stopped."""
        fallout = self._core.effects(is_written=False)
        self.drop(list(trees), error, fallout)
        fallout.perform()

    def lose(self, trees: Iterable[Tree]) -> None:
        """Drop runs that another process has taken over."""
        fallout = self._core.effects(is_written=False)
        with self._core.lock:
            for tree in [one for one in trees if one.is_open]:
                self.drop_locked(tree, LeaseLost((tree.run_id,)), fallout)
        fallout.perform()

    def drop(self, trees: list[Tree], error: BaseException, fallout: Effects) -> None:
        """Give up what could not be written: for this process it is over."""
        fault = error if isinstance(error, StoreError) else StoreError(f"stopped: {error!r}")
        taken = error.run_ids if isinstance(error, LeaseLost) else ()
        with self._core.lock:
            for tree in trees:
                if tree.fault is not None:
                    continue
                self.drop_locked(tree, fault, fallout)
                if tree.lease is not None and tree.run_id not in taken:
                    self._owing.add_locked(tree.lease)
        logger.error("%s: %s", ", ".join(one.run_id for one in trees), fault)

    def drop_locked(
        self, tree: Tree, fault: StoreError, effects: Effects, status: Status = "error"
    ) -> None:
        """Stop what is under way in a run, and tell who waits for it."""
        tree.fault, tree.is_open = fault, False
        result = lost_result(fault, status)
        for handle in tree.of_its_own():
            run = handle._run
            if run is not None:
                run.is_over = run.is_stopping = True
                effects.add(throw, run.cancel, "interrupted")
                effects.add(end_run, run.span, "error", "StoreError")
                if run.is_started and handle.depth == 1:
                    self._admission.release_place_locked(handle.parent, effects)
                elif handle.parent is not None:
                    handle.parent.unqueue(run)
                if status == "interrupted":  # for good: the runtime is closed
                    handle.last_result = result
            handle._run = None
            handle._stale_runs = 0
            self._shells.reopen_locked(handle)
            self._core.settle_waiters_locked(handle, result, effects)
        effects.leave(tree)  # it may have got the place of one that was dropped before it
        self.forget_locked(tree)

    def forget_locked(self, tree: Tree) -> None:
        """Have a run no more: what is left of its handles is their shells."""
        if self._trees.get(tree.run_id) is tree:
            del self._trees[tree.run_id]
        tree.is_open = False
        for handle in tree.of_its_own():
            self._core.book.forget(handle)
            self._core.detach_locked(handle)
