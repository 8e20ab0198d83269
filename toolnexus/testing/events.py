"""A whole reply as the server-sent events of its dialect. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolnexus.codec import JsonValue, dumps


def openai_events(body: Mapping[str, Any], *, with_usage: bool) -> Iterator[str]:
    """Yield the chunks of a chat completion; texts and arguments come in two pieces."""
    head = {"id": body.get("id"), "object": "chat.completion.chunk", "model": body.get("model")}

    def chunk(delta: JsonValue, finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {dumps({**head, 'choices': [choice]})}\n\n"

    for choice in body.get("choices", ()):
        for delta in _openai_deltas(choice.get("message", {})):
            yield chunk(delta)
        yield chunk({}, choice.get("finish_reason"))
    if with_usage and "usage" in body:
        yield f"data: {dumps({**head, 'choices': [], 'usage': body['usage']})}\n\n"
    yield "data: [DONE]\n\n"


def _openai_deltas(message: Mapping[str, Any]) -> Iterator[JsonValue]:
    plain = {
        key: value for key, value in message.items() if key not in ("tool_calls", "content")
    }
    yield {**plain, "content": "" if message.get("content") is not None else None}
    for piece in _pieces(message.get("content") or ""):
        yield {"content": piece}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        opening = {**call, "index": index, "function": {**function, "arguments": ""}}
        yield {"tool_calls": [opening]}
        for piece in _pieces(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def anthropic_events(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the events of a message; texts and inputs come in two pieces."""
    usage = body.get("usage")
    opening = {**body, "content": [], "stop_reason": None}
    if usage is not None:
        opening["usage"] = {**usage, "output_tokens": 1}
    yield _event("message_start", {"message": opening})
    for index, block in enumerate(body.get("content", ())):
        empty, deltas = _anthropic_block(block)
        yield _event("content_block_start", {"index": index, "content_block": empty})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    end: dict[str, JsonValue] = {
        "delta": {"stop_reason": body.get("stop_reason"), "stop_sequence": None}
    }
    if usage is not None:
        end["usage"] = {"output_tokens": usage.get("output_tokens", 0)}
    yield _event("message_delta", end)
    yield _event("message_stop", {})


def _anthropic_block(block: Mapping[str, Any]) -> tuple[JsonValue, list[JsonValue]]:
    """Return what the block starts as, and what is added to it."""
    kind = block.get("type")
    if kind == "text":
        pieces = _pieces(block["text"])
        return {**block, "text": ""}, [{"type": "text_delta", "text": p} for p in pieces]
    if kind == "tool_use":
        given = block["input"]
        pieces = _pieces(given if isinstance(given, str) else dumps(given))
        deltas = [{"type": "input_json_delta", "partial_json": p} for p in ("", *pieces)]
        return {**block, "input": {}}, deltas
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": p} for p in _pieces(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    return block, []


def _event(name: str, fields: Mapping[str, JsonValue]) -> str:
    return f"event: {name}\ndata: {dumps({'type': name, **fields})}\n\n"


def _pieces(text: str) -> list[str]:
    middle = (len(text) + 1) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]
