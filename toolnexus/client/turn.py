"""Turn: the working state of one run, at a consistent point after every step."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs

from toolnexus.checkpoint import THE_TOOL, Asker, CallState, Checkpoint, tool_message
from toolnexus.client.states import (
    THE_PROCESS_ENDED,
    begun_call,
    due_again,
    reattaching_call,
    settle_call,
    superseded_call,
)
from toolnexus.codec import JsonValue
from toolnexus.messages import ANSWERED as RECORDED
from toolnexus.messages import Message, Usage
from toolnexus.suspension import Answer, Request, new_request_id
from toolnexus.toolspec import ToolResult
from toolnexus.wire.base import ModelReply
from toolnexus.wire.content import text_of


@attrs.frozen
class Execution:
    """What an execution gave.

    Attributes:
        result: Final, or the question that the call suspends on.
        by: Who asks that.
    """

    result: ToolResult
    by: Asker = THE_TOOL


class Turn:
    """The messages of a run so far, and where each call of the last reply stands.

    Every change is one method that takes `lock`, so a thread that interrupts the run finds it
    between two steps. Messages are never changed once they are in.
    """

    __slots__ = (
        *(
            "_asked_below",
            "_booked",
            "_outside",
            "base",
            "calls",
            "lock",
            "messages",
            "offers_again",
            "run",
        ),
        *("tool_calls", "turns", "usage"),
    )

    def __init__(
        self,
        messages: Sequence[Message],
        base: int,
        lock: AbstractContextManager[Any] | None = None,
        run: str | None = None,
    ) -> None:
        self.lock = lock or threading.RLock()
        # -- guarded by lock --------------------------------------------------------------
        self.run = secrets.token_hex(8) if run is None else run
        self.base = base
        self.messages = list(messages)
        self.calls: list[CallState] = []
        self.turns = 0
        self.usage = Usage()
        self.tool_calls = 0
        # Started calls that have not come to their tools, as they were before.
        self._outside: dict[int, CallState] = {}
        # What the agents ask that calls have delegated to; a login may be another's question.
        self._asked_below: dict[int, str] = {}
        # Calls that a budget has counted.
        self._booked: set[int] = set()
        # Whether what was open before has to be offered to an inline interpreter once more.
        self.offers_again = False

    @classmethod
    def restore(
        cls,
        saved: Checkpoint,
        lock: AbstractContextManager[Any] | None = None,
        *,
        keeps_in_flight: bool = False,
    ) -> Turn:
        """Return the turn that `saved` was taken from.

        Args:
            saved: The value.
            lock: Guards the turn; one of its own unless given.
            keeps_in_flight: Leave the calls that were in flight to `recover_calls`, which must
                decide on them before the turn goes on.
        """
        turn = cls(saved.messages, saved.base, lock, saved.run)
        # Nobody can have saved a call in flight but a process that is no more.
        turn.calls = [
            settle_call(call, THE_PROCESS_ENDED)
            if call.status == "started" and not keeps_in_flight
            else call
            for call in saved.calls
        ]
        turn.turns = saved.turns
        turn.usage = saved.usage
        turn.tool_calls = saved.tool_calls
        return turn

    def checkpoint(self) -> Checkpoint:
        """Return the turn as a value."""
        with self.lock:
            return Checkpoint(
                run=self.run,
                base=self.base,
                messages=tuple(self.messages),
                calls=tuple(self.calls),
                turns=self.turns,
                usage=self.usage,
                tool_calls=self.tool_calls,
            )

    def add_reply(self, reply: ModelReply) -> None:
        """Take a model's reply in; its calls become ready."""
        with self.lock:
            self.messages.append(reply.message)
            self.turns += 1
            self.usage = self.usage + reply.usage
            self.tool_calls += len(reply.calls)
            self.calls = [CallState(call.id, call.name, call.arguments) for call in reply.calls]
            self._outside, self._booked = {}, set()

    def stored(self) -> Checkpoint:
        """Return the turn as a store should have it; see `stored_calls`."""
        with self.lock:
            return attrs.evolve(self.checkpoint(), calls=self.stored_calls())

    def stored_calls(self) -> tuple[CallState, ...]:
        """Return the calls as a store should have them, so that another process may go on.

        In flight is what is in its tool, and nothing else: one that its gates still look at
        stands where it stood before, but for its steps. One that runs a child reattaches to it.
        """
        with self.lock:
            return tuple(self._stored(index, call) for index, call in enumerate(self.calls))

    def _stored(self, index: int, call: CallState) -> CallState:
        if call.status != "started":
            return call
        if call.child is not None:
            return reattaching_call(call)
        before = self._outside.get(index)
        return call if before is None else attrs.evolve(before, once=call.once)

    def start(self, index: int) -> CallState:
        """Mark a call as begun and return it as it was.

        An accepted answer stays with it until there is a result: what is lost on the way
        does not lose the answer.
        """
        with self.lock:
            call = self._outside[index] = self.calls[index]
            self.calls[index] = begun_call(call)
            return call

    def note_booked(self, index: int) -> None:
        """Note that a budget has counted a call."""
        with self.lock:
            self._booked.add(index)

    def booked_in_vain(self) -> int:
        """Return how many calls are counted anew by who goes on from `stored_calls`."""
        with self.lock:
            return sum(
                1
                for index in self._booked & self._outside.keys()
                if self.calls[index].status == "started" and self.calls[index].child is None
            )

    def again(self, index: int) -> CallState:
        """Begin a call anew that a person lets run again, and return it as it then is.

        It has what it had when it was lost: its key, its answer, what it has asked and done.
        """
        with self.lock:
            lost = self.calls[index].by.before
            assert lost is not None  # noqa: S101 - nobody else was asked about
            call = due_again(lost)
            self.calls[index] = begun_call(call)
            return call

    def enter(self, index: int) -> None:
        """Mark a begun call as in flight: from here on its tool may have taken effect."""
        with self.lock:
            self._outside.pop(index, None)

    def key_of(self, index: int) -> str:
        """Return the text that is the same for every execution of a call, and of no other."""
        return f"{self.run}-{self.turns}-{index}"

    def step_name(self, index: int, key: str) -> str:
        """Return what the result of a call's step is known by in the vault."""
        return f"{self.key_of(index)} {key}"

    def secrets_of(self, index: int) -> list[str]:
        """Return what the vault may have of a call alone: a login may be others' too."""
        call = self.calls[index]
        asked = [one.request for one in call.by.past]
        if call.request is not None:
            asked.append(call.request)
        own = [one.id for one in asked if one.resource is None]
        return [*own, *(self.step_name(index, key) for key in call.once)]

    def all_secrets(self) -> list[str]:
        """Return what the vault may have of the calls that are not done."""
        return [name for index in range(len(self.calls)) for name in self.secrets_of(index)]

    def rewrite(self, index: int, arguments: str) -> None:
        """Keep the arguments that are executed where a hook changed them."""
        with self.lock:
            self.calls[index] = attrs.evolve(self.calls[index], arguments=arguments)

    def approve(self, index: int, digest: str, edited: str | None) -> None:
        """Note what a person let a call be executed with.

        Args:
            index: The call's position.
            digest: Of the tool and the arguments.
            edited: JSON text of those, where the person changed them; None where not.
        """
        with self.lock:
            call = attrs.evolve(self.calls[index], approved=digest)
            if edited is not None:
                # What the model proposed stays, however often people change it.
                proposed = call.proposed or call.arguments
                call = attrs.evolve(call, arguments=edited, proposed=proposed)
            self.calls[index] = call

    def note_once(self, index: int, key: str, value: JsonValue) -> None:
        """Keep what `ctx.once` gave."""
        with self.lock:
            call = self.calls[index]
            self.calls[index] = attrs.evolve(call, once={**call.once, key: value})

    def open(self, index: int, request: Request, asked_at: str, by: Asker = THE_TOOL) -> None:
        """Park a call on a question.

        A tool that gives every question the same id gets another id for the next one, also
        where that comes in a later message: an answer fits one question only.

        Args:
            index: The call's position.
            request: The question.
            asked_at: When, as RFC 3339.
            by: Who asks it.
        """
        with self.lock:
            call = self.calls[index]
            in_use = {one.request.id for one in self.calls if one.request is not None}
            for message in self.messages:
                recorded = message.get(RECORDED)
                in_use.update(recorded if isinstance(recorded, dict) else ())
            if call.child is None and request.id in in_use:
                request = attrs.evolve(request, id=new_request_id())
            self._outside.pop(index, None)
            self.calls[index] = attrs.evolve(
                call,
                status="open",
                # Where a hook asked, the tool has not been executed.
                attempt=call.attempt if by.gate is None else call.attempt - 1,
                request=request,
                asked_at=asked_at,
                answer=None,
                by=by,
            )

    def reserve(self, index: int, number: int) -> None:
        """Set the end of a child's id aside for a delegating call."""
        with self.lock:
            self.calls[index] = attrs.evolve(self.calls[index], number=number)

    def attach(self, index: int, child: str) -> None:
        """Record which handle a delegating call runs."""
        with self.lock:
            self.calls[index] = attrs.evolve(self.calls[index], child=child)

    def note_asked_below(self, index: int, request: Request) -> None:
        """Record what the agent waits for that a delegating call runs."""
        with self.lock:
            self._asked_below[index] = request.id

    def is_asked_below(self, index: int, request: Request) -> bool:
        """Whether a call only passes on what its agent asks."""
        with self.lock:
            return self._asked_below.get(index) == request.id

    def share(self, indexes: Sequence[int], request: Request) -> None:
        """Let several open calls wait on one request; its answer is for all of them."""
        with self.lock:
            for index in indexes:
                self.calls[index] = attrs.evolve(self.calls[index], request=request)

    def answer(self, index: int, answer: Answer) -> None:
        """Accept an answer for every call that waits on it; the next pass executes them."""
        with self.lock:
            request = self.calls[index].request
            for other, call in enumerate(self.calls):
                shares = call.status == "open" and call.child is None
                if other == index or (shares and call.request == request):
                    self.calls[other] = attrs.evolve(call, answer=answer)

    def stall(self, index: int) -> None:
        """Let a delegating call wait for a retry of its child."""
        with self.lock:
            self._outside.pop(index, None)
            self.calls[index] = attrs.evolve(self.calls[index], status="stalled")

    def retry_stalled(self) -> None:
        """Make the stalled calls ready: they reattach and retry their children."""
        with self.lock:
            self.calls = [
                attrs.evolve(call, status="ready") if call.status == "stalled" else call
                for call in self.calls
            ]

    def finish(self, index: int, result: ToolResult) -> None:
        """Give a call its final result."""
        with self.lock:
            call = self.calls[index]
            self._outside.pop(index, None)
            # Spelled out, as in `begun_call`.
            self.calls[index] = CallState(
                call.id,
                call.name,
                call.arguments,
                "done",
                call.attempt,
                result=result,
                child=call.child,
                proposed=call.proposed,
            )

    def close_calls(self) -> None:
        """Move the results of finished calls into the transcript, in call order."""
        with self.lock:
            self.messages.extend(tool_message(call) for call in self.calls)
            self.calls = []

    def final_text(self) -> str | None:
        """Return the final text where a retry finds that it had come already; None else."""
        last = self.messages[-1]
        if not self.turns or last.get("role") != "assistant" or last.get("tool_calls"):
            return None
        return text_of(last.get("content"))

    def settled_transcript(self, reason: str) -> list[Message]:
        """Return the messages with every call closed, saying truthfully how.

        Args:
            reason: Why the run stopped, such as `interrupted`.
        """
        with self.lock:
            return [
                *self.messages,
                *(tool_message(settle_call(call, reason)) for call in self.calls),
            ]


def superseded_transcript(turn: Turn) -> list[Message]:
    """Return the messages of a parked turn with every open call settled as not executed."""
    settled = map(superseded_call, turn.calls)
    return [*turn.messages, *map(tool_message, settled)]


def settled_checkpoint(turn: Turn, reason: str) -> Checkpoint:
    """Return the turn as a value with every call closed, saying truthfully how."""
    saved = turn.checkpoint()
    return attrs.evolve(saved, calls=tuple(settle_call(call, reason) for call in saved.calls))


def stalled_checkpoint(turn: Turn, reason: str) -> Checkpoint:
    """Return the turn as a value for a retry: only what was in flight is closed."""
    saved = turn.checkpoint()
    calls = (
        settle_call(call, reason) if call.status == "started" else call for call in saved.calls
    )
    return attrs.evolve(saved, calls=tuple(calls))
