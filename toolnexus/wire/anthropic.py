"""Anthropic's messages: system apart, roles that alternate, contents in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.messages import Message, ToolCall, Usage
from toolnexus.toolspec import ToolDeclaration
from toolnexus.wire.anthropic_stream import AnthropicStream
from toolnexus.wire.base import ModelReply, ModelRequest
from toolnexus.wire.calls import (
    WireIds,
    arguments_object,
    arguments_text,
    is_portable_id,
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
from toolnexus.wire.parts import anthropic_block, placeholder
from toolnexus.wire.replies import count, raise_if_error, unusable
from toolnexus.wire.view import complete

VERSION: Final = "2023-06-01"
DEFAULT_MAX_TOKENS: Final = 4096
BEGINNING: Final = "(start of conversation)"
"""The user's first message where the transcript begins with the assistant."""

CONTINUED: Final = "(continued)"
"""The user's message between two of the assistant's that cannot be one."""

STREAM_PARAMS: Final[Mapping[str, JsonValue]] = {"stream": True}

Block: TypeAlias = dict[str, Any]

_THINKING: Final = ("thinking", "redacted_thinking")
_TOOL_USE_KEYS: Final = frozenset({"type", "id", "name", "input"})
_TRUNCATED: Final = ("max_tokens", "model_context_window_exceeded")
_FINISH_REASONS: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


def endpoint(base_url: str) -> str:
    """Return the URL that a request is posted to."""
    base = base_url.removesuffix("/")
    return f"{base}/messages" if base.endswith("/v1") else f"{base}/v1/messages"


translation_endpoint = endpoint


def new_stream() -> AnthropicStream:
    """Return what the events of one stream go into."""
    return AnthropicStream()


def headers(api_key: str) -> dict[str, str]:
    """Return the headers that carry the key and the protocol's version."""
    return {"x-api-key": api_key, "anthropic-version": VERSION}


def request_body(request: ModelRequest) -> dict[str, JsonValue]:
    """Return the body; it shares nothing that can be altered with the request.

    System messages of the transcript are hoisted behind the system prompt. Thinking and other
    blocks of an earlier reply go back to their origin as received, all of them, as long as the
    message still says what they say.
    """
    view = complete(request.messages)
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    body: dict[str, JsonValue] = {"model": request.model, "max_tokens": limit}
    system = _system(request.system, view)
    if system:
        body["system"] = system
    body["messages"] = [_message(*turn) for turn in _turns(view, request.origin)]
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        choice = _tool_choice(request.tool_choice)
        if choice is not None:
            body["tool_choice"] = choice
    return body


def _tool_choice(choice: JsonValue) -> JsonValue:
    """Return OpenAI's `tool_choice` in this provider's words; None where it is the default."""
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        return {"type": "tool", "name": wire_name(str(name or ""))}
    return {"required": {"type": "any"}, "any": {"type": "any"}, "none": {"type": "none"}}.get(
        choice
    )


def _tool(tool: ToolDeclaration) -> dict[str, JsonValue]:
    return {
        "name": wire_name(tool.name),
        "description": tool.description,
        "input_schema": tool.input_schema,
    }


def _system(prompt: str, view: Iterable[Message]) -> str:
    hoisted = (
        text_of(message.get("content"))
        for message in view
        if message["role"] in ("system", "developer")
    )
    texts = [prompt, *(text for text in hoisted if text != prompt)]
    return "\n\n".join(text for text in texts if not is_blank(text))


def _turns(view: Iterable[Message], origin: str) -> list[tuple[str, list[Block]]]:
    """Return role and blocks of each message, one message where a role speaks twice."""
    turns: list[tuple[str, list[Block]]] = []
    all_ids = WireIds()
    ids: Mapping[str, str] = {}
    for message in view:
        role = message["role"]
        if role == "assistant":
            ids = all_ids.assign([call["id"] for call in message.get("tool_calls") or ()])
            blocks = _assistant(message, ids, origin)
        elif role == "tool":
            role, blocks = "user", [_result(message, ids[message["tool_call_id"]])]
        elif role == "user":
            blocks = _parts(message.get("content"))
        else:
            continue
        if not turns or turns[-1][0] != role:
            turns.append((role, blocks))
        elif blocks and blocks[0].get("type") in _THINKING:
            # Thoughts open their own message: those of two replies in one are refused.
            turns += [("user", [_text(CONTINUED)]), (role, blocks)]
        else:
            turns[-1][1].extend(blocks)
    return _acceptable(turns)


def _acceptable(turns: list[tuple[str, list[Block]]]) -> list[tuple[str, list[Block]]]:
    if not turns or turns[0][0] != "user":
        turns.insert(0, ("user", [_text(BEGINNING)]))
    for role, blocks in turns:
        if not blocks or (role == "assistant" and blocks[-1].get("type") in _THINKING):
            blocks.append(_text(EMPTY))
    role, blocks = turns[-1]
    if role == "assistant" and blocks[-1].get("type") == "text":
        # A prefill: the provider goes on from it, and refuses white space at its end.
        blocks[-1]["text"] = blocks[-1]["text"].rstrip()
    return turns


def _message(role: str, blocks: list[Block]) -> Message:
    if len(blocks) == 1 and is_plain_part(blocks[0]):
        return {"role": role, "content": blocks[0]["text"]}
    return {"role": role, "content": blocks}


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _texts(text: str) -> list[Block]:
    return [] if is_blank(text) else [_text(text)]


