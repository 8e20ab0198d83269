"""RequestBook: which requests are open, and which answers were accepted.

Every method is called with the runtime's lock held.
"""

from __future__ import annotations

import heapq
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

import attrs

from toolnexus.checkpoint import CallState, Checkpoint
from toolnexus.codec import canonical
from toolnexus.errors import AlreadyAnswered, NothingSuspended, RequestExpired, UnknownRequest
from toolnexus.forms import login_key, secret_fields
from toolnexus.keywords import same_json
from toolnexus.suspension import Answer, Outcome, Request, format_time, new_request_id

if TYPE_CHECKING:
    from toolnexus.runtime.handle import Handle, PendingRequest

_ANSWERED_KEPT: Final = 4_096
"""Accepted answers remembered, so that a second delivery is known for what it is."""


_CLOSED_KEPT: Final = 64
"""When so many requests are open no more that could expire, they are forgotten."""


@attrs.frozen
class Place:
    """A call that waits: its handle, and its position in that handle's message."""

    handle: Handle
    index: int


@attrs.define(eq=False)
class OpenRequest:
    """An open request, and the calls that its answer goes to: several for a shared login."""

    request: Request
    places: tuple[Place, ...]


@attrs.frozen
class Accepted:
    """An answer that was accepted.

    Attributes:
        answer: What was said, without secret fields.
        secret: Names of those.
        digest: Of all that was said, under a key of this process: enough to know it again.
        handle_ids: The handles it went to; by id, so that a closed one is not kept alive.
        runs: Ids of the turns that it let go on: the askers' and their suspended ancestors'.
        expires_at: The request's.
        pending: The request as the host saw it, for who answers again; None where nobody asks.
    """

    answer: Answer
    secret: frozenset[str]
    digest: bytes
    handle_ids: tuple[str, ...]
    runs: frozenset[str]
    expires_at: datetime | None = None
    pending: PendingRequest | None = None


