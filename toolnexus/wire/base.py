"""What every wire dialect speaks of: one request, one reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from toolnexus.codec import JsonValue
from toolnexus.messages import Message, ToolCall, Usage
from toolnexus.toolspec import ToolDeclaration
from toolnexus.wire.sse import ServerSentEvent


@attrs.frozen(kw_only=True)
class ModelRequest:
    """One request to a model, before it takes a provider's form.

    Attributes:
        model: The model's name.
        messages: The transcript in canonical form, as stored; the dialect checks and completes
            its own view of it.
        tools: What the model may call; empty for none.
        system: The system prompt; empty for none.
        origin: `"<style> <host> <model>"` of this request: parts of earlier messages that only
            their provider understands go back to the same origin alone.
        max_tokens: Longest reply in tokens; None leaves it to the provider.
        tool_choice: OpenAI's value for it; None lets the model choose.
        params: Further keys of the body, in the provider's own words.
    """

    model: str
    messages: Sequence[Message] = attrs.field(repr=False)
    tools: Sequence[ToolDeclaration] = ()
    system: str = ""
    origin: str = ""
    max_tokens: int | None = None
    tool_choice: JsonValue = None
    params: Mapping[str, JsonValue] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ModelReply:
    """One reply of a model.

    Attributes:
        message: The assistant message in canonical form, ready to be stored.
        calls: Its tool calls, ids unique within the message.
        text: Its text; "" where it has none.
        usage: Tokens, as the provider counted them.
        truncated: Whether the length limit cut it off: its calls must not be executed.
        finish_reason: What the provider said, in OpenAI's words where it has a word for it.
        streamed: Whether it came in pieces.
    """

    message: Message = attrs.field(repr=False)
    calls: tuple[ToolCall, ...] = ()
    text: str = ""
    usage: Usage = attrs.field(factory=Usage)
    truncated: bool = False
    finish_reason: str = "stop"
    streamed: bool = False


class StreamedReply(Protocol):
    """Assembles the events of a stream into the body that the same reply has unstreamed."""

    @property
    def is_complete(self) -> bool:
        """Whether the provider said that the reply is whole."""

    @property
    def text(self) -> str:
        """All text so far."""

    def add(self, event: ServerSentEvent) -> str:
        """Take one event in and return the text it adds; "" for none.

        Raises:
            LlmError: It is an error of the provider's, or no JSON.
        """

    def payload(self) -> dict[str, JsonValue]:
        """Return the body; it says the reply only where that is complete."""


class Dialect(Protocol):
    """The functions that each wire module has. Pure: no socket, no clock, no log."""

    STREAM_PARAMS: Mapping[str, JsonValue]
    """What the body says beside, for a reply that comes in pieces."""

    def endpoint(self, base_url: str) -> str:
        """Return the URL that a request is posted to."""

    def translation_endpoint(self, base_url: str) -> str:
        """Return the URL for `LlmClient.translate`, whose base may be any part of it."""

    def new_stream(self) -> StreamedReply:
        """Return what the events of one stream go into."""

    def headers(self, api_key: str) -> dict[str, str]:
        """Return the headers that carry the key and the protocol's version."""

    def request_body(self, request: ModelRequest) -> dict[str, JsonValue]:
        """Return the body: balanced, without what the provider refuses or what is ours.

        It shares the schemas of the tools, and nothing else that may change.
        """

    def read_reply(self, payload: JsonValue, origin: str) -> ModelReply:
        """Read a 2xx body.

        Raises:
            LlmError: It is not a reply of this dialect.
        """
