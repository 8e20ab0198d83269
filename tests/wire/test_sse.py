"""Server-sent events: what the standard says, for every way of cutting the bytes."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolnexus.errors import LlmError
from toolnexus.wire.sse import MAX_EVENT_BYTES, EventParser, ServerSentEvent

Pairs = list[tuple[str, str]]


def parsed(*pieces: bytes) -> Pairs:
    parser = EventParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return [(event.event, event.data) for event in events]


def by_the_standard(data: bytes) -> Pairs:
    """Parse a whole stream line by line, as the standard words it."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    events: Pairs = []
    kind = ""
    lines: list[str] = []
    for line in re.split("\r\n|\r|\n", text)[:-1]:
        if line == "":
            if lines:
                events.append((kind or "message", "\n".join(lines)))
            kind, lines = "", []
            continue
        field, colon, value = line.partition(":")
        value = value[1:] if colon and value[:1] == " " else value
        if field == "event":
            kind = value
        elif field == "data":
            lines.append(value)
    return events


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [("message", "a")]),
        (b"data: a\r\n\r\n", [("message", "a")]),
        (b"data: a\r\r", [("message", "a")]),
        (b"data: a\r\n\ndata: b\n\r\n", [("message", "a"), ("message", "b")]),
        (b"event: ping\ndata: a\n\ndata: b\n\n", [("ping", "a"), ("message", "b")]),
        (b"data: a\nevent: late\n\n", [("late", "a")]),
        (b"event: x\nevent: y\ndata: a\n\n", [("y", "a")]),
        (b"event: x\nevent\ndata: a\n\n", [("message", "a")]),
        (b"event: x\n\ndata: a\n\n", [("message", "a")]),
        (b"data: a\ndata: b\n\n", [("message", "a\nb")]),
        (b"data: a\ndata:\ndata: b\n\n", [("message", "a\n\nb")]),
        (b"data\n\ndata\ndata\n\ndata:", [("message", ""), ("message", "\n")]),
        (b"data:a\n\ndata:  a\n\ndata: a \n\n", [("message", t) for t in ("a", " a", "a ")]),
        (b"event: x\ndata:  a\ndata:b \n\n", [("x", " a\nb ")]),
        (b": hello\n\n:\n\n: a\ndata: b\n: c\n\n", [("message", "b")]),
        (b"id: 1\nretry: 5\ndata: a\nfoo: b\nbar\n\n", [("message", "a")]),
        (b" data: a\nDATA: a\ndata : a\n\n", []),
        (b"data: a: b\n\n", [("message", "a: b")]),
        (b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n\n", [("message", "a"), ("message", "b")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("message", "a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", [("message", "b")]),
        (b"\n\xef\xbb\xbfdata: a\n\n", []),
        (b"data: \xef\xbb\xbfa\n\n", [("message", "\ufeffa")]),
        ("data: é€😀\u2028\x0b\x85\x1c\n\n".encode(), [("message", "é€😀\u2028\x0b\x85\x1c")]),
        (
            b"data: \xffa\xf0\x9f\n\ndata: b\n\n",
            [("message", "\ufffda\ufffd"), ("message", "b")],
        ),
        (b"", []),
    ],
)
def test_what_the_standard_says(stream: bytes, events: Pairs) -> None:
    assert parsed(stream) == events
    assert parsed(*(stream[at : at + 1] for at in range(len(stream)))) == events
    assert by_the_standard(stream) == events


@pytest.mark.parametrize(
    "rest", [b"data: b", b"data: b\n", b"data: b\r\n", b"event: x\r", b"d"]
)
def test_an_event_without_its_end_is_dropped_and_seen(rest: bytes) -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\n\n" + rest) == [ServerSentEvent("message", "a")]
    assert parser.is_mid_event


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\n\n", b"\n\n\r\n"])
def test_after_the_end_of_an_event_nothing_is_missing(end: bytes) -> None:
    parser = EventParser()
    assert not parser.is_mid_event
    for at in range(len(end)):
        parser.feed(b"data: a"[: 7 * (at == 0)] + end[at : at + 1])
    assert not parser.is_mid_event


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_event_is_given_with_the_byte_that_ends_it(end: bytes) -> None:
    parser = EventParser()
    needed = len(end) - end.endswith(b"\r\n")
    assert parser.feed(b"data: a" + end[: needed - 1]) == []
    assert parser.feed(end[needed - 1 : needed]) == [ServerSentEvent("message", "a")]
    assert parser.feed(end[needed:] + b"data: b\n\n") == [ServerSentEvent("message", "b")]


lines = st.sampled_from(
    [
        *(
            b"data: {}",
            b"data:x",
            b"data",
            b"data: ",
            b"event: ping",
            b"event",
            b": note",
            b":",
        ),
        *(b"id: 1", b"foo", "data: é€😀\u2028".encode(), b"data: \xf0\x9f", b"\xff", b"", b""),
        *(b"\xef\xbb\xbf", b"\xef\xbb\xbfdata: x", b"data: " + b"long " * 50),
    ]
)
ends = st.sampled_from([b"\n", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b"\r", b"\r\r", b""])
streams = st.lists(st.tuples(lines, ends), max_size=8).map(
    lambda pairs: b"".join(line + end for line, end in pairs)
)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(stream)) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


@settings(deadline=None, derandomize=True, max_examples=500)
@given(streams, st.lists(st.integers(0, 300), max_size=6))
def test_any_split_gives_the_events_of_the_standard(stream: bytes, places: list[int]) -> None:
    events = by_the_standard(stream)
    assert parsed(*cut(stream, places)) == events
    assert parsed(*(stream[at : at + 1] for at in range(len(stream)))) == events


@pytest.mark.parametrize("cuts", [[], [8], [3, 20, 21], list(range(40))])
def test_an_event_beyond_the_bound_is_an_error(cuts: list[int]) -> None:
    def feed(size: int) -> list[str]:
        parser = EventParser(max_event_bytes=24)
        stream = b"data: a\n\n" + b"data: ".ljust(size, b"x") + b"\n\n"
        return [e.data for piece in cut(stream, cuts) for e in parser.feed(piece)]

    assert feed(23) == ["a", "x" * 17]
    with pytest.raises(LlmError, match="more than 24 bytes") as failure:
        feed(25)
    assert not failure.value.retryable


def test_an_event_that_never_ends_is_an_error_before_its_end() -> None:
    parser = EventParser()
    line = b"data: " + b"x" * (1024 * 1024 - 7) + b"\n"
    for _ in range(MAX_EVENT_BYTES // len(line)):
        assert parser.feed(line) == []
    with pytest.raises(LlmError, match=str(MAX_EVENT_BYTES)):
        parser.feed(b":")


def test_many_small_events_beyond_the_bound_together_are_none() -> None:
    parser = EventParser(max_event_bytes=24)
    assert len(parser.feed(b"data: a\n\n" * 1000)) == 1000


def test_a_big_event_in_many_pieces_takes_no_quadratic_time() -> None:
    parser = EventParser()
    big = b"x" * (12 * 1024 * 1024)
    assert parser.feed(b"data: ") == []
    for at in range(0, len(big), 64):
        assert parser.feed(big[at : at + 64]) == []
    (event,) = parser.feed(b"\n\n")
    assert len(event.data) == len(big)
