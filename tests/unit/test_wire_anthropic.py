"""Anthropic's dialect: roles, blocks and ids on the wire, replies good and bad."""

from __future__ import annotations

import copy
import re
from typing import Any

import attrs
import pytest

from toolnexus.codec import encode
from toolnexus.errors import LlmError
from toolnexus.messages import ToolCall, Usage
from toolnexus.wire import anthropic
from toolnexus.wire.base import ModelReply, ModelRequest
from toolnexus.wire.view import NO_RESULT

HERE = "anthropic api.example m"
USER = {"role": "user", "content": "hi"}


@attrs.frozen
class Declared:
    name: str
    description: str
    input_schema: dict[str, Any]


SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL = Declared("lookup", "looks up", SCHEMA)


def call(call_id: Any = "a", name: Any = "f", arguments: Any = "{}") -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def asks(*calls: dict[str, Any], content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def result(call_id: str = "a", content: Any = "r", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def use(call_id: Any = "a", name: Any = "f", given: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given or {}, **more}


def got(call_id: str = "a", content: Any = "r", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    stored = copy.deepcopy(list(messages))
    request = ModelRequest(model="m", messages=stored, **{"origin": HERE, **more})
    made = anthropic.request_body(request)
    assert stored == list(messages)
    encode(made)
    return made


def sent(*messages: Any, **more: Any) -> list[tuple[str, Any]]:
    return [(m["role"], m["content"]) for m in body(*messages, **more)["messages"]]


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://x.test", "https://x.test/v1/messages"),
        ("https://x.test/", "https://x.test/v1/messages"),
        ("https://x.test/v1", "https://x.test/v1/messages"),
        ("https://x.test/v1/", "https://x.test/v1/messages"),
        ("https://x.test/api/v1", "https://x.test/api/v1/messages"),
        ("https://x.test/api", "https://x.test/api/v1/messages"),
    ],
)
def test_endpoint(base: str, url: str) -> None:
    assert anthropic.endpoint(base) == url


def test_headers() -> None:
    assert anthropic.headers("k") == {"x-api-key": "k", "anthropic-version": "2023-06-01"}


def test_body_keys_in_order() -> None:
    made = body(USER, tools=[TOOL], system="S")
    assert list(made) == ["model", "max_tokens", "system", "messages", "tools"]
    assert made["max_tokens"] == 4096
    tool = {"name": "lookup", "description": "looks up", "input_schema": SCHEMA}
    assert made["tools"] == [tool]


def test_nothing_empty() -> None:
    assert body(USER, max_tokens=7) == {"model": "m", "max_tokens": 7, "messages": [USER]}


@pytest.mark.parametrize(
    ("prompt", "messages", "system"),
    [
        ("S", [USER], "S"),
        ("S", [{"role": "system", "content": "S"}, USER], "S"),
        ("S", [{"role": "system", "content": "T"}, USER], "S\n\nT"),
        ("", [{"role": "system", "content": "T"}, USER], "T"),
        ("S", [USER, {"role": "developer", "content": [text("D")]}], "S\n\nD"),
        ("", [{"role": "system", "content": " "}, USER], None),
        (" ", [USER], None),
    ],
)
def test_system(prompt: str, messages: list[Any], system: str | None) -> None:
    made = body(*messages, system=prompt)
    assert made.get("system") == system
    assert made["messages"] == [USER]


TURNS: dict[str, tuple[list[Any], list[tuple[str, Any]]]] = {
    "plain": (
        [USER, {"role": "assistant", "content": "x"}, USER],
        [("user", "hi"), ("assistant", "x"), ("user", "hi")],
    ),
    "users merged": ([USER, USER], [("user", [text("hi"), text("hi")])]),
    "assistants merged": (
        [USER, {"role": "assistant", "content": "x"}, asks(call(), content="y"), result()],
        [("user", "hi"), ("assistant", [text("x"), text("y"), use()]), ("user", [got()])],
    ),
    "one message for the results, user text behind": (
        [USER, asks(call("a"), call("b")), result("b", "2"), result("a", "1"), USER],
        [
            ("user", "hi"),
            ("assistant", [use("a"), use("b")]),
            ("user", [got("a", "1"), got("b", "2"), text("hi")]),
        ],
    ),
    "a system message in between does not part results from their calls": (
        [USER, asks(call()), {"role": "system", "content": "S"}, result()],
        [("user", "hi"), ("assistant", [use()]), ("user", [got()])],
    ),
    "errors are marked, successes are not": (
        [
            USER,
            asks(call("a"), call("b")),
            result("a", _is_error=True),
            result("b", _is_error=False),
        ],
        [
            ("user", "hi"),
            ("assistant", [use("a"), use("b")]),
            ("user", [got("a", is_error=True), got("b")]),
        ],
    ),
    "a missing result": (
        [USER, asks(call())],
        [
            ("user", "hi"),
            ("assistant", [use()]),
            ("user", [got("a", NO_RESULT, is_error=True)]),
        ],
    ),
    "the assistant begins": (
        [{"role": "assistant", "content": "x"}, USER],
        [("user", "(start of conversation)"), ("assistant", "x"), ("user", "hi")],
    ),
    "nobody said anything": ([], [("user", "(start of conversation)")]),
    "empty texts": (
        [{"role": "user", "content": ""}, {"role": "assistant", "content": None}, USER],
        [("user", "(empty)"), ("assistant", "(empty)"), ("user", "hi")],
    ),
    "an empty text beside others is dropped": (
        [
            {"role": "user", "content": [text(" "), text("x")]},
            asks(call(), content="\n"),
            result(),
        ],
        [("user", "x"), ("assistant", [use()]), ("user", [got()])],
    ),
    "an empty result": (
        [USER, asks(call()), result("a", " ")],
        [("user", "hi"), ("assistant", [use()]), ("user", [got("a", "(empty)")])],
    ),
    "a prefill has no white space at its end": (
        [USER, {"role": "assistant", "content": "x \n"}],
        [("user", "hi"), ("assistant", "x")],
    ),
    "white space stays elsewhere": (
        [USER, {"role": "assistant", "content": "x \n"}, USER],
        [("user", "hi"), ("assistant", "x \n"), ("user", "hi")],
    ),
}


@pytest.mark.parametrize("name", TURNS)
def test_turns(name: str) -> None:
    messages, expected = TURNS[name]
    assert sent(*messages) == expected


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ("", {}),
        ("{oops", {"malformed_arguments": "{oops"}),
        ("[1]", {"malformed_arguments": "[1]"}),
        ('{"a":1e999}', {"malformed_arguments": '{"a":1e999}'}),
    ],
)
def test_arguments(arguments: str, given: dict[str, Any]) -> None:
    blocks = sent(USER, asks(call("a", "f", arguments)))[1][1]
    assert blocks == [{"type": "tool_use", "id": "a", "name": "f", "input": given}]


