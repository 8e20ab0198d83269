"""Checkpoint: the value a parked turn is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

import attrs

from toolnexus.codec import JsonValue, refuse_unknown
from toolnexus.errors import WireFormatError
from toolnexus.messages import Message, Usage
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import ToolResult

SCHEMAS: Final = {1: "first form"}
CURRENT_SCHEMA: Final = max(SCHEMAS)

CallStatus: TypeAlias = Literal["ready", "started", "open", "done"]
"""Not started; in flight; waiting for an answer; finished with a result."""

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
)
_KEYS: Final = ("schema", "run", "base", "messages", "calls", "turns", "usage", "toolCalls")


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
    """

    id: str
    name: str
    arguments: str
    status: CallStatus = "ready"
    attempt: int = 0
    request: Request | None = None
    asked_at: str | None = None
    answer: Answer | None = None
    result: ToolResult | None = None
    child: str | None = None

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
            raise WireFormatError(f"CallState.status is {data['status']!r}")
        request, answer, result = data.get("request"), data.get("answer"), data.get("result")
        return cls(
            id=data["id"],
            name=data["name"],
            arguments=data["arguments"],
            status=data["status"],
            attempt=data.get("attempt", 0),
            request=None if request is None else Request.from_dict(request),
            asked_at=data.get("askedAt"),
            answer=None if answer is None else Answer.from_dict(answer),
            result=None if result is None else ToolResult.from_dict(result),
            child=data.get("child"),
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
            "messages": list(self.messages),
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
        schema = data.get("schema")
        if schema not in SCHEMAS:
            known = ", ".join(map(str, SCHEMAS))
            raise WireFormatError(
                f"checkpoint schema {schema!r} cannot be read by this release (reads {known}); "
                "a newer toolnexus wrote it"
            )
        data = refuse_unknown("Checkpoint", data, _KEYS, _KEYS)
        return cls(
            run=data["run"],
            base=data["base"],
            messages=tuple(data["messages"]),
            calls=tuple(CallState.from_dict(call) for call in data["calls"]),
            turns=data["turns"],
            usage=Usage.from_dict(data["usage"]),
            tool_calls=data["toolCalls"],
        )
