"""Scripted replies as both providers would write them, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from toolnexus.testing import (
    Reply,
    ScriptedLlm,
    call,
    raw,
    status,
    text,
    tool_call,
    tool_calls,
)

LIMIT = 5.0
ANTHROPIC_HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}


@pytest.fixture
def llm() -> Iterator[ScriptedLlm]:
    before = set(threading.enumerate())
    with ScriptedLlm() as server:
        yield server
    assert not set(threading.enumerate()) - before


def ask(llm: ScriptedLlm, model: str = "m", prompt: str = "hi", **body: Any) -> Any:
    """Ask in OpenAI's style on a connection of its own."""
    return requests.post(
        f"{llm.base_url}/chat/completions",
        headers={"authorization": "Bearer k"},
        json={"model": model, "messages": [{"role": "user", "content": prompt}], **body},
        timeout=LIMIT,
    )


def ask_anthropic(llm: ScriptedLlm, model: str = "m", **body: Any) -> Any:
    """Ask in Anthropic's style on a connection of its own."""
    messages = [{"role": "user", "content": "hi"}]
    return requests.post(
        f"{llm.base_url}/messages",
        headers=ANTHROPIC_HEADERS,
        json={"model": model, "max_tokens": 99, "messages": messages, **body},
        timeout=LIMIT,
    )


def test_a_text_is_a_chat_completion(llm: ScriptedLlm) -> None:
    llm.say("m", text("hello"))
    reply = ask(llm)
    assert reply.status_code == 200
    assert reply.json()["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello", "refusal": None},
            "finish_reason": "stop",
        }
    ]
    assert reply.json()["usage"] == {
        "prompt_tokens": 30,
        "completion_tokens": 10,
        "total_tokens": 40,
    }
    llm.assert_done()


def test_the_same_reply_is_an_anthropic_message(llm: ScriptedLlm) -> None:
    llm.say("m", text("hello", usage=(7, 2), finish="length"))
    body = ask_anthropic(llm).json()
    assert body["content"] == [{"type": "text", "text": "hello"}]
    assert body["stop_reason"] == "max_tokens"
    assert body["usage"] == {"input_tokens": 7, "output_tokens": 2}
    llm.assert_done()


def test_tool_calls_in_both_styles(llm: ScriptedLlm) -> None:
    reply = tool_calls(call("add", {"a": 1}), call("add", '{"a":', "mine"), content="now")
    llm.say("m", reply, reply)
    message = ask(llm).json()["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    assert message["message"]["content"] == "now"
    assert message["message"]["tool_calls"] == [
        {
            "id": "call_1_1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a":1}'},
        },
        {"id": "mine", "type": "function", "function": {"name": "add", "arguments": '{"a":'}},
    ]
    body = ask_anthropic(llm).json()
    assert body["stop_reason"] == "tool_use"
    assert body["content"] == [
        {"type": "text", "text": "now"},
        {"type": "tool_use", "id": "call_1_2", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "mine", "name": "add", "input": '{"a":'},
    ]


def test_a_call_id_is_never_one_of_the_conversation(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("add"))
    history = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "call_1_1",  # from another server, before the process restarted
                    "type": "function",
                    "function": {"name": "add", "arguments": "{}"},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1_1", "content": "3"},
    ]
    message = ask(llm, messages=history).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["id"] == "call_1_2"
    assert message["content"] is None
    assert llm.requests[0].tool_results == {"call_1_1": "3"}


def test_statuses_carry_headers_and_the_providers_error_shape(llm: ScriptedLlm) -> None:
    busy = status(429, headers={"retry-after": "2"})
    llm.say("m", busy, busy, status(500, "down"), status(503, {"why": "x"}))
    reply = ask(llm)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
    assert reply.json()["error"]["type"] == "rate_limit_error"
    reply = ask_anthropic(llm)
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == "rate_limit_error"
    assert (ask(llm).text, ask(llm).json()) == ("down", {"why": "x"})
    llm.assert_done()


def test_raw_bodies_are_sent_as_they_stand(llm: ScriptedLlm) -> None:
    llm.say("m", raw({"choices": []}), raw("<html>"), Reply(), text("x", usage=None))
    assert ask(llm).json() == {"choices": []}
    assert ask(llm).text == "<html>"
    assert ask(llm).json()["choices"][0]["message"]["content"] is None
    assert "usage" not in ask(llm).json()


def test_extra_keys_are_for_openai_and_thinking_for_anthropic(llm: ScriptedLlm) -> None:
    reply = text("hi").with_extra(reasoning_content="hm").with_thinking("so", "sig")
    reply = reply.with_redacted_thinking("xx")
    llm.say("m", reply, reply)
    assert ask(llm).json()["choices"][0]["message"] == {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "reasoning_content": "hm",
    }
    assert ask_anthropic(llm).json()["content"] == [
        {"type": "thinking", "thinking": "so", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "text", "text": "hi"},
    ]


def test_streams_say_the_same_in_openais_chunks(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("add", {"a": 12}, content="hello"))
    reply = ask(llm, stream=True, stream_options={"include_usage": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in reply.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert chunks.pop()["usage"]["total_tokens"] == 40
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "hello"
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["id"] == "call_1_1"
    assert "".join(c["function"]["arguments"] for c in calls) == '{"a":12}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_streams_say_the_same_in_anthropics_events(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("add", {"a": 12}, content="hello").with_thinking("hm"))
    reply = ask_anthropic(llm, stream=True)
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line[:5] == "data:"]
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]

    def joined(key: str) -> str:
        return "".join(delta.get(key, "") for delta in deltas)

    assert (joined("thinking"), joined("text")) == ("hm", "hello")
    assert joined("partial_json") == '{"a":12}'
    assert joined("signature").startswith("sig_")
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"] == {"output_tokens": 10}


def test_thinking_that_was_sent_must_come_back_before_its_call(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("add", {"a": 1}).with_thinking("hm"), text("3"))
    sent = ask_anthropic(llm).json()["content"]
    results = [{"type": "tool_result", "tool_use_id": sent[1]["id"], "content": "3"}]

    def go_on(content: list[Any]) -> int:
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": content},
            {"role": "user", "content": results},
        ]
        return int(ask_anthropic(llm, messages=messages).status_code)

    assert go_on(sent[1:]) == 400
    assert go_on([{**sent[0], "thinking": "ho"}, sent[1]]) == 400
    assert go_on(sent) == 200


def test_replies_are_values() -> None:
    reply = text("hi")
    gate = threading.Event()
    assert reply.held_by(gate) == Reply("hi", gate=gate)
    assert reply == text("hi")
    assert reply.with_headers({"a": "b"}).headers == {"a": "b"}
