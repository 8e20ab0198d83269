"""Chunked replies over a socket: told as they come, and what becomes of the connection."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator

import attrs
import pytest

from tests.conftest import LIMIT
from tests.http.raw_servers import Peer, RawServer
from tests.unit.test_chunks import END, HEAD, chunk
from toolnexus.cancel import CancelToken
from toolnexus.errors import LlmError
from toolnexus.transport import Timeouts, Transport

Serve = Callable[..., RawServer]


@pytest.fixture
def transport() -> Iterator[Transport]:
    made = Transport()
    yield made
    made.close()


def pieces_of(transport: Transport, server: RawServer) -> Iterator[bytes]:
    """Yield the pieces of one reply; the exchange is closed at the end."""
    patience = Timeouts(connect_seconds=LIMIT, read_seconds=LIMIT)
    token = CancelToken()
    exchange = transport.open(server.base_url, {}, b"{}", cancel=token, timeouts=patience)
    try:
        yield from exchange.pieces()
    finally:
        exchange.close()


@attrs.define
class Playing:
    """Answers every request of a connection with the next of the given bodies."""

    bodies: list[bytes]
    head: bytes = HEAD + b"\r\n"

    def __call__(self, peer: Peer) -> None:
        while True:
            peer.request()
            peer.send(self.head + self.bodies.pop(0))


def test_what_has_come_is_given_while_the_server_waits(
    transport: Transport, serve: Serve
) -> None:
    gates = [threading.Event() for _ in range(4)]

    def play(peer: Peer) -> None:
        peer.request()
        # Cut within a chunk, within a size, and before the end: each word is out by then.
        for data, gate in zip(
            (HEAD + b"\r\nA\r\nhello", b", you", b"\r\n3"), gates, strict=False
        ):
            peer.send(data)
            gate.wait(LIMIT)
        peer.send(b"\r\nbye\r\n")
        gates[3].wait(LIMIT)
        peer.send(END)
        peer.wait_gone()

    pieces = pieces_of(transport, serve(play))
    assert next(pieces) == b"hello"
    gates[0].set()
    assert next(pieces) == b", you"
    gates[1].set()
    gates[2].set()
    assert next(pieces) == b"bye"
    gates[3].set()
    assert list(pieces) == []


def test_a_body_read_to_its_end_gives_its_connection_back(
    transport: Transport, serve: Serve
) -> None:
    server = serve(Playing([chunk(b"one") + END, b"3\r\ntwo\r\n0\r\na: b\r\n\r\n", END]))

    assert [b"".join(pieces_of(transport, server)) for _ in range(3)] == [b"one", b"two", b""]
    assert server.accepted == 1


def test_bytes_behind_the_end_cost_the_connection(transport: Transport, serve: Serve) -> None:
    stray = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong"
    server = serve(Playing([chunk(b"one") + END + stray, chunk(b"two") + END]))

    assert b"".join(pieces_of(transport, server)) == b"one"
    assert b"".join(pieces_of(transport, server)) == b"two"
    assert server.accepted == 2


@pytest.mark.parametrize("bad", [b"zz\r\n", b"3\r\nlonger\r\n"], ids=repr)
def test_a_broken_body_costs_the_connection_and_is_an_error_of_the_request(
    transport: Transport, serve: Serve, bad: bytes
) -> None:
    server = serve(Playing([chunk(b"one") + bad, chunk(b"two") + END]))
    with pytest.raises(LlmError, match="the reply broke off") as caught:
        list(pieces_of(transport, server))

    assert caught.value.retryable
    assert b"".join(pieces_of(transport, server)) == b"two"
    assert server.accepted == 2


def test_a_body_left_in_the_middle_costs_the_connection(
    transport: Transport, serve: Serve
) -> None:
    server = serve(Playing([chunk(b"one"), chunk(b"two") + END]))
    pieces = pieces_of(transport, server)
    assert next(pieces) == b"one"
    pieces.close()  # type: ignore[attr-defined]  # a generator

    assert b"".join(pieces_of(transport, server)) == b"two"
    assert server.accepted == 2


def test_a_compressed_body_is_unpacked_and_gives_its_connection_back(
    transport: Transport, serve: Serve
) -> None:
    packed = gzip.compress(b"hello " * 100)
    halves = chunk(packed[:10]) + chunk(packed[10:]) + END
    server = serve(Playing([halves, halves], HEAD + b"content-encoding: gzip\r\n\r\n"))

    for _ in range(2):
        assert b"".join(pieces_of(transport, server)) == b"hello " * 100
    assert server.accepted == 1
