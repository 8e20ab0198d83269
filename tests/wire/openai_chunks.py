"""OpenAI's chunks, and what is read from them."""

from __future__ import annotations

import json
from typing import Any

from toolnexus.wire import openai
from toolnexus.wire.base import ModelReply
from toolnexus.wire.openai_stream import OpenAiStream
from toolnexus.wire.sse import ServerSentEvent

HERE = "openai api.example m"
END: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def event(data: Any, name: str = "message") -> ServerSentEvent:
    return ServerSentEvent(name, data if isinstance(data, str) else json.dumps(data))


def chunk(delta: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more}


def taken(*chunks: Any) -> tuple[OpenAiStream, list[str]]:
    stream = OpenAiStream()
    return stream, [stream.add(event(one)) for one in chunks]


def read(*chunks: Any) -> ModelReply:
    stream, _ = taken(*chunks, END)
    assert stream.is_complete
    return openai.read_reply(stream.payload(), HERE)
