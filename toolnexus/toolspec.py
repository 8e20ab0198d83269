"""What a tool is: its protocol, what it is given, what it gives back, and name rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, runtime_checkable

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
from toolnexus.suspension import LOGIN, Answer, Request
from toolnexus.unknown import require_one_policy

if TYPE_CHECKING:
    from toolnexus.client.dialogue import Dialogue

T = TypeVar("T")

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

    @classmethod
    def auth_required(
        cls, url: str, prompt: str | None = None, resource: str = ""
    ) -> ToolResult:
        """Return a suspension until a person has logged in at `url`.

        Args:
            url: Where.
            prompt: What the person reads; made of `resource` unless given.
            resource: What the login is for, such as `crm`: all calls that need the same one, in
                any agent of the runtime, share one request. Empty shares nothing.

        Raises:
            ConfigError: `url` is no http or https address; a page may well link to it.
        """
        if not str(url).lower().startswith(("http://", "https://")):
            raise ConfigError(f"auth_required takes an http or https url, not {url!r}")
        text = prompt or f"Log in to {resource or 'continue'}."
        data = {"resource": resource} if resource else None
        return cls.pending(Request(LOGIN, text, url, data))

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
        answer: The answer to the request that this call returned; None before, and after `ask`.
        request: That request; None where `answer` is.
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
    dialogue: Dialogue | None = attrs.field(default=None, repr=False, eq=False)
    """What the call has asked and done so far; None where no run executes the tool."""

    def ask(
        self,
        kind: str,
        prompt: str,
        *,
        url: str | None = None,
        data: Mapping[str, JsonValue] | None = None,
        schema: Mapping[str, JsonValue] | None = None,
        expires_in: float | timedelta | None = None,
        on_decline: Literal["raise", "return"] = "raise",
    ) -> Answer:
        """Return what a person says. Until somebody has, the call is unwound and parks here.

        On the retry the tool runs again from its first line, and each question that it asks
        again, in the same order, has its answer at once; only the next one parks. The code in
        between runs on every retry: `once` keeps it from doing something twice.

        Args:
            kind: `approval`, `question`, `input`, `authorization`, or a word of yours.
            prompt: What the person reads.
            url: Where the person has to go.
            data: A JSON object for the host, such as `{"options": [...]}`.
            schema: A flat JSON Schema that `Answer.data` must fit: of one value, or of an
                object. `"secret": True` in a field takes it out of `data`, into
                `Answer.secret(name)`.
            expires_in: Seconds, or a timedelta, after which only a decline is taken.
            on_decline: `return` to be given a decline as an answer.

        Raises:
            Declined: Nobody said yes, and `on_decline` is `raise`.
            ConfigError: The question makes no sense, or is asked within `once`; or no run
                executes this tool.
        """
        return self._dialogue_for("ask").ask(
            kind,
            prompt,
            url=url,
            data=data,
            schema=schema,
            expires_in=expires_in,
            on_decline=on_decline,
        )

    def once(self, key: str, fn: Callable[[], T]) -> T:
        """Return what `fn` gave when this call ran it first. It runs once for the call.

        What it raises passes, and then it runs again on the next retry. If the process dies
        before its result is kept, nobody knows whether it ran: give it `idempotency_key` too.

        Args:
            key: Names the step within this call.
            fn: Its result must be JSON; on a retry it is what was kept of that. It may not ask,
                nor wait for threads that have steps: a call has one at a time.

        Raises:
            ConfigError: The result is no JSON, now or when it ran; it had a secret in it, which
                went with its process; the key is empty; or no run executes this tool.
        """
        return self._dialogue_for("once").once(key, fn)

    @property
    def has_secrets(self) -> bool:
        """Whether an answer has told this tool a secret: it must not be logged."""
        return self.dialogue is not None and self.dialogue.has_secrets

    def _dialogue_for(self, verb: str) -> Dialogue:
        if self.dialogue is None:
            raise ConfigError(
                f"ctx.{verb} works in a tool that a run executes; a hook returns "
                "ToolResult.pending, and a test of a tool uses toolnexus.testing.replay_tool"
            )
        return self.dialogue


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
    when its request is declined; otherwise a decline executes nothing. It may have
    `needs_approval`, as `tool` takes it, and `argument_faults(args)`, a list of texts, to say
    itself whether the arguments that a person gives it fit; else its schema does. It may have
    `retry_safe` and `on_unknown`, as `tool` takes them.
    """

    @property
    def source(self) -> str:
        """Where the tool comes from, for metrics: `native`, `custom`, `agent`, ..."""

    def execute(self, args: dict[str, JsonValue], ctx: ToolContext) -> ToolResult:
        """Run once with arguments that fit the schema. Called on any thread."""


def handles_decline(tool: Tool) -> bool:
    """Say whether `tool` wants to run when its request is declined."""
    return getattr(tool, "handles_decline", False) is True


def will_delegate(tool: Tool | None, arguments: str) -> bool:
    """Say whether a call of `tool` in a runtime runs an agent as its child.

    Args:
        tool: The call's; None where it is gone.
        arguments: JSON text.
    """
    delegates = getattr(tool, "delegates", None)
    return callable(delegates) and delegates(arguments) is True


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
    require_one_policy(value, f"tool {value.name!r}")  # type: ignore[attr-defined]  # likewise
    return value  # type: ignore[return-value]  # every member is there
