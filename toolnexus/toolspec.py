"""What a tool is: its protocol, what it is given, what it gives back, and name rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol, runtime_checkable

import attrs

from toolnexus.cancel import CancelToken
from toolnexus.codec import JsonValue, dumps, refuse_unknown
from toolnexus.errors import ConfigError, WireFormatError
from toolnexus.parts.part import (
    Content,
    Part,
    bounded,
    is_parts,
    parts_from,
    text_of_parts,
)
from toolnexus.suspension import Answer, Request

NAME_CHARS: Final = 64
"""The longest tool name that both wire styles take."""

_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_CHARS}}}")
_NOT_NAME_CHAR: Final = re.compile(r"[^A-Za-z0-9_-]")


def sanitize(name: str | None) -> str:
    """Return `name` with `_` for every character a tool name may not have; None gives ""."""
    return _NOT_NAME_CHAR.sub("_", name or "")


def require_tool_name(name: object, what: str = "a tool name") -> str:
    """Return `name` if a provider takes it as a tool's name.

    Raises:
        ConfigError: It is no text of 1 to 64 letters, digits, `_` or `-`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} is 1 to {NAME_CHARS} letters, digits, '_' or '-', not {name!r}"
        )
    return name


def _text_of(output: object) -> str:
    if output is None:
        return ""
    if isinstance(output, str):
        return output
    try:
        return dumps(output)
    except (TypeError, ValueError, RecursionError):
        return str(output)


