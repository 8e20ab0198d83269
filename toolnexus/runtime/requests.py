"""Requests: what a store has kept of a question, for whoever looks at it or answers it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Final

import attrs

from toolnexus.answering import asks_approval
from toolnexus.approvals import edited_args
from toolnexus.checkpoint import CallState
from toolnexus.codec import JsonValue
from toolnexus.errors import StoreError
from toolnexus.runtime.audit import AuditRecord, How, arguments_of
from toolnexus.runtime.handle import PendingRequest
from toolnexus.runtime.stored import readable_head, reading, stored_call, turn_in
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import HandleRecord, RequestRecord, Wait
from toolnexus.suspension import Answer, Request, format_time, message_of, parse_time

_ANY_TIME: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@attrs.frozen
class Asked:
    """A stored request, as one of the calls that wait for it has asked it.

    Attributes:
        record: What the store has of it.
        handle_id: The handle that asks.
        agent: Its agent.
        call: The call that asks.
        turns: Ids of the turns that an answer lets go on.
    """

    record: RequestRecord
    handle_id: str
    agent: str
    call: CallState
    turns: tuple[str, ...] = ()

    @property
    def request(self) -> Request:
        """What is asked."""
        if self.call.request is None:
            raise ValueError("nothing is asked")
        return self.call.request

    @property
    def handle_ids(self) -> tuple[str, ...]:
        """The handles that wait, or the one that has asked where none waits any more."""
        waiting = tuple(dict.fromkeys(one.handle_id for one in self.record.waits))
        return waiting or (self.handle_id,)

    def pending(self, now: datetime) -> PendingRequest:
        """Return it as the host sees it."""
        return PendingRequest(
            request=self.request,
            path=tuple(self.handle_id.split("/")),
            agent=self.agent,
            tool=self.call.name,
            arguments=arguments_of(self.call),
            call_id=self.call.id,
            asked_at=parse_time(self.call.asked_at, "asked_at") or now,
            shared_with=tuple(one for one in self.handle_ids if one != self.handle_id),
        )

    def audit_record(self, now: datetime) -> AuditRecord:
        """Return what the audit says of it as long as it is open."""
        pending = self.pending(now)
        return AuditRecord(
            request_id=self.request.id,
            kind=self.request.kind,
            prompt=self.request.prompt,
            handle_id=pending.handle_id,
            agent=pending.agent,
            tool=pending.tool,
            call_id=pending.call_id,
            arguments=pending.arguments,
            asked_at=pending.asked_at,
            shared_with=tuple((one, pending.call_id) for one in pending.shared_with),
        )

    def settled(self, said: Said) -> AuditRecord:
        """Return what the audit says of it once it has its answer."""
        answer = said.answer
        is_approval = answer.ok and asks_approval(self.call)
        edited = edited_args(answer.data) if is_approval else None
        record = self.audit_record(said.at)
        effective = record.arguments if edited is None else edited
        return attrs.evolve(
            record,
            outcome=answer.outcome,
            how=said.how,
            principal=said.principal,
            shared_with=said.shared_with,
            reason=answer.reason,
            message=None if answer.ok else message_of(answer.data),
            settled_at=said.at,
            effective=effective if answer.ok else None,
        )


@attrs.frozen
class Said:
    """What a store keeps of an answer that was accepted.

    Attributes:
        answer: Without secrets.
        how: By what the request is settled.
        at: When.
        principal: Who answered; None where nobody said.
        turns: Ids of the turns that it lets go on.
        shared_with: Handle and call id of the others that waited for it.
    """

    answer: Answer
    how: How
    at: datetime
    principal: str | None = None
    turns: tuple[str, ...] = ()
    shared_with: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON."""
        stored: dict[str, JsonValue] = {
            "answer": self.answer.to_dict(),
            "how": self.how,
            "at": format_time(self.at),
            "turns": list(self.turns),
        }
        if self.principal is not None:
            stored["principal"] = self.principal
        if self.shared_with:
            stored["sharedWith"] = [list(one) for one in self.shared_with]
        return stored

    @classmethod
    def from_dict(cls, data: JsonValue) -> Said:
        """Read what `to_dict` wrote.

        Raises:
            KeyError: A part is missing; and ValueError, TypeError where one is malformed.
        """
        at = parse_time(data["at"], "at")
        if at is None:
            raise ValueError("an answer has no time")
        return cls(
            Answer.from_dict(data["answer"]),
            data["how"],
            at,
            data.get("principal"),
            tuple(data["turns"]),
            tuple((one, call) for one, call in data.get("sharedWith") or ()),
        )


def audit_of(record: RequestRecord, now: datetime) -> AuditRecord:
    """Return what the audit says of a stored request.

    Raises:
        StoreError: It cannot be read; names the request.
    """
    note = record.note
    with reading(f"request {record.id}"):
        if record.body == {}:  # asked inline: the note says it all
            return AuditRecord.from_dict(note or {})
        one = asked(record)
        found = one.audit_record(now)
        if record.answer is not None:
            found = one.settled(Said.from_dict(record.answer))
        if not note:
            is_gone = record.state == "gone"
            return attrs.evolve(found, outcome="cancelled") if is_gone else found
        changed = {**found.to_dict(), **note}
        return AuditRecord.from_dict(
            {key: value for key, value in changed.items() if value is not None}
        )


def asked(record: RequestRecord) -> Asked:
    """Return what a record says, as the call has asked it that was the first.

    Raises:
        StoreError: It cannot be read; names the request.
    """
    body: Any = record.body
    what = f"request {record.id}"
    if record.fault is not None or not body:
        raise StoreError(f"{what} cannot be read: {record.fault or 'no body'}")
    with reading(what):
        call = CallState.from_dict(body["call"])
        found = Asked(record, body["handle"], body["agent"], call, tuple(body["turns"]))
        found.pending(_ANY_TIME)  # whatever is wrong with it is found here
        return found


def all_asked(store: RunStore, runtime: str, record: RequestRecord) -> list[Asked]:
    """Return what a record says, as each call has asked it that waits; at least one.

    Several wait for a login. The first of them may be gone.

    Raises:
        StoreError: It cannot be read; names the request.
    """
    first = asked(record)
    if all(one.handle_id == first.handle_id for one in record.waits):
        return [first]
    found = [first] if any(one.handle_id == first.handle_id for one in record.waits) else []
    for wait in record.waits:
        if wait.handle_id != first.handle_id:
            found += _asked_by(store, runtime, first, wait)
    return found or [first]


def _asked_by(store: RunStore, runtime: str, first: Asked, wait: Wait) -> list[Asked]:
    found = store.load_handle(runtime, wait.handle_id, ("messages", "calls"))
    row: Any = None if found is None else found.calls.get(wait.call)
    if found is None or row is None:
        return []  # it has gone on meanwhile
    handle = found.record
    call = stored_call(handle, found.messages, wait.call, row)
    if call.request is None or call.request.id != first.record.id:
        return []  # it asks for something else by now
    turns = _turns_of(store, runtime, handle)
    return [Asked(first.record, handle.id, handle.agent, call, turns)]


def _turns_of(store: RunStore, runtime: str, handle: HandleRecord) -> tuple[str, ...]:
    """Return what `ledger.turns_of` does of a handle here."""
    segments = handle.id.split("/")
    above = ["/".join(segments[:count]) for count in range(2, len(segments))]
    line = [*(store.handle(runtime, one) for one in above), handle]
    turns = (turn_in(readable_head(one)) for one in line if one is not None)
    return tuple(sorted(turn["run"] for turn in turns if turn))
