"""Streams that end early: what is kept, what is tried again, and what is never executed."""

from __future__ import annotations

import pickle
import threading

import pytest

from tests.conftest import MakeClient
from tests.http.streaming import (
    FIRST_WORD,
    SECOND_WORD,
    STYLES,
    Bomb,
    body_of,
    delta,
    kinds,
    result_in,
    scripted,
    sse,
    text_in,
    until_broken,
)
from toolnexus import LlmError, tool
from toolnexus.testing import (
    Reply,
    ScriptedLlm,
    text,
    tool_call,
)


def end_of_reply(style: str, body: str) -> int:
    """Return after how many bytes the model has said that its reply is whole."""
    last = "event: message_stop" if style == "anthropic" else '"finish_reason":"'
    return len(body[: body.index("\n\n", body.index(last)) + 2].encode())


@STYLES
@pytest.mark.parametrize(
    "reply",
    [text("hello"), tool_call("bomb", {"n": 1}, "c1", content="I")],
    ids=["text", "call"],
)
def test_a_stream_that_ends_in_good_order_after_any_event_is_whole_or_an_error(
    llm: ScriptedLlm, make_client: MakeClient, style: str, reply: Reply
) -> None:
    body = body_of(llm, style, reply)
    needed = body.encode()[: end_of_reply(style, body)].count(b"\n\n")
    client, bomb = make_client(style=style, max_turns=1), Bomb()
    for count in range(body.count("\n\n")):
        llm.say("m", reply.ended_after(count))
        before = bomb.exploded
        if count >= needed:
            assert result_in(list(client.stream("go", tools=[bomb]))).turns == 1
            continue
        told, error = until_broken(client.stream("go", tools=[bomb]))
        assert kinds(told) in ([], ["text"])
        assert error.partial == text_in(told)
        assert error.retryable is (told == [])
        assert str(error) == "LLM stream ended before the reply was whole"
        assert bomb.exploded == before


