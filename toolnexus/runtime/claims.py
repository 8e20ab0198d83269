"""Claims: accepting answers where a store has the requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.answering import require_fit, sealed
from toolnexus.checkpoint import CallState
from toolnexus.errors import (
    AlreadyAnswered,
    ConfigError,
    NothingSuspended,
    RequestExpired,
    StoreError,
    UnknownRequest,
)
from toolnexus.forms import secret_fields
from toolnexus.keywords import same_json
from toolnexus.runtime.audit import How, is_logged, write
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import PendingRequest
from toolnexus.runtime.keeping import Keeper
from toolnexus.runtime.requests import Asked, Said, all_asked, asked
from toolnexus.runtime.stored import reading
from toolnexus.runtime.task import tool_of
from toolnexus.stores.records import Claim, RequestRecord
from toolnexus.suspension import Answer, format_time
from toolnexus.vault import Vault

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_COUNTED = 1_000
"""How many open requests are counted for an error's text."""


@attrs.frozen
class Found:
    """What an answer fits.

    Attributes:
        asked: The request.
        claim: How it becomes the answer; None where it is that already.
        turns: Ids of the turns that it lets go on.
        handle_ids: The handles that it is for.
    """

    asked: Asked
    claim: Claim | None
    turns: frozenset[str]
    handle_ids: tuple[str, ...]


