"""Reading: what can be seen of a runtime, none of which changes anything."""

from __future__ import annotations

from datetime import timedelta

import attrs

from toolnexus import codec
from toolnexus.errors import ConfigError
from toolnexus.grants import Grant, is_under
from toolnexus.messages import Message
from toolnexus.runtime.audit import AuditRecord
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import Handle, HandleView, PendingRequest, view_of
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.runtime.turns import Turns
from toolnexus.runtime.views import open_requests, waiting_records
from toolnexus.stores.outputs import OutputStore, ReadOutput


class Reading:
    """The verbs of `AgentRuntime` that only look. In memory each is consistent in itself."""

    options: RuntimeOptions
    _core: Core
    _turns: Turns

    @property
    def output_store(self) -> OutputStore:
        """Where the whole of long tool results is kept; `ReadOutput` reads from it."""
        return self._turns.limits.store

    def read_output(self) -> ReadOutput:
        """Return the tool with which a model reads what of a long result it was not shown."""
        return ReadOutput(self.output_store, self.options.max_result_chars)

    def inspect(self, handle: Handle | str) -> HandleView | None:
        """Return one handle as it is now, by handle or id; None where the id is unknown."""
        core = self._core
        handle_id = handle if isinstance(handle, str) else core.own(handle).id
        if core.keeper is not None and handle_id != core.root.id:
            view = core.keeper.archive.view(handle_id)
            return None if view is None else self._as_here(view)
        with core.lock:
            if isinstance(handle, str):
                found = core.find_locked(handle)
                if found is None:
                    return None
            else:
                found = core.own(handle)
            return view_of(found, core.pending_of_locked(found))

    def handle(self, handle_id: str) -> Handle | None:
        """Return the handle with that id, live or among the last closed; None else.

        With a store: of any process, also closed, until it is pruned.

        Raises:
            ConfigError: Nobody here knows its agent, or that is no id.
        """
        if not isinstance(handle_id, str):
            raise ConfigError(f"handle takes an id such as 'root/clerk.1', not {handle_id!r}")
        keeper = self._core.keeper
        with self._core.lock:
            found = self._core.find_locked(handle_id)
        if found is not None or keeper is None:
            return found
        return keeper.shells.find(handle_id)

    def pending(
        self,
        kind: str | None = None,
        older_than: float | timedelta | None = None,
        under: Handle | str | None = None,
        limit: int | None = None,
    ) -> tuple[PendingRequest, ...]:
        """Return open requests: oldest first, those of one turn in call order.

        Args:
            kind: Only those of this kind.
            older_than: Only those that were asked longer ago; seconds or a timedelta.
            under: Only those of this handle, or the one with this id, and what is below it.
            limit: At most so many; a store may hold very many.
        """
        below = self._id_of(under)
        if self._core.keeper is None:
            return open_requests(self._core, kind, older_than, below)[:limit]
        inside = None if below == self._core.root.id else below
        return self._core.keeper.archive.pending(kind, older_than, inside, limit)

    def audit(self, under: Handle | str | None = None) -> tuple[AuditRecord, ...]:
        """Return what was asked and what came of it, oldest first.

        The last `audit_limit` requests; with a store all that were not pruned.

        Args:
            under: Only what this handle, by itself or by id, and those below it have asked.
        """
        inside = self._id_of(under)
        if self._core.keeper is not None:
            below = None if inside == self._core.root.id else inside
            return self._core.keeper.archive.audit(below)
        with self._core.lock:
            records = self._core.audit.records(waiting_records(self._core))
        return tuple(one for one in records if one.is_under(inside))

    def grants(self) -> tuple[Grant, ...]:
        """Return the standing grants that have not expired, oldest first."""
        now = self._core.clock.now()
        if self._core.keeper is not None:
            grants = tuple(self._core.keeper.archive.grants())
        else:
            with self._core.lock:
                grants = tuple(self._core.grants.values())
        return tuple(one for one in grants if not one.has_ended(now))

    def transcript(self, handle: Handle) -> tuple[Message, ...]:
        """Return what completed turns have left of the agent's conversation.

        While a turn is under way or parked this is as it was before that turn.
        """
        handle = self._core.own(handle)
        if self._core.keeper is not None and handle.parent is not None:
            return tuple(self._core.keeper.archive.transcript(handle.id))
        with self._core.lock:
            messages = tuple(handle._transcript)
        return tuple(codec.copy(message) for message in messages)

    def metrics(self) -> str:
        """Return what this runtime has counted, as Prometheus text."""
        return self._core.counters.text()

    def trace(self) -> tuple[str, ...]:
        """Return the last `trace_limit` moves and events, oldest first."""
        with self._core.lock:
            return tuple(self._core.trace)

    def trace_has(self, fragment: str) -> bool:
        """Say whether a kept trace line contains `fragment`."""
        return any(fragment in line for line in self.trace())

    def _as_here(self, view: HandleView) -> HandleView:
        """Return what a store says, and a turn that this process is about to write of."""
        with self._core.lock:
            here = self._core.handles.get(view.id)
            is_busy = view.is_busy or (here is not None and here._run is not None)
        return attrs.evolve(view, is_busy=is_busy)

    def _id_of(self, handle: Handle | str | None) -> str:
        if handle is None:
            return self._core.root.id
        return handle if isinstance(handle, str) else self._core.own(handle).id

    # last: shadows the builtin in this class body
    def list(self, under: Handle | str | None = None) -> tuple[HandleView, ...]:
        """Return the live handles below the root, parents before children.

        As they are at one moment; with a store each as it was when it was read, for the store
        is read page by page.

        Args:
            under: Only this handle, or the one with this id, and those below it.
        """
        core, inside = self._core, self._id_of(under)
        if core.keeper is not None:
            below = None if inside == core.root.id else inside
            return tuple(map(self._as_here, core.keeper.archive.views(below)))
        with core.lock:
            live = core.subtree_locked(core.root)[1:]
            found = [one for one in live if is_under(one.id, inside)]
            return tuple(view_of(one, core.pending_of_locked(one)) for one in found)
