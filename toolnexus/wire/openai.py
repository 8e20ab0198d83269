"""OpenAI's chat completions, as OpenAI and the many servers that copy it speak them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from toolnexus import codec
from toolnexus.codec import JsonValue, well_formed
from toolnexus.messages import Message, ToolCall, Usage
from toolnexus.toolspec import ToolDeclaration
from toolnexus.wire.base import ModelReply, ModelRequest
from toolnexus.wire.calls import (
    WireIds,
    called,
    is_portable_id,
    portable_arguments,
    sound_call,
    unique_ids,
    wire_name,
)
from toolnexus.wire.content import (
    EMPTY,
    is_blank,
    is_plain_part,
    part_text,
    says_something,
    text_of,
)
from toolnexus.wire.openai_stream import OpenAiStream
from toolnexus.wire.parts import (
    EncodePart,
    is_media,
    openai_part,
    openai_text,
    placeholder,
)
from toolnexus.wire.replies import count, raise_if_error, unusable
from toolnexus.wire.view import complete

STREAM_PARAMS: Final[Mapping[str, JsonValue]] = {
    "stream": True,
    "stream_options": {"include_usage": True},
}

_TRUNCATED: Final = ("length", "max_tokens")
_CALL_KEYS: Final = frozenset({"id", "type", "function"})
_FUNCTION_KEYS: Final = frozenset({"name", "arguments"})
_READ_KEYS: Final = frozenset(
    {"role", "content", "tool_calls", "function_call", "tool_call_id"}
)
# What any provider takes beside these; other keys go back to their origin alone.
_COMMON_KEYS: Final = frozenset({"name"})


def endpoint(base_url: str) -> str:
    """Return the URL that a request is posted to."""
    return f"{base_url.removesuffix('/')}/chat/completions"


def translation_endpoint(base_url: str) -> str:
    """Return the URL for a translation, whose base may be without its version."""
    base = base_url.removesuffix("/")
    if base.endswith("/v1") or "/chat/" in base:
        return f"{base}/chat/completions"
    return f"{base}/v1/chat/completions"


def new_stream() -> OpenAiStream:
    """Return what the events of one stream go into."""
    return OpenAiStream()


def headers(api_key: str) -> dict[str, str]:
    """Return the header that carries the key."""
    return {"Authorization": f"Bearer {api_key}"}


def request_body(request: ModelRequest) -> dict[str, JsonValue]:
    """Return the body; it shares nothing that can be altered with the request.

    The system prompt is put first unless the transcript begins with one of its own. Empty
    contents get a placeholder, malformed arguments a JSON object that holds their text.
    """
    body: dict[str, JsonValue] = {"model": request.model, "messages": _messages(request)}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body["tool_choice"] = "auto" if request.tool_choice is None else request.tool_choice
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    return body


def _tool(tool: ToolDeclaration) -> dict[str, JsonValue]:
    function = {
        "name": wire_name(tool.name),
        "description": tool.description,
        "parameters": tool.input_schema,
    }
    return {"type": "function", "function": function}


def _messages(request: ModelRequest) -> list[Message]:
    view = complete(request.messages)
    out: list[Message] = []
    led = bool(view) and view[0]["role"] in ("system", "developer")
    if not led and not is_blank(request.system):
        out.append({"role": "system", "content": request.system})
    ids: Mapping[str, str] = {}
    for message in view:
        role = message["role"]
        if role == "assistant":
            wire, ids = _assistant(message, request.origin)
        else:
            wire = {"role": role, "content": _heard(role, message.get("content"))}
            if role == "tool":
                wire["tool_call_id"] = ids[message["tool_call_id"]]
            if len(message) > len(wire):
                wire.update(_more_of(message, _READ_KEYS))
        out.append(wire)
    return out


def _more_of(stored: Mapping[str, Any], without: frozenset[str]) -> dict[str, Any]:
    return {
        key: codec.copy(value)
        for key, value in stored.items()
        if key not in without and not str(key).startswith("_")
    }


def _heard(role: str, content: JsonValue) -> JsonValue:
    """Return the content of a message that no assistant said; only a user's may have media."""
    wire = _content(content, openai_part if role == "user" else openai_text)
    if role == "tool" and isinstance(content, list) and any(map(is_media, content)):
        # Many servers take a list from a user only.
        return "\n".join(text_of([part]) for part in wire)
    return wire


def _content(content: JsonValue, encode: EncodePart) -> JsonValue:
    """Return what may stand on the wire: a text that is not blank, or parts that are none.

    In the place of a part that `encode` has no form for there is a placeholder.
    """
    if isinstance(content, list):
        return [wire for part in content for wire in _part(part, encode)] or EMPTY
    text = text_of(content)
    return EMPTY if is_blank(text) else text


def _part(part: JsonValue, encode: EncodePart) -> list[dict[str, Any]]:
    text = part_text(part)
    if text is not None and is_blank(text):
        return []
    if isinstance(part, str):
        return [{"type": "text", "text": part}]
    if not isinstance(part, Mapping):
        return []
    return [encode(part) or {"type": "text", "text": placeholder(part)}]


