"""Call ids that no provider should have made still go out once each, and short enough."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolnexus.codec import encode
from toolnexus.testing.strict import parse_body
from toolnexus.testing.strict_anthropic import ThoughtMemory, check_anthropic
from toolnexus.testing.strict_openai import check_openai
from toolnexus.wire import anthropic, openai
from toolnexus.wire.base import ModelReply, ModelRequest
from toolnexus.wire.calls import ID_CHARS, WireIds, unique_ids

STYLES = ("openai", "anthropic")
DIALECTS: dict[str, Any] = {"openai": openai, "anthropic": anthropic}
HARD_IDS: dict[str, list[Any]] = {
    "two lone surrogates": ["\ud800", "\ud801"],
    "surrogates inside": ["call_\ud800", "call_\udfff", "call_\ufffd"],
    "a surrogate and its replacement": ["\ud800", "\ufffd"],
    "the same of forty": ["z" * 40] * 3,
    "the same of thirty-nine": ["z" * 39] * 12,
    "a suffix that is there already": ["z" * 38, "z" * 38, "z" * 38 + "_2"],
    "blank and missing": ["", " ", None, "call_0"],
    "characters": ["functions.t:0", "functions.t:1", "a b", "é"],
}
LONG_IDS: dict[str, list[Any]] = {
    "sixty characters": ["call_" + "x" * 55],
    "alike in the first forty": ["y" * 60 + "a", "y" * 60 + "b"],
    "the same of sixty": ["z" * 60] * 2,
}
HARD = pytest.mark.parametrize("ids", HARD_IDS.values(), ids=HARD_IDS.keys())


def origin_of(style: str, host: str = "api.example") -> str:
    return f"{style} {host} m"


def payload(style: str, ids: Sequence[Any]) -> dict[str, Any]:
    """Return a reply of the provider that makes one call per id."""
    if style == "anthropic":
        used = [{"type": "tool_use", "id": one, "name": "t", "input": {}} for one in ids]
        return {"content": used, "stop_reason": "tool_use", "usage": {}}
    function = {"name": "t", "arguments": "{}"}
    calls = [{"id": one, "type": "function", "function": function} for one in ids]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {}}


def read(style: str, ids: Sequence[Any]) -> ModelReply:
    reply: ModelReply = DIALECTS[style].read_reply(payload(style, ids), origin_of(style))
    return reply


def sent(style: str, origin: str, *replies: ModelReply) -> dict[str, Any]:
    """Return the body a server parses after these replies; a strict one has taken it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    for number, reply in enumerate(replies):
        messages.append(reply.message)
        messages += [
            {"role": "tool", "tool_call_id": one.id, "content": f"result {number}.{index}"}
            for index, one in enumerate(reply.calls)
        ]
    request = ModelRequest(model="m", messages=messages, origin=origin)
    body = parse_body(encode(DIALECTS[style].request_body(request)))
    headers = {"content-type": "application/json"}
    if style == "openai":
        check_openai({**headers, "authorization": "Bearer k"}, body)
    else:
        more = {"x-api-key": "k", "anthropic-version": anthropic.VERSION}
        check_anthropic({**headers, **more}, body, ThoughtMemory())
    return body


def pairs(style: str, body: dict[str, Any]) -> list[tuple[list[str], list[tuple[str, str]]]]:
    """Return, for each message with calls, their ids and the results behind it by id."""
    found: list[tuple[list[str], list[tuple[str, str]]]] = []
    for message in body["messages"]:
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        if message.get("tool_calls"):
            found.append(([one["id"] for one in message["tool_calls"]], []))
        elif any(one["type"] == "tool_use" for one in blocks):
            found.append(([one["id"] for one in blocks if one["type"] == "tool_use"], []))
        elif message["role"] == "tool":
            found[-1][1].append((message["tool_call_id"], text_of(content)))
        for one in blocks:
            if one["type"] == "tool_result":
                found[-1][1].append((one["tool_use_id"], text_of(one["content"])))
    return found


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content)


def assert_each_once(style: str, body: dict[str, Any], *replies: ModelReply) -> None:
    found = pairs(style, body)
    assert len(found) == len(replies)
    for number, (ids, results) in enumerate(found):
        assert len(set(ids)) == len(ids) == len(replies[number].calls)
        assert all(0 < len(one) <= ID_CHARS for one in ids)
        assert results == [(one, f"result {number}.{i}") for i, one in enumerate(ids)]


@HARD
@pytest.mark.parametrize("style", STYLES)
def test_back_home_each_call_has_an_id_of_its_own(style: str, ids: list[Any]) -> None:
    reply = read(style, ids)
    assert_each_once(style, sent(style, origin_of(style), reply), reply)


