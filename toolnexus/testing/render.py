"""A scripted reply as a provider would write it. Pure: values in, bytes out."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from toolnexus.codec import JsonValue, dumps, encode, loads
from toolnexus.testing.events import anthropic_events, openai_events
from toolnexus.testing.recorded import RecordedRequest, Style, blocks_of
from toolnexus.testing.replies import Call, Gate, Reply

Step: TypeAlias = bytes | Gate
"""Of a stream: a chunk to send, or what to wait for before the next one."""

_EVENT_END: Final = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)|(?<=\r\r)")
_STOP_REASONS: Final[Mapping[str, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_ANTHROPIC_ERRORS: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_OPENAI_ERRORS: Final[Mapping[int, str]] = {
    429: "rate_limit_error",
    401: "authentication_error",
}


@attrs.frozen
class Rendered:
    """A response, ready to be written.

    Attributes:
        status: HTTP status.
        headers: All but `content-length`.
        body: The bytes.
        value: What the body says, where it is a model's reply; None otherwise.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    value: Mapping[str, Any] | None = None


def render_error(style: Style, code: int, message: str) -> Rendered:
    """Return an error as the provider of `style` shapes it."""
    body: dict[str, JsonValue]
    if style == "anthropic":
        kind = _ANTHROPIC_ERRORS.get(code, "api_error")
        body = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        kind = "server_error" if code >= 500 else "invalid_request_error"
        kind = _OPENAI_ERRORS.get(code, kind)
        body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return Rendered(code, {"content-type": "application/json"}, encode(body))


def render(
    reply: Reply, request: RecordedRequest, serial: int, next_id: Callable[[], str]
) -> Rendered:
    """Return `reply` in the style of `request`.

    Args:
        reply: What to say.
        request: What was asked; a request with `stream` gets events.
        serial: Number of this reply, for its id.
        next_id: Makes an id for a call that has none.
    """
    if reply.body is None and reply.status != 200:
        message = f"scripted failure with status {reply.status}"
        error = render_error(request.style, reply.status, message)
        return attrs.evolve(error, headers={**error.headers, **_lower(reply.headers)})
    if isinstance(reply.body, str):
        headers = {"content-type": "text/plain; charset=utf-8", **_lower(reply.headers)}
        return Rendered(reply.status, headers, reply.body.encode("utf-8", "surrogatepass"))
    value = reply.body
    if value is None:
        write = _anthropic if request.style == "anthropic" else _openai
        value = write(reply, request.model, serial, next_id)
    headers, body = _encode(value, request, reply.status)
    known = value if isinstance(value, dict) else None
    return Rendered(reply.status, {**headers, **_lower(reply.headers)}, body, known)


def is_stream(rendered: Rendered) -> bool:
    """Say whether a response is a stream of events."""
    return rendered.headers.get("content-type", "").startswith("text/event-stream")


def steps(reply: Reply, body: bytes) -> list[Step]:
    """Return how a stream is sent: its chunks, and the gates between them.

    Raises:
        ValueError: The reply pauses or is cut behind the end of the stream.
    """
    events = [event for event in _EVENT_END.split(body) if event][: reply.events]
    last = max((after for after, _ in reply.pauses), default=0)
    if last > len(events):
        raise ValueError(f"a pause after {last} events of a stream of {len(events)}")
    sizes = itertools.cycle(reply.pieces)
    made: list[Step] = []
    begun = 0
    for after, gate in (*sorted(reply.pauses, key=lambda pause: pause[0]), (None, None)):
        made.extend(_chunks(events[begun:after], sizes if reply.pieces else None))
        begun = after or begun
        if gate is not None:
            made.append(gate)
    if reply.end_gate is not None:
        made.append(reply.end_gate)
    half = sum(map(len, events)) // 2 if reply.cut == "in body" else None
    return _cut(made, half if reply.cut_bytes is None else reply.cut_bytes)


def _chunks(events: Sequence[bytes], sizes: Iterator[int] | None) -> Iterator[bytes]:
    if sizes is None:
        yield from events
        return
    data = b"".join(events)
    while data:
        size = max(next(sizes), 1)
        yield data[:size]
        data = data[size:]


def _cut(whole: Sequence[Step], size: int | None) -> list[Step]:
    """Return what comes before `size` bytes are sent."""
    if size is None:
        return list(whole)
    kept: list[Step] = []
    for step in whole:
        if not isinstance(step, bytes):
            kept.append(step)
        elif size < len(step):
            return [*kept, step[:size]] if size else kept
        else:
            kept.append(step)
            size -= len(step)
    if size:
        raise ValueError(f"a cut {size} bytes behind the end of the stream")
    return kept


def used_ids(request: RecordedRequest) -> set[str]:
    """Return the ids of all calls in the transcript of `request`."""
    ids: set[str] = set()
    for message in request.messages:
        calls = message.get("tool_calls") or ()
        blocks = [b for b in blocks_of(message.get("content")) if b.get("type") == "tool_use"]
        given = (call.get("id") for call in (*calls, *blocks))
        ids.update(one for one in given if isinstance(one, str))
    return ids


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _encode(
    value: JsonValue, request: RecordedRequest, status: int
) -> tuple[dict[str, str], bytes]:
    """Write a model's reply as events where the request asked for a stream."""
    is_reply = isinstance(value, dict) and ("choices" in value or "stop_reason" in value)
    if request.body.get("stream") is not True or not is_reply or status != 200:
        return {"content-type": "application/json"}, encode(value)
    if request.style == "anthropic":
        events = anthropic_events(value)
    else:
        options = request.body.get("stream_options") or {}
        events = openai_events(value, with_usage=bool(options.get("include_usage")))
    return {"content-type": "text/event-stream; charset=utf-8"}, "".join(events).encode(
        "utf-8", "replace"
    )


def _openai(
    reply: Reply, model: str, serial: int, next_id: Callable[[], str]
) -> dict[str, JsonValue]:
    message: dict[str, JsonValue] = {
        "role": "assistant",
        "content": reply.content,
        "refusal": None,
        **reply.extra,
    }
    if reply.calls:
        message["tool_calls"] = [_openai_call(call, next_id) for call in reply.calls]
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    body: dict[str, JsonValue] = {
        "id": f"chatcmpl-{serial}",
        "object": "chat.completion",
        "created": 1_767_225_600 + serial,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    if reply.usage is not None:
        prompt, completion = reply.usage
        body["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
    return body


def _openai_call(call: Call, next_id: Callable[[], str]) -> JsonValue:
    arguments = call.args if isinstance(call.args, str) else dumps(call.args)
    return {
        "id": next_id() if call.id is None else call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _anthropic(
    reply: Reply, model: str, serial: int, next_id: Callable[[], str]
) -> dict[str, JsonValue]:
    content: list[JsonValue] = [dict(block) for block in reply.thinking]
    if reply.content:
        content.append({"type": "text", "text": reply.content})
    content.extend(_anthropic_call(call, next_id) for call in reply.calls)
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    body: dict[str, JsonValue] = {
        "id": f"msg_{serial}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": _STOP_REASONS.get(finish, finish),
        "stop_sequence": None,
    }
    if reply.usage is not None:
        body["usage"] = {"input_tokens": reply.usage[0], "output_tokens": reply.usage[1]}
    return body


def _anthropic_call(call: Call, next_id: Callable[[], str]) -> JsonValue:
    arguments = call.args
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = loads(arguments)
    use_id = next_id() if call.id is None else call.id
    return {"type": "tool_use", "id": use_id, "name": call.name, "input": arguments}
