"""Reading: what can be seen of a runtime, none of which changes anything."""

from __future__ import annotations

from datetime import timedelta

from toolnexus import codec
from toolnexus.grants import Grant
from toolnexus.messages import Message
from toolnexus.runtime.audit import AuditRecord
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import Handle, HandleView, PendingRequest, view_of
from toolnexus.runtime.views import open_requests, waiting_records


class Reading:
    """The verbs of `AgentRuntime` that only look. Each is consistent in itself."""

    _core: Core

    def inspect(self, handle: Handle | str) -> HandleView | None:
        """Return one handle as it is now, by handle or id; None where the id is unknown."""
        core = self._core
        with core.lock:
            if isinstance(handle, str):
                found = core.find_locked(handle)
                if found is None:
                    return None
            else:
                found = core.own(handle)
            return view_of(found, core.pending_of_locked(found))

    def handle(self, handle_id: str) -> Handle | None:
        """Return the handle with that id, live or among the last closed; None else."""
        with self._core.lock:
            return self._core.find_locked(handle_id)

    def pending(
        self,
        kind: str | None = None,
        older_than: float | timedelta | None = None,
        under: Handle | str | None = None,
    ) -> tuple[PendingRequest, ...]:
        """Return open requests: oldest first, those of one turn in call order.

        Args:
            kind: Only those of this kind.
            older_than: Only those that were asked longer ago; seconds or a timedelta.
            under: Only those of this handle, or the one with this id, and what is below it.
        """
        return open_requests(self._core, kind, older_than, self._id_of(under))

    def audit(self, under: Handle | str | None = None) -> tuple[AuditRecord, ...]:
        """Return what was asked and what came of it, oldest first, for the last `audit_limit`.

        Args:
            under: Only what this handle, by itself or by id, and those below it have asked.
        """
        inside = self._id_of(under)
        with self._core.lock:
            records = self._core.audit.records(waiting_records(self._core))
        return tuple(one for one in records if one.is_under(inside))

    def grants(self) -> tuple[Grant, ...]:
        """Return the standing grants that have not expired, oldest first."""
        now = self._core.clock.now()
        with self._core.lock:
            grants = tuple(self._core.grants.values())
        return tuple(one for one in grants if not one.has_ended(now))

    def transcript(self, handle: Handle) -> tuple[Message, ...]:
        """Return what completed turns have left of the agent's conversation.

        While a turn is under way or parked this is as it was before that turn.
        """
        handle = self._core.own(handle)
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

    def _id_of(self, handle: Handle | str | None) -> str:
        if handle is None:
            return self._core.root.id
        return handle if isinstance(handle, str) else self._core.own(handle).id

    # last: shadows the builtin in this class body
    def list(self) -> tuple[HandleView, ...]:
        """Return the live handles below the root, parents before children, at one moment."""
        core = self._core
        with core.lock:
            below = core.subtree_locked(core.root)[1:]
            return tuple(view_of(one, core.pending_of_locked(one)) for one in below)
