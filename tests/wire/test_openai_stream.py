"""OpenAI's chunks, as the servers that speak its dialect cut a reply."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.openai_chunks import END, HERE, chunk, event, read, taken
from toolnexus.errors import LlmError
from toolnexus.messages import Usage
from toolnexus.wire import openai


@pytest.mark.parametrize(
    ("key", "values", "kept"),
    [
        ("reasoning_content", ["a", None, "a", ""], "aa"),
        ("annotations", [[{"n": 1}], [], [{"n": 1}, {"n": 2}]], [{"n": 1}, {"n": 1}, {"n": 2}]),
        ("audio", [{"id": "x"}, None, {"id": "y"}], {"id": "y"}),
        ("mixed", ["a", 1, "b", "c"], "bc"),
        (
            "reasoning_details",
            [
                [{"type": "reasoning.text", "text": "a", "index": 0, "signature": None}],
                [{"type": "reasoning.text", "text": "b", "index": 0, "format": "x"}],
                [{"type": "reasoning.text", "signature": "s", "index": 0}],
                [{"type": "reasoning.text", "text": "", "signature": None, "index": 0}],
                [{"type": "reasoning.text", "text": "c", "index": 1}],
                [{"type": "reasoning.summary", "summary": "d", "index": 1}],
                [{"type": "reasoning.summary", "summary": "e", "index": 1}],
                [{"type": "reasoning.summary", "summary": "f"}],
                [{"type": "reasoning.encrypted", "data": "g", "index": 2}],
                [{"type": "reasoning.encrypted", "data": "h", "index": 2}],
            ],
            [
                {
                    "type": "reasoning.text",
                    "text": "ab",
                    "index": 0,
                    "signature": "s",
                    "format": "x",
                },
                {"type": "reasoning.text", "text": "c", "index": 1},
                {"type": "reasoning.summary", "summary": "de", "index": 1},
                {"type": "reasoning.summary", "summary": "f"},
                {"type": "reasoning.encrypted", "data": "g", "index": 2},
                {"type": "reasoning.encrypted", "data": "h", "index": 2},
            ],
        ),
    ],
)
def test_further_keys_of_messages(key: str, values: list[Any], kept: Any) -> None:
    stream, texts = taken(*(chunk({key: value}) for value in values), END)
    assert texts == [""] * len(texts)
    assert stream.payload()["choices"][0]["message"][key] == kept
    assert openai.read_reply(stream.payload(), HERE).message[key] == kept


def test_roles_are_not_strung_together() -> None:
    stream, _ = taken(*(chunk({"role": "assistant", "content": text}) for text in "ab"))
    (choice,) = stream.payload()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "ab"}


@pytest.mark.parametrize(
    ("deltas", "texts"),
    [
        ([{"content": "a"}, {"content": ""}, {"content": None}, {"content": "b"}], "a|||b"),
        ([{"refusal": "no"}, {"refusal": " way"}], "no| way"),
        ([{"content": "", "refusal": "no"}], "no"),
        ([{"content": "a"}, {"refusal": "no"}], "a|"),
        ([{"reasoning": "hm"}, {"content": "a", "reasoning": None}], "|a"),
        (
            [{"content": [{"type": "text", "text": "a"}, {"type": "x"}]}, {"content": "b"}],
            "a|b",
        ),
        ([{"content": "a"}, {"content": [{"type": "text", "text": "b"}, "c"]}], "a|bc"),
        ([None, [], "x", 5, {}], "||||"),
    ],
)
def test_what_each_delta_gives_the_user(deltas: list[Any], texts: str) -> None:
    stream, given = taken(*map(chunk, deltas))
    assert "|".join(given) == texts
    assert stream.text == "".join(given)
    reply = read(*map(chunk, deltas))
    assert reply.text == "".join(given)


def test_parts_that_go_on_become_one() -> None:
    think = [{"type": "thinking", "thinking": [{"type": "text", "text": t}]} for t in "ab"]
    say = [{"type": "text", "text": t} for t in "cd"]
    image: list[Any] = [{"type": "image_url", "image_url": u} for u in ("u", "v")]
    noted = [{"type": "text", "text": "f", "note": n} for n in "xy"]
    parts = [*think, *say, *image, *noted]
    reply = read(*(chunk({"content": [one]}) for one in parts), chunk({"content": "e"}))
    assert reply.message["_blocks"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "ab"}]},
        {"type": "text", "text": "cd"},
        *image,
        *noted[:1],
        {"type": "text", "text": "fe", "note": "y"},
    ]
    assert reply.text == reply.message["content"] == "cdffe"


def test_parts_of_one_delta_stay_apart() -> None:
    parts = [
        {"type": "image_url"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    assert read(chunk({"content": parts})).message["_blocks"] == parts


COUNTS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
EARLY = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk({"content": "a"}, usage=None), END, {"choices": [], "usage": COUNTS}],
        [chunk({"content": "a"}, usage=EARLY), {**END, "usage": COUNTS}],
        [chunk({"content": "a"}, usage=EARLY), END, {"usage": COUNTS}, {"usage": None}],
        [{"choices": [{"delta": {}, "finish_reason": "stop", "usage": COUNTS}]}],
    ],
)
def test_the_last_usage_counts(chunks: list[Any]) -> None:
    stream, _ = taken(*chunks)
    assert openai.read_reply(stream.payload(), HERE).usage == Usage(3, 2, 5)


def test_no_usage() -> None:
    stream, _ = taken(END)
    assert "usage" not in stream.payload()


def test_only_the_first_choice_counts() -> None:
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}
    first = {"delta": {"content": "yes"}}
    stream, texts = taken({"choices": [other, first, None, 5]}, {"choices": [other]})
    assert texts == ["yes", ""]
    assert not stream.is_complete


@pytest.mark.parametrize(
    ("reason", "is_complete"),
    [("stop", True), ("length", True), ("odd", True), (None, False), ("", False), (1, False)],
)
def test_a_reply_is_complete_with_its_finish_reason(reason: Any, *, is_complete: bool) -> None:
    stream, _ = taken({"choices": [{"delta": {"content": "a"}, "finish_reason": reason}]})
    assert stream.is_complete is is_complete
    assert stream.add(event("[DONE]")) == ""
    assert stream.is_complete is is_complete


def test_the_reason_stays_when_later_chunks_have_none() -> None:
    stream, _ = taken({"choices": [{"finish_reason": "length"}]}, chunk({}), chunk({}))
    reply = openai.read_reply(stream.payload(), HERE)
    assert (reply.truncated, reply.finish_reason) == (True, "length")


@pytest.mark.parametrize(
    ("data", "name", "retryable"),
    [
        ({"error": {"message": "x", "type": "server_error"}}, "message", True),
        ({"error": {"message": "x", "code": 429}}, "message", True),
        ({"error": {"message": "x", "code": "invalid_api_key"}}, "message", False),
        ({"error": "overloaded"}, "message", False),
        ({"error": {"code": 502}, **chunk({"content": "a"})}, "message", True),
        ({"choices": [{"delta": {}, "error": {"code": 502}}]}, "message", True),
        ({"type": "error", "message": "x"}, "message", False),
        ({"message": "x", "type": "server_error"}, "error", True),
        ({"message": "x"}, "error", False),
        ({}, "error", False),
        ("went wrong", "error", False),
        ("", "error", False),
        ("{oops", "message", False),
        ('{"choices": [{"delta": {"content": NaN}}]}', "message", False),
        ("5", "message", False),
        ("null", "message", False),
        ("[" * 10_000, "message", False),
        ("x" * 10_000, "message", False),
    ],
)
def test_errors(data: Any, name: str, *, retryable: bool) -> None:
    stream, _ = taken(chunk({"content": "before"}))
    with pytest.raises(LlmError) as failure:
        stream.add(event(data, name))
    assert failure.value.retryable is retryable
    assert failure.value.status == 200
    assert len(str(failure.value)) < 300
    assert stream.text == "before"
    assert not stream.is_complete


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("", "message"),
        (" ", "message"),
        ("[DONE]", "message"),
        ("now", "ping"),
        ("5", "ping"),
        ({"error": None}, "message"),
        ({"choices": None}, "message"),
        ({"choices": {}}, "message"),
        ({"prompt_filter_results": [], "choices": []}, "message"),
    ],
)
def test_what_says_nothing_is_passed_over(data: Any, name: str) -> None:
    stream, _ = taken(chunk({"content": "a"}))
    assert stream.add(event(data, name)) == ""
    assert stream.text == "a"


def test_a_character_cut_in_two_is_whole_again() -> None:
    pieces = ["a\ud83d", "", "\ude00b", "\ud83d", "c", "\ud83d"]
    stream, texts = taken(*(chunk({"content": piece}) for piece in pieces), END)
    assert texts == ["a", "", "😀b", "", "\ud83dc", "", "\ud83d"]
    assert stream.text == "".join(texts) == "a😀b\ud83dc\ud83d"


def test_the_head_of_the_body() -> None:
    stream, _ = taken(chunk({}, id="i", created=5, model="m", object="chat.completion.chunk"))
    stream.add(event({"id": "other", **END}))
    body = stream.payload()
    head = {key: body[key] for key in ("id", "created", "model", "object")}
    assert head == {"id": "i", "created": 5, "model": "m", "object": "chat.completion"}


def test_the_payload_shares_nothing_with_the_stream() -> None:
    stream, _ = taken(chunk({"content": "a", "annotations": [{"n": [1]}]}))
    stream.payload()["choices"][0]["message"]["annotations"][0]["n"].append(2)
    stream.add(event(chunk({"content": "b"})))
    message = stream.payload()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "ab", "annotations": [{"n": [1]}]}
