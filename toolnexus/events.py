"""What a streamed run tells while it is under way."""

from __future__ import annotations

from typing import ClassVar, Final, Literal, TypeAlias

import attrs

from toolnexus.codec import JsonValue
from toolnexus.messages import ToolCall, Usage
from toolnexus.results import RunResult, TaskResult
from toolnexus.suspension import Request
from toolnexus.toolspec import ToolResult


@attrs.frozen
class _Event:
    """What all events have."""

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON: `kind`, the fields, and `handleId` where there is one."""
        out: dict[str, JsonValue] = {"kind": self.kind}
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if field.name == "handle_id":
                out.update({} if value is None else {"handleId": value})
            elif isinstance(value, ToolCall):
                out[field.name] = attrs.asdict(value)
            else:
                out[field.name] = value if isinstance(value, str) else value.to_dict()
        return out


@attrs.frozen
class TextDelta(_Event):
    """A piece of the model's text.

    Attributes:
        delta: The piece; all of one reply's pieces joined are its text.
        handle_id: Whose turn it is; None outside a runtime.
    """

    kind: ClassVar[Literal["text"]] = "text"
    delta: str
    handle_id: str | None = None


@attrs.frozen
class ToolCallStarted(_Event):
    """The model asked for a call. All calls of one reply are told before the first result."""

    kind: ClassVar[Literal["tool_call"]] = "tool_call"
    call: ToolCall
    handle_id: str | None = None


@attrs.frozen
class ToolResultReady(_Event):
    """A call has its final result. Those of one reply come in call order."""

    kind: ClassVar[Literal["tool_result"]] = "tool_result"
    call: ToolCall
    result: ToolResult
    handle_id: str | None = None


@attrs.frozen
class Pending(_Event):
    """A call waits for an answer: `wait_for` is about to be asked, or the run will park."""

    kind: ClassVar[Literal["pending"]] = "pending"
    call: ToolCall
    request: Request
    handle_id: str | None = None


@attrs.frozen
class UsageUpdate(_Event):
    """What the whole run has used. Told once, before `Done`, where the run is `done`."""

    kind: ClassVar[Literal["usage"]] = "usage"
    usage: Usage
    handle_id: str | None = None


@attrs.frozen
class Done(_Event):
    """The last event: what the call that does not stream would have returned.

    Attributes:
        result: A client's `RunResult`, a handle's `TaskResult`.
        handle_id: Whose turn it was; None outside a runtime.
    """

    kind: ClassVar[Literal["done"]] = "done"
    result: RunResult | TaskResult
    handle_id: str | None = None

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON without the transcript: a browser is not to see the system prompt."""
        out = super().to_dict()
        for hidden in ("messages", "checkpoint"):
            out["result"].pop(hidden, None)
        return out


Event: TypeAlias = TextDelta | ToolCallStarted | ToolResultReady | Pending | UsageUpdate | Done

KINDS: Final = ("text", "tool_call", "tool_result", "pending", "usage", "done")
