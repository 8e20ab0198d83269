"""Anthropic's events, in order and out of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolnexus.errors import LlmError
from toolnexus.messages import Usage
from toolnexus.wire import anthropic
from toolnexus.wire.anthropic_stream import AnthropicStream
from toolnexus.wire.base import ModelReply
from toolnexus.wire.sse import ServerSentEvent

HERE = "anthropic api.example m"
STOP: dict[str, Any] = {"type": "message_stop"}
PING: dict[str, Any] = {"type": "ping"}


def event(data: Any, name: str = "message") -> ServerSentEvent:
    return ServerSentEvent(name, data if isinstance(data, str) else json.dumps(data))


def taken(*events: Any) -> tuple[AnthropicStream, list[str]]:
    stream = AnthropicStream()
    return stream, [stream.add(event(one)) for one in events]


def read(*events: Any) -> ModelReply:
    stream, _ = taken(*events, STOP)
    assert stream.is_complete
    return anthropic.read_reply(stream.payload(), HERE)


def start(block: Any, index: Any = 0) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(kind: str, index: Any = 0, **fields: Any) -> dict[str, Any]:
    inner = {"type": f"{kind}_delta", **fields}
    return {"type": "content_block_delta", "index": index, "delta": inner}


def stop(index: Any = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def begin(**fields: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"type": "message", "content": [], **fields}}


def end(reason: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, **fields}


TEXT: dict[str, Any] = {"type": "text", "text": ""}
USE: dict[str, Any] = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
THOUGHT: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}


def test_a_reply_as_it_usually_comes() -> None:
    stream, texts = taken(
        begin(id="msg_1", model="m", usage={"input_tokens": 30, "output_tokens": 1}),
        start(TEXT),
        PING,
        *(delta("text", text=piece) for piece in ("Hel", "lo")),
        stop(),
        start(USE, 1),
        *(delta("input_json", 1, partial_json=piece) for piece in ("", '{"x"', ": 1}")),
        stop(1),
        end("tool_use", usage={"output_tokens": 10}),
        STOP,
    )
    assert [text for text in texts if text] == ["Hel", "lo"]
    assert stream.text == "Hello"
    assert stream.is_complete
    assert stream.payload() == {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "model": "m",
        "content": [{"type": "text", "text": "Hello"}, {**USE, "input": {"x": 1}}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 30, "output_tokens": 10},
    }


@pytest.mark.parametrize(
    ("given", "pieces", "arguments"),
    [
        ({}, [], "{}"),
        ({}, [""], "{}"),
        ({}, ["", " "], "{}"),
        ({"x": 1}, [], '{"x":1}'),
        ({"x": 1}, ['{"x":', "2}"], '{"x":2}'),
        ({}, ['{"x":', " [1, ", "2]}"], '{"x":[1,2]}'),
        ({}, ['{"x":', None, "2}"], '{"x":2}'),
        ({}, ['{"x": 1'], '{"x": 1'),
        ({}, ['{"x": NaN}'], '{"x": NaN}'),
        ({}, ["{}", "{}"], "{}{}"),
        ({}, ["[1,", " 2]"], "[1,2]"),
        ({}, ['"{}"'], '"{}"'),
        ({}, ["null"], "null"),
        ({}, ["oops"], "oops"),
        ({}, ['{"x":"\\ud83d', '\\ude00"}'], '{"x":"😀"}'),
        (None, [], ""),
        ("oops", [], "oops"),
    ],
)
def test_the_input_of_a_call(given: Any, pieces: list[Any], arguments: str) -> None:
    deltas = [delta("input_json", partial_json=piece) for piece in pieces]
    (call,) = read(start({**USE, "input": given}), *deltas, stop(), end("tool_use")).calls
    assert (call.id, call.name, call.arguments) == ("a", "f", arguments)


def test_blocks_interleaved() -> None:
    reply = read(
        *(start(THOUGHT, 0), start(TEXT, 1), start(USE, 2)),
        delta("input_json", 2, partial_json='{"x"'),
        delta("text", 1, text="a"),
        delta("thinking", 0, thinking="h"),
        delta("text", 1, text="b"),
        delta("input_json", 2, partial_json=":1}"),
        delta("thinking", 0, thinking="m"),
        delta("signature", 0, signature="s"),
        *(stop(2), stop(0), stop(1), end("tool_use")),
    )
    assert reply.message["_blocks"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "ab"},
        {**USE, "input": {"x": 1}},
    ]
    assert reply.text == "ab"


@pytest.mark.parametrize(
    ("indexes", "order"),
    [([0, 1], "ab"), ([1, 0], "ba"), ([0, 0], "ab"), ([None, None], "ab"), (["x", None], "ab")],
)
def test_where_blocks_stand(indexes: list[Any], order: str) -> None:
    events = [
        one
        for index, text in zip(indexes, "ab", strict=True)
        for one in (start(TEXT, index), delta("text", index, text=text), stop(index))
    ]
    stream, texts = taken(*events)
    assert "".join(texts) == "ab"
    assert stream.text == order
    assert [block["text"] for block in stream.payload()["content"]] == list(order)


def test_events_without_an_index() -> None:
    events = [start(TEXT), delta("text", text="a"), stop(), start(USE), end("tool_use")]
    reply = read(*({key: one[key] for key in one if key != "index"} for one in events))
    assert reply.text == "a"
    assert reply.calls[0].name == "f"


def test_a_delta_without_an_index_is_of_the_block_begun_last() -> None:
    loose = delta("text", text="a")
    del loose["index"]
    stream, texts = taken(start(THOUGHT, 0), start(TEXT, 1), loose)
    assert texts == ["", "", "a"]
    assert [block.get("text") for block in stream.payload()["content"]] == [None, "a"]


SEARCH: dict[str, Any] = {"type": "server_tool_use", "id": "s", "name": "search", "input": {}}
BLOCKS: dict[str, tuple[list[Any], Any]] = {
    "thinking": (
        [
            start(THOUGHT),
            *(delta("thinking", thinking=t) for t in ("a", "", "b", None)),
            delta("signature", signature="s"),
        ],
        {"type": "thinking", "thinking": "ab", "signature": "s"},
    ),
    "thinking that is not shown": (
        [start(THOUGHT), delta("signature", signature="s")],
        {"type": "thinking", "thinking": "", "signature": "s"},
    ),
    "redacted thinking": (
        [start({"type": "redacted_thinking", "data": "d"})],
        {"type": "redacted_thinking", "data": "d"},
    ),
    "citations": (
        [
            start({**TEXT, "citations": None}),
            delta("text", text="a"),
            *(delta("citations", citation={"type": "char_location", "n": n}) for n in (1, 2)),
        ],
        {
            "type": "text",
            "text": "a",
            "citations": [{"type": "char_location", "n": n} for n in (1, 2)],
        },
    ),
    "a tool of the server's": (
        [start(SEARCH), delta("input_json", partial_json='{"q":'), delta("input_json"), PING],
        {**SEARCH, "input": '{"q":'},
    ),
    "a result of the server's": (
        [start({"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"u": 1}]})],
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"u": 1}]},
    ),
    "a block and deltas that nobody knows": (
        [
            start({"type": "mystery", "content": "x", "n": 1, "list": [1]}),
            delta("mystery", content="y", n=2, list=[2], new="z", none=None),
            delta("mystery", content="z", new="z"),
            delta("text", text="not the user's"),
        ],
        {
            "type": "mystery",
            "content": "xyz",
            "n": 2,
            "list": [1, 2],
            "new": "zz",
            "text": "not the user's",
        },
    ),
    "thinking that was not started": (
        [delta("thinking", thinking="a"), delta("signature", signature="s")],
        {"type": "thinking", "thinking": "a", "signature": "s"},
    ),
}


@pytest.mark.parametrize(("events", "block"), BLOCKS.values(), ids=BLOCKS.keys())
def test_blocks_beside_text_and_calls(events: list[Any], block: Any) -> None:
    stream, texts = taken(*events, stop(), end("end_turn"), STOP)
    if block["type"] != "text":
        assert "".join(texts) == stream.text == ""
    assert stream.payload()["content"] == [block]
    message = anthropic.read_reply(stream.payload(), HERE).message
    assert message["_blocks"] == [block]


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([start({"type": "text", "text": "a"}), delta("text", text="b")], "ab"),
        ([delta("text", text="a"), delta("text", text="b")], "ab"),
        ([start(TEXT), delta("text"), delta("text", text=None), delta("text", text=5)], ""),
        ([start({"type": "text"}), delta("text", text="a")], "a"),
        (
            [start(TEXT), delta("text", text="a"), start(TEXT, 1), delta("text", 1, text="b")],
            "ab",
        ),
        ([start(None), start("x"), delta("text", text="a")], "a"),
    ],
)
def test_texts(events: list[Any], text: str) -> None:
    stream, texts = taken(*events, end("end_turn"), STOP)
    assert "".join(texts) == stream.text == text
    assert anthropic.read_reply(stream.payload(), HERE).text == text


def test_a_call_that_was_not_started_is_not_lost() -> None:
    (call,) = read(delta("input_json", partial_json="{}"), end("tool_use")).calls
    assert (call.name, call.arguments) == ("", "{}")


def test_a_character_cut_in_two_is_whole_again() -> None:
    pieces = ["a\ud83d", "\ude00b", "\ud83d"]
    stream, texts = taken(start(TEXT), *(delta("text", text=t) for t in pieces), stop(), stop())
    assert texts == ["", "a", "😀b", "", "\ud83d", ""]
    assert stream.text == "a😀b\ud83d"


FIRST = {"input_tokens": 3, "output_tokens": 1, "cache_read_input_tokens": 9}


@pytest.mark.parametrize(
    ("usages", "usage"),
    [
        ([FIRST], Usage(3, 1, 4)),
        ([FIRST, {"output_tokens": 5}], Usage(3, 5, 8)),
        ([FIRST, {"output_tokens": 5}, {"output_tokens": 7}], Usage(3, 7, 10)),
        ([FIRST, {"input_tokens": None, "output_tokens": 5}], Usage(3, 5, 8)),
        ([None, {"input_tokens": 4, "output_tokens": 5}], Usage(4, 5, 9)),
        ([FIRST, None, "x"], Usage(3, 1, 4)),
        ([None], Usage()),
    ],
)
def test_usage_is_what_was_said_last(usages: list[Any], usage: Usage) -> None:
    first, *later = usages
    reply = read(begin(usage=first), *(end("end_turn", usage=one) for one in later))
    assert reply.usage == usage


@pytest.mark.parametrize(
    ("reason", "finish", "truncated"),
    [("end_turn", "stop", False), ("max_tokens", "length", True), (None, "stop", False)],
)
def test_why_it_stopped(reason: Any, finish: str, *, truncated: bool) -> None:
    reply = read(begin(stop_reason=None), end(reason), end(None))
    assert (reply.finish_reason, reply.truncated) == (finish, truncated)


def test_a_reply_is_complete_with_its_stop() -> None:
    stream, _ = taken(begin(), start(TEXT), delta("text", text="a"), stop(), end("end_turn"))
    assert not stream.is_complete
    stream.add(event(STOP))
    assert stream.is_complete


def test_the_event_line_may_say_the_type() -> None:
    stream = AnthropicStream()
    events = [begin(), start(TEXT), delta("text", text="a"), stop(), end("end_turn"), STOP]
    for one in events:
        stream.add(event({key: one[key] for key in one if key != "type"}, one["type"]))
    assert stream.is_complete
    assert stream.text == "a"


@pytest.mark.parametrize(
    ("data", "name", "retryable"),
    [
        ({"type": "error", "error": {"type": "overloaded_error"}}, "error", True),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "message", True),
        ({"type": "error", "error": {"type": "invalid_request_error"}}, "error", False),
        ({"error": {"code": 529, "type": "overloaded_error"}}, "message", True),
        ({"type": "error"}, "error", False),
        ({"type": "api_error"}, "error", True),
        ("overloaded", "error", False),
        ("{oops", "content_block_delta", False),
        ("{oops", "message", False),
        ("5", "message_start", False),
    ],
)
def test_errors(data: Any, name: str, *, retryable: bool) -> None:
    stream, _ = taken(start(TEXT), delta("text", text="before"))
    with pytest.raises(LlmError) as failure:
        stream.add(event(data, name))
    assert failure.value.retryable is retryable
    assert stream.text == "before"
    assert not stream.is_complete


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (PING, "ping"),
        ("keep-alive", "ping"),
        ("", "message"),
        ("[DONE]", "message"),
        (
            {"type": "mystery", "index": 0, "delta": {"type": "text_delta", "text": "x"}},
            "message",
        ),
        ({}, "message"),
        ({"type": "content_block_delta", "index": 0}, "message"),
        ({"type": "content_block_delta", "index": 0, "delta": "x"}, "message"),
        ({"type": "content_block_stop", "index": 7}, "message"),
        ({"type": "message_start"}, "message"),
        ({"type": "message_delta", "delta": None}, "message"),
    ],
)
def test_what_says_nothing_is_passed_over(data: Any, name: str) -> None:
    stream, _ = taken(begin(), start(TEXT), delta("text", text="a"))
    before = stream.payload()
    assert stream.add(event(data, name)) == ""
    assert stream.payload() == before


def test_the_payload_shares_nothing_with_the_stream() -> None:
    stream, _ = taken(start({"type": "mystery", "list": [[1]]}))
    stream.payload()["content"][0]["list"][0].append(2)
    assert stream.payload()["content"] == [{"type": "mystery", "list": [[1]]}]
