"""Checkpoint: the value a parked turn is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

import attrs

from toolnexus.codec import JsonValue, copy, optional, refuse_unknown, typed
from toolnexus.errors import ConfigError, WireFormatError
from toolnexus.messages import PARKED, Message, Usage
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import ToolResult, content_of_result

SCHEMAS: Final = {
    1: "first form",
    2: "a call's gates, questions, steps and approval",
    3: "the number of a call's child, and what a call that may have run was",
}
CURRENT_SCHEMA: Final = max(SCHEMAS)

CallStatus: TypeAlias = Literal["ready", "started", "open", "stalled", "done"]
"""Not started; in flight; waits for an answer; waits for a retry of its child; has a result."""

_ASKER_KEYS: Final = ("gate", "passed", "place", "past", "before")
_CALL_KEYS: Final = (
    *("id", "name", "arguments", "status", "attempt", "request", "askedAt", "answer"),
    *("result", "child", *_ASKER_KEYS, "once", "approved", "proposed", "number"),
)
_KEYS: Final = ("schema", "run", "base", "messages", "calls", "turns", "usage", "toolCalls")

_NO_STEPS: Final[Mapping[str, JsonValue]] = {}  # a plain one, so that pickling works


@attrs.frozen
class Exchange:
    """A question that a call has asked by `ctx.ask`, and what was said to it.

    Attributes:
        request: The question.
        answer: Without its secret fields.
    """

    request: Request
    answer: Answer

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON."""
        return {"request": self.request.to_dict(), "answer": self.answer.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Exchange:
        """Read what `to_dict` wrote.

        Raises:
            WireFormatError: A key is unknown or missing, or a part is malformed.
        """
        keys = ("request", "answer")
        data = refuse_unknown("Exchange", data, keys, keys)
        return cls(Request.from_dict(data["request"]), Answer.from_dict(data["answer"]))


@attrs.frozen
class Asker:
    """Who asks a call's question: its tool, a `ctx.ask` of it, or a gate before it.

    Or none of these, where its process ended in the call. The keys are among those of the
    call's JSON.

    Attributes:
        gate: Position of the gate that asked: a before-hook, or, behind them all, the approval.
            None where the tool asked.
        passed: Names of the gates that need not look at it again, the one that asked last;
            empty where none asked.
        place: Which `ctx.ask` of the tool asked, from 0; None where none did.
        past: The questions before that one, in the order in which the tool asks them.
        before: The call as it was in flight when its process ended, where the question is
            whether to run it again; None where the tool or a gate asked.
    """

    gate: int | None = None
    passed: tuple[str, ...] = ()
    place: int | None = None
    past: tuple[Exchange, ...] = ()
    before: CallState | None = attrs.field(default=None, repr=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Asker:
        """Read the JSON of a call.

        Raises:
            WireFormatError: A part is malformed.
        """
        if all(data.get(key) is None for key in _ASKER_KEYS):
            return THE_TOOL  # one for all: nearly every call has it
        passed = optional("CallState", data, "passed", list) or ()
        past = optional("CallState", data, "past", list) or ()
        if not all(isinstance(name, str) for name in passed):
            raise WireFormatError("CallState.passed must be a list of strings")
        return cls(
            optional("CallState", data, "gate", int),
            tuple(passed),
            optional("CallState", data, "place", int),
            tuple(map(Exchange.from_dict, past)),
            _in_flight(data.get("before")),
        )


THE_TOOL: Final = Asker()


@attrs.frozen
class CallState:
    """Where one call of the halted assistant message stands.

    Attributes:
        id: The model's id of the call, unique within its message.
        name: The tool's name.
        arguments: JSON text; the effective arguments where a hook rewrote them.
        status: See `CallStatus`.
        attempt: Executions so far.
        request: What the call waits on; None unless it asked. With `child`, the child's.
        asked_at: RFC 3339 time at which it asked; None unless it asked.
        answer: Accepted, and not yet consumed by an execution; None else.
        result: The final result; None until `done`.
        child: Id of the handle that a delegating call runs; None for other calls.
        number: The end of the child's id, set aside before there is a child; None for other
            calls.
        by: Who asked `request`.
        once: JSON that `ctx.once` has kept, by key.
        approved: Digest of the tool and the arguments that the tool's gate has let pass.
        proposed: The arguments before that person changed them; None where nobody did.
    """

    id: str
    name: str
    arguments: str = attrs.field(repr=False)
    status: CallStatus = "ready"
    attempt: int = 0
    request: Request | None = None
    asked_at: str | None = None
    answer: Answer | None = None
    result: ToolResult | None = attrs.field(default=None, repr=False)
    child: str | None = None
    by: Asker = THE_TOOL
    once: Mapping[str, JsonValue] = attrs.field(default=_NO_STEPS, repr=False)
    approved: str | None = None
    proposed: str | None = attrs.field(default=None, repr=False)
    number: int | None = None

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON; absent optionals are left out."""
        out: dict[str, JsonValue] = {
            "id": self.id,
            "name": self.name,
            "arguments": self.arguments,
            "status": self.status,
            "attempt": self.attempt,
        }
        others = {
            "request": self.request and self.request.to_dict(),
            "askedAt": self.asked_at,
            "answer": self.answer and self.answer.to_dict(),
            "result": self.result and self.result.to_dict(),
            "child": self.child,
            "gate": self.by.gate,
            "passed": list(self.by.passed) or None,
            "place": self.by.place,
            "past": [one.to_dict() for one in self.by.past] or None,
            "once": dict(self.once) or None,
            "approved": self.approved,
            "proposed": self.proposed,
            "number": self.number,
            "before": self.by.before and self.by.before.to_dict(),
        }
        out.update((key, value) for key, value in others.items() if value is not None)
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> CallState:
        """Read what `to_dict` wrote.

        Raises:
            WireFormatError: A key is unknown or missing, or a part is malformed.
        """
        data = refuse_unknown("CallState", data, _CALL_KEYS, _CALL_KEYS[:4])
        if data["status"] not in get_args(CallStatus):
            known = ", ".join(get_args(CallStatus))
            raise WireFormatError(
                f"CallState.status must be one of {known}, not {data['status']!r}"
            )
        request, answer, result = data.get("request"), data.get("answer"), data.get("result")
        if data["status"] == "open" and request is None:
            raise WireFormatError("CallState.request must be there where the status is open")
        return cls(
            id=typed("CallState", data, "id", str),
            name=typed("CallState", data, "name", str),
            arguments=typed("CallState", data, "arguments", str),
            status=data["status"],
            attempt=typed("CallState", data, "attempt", int) if "attempt" in data else 0,
            request=None if request is None else Request.from_dict(request),
            asked_at=optional("CallState", data, "askedAt", str),
            answer=None if answer is None else Answer.from_dict(answer),
            result=None if result is None else ToolResult.from_dict(result),
            child=optional("CallState", data, "child", str),
            by=Asker.from_dict(data),
            once=optional("CallState", data, "once", dict) or _NO_STEPS,
            approved=optional("CallState", data, "approved", str),
            proposed=optional("CallState", data, "proposed", str),
            number=optional("CallState", data, "number", int),
        )


def _in_flight(data: Mapping[str, JsonValue] | None) -> CallState | None:
    if data is None:
        return None
    call = CallState.from_dict(data)
    if call.status != "started" or call.by.before is not None:
        raise WireFormatError("CallState.before must be a call that was started")
    return call


@attrs.frozen
class Checkpoint:
    """A turn at rest between two steps, complete in itself: JSON in, JSON out.

    Attributes:
        run: Random id of the turn; part of every idempotency key.
        base: How many of `messages` were there before the turn.
        messages: The working transcript. Where `calls` is not empty it ends with the assistant
            message that asked for them.
        calls: The calls of that message, in its order, until all have a result.
        turns: LLM calls in this turn.
        usage: Tokens of this turn.
        tool_calls: Tool calls of this turn.
    """

    run: str
    base: int
    messages: tuple[Message, ...] = attrs.field(repr=False)
    calls: tuple[CallState, ...] = ()
    turns: int = 0
    usage: Usage = attrs.field(factory=Usage)
    tool_calls: int = 0

    @property
    def is_waiting(self) -> bool:
        """Whether it can only go on with an answer: nothing is due and something is asked."""
        left = [call for call in self.calls if call.status != "done"]
        return bool(left) and all(
            call.status == "open" and call.answer is None for call in left
        )

    @property
    def pending(self) -> Request | None:
        """The first request in call order that nobody has answered; None without one."""
        return next(iter(self.requests), None)

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every request that nobody has answered, in call order; relayed calls share one."""
        waiting = (
            call.request for call in self.calls if call.status == "open" and call.answer is None
        )
        return tuple({request.id: request for request in waiting if request}.values())

    def to_messages(self) -> list[Message]:
        """Return the transcript: the messages, and the results of the calls that have one.

        Its last assistant message carries the rest of the checkpoint under `_parked`, so the
        list alone says everything and a conversation store needs to know nothing of it.
        """
        rest = self.to_dict()
        del rest["messages"]
        messages = list(self.messages)
        last = last_reply(messages)
        if last is not None:
            messages[last] = {**messages[last], PARKED: rest}
        return messages + [tool_message(call) for call in self.calls if call.result is not None]

    @classmethod
    def from_messages(cls, messages: Sequence[Message]) -> Checkpoint | None:
        """Return where a transcript stands in mid-turn; None where no turn is under way.

        A result in the transcript counts, also one that somebody has put there or changed.

        Raises:
            WireFormatError: A newer release wrote it, or it is malformed.
        """
        last = last_reply(messages)
        rest = None if last is None else messages[last].get(PARKED)
        if last is None or rest is None:
            return None
        if not isinstance(rest, Mapping):
            raise WireFormatError(f"{PARKED} must be an object, not {type(rest).__name__}")
        whole = list(messages) if not rest.get("calls") else list(messages[: last + 1])
        whole[last] = {key: value for key, value in whole[last].items() if key != PARKED}
        saved = cls.from_dict({**rest, "messages": whole})
        told = results_by_call(messages[last + 1 :])
        calls = tuple(_as_told(call, told.get(call.id)) for call in saved.calls)
        return attrs.evolve(saved, calls=calls)

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON."""
        return {
            "schema": CURRENT_SCHEMA,
            "run": self.run,
            "base": self.base,
            "messages": copy(self.messages),
            "calls": [call.to_dict() for call in self.calls],
            "turns": self.turns,
            "usage": self.usage.to_dict(),
            "toolCalls": self.tool_calls,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Checkpoint:
        """Read what this or an earlier release wrote.

        Raises:
            WireFormatError: The schema is unknown or newer, a key is unknown or missing, or a
                part is malformed.
        """
        _check_schema(data)
        data = refuse_unknown("Checkpoint", data, _KEYS, _KEYS)
        messages = tuple(typed("Checkpoint", data, "messages", list))
        if not all(isinstance(message, dict) for message in messages):
            raise WireFormatError("Checkpoint.messages must be a list of objects")
        calls = tuple(map(CallState.from_dict, typed("Checkpoint", data, "calls", list)))
        if calls and (not messages or messages[-1].get("role") != "assistant"):
            raise WireFormatError(
                "Checkpoint.messages must end with the assistant message that made its calls"
            )
        return cls(
            run=typed("Checkpoint", data, "run", str),
            base=typed("Checkpoint", data, "base", int),
            messages=messages,
            calls=calls,
            turns=typed("Checkpoint", data, "turns", int),
            usage=Usage.from_dict(data["usage"]),
            tool_calls=typed("Checkpoint", data, "toolCalls", int),
        )


def results_by_call(messages: Sequence[Message]) -> dict[str, Message]:
    """Return tool messages by the id of their call."""
    told = [one for one in messages if isinstance(one.get("tool_call_id"), str)]
    return {one["tool_call_id"]: one for one in told}


def result_told(message: Message) -> ToolResult:
    """Return the result that a tool message of a transcript tells."""
    content, is_error = message.get("content"), message.get("_is_error") is True
    if isinstance(content, list):
        try:
            return ToolResult(parts=content, is_error=is_error)
        except ConfigError:
            pass  # no parts: JSON that is told as such
    return ToolResult(content, is_error=is_error)


def _as_told(call: CallState, message: Message | None) -> CallState:
    if message is None or (call.result is not None and tool_message(call) == message):
        return call
    result = result_told(message)
    return attrs.evolve(
        call, status="done", request=None, answer=None, result=result, by=THE_TOOL
    )


def last_reply(messages: Sequence[Message]) -> int | None:
    """Return where the last assistant message is, if only tool results follow it."""
    for index in range(len(messages) - 1, -1, -1):
        role = messages[index].get("role")
        if role != "tool":
            return index if role == "assistant" else None
    return None


def tool_message(call: CallState) -> Message:
    """Return the transcript's message for a finished call."""
    result = call.result or ToolResult.error("no result")
    content = content_of_result(result)
    message: Message = {"role": "tool", "tool_call_id": call.id, "content": content}
    if result.is_error:
        message["_is_error"] = True
    return message


def _check_schema(data: object) -> None:
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if type(schema) is int and schema in SCHEMAS:
        return
    known = ", ".join(map(str, SCHEMAS))
    newer = type(schema) is int and schema > CURRENT_SCHEMA
    raise WireFormatError(
        f"checkpoint schema {schema!r} cannot be read by this release (reads {known})"
        + ("; a newer toolnexus wrote it" if newer else "")
    )
