"""Audit: who was asked what, and what came of it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from toolnexus.answering import asks_approval
from toolnexus.approvals import edited_args
from toolnexus.checkpoint import CallState
from toolnexus.codec import JsonValue, copy, loads
from toolnexus.suspension import Answer, Outcome, Request, format_time, message_of

if TYPE_CHECKING:
    from toolnexus.runtime.handle import Handle

_logger: Final = logging.getLogger("toolnexus.audit")

How: TypeAlias = Literal["resume", "wait_for", "expiry", "supersede", "interrupt", "close"]
"""By what a request was settled."""


@attrs.frozen(kw_only=True)
class AuditRecord:
    """One request: asked by whom, answered by whom, when, how, and what was executed.

    Attributes:
        request_id: The request's id.
        kind: Its kind.
        prompt: What the person read.
        handle_id: The handle that asked.
        agent: That handle's agent.
        tool: The tool that asked, or that a gate asked for.
        call_id: The model's id of the call.
        shared_with: Handle id and call id of further calls that waited for the same login.
        arguments: What the call was made with, as it was shown.
        asked_at: Aware, UTC.
        outcome: None while it is open.
        how: By what it was settled; None while it is open.
        principal: Who answered, as `resume` was told; None where nobody said.
        reason: The answer's.
        message: What the answer said to the model with a no (`data["message"]`).
        settled_at: Aware, UTC; None while it is open.
        effective: The arguments that the answer let the call run with; None where it did not,
            or where another gate stopped the call then.
    """

    request_id: str
    kind: str
    prompt: str
    handle_id: str
    agent: str
    tool: str
    call_id: str
    arguments: Mapping[str, JsonValue] = attrs.field(repr=False)
    asked_at: datetime
    shared_with: tuple[tuple[str, str], ...] = ()
    outcome: Outcome | None = None
    how: How | None = None
    principal: str | None = None
    reason: str | None = None
    message: str | None = None
    settled_at: datetime | None = None
    effective: Mapping[str, JsonValue] | None = attrs.field(default=None, repr=False)

    @property
    def was_changed(self) -> bool:
        """Whether it ran with other arguments than were shown."""
        return self.effective is not None and self.effective != self.arguments

    def is_under(self, handle_id: str) -> bool:
        """Say whether that handle, or one below it, waited for the answer."""
        waited = (self.handle_id, *(one for one, _ in self.shared_with))
        return any(f"{one}/".startswith(f"{handle_id}/") for one in waited)

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON, for a log of the host's; absent optionals are left out."""
        optional = {
            "outcome": self.outcome,
            "how": self.how,
            "principal": self.principal,
            "reason": self.reason,
            "message": self.message,
            "settledAt": None if self.settled_at is None else format_time(self.settled_at),
            "effective": None if self.effective is None else copy(self.effective),
            "sharedWith": [list(one) for one in self.shared_with] or None,
        }
        return {
            "requestId": self.request_id,
            "kind": self.kind,
            "prompt": self.prompt,
            "handleId": self.handle_id,
            "agent": self.agent,
            "tool": self.tool,
            "callId": self.call_id,
            "arguments": copy(self.arguments),
            "askedAt": format_time(self.asked_at),
            **{key: value for key, value in optional.items() if value is not None},
        }


class AuditLog:
    """The last requests, by id. Every method is called with the runtime's lock held."""

    __slots__ = ("_limit", "_records")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: OrderedDict[str, AuditRecord] = OrderedDict()

    def __iter__(self) -> Iterator[AuditRecord]:
        return iter(tuple(self._records.values()))

    def asked(self, handle: Handle, call: CallState, request: Request, now: datetime) -> None:
        """Begin the record of a request; one that is there already is kept."""
        if self._limit == 0 or request.id in self._records:
            return
        self._records[request.id] = AuditRecord(
            request_id=request.id,
            kind=request.kind,
            prompt=request.prompt,
            handle_id=handle.id,
            agent=handle.definition.name,
            tool=call.name,
            call_id=call.id,
            arguments=arguments_of(call),
            asked_at=now,
        )
        if len(self._records) > self._limit:
            # An open one is worth more than one that is settled.
            settled = (key for key, one in self._records.items() if one.outcome is not None)
            del self._records[next(settled, next(iter(self._records)))]

    def shared(self, handle: Handle, call: CallState, request: Request) -> None:
        """Note that one more call waits for a request."""
        known = self._records.get(request.id)
        if known is not None:
            others = (*known.shared_with, (handle.id, call.id))
            self._records[request.id] = attrs.evolve(known, shared_with=others)

    def stopped(self, request: Request) -> None:
        """Note that the call did not run after all: a gate behind the approval stopped it."""
        known = self._records.get(request.id)
        if known is not None:
            self._records[request.id] = attrs.evolve(known, effective=None)

    def settled(
        self,
        request: Request,
        answer: Answer,
        how: How,
        now: datetime,
        call: CallState | None = None,
        principal: str | None = None,
    ) -> AuditRecord | None:
        """End the record of a request; return it."""
        known = self._records.get(request.id)
        if known is None:
            return None
        effective: Mapping[str, JsonValue] | None = None
        if answer.ok:
            edited = (
                edited_args(answer.data) if call is not None and asks_approval(call) else None
            )
            effective = known.arguments if edited is None else edited
        record = self._records[request.id] = attrs.evolve(
            known,
            outcome=answer.outcome,
            how=how,
            # Who said a yes that is carried out too late has said it all the same.
            principal=known.principal if principal is None else principal,
            reason=answer.reason,
            message=None if answer.ok else message_of(answer.data),
            settled_at=now,
            effective=effective,
        )
        return record


def arguments_of(call: CallState) -> dict[str, JsonValue]:
    """Return what a call that has asked was made with."""
    # The tool has run with them once, or is about to: they are an object, or empty.
    return loads(call.arguments) if call.arguments.strip() else {}


def write(record: AuditRecord) -> None:
    """Write a settled request to the log `toolnexus.audit`; called without the lock."""
    _logger.info(
        "%s %s %r of %s (%s): %s by %s",
        record.handle_id,
        record.kind,
        record.prompt,
        record.tool,
        record.request_id,
        record.outcome,
        record.principal or record.how,
    )
