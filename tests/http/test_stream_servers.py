"""What a stream asks for, and what servers of many kinds make of that."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.conftest import MakeClient
from tests.http.raw_servers import Peer
from tests.http.streaming import (
    FIRST_WORD,
    HELLO,
    STYLES,
    Watching,
    generator_of,
    held,
    kinds,
    result_in,
    scripted,
    sse,
    text_in,
)
from tests.http.test_client_run import add
from toolnexus import (
    ConfigError,
    LlmError,
    TextDelta,
    Usage,
)
from toolnexus.testing import ScriptedLlm, call, raw, text, tool_calls

CALL = call("add", {"a": 1, "b": 2}, "c1")


# -- the request -------------------------------------------------------------------------------


def test_an_openai_stream_asks_for_itself_and_for_usage(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("hi"))
    list(make_client(request_params={"seed": 7}).stream("hi", tools=[add]))
    (request,) = llm.requests

    assert list(request.body) == [
        "model",
        "messages",
        "tools",
        "tool_choice",
        "stream",
        "stream_options",
        "seed",
    ]
    assert request.body["stream"] is True
    assert request.body["stream_options"] == {"include_usage": True}


def test_an_anthropic_stream_asks_for_itself(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", text("hi"))
    client = make_client(style="anthropic", system_prompt="Be brief.")
    list(client.stream("hi", tools=[add]))
    (request,) = llm.requests

    assert list(request.body) == [
        "model",
        "max_tokens",
        "system",
        "messages",
        "tools",
        "stream",
    ]
    assert request.body["stream"] is True


def test_no_option_can_turn_a_stream_off(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    llm.say("m", text("hello"))
    client = make_client(request_params={"stream": False})

    assert text_in(client.stream("hi")) == "hello"
    assert llm.requests[0].body["stream"] is True
    assert "request_params: stream ignored" in caplog.text


def test_nothing_is_asked_before_the_first_event_is(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("hello"))
    stream = make_client().stream("hi")

    assert llm.requests == []
    assert isinstance(next(stream), TextDelta)
    assert len(llm.requests) == 1
    list(stream)


def test_a_call_that_makes_no_sense_is_refused_at_once(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client: Any = make_client()
    wrongs: list[Callable[[], object]] = [
        lambda: client.stream(7),
        lambda: client.stream("hi", tools=["add"]),
        lambda: client.stream("hi", tools=[add, add]),
        lambda: client.stream("hi", id=""),
        lambda: client.stream("hi", id="u1", history=[{"role": "user", "content": "x"}]),
    ]
    for wrong in wrongs:
        with pytest.raises(ConfigError):
            wrong()
    assert llm.requests == []


# -- servers of their own kind -----------------------------------------------------------------


@STYLES
@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8"]
)
def test_a_server_that_does_not_stream_is_understood(
    llm: ScriptedLlm, make_client: MakeClient, style: str, content_type: str
) -> None:
    watching = Watching()

    def never_stream(body: dict[str, Any]) -> None:
        for key in ("stream", "stream_options"):
            body.pop(key, None)

    header = {"content-type": content_type}
    llm.say("m", tool_calls(CALL, content="hm").with_headers(header))
    llm.say("m", text("It is 3.").with_headers(header))
    client = make_client(style=style, body_transform=never_stream, **watching.options)
    events = list(client.stream("go", tools=[add]))

    assert kinds(events) == [
        "text",
        "tool_call",
        "tool_result",
        "text",
        "usage",
        "done",
    ]
    assert text_in(events) == "hmIt is 3."
    assert result_in(events).text == "It is 3."
    assert watching.streamed == [False, False]


def test_a_server_without_a_content_type_may_stream(
    make_client: MakeClient, serve: Any
) -> None:
    def play(peer: Peer) -> None:
        peer.request()
        body = sse(*HELLO, "[DONE]").encode()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    events = list(make_client(base_url=serve(play).base_url).stream("hi"))
    assert text_in(events) == result_in(events).text == "hello"


def test_a_server_may_end_its_stream_by_hanging_up(make_client: MakeClient, serve: Any) -> None:
    def play(peer: Peer) -> None:
        peer.request()
        head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        peer.send(head + sse(*HELLO).encode())

    events = list(make_client(base_url=serve(play).base_url).stream("hi"))
    assert text_in(events) == "hello"
    assert result_in(events).usage == Usage(30, 10, 40)


def test_done_alone_does_not_make_a_reply(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", scripted(sse("[DONE]")))
    with pytest.raises(LlmError, match="ended before the reply was whole"):
        list(make_client().stream("hi"))


def test_a_stream_may_end_without_done(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", text("hello").ended_after(-1), text("hello").ended_after(-2))
    client = make_client()
    for usage in (Usage(30, 10, 40), Usage()):
        events = list(client.stream("hi"))
        assert result_in(events).text == "hello"
        assert result_in(events).usage == usage


@STYLES
def test_the_connection_serves_the_next_request(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", tool_calls(CALL), text("3"), text("a"), text("b"))
    client = make_client(style=style)
    list(client.stream("go", tools=[add]))
    client.run("a")
    generator_of(client.stream("never begun")).close()
    list(client.stream("b"))

    assert len(llm.requests) == 4
    assert llm.open_connections == 1


def test_a_plain_json_reply_to_a_stream_keeps_the_connection_too(
    make_client: MakeClient, serve: Any
) -> None:
    def play(peer: Peer) -> None:
        while True:
            peer.request()
            peer.reply(headers={"content-type": "application/json"})

    server = serve(play)
    client = make_client(base_url=server.base_url)
    for _ in range(3):
        assert text_in(client.stream("hi")) == "hello"
    assert server.accepted == 1


def test_raw_chunks_of_another_make_are_understood(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    # A comment first, CRLF, no space after the colon, usage in every chunk, null deltas.
    chunk = (
        '{"choices":[{"delta":{"role":null,"content":"%s"}}],'
        '"usage":{"prompt_tokens":3,"completion_tokens":%d}}'
    )
    body = ": OPENROUTER PROCESSING\r\n\r\n"
    body += "".join(f"data:{chunk % (word, n)}\r\n\r\n" for n, word in enumerate("abc", 1))
    body += 'data:{"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\ndata:[DONE]\r\n\r\n'
    llm.say("m", scripted(body).in_pieces_of(5))
    events = list(make_client().stream("hi"))

    assert [event.delta for event in events if event.kind == "text"] == ["a", "b", "c"]
    assert result_in(events).usage == Usage(3, 3, 6)


def test_an_empty_reply_is_told_as_it_is(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", raw({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}))
    events = list(make_client().stream("hi"))

    assert kinds(events) == ["usage", "done"]
    assert result_in(events).text == ""


class Own(requests.adapters.HTTPAdapter):
    """An adapter of the caller's own, through which the session itself posts."""


