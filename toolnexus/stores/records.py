"""What a run store is told and tells: see `toolnexus.stores.base`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, TypeAlias

import attrs

from toolnexus.codec import JsonValue

RequestState: TypeAlias = Literal["open", "answered", "gone"]
"""Waits for an answer; has one; was withdrawn before anybody answered."""

_NOTHING: Final[Mapping[int, JsonValue]] = {}


@attrs.frozen(kw_only=True)
class Lease:
    """The right to change a run.

    Attributes:
        run_id: Which.
        owner: Who has it: a random text for each runtime of each process.
        fence: How often the run has changed hands; a higher one makes this one void.
        was_busy: Whether a turn was under way that nobody was at any more.
        recoveries: How often in a row the run was taken over so, this time included, other
            than from an owner who had abandoned it.
    """

    run_id: str
    owner: str
    fence: int
    was_busy: bool = False
    recoveries: int = 0


@attrs.frozen(kw_only=True)
class Held:
    """Why a run could not be had.

    Attributes:
        owner: Whose it is; None where it is nobody's, but a turn is under way in it, and the
            caller does not want such a run.
        is_busy: Whether a turn is under way in it; else it is about to be given back.
    """

    owner: str | None
    is_busy: bool


@attrs.frozen(kw_only=True)
class HandleChange:
    """What has changed of a handle; the first one makes it.

    Attributes:
        id: Which.
        agent: Name of its agent.
        state: `idle`, `running`, `suspended` or `closed`.
        head: The new one; None where it is as it was.
        keep: How many messages stay, before `messages` is applied; None for all.
        messages: New ones, or replaced ones, by position. Positions may have gaps: results of
            parallel calls come in any order.
        calls: By position; None takes one away.
        posts: The inbox, by number; None takes one away.
    """

    id: str
    agent: str
    state: str
    head: JsonValue | None = attrs.field(default=None, repr=False)
    keep: int | None = None
    messages: Mapping[int, JsonValue] = attrs.field(default=_NOTHING, repr=False)
    calls: Mapping[int, JsonValue | None] = attrs.field(default=_NOTHING, repr=False)
    posts: Mapping[int, JsonValue | None] = attrs.field(default=_NOTHING, repr=False)


@attrs.frozen(kw_only=True)
class NewRequest:
    """A request that opens.

    Attributes:
        id: Unique among all requests of the runtime, also settled ones.
        kind: Its kind.
        body: The request and who asks; opaque.
        login: What it is a login to; None for other requests. At most one is open for each.
        expires_at: Aware; None for never.
    """

    id: str
    kind: str
    body: JsonValue = attrs.field(repr=False)
    login: str | None = None
    expires_at: datetime | None = None


@attrs.frozen
class Wait:
    """A call that waits for the answer to a request: of which handle, and at which position."""

    request_id: str
    handle_id: str
    call: int


@attrs.frozen(kw_only=True)
class RunChange:
    """One consistent step of a run, written by its owner.

    Attributes:
        lease: The owner's.
        handles: What has changed of them.
        opened: New requests, in the order in which they are listed. One that nothing waits for
            is `gone` at once: for the audit.
        waits: Calls that begin to wait, for new requests or open ones. One that was answered
            meanwhile will do: its answer has come for the run.
        done: Calls that wait no more: they have taken their answer, or will not. An open
            request that nothing waits for any more is `gone`.
        notes: For the audit, by request id: each replaces the note of that request, if there
            is one of this id.
        signals: Numbers of signals that were dealt with.
        is_busy: Whether a turn is under way or about to be.
        releases: Whether the lease is given back, unless something has come for the run. Then
            its recoveries are forgotten, if no turn is under way.
    """

    lease: Lease
    handles: tuple[HandleChange, ...] = ()
    opened: tuple[NewRequest, ...] = ()
    waits: tuple[Wait, ...] = ()
    done: tuple[Wait, ...] = ()
    notes: Mapping[str, JsonValue] = attrs.field(factory=dict, repr=False)
    signals: tuple[int, ...] = ()
    is_busy: bool = False
    releases: bool = False


@attrs.frozen(kw_only=True)
class HandleRecord:
    """A handle as it was written last.

    Attributes:
        id: Its id.
        agent: Its agent's name.
        state: See `HandleChange`.
        head: See `HandleChange`; None where it cannot be read.
        fault: Why it cannot be read; None where it can.
        changed_at: When it was written last, by the store's clock; aware.
    """

    id: str
    agent: str
    state: str
    head: JsonValue | None = attrs.field(repr=False)
    changed_at: datetime
    fault: str | None = None


Part: TypeAlias = Literal["messages", "calls", "posts"]
"""What is kept of a handle besides its head."""


@attrs.frozen(kw_only=True)
class StoredHandle:
    """A handle with what is kept of it; the mappings are in order."""

    record: HandleRecord
    messages: Mapping[int, JsonValue] = attrs.field(repr=False)
    calls: Mapping[int, JsonValue] = attrs.field(repr=False)
    posts: Mapping[int, JsonValue] = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class RequestRecord:
    """A request as it was written last.

    Attributes:
        id: Its id.
        kind: Its kind.
        state: See `RequestState`.
        body: See `NewRequest`; None where it cannot be read.
        waits: The calls that wait for it, or for its answer to reach them.
        answer: What was claimed; None unless `answered`.
        note: For the audit; None where none was written.
        expires_at: Aware; None for never.
        is_announced: Whether the host was told of it.
        fault: Why it cannot be read; None where it can.
    """

    id: str
    kind: str
    state: RequestState
    body: JsonValue | None = attrs.field(repr=False)
    waits: tuple[Wait, ...] = ()
    answer: JsonValue | None = attrs.field(default=None, repr=False)
    note: JsonValue | None = attrs.field(default=None, repr=False)
    expires_at: datetime | None = None
    is_announced: bool = False
    fault: str | None = None


@attrs.frozen(kw_only=True)
class Claim:
    """An answer that wants to be the one.

    Attributes:
        request_id: To which request.
        answer: Without secrets.
        waits: The calls that may wait for it: the answer was looked at for those, and for no
            other that has come since; None for any.
    """

    request_id: str
    waits: tuple[Wait, ...] | None = None
    answer: JsonValue = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Mail:
    """What has come for a run.

    Attributes:
        answers: Claimed ones, each with a call that has not taken it yet.
        signals: By number, in the order in which they were sent.
    """

    answers: tuple[tuple[Wait, JsonValue], ...] = ()
    signals: Mapping[int, JsonValue] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Taken:
    """A run as it is in the moment in which it is taken.

    Attributes:
        lease: The right to change it.
        handles: Those that are not closed, parents before children.
        requests: The open ones that a call of it has waited for, in the order in which they
            opened.
        mail: What has come for it.
    """

    lease: Lease
    handles: tuple[StoredHandle, ...] = ()
    requests: tuple[RequestRecord, ...] = ()
    mail: Mail = attrs.field(factory=Mail)
