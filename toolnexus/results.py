"""What a run of a client and a turn of a handle give back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from toolnexus.checkpoint import Checkpoint
from toolnexus.codec import JsonValue, refuse_unknown
from toolnexus.errors import WireFormatError
from toolnexus.messages import STATUSES, Message, Status, Usage
from toolnexus.suspension import Request

_KINDS: Final = {str: "string", int: "integer", list: "array"}
_RUN_KEYS: Final = (
    "text",
    "status",
    "messages",
    "turns",
    "usage",
    "toolCalls",
    "pending",
    "checkpoint",
    "limit",
)
_TASK_KEYS: Final = (
    "text",
    "isError",
    "status",
    "pending",
    "pendingPath",
    "turns",
    "totalTokens",
    "limit",
)


@attrs.frozen(kw_only=True)
class RunResult:
    """What one run of `LlmClient` gave.

    Attributes:
        text: The final text; the prompt of the open request when `pending`.
        status: `done`, `pending` or `incomplete`; other ends are raised.
        messages: The transcript with this run's messages at its end; JSON.
        turns: Model replies in this run.
        usage: Tokens of this run.
        tool_calls: Calls that were executed or refused in this run.
        pending: The first open request in call order; None unless `pending`.
        checkpoint: What the parked run goes on from; None unless `pending`.
        limit: Which limit stopped the run; None unless `incomplete`.
    """

    text: str = ""
    status: Status = "done"
    messages: list[Message] = attrs.field(factory=list, repr=False)
    turns: int = 0
    usage: Usage = attrs.field(factory=Usage)
    tool_calls: int = 0
    pending: Request | None = None
    checkpoint: Checkpoint | None = attrs.field(default=None, repr=False)
    limit: str | None = None

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON; absent optionals are left out."""
        out: dict[str, JsonValue] = {
            "text": self.text,
            "status": self.status,
            "messages": self.messages,
            "turns": self.turns,
            "usage": self.usage.to_dict(),
            "toolCalls": self.tool_calls,
        }
        if self.pending is not None:
            out["pending"] = self.pending.to_dict()
        if self.checkpoint is not None:
            out["checkpoint"] = self.checkpoint.to_dict()
        if self.limit is not None:
            out["limit"] = self.limit
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> RunResult:
        """Read what `to_dict` wrote.

        Raises:
            WireFormatError: A key is unknown, or a part is malformed.
        """
        data = refuse_unknown("RunResult", data, _RUN_KEYS, ("text", "status"))
        pending, checkpoint = data.get("pending"), data.get("checkpoint")
        messages = _typed("RunResult", data, "messages", list, [])
        if not all(isinstance(message, dict) for message in messages):
            raise WireFormatError("RunResult.messages must be a list of objects")
        return cls(
            text=_typed("RunResult", data, "text", str, ""),
            status=_status(data["status"], "RunResult"),
            messages=list(messages),
            turns=_typed("RunResult", data, "turns", int, 0),
            usage=Usage.from_dict(data.get("usage", {})),
            tool_calls=_typed("RunResult", data, "toolCalls", int, 0),
            pending=None if pending is None else Request.from_dict(pending),
            checkpoint=None if checkpoint is None else Checkpoint.from_dict(checkpoint),
            limit=None
            if data.get("limit") is None
            else _typed("RunResult", data, "limit", str, ""),
        )


@attrs.frozen
class TaskResult:
    """What one turn of a handle gave. Failure is a value here, never an exception.

    Attributes:
        text: The final text, the open request's prompt, or what went wrong.
        is_error: Whether the turn ended without the agent's own final text.
        status: One of the seven strings of `STATUSES`.
        pending: The first open request in call order; None unless `pending`.
        pending_path: Id path of the handle that asked, by segment; None unless `pending`.
        turns: Model replies that this handle has had so far: over all its turns, and not over
            those of the agents below it.
        total_tokens: Tokens of this handle and everything below it so far.
        limit: Which limit stopped it (`maxTurns`, `tokens`, `toolCalls`, `wallMs`); None else.
    """

    text: str
    is_error: bool = False
    status: Status = "done"
    pending: Request | None = None
    pending_path: tuple[str, ...] | None = None
    turns: int = 0
    total_tokens: int = 0
    limit: str | None = None

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON; absent optionals are left out."""
        out: dict[str, JsonValue] = {
            "text": self.text,
            "isError": self.is_error,
            "status": self.status,
            "turns": self.turns,
            "totalTokens": self.total_tokens,
        }
        if self.pending is not None:
            out["pending"] = self.pending.to_dict()
        if self.pending_path is not None:
            out["pendingPath"] = list(self.pending_path)
        if self.limit is not None:
            out["limit"] = self.limit
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> TaskResult:
        """Read what `to_dict` wrote.

        Raises:
            WireFormatError: A key is unknown or missing, or a part is malformed.
        """
        data = refuse_unknown("TaskResult", data, _TASK_KEYS, ("text", "status"))
        pending, path = data.get("pending"), data.get("pendingPath")
        return cls(
            data["text"],
            data.get("isError", False),
            _status(data["status"], "TaskResult"),
            None if pending is None else Request.from_dict(pending),
            None if path is None else tuple(path),
            data.get("turns", 0),
            data.get("totalTokens", 0),
            data.get("limit"),
        )


def _typed(owner: str, data: Mapping[str, JsonValue], key: str, kind: type, absent: Any) -> Any:
    value = data.get(key, absent)
    if type(value) is not kind:
        raise WireFormatError(f"{owner}.{key} must be a JSON {_KINDS[kind]}, not {value!r}")
    return value


def _status(value: object, owner: str) -> Status:
    for status in STATUSES:
        if status == value:
            return status
    raise WireFormatError(f"{owner}.status must be one of {', '.join(STATUSES)}, not {value!r}")
