"""Archive: what can be seen of runs in a store, none of which takes them out of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from toolnexus import checks
from toolnexus.errors import ConfigError, StoreError
from toolnexus.grants import Grant, is_under
from toolnexus.messages import InboxItem, Message
from toolnexus.results import TaskResult
from toolnexus.runtime.audit import AuditRecord
from toolnexus.runtime.handle import Handle, HandleView, PendingRequest
from toolnexus.runtime.requests import Asked, all_asked, asked, audit_of
from toolnexus.runtime.state import State
from toolnexus.runtime.stored import (
    is_busy,
    posted_of,
    readable_head,
    reading,
    restored_result,
    transcript_of,
)
from toolnexus.runtime.tree import run_id_of
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import HandleRecord, RequestRecord
from toolnexus.suspension import Request

if TYPE_CHECKING:
    from toolnexus.clock import Clock

logger = logging.getLogger(__name__)

CLOSED: Final = TaskResult("closed", is_error=True, status="closed")


class Archive:
    """Reads. A record that is damaged is told of in the log, and hides no other."""

    def __init__(self, store: RunStore, name: str, clock: Clock) -> None:
        self._store = store
        self._name = name
        self._clock = clock

    def view(self, handle_id: str) -> HandleView | None:
        """Return one handle; None for an unknown id.

        Raises:
            StoreError: Its record cannot be read.
        """
        record = self._store.handle(self._name, handle_id)
        return None if record is None else self._view(record)

    def views(self, under: str | None = None) -> Iterator[HandleView]:
        """Yield the handles that are not closed, parents before children, run by run."""
        for record in self._store.handles(self._name, under=under):
            try:
                yield self._view(record)
            except StoreError:
                logger.exception("a handle is left out of the list")

    def pending(
        self,
        kind: str | None = None,
        older_than: float | timedelta | None = None,
        under: str | None = None,
        limit: int | None = None,
    ) -> tuple[PendingRequest, ...]:
        """Return open requests, oldest first."""
        if kind is not None and not isinstance(kind, str):
            raise ConfigError(f"kind must be a text such as 'approval', not {kind!r}")
        if limit is not None and type(limit) is not int:
            raise ConfigError(f"limit must be a whole number, not {limit!r}")
        least = None if older_than is None else checks.span(older_than, "older_than")
        now = self._clock.now()
        found: list[PendingRequest] = []
        records = self._store.requests(self._name, state="open", under=under, kind=kind)
        for one in readable(records):
            if limit is not None and len(found) >= limit:
                break
            try:
                seen = self._seen_from(one, under)
            except StoreError:  # of another handle that waits for the same login
                logger.exception("request %s is left out of the list", one.record.id)
                continue
            if seen is None:
                continue  # nobody there waits for it any more
            pending = seen.pending(now)
            if least is None or now - pending.asked_at > least:
                found.append(pending)
        return tuple(found)

    def _seen_from(self, one: Asked, under: str | None) -> Asked | None:
        """Return a request as one that still waits for it has asked it, there below."""
        if under is None and one.handle_id in one.handle_ids:
            return one
        if len(one.handle_ids) == 1 and one.handle_id in one.handle_ids:
            return one
        waiting = all_asked(self._store, self._name, one.record)
        inside = (
            other for other in waiting if under is None or is_under(other.handle_id, under)
        )
        return next(inside, None)

    def open_request(self, request_id: str) -> PendingRequest | None:
        """Return one open request; None where it is not, or not open any more."""
        record = self._store.request(self._name, request_id)
        if record is None or record.state != "open":
            return None
        return asked(record).pending(self._clock.now())

    def outcome(self, request_id: str) -> str | None:
        """Return what came of a request; None where nothing has, or nothing is known."""
        record = self._store.request(self._name, request_id)
        note: Any = None if record is None else record.note
        return note.get("outcome") if isinstance(note, Mapping) else None

    def unannounced(self) -> Iterator[PendingRequest]:
        """Yield the open requests that the host was not told of."""
        records = self._store.requests(self._name, state="open", is_announced=False)
        for one in readable(records):
            yield one.pending(self._clock.now())

    def audit(self, under: str | None = None) -> tuple[AuditRecord, ...]:
        """Return what was asked and what came of it, oldest first."""
        records = []
        for record in self._store.requests(self._name, under=under):
            try:
                records.append(audit_of(record, self._clock.now()))
            except StoreError:
                logger.exception("a request is left out of the audit")
        return tuple(sorted(records, key=lambda one: one.asked_at))

    def transcript(self, handle_id: str) -> list[Message]:
        """Return what completed turns of a handle have left."""
        found = self._store.load_handle(self._name, handle_id, {"messages"})
        return (
            [] if found is None else transcript_of(readable_head(found.record), found.messages)
        )

    def inbox(self, handle_id: str) -> tuple[InboxItem, ...]:
        """Return what was posted to a handle and not yet consumed by a turn."""
        found = self._store.load_handle(self._name, handle_id, {"posts"})
        if found is None:
            return ()
        with reading(f"the record of {handle_id}"):
            return tuple(posted_of(post).item for post in found.posts.values())

    def grants(self) -> list[Grant]:
        """Return the grants, oldest first; one that cannot be read allows nothing."""
        found = []
        for key, grant in self._store.grants(self._name).items():
            try:
                found.append(Grant.from_dict(grant))
            except ValueError:
                logger.exception("grant %s is left out", key)
        return found

    def standing(self, handle: Handle) -> TaskResult | None:
        """Return the result of a settled handle; None where one is still to come."""
        found = self._store.load_handle(self._name, handle.id, {"messages"})
        if found is None:  # it was pruned
            last = handle.last_result
            return CLOSED if last is None or last.status == "pending" else last
        record, head = found.record, readable_head(found.record)
        if is_busy(head):
            return None
        if record.state == State.SUSPENDED.value:
            request = self.first_open(handle.id)
            return None if request is None else self._pending_result(handle, head, request)
        with reading(f"the record of {handle.id}"):
            last = restored_result(head, transcript_of(head, found.messages))
        return last or (CLOSED if record.state == State.CLOSED.value else None)

    def _view(self, record: HandleRecord) -> HandleView:
        head: Any = readable_head(record)
        with reading(f"the record of {record.id}"):
            state = State(record.state)
            return HandleView(
                id=record.id,
                state=state,
                agent=record.agent,
                depth=record.id.count("/"),
                turns=head["turns"],
                total_tokens=head["treeTokens"],
                inbox=head["inbox"],
                pending=self.first_open(record.id) if state is State.SUSPENDED else None,
                children=head["children"],
                is_busy=is_busy(head),
            )

    def first_open(self, handle_id: str) -> Request | None:
        """Return the first open request in call order, the handle's own or a child's."""
        run_id = run_id_of(handle_id)
        is_open = {
            one.id for one in self._store.requests(self._name, state="open", under=run_id)
        }
        return _first_open(self._store.calls(self._name, run_id), handle_id, is_open)

    def _pending_result(
        self, handle: Handle, head: Mapping[str, Any], request: Request
    ) -> TaskResult:
        where = (request.data or {}).get("path")
        return TaskResult(
            request.prompt,
            status="pending",
            pending=request,
            pending_path=tuple(where or handle.id.split("/")),
            turns=head["turns"],
            total_tokens=head["treeTokens"],
        )


def _first_open(
    calls: Mapping[str, Mapping[int, Any]], handle_id: str, is_open: set[str]
) -> Request | None:
    for _, call in sorted(calls.get(handle_id, {}).items()):
        if call.get("status") != "open":
            continue
        child = call.get("child")
        if child is not None:
            below = _first_open(calls, child, is_open)
            if below is not None:
                return below
        elif call["request"]["id"] in is_open:
            return Request.from_dict(call["request"])
    return None


def readable(records: Iterable[RequestRecord]) -> Iterator[Asked]:
    """Yield what can be read; what cannot is told of in the log."""
    for record in records:
        try:
            yield asked(record)
        except StoreError:
            logger.exception("a request is left out of the list")
