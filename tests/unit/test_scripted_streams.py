"""Scripted streams: in pieces, with pauses, cut short, and strict about where that fits."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from toolnexus.testing import Reply, ScriptedLlm, raw, text, tool_call

LIMIT = 5.0
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
def llm() -> Iterator[ScriptedLlm]:
    before = set(threading.enumerate())
    with ScriptedLlm() as server:
        yield server
    assert not set(threading.enumerate()) - before


class Client:
    """A client of one connection that reads a stream byte by byte."""

    def __init__(self, llm: ScriptedLlm, **body: Any) -> None:
        self._connection = http.client.HTTPConnection(
            urlsplit(llm.base_url).netloc, timeout=LIMIT
        )
        asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
        headers = {"authorization": "Bearer k", "content-type": "application/json"}
        self._connection.request(
            "POST", "/v1/chat/completions", json.dumps(asked).encode(), headers
        )
        self.response = self._connection.getresponse()

    def event(self) -> str:
        """Block for one event; "" at the end."""
        lines = iter(self.response.readline, b"")
        return b"".join(iter(lambda: next(lines, b"\n"), b"\n")).decode()

    def close(self) -> None:
        """Hang up."""
        self.response.close()
        self._connection.close()


@pytest.fixture
def ask(llm: ScriptedLlm) -> Iterator[Any]:
    """Ask for the reply that is scripted."""
    made: list[Client] = []

    def start(reply: Reply, **body: Any) -> Client:
        llm.say("m", reply)
        made.append(Client(llm, **(body or STREAM)))
        return made[-1]

    yield start
    for client in made:
        client.close()


def test_a_stream_comes_in_chunks_of_one_event(ask: Any) -> None:
    response = ask(text("hello")).response
    assert response.getheader("transfer-encoding") == "chunked"
    chunks = list(iter(lambda: response.read1(65_536), b""))

    assert len(chunks) == 6
    assert all(chunk.startswith(b"data: ") for chunk in chunks)
    assert all(chunk.endswith(b"\n\n") for chunk in chunks)


@pytest.mark.parametrize("sizes", [(1,), (3,), (5, 1), (100_000,)])
def test_a_stream_may_come_in_pieces_of_any_size(ask: Any, sizes: tuple[int, ...]) -> None:
    whole = ask(raw_hello()).response.read()
    response = ask(raw_hello().in_pieces_of(*sizes)).response
    pieces = list(iter(lambda: response.read1(65_536), b""))

    assert b"".join(pieces) == whole
    for number, piece in enumerate(pieces[:-1]):
        assert len(piece) == sizes[number % len(sizes)]


def raw_hello() -> Reply:
    """Return a stream that is the same for every request."""
    return raw(
        'data: {"héllo": 1}\r\n\r\ndata: [DONE]\n\n',
        headers={"content-type": "text/event-stream"},
    )


def test_a_stream_waits_after_each_event_that_is_named(ask: Any) -> None:
    gates = [threading.Event(), threading.Event()]
    client = ask(text("hello").paused_after(3, gates[1]).paused_after(2, gates[0]))
    assert '"role"' in client.event()
    assert '"hel"' in client.event()
    gates[0].set()
    assert '"lo"' in client.event()
    gates[1].set()
    assert "finish_reason" in client.event()
    assert "usage" in client.event()
    assert client.event() == "data: [DONE]\n"
    assert client.event() == ""


def test_a_stream_may_wait_before_its_first_event(ask: Any) -> None:
    gate = threading.Event()
    client = ask(text("hello").paused_after(0, gate))
    assert client.response.status == 200
    gate.set()

    assert '"role"' in client.event()


def test_the_end_of_a_stream_can_be_held_back(ask: Any, llm: ScriptedLlm) -> None:
    gate = threading.Event()
    client = ask(raw_hello().held_at_end(gate))
    assert "llo" in client.response.readline().decode()
    client.close()

    llm.wait_connections(0)
    assert not gate.is_set()


def test_closing_the_server_opens_the_gates_of_a_stream(llm: ScriptedLlm) -> None:
    gates = [threading.Event() for _ in range(4)]
    llm.say("m", text("hello").paused_after(1, gates[0]).held_at_end(gates[1]))
    llm.say("m", text("never asked for").paused_after(1, gates[2]).held_at_end(gates[3]))
    client = Client(llm, **STREAM)
    llm.close()
    client.close()

    assert all(gate.is_set() for gate in gates)


def test_a_stream_may_end_early_and_in_good_order(ask: Any) -> None:
    for count, ends_with in ((-1, b'"usage"'), (2, b'"hel"'), (0, b"")):
        body = ask(text("hello").ended_after(count)).response.read()
        assert ends_with in body
        assert b"[DONE]" not in body


@pytest.mark.parametrize("size", [0, 1, 20])
def test_a_stream_may_be_cut_after_any_byte(ask: Any, size: int) -> None:
    response = ask(raw_hello().cut_after(size)).response
    with pytest.raises(http.client.IncompleteRead) as caught:
        response.read()

    assert len(caught.value.partial) == size


def test_a_stream_may_be_cut_in_its_middle(ask: Any) -> None:
    response = ask(raw_hello().cut_in_body()).response
    with pytest.raises(http.client.IncompleteRead) as caught:
        response.read()

    assert caught.value.partial.startswith(b"data: {")


def test_a_stream_keeps_its_connection(llm: ScriptedLlm) -> None:
    llm.answer("m", lambda request: text("hello"))
    with requests.Session() as session:
        for _ in range(3):
            reply = session.post(
                f"{llm.base_url}/chat/completions",
                headers={"authorization": "Bearer k"},
                json={"model": "m", "messages": [{"role": "user", "content": "hi"}], **STREAM},
                timeout=LIMIT,
            )
            assert reply.text.endswith("[DONE]\n\n")
        assert llm.open_connections == 1


@pytest.mark.parametrize(
    "reply",
    [
        text("x").ended_after(1),
        text("x").cut_after(1),
        text("x").in_pieces_of(1),
        text("x").paused_after(1, threading.Event()),
        text("x").held_at_end(threading.Event()),
    ],
    ids=["ended", "cut", "pieces", "pause", "held"],
)
def test_what_only_a_stream_can_do_is_a_mistake_where_none_was_asked_for(
    llm: ScriptedLlm, ask: Any, reply: Reply
) -> None:
    assert ask(reply, temperature=0).response.status == 501
    with pytest.raises(AssertionError, match="did not ask for"):
        llm.assert_done()


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (text("x").paused_after(99, threading.Event()), "a pause after 99 events"),
        (text("x").cut_after(10_000), "behind the end of the stream"),
    ],
    ids=["pause", "cut"],
)
def test_a_pause_or_a_cut_behind_the_end_is_a_mistake(
    llm: ScriptedLlm, ask: Any, reply: Reply, says: str
) -> None:
    assert ask(reply).response.status == 501
    with pytest.raises(AssertionError, match=says):
        llm.assert_done()


def test_replies_can_be_used_again(ask: Any) -> None:
    reply = tool_call("add", {"a": 1}, "c1")
    cut = reply.ended_after(1)

    assert not reply.is_paced
    assert cut.is_paced
    assert b"[DONE]" in ask(reply, **STREAM, tools=TOOLS).response.read()
    assert b"[DONE]" not in ask(cut, **STREAM, tools=TOOLS).response.read()


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