@pytest.mark.parametrize("adapter", [requests.adapters.HTTPAdapter, Own])
def test_a_session_of_the_callers_own_streams_as_well(
    llm: ScriptedLlm, make_client: MakeClient, adapter: type[requests.adapters.HTTPAdapter]
) -> None:
    gate = threading.Event()
    llm.say("m", text("hello").paused_after(FIRST_WORD["openai"], gate), text("again"), held())
    with requests.Session() as session:
        session.mount("http://", adapter())
        client = make_client(session=session)
        stream = client.stream("hi")
        assert next(stream) == TextDelta("hel")
        gate.set()
        assert text_in(stream) == "lo"
        assert text_in(client.stream("hi")) == "again"
        assert llm.open_connections == 1
        dropped = generator_of(client.stream("hi"))
        next(dropped)
        dropped.close()
        llm.wait_connections(0)


class Canned(requests.adapters.BaseAdapter):
    """An adapter without HTTP, whose bodies are plain files."""

    def send(self, request: Any, *args: Any, **options: Any) -> requests.Response:
        response = requests.Response()
        response.status_code = 200
        response.request, response.url = request, request.url
        response.headers["content-type"] = "text/event-stream"
        response.raw = io.BytesIO(sse(*HELLO, "[DONE]").encode())
        return response

    def close(self) -> None:
        pass


def test_a_reply_from_an_adapter_without_http_is_streamed_too(make_client: MakeClient) -> None:
    with requests.Session() as session:
        session.mount("http://", Canned())
        events = list(make_client(session=session).stream("hi"))

    assert text_in(events) == result_in(events).text == "hello"