def _assistant(message: Message, origin: str) -> tuple[Message, Mapping[str, str]]:
    """Return the message on the wire, and its calls' wire ids by their stored ones."""
    sender = message.get("_origin")
    at_home = sender == origin and origin != ""
    # Without an origin the host wrote the message, and means what it says.
    keeps_all = at_home or sender is None
    calls = message.get("tool_calls") or ()
    wire: Message = {
        "role": "assistant",
        "content": _said(message, at_home=at_home, has_calls=bool(calls)),
    }
    ids: Mapping[str, str] = {}
    if calls:
        stored = [call["id"] for call in calls]
        # Ids of one message are unique in the view, so a portable one stays as it is.
        keeps_ids = all(
            is_portable_id(one) or (at_home and well_formed(one) == one) for one in stored
        )
        ids = dict(zip(stored, stored, strict=True)) if keeps_ids else WireIds().assign(stored)
        wire["tool_calls"] = [
            _call(call, ids[call["id"]], keeps_all=keeps_all) for call in calls
        ]
    if len(message) > len(wire):
        more = _more_of(message, _READ_KEYS)
        wire.update(more if keeps_all else {k: more[k] for k in more if k in _COMMON_KEYS})
    return wire, ids


def _said(message: Message, *, at_home: bool, has_calls: bool) -> JsonValue:
    content = message.get("content")
    blocks = message.get("_blocks")
    if at_home and isinstance(blocks, list) and text_of(blocks) == text_of(content):
        content = blocks
    wire = _content(content, codec.copy if at_home else openai_text)
    # A placeholder beside calls would teach the model to write it.
    return None if has_calls and wire == EMPTY else wire


def _call(call: Mapping[str, Any], call_id: str, *, keeps_all: bool) -> dict[str, Any]:
    function = call["function"]
    named: dict[str, Any] = {
        "name": wire_name(function["name"]),
        "arguments": portable_arguments(function["arguments"]),
    }
    wire: dict[str, Any] = {"id": call_id, "type": "function", "function": named}
    if keeps_all and len(function) > len(_FUNCTION_KEYS):
        named.update(_more_of(function, _FUNCTION_KEYS))
    if keeps_all and len(call) > len(_CALL_KEYS):
        wire.update(_more_of(call, _CALL_KEYS))
    return wire


def read_reply(payload: JsonValue, origin: str) -> ModelReply:
    """Read a 2xx body.

    The stored message has its `_origin` only where it holds what other providers would refuse:
    further keys, ids that are not portable, content parts that are no text (kept in `_blocks`).
    Keys that begin with an underscore are not taken from a provider.

    Raises:
        LlmError: It has an error instead of a message, or no message.
    """
    choice = _choice(payload)
    received = choice["message"]
    heard = called(received)
    ids = unique_ids([call.get("id") for call in heard])
    calls = [_meaningful_call(sound_call(*pair)) for pair in zip(heard, ids, strict=True)]
    content, refusal = received.get("content"), received.get("refusal")
    text = text_of(content)
    if not text and isinstance(refusal, str):
        text = refusal
    message: Message = {"role": "assistant", "content": text or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    more = _more(received, text)
    message.update(more)
    if more or any(_is_foreign(call) for call in calls):
        message["_origin"] = origin
    return ModelReply(
        message=message,
        calls=tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in calls
        ),
        text=text,
        usage=_usage(payload.get("usage")),
        truncated=choice.get("finish_reason") in _TRUNCATED,
        finish_reason=_finish_reason(choice.get("finish_reason"), has_calls=bool(calls)),
    )


def _choice(payload: JsonValue) -> Mapping[str, Any]:
    if not isinstance(payload, Mapping):
        raise unusable(payload, "no JSON object")
    raise_if_error(payload, payload)
    choices = payload.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, Mapping):
        raise unusable(payload, "no choices")
    raise_if_error(payload, choice)
    if not isinstance(choice.get("message"), Mapping):
        raise unusable(payload, "no message")
    return choice


def _meaningful_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = _meaningful(call["function"], _FUNCTION_KEYS)
    return {**_meaningful(call, _CALL_KEYS), "function": function}


def _meaningful(received: Mapping[str, Any], kept: frozenset[str]) -> dict[str, Any]:
    # Interned: the keys of a parsed body are texts of its own, in every message kept.
    return {
        sys.intern(key): value
        for key, value in received.items()
        if key in kept or (says_something(value) and not key.startswith("_"))
    }


def _is_foreign(call: Mapping[str, Any]) -> bool:
    return (
        len(call) > len(_CALL_KEYS)
        or len(call["function"]) > len(_FUNCTION_KEYS)
        or not is_portable_id(call["id"])
    )


def _more(received: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return what the message says beyond text and calls."""
    more = {
        key: value
        for key, value in _meaningful(received, frozenset()).items()
        if key not in _READ_KEYS and not (key == "refusal" and value in ("", text))
    }
    content = received.get("content")
    if isinstance(content, list) and not all(is_plain_part(part) for part in content):
        more["_blocks"] = content
    return more


def _finish_reason(received: object, *, has_calls: bool) -> str:
    if isinstance(received, str) and received:
        return "length" if received in _TRUNCATED else received
    return "tool_calls" if has_calls else "stop"


def _usage(received: JsonValue) -> Usage:
    if not isinstance(received, Mapping):
        return Usage()
    prompt = count(received.get("prompt_tokens"))
    completion = count(received.get("completion_tokens"))
    return Usage(prompt, completion, count(received.get("total_tokens")) or prompt + completion)
