"""Audit: who was asked what, and what came of it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from toolnexus.answering import asks_approval
from toolnexus.approvals import edited_args
from toolnexus.checkpoint import CallState
from toolnexus.codec import JsonValue, copy, loads, refuse_unknown
from toolnexus.errors import WireFormatError
from toolnexus.grants import is_under
from toolnexus.suspension import Answer, Outcome, Request, format_time, message_of, parse_time

if TYPE_CHECKING:
    from toolnexus.runtime.handle import Handle

_logger: Final = logging.getLogger("toolnexus.audit")

_NEVER: Final = datetime.min.replace(tzinfo=timezone.utc)

_KEYS: Final = (
    *("requestId", "kind", "prompt", "handleId", "agent", "tool", "callId", "arguments"),
    *("askedAt", "outcome", "how", "principal", "reason", "message", "settledAt"),
    *("effective", "sharedWith"),
)

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

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> AuditRecord:
        """Read what `to_dict` wrote.

        Raises:
            WireFormatError: A key is unknown or missing.
        """
        data = refuse_unknown("AuditRecord", data, _KEYS, _KEYS[:9])
        settled_at = data.get("settledAt")
        return cls(
            request_id=data["requestId"],
            kind=data["kind"],
            prompt=data["prompt"],
            handle_id=data["handleId"],
            agent=data["agent"],
            tool=data["tool"],
            call_id=data["callId"],
            arguments=data["arguments"],
            asked_at=parse_time(data["askedAt"], "askedAt") or _NEVER,
            shared_with=tuple((one, call) for one, call in data.get("sharedWith") or ()),
            outcome=data.get("outcome"),
            how=data.get("how"),
            principal=data.get("principal"),
            reason=data.get("reason"),
            message=data.get("message"),
            settled_at=None if settled_at is None else parse_time(settled_at, "settledAt"),
            effective=data.get("effective"),
        )

    @property
    def was_changed(self) -> bool:
        """Whether it ran with other arguments than were shown."""
        return self.effective is not None and self.effective != self.arguments

    def is_under(self, handle_id: str) -> bool:
        """Say whether that handle, or one below it, waited for the answer."""
        waited = (self.handle_id, *(one for one, _ in self.shared_with))
        return any(is_under(one, handle_id) for one in waited)

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


_ASKING_KEPT: Final = 1_000
"""How many requests may be asked inline at once; more than there are threads to ask them."""


class _Entry:
    """What is known of a request so far; the record is made of it when somebody looks."""

    __slots__ = (
        "agent",
        "call",
        "edited",
        "handle_id",
        "has_run",
        "how",
        "message",
        "outcome",
        "principal",
        "reason",
        "request",
        "settled_at",
        "shared_with",
    )

    def __init__(
        self,
        handle: Handle,
        call: CallState,
        request: Request,
        shared_with: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.handle_id = handle.id
        self.agent = handle.definition.name
        self.call = call
        self.request = request
        self.shared_with = tuple(shared_with)
        self.outcome: Outcome | None = None
        self.how: How | None = None
        self.principal: str | None = None
        self.reason: str | None = None
        self.message: str | None = None
        self.settled_at: datetime | None = None
        self.edited: dict[str, JsonValue] | None = None
        self.has_run = False

    def settle(self, answer: Answer, how: How, now: datetime, principal: str | None) -> None:
        # A yes that is carried out too late was still somebody's.
        self.principal = principal or self.principal
        self.outcome, self.how, self.settled_at = answer.outcome, how, now
        self.reason, self.has_run = answer.reason, answer.ok
        if not answer.ok:
            self.message = message_of(answer.data)
        elif asks_approval(self.call):
            self.edited = edited_args(answer.data)

    def record(self) -> AuditRecord:
        arguments = arguments_of(self.call)
        effective = arguments if self.edited is None else self.edited
        return AuditRecord(
            request_id=self.request.id,
            kind=self.request.kind,
            prompt=self.request.prompt,
            handle_id=self.handle_id,
            agent=self.agent,
            tool=self.call.name,
            call_id=self.call.id,
            arguments=arguments,
            asked_at=parse_time(self.call.asked_at, "asked_at") or _NEVER,
            shared_with=self.shared_with,
            outcome=self.outcome,
            how=self.how,
            principal=self.principal,
            reason=self.reason,
            message=self.message,
            settled_at=self.settled_at,
            effective=effective if self.has_run else None,
        )


class AuditLog:
    """The last requests that were settled, or asked inline, by id.

    What is open in the book has no entry here: a runtime may hold very many parked handles.
    Every method is called with the runtime's lock held.
    """

    __slots__ = ("_asking", "_entries", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        # Those that are being asked inline, whatever is kept of them afterwards.
        self._asking: OrderedDict[str, _Entry] = OrderedDict()

    def records(self, waiting: Iterable[AuditRecord]) -> tuple[AuditRecord, ...]:
        """Return what is kept, and what is open, oldest first."""
        if self._limit == 0:
            return ()
        kept = [entry.record() for entry in self._entries.values()]
        return tuple(sorted([*kept, *waiting], key=lambda one: one.asked_at))

    def asked(self, handle: Handle, call: CallState, request: Request) -> None:
        """Begin the record of a request that is asked inline."""
        self._asking[request.id] = self._entry(handle, call, request)
        if len(self._asking) > _ASKING_KEPT:
            self._asking.popitem(last=False)

    def stopped(self, request: Request) -> None:
        """Note that the call did not run after all: a gate behind the approval stopped it."""
        entry = self._entries.get(request.id)
        if entry is not None:
            entry.has_run = False

    def settled(
        self,
        request: Request,
        answer: Answer,
        how: How,
        now: datetime,
        principal: str | None = None,
        asker: tuple[Handle, CallState] | None = None,
        shared_with: Iterable[tuple[str, str]] = (),
    ) -> _Entry | None:
        """End the record of a request; return it where one was begun, or is by this."""
        entry = self._asking.pop(request.id, None) or self._entries.get(request.id)
        if entry is None and asker is not None:
            entry = self._entry(*asker, request, shared_with)
        if entry is not None:
            entry.settle(answer, how, now, principal)
        return entry

    def _entry(
        self,
        handle: Handle,
        call: CallState,
        request: Request,
        shared_with: Iterable[tuple[str, str]] = (),
    ) -> _Entry:
        entry = self._entries[request.id] = _Entry(handle, call, request, shared_with)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)
        return entry


def waiting_record(
    handle: Handle, call: CallState, request: Request, shared_with: Iterable[tuple[str, str]]
) -> AuditRecord:
    """Return the record of a request that is open."""
    return _Entry(handle, call, request, shared_with).record()


def arguments_of(call: CallState) -> dict[str, JsonValue]:
    """Return what a call that has asked was made with."""
    # The tool has run with them once, or is about to: they are an object, or empty.
    arguments = loads(call.arguments) if call.arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise WireFormatError("the arguments of a call must be a JSON object")
    return arguments


def is_logged() -> bool:
    """Whether anybody reads the log `toolnexus.audit`."""
    return _logger.isEnabledFor(logging.INFO)


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