@STYLES
def test_a_stream_that_is_cut_at_any_byte_is_whole_or_an_error(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    body = body_of(llm, style, tool_call("bomb", {"n": 1}, "c1", content="I will, 😀."))
    needed = end_of_reply(style, body)
    client, bomb = make_client(style=style, max_turns=1), Bomb()
    for size in [*range(0, len(body.encode()), 11), needed - 1, needed]:
        llm.say("m", scripted(body).cut_after(size))
        before = bomb.exploded
        if size >= needed:
            assert result_in(list(client.stream("go", tools=[bomb]))).tool_calls == 1
            assert bomb.exploded == before + 1
            continue
        told, error = until_broken(client.stream("go", tools=[bomb]))
        assert error.partial == text_in(told)
        assert error.retryable is (told == [])
        assert bomb.exploded == before
        assert "127.0.0.1" in str(error)


@STYLES
@pytest.mark.parametrize("count", [FIRST_WORD, SECOND_WORD])
def test_what_was_given_is_kept_and_nothing_is_asked_again(
    llm: ScriptedLlm, make_client: MakeClient, style: str, count: dict[str, int]
) -> None:
    llm.say("m", text("hello").ended_after(count[style]), text("twice"))
    client = make_client(
        style=style, retries=5, retry_base_ms=0, on_error=lambda error, attempt: "retry"
    )
    told, error = until_broken(client.stream("hi"))

    assert error.partial == text_in(told) == ("hel" if count is FIRST_WORD else "hello")
    assert not error.retryable
    assert len(llm.requests) == 1


def test_on_error_is_told_of_a_stream_that_broke_off_after_text(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    asked: list[tuple[str, int]] = []
    llm.say("m", text("hello").ended_after(2))
    client = make_client(on_error=lambda error, n: asked.append((error.partial, n)))
    until_broken(client.stream("hi"))

    assert asked == [("hel", 0)]


@STYLES
def test_a_stream_that_gave_nothing_is_asked_again(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", text("lost").ended_after(0), text("lost").ended_after(1))
    llm.say("m", text("lost").cut_after(1), text("lost").cut_before_headers(), text("hello"))
    client = make_client(style=style, retries=4, retry_base_ms=0)
    events = list(client.stream("hi"))

    assert text_in(events) == "hello"
    assert len({request.content for request in llm.requests}) == 1
    llm.assert_done()


@STYLES
def test_a_stream_that_broke_off_within_a_call_is_asked_again_and_the_call_executed_once(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    bomb, reply = Bomb(), tool_call("bomb", {"n": 1}, "c1")
    llm.say("m", reply.cut_in_body(), reply.ended_after(3), reply, text("done"))
    client = make_client(style=style, retries=2, retry_base_ms=0)
    events = list(client.stream("go", tools=[bomb]))

    assert kinds(events) == ["tool_call", "tool_result", "text", "usage", "done"]
    assert bomb.exploded == 1
    assert result_in(events).turns == 2
    llm.assert_done()


def test_the_retries_of_a_silent_stream_are_counted(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", *[text("lost").ended_after(1)] * 3)
    told, error = until_broken(make_client(retries=2, retry_base_ms=0).stream("hi"))

    assert told == []
    assert error.partial == ""
    assert error.retryable
    assert len(llm.requests) == 3


def test_a_later_reply_that_breaks_off_keeps_what_was_done(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    bomb = Bomb()
    llm.say("m", tool_call("bomb", {}, "c1", content="Now."), text("hello").ended_after(2))
    client = make_client()
    told, error = until_broken(client.stream("go", tools=[bomb]))

    assert kinds(told) == ["text", "tool_call", "tool_result", "text"]
    assert error.partial == "hel"
    assert error.checkpoint is not None
    roles = [message["role"] for message in error.checkpoint.messages]
    assert roles == ["user", "assistant", "tool"]
    llm.say("m", text("hello"))
    result = client.resume(error.checkpoint, tools=[bomb])
    assert (result.text, bomb.exploded) == ("hello", 1)


def test_a_conversation_is_as_it_was(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", text("one"), text("hello").ended_after(2), text("two"))
    client = make_client()
    client.ask("first", id="u1")
    before = client.conversation_store.get("u1")
    until_broken(client.stream("lost", id="u1"))

    assert client.conversation_store.get("u1") == before
    client.ask("second", id="u1")
    said = [message["content"] for message in llm.requests[-1].messages]
    assert said == ["first", "one", "second"]


def test_on_text_ends_with_the_same_error(llm: ScriptedLlm, make_client: MakeClient) -> None:
    told: list[str] = []
    llm.say("m", text("hello").ended_after(2))
    with pytest.raises(LlmError) as caught:
        make_client(retries=3).ask("hi", on_text=told.append)

    assert told == ["hel"]
    assert caught.value.partial == "hel"


def test_silence_after_a_word_ends_with_what_was_given(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("hello").paused_after(2, threading.Event()))
    client = make_client(read_timeout_ms=50, retries=3, retry_base_ms=0)
    told, error = until_broken(client.stream("hi"))

    assert text_in(told) == error.partial == "hel"
    assert "read timeout" in str(error)
    assert not error.retryable
    llm.wait_connections(0)


def test_a_broken_stream_leaves_no_connection(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", scripted(sse(delta("hel"), "{no json")).held_at_end(threading.Event()))
    told, error = until_broken(make_client().stream("hi"))

    assert text_in(told) == error.partial == "hel"
    llm.wait_connections(0)


def test_a_broken_streams_error_survives_pickling(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("hello").ended_after(2))
    _, error = until_broken(make_client().stream("hi"))
    again = pickle.loads(pickle.dumps(error))

    assert (again.partial, str(again), again.retryable) == ("hel", str(error), False)
    assert again.checkpoint == error.checkpoint


def test_a_reply_cut_in_the_middle_of_a_character_is_an_error(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    begun = 'data: {"choices":[{"delta":{"content":"'
    llm.say("m", scripted(begun + '😀"}}]}\n\n').cut_after(len(begun) + 2))
    told, error = until_broken(make_client().stream("hi"))

    assert told == []
    assert error.partial == ""


def test_what_a_tool_did_before_a_break_is_told_once(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    done: list[int] = []

    @tool
    def note(n: int) -> str:
        """Note a number."""
        done.append(n)
        return "noted"

    llm.say("m", tool_call("note", {"n": 1}), text("lost").ended_after(0), text("done"))
    events = list(make_client(retries=1, retry_base_ms=0).stream("go", tools=[note]))

    assert kinds(events) == ["tool_call", "tool_result", "text", "usage", "done"]
    assert done == [1]