@pytest.mark.parametrize("ids", [*HARD_IDS.values(), *LONG_IDS.values()])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("first", STYLES)
def test_at_another_provider_each_call_has_an_id_of_its_own(
    first: str, style: str, ids: list[Any]
) -> None:
    reply = read(first, ids)
    assert_each_once(style, sent(style, origin_of(style, "other.example"), reply), reply)


@HARD
@pytest.mark.parametrize("style", STYLES)
def test_the_same_hard_ids_in_a_later_reply_pair_with_their_own_results(
    style: str, ids: list[Any]
) -> None:
    replies = [read(style, ids), read(style, ids)]
    assert_each_once(style, sent(style, origin_of(style), *replies), *replies)


@HARD
@pytest.mark.parametrize("style", STYLES)
def test_a_growing_transcript_keeps_the_ids_it_has_sent(style: str, ids: list[Any]) -> None:
    first, second = read(style, ids), read(style, [*ids, "another"])
    before = pairs(style, sent(style, origin_of(style), first))
    after = pairs(style, sent(style, origin_of(style), first, second))
    assert after[: len(before)] == before


@HARD
@pytest.mark.parametrize("style", STYLES)
def test_a_transcript_that_was_stored_as_json_says_the_same(style: str, ids: list[Any]) -> None:
    """Lone surrogates survive as escapes in ASCII JSON, and not every store keeps them."""
    reply = read(style, ids)
    stored = json.loads(json.dumps(reply.message))
    messages = [{"role": "user", "content": "hi"}, stored]
    request = ModelRequest(model="m", messages=messages, origin=origin_of(style))
    body = parse_body(encode(DIALECTS[style].request_body(request)))
    fresh = pairs(style, sent(style, origin_of(style), reply))
    assert [calls for calls, _ in pairs(style, body)] == [calls for calls, _ in fresh]


def test_an_id_that_every_provider_takes_goes_back_as_it_came() -> None:
    for style in STYLES:
        body = sent(style, origin_of(style), read(style, ["call_abc-1", "toolu_01"]))
        assert pairs(style, body)[0][0] == ["call_abc-1", "toolu_01"]


def test_an_id_that_is_too_long_elsewhere_goes_home_as_it_came() -> None:
    """Whoever makes such ids may read them: gateways keep signatures in theirs."""
    reply = read("openai", LONG_IDS["alike in the first forty"])
    request = ModelRequest(model="m", messages=[reply.message], origin=origin_of("openai"))
    body = openai.request_body(request)
    assert pairs("openai", body)[0][0] == LONG_IDS["alike in the first forty"]


@pytest.mark.parametrize("style", STYLES)
def test_lone_surrogates_in_a_stored_transcript_go_out_apart(style: str) -> None:
    """A transcript is the host's to keep and to edit, so its ids may be anything."""
    reply = read(style, ["a", "b"])
    spoiled = json.loads(
        json.dumps(reply.message).replace('"a"', r'"\ud800"').replace('"b"', r'"\ud801"')
    )
    spoiled["_origin"] = origin_of(style)
    results = [
        {"role": "tool", "tool_call_id": one, "content": f"result {number}"}
        for number, one in enumerate(["\ud800", "\ud801"])
    ]
    messages = [{"role": "user", "content": "hi"}, spoiled, *results]
    request = ModelRequest(model="m", messages=messages, origin=origin_of(style))
    ((ids, paired),) = pairs(style, parse_body(encode(DIALECTS[style].request_body(request))))
    assert len(set(ids)) == 2
    assert paired == [(ids[0], "result 0"), (ids[1], "result 1")]


hard_text = st.text("az_2 \ud800\udc00\ufffdé", max_size=4)


@given(st.lists(st.one_of(st.none(), hard_text), max_size=6))
@example(["z" * 40, "z" * 40])
@example(["\ud800", "\udc00", "\ufffd"])
def test_whatever_the_ids_both_styles_take_them(ids: list[str | None]) -> None:
    for style in STYLES if ids else ():
        reply = read(style, ids)
        assert_each_once(style, sent(style, origin_of(style), reply), reply)


@given(st.lists(hard_text.filter(str.strip), max_size=8))
@example(["z" * 40, "z" * 40])
def test_wire_ids_are_short_and_differ_as_bytes(ids: list[str]) -> None:
    made = WireIds().assign(unique_ids(ids))
    sent_ids = [one.encode("utf-8", "replace") for one in made.values()]
    assert len(set(sent_ids)) == len(ids)
    assert all(len(one) <= ID_CHARS for one in made.values())