@pytest.mark.parametrize(
    ("part", "blocks"),
    [
        ("x", [text("x")]),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
                }
            ],
        ),
        (
            {"type": "image_url", "image_url": "https://x.test/a.png"},
            [{"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}}],
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "u"}},
            [{"type": "image", "source": {"type": "url", "url": "u"}}],
        ),
        (
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
            [text("(a part of type 'image_url' that this provider does not take)")],
        ),
        (
            {"type": "tool_result", "tool_use_id": "zz", "content": "x"},
            [text("(a part of type 'tool_result' that this provider does not take)")],
        ),
        (5, []),
        ({"type": "text"}, []),
    ],
)
def test_parts(part: Any, blocks: list[Any]) -> None:
    out = sent({"role": "user", "content": [text("look"), part]})[0][1]
    assert out == [text("look"), *blocks] if blocks else out == "look"


def test_image_in_a_result() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "u"}}
    out = sent(USER, asks(call()), result("a", [text("see"), image]))
    assert out[2][1] == [got("a", [text("see"), image])]


def test_ids_are_valid_and_unique_over_the_conversation() -> None:
    turn = [
        asks(call("functions.f:0"), call("b")),
        result("functions.f:0", "1"),
        result("b", "2"),
    ]
    out = sent(USER, *turn, *turn)
    used = [b["id"] for role, blocks in out if role == "assistant" for b in blocks]
    answered = [b["tool_use_id"] for role, blocks in out[1:] if role == "user" for b in blocks]
    assert used == answered
    assert len(set(used)) == 4
    assert used[1] == "b"
    assert all(re.fullmatch("[a-zA-Z0-9_-]+", i) for i in used)
    shorter = sent(USER, *turn)
    assert out[: len(shorter)] == shorter, "a growing transcript keeps its prefix"


def test_a_body_shares_nothing_with_what_is_stored() -> None:
    stored: list[Any] = [
        USER,
        read([{"type": "thinking", "thinking": "t", "x": [1]}]).message,
        USER,
    ]
    kept = copy.deepcopy((stored, SCHEMA))
    made = anthropic.request_body(
        ModelRequest(model="m", messages=stored, tools=[TOOL], origin=HERE)
    )
    made["messages"][1]["content"][0]["x"].append("!")
    assert (stored, SCHEMA) == kept


# ---------------------------------------------------------------- replies


def read(content: Any, **more: Any) -> ModelReply:
    payload = {"type": "message", "role": "assistant", "content": content, **more}
    before = copy.deepcopy(payload)
    reply = anthropic.read_reply(payload, HERE)
    assert payload == before
    return reply


