"""Chunked bodies: any chunks cut at any byte are the same bytes, without needless waits."""

from __future__ import annotations

import contextlib
import http.client
import io
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import urllib3
from hypothesis import given, settings
from hypothesis import strategies as st
from urllib3.exceptions import HTTPError, InvalidChunkLength, ProtocolError

from toolnexus.chunks import ChunkedBody, is_plainly_chunked

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"
END = b"0\r\n\r\n"


class Arrivals(io.RawIOBase):
    """A socket from which the given pieces come, one for each read; then it has hung up.

    `before_read` is called each time somebody waits for the next piece, with its number.
    """

    def __init__(self, pieces: Sequence[bytes], before_read: Callable[[int], None]) -> None:
        super().__init__()
        self._pieces = iter(pieces)
        self._numbers = itertools.count()
        self._before_read = before_read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._before_read(next(self._numbers))
        piece = next(self._pieces, b"")
        buffer[: len(piece)] = piece
        return len(piece)


class Pool:
    """Notes what came back to it."""

    def __init__(self) -> None:
        self.back: list[object] = []

    def _put_conn(self, connection: object) -> None:
        self.back.append(connection)


def response_of(
    pieces: Sequence[bytes],
    *headers: str,
    head: bytes = HEAD,
    before_read: Callable[[int], None] = lambda number: None,
) -> tuple[urllib3.HTTPResponse, Pool]:
    """Return urllib3's response to a POST, its head read, and the pool it belongs to."""
    head = head + "".join(f"{one}\r\n" for one in headers).encode() + b"\r\n"
    # Number 0 is the head's own.
    raw = Arrivals([head, *pieces], lambda number: before_read(number) if number else None)
    reader = io.BufferedReader(raw, 65_536)
    received = http.client.HTTPResponse(
        SimpleNamespace(makefile=lambda mode: reader),  # type: ignore[arg-type]
        method="POST",
    )
    received.begin()
    pool = Pool()
    response = urllib3.HTTPResponse(
        body=received,
        headers=dict(received.headers.items()),
        status=200,
        preload_content=False,
        original_response=received,
        request_method="POST",
        pool=pool,  # type: ignore[arg-type]
        connection=SimpleNamespace(close=lambda: None),  # type: ignore[arg-type]
    )
    return response, pool


def body_of(*pieces: bytes) -> ChunkedBody:
    return ChunkedBody(response_of(pieces)[0])


def read_all(body: ChunkedBody) -> bytes:
    return b"".join(iter(body.read, b""))


def chunk(data: bytes, size: str | None = None, extension: str = "") -> bytes:
    size = f"{len(data):x}" if size is None else size
    return f"{size}{extension}\r\n".encode() + data + b"\r\n"


# -- any chunks, cut anywhere ------------------------------------------------------------------


@attrs.frozen
class Sent:
    """A whole body as bytes; `known[n]`: how much content the first n bytes of it tell."""

    content: bytes
    data: bytes
    known: list[int]


@st.composite
def bodies(draw: st.DrawFn) -> Sent:
    content, data, known = b"", b"", [0]
    for part in draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6)):
        zeros = "0" * draw(st.integers(0, 3))
        digits = draw(st.sampled_from([f"{len(part):x}", f"{len(part):X}"]))
        space = draw(st.sampled_from(["", "", " ", "\t "]))
        extension = draw(st.sampled_from(["", "", ";", ";a=b", '; q="x y"; z', ";\t"]))
        head = f"{zeros}{digits}{space}{extension}\r\n".encode()
        known += [len(content)] * len(head)
        known += range(len(content) + 1, len(content) + len(part) + 1)
        content += part
        known += [len(content)] * 2
        data += head + part + b"\r\n"
    zeros = draw(st.sampled_from(["0", "00", "0 ", "0;last", "000;a=b"]))
    trailers = draw(
        st.lists(st.sampled_from(["a: b", "x-sum: 0\t", "0: 0", "5", "e:"]), max_size=3)
    )
    end = "".join(f"{line}\r\n" for line in [zeros, *trailers, ""]).encode()
    known += [len(content)] * len(end)
    return Sent(content, data + end, known)


def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    places = sorted(draw(st.sets(st.integers(1, len(data) - 1), max_size=12)))
    return [data[a:b] for a, b in itertools.pairwise([0, *places, len(data)])]


