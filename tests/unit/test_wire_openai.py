"""OpenAI's dialect: bodies to the key, replies good and bad."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import pytest

from toolnexus.codec import encode
from toolnexus.errors import LlmError
from toolnexus.messages import ToolCall, Usage
from toolnexus.wire import openai
from toolnexus.wire.base import ModelReply, ModelRequest

HERE = "openai api.example m"
USER = {"role": "user", "content": "hi"}


@attrs.frozen
class Declared:
    name: str
    description: str
    input_schema: dict[str, Any]


SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL = Declared("lookup", "looks up", SCHEMA)


def call(
    call_id: Any = "a", name: Any = "f", arguments: Any = "{}", **more: Any
) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **more}


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    stored = copy.deepcopy(list(messages))
    request = ModelRequest(model="m", messages=stored, **{"origin": HERE, **more})
    made = openai.request_body(request)
    assert stored == list(messages)
    encode(made)
    return made


def sent(*messages: Any, **more: Any) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = body(*messages, **more)["messages"]
    return out


@pytest.mark.parametrize("base", ["https://x.test/v1", "https://x.test/v1/"])
def test_endpoint(base: str) -> None:
    assert openai.endpoint(base) == "https://x.test/v1/chat/completions"


def test_one_slash_alone_is_stripped() -> None:
    assert openai.endpoint("https://x.test//") == "https://x.test//chat/completions"


def test_headers() -> None:
    assert openai.headers("k") == {"Authorization": "Bearer k"}


def test_body_keys_in_order() -> None:
    made = body(USER, tools=[TOOL], max_tokens=9)
    assert list(made) == ["model", "messages", "tools", "tool_choice", "max_tokens"]
    assert made["tool_choice"] == "auto"
    function = {"name": "lookup", "description": "looks up", "parameters": SCHEMA}
    assert made["tools"] == [{"type": "function", "function": function}]
    assert made["max_tokens"] == 9


def test_no_tools_no_keys() -> None:
    assert body(USER) == {"model": "m", "messages": [USER]}


def test_a_name_that_a_provider_refuses() -> None:
    made = body(USER, tools=[Declared("näme.x" + "y" * 80, "", {})])
    name = made["tools"][0]["function"]["name"]
    assert name.startswith("n_me_xyyy")
    assert len(name) == 64


SYSTEM = {"role": "system", "content": "S"}


@pytest.mark.parametrize(
    ("messages", "system", "roles"),
    [
        ([USER], "S", ["system", "user"]),
        ([SYSTEM, USER], "S", ["system", "user"]),
        ([{"role": "system", "content": "other"}, USER], "S", ["system", "user"]),
        ([{"role": "developer", "content": "D"}, USER], "S", ["developer", "user"]),
        ([USER], "", ["user"]),
        ([USER], " \n", ["user"]),
        ([], "S", ["system"]),
    ],
)
def test_system_is_first_and_never_twice(
    messages: list[Any], system: str, roles: list[str]
) -> None:
    assert [m["role"] for m in sent(*messages, system=system)] == roles


@pytest.mark.parametrize(
    ("content", "wire"),
    [
        ("x", "x"),
        ("", "(empty)"),
        (" \n\t", "(empty)"),
        (None, "(empty)"),
        ([], "(empty)"),
        ([{"type": "text", "text": " "}], "(empty)"),
        (["a", 5], [{"type": "text", "text": "a"}]),
        ([{"type": "text"}, {"type": "x", "y": 1}], [{"type": "x", "y": 1}]),
        (7, "7"),
        ({"a": 1}, '{"a":1}'),
    ],
)
@pytest.mark.parametrize("role", ["user", "system", "tool", "assistant"])
def test_contents(role: str, content: Any, wire: Any) -> None:
    if role == "tool":
        asked = {"role": "assistant", "content": None, "tool_calls": [call()]}
        out = sent(asked, {"role": "tool", "tool_call_id": "a", "content": content})[1]
    else:
        out = sent({"role": role, "content": content})[0]
    assert out["content"] == wire


@pytest.mark.parametrize("content", [None, "", "  ", []])
def test_content_beside_calls_is_null_not_a_placeholder(content: Any) -> None:
    out = sent({"role": "assistant", "content": content, "tool_calls": [call()]})
    assert out[0]["content"] is None


@pytest.mark.parametrize("calls", [[], None, "x"])
def test_no_calls_no_key(calls: Any) -> None:
    out = sent({"role": "assistant", "content": "x", "tool_calls": calls})
    assert out == [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize(
    ("arguments", "wire"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ("  ", "{}"),
        ("{oops", '{"malformed_arguments":"{oops"}'),
        ("[1]", '{"malformed_arguments":"[1]"}'),
        ("null", '{"malformed_arguments":"null"}'),
        ('{"a":NaN}', '{"malformed_arguments":"{\\"a\\":NaN}"}'),
        ('{"a":1e999}', '{"malformed_arguments":"{\\"a\\":1e999}"}'),
        ({"a": 1}, '{"a":1}'),
        (None, "{}"),
    ],
)
def test_arguments(arguments: Any, wire: str) -> None:
    out = sent(
        {"role": "assistant", "content": None, "tool_calls": [call("a", "f", arguments)]}
    )
    assert out[0]["tool_calls"] == [call("a", "f", wire)]


@pytest.mark.parametrize(("name", "wire"), [("a.b", "a_b"), ("", "unnamed"), (None, "unnamed")])
def test_names_of_calls(name: Any, wire: str) -> None:
    out = sent({"role": "assistant", "tool_calls": [call("a", name)]})
    assert out[0]["tool_calls"][0]["function"]["name"] == wire


@pytest.mark.parametrize("odd", ["x" * 41, "a b", "functions.f:0", "\ud800"])
def test_odd_ids_are_replaced_for_another_origin(odd: str) -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [call(odd)]}
    first, answer = sent(asked, {"role": "tool", "tool_call_id": odd, "content": "r"})
    made = first["tool_calls"][0]["id"]
    assert made != odd
    assert len(made) <= 40
    assert answer["tool_call_id"] == made
    assert sent(asked)[0]["tool_calls"][0]["id"] == made, "the same every time"


def test_odd_ids_go_back_to_their_origin() -> None:
    odd = "functions.f:0"
    asked = {"role": "assistant", "content": None, "tool_calls": [call(odd)], "_origin": HERE}
    first, answer = sent(asked, {"role": "tool", "tool_call_id": odd, "content": "r"})
    assert first["tool_calls"][0]["id"] == answer["tool_call_id"] == odd


@pytest.mark.parametrize(
    ("origin", "kept"), [(HERE, True), (None, True), ("openai other.example m", False)]
)
def test_unknown_keys_go_back_to_their_origin_alone(origin: str | None, kept: bool) -> None:
    extra = {"extra_content": {"google": {"thought_signature": "s"}}}
    stored = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call(**extra)],
        "reasoning_content": "hm",
        "name": "n",
        "_note": 1,
    }
    if origin:
        stored["_origin"] = origin
    out = sent(stored)[0]
    assert ("reasoning_content" in out) is kept
    assert ("extra_content" in out["tool_calls"][0]) is kept
    assert out["name"] == "n"
    assert not any(key.startswith("_") for key in out)


def test_ours_is_never_sent() -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [call()], "_x": 1}
    result = {"role": "tool", "tool_call_id": "a", "content": "r", "_is_error": True}
    out = sent({**SYSTEM, "_s": 1}, {**USER, "_u": 1}, asked, result)
    assert [key for m in out for key in m if key.startswith("_")] == []


def test_further_keys_of_a_user_message_stay() -> None:
    assert sent({**USER, "name": "ann", "tool_calls": [call()]})[0] == {**USER, "name": "ann"}


def test_a_body_shares_nothing_with_what_is_stored() -> None:
    image = {"type": "image_url", "image_url": {"url": "u"}}
    stored: list[Any] = [
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": None, "tool_calls": [call(x={"y": []})], "z": [1]},
    ]
    kept = copy.deepcopy((stored, SCHEMA))
    made = openai.request_body(ModelRequest(model="m", messages=stored, tools=[TOOL]))
    made["messages"][0]["content"][0]["image_url"]["url"] = "!"
    made["messages"][1]["tool_calls"][0]["function"]["name"] = "!"
    made["messages"][1]["tool_calls"][0]["x"]["y"].append("!")
    made["messages"][1]["z"].append("!")
    assert (stored, SCHEMA) == kept


# ---------------------------------------------------------------- replies


def reply(message: Any, finish: Any = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}


def read(message: Any, finish: Any = "stop", **more: Any) -> ModelReply:
    payload = reply(message, finish, **more)
    before = copy.deepcopy(payload)
    got = openai.read_reply(payload, HERE)
    assert payload == before
    return got


def test_a_clean_reply_is_stored_clean() -> None:
    received: Any = {"role": "assistant", "content": "x", "refusal": None, "annotations": []}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert read(received, usage=usage, id="c", object="chat.completion") == ModelReply(
        message={"role": "assistant", "content": "x"}, text="x", usage=Usage(3, 2, 5)
    )


def test_a_clean_call_is_stored_clean() -> None:
    got = read({"role": "assistant", "content": None, "tool_calls": [call()]}, "tool_calls")
    assert got.message == {"role": "assistant", "content": None, "tool_calls": [call()]}
    assert got.calls == (ToolCall("a", "f", "{}"),)
    assert (got.text, got.truncated, got.finish_reason) == ("", False, "tool_calls")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "x"}, "x"),
        ({"content": ""}, ""),
        ({"content": None}, ""),
        ({}, ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ({"content": None, "refusal": "no"}, "no"),
        ({"content": [{"type": "refusal", "refusal": "no"}]}, "no"),
        ({"content": 5}, "5"),
    ],
)
def test_text(message: dict[str, Any], text: str) -> None:
    got = read(message)
    assert got.text == got.message["content"] == text


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([call(None), call(None)], [("call_0", "{}"), ("call_1", "{}")]),
        ([call("a"), call("a")], [("a", "{}"), ("a_2", "{}")]),
        ([{"id": "a", "function": {"name": "f", "arguments": "x"}}], [("a", "x")]),
        ([call("a", "f", {"k": "ü"})], [("a", '{"k":"ü"}')]),
        ([call("a", "f", None)], [("a", "")]),
        ([call("a"), "odd"], [("a", "{}")]),
    ],
)
def test_calls(calls: list[Any], expected: list[tuple[str, str]]) -> None:
    got = read({"role": "assistant", "content": None, "tool_calls": calls})
    assert [(c.id, c.arguments) for c in got.calls] == expected
    assert [c["id"] for c in got.message["tool_calls"]] == [pair[0] for pair in expected]
    assert all(c["type"] == "function" for c in got.message["tool_calls"])
    assert "_origin" not in got.message


@pytest.mark.parametrize("calls", [None, [], {}, "x"])
def test_no_calls(calls: Any) -> None:
    got = read({"content": "x", "tool_calls": calls})
    assert got.message == {"role": "assistant", "content": "x"}


def test_legacy_function_call() -> None:
    got = read({"content": None, "function_call": {"name": "f", "arguments": "{}"}})
    assert got.message["tool_calls"] == [call("call_0")]
    assert "function_call" not in got.message


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x", "reasoning_content": "hm"},
        {"content": "x", "reasoning_content": ""},
        {"content": None, "tool_calls": [call(extra_content={"s": 1})]},
        {"content": None, "tool_calls": [call("x" * 41)]},
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "x"}]},
    ],
)
def test_what_only_its_provider_understands_goes_back_unchanged(
    message: dict[str, Any],
) -> None:
    got = read({"role": "assistant", **message})
    assert got.message["_origin"] == HERE
    assert sent(got.message)[0] == {"role": "assistant", **message}


def test_parts_that_no_longer_say_what_the_message_says_are_not_sent() -> None:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "secret"}]
    stored = {**read({"content": parts}).message, "content": "[redacted]"}
    assert sent(stored)[0] == {"role": "assistant", "content": "[redacted]"}


def test_a_provider_cannot_write_our_keys() -> None:
    got = read({"content": "x", "_origin": "evil", "_blocks": [], "role": "system"})
    assert got.message == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ("many", Usage()),
        ({}, Usage()),
        ({"prompt_tokens": 3, "completion_tokens": 2}, Usage(3, 2, 5)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 9}, Usage(3, 2, 9)),
        ({"prompt_tokens": None, "completion_tokens": "2", "total_tokens": []}, Usage()),
        ({"prompt_tokens": -3, "completion_tokens": True, "total_tokens": 4.0}, Usage(0, 0, 4)),
    ],
)
def test_usage(usage: Any, expected: Usage) -> None:
    assert read({"content": "x"}, usage=usage).usage == expected


@pytest.mark.parametrize(
    ("finish", "reason", "truncated"),
    [
        ("stop", "stop", False),
        ("length", "length", True),
        ("content_filter", "content_filter", False),
        ("function_call", "function_call", False),
        ("eos", "eos", False),
        (None, "stop", False),
        (3, "stop", False),
        (["length"], "stop", False),
    ],
)
def test_finish_reasons(finish: Any, reason: str, truncated: bool) -> None:
    got = read({"content": "x"}, finish)
    assert (got.finish_reason, got.truncated) == (reason, truncated)


@pytest.mark.parametrize(
    ("payload", "retryable"),
    [
        (None, False),
        ([], False),
        ("<html>", False),
        ({}, False),
        ({"choices": []}, False),
        ({"choices": {}}, False),
        ({"choices": [None]}, False),
        ({"choices": [{}]}, False),
        ({"choices": [{"message": "x"}]}, False),
        ({"error": {"code": 502, "message": "x"}}, True),
        ({"error": {"code": "429"}}, True),
        ({"error": {"code": "rate_limit_exceeded"}}, True),
        ({"error": {"type": "server_error", "code": None}}, True),
        ({"error": {"code": 400, "message": "overloaded"}}, False),
        ({"error": "busy"}, False),
        ({"choices": [{"error": {"code": 503}, "message": {"content": ""}}]}, True),
    ],
)
def test_bodies_that_are_no_reply(payload: Any, retryable: bool) -> None:
    with pytest.raises(LlmError, match=r"^LLM 200: ") as caught:
        openai.read_reply(payload, HERE)
    assert caught.value.retryable is retryable
    assert caught.value.status == 200


def test_an_error_quotes_the_body_up_to_200_characters() -> None:
    with pytest.raises(LlmError) as caught:
        openai.read_reply({"error": {"message": "x" * 999}}, HERE)
    body = '{"error":{"message":"' + "x" * 999
    assert str(caught.value) == f"LLM 200: {body[:200]}"


def test_null_error_is_none() -> None:
    assert read({"content": "x"}, error=None).text == "x"