@attrs.frozen
class ToolResult:
    """What one execution of a tool gave.

    Attributes:
        output: The text the model reads; None becomes "", other JSON values compact JSON. Where
            it is not given it is made of the parts; another text, such as one that a hook
            shortened, takes the place of the texts among them.
        is_error: Whether the call failed. A suspension is not an error.
        metadata: JSON object for hooks and the host, never sent to the model; a suspended
            result has `{"pending": Request}`.
        parts: What the model is shown; empty for a result that is only its output.
    """

    # First, as the output is made of it; by keyword, so that the positions stay.
    parts: tuple[Part, ...] = attrs.field(
        default=(), converter=parts_from, kw_only=True, repr=False
    )
    output: str = attrs.field(
        default=attrs.Factory(lambda self: text_of_parts(self.parts), takes_self=True),
        converter=_text_of,
    )
    is_error: bool = False
    metadata: Mapping[str, Any] | None = None

    @classmethod
    def ok(cls, text: JsonValue = "", **metadata: JsonValue) -> ToolResult:
        """Return a success: a text, another JSON value, a Part, or a list with Parts in it."""
        if is_parts(text):
            return cls(parts=text, metadata=metadata or None)
        return cls(text, metadata=metadata or None)

    @classmethod
    def error(cls, text: str) -> ToolResult:
        """Return a failure that the model reads as such."""
        return cls(text, is_error=True)

    @classmethod
    def pending(cls, request: Request) -> ToolResult:
        """Return a suspension: the run parks (or `wait_for` is asked) until an answer comes."""
        if not isinstance(request, Request):
            raise ConfigError(f"ToolResult.pending takes a Request, not {request!r}")
        text = request.prompt if request.url is None else f"{request.prompt}\n{request.url}"
        return cls(text, metadata={"pending": request})

    @property
    def request(self) -> Request | None:
        """The request this result waits on; None for a result that is final."""
        if not isinstance(self.metadata, Mapping):
            return None
        pending = self.metadata.get("pending")
        return pending if isinstance(pending, Request) else None

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the wire form; absent optionals are left out."""
        out: dict[str, JsonValue] = {"output": self.output, "isError": self.is_error}
        if self.metadata:
            out["metadata"] = {
                key: value.to_dict() if isinstance(value, Request) else value
                for key, value in self.metadata.items()
            }
        if self.parts:
            out["parts"] = [part.to_dict() for part in self.parts]
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> ToolResult:
        """Read the wire form.

        Raises:
            WireFormatError: A key is unknown or missing, or a pending request or a part is
                malformed.
        """
        known = ("output", "isError", "metadata", "parts")
        data = refuse_unknown("ToolResult", data, known, ("output",))
        metadata, is_error = data.get("metadata"), data.get("isError", False)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise WireFormatError(
                f"ToolResult.metadata must be an object, not {type(metadata).__name__}"
            )
        if not isinstance(is_error, bool):
            raise WireFormatError(f"ToolResult.isError must be true or false, not {is_error!r}")
        if metadata and isinstance(metadata.get("pending"), Mapping):
            metadata = {**metadata, "pending": Request.from_dict(metadata["pending"])}
        return cls(data["output"], is_error, metadata, parts=_read_parts(data.get("parts", [])))


def _read_parts(data: object) -> tuple[Part, ...]:
    if not isinstance(data, list):
        raise WireFormatError(f"ToolResult.parts must be an array, not {type(data).__name__}")
    return tuple(Part.from_dict(part) for part in data)


def content_of_result(result: ToolResult, max_bytes: int | None = None) -> Content:
    """Return the content of the tool message: the output, or parts as stored.

    Args:
        result: A final result.
        max_bytes: See `bound_parts`.
    """
    if not result.parts:
        return result.output
    parts = bounded(_shown_parts(result), max_bytes)
    if all(part.kind == "text" for part in parts):
        return text_of_parts(parts)
    return [part.to_dict() for part in parts]


def bound_parts(result: ToolResult, max_bytes: int | None) -> ToolResult:
    """Return `result` with a text in the place of each part that is too large to be kept.

    Args:
        result: A final result.
        max_bytes: Most bytes, decoded, in one part; None for no limit.
    """
    if not result.parts:
        return result
    shown = _shown_parts(result)
    kept = bounded(shown, max_bytes)
    if kept == shown:
        return result
    return attrs.evolve(result, parts=kept, output=text_of_parts(kept))


def _shown_parts(result: ToolResult) -> tuple[Part, ...]:
    """Return the parts, the text that was put in the place of theirs among them."""
    if not result.parts or result.output == text_of_parts(result.parts):
        return result.parts
    # Whoever changed the text, such as a hook that took a secret out, means all of it.
    said = (Part.text(result.output),) if result.output else ()
    return (*said, *(part for part in result.parts if part.kind != "text"))


def pending_of(result: ToolResult) -> Request | None:
    """Return the request that `result` waits on, or None."""
    return result.request


@attrs.frozen(kw_only=True)
class ToolContext:
    """What the loop tells a tool about this execution of a call.

    Attributes:
        answer: The answer to the request this call suspended on; None on the first execution.
        request: That request; None on the first execution.
        cancel: Set when the run is interrupted; long tools look at it.
        call_id: The model's id of the call.
        attempt: 1 for the first execution of this call, one more for each retry.
        idempotency_key: The same text for every execution of the same call, and for no other.
        handle_id: The handle whose turn this is; None outside a runtime.
        deadline: Aware time at which the run ends; None where it has none.
    """

    answer: Answer | None = None
    request: Request | None = None
    cancel: CancelToken = attrs.field(factory=CancelToken)
    call_id: str = ""
    attempt: int = 1
    idempotency_key: str = ""
    handle_id: str | None = None
    deadline: datetime | None = None
    delegate: Callable[[Any, str], ToolResult] | None = attrs.field(
        default=None, repr=False, eq=False
    )
    """Runs `(agent definition, prompt)` as a child of this call; None outside a runtime."""


class ToolDeclaration(Protocol):
    """The part of a tool that a model is told about."""

    @property
    def name(self) -> str:
        """1 to 64 letters, digits, `_` or `-`."""

    @property
    def description(self) -> str:
        """What the model reads to choose the tool."""

    @property
    def input_schema(self) -> Mapping[str, JsonValue]:
        """JSON Schema of the arguments; `type` is `object`."""


@runtime_checkable
class Tool(ToolDeclaration, Protocol):
    """What the loop knows of a tool. Any object with these members is one.

    A tool may also have `handles_decline = True`: then it runs, with `ctx.answer.ok` False,
    when its request is declined; otherwise a decline executes nothing.
    """

    @property
    def source(self) -> str:
        """Where the tool comes from, for metrics: `native`, `custom`, `agent`, ..."""

    def execute(self, args: dict[str, JsonValue], ctx: ToolContext) -> ToolResult:
        """Run once with arguments that fit the schema. Called on any thread."""


def failure_text(error: Exception) -> str:
    """Return the message of the cause, else of the exception; with its class if mute alone."""
    told = error.__cause__ or error
    name = type(told).__name__
    try:
        text = str(told)
    except Exception:  # noqa: BLE001 - a foreign __str__ that fails tells nothing
        return name
    if not text.strip():
        return name
    is_mute = type(told).__str__ is KeyError.__str__ or isinstance(told, StopIteration)
    return f"{name}: {text}" if is_mute else text


def handles_decline(tool: Tool) -> bool:
    """Say whether `tool` wants to run when its request is declined."""
    return getattr(tool, "handles_decline", False) is True


def require_tool(value: object) -> Tool:
    """Return `value` if it has what a tool needs.

    Raises:
        ConfigError: A member is missing; the message lists which.
    """
    members = ("name", "description", "input_schema", "source", "execute")
    missing = [member for member in members if not hasattr(value, member)]
    if missing:
        hint = " (decorate the function with @tool)" if callable(value) else ""
        raise ConfigError(f"{value!r} is not a tool: it lacks {', '.join(missing)}{hint}")
    require_tool_name(value.name)  # type: ignore[attr-defined]  # checked above
    if not isinstance(value.input_schema, Mapping):  # type: ignore[attr-defined]  # likewise
        raise ConfigError(f"tool {value.name!r}: input_schema must be a mapping")  # type: ignore[attr-defined]
    return value  # type: ignore[return-value]  # every member is there
