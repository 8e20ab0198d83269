"""Shells: the one object that stands for a stored handle in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from toolnexus.budget import EMPTY_BUDGET, Budget
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError, StoreError
from toolnexus.runtime.definition import AgentDef
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.snapshots import head_of
from toolnexus.runtime.state import State
from toolnexus.runtime.stored import (
    readable_head,
    reading,
    restore_counts,
    restored_result,
    transcript_of,
)
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import HandleRecord

if TYPE_CHECKING:
    from toolnexus.runtime.core import Core


class Shells:
    """Handles of runs that may be anybody's, by id, for as long as somebody refers to them."""

    def __init__(self, core: Core, store: RunStore, name: str) -> None:
        self._core = core
        self._store = store
        self._name = name
        # -- guarded by the runtime's lock ------------------------------------------------
        self._shells: WeakValueDictionary[str, Handle] = WeakValueDictionary()
        # Agents that were given as definitions, for those that no registry has; None where
        # several have the same name, and a record does not tell them apart.
        self._given: dict[str, AgentDef | None] = {}

    def add_locked(self, handle: Handle) -> None:
        """Take in a handle that was made here."""
        given = handle.definition
        is_first = self._given.setdefault(given.name, given) is given
        if not is_first:
            self._given[given.name] = None
        self._shells[handle.id] = handle

    def start_run(self, definition: AgentDef, budget: Budget) -> Handle | None:
        """Make a run in the store; it is nobody's until somebody needs it.

        Returns:
            None where the root has as many children as it may have.
        """
        core = self._core
        fresh = Handle(
            core, f"{core.root.id}/{definition.name}.0", definition, core.root, budget
        )
        run_id = self._store.start_run(
            self._name,
            core.root.id,
            definition.name,
            head_of(fresh),
            most=core.root.budget.max_children,
        )
        if run_id is None:
            return None
        with core.deciding() as effects:
            handle = Handle(core, run_id, definition, core.root, budget)
            self.add_locked(handle)
            core.note_spawn_locked(handle, effects)
        return handle

    def find(self, handle_id: str) -> Handle | None:
        """Return the object that stands for a handle; None where there is no such handle.

        Raises:
            ConfigError: Nobody here knows its agent.
        """
        if self._store.handle(self._name, handle_id) is None:
            return None
        return self.of(handle_id)

    def of(self, handle_id: str) -> Handle:
        """Return the object that stands for a handle here.

        Raises:
            ConfigError: There is no such handle, or nobody here knows its agent.
            StoreError: Its record cannot be read.
        """
        core = self._core
        with core.lock:
            known = core.handles.get(handle_id) or self._shells.get(handle_id)
            if handle_id == core.root.id:
                known = core.root  # also where it is closed
        if known is not None:
            return known
        above = handle_id.rpartition("/")[0]
        parent = self.of(above) if above else None
        record = None if parent is None else self._store.handle(self._name, handle_id)
        if record is None:
            raise ConfigError(f"no handle has the id {handle_id!r}")
        with core.lock:
            handle = self.of_record_locked(record)
        self.refresh(handle, record)
        return handle

    def let_end(self, handle: Handle) -> None:
        """Know of a handle that it is closed, also where it was pruned."""
        self.refresh(handle)
        self._let_end(handle)

    def _let_end(self, handle: Handle) -> None:
        with self._core.lock:
            if handle._tree is None:
                self._know(handle, State.CLOSED)

    def reopen_locked(self, handle: Handle) -> None:
        """Ask the store of a handle whose end may not have been written."""
        self._core.closed.pop(handle.id, None)
        if handle._state is State.CLOSED:
            self._know(handle, State.IDLE)  # of what is not here nobody reads that

    @staticmethod
    def _know(handle: Handle, state: State) -> None:
        """Note where a handle is by now: nobody here has moved it."""
        handle._state = state

    def children_of(self, handle: Handle) -> tuple[Handle, ...]:
        """Return the live children of a handle, in the order of their numbers."""
        below = None if handle.parent is None else handle.id
        records = [
            one
            for one in self._store.handles(self._name, under=below)
            if one.id.rpartition("/")[0] == handle.id
        ]
        found = [self.of(one.id) for one in records]
        # One that has just been closed here may not be written yet.
        live = [one for one in found if one._state is not State.CLOSED]
        return tuple(sorted(live, key=lambda child: child._number))

    def refresh(self, handle: Handle, record: HandleRecord | None = None) -> None:
        """Bring what stands for a handle up to date, where another process may have it."""
        if handle._tree is not None:
            return  # this process has it
        record = record or self._store.handle(self._name, handle.id)
        if record is None:
            self._let_end(handle)
            return
        messages: Mapping[int, JsonValue] = {}
        has_news = readable_head(record).get("ends") != handle._ends
        if has_news:
            # Once more, for the result and the messages are to be of the same turn.
            found = self._store.load_handle(self._name, handle.id, {"messages"})
            if found is None:
                self._let_end(handle)
                return
            record, messages = found.record, found.messages
        head = readable_head(record)
        with self._core.lock:
            if handle._tree is not None:
                return
            with reading(f"the record of {handle.id}"):
                if has_news:
                    transcript = transcript_of(head, messages)
                    handle.last_result = restored_result(head, transcript)
                restore_counts(handle, head)
                self._know(handle, State(record.state))

    def of_record_locked(self, record: HandleRecord) -> Handle:
        """Return the one object that stands for a handle here, made if need be.

        Raises:
            ConfigError: Nobody here knows its agent, or that of one above it.
        """
        known = self._shells.get(record.id)
        if known is not None:
            return known
        above = record.id.rpartition("/")[0]
        parent = self._core.root if above == self._core.root.id else self._shells.get(above)
        if parent is None:
            raise StoreError(f"{record.id} has no parent {above}; the record is damaged")
        definition = self.definition_of(record, parent)
        handle = Handle(self._core, record.id, definition, parent, EMPTY_BUDGET)
        handle._tree = None
        self._shells[record.id] = handle
        return handle

    def definition_of(self, record: HandleRecord, parent: Handle) -> AgentDef:
        """Return the agent of a stored handle.

        Raises:
            ConfigError: Nobody here knows it.
        """
        name, core = record.agent, self._core
        # An agent that is a tool of the one above it.
        tools = (getattr(one, "definition", None) for one in parent.definition.tools)
        inner = {one.name: one for one in tools if isinstance(one, AgentDef)}
        for agents in (parent.definition.members, core.registry, inner, self._given):
            found = agents.get(name)
            if found is not None:
                return found
        if name in self._given:
            raise ConfigError(
                f"several agents named {name!r} were given to spawn, and {record.id} may be "
                "any of them: put it in the registry, or let each have a name of its own"
            )
        raise ConfigError(
            f"agent {name!r} of {record.id} is not in the registry "
            f"(known: {', '.join(sorted(core.registry)) or 'none'}); nothing of the run is "
            "lost, and it goes on once the agent is back"
        )
