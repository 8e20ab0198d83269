"""What a scripted model says: replies, and the functions that make them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, Protocol, TypeAlias

import attrs

from toolnexus.codec import JsonValue

Cut: TypeAlias = Literal["before headers", "in body"]

DEFAULT_USAGE: Final = (30, 10)
"""Prompt and completion tokens of a reply that names none: 40 in total."""


class Gate(Protocol):
    """What holds a reply open; a `threading.Event` is one."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the gate is open or `timeout` seconds pass; say whether it is open."""

    def set(self) -> None:
        """Open the gate."""


@attrs.frozen
class Call:
    """One tool call of a reply.

    Attributes:
        name: The tool's name.
        args: The arguments as a JSON value; a `str` is sent as it stands, malformed or not.
        id: None for one made by the server, unique in the conversation that asks.
    """

    name: str
    args: JsonValue = attrs.field(factory=dict)
    id: str | None = None


@attrs.frozen
class Reply:
    """One scripted reply, rendered in whichever style the request came in.

    Immutable: each method returns a changed copy, so that they chain and a reply can be used
    again: `text("hi").held_by(gate)`.

    Attributes:
        content: The text; None for none.
        calls: Tool calls, in order.
        usage: Prompt and completion tokens; None leaves the usage out.
        finish: Why the model stopped, in OpenAI's words (`stop`, `length`, `tool_calls`,
            `content_filter`; another word is sent as it is); None follows from the calls.
        thinking: Anthropic blocks that come first; left out of an OpenAI reply.
        extra: Further keys of an OpenAI message; left out of an Anthropic reply.
        body: Sent in place of all of the above: JSON, or a `str` as it stands; None for none.
        status: HTTP status. Other than 200 without a body: an error of the provider's shape.
        headers: Further response headers.
        gate: Holds the reply before its first header.
        body_gate: Holds the reply between its headers and its body.
        cut: Where the server hangs up in the middle; None for nowhere.
        closes: Whether the server hangs up after the reply without having said so.
        pauses: Where a stream waits: after how many of its events, and for which gate.
        end_gate: Holds a stream's end back after its last event.
        events: Which of a stream's events are sent, as the end of a slice says it; None: all.
        cut_bytes: After how many bytes of a stream the server hangs up; None for nowhere.
        pieces: Sizes in bytes of the chunks of a stream, again and again; empty for one chunk
            for each event.
    """

    content: str | None = None
    calls: tuple[Call, ...] = attrs.field(default=(), kw_only=True)
    usage: tuple[int, int] | None = attrs.field(default=DEFAULT_USAGE, kw_only=True)
    finish: str | None = attrs.field(default=None, kw_only=True)
    thinking: tuple[Mapping[str, str], ...] = attrs.field(default=(), kw_only=True)
    extra: Mapping[str, JsonValue] = attrs.field(factory=dict, kw_only=True)
    body: JsonValue = attrs.field(default=None, kw_only=True)
    status: int = attrs.field(default=200, kw_only=True)
    headers: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    gate: Gate | None = attrs.field(default=None, kw_only=True)
    body_gate: Gate | None = attrs.field(default=None, kw_only=True)
    cut: Cut | None = attrs.field(default=None, kw_only=True)
    closes: bool = attrs.field(default=False, kw_only=True)
    pauses: tuple[tuple[int, Gate], ...] = attrs.field(default=(), kw_only=True)
    end_gate: Gate | None = attrs.field(default=None, kw_only=True)
    events: int | None = attrs.field(default=None, kw_only=True)
    cut_bytes: int | None = attrs.field(default=None, kw_only=True)
    pieces: tuple[int, ...] = attrs.field(default=(), kw_only=True)

    def held_by(self, gate: Gate) -> Reply:
        """Wait for `gate` before the first header is sent."""
        return attrs.evolve(self, gate=gate)

    def held_after_headers(self, gate: Gate) -> Reply:
        """Send the headers, then wait for `gate` before the body."""
        return attrs.evolve(self, body_gate=gate)

    def cut_before_headers(self) -> Reply:
        """Hang up without a reply; after the gate, if there is one."""
        return attrs.evolve(self, cut="before headers")

    def cut_in_body(self) -> Reply:
        """Hang up after the headers and half of the body."""
        return attrs.evolve(self, cut="in body")

    def then_closing(self) -> Reply:
        """Hang up after the whole reply, so that the kept-alive connection is stale."""
        return attrs.evolve(self, closes=True)

    def paused_after(self, events: int, gate: Gate) -> Reply:
        """Stream so many events, then wait for `gate`; may be used several times."""
        return attrs.evolve(self, pauses=(*self.pauses, (events, gate)))

    def held_at_end(self, gate: Gate) -> Reply:
        """Stream all events, then wait for `gate` before the end of the body."""
        return attrs.evolve(self, end_gate=gate)

    def ended_after(self, events: int) -> Reply:
        """Stream only so many events and end in good order; -1 leaves the last one out."""
        return attrs.evolve(self, events=events)

    def cut_after(self, size: int) -> Reply:
        """Hang up after `size` bytes of the stream."""
        return attrs.evolve(self, cut_bytes=size)

    def in_pieces_of(self, *sizes: int) -> Reply:
        """Stream in chunks of these sizes in bytes, over and over, whatever they cut apart."""
        return attrs.evolve(self, pieces=sizes)

    @property
    def is_paced(self) -> bool:
        """Whether it says something that only a stream can do."""
        is_cut = self.events is not None or self.cut_bytes is not None
        return is_cut or bool(self.pauses or self.pieces) or self.end_gate is not None

    def with_headers(self, headers: Mapping[str, str]) -> Reply:
        """Add response headers."""
        return attrs.evolve(self, headers={**self.headers, **headers})

    def with_thinking(self, thought: str, signature: str | None = None) -> Reply:
        """Add an Anthropic `thinking` block.

        Args:
            thought: The block's text.
            signature: None for one that follows from the text, which every `ScriptedLlm`
                can check, also in a later process.
        """
        block = {
            "type": "thinking",
            "thinking": thought,
            "signature": signature or signature_of(thought),
        }
        return attrs.evolve(self, thinking=(*self.thinking, block))

    def with_redacted_thinking(self, data: str) -> Reply:
        """Add an Anthropic `redacted_thinking` block."""
        block = {"type": "redacted_thinking", "data": data}
        return attrs.evolve(self, thinking=(*self.thinking, block))

    def with_extra(self, **extra: JsonValue) -> Reply:
        """Add keys to the OpenAI message, such as `reasoning_content`."""
        return attrs.evolve(self, extra={**self.extra, **extra})


