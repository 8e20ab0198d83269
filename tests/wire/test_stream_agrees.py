"""Streamed or not, a reply is read as the same: any reply, any style, any cut of the bytes."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import LIMIT
from tests.wire.rendering import Example, Json, examples, junk_events
from toolnexus import codec
from toolnexus.errors import LlmError
from toolnexus.testing import Call, Reply, ScriptedLlm
from toolnexus.wire import anthropic, openai
from toolnexus.wire.anthropic_stream import AnthropicStream
from toolnexus.wire.base import ModelReply, ModelRequest
from toolnexus.wire.openai_stream import OpenAiStream
from toolnexus.wire.sse import EventParser, ServerSentEvent

HERE = "some origin m"
DIALECTS: dict[str, Any] = {"openai": openai, "anthropic": anthropic}
STREAMS: dict[str, type[OpenAiStream] | type[AnthropicStream]] = {
    "openai": OpenAiStream,
    "anthropic": AnthropicStream,
}

many = settings(
    deadline=None,
    derandomize=True,
    max_examples=250,
    suppress_health_check=[HealthCheck.too_slow],
)


def read_stream(style: str, pieces: list[bytes]) -> tuple[ModelReply, str]:
    """Return the reply and all text that was given on the way."""
    parser, stream = EventParser(), STREAMS[style]()
    given = [stream.add(event) for piece in pieces for event in parser.feed(piece)]
    assert stream.is_complete
    assert not parser.is_mid_event
    return DIALECTS[style].read_reply(stream.payload(), HERE), "".join(given)


def check(style: str, body: Json, stream: bytes, places: list[int]) -> ModelReply:
    plain: ModelReply = DIALECTS[style].read_reply(codec.loads(json.dumps(body)), HERE)
    edges = [0, *sorted(min(place, len(stream)) for place in places), len(stream)]
    reply, given = read_stream(style, [stream[a:b] for a, b in pairwise(edges)])
    assert reply == plain
    assert sorted(given) == sorted(reply.text)
    return reply


@many
@given(examples("openai"))
def test_openai(example: Example) -> None:
    body, _, stream, places = example
    _, given = read_stream("openai", [stream])
    assert given == check("openai", body, stream, places).text


@many
@given(examples("anthropic"))
def test_anthropic(example: Example) -> None:
    body, _, stream, places = example
    check("anthropic", body, stream, places)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(examples("openai"), examples("anthropic"))
def test_byte_by_byte(
    one: Example,
    other: Example,
) -> None:
    for style, (body, _, stream, _) in (("openai", one), ("anthropic", other)):
        check(style, body, stream, list(range(len(stream))))


@many
@given(examples("openai"), st.data())
def test_a_stream_that_is_cut_gives_the_beginning_of_the_text(
    example: Example, data: st.DataObject
) -> None:
    body, events, _, _ = example
    stream = OpenAiStream()
    for event in events[: data.draw(st.integers(0, len(events)))]:
        stream.add(ServerSentEvent("message", json.dumps(event)))
    text = openai.read_reply(codec.loads(json.dumps(body)), HERE).text
    # Cut between the halves of a character, it ends with the first.
    assert text.startswith(stream.text.rstrip("\ud83d"))
    assert stream.text == text or not stream.is_complete


@many
@given(st.sampled_from(sorted(DIALECTS)), st.lists(junk_events, max_size=6))
def test_whatever_comes_is_read_or_is_an_error_of_the_model(
    style: str, events: list[Json]
) -> None:
    stream = STREAMS[style]()
    with contextlib.suppress(LlmError):
        for event in events:
            assert isinstance(stream.add(ServerSentEvent("message", json.dumps(event))), str)
    with contextlib.suppress(LlmError):
        assert DIALECTS[style].read_reply(stream.payload(), HERE).text == stream.text


# -- the scripted server --------------------------------------------------------------------

REPLIES = {
    "text": Reply("Hello, wörld 😀"),
    "nothing": Reply(""),
    "calls": Reply(
        "I look.", calls=(Call("f", {"x": ["é", 1]}, "a"), Call("g", {}, "b")), usage=(7, 3)
    ),
    "broken arguments": Reply(calls=(Call("f", "{oops", "a"), Call("g", [1], "b"))),
    "cut off": Reply("Hel", finish="length"),
    "no usage": Reply("x", usage=None),
    "thinking": Reply(
        "x",
        thinking=({"type": "thinking", "thinking": "hmm", "signature": "s"},),
        calls=(Call("f", {"x": 1}, "a"),),
    ),
    "more keys": Reply("x", extra={"reasoning_content": "hm", "annotations": [{"a": 1}]}),
}


@pytest.mark.parametrize("style", ["openai", "anthropic"])
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
def test_what_the_scripted_server_streams(llm: ScriptedLlm, style: str, reply: Reply) -> None:
    dialect = DIALECTS[style]
    request = ModelRequest(model="m", messages=[{"role": "user", "content": "hi"}])
    body = dialect.request_body(request)
    streamed = {**body, "stream": True}
    if style == "openai":
        streamed["stream_options"] = {"include_usage": True}
    llm.say("m", reply, reply)
    with requests.Session() as session:
        session.trust_env = False
        session.headers.update(dialect.headers("test-key"))
        url = dialect.endpoint(llm.base_url)
        plain = session.post(url, json=body, timeout=LIMIT).json()
        events = session.post(url, json=streamed, timeout=LIMIT).content
    check(style, plain, events, list(range(0, len(events), 7)))
