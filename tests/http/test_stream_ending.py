"""A stream that has said all: nobody waits for its end, and nobody else is hurried by it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from tests.conftest import LIMIT, MakeClient
from tests.http.raw_servers import Background, Peer, RawServer
from tests.http.streaming import (
    HELLO,
    STYLES,
    USAGE,
    begin_stream,
    delta,
    result_in,
    send_chunk,
    sse,
    text_in,
)
from toolnexus import TextDelta
from toolnexus.testing import (
    ScriptedLlm,
    text,
)

InBackground = Callable[[Callable[[], Any]], Background]


@STYLES
def test_nobody_waits_for_a_server_that_does_not_let_go(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", text("hello").held_at_end(threading.Event()), text("again"))
    client = make_client(style=style)
    events = list(client.stream("hi"))

    assert result_in(events).text == "hello"
    llm.wait_connections(0)
    assert text_in(client.stream("hi")) == "again"


def test_nobody_waits_for_a_server_that_goes_on_with_comments(
    make_client: MakeClient, serve: Callable[..., RawServer], background: InBackground
) -> None:
    def play(peer: Peer) -> None:
        peer.request()
        begin_stream(peer)
        send_chunk(peer, sse(*HELLO, "[DONE]"))
        while not peer.closing.wait(0.01):
            send_chunk(peer, ": still here\n\n")

    client = make_client(base_url=serve(play).base_url)
    run = background(lambda: text_in(client.stream("hi")))

    assert run.result() == "hello"


def test_nobody_waits_for_comments_after_the_finish_reason(
    make_client: MakeClient, serve: Callable[..., RawServer], background: InBackground
) -> None:
    def play(peer: Peer) -> None:
        peer.request()
        begin_stream(peer)
        send_chunk(peer, sse(delta("hello"), delta(finish="stop"), USAGE))
        while not peer.closing.wait(0.01):
            send_chunk(peer, ": still here\n\n")

    client = make_client(base_url=serve(play).base_url)
    run = background(lambda: text_in(client.stream("hi")))

    assert run.result() == "hello"


@STYLES
def test_usage_that_comes_late_is_waited_for(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground, style: str
) -> None:
    gate = threading.Event()
    before_usage = {"openai": 4, "anthropic": 5}[style]
    llm.say("m", text("hello").paused_after(before_usage, gate))
    client = make_client(style=style)
    run = background(lambda: list(client.stream("hi")))
    llm.wait_asked("m")
    gate.set()

    assert result_in(run.result()).usage.total_tokens == 40


def test_a_stream_that_ends_does_not_hurry_another_request_of_its_connection(
    make_client: MakeClient, serve: Callable[..., RawServer], background: InBackground
) -> None:
    asked, over = threading.Event(), threading.Event()

    def play(peer: Peer) -> None:
        peer.request()
        events = sse(*HELLO, "[DONE]").encode()
        peer.reply(events, headers={"content-type": "text/event-stream"})
        peer.request()
        whole = json.dumps({"choices": [{"message": {"content": "other"}}]}).encode()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(whole))
        asked.set()
        over.wait(LIMIT)
        peer.send(whole[:1])
        peer.closing.wait(0.6)  # longer than the end of a stream is waited for
        peer.send(whole[1:])

    server = serve(play)
    client = make_client(base_url=server.base_url)
    stream = client.stream("hi")
    assert next(stream) == TextDelta("hel")  # by now the whole body is here
    other = background(lambda: client.run("other").text)
    assert asked.wait(LIMIT)
    list(stream)
    over.set()

    assert other.result() == "other"
    assert server.accepted == 1