class Claims:
    """Finds and claims. Every method is called without the lock."""

    def __init__(self, core: Core, keeper: Keeper) -> None:
        self._core = core
        self._keeper = keeper
        # Expired requests that could not be settled, so that each is told once. Ids are never
        # used again, so nobody minds two threads here.
        self._left: set[str] = set()

    def claim(
        self,
        answers: Sequence[Answer],
        may: Callable[[CallState, PendingRequest, Answer], object],
        how: How = "resume",
        principal: str | None = None,
    ) -> list[Found]:
        """Make `answers` the ones that count, all of them or none.

        Args:
            answers: Each to a request of its own.
            may: Raises where the host does not let it be given.
            how: By what the requests are settled.
            principal: Who answers, for the audit.

        Raises:
            ResumeError: One fits nothing; nothing has changed.
        """
        if self._keeper.is_detached:
            raise ConfigError("the runtime is closed; it accepts no answers")
        while True:
            found = [self._find(one, may, how, principal) for one in answers]
            # By id: one may be in the list twice.
            claims = list(
                {one.claim.request_id: one.claim for one in found if one.claim}.values()
            )
            if not claims or self._record(claims, found, answers):
                break
        for one in found:
            if one.claim is not None and is_logged():
                write(one.asked.settled(Said.from_dict(one.claim.answer)))
        return found

    def _record(
        self, claims: Sequence[Claim], found: Sequence[Found], answers: Sequence[Answer]
    ) -> bool:
        """Record answers, whose secrets are in the vault before a tool is given them."""
        keeper, vault = self._keeper, self._core.vault
        hidden = [
            (one.asked.request, answer)
            for one, answer in zip(found, answers, strict=True)
            if one.claim is not None and secret_fields(one.asked.request)
        ]
        if not hidden:
            return keeper.store.claim(keeper.name, claims)
        with vault.sealing:
            if not all(self._is_open(request.id) for request, _ in hidden):
                return False  # somebody was first, and may be given what is in the vault
            before = {request.id: vault.get(request.id) for request, _ in hidden}
            for request, answer in hidden:
                sealed(request, answer, vault)
            is_recorded: bool | None = None
            try:
                is_recorded = keeper.store.claim(keeper.name, claims)
            finally:
                if is_recorded is None:
                    is_recorded = self._may_be_recorded(claims)
                if not is_recorded:
                    vault.restore(before)
        return is_recorded

    def _is_open(self, request_id: str) -> bool:
        record = self._keeper.store.request(self._keeper.name, request_id)
        return record is not None and record.state == "open"

    def _may_be_recorded(self, claims: Sequence[Claim]) -> bool:
        """Say whether answers may count though the store has failed to say so."""
        keeper = self._keeper
        try:
            found = [keeper.store.request(keeper.name, one.request_id) for one in claims]
        except StoreError:
            return True
        return all(
            record is not None and record.answer == one.answer
            for record, one in zip(found, claims, strict=True)
        )

    def expire_due(self) -> list[Found]:
        """Settle every open request whose time has passed, one by one.

        One that cannot be settled is left open, and keeps no other from it.

        Raises:
            StoreError: The store does not work; nothing was settled.
        """
        keeper, now, expired = self._keeper, self._core.clock.now(), []
        failure: StoreError | None = None
        # All of them first: what fails to be read must not hide what was settled.
        for record in list(keeper.store.requests(keeper.name, state="open", due=now)):
            try:
                found = self._late(record)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with this one
                self._tell_left(record, error)
                continue
            try:
                if found.claim and keeper.store.claim(keeper.name, [found.claim]):
                    expired.append(found)
            except StoreError as error:
                self._tell_left(record, error)
                failure = error
        if failure is not None and not expired:
            raise failure
        return expired

    def _late(self, record: RequestRecord) -> Found:
        late = Answer(record.id, ok=False, reason="expired")
        return self._found([asked(record)], late, "expiry", None)

    def _tell_left(self, record: RequestRecord, error: Exception) -> None:
        """Log that a request stays open; the timer comes back to it again and again."""
        level = logging.DEBUG if record.id in self._left else logging.ERROR
        self._left.add(record.id)
        logger.log(level, "request %s has expired and is left open: %r", record.id, error)

    def _find(
        self,
        answer: Answer,
        may: Callable[[CallState, PendingRequest, Answer], object],
        how: How,
        principal: str | None,
    ) -> Found:
        keeper, now = self._keeper, self._core.clock.now()
        record = keeper.store.request(keeper.name, answer.id)
        if record is None or record.state == "gone":
            raise self._unknown(answer.id, record)
        waiting = all_asked(keeper.store, keeper.name, record)
        for one in waiting:
            may(one.call, one.pending(now), answer)
        if record.state == "answered":
            return self._again(waiting[0], answer)
        for one in waiting:
            # Before anything is accepted: an agent that is gone has to be back first.
            definition = keeper.shells.of(one.handle_id).definition
            tool = tool_of(definition, one.call.name)
            require_fit(one.call, answer, self._core.clock, tool)
        return self._found(waiting, answer, how, principal)

    def _found(
        self, waiting: Sequence[Asked], answer: Answer, how: How, principal: str | None
    ) -> Found:
        one, *others = waiting
        kept = sealed(one.request, answer, Vault())
        shared = tuple((other.handle_id, other.call.id) for other in others)
        turns = frozenset(one.turns).union(*(other.turns for other in others))
        said = Said(kept, how, self._core.clock.now(), principal, tuple(sorted(turns)), shared)
        claim = Claim(request_id=answer.id, waits=one.record.waits, answer=said.to_dict())
        return Found(one, claim, turns, one.handle_ids)

    def _again(self, one: Asked, answer: Answer) -> Found:
        """Return what an equal answer has let go on."""
        with reading(f"the answer to request {answer.id!r}"):
            said = Said.from_dict(one.record.answer)
        recorded = said.answer
        kept = sealed(one.request, answer, Vault())
        # What was said in secret is nowhere to be compared with.
        if recorded.ok is kept.ok and same_json(recorded.data, kept.data):
            return Found(one, None, frozenset(said.turns), self._had_waited(one, said))
        expires_at = one.record.expires_at
        if recorded.outcome == "expired" and expires_at is not None:
            raise RequestExpired(answer.id, format_time(expires_at))
        raise AlreadyAnswered(recorded)

    def _had_waited(self, one: Asked, said: Said) -> tuple[str, ...]:
        """Return the handles that an answer was for, as far as they are there."""
        keeper, shared = self._keeper, (handle_id for handle_id, _ in said.shared_with)
        there = [i for i in shared if keeper.store.handle(keeper.name, i) is not None]
        return tuple(dict.fromkeys((*one.handle_ids, *there)))

    def _unknown(
        self, request_id: str, record: RequestRecord | None
    ) -> UnknownRequest | NothingSuspended:
        note: Any = None if record is None else record.note
        outcome = note.get("outcome") if isinstance(note, Mapping) else None
        if record is not None and outcome is None:
            outcome = "cancelled"
        keeper = self._keeper
        count = sum(1 for _ in keeper.store.requests(keeper.name, state="open", limit=_COUNTED))
        if count:
            return UnknownRequest(request_id, count, outcome)
        return NothingSuspended(request_id, outcome, keeper.name)
