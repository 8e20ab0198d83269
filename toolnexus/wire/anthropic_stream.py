"""Anthropic's streamed replies: events become the body that comes where nothing is streamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.wire.calls import arguments_text
from toolnexus.wire.pieces import (
    GrowingText,
    data_of,
    grow,
    in_order,
    index_of,
    settled,
)
from toolnexus.wire.sse import ServerSentEvent

_EVENTS: Final = frozenset(
    {
        "message",
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    }
)
_STARTED_BY: Final[Mapping[str, str]] = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}
"""What a block is whose start was not sent."""


class AnthropicStream:
    """Assembles events; see `wire.base.StreamedReply`."""

    def __init__(self) -> None:
        self._body: dict[str, JsonValue] = {}
        self._usage: dict[str, JsonValue] = {}
        self._blocks: list[_Block] = []
        self._at: dict[int | None, _Block] = {}
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        """Whether `message_stop` came."""
        return self._is_complete

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(block.text() for block in in_order(self._blocks))

    def add(self, event: ServerSentEvent) -> str:
        """Take one event in and return the text it adds; "" for none.

        Raises:
            LlmError: It is an error of the provider's, or no JSON.
        """
        data = data_of(event, _EVENTS)
        if data is None:
            return ""
        kind = data.get("type") or event.event
        if kind == "content_block_delta":
            return self._add_delta(data)
        if kind == "content_block_start":
            return self._start(index_of(data), data.get("content_block"))
        if kind == "content_block_stop":
            block = self._at.get(index_of(data))
            return block.last_words() if block else ""
        if kind == "message_start":
            message = data.get("message")
            self._update(message)
            self._update_usage(message.get("usage") if isinstance(message, dict) else None)
        elif kind == "message_delta":
            self._update(data.get("delta"))
            self._update_usage(data.get("usage"))
            return "".join(block.last_words() for block in self._blocks)
        elif kind == "message_stop":
            self._is_complete = True
        return ""

    def payload(self) -> dict[str, JsonValue]:
        """Return the body; it says the reply only where that is complete."""
        body: dict[str, JsonValue] = {"type": "message", "role": "assistant", **self._body}
        body["content"] = [block.unstreamed() for block in in_order(self._blocks)]
        if self._usage:
            body["usage"] = dict(self._usage)
        return body

    def _update(self, fields: JsonValue) -> None:
        for key, value in fields.items() if isinstance(fields, dict) else ():
            if key not in ("content", "usage") and value is not None:
                self._body[key] = value

    def _update_usage(self, usage: JsonValue) -> None:
        """Take in counts; each is of the whole reply so far, so the last one is right."""
        for key, value in usage.items() if isinstance(usage, dict) else ():
            if value is not None:
                self._usage[key] = value

    def _start(self, index: int | None, received: JsonValue) -> str:
        if not isinstance(received, dict):
            return ""
        block = _Block(index)
        self._blocks.append(block)
        # Under None is the one that was begun last.
        self._at[index] = self._at[None] = block
        return block.start(received)

    def _add_delta(self, data: Mapping[str, Any]) -> str:
        delta = data.get("delta")
        if type(delta) is not dict:
            return ""
        index = data.get("index")
        kind = delta.get("type")
        block = self._at.get(index if type(index) is int else None)
        if block is None:
            self._start(index_of(data), {"type": _STARTED_BY.get(str(kind))})
            block = self._blocks[-1]
        if kind == "text_delta" and type(delta.get("text")) is str:
            return block.say(delta["text"])
        block.add(str(kind), delta)
        return ""


@attrs.define(eq=False)
class _Block:
    """One content block in the making."""

    index: int | None
    _fields: dict[str, Any] = attrs.field(factory=dict)
    _json: GrowingText = attrs.field(factory=GrowingText)

    def start(self, received: Mapping[str, JsonValue]) -> str:
        """Take in what the block begins with and return its text."""
        self._fields.update(received)
        text = self._fields.pop("text", None)
        return self.say(text) if isinstance(text, str) else ""

    def say(self, piece: str) -> str:
        """Add to the text and return what is for the user: what a text block says."""
        text = self._fields.get("text")
        if text is None:
            text = self._fields["text"] = GrowingText()
        shown: str = text.say(piece)
        return shown if self._fields.get("type") == "text" else ""

    def last_words(self) -> str:
        """Return what could not be shown before the block ended."""
        return self._said.last_words() if self._said is not None else ""

    def text(self) -> str:
        """Return what the block has for the user."""
        return self._said.text() if self._said is not None else ""

    @property
    def _said(self) -> GrowingText | None:
        is_text = self._fields.get("type") == "text"
        return self._fields.get("text") if is_text else None

    def add(self, kind: str, delta: Mapping[str, JsonValue]) -> None:
        """Take in a delta; of a kind that is not known, all of it."""
        if kind == "input_json_delta":
            self._json.write(arguments_text(delta.get("partial_json")))
        elif kind == "thinking_delta":
            grow(self._fields, "thinking", delta.get("thinking"))
        elif kind == "signature_delta":
            # It comes whole: the provider's own libraries replace it too.
            self._fields["signature"] = delta.get("signature")
        elif kind == "citations_delta":
            grow(self._fields, "citations", [delta.get("citation")])
        elif kind != "text_delta":
            for key, value in delta.items():
                if key not in ("type", "text"):
                    grow(self._fields, key, value)

    def unstreamed(self) -> dict[str, JsonValue]:
        """Return the block as it is in a body that is not streamed."""
        block: dict[str, JsonValue] = settled(self._fields)
        text = self._json.text()
        if text.strip():
            block["input"] = _input(text)
        return block


def _input(text: str) -> JsonValue:
    """Return the input of a call: the text itself where that is not what an input can be."""
    try:
        value = codec.loads(text)
    except ValueError:
        return text
    return text if value is None or isinstance(value, str) else value