def test_a_clean_reply_is_stored_clean() -> None:
    reply = read(
        [text("let me see"), use("toolu_1", "f", {"k": "ü", "n": 1})],
        stop_reason="tool_use",
        usage={"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 90},
    )
    arguments = '{"k":"ü","n":1}'
    assert reply == ModelReply(
        message=asks(call("toolu_1", "f", arguments), content="let me see"),
        calls=(ToolCall("toolu_1", "f", arguments),),
        text="let me see",
        usage=Usage(3, 2, 5),
        finish_reason="tool_calls",
    )


@pytest.mark.parametrize(
    ("content", "stored"),
    [
        ([text("a"), text("b")], {"role": "assistant", "content": "ab"}),
        ([], {"role": "assistant", "content": ""}),
        ("plain", {"role": "assistant", "content": "plain"}),
        ([{**text("a"), "citations": None}], {"role": "assistant", "content": "a"}),
        ([use("a")], asks(call())),
        ([use(None), use(None)], asks(call("call_0"), call("call_1"))),
        ([use("a"), use("a")], asks(call("a"), call("a_2"))),
        ([use("a", None)], asks(call("a", ""))),
        ([use("a", "f", "{raw")], asks(call("a", "f", "{raw"))),
        ([text("a"), None], {"role": "assistant", "content": "a"}),
    ],
)
def test_stored_form(content: Any, stored: dict[str, Any]) -> None:
    assert read(content).message == stored


THINKING = {"type": "thinking", "thinking": "hm", "signature": "s=="}
REDACTED = {"type": "redacted_thinking", "data": "xx"}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
CITED = {**text("cited"), "citations": [{"type": "x"}]}
OPAQUE = [
    [THINKING, text("x")],
    [THINKING, text("x"), use()],
    [REDACTED, THINKING, use()],
    [SEARCH, CITED, text("x")],
    [use(caller={"type": "direct"})],
    [text("x"), use("a.b")],
]


@pytest.mark.parametrize("content", OPAQUE)
def test_opaque_blocks_go_back_as_received_to_their_origin(content: list[Any]) -> None:
    message = read(content).message
    assert message["_origin"] == HERE
    back = sent(USER, message)[1][1]
    kept = [b for b in back if b["type"] != "tool_use" or b["id"] == "a"]
    assert kept == [b for b in content if b.get("id") != "a.b"]


@pytest.mark.parametrize("content", OPAQUE)
@pytest.mark.parametrize("origin", ["anthropic api.example other", ""])
def test_opaque_blocks_are_all_dropped_elsewhere(content: list[Any], origin: str) -> None:
    out = sent(USER, read(content).message, USER, origin=origin)
    blocks = out[1][1] if isinstance(out[1][1], list) else [text(out[1][1])]
    assert {b["type"] for b in blocks} <= {"text", "tool_use"}
    assert all(set(b) <= {"type", "text", "id", "name", "input"} for b in blocks)


def test_repeated_ids_beside_thinking() -> None:
    message = read([THINKING, use("a"), use("a")]).message
    out = sent(USER, message, result("a", "1"), result("a_2", "2"))
    assert out[1][1] == [THINKING, use("a"), use("a_2")]
    assert out[2][1] == [got("a", "1"), got("a_2", "2")]


@pytest.mark.parametrize(
    "edit",
    [
        {"content": "[redacted]"},
        {"tool_calls": []},
        {"tool_calls": [call("a", "f", '{"x":1}')]},
        {"tool_calls": [call("b")]},
        {"_blocks": "gone"},
        {"_blocks": [THINKING, "odd"]},
        {"_blocks": [THINKING, {}, text("secret"), use()]},
        {"_blocks": [{"type": "text"}]},
    ],
)
def test_blocks_that_no_longer_say_what_the_message_says_are_dropped(
    edit: dict[str, Any],
) -> None:
    message = {**read([THINKING, text("secret"), use()]).message, **edit}
    blocks = sent(USER, message, USER)[1][1]
    assert isinstance(blocks, str) or THINKING not in blocks


def test_thinking_is_never_last_and_empty_texts_do_not_go_back() -> None:
    message = read([THINKING, text(" ")]).message
    assert sent(USER, message, USER)[1][1] == [THINKING, text("(empty)")]


@pytest.mark.parametrize(
    ("stop", "reason", "truncated"),
    [
        ("end_turn", "stop", False),
        ("stop_sequence", "stop", False),
        ("tool_use", "tool_calls", False),
        ("max_tokens", "length", True),
        ("model_context_window_exceeded", "length", True),
        ("refusal", "content_filter", False),
        ("pause_turn", "pause_turn", False),
        (None, "stop", False),
        (["x"], "stop", False),
    ],
)
def test_stop_reasons(stop: Any, reason: str, truncated: bool) -> None:
    reply = read([text("x")], stop_reason=stop)
    assert (reply.finish_reason, reply.truncated) == (reason, truncated)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ([], Usage()),
        ({"input_tokens": "3", "output_tokens": None}, Usage()),
        ({"input_tokens": 3}, Usage(3, 0, 3)),
    ],
)
def test_usage(usage: Any, expected: Usage) -> None:
    assert read([text("x")], usage=usage).usage == expected


@pytest.mark.parametrize(
    ("payload", "retryable"),
    [
        (None, False),
        ("<html>", False),
        ({}, False),
        ({"content": None}, False),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, True),
        ({"type": "error", "error": {"type": "invalid_request_error"}}, False),
        ({"type": "error"}, False),
        ({"error": {"type": "api_error"}, "content": []}, True),
    ],
)
def test_bodies_that_are_no_reply(payload: Any, retryable: bool) -> None:
    with pytest.raises(LlmError, match=r"^LLM 200: ") as caught:
        anthropic.read_reply(payload, HERE)
    assert caught.value.retryable is retryable