def signature_of(thought: str) -> str:
    """Return the signature that a scripted model puts under `thought`."""
    digest = hashlib.sha256(b"toolnexus.testing\0" + thought.encode("utf-8", "replace"))
    return f"sig_{digest.hexdigest()[:32]}"


def text(
    content: str,
    *,
    usage: tuple[int, int] | None = DEFAULT_USAGE,
    finish: str | None = None,
) -> Reply:
    """Return a reply that is only text.

    Args:
        content: The text.
        usage: Prompt and completion tokens; None leaves the usage out.
        finish: `"length"` for a reply that was cut off by the token limit; see `Reply`.
    """
    return Reply(content, usage=usage, finish=finish)


def call(
    name: str,
    args: JsonValue = None,
    id: str | None = None,  # noqa: A002 - the wire's own word
) -> Call:
    """Return one call for `tool_calls`; see `Call`. No arguments are `{}`."""
    return Call(name, {} if args is None else args, id)


def tool_call(
    name: str,
    args: JsonValue = None,
    id: str | None = None,  # noqa: A002 - the wire's own word
    *,
    content: str | None = None,
    usage: tuple[int, int] | None = DEFAULT_USAGE,
    finish: str | None = None,
) -> Reply:
    """Return a reply that asks for one tool call; see `call` and `text`."""
    return tool_calls(call(name, args, id), content=content, usage=usage, finish=finish)


def tool_calls(
    *calls: Call,
    content: str | None = None,
    usage: tuple[int, int] | None = DEFAULT_USAGE,
    finish: str | None = None,
) -> Reply:
    """Return a reply that asks for several tool calls in one message.

    `tool_calls(call("add", {"a": 1}), call("add", '{"a": '))`: the second one's arguments are
    malformed. Anthropic's replies carry no argument text, so there `input` is the text.
    """
    return Reply(content, calls=calls, usage=usage, finish=finish)


def raw(
    body: JsonValue, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Reply:
    """Return a reply whose whole body is given: JSON, or a `str` that is sent as it stands."""
    return Reply(body=body, status=status, headers=headers or {})


def status(
    code: int, body: JsonValue = None, *, headers: Mapping[str, str] | None = None
) -> Reply:
    """Return a failure: `status(429, headers={"retry-after": "2"})`.

    Args:
        code: HTTP status.
        body: JSON, or a `str` as it stands; None for an error of the provider's shape.
        headers: Further response headers.
    """
    return Reply(body=body, status=code, headers=headers or {})
