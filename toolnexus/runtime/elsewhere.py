"""Elsewhere: how far other processes are with the runs that they have."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from toolnexus.clock import RealClock, Signal
from toolnexus.errors import StoreError
from toolnexus.results import TaskResult
from toolnexus.runtime.archive import CLOSED, Archive
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.shells import Shells
from toolnexus.runtime.state import State
from toolnexus.runtime.stored import is_busy, readable_head, turn_in
from toolnexus.stores.base import RunStore

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.05
"""How often a process looks how far another one is."""

# What nobody waits for any more is not kept.
_Counts: TypeAlias = "WeakKeyDictionary[Future[TaskResult], int]"

# Other processes' time is not virtual.
_real: Final = RealClock()


class Elsewhere:
    """Looks into the store for what others have written. Called without the lock."""

    def __init__(self, core: Core, store: RunStore, archive: Archive, shells: Shells) -> None:
        self._core = core
        self._store = store
        self._archive = archive
        self._shells = shells
        self._name = core.options.name
        # Handles whose results are waited for: each future with how many there had been when it
        # was given. Guarded by the runtime's lock.
        self._watched: dict[str, tuple[Handle, _Counts]] = {}

    @property
    def is_watched(self) -> bool:
        """Whether anybody waits for a result that another process may give."""
        return bool(self._watched)

    def is_under_way(self, handle_id: str, request_id: str, turns: frozenset[str]) -> bool:
        """Whether an answer is on its way to a handle, or one of the turns it lets go on is.

        As the store has it: for runs of other processes.
        """
        request = self._store.request(self._name, request_id)
        waits = () if request is None else request.waits
        if any(wait.handle_id == handle_id for wait in waits):
            return True
        while "/" in handle_id:
            record = self._store.handle(self._name, handle_id)
            head = {} if record is None else readable_head(record)
            if is_busy(head) and turn_in(head).get("run") in turns:
                return True
            handle_id = handle_id.rpartition("/")[0]
        return False

    def is_over(self, handle: Handle) -> bool:
        """Whether a handle is closed, or was pruned; then that is known of it here."""
        record = self._store.handle(self._name, handle.id)
        if record is not None and record.state != State.CLOSED.value:
            return False
        self._shells.let_end(handle)
        return True

    def watch_locked(self, handle: Handle, future: Future[TaskResult]) -> None:
        """Tell `future` also of a result that `handle` has in another process."""
        if handle.parent is not None:
            _, waiting = self._watched.setdefault(handle.id, (handle, WeakKeyDictionary()))
            waiting[future] = handle._ends

    def give_up_locked(self, effects: Effects) -> None:
        """Tell everybody who waits that the runtime is closed."""
        watched, self._watched = self._watched, {}
        for handle, _ in watched.values():
            self._core.settle_waiters_locked(handle, CLOSED, effects)

    def look(self) -> None:
        """Tell the waiters of handles what these came to in other processes."""
        with self._core.lock:
            watched = [handle for handle, _ in self._watched.values()]
        for handle in watched:
            try:
                self._look_at(handle)
            except StoreError as error:  # it hides nothing of the others
                logger.warning("what became of %s cannot be seen now: %s", handle.id, error)

    def _look_at(self, handle: Handle) -> None:
        with self._core.lock:
            is_watched = self._forget_gone_locked(handle)
        if not is_watched or handle._tree is not None:
            return
        record = self._store.handle(self._name, handle.id)
        is_over = record is None or record.state == State.CLOSED.value
        if record is not None:
            self._shells.refresh(handle, record)
            if not is_over and is_busy(readable_head(record)):
                return  # it goes on already
        if not is_over and not self._told_by(handle, handle._ends):
            return
        result = self._archive.standing(handle)
        if result is None:
            return  # it goes on by now, or its question is answered
        with self._core.deciding() as effects:
            if handle._tree is not None:
                return
            for future in self._told_by(handle, None if is_over else handle._ends):
                self._core.forget_future_locked(handle, future)
                effects.settle(future, result)
            self._core.tell_watchers_locked(handle, effects)

    def _forget_gone_locked(self, handle: Handle) -> bool:
        """Forget who waits no more; say whether anybody is left."""
        known = self._watched.get(handle.id)
        if known is None:
            return False
        waiting = set(handle._waiters or ())
        for future in list(known[1]):
            if future not in waiting:
                del known[1][future]
        if not known[1]:
            del self._watched[handle.id]
        return bool(known[1])

    def _told_by(self, handle: Handle, ends: int | None) -> list[Future[TaskResult]]:
        """Return who is told of a result when there have been `ends` of them.

        All but those who were given their future since; with None, for the handle is closed,
        everybody.
        """
        with self._core.lock:
            known = self._watched.get(handle.id)
            return [] if known is None else [f for f, had in known[1].items() if had != ends]

    def wait_a_little(self) -> None:
        """Wait before another look at what another process does."""
        _real.wait(Signal(), POLL_SECONDS)
