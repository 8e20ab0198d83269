"""Loading: a run out of the store, into the tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from toolnexus.checkpoint import CallState
from toolnexus.clock import RealClock, Signal
from toolnexus.errors import ConfigError
from toolnexus.runtime.book import Place
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.run import End
from toolnexus.runtime.shells import Shells
from toolnexus.runtime.state import State
from toolnexus.runtime.stored import Halted, refill
from toolnexus.runtime.tree import HeldElsewhere, Tree
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import RequestRecord, StoredHandle, Taken, Wait

_SHORT_SECONDS: Final = 0.005
"""How often a process looks again for a run that another one is about to give back."""

_SHORT_LIMIT: Final = 1.0
"""How long it does so: a process that has died in between keeps the run for its lease."""

# Other processes' time is not virtual.
_real: Final = RealClock()


class Loading:
    """Takes leases and fills trees."""

    def __init__(self, core: Core, store: RunStore, shells: Shells) -> None:
        self._core = core
        self._store = store
        self._shells = shells
        self._name = core.options.name
        self._lease_ms = core.options.lease_ms

    def take(self, run_id: str, owner: str, *, takes_busy: bool) -> Taken:
        """Take a run.

        Raises:
            HeldElsewhere: Somebody else has it.
            ConfigError: It is gone.
            StoreError: It cannot be read.
        """
        limit: float | None = None
        while True:
            found = self._store.take(
                self._name, run_id, owner, self._lease_ms, takes_busy=takes_busy
            )
            if isinstance(found, Taken):
                return found
            if found is None:
                raise ConfigError(f"{run_id} is not in the store; it may have been pruned")
            now = _real.monotonic()
            limit = now + _SHORT_LIMIT if limit is None else limit
            if found.owner is None or found.is_busy or now > limit:
                raise HeldElsewhere(run_id, found.owner)
            # Somebody is about to give it back: a verb of another process is at it.
            _real.wait(Signal(), _SHORT_SECONDS)

    def with_closed_children(self, live: Sequence[StoredHandle]) -> list[StoredHandle]:
        """Return what is live of a run, and the closed children that its calls still name."""
        stored = list(live)
        known = {one.record.id for one in stored}
        for one in live:
            for call in one.calls.values():
                child = call.get("child") if isinstance(call, dict) else None
                if isinstance(child, str) and child not in known:
                    closed = self._store.load_handle(self._name, child, {"messages"})
                    if closed is not None:
                        stored.append(closed)
        return stored

    def fill_locked(
        self, tree: Tree, stored: Iterable[StoredHandle], requests: Sequence[RequestRecord]
    ) -> list[tuple[Handle, Halted]]:
        """Put a run into the tree; return the turns that were under way."""
        halted = self._fill_locked(tree, stored)
        tree.requests = frozenset(one.id for one in requests)
        self._reopen_locked(tree, requests)
        self._complete_results_locked(tree)
        return halted

    def _fill_locked(
        self, tree: Tree, stored: Iterable[StoredHandle]
    ) -> list[tuple[Handle, Halted]]:
        halted = []
        for one in stored:
            handle = self._shells.of_record_locked(one.record)
            marks, under_way = refill(handle, one)
            if handle._state is State.CLOSED:
                handle._transcript = []
                self._core.keep_closed_locked(handle)
                continue
            handle._tree = tree
            tree.handles[handle.id] = handle
            tree.marks[handle.id] = marks
            self._core.attach_locked(handle)
            if under_way is not None:
                halted.append((handle, under_way))
        return halted

    def _reopen_locked(self, tree: Tree, requests: Iterable[RequestRecord]) -> None:
        """Open in the book what is open in the store."""
        waits: dict[str, list[tuple[CallState, Wait]]] = {}
        for wait in (wait for one in requests for wait in one.waits):
            marks = tree.marks.get(wait.handle_id)
            call = marks.calls[wait.call] if marks and wait.call < len(marks.calls) else None
            if call is None or call.request is None or call.request.id != wait.request_id:
                continue
            place = Place(tree.handles[wait.handle_id], wait.call)
            self._core.book.reopen(place, call.request)
            waits.setdefault(wait.handle_id, []).append((call, wait))
        for handle_id, found in waits.items():
            ordered = tuple(sorted(found, key=lambda one: one[1].call))
            tree.marks[handle_id] = attrs.evolve(tree.marks[handle_id], waits=ordered)

    def _complete_results_locked(self, tree: Tree) -> None:
        """Say in the results of parked handles what they wait for: that is not stored twice."""
        for handle in tree.handles.values():
            if handle._parked is not None and self._core.pending_of_locked(handle) is not None:
                handle.last_result = self._core.result_locked(handle, End("pending"))