def _result(message: Message, call_id: str) -> Block:
    is_error = message.get("_is_error") is True
    # An error may hold nothing but text.
    blocks = _parts(message.get("content"), texts_only=is_error)
    plain = len(blocks) == 1 and blocks[0]["type"] == "text"
    content: JsonValue = blocks[0]["text"] if plain else blocks or EMPTY
    result: Block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    if is_error:
        result["is_error"] = True
    return result


def _parts(content: JsonValue, *, texts_only: bool = False) -> list[Block]:
    if not isinstance(content, list):
        return _texts(text_of(content))
    return [block for part in content for block in _part(part, texts_only=texts_only)]


def _part(part: JsonValue, *, texts_only: bool) -> list[Block]:
    text = part_text(part)
    if text is not None:
        return _texts(text)
    if not isinstance(part, Mapping):
        return []
    block = None if texts_only else anthropic_block(part)
    return [block or _text(placeholder(part))]


def _assistant(message: Message, ids: Mapping[str, str], origin: str) -> list[Block]:
    if origin and message.get("_origin") == origin:
        received = _received(message, ids)
        if received:
            return received
    blocks = _texts(text_of(message.get("content")))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        use = {"type": "tool_use", "id": ids[call["id"]], "name": wire_name(function["name"])}
        blocks.append({**use, "input": arguments_object(function["arguments"])})
    return blocks


def _received(message: Message, ids: Mapping[str, str]) -> list[Block]:
    """Return the stored blocks, ready to be sent; none where the message says something else.

    Text and calls of a stored message may have been edited since (redacted, compacted): the
    canonical form is the truth. Only empty texts, which the provider refuses, are left out.
    """
    stored = message.get("_blocks")
    if not isinstance(stored, list) or not _says_the_same(message, stored):
        return []
    blocks: list[Block] = codec.copy([b for b in stored if not _is_blank_text(b)])
    for block in blocks:
        if block.get("type") == "tool_use":
            name = wire_name(block["name"])
            block.update(id=ids[block["id"]], name=name, input=_input(block))
    return blocks


def _input(block: Block) -> Any:
    """Return the input of a tool use as it may be sent back; a malformed one is no object."""
    received = block.get("input")
    if isinstance(received, dict):
        return received
    return arguments_object(arguments_text(received))


def _is_blank_text(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "text" and is_blank(block["text"])


def _is_block(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _says_the_same(message: Message, stored: Sequence[Any]) -> bool:
    if not all(_is_block(block) for block in stored):
        return False
    said = [
        (call["id"], call["function"]["name"], arguments_object(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    used = [
        (b.get("id"), b.get("name"), _input(b)) for b in stored if b.get("type") == "tool_use"
    ]
    texts = [b.get("text") for b in stored if b.get("type") == "text"]
    if said != used or not all(isinstance(text, str) for text in texts):
        return False
    return "".join(texts) == text_of(message.get("content"))


def read_reply(payload: JsonValue, origin: str) -> ModelReply:
    """Read a 2xx body.

    Anything beside plain text and tool use is kept in `_blocks`, all blocks in their order.
    `prompt_tokens` is `input_tokens`: tokens read from or written to a cache are not in it.

    Raises:
        LlmError: It has an error instead of content, or no content.
    """
    received = _content(payload)
    blocks = _with_ids(received)
    uses = [block for block in blocks if block.get("type") == "tool_use"]
    calls = tuple(_call(block) for block in uses)
    text = "".join(part_text(b) or "" for b in blocks if b.get("type") == "text")
    message: Message = {"role": "assistant", "content": text or (None if calls else "")}
    if calls:
        message["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments},
            }
            for c in calls
        ]
    if not all(_is_canonical(block) for block in blocks):
        message["_blocks"] = blocks
        message["_origin"] = origin
    reason = payload.get("stop_reason")
    return ModelReply(
        message=message,
        calls=calls,
        text=text,
        usage=_usage(payload.get("usage")),
        truncated=reason in _TRUNCATED,
        finish_reason=_finish_reason(reason, has_calls=bool(calls)),
    )


def _content(payload: JsonValue) -> list[Block]:
    if not isinstance(payload, Mapping):
        raise unusable(payload, "no JSON object")
    raise_if_error(payload, payload)
    content = payload.get("content")
    if isinstance(content, str):
        return [_text(content)]
    if not isinstance(content, list):
        raise unusable(payload, "no content")
    return [block for block in content if _is_block(block)]


def _with_ids(received: Sequence[Block]) -> list[Block]:
    """Return the blocks with an id of its own in each tool use: calls and blocks must agree."""
    ids = iter(unique_ids([b.get("id") for b in received if b.get("type") == "tool_use"]))
    return [
        {**block, "id": next(ids)} if block.get("type") == "tool_use" else block
        for block in received
    ]


def _call(block: Block) -> ToolCall:
    name = block.get("name")
    return ToolCall(
        block["id"], name if isinstance(name, str) else "", arguments_text(block.get("input"))
    )


def _is_canonical(block: Block) -> bool:
    if block.get("type") != "tool_use":
        return is_plain_part(block)
    more = set(block) - _TOOL_USE_KEYS
    return is_portable_id(block["id"]) and not any(says_something(block[key]) for key in more)


def _finish_reason(reason: object, *, has_calls: bool) -> str:
    if isinstance(reason, str) and reason:
        return _FINISH_REASONS.get(reason, reason)
    return "tool_calls" if has_calls else "stop"


def _usage(received: JsonValue) -> Usage:
    if not isinstance(received, Mapping):
        return Usage()
    prompt, completion = (
        count(received.get("input_tokens")),
        count(received.get("output_tokens")),
    )
    return Usage(prompt, completion, prompt + completion)
