"""Checkpoint: the value a parked turn is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from toolnexus.codec import JsonValue, copy, refuse_unknown
from toolnexus.errors import WireFormatError
from toolnexus.messages import Message, Usage
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import ToolResult

SCHEMAS: Final = {1: "first form"}
CURRENT_SCHEMA: Final = max(SCHEMAS)

CallStatus: TypeAlias = Literal["ready", "started", "open", "stalled", "done"]
"""Not started; in flight; waits for an answer; waits for a retry of its child; has a result."""

_CALL_KEYS: Final = (
    "id",
    "name",
    "arguments",
    "status",
    "attempt",
    "request",
    "askedAt",
    "answer",
    "result",
    "child",
    "gate",
)
_KEYS: Final = ("schema", "run", "base", "messages", "calls", "turns", "usage", "toolCalls")

_KINDS: Final = {str: "string", int: "integer", list: "array"}


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
        gate: Position of the before-hook that asked `request`; None where the tool asked.
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
    gate: int | None = None

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON; absent optionals are left out."""
        out: dict[str, JsonValue] = {
            "id": self.id,
            "name": self.name,
            "arguments": self.arguments,
            "status": self.status,
            "attempt": self.attempt,
        }
        optional = {
            "request": self.request and self.request.to_dict(),
            "askedAt": self.asked_at,
            "answer": self.answer and self.answer.to_dict(),
            "result": self.result and self.result.to_dict(),
            "child": self.child,
            "gate": self.gate,
        }
        out.update((key, value) for key, value in optional.items() if value is not None)
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
        return cls(
            id=_typed("CallState", data, "id", str),
            name=_typed("CallState", data, "name", str),
            arguments=_typed("CallState", data, "arguments", str),
            status=data["status"],
            attempt=_typed("CallState", data, "attempt", int) if "attempt" in data else 0,
            request=None if request is None else Request.from_dict(request),
            asked_at=data.get("askedAt"),
            answer=None if answer is None else Answer.from_dict(answer),
            result=None if result is None else ToolResult.from_dict(result),
            child=data.get("child"),
            gate=data.get("gate"),
        )


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
    def pending(self) -> Request | None:
        """The first open request in call order; None where nothing is asked."""
        return next((call.request for call in self.calls if call.status == "open"), None)

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every open request, in call order."""
        return tuple(
            call.request for call in self.calls if call.status == "open" and call.request
        )

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
        messages = tuple(_typed("Checkpoint", data, "messages", list))
        if not all(isinstance(message, dict) for message in messages):
            raise WireFormatError("Checkpoint.messages must be a list of objects")
        return cls(
            run=_typed("Checkpoint", data, "run", str),
            base=_typed("Checkpoint", data, "base", int),
            messages=messages,
            calls=tuple(map(CallState.from_dict, _typed("Checkpoint", data, "calls", list))),
            turns=_typed("Checkpoint", data, "turns", int),
            usage=Usage.from_dict(data["usage"]),
            tool_calls=_typed("Checkpoint", data, "toolCalls", int),
        )


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


def _typed(owner: str, data: Mapping[str, JsonValue], key: str, kind: type) -> Any:
    value = data[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WireFormatError(f"{owner}.{key} must be a JSON {_KINDS[kind]}, not {value!r}")
    return value
