"""RequestBook: which requests are open, and which answers were accepted.

Every method is called with the runtime's lock held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import attrs

from toolnexus.checkpoint import CallState, Checkpoint
from toolnexus.errors import AlreadyAnswered, NothingSuspended, UnknownRequest
from toolnexus.keywords import same_json
from toolnexus.suspension import Answer, new_request_id

if TYPE_CHECKING:
    from toolnexus.runtime.handle import Handle

_ANSWERED_KEPT: Final = 4_096
"""Accepted answers remembered, so that a second delivery is known for what it is."""


@attrs.frozen
class OpenRequest:
    """Where the answer to an open request goes."""

    handle: Handle
    index: int


@attrs.frozen
class Accepted:
    """An answer that was accepted.

    Attributes:
        answer: What was said.
        handle_id: The handle it went to; by id, so that a closed one is not kept alive.
        runs: Ids of the turns that it let go on: the asker's and its suspended ancestors'.
    """

    answer: Answer
    handle_id: str
    runs: frozenset[str]


class RequestBook:
    """The open requests, in the order in which they parked, and the last accepted answers."""

    __slots__ = ("_answered", "_open")

    def __init__(self) -> None:
        self._open: dict[str, OpenRequest] = {}
        self._answered: OrderedDict[str, Accepted] = OrderedDict()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(self._open.values())

    def park(self, handle: Handle, parked: Checkpoint) -> Checkpoint:
        """Open the requests of a turn that parks, and return it with their ids unique.

        A tool may give every request the same id; an answer to one must never fit another, so
        an id that is or was in use is replaced.
        """
        calls = list(parked.calls)
        for index, call in enumerate(calls):
            if call.status != "open" or call.child is not None or call.request is None:
                continue
            known = self._open.get(call.request.id)
            if known is not None and known.handle is handle:
                continue  # open already, or shared with an earlier call of this message
            if known is not None or call.request.id in self._answered:
                request = attrs.evolve(call.request, id=new_request_id())
                calls[index] = call = attrs.evolve(call, request=request)
            assert call.request is not None  # noqa: S101 - checked above
            self._open[call.request.id] = OpenRequest(handle, index)
        return attrs.evolve(parked, calls=tuple(calls))

    def withdraw(self, calls: tuple[CallState, ...]) -> None:
        """Close the requests of `calls`: no answer fits them any more."""
        for call in calls:
            if call.status == "open" and call.child is None and call.request is not None:
                self._open.pop(call.request.id, None)

    def find(self, answer: Answer) -> OpenRequest | Accepted:
        """Return the open request that `answer` fits, or the equal answer accepted before.

        Raises:
            AlreadyAnswered: The request was answered, differently.
            UnknownRequest: No request has that id.
            NothingSuspended: No request is open at all.
        """
        accepted = self._answered.get(answer.id)
        if accepted is not None:
            if _says_the_same(accepted.answer, answer):
                return accepted
            raise AlreadyAnswered(accepted.answer)
        found = self._open.get(answer.id)
        if found is not None:
            return found
        if self._open:
            raise UnknownRequest(answer.id, len(self._open))
        raise NothingSuspended(answer.id)

    def accept(self, answer: Answer, runs: frozenset[str]) -> None:
        """Move a request from open to answered; from now on no other answer is taken."""
        found = self._open.pop(answer.id)
        self._answered[answer.id] = Accepted(answer, found.handle.id, runs)
        if len(self._answered) > _ANSWERED_KEPT:
            self._answered.popitem(last=False)


def _says_the_same(first: Answer, second: Answer) -> bool:
    """Compare what counts. As JSON: True equals 1 in Python only, 1.0 equals 1 in both."""
    return first.ok is second.ok and same_json(first.data, second.data)
