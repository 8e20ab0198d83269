"""Elsewhere: how far other processes are with the runs that they have."""

from __future__ import annotations

from typing import Final

from toolnexus.clock import RealClock, Signal
from toolnexus.runtime.archive import CLOSED, Archive
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.shells import Shells
from toolnexus.runtime.state import State
from toolnexus.runtime.stored import is_busy, readable_head
from toolnexus.stores.base import RunStore

POLL_SECONDS: Final = 0.05
"""How often a process looks how far another one is."""

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
        # Handles whose results are waited for, each with how many it had by then. Guarded by
        # the runtime's lock.
        self._watched: dict[str, tuple[Handle, int]] = {}

    @property
    def is_watched(self) -> bool:
        """Whether anybody waits for a result that another process may give."""
        return bool(self._watched)

    def is_under_way(self, handle_id: str, request_id: str | None = None) -> bool:
        """Whether a turn of a handle or of one above it is under way, or an answer on its way.

        As the store has it: for runs of other processes.
        """
        if request_id is not None:
            request = self._store.request(self._name, request_id)
            if request is not None and request.waits:
                return True
        while "/" in handle_id:
            record = self._store.handle(self._name, handle_id)
            if record is not None and is_busy(readable_head(record)):
                return True
            handle_id = handle_id.rpartition("/")[0]
        return False

    def watch_locked(self, handle: Handle) -> None:
        """Tell the waiters of `handle` also of a result that it has in another process."""
        if handle.parent is None:
            return
        known = self._watched.get(handle.id)
        if known is None or len(handle._waiters or ()) < 2:
            # Nobody else waits: what an earlier one has waited for may have come long ago.
            self._watched[handle.id] = handle, handle._ends

    def give_up_locked(self, effects: Effects) -> None:
        """Tell everybody who waits that the runtime is closed."""
        watched, self._watched = self._watched, {}
        for handle, _ in watched.values():
            self._core.settle_waiters_locked(handle, CLOSED, effects)

    def look(self) -> None:
        """Tell the waiters of handles what these came to in other processes."""
        with self._core.lock:
            for handle_id, (handle, _) in list(self._watched.items()):
                if not handle._waiters:
                    del self._watched[handle_id]
            watched = list(self._watched.values())
        for handle, ends in watched:
            if handle._tree is None:
                self._look_at(handle, ends)

    def _look_at(self, handle: Handle, ends: int) -> None:
        record = self._store.handle(self._name, handle.id)
        is_over = record is None or record.state == State.CLOSED.value
        if record is not None:
            self._shells.refresh(handle, record)
        if handle._ends == ends and not is_over:
            return
        result = self._archive.standing(handle)
        if result is None:
            return  # it goes on already, or its question is answered
        with self._core.deciding() as effects:
            if handle._tree is None:
                self._core.settle_waiters_locked(handle, result, effects)

    def wait_a_little(self) -> None:
        """Wait before another look at what another process does."""
        _real.wait(Signal(), POLL_SECONDS)
