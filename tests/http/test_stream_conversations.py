"""Streams in conversations: when they are loaded and kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.http.streaming import (
    STYLES,
    kinds,
    result_in,
    results,
    seen_before,
    text_in,
)
from tests.runtime.support import Pay
from toolnexus import (
    Answer,
    Cancelled,
    CancelToken,
    ConfigError,
    MemoryConversationStore,
)
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls


class Noting(MemoryConversationStore):
    """A store that notes the order of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def get(self, conversation_id: str) -> list[Any]:
        self.calls.append(f"get:{conversation_id}")
        return super().get(conversation_id)

    def save(self, conversation_id: str, messages: Any) -> None:
        self.calls.append(f"save:{conversation_id}")
        super().save(conversation_id, messages)


def test_a_conversation_is_loaded_first_and_kept_by_the_time_it_is_done(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    store = Noting()
    llm.say("m", text("one"), text("two"))
    client = make_client(conversation_store=store)
    stream = client.stream("first", id="u1")
    assert store.calls == []
    next(stream)
    assert store.calls == ["get:u1"]
    for event in stream:
        if event.kind == "done":
            break
    assert store.calls == ["get:u1", "save:u1"]
    events = list(client.stream("second", id="u1"))

    assert store.calls == ["get:u1", "save:u1"] * 2
    said = [message["content"] for message in llm.requests[1].messages]
    assert said == ["first", "one", "second"]
    assert store.get("u1") == result_in(events).messages


def test_a_conversation_may_be_streamed_and_asked_in_turns(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", *(text(word) for word in ("one", "two", "three")))
    client = make_client()
    talk = client.conversation(id="u1")
    client.ask("a", id="u1")
    assert text_in(talk.stream("b")) == "two"
    list(client.stream("c", id="u1"))

    said = [message["content"] for message in talk.messages]
    assert said == ["a", "one", "b", "two", "c", "three"]


@STYLES
def test_a_stream_goes_on_with_an_answer(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    pay = Pay()
    talk = make_client(style=style).conversation(id="u1", tools=[pay])
    llm.say("m", tool_calls(call("pay", {"amount": 1}, "c1"), call("pay", {"amount": 2}, "c2")))
    parked = list(talk.stream("pay"))
    one, two = (event.request for event in parked if event.kind == "pending")
    first = list(talk.stream(answer=Answer(one.id, True)))

    assert kinds(first) == ["tool_result", "done"]
    assert results(first) == [("c1", "paid 1")]
    assert result_in(first).pending == talk.pending == two
    llm.say("m", text("paid"))
    last = list(talk.stream(answer=Answer(two.id, True)))
    assert kinds(last) == ["tool_result", "text", "usage", "done"]
    assert (text_in(last), result_in(last).text) == ("paid", "paid")
    assert pay.paid == [(1, one.id), (2, two.id)]
    assert talk.messages == result_in(last).messages

    again = list(talk.stream(answer=Answer(two.id, True)))
    assert kinds(again)[-1] == "done"
    assert (result_in(again).text, len(pay.paid), len(llm.requests)) == ("paid", 2, 2)


def test_a_stream_is_given_a_prompt_or_an_answer(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    talk = make_client().conversation(id="u1", tools=[Pay()])
    llm.say("m", tool_call("pay", {"amount": 1}))
    parked = talk.send("pay")
    assert parked.pending is not None
    answer = Answer(parked.pending.id, True)
    with pytest.raises(ConfigError, match="prompt or an answer"):
        talk.stream("hello", answer=answer)
    with pytest.raises(ConfigError, match="prompt or an answer"):
        talk.stream("", answer=answer)
    with pytest.raises(ConfigError, match="prompt or an answer"):
        talk.stream()

    assert talk.messages == parked.messages
    assert len(llm.requests) == 1


def test_a_stream_with_an_answer_can_be_stopped_and_the_same_answer_goes_on(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, stop = Pay(), CancelToken()
    talk = make_client().conversation(id="u1", tools=[pay])
    llm.say("m", tool_call("pay", {"amount": 1}), text("hello"), text("paid"))
    parked = talk.send("pay")
    assert parked.pending is not None
    answer = Answer(parked.pending.id, True)
    stream = talk.stream(answer=answer, cancel=stop)
    assert [event.kind for event in seen_before(stream, "text")] == ["tool_result", "text"]
    stop.cancel("enough")
    with pytest.raises(Cancelled, match="enough"):
        next(stream)

    assert text_in(talk.stream(answer=answer)) == "paid"
    assert len(pay.paid) == 1