@settings(deadline=None, max_examples=400)
@given(st.data(), bodies())
def test_any_chunks_cut_at_any_byte_give_the_content_without_waiting_for_more_than_they_need(
    data: st.DataObject, sent: Sent
) -> None:
    pieces = data.draw(st.composite(lambda draw: cuts(draw, sent.data))())
    given_so_far = bytearray()
    reads: list[int] = []

    def before_read(number: int) -> None:
        """Whoever waits for piece `number` has been given all that the earlier ones say."""
        reads.append(number)
        arrived = sum(len(piece) for piece in pieces[: number - 1])
        assert len(given_so_far) == sent.known[arrived]
        assert arrived < len(sent.data), "waits though the body is over"

    response, pool = response_of(pieces, before_read=before_read)
    body = ChunkedBody(response)
    while piece := body.read():
        given_so_far += piece

    assert bytes(given_so_far) == sent.content
    assert body.read() == b"", "over is over"
    assert reads == list(range(1, len(pieces) + 1))
    assert len(pool.back) == 1


def test_every_single_cut_of_a_body_gives_the_same() -> None:
    data = chunk(b"hello") + chunk(b"\r\n0\r\n\r\n", "0007", ";x=y") + b"0;z\r\na: b\r\n\r\n"
    for place in range(1, len(data)):
        assert read_all(body_of(data[:place], data[place:])) == b"hello\r\n0\r\n\r\n"
    assert read_all(body_of(*(bytes([one]) for one in data))) == b"hello\r\n0\r\n\r\n"


def test_many_chunks_that_came_together_are_one_piece() -> None:
    body = body_of(b"".join(chunk(b"%d," % n) for n in range(1000)) + END)

    assert body.read() == b"".join(b"%d," % n for n in range(1000))
    assert body.read() == b""


def test_a_chunk_larger_than_any_buffer_comes_in_pieces() -> None:
    content = bytes(range(256)) * 2000
    data = chunk(content) + END
    pieces = [data[at : at + 60_000] for at in range(0, len(data), 60_000)]
    body = body_of(*pieces)
    first = body.read()

    assert 0 < len(first) <= 60_000
    assert first + read_all(body) == content


# -- what is no chunked body -------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\r\nhello\r\n",
        b"x\r\nhello\r\n",
        b"-5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5 5\r\nhello\r\n",
        b"5_0\r\nhello\r\n",
        b"1" * 16 + b"\r\nhello\r\n",
        b"data: hello\r\n\r\n",
        "\uff15\r\nhello\r\n".encode(),
        b"5;a\nb\r\nhello\r\n",
    ],
    ids=repr,
)
def test_a_size_that_is_none_is_an_error(data: bytes) -> None:
    with pytest.raises(InvalidChunkLength):
        read_all(body_of(data))
    with pytest.raises(InvalidChunkLength):
        read_all(body_of(chunk(b"good"), data))


def test_a_chunk_that_is_longer_than_it_says_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="longer than it says"):
        read_all(body_of(b"3\r\nhello\r\n" + END))


@pytest.mark.parametrize(
    "head",
    [b"5;" + b"x" * 5000, b"5" * 5000, b"0\r\n" + b"a: b\r\n" * 1000],
    ids=["an extension", "digits", "a trailer"],
)
def test_a_head_without_an_end_is_not_waited_for(head: bytes) -> None:
    pieces = itertools.chain([chunk(b"good"), head], itertools.repeat(b"x" * 100, 10_000))
    read: list[int] = []
    response, pool = response_of(list(pieces), before_read=read.append)
    with pytest.raises(ProtocolError, match="too long"):
        read_all(ChunkedBody(response))

    assert len(read) < 5
    assert pool.back == []


def test_a_body_that_ends_early_is_an_error_at_every_byte() -> None:
    data = chunk(b"hello") + chunk(b"world", None, ";x") + b"0\r\na: b\r\n\r\n"
    for place in range(len(data)):
        response, pool = response_of([data[:place]])
        got: list[bytes] = []
        with pytest.raises(ProtocolError, match="broke off"):
            got.extend(iter(ChunkedBody(response).read, b""))
        assert b"helloworld".startswith(b"".join(got))
        assert pool.back == []


# -- who is read like this ---------------------------------------------------------------------


def test_only_a_chunked_body_without_another_coding_is_read_like_this() -> None:
    assert is_plainly_chunked(response_of([END])[0])
    plain = response_of([b"hello"], head=b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n")[0]
    assert not is_plainly_chunked(plain)
    until_closed = response_of([b"hello"], head=b"HTTP/1.1 200 OK\r\n")[0]
    assert not is_plainly_chunked(until_closed)
    assert not is_plainly_chunked(response_of([END], "content-encoding: gzip")[0])
    assert not is_plainly_chunked(urllib3.HTTPResponse(io.BytesIO(b"x"), status=200))
    assert not is_plainly_chunked(SimpleNamespace(chunked=True))


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from([b"0", b"5", b"\r", b"\n", b"\r\n", b";", b"hello"])))
def test_any_bytes_are_a_body_or_an_error_of_http(pieces: list[bytes]) -> None:
    with contextlib.suppress(HTTPError):
        read_all(body_of(*pieces))
        assert b"\r\n\r\n" in b"".join(pieces)