class RequestBook:
    """The open requests, in the order in which they parked, and the last accepted answers."""

    __slots__ = ("_answered", "_expiring", "_key", "_logins", "_open", "_withdrawn")

    def __init__(self) -> None:
        self._open: dict[str, OpenRequest] = {}
        self._answered: OrderedDict[str, Accepted] = OrderedDict()
        # What became of requests that nobody can answer any more, for who is late.
        self._withdrawn: OrderedDict[str, Outcome] = OrderedDict()
        # Ids of the open logins, by `login_key`.
        self._logins: dict[str, str] = {}
        # When open requests expire, and some that are open no more.
        self._expiring: list[tuple[datetime, str]] = []
        self._key = secrets.token_bytes(32)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(self._open.values())

    def park(self, handle: Handle, parked: Checkpoint) -> tuple[Checkpoint, list[OpenRequest]]:
        """Open the requests of a turn that parks.

        A tool may give every request the same id; an answer to one must never fit another, so
        an id that is or was in use is replaced. Only a login is shared with other handles.

        Returns:
            The turn with their ids, and what is newly open.
        """
        calls, opened = list(parked.calls), []
        for index, call in enumerate(calls):
            if call.status != "open" or call.child is not None or call.request is None:
                continue
            if call.answer is not None:
                continue  # accepted, and about to be executed
            place, request = Place(handle, index), call.request
            known = self._open.get(request.id)
            if known is not None and any(one.handle is handle for one in known.places):
                continue  # open already, or shared with an earlier call of this message
            login = login_key(request)
            shared = self._open.get(self._logins.get(login or "", ""))
            if shared is not None:
                if all(one.handle is not handle for one in shared.places):
                    shared.places = (*shared.places, place)  # the turn tells its other calls
                calls[index] = attrs.evolve(call, request=shared.request)
                continue
            if known is not None or request.id in self._answered:
                request = attrs.evolve(request, id=new_request_id())
                calls[index] = attrs.evolve(call, request=request)
            entry = self._open[request.id] = OpenRequest(request, (place,))
            opened.append(entry)
            if request.expires_at is not None:
                self._expire(request.id, request.expires_at)
            if login is not None:
                self._logins[login] = request.id
        return attrs.evolve(parked, calls=tuple(calls)), opened

    def reopen(self, place: Place, request: Request) -> None:
        """Open a request that a store has kept, or let one more call wait for it."""
        entry = self._open.get(request.id)
        if entry is not None:
            entry.places = (*entry.places, place)
            return
        self._open[request.id] = OpenRequest(request, (place,))
        if (login := login_key(request)) is not None:
            self._logins[login] = request.id

    def reopen_all(self, handle: Handle) -> None:
        """Open whatever the calls of `handle` wait for."""
        for index, call in enumerate(handle._core.calls_locked(handle)):
            is_open = call.status == "open" and call.child is None and call.answer is None
            if is_open and call.request is not None:
                self.reopen(Place(handle, index), call.request)

    def deliver(self, place: Place, request: Request) -> None:
        """Let a call wait no more: it has the answer, which a store has accepted."""
        found = self._open.get(request.id)
        if found is not None:
            found.places = tuple(one for one in found.places if one != place)
            if not found.places:
                self._close(found)

    def entries_of(self, handle: Handle) -> dict[str, OpenRequest]:
        """Return the open requests of `handle` by id."""
        asked = [one.request for one in handle._core.calls_locked(handle) if one.request]
        return {one.id: self._open[one.id] for one in asked if one.id in self._open}

    def forget(self, handle: Handle) -> None:
        """Know nothing any more of what `handle` waits for."""
        for call in handle._core.calls_locked(handle):
            found = None if call.request is None else self._open.get(call.request.id)
            if found is not None:
                found.places = tuple(one for one in found.places if one.handle is not handle)
                if not found.places:
                    self._close(found)

    def withdraw(
        self, handle: Handle, calls: Iterable[CallState], outcome: Outcome
    ) -> list[tuple[Request, CallState]]:
        """Let the calls of `handle` wait no more.

        Returns:
            The requests that nobody waits for now, each with the call that was the last.
        """
        closed = []
        for call in calls:
            if call.status != "open" or call.child is not None or call.request is None:
                continue
            found = self._open.get(call.request.id)
            if found is None:
                continue
            found.places = tuple(one for one in found.places if one.handle is not handle)
            if not found.places:
                self._close(found)
                closed.append((found.request, call))
                self.note_withdrawn(found.request.id, outcome)
        return closed

    def take_overdue(self, now: datetime) -> list[Request]:
        """Return the open requests whose time has passed, once; the caller settles them."""
        due = []
        while (first := self.next_expiry()) is not None and first <= now:
            due.append(self._open[heapq.heappop(self._expiring)[1]].request)
        return due

    def next_expiry(self) -> datetime | None:
        """Return when the first open request expires; None where none does."""
        while self._expiring and self._expiring[0][1] not in self._open:
            heapq.heappop(self._expiring)
        return self._expiring[0][0] if self._expiring else None

    def accepted(self, request_id: str) -> Accepted | None:
        """Return the answer to a request that was answered; None where none is known."""
        return self._answered.get(request_id)

    def note_withdrawn(self, request_id: str, outcome: Outcome) -> None:
        """Keep what became of a request that nobody can answer any more."""
        self._withdrawn[request_id] = outcome
        if len(self._withdrawn) > _ANSWERED_KEPT:
            self._withdrawn.popitem(last=False)

    def was_withdrawn(self, request_id: str) -> bool:
        """Whether a request was open, and nobody can answer it any more."""
        return request_id in self._withdrawn

    def find(self, answer: Answer) -> OpenRequest | Accepted:
        """Return the open request that `answer` fits, or the equal answer accepted before.

        Raises:
            AlreadyAnswered: The request was answered, differently.
            RequestExpired: It was settled because its time had passed.
            UnknownRequest: No request has that id.
            NothingSuspended: No request is open at all.
        """
        accepted = self._answered.get(answer.id)
        if accepted is not None:
            if self._says_the_same(accepted, answer):
                return accepted
            if accepted.answer.outcome == "expired" and accepted.expires_at is not None:
                raise RequestExpired(answer.id, format_time(accepted.expires_at))
            raise AlreadyAnswered(accepted.answer)
        found = self._open.get(answer.id)
        if found is not None:
            return found
        outcome = self._withdrawn.get(answer.id)
        if self._open:
            raise UnknownRequest(answer.id, len(self._open), outcome)
        raise NothingSuspended(answer.id, outcome)

    def accept(
        self,
        found: OpenRequest,
        said: Answer,
        kept: Answer,
        runs: frozenset[str],
        pending: PendingRequest | None,
    ) -> None:
        """Move a request from open to answered; from now on no other answer is taken.

        Args:
            found: The request.
            said: The answer as it was given.
            kept: The same without secret fields.
            runs: See `Accepted`.
            pending: See `Accepted`.
        """
        secret = secret_fields(found.request)
        ids = tuple(dict.fromkeys(one.handle.id for one in found.places))
        self._close(found)
        self._answered[kept.id] = Accepted(
            kept,
            secret,
            self._digest(said) if secret else b"",
            ids,
            runs,
            found.request.expires_at,
            pending,
        )
        if len(self._answered) > _ANSWERED_KEPT:
            self._answered.popitem(last=False)

    def _expire(self, request_id: str, at: datetime) -> None:
        heapq.heappush(self._expiring, (at, request_id))
        if len(self._expiring) > 2 * len(self._open) + _CLOSED_KEPT:
            self._expiring = [one for one in self._expiring if one[1] in self._open]
            heapq.heapify(self._expiring)

    def _close(self, found: OpenRequest) -> None:
        request = found.request
        self._open.pop(request.id, None)
        login = login_key(request)
        if login is not None and self._logins.get(login) == request.id:
            del self._logins[login]

    def _digest(self, answer: Answer) -> bytes:
        return hmac.digest(self._key, canonical(answer.data).encode(), "sha256")

    def _says_the_same(self, accepted: Accepted, answer: Answer) -> bool:
        """Compare what counts. As JSON: True equals 1 in Python only, 1.0 equals 1 in both."""
        if accepted.answer.ok is not answer.ok:
            return False
        if accepted.secret:
            return hmac.compare_digest(accepted.digest, self._digest(answer))
        return same_json(accepted.answer.data, answer.data)
