"""`client.conversation`: what a user holds who talks to one model for a while."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.runtime.support import Pay, Probe
from toolnexus import (
    Answer,
    ConfigError,
    Conversation,
    ConversationParked,
    MemoryConversationStore,
    NothingSuspended,
    UnknownRequest,
)
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls


def contents(messages: list[dict[str, Any]]) -> list[Any]:
    return [one["content"] for one in messages]


def test_it_remembers_what_was_said_until_it_is_reset(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("a"), text("b"), text("c"))
    talk = make_client(system_prompt="Be kind.").conversation()
    assert talk.messages == []
    assert talk.send("one").text == "a"
    talk.send("two")
    assert contents(llm.requests[1].messages) == ["Be kind.", "one", "a", "two"]
    assert contents(talk.messages) == ["Be kind.", "one", "a", "two", "b"]

    talk.reset()
    assert talk.messages == []
    talk.send("three")
    assert contents(llm.requests[2].messages) == ["Be kind.", "three"]


def test_its_tools_go_with_each_send(llm: ScriptedLlm, make_client: MakeClient) -> None:
    look = Probe("look")
    llm.say("m", tool_call("look"), text("a"), tool_call("look"), text("b"))
    talk = make_client().conversation(tools=[look])
    talk.send("one")
    talk.send("two")

    assert len(look.runs) == 2
    assert [request.tool_names for request in llm.requests] == [["look"]] * 4


def test_what_it_and_its_results_give_out_are_copies(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("a"), text("b"))
    talk = make_client().conversation()
    result = talk.send("one")
    for messages in (talk.messages, result.messages):
        messages[0]["content"] = "forged"
        messages.append({"role": "user", "content": "forged too"})

    assert contents(talk.messages) == ["one", "a"]
    talk.send("two")
    assert contents(llm.requests[1].messages) == ["one", "a", "two"]


def test_an_earlier_history_begins_it_and_is_not_changed(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "a"}]
    before = json.dumps(history)
    llm.say("m", text("b"))
    talk = make_client().conversation(history=history)
    talk.send("two")

    assert contents(llm.requests[0].messages) == ["one", "a", "two"]
    assert contents(talk.messages) == ["one", "a", "two", "b"]
    assert json.dumps(history) == before


def test_without_an_id_each_is_on_its_own_and_in_nobodys_store(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("a"), text("b"))
    store = MemoryConversationStore()
    client = make_client(conversation_store=store)
    client.conversation().send("one")
    client.conversation().send("two")

    assert contents(llm.requests[1].messages) == ["two"]
    assert store.ids() == []


def test_with_an_id_it_is_the_one_that_ask_speaks_in(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("a"), text("b"))
    client = make_client()
    client.ask("one", id="u1")
    talk = client.conversation(id="u1")
    talk.send("two")

    assert isinstance(talk, Conversation)
    assert talk.id == "u1"
    assert contents(llm.requests[1].messages) == ["one", "a", "two"]
    assert client.conversation_store.get("u1") == talk.messages


def test_a_history_or_an_id_but_not_both(make_client: MakeClient) -> None:
    client = make_client()
    with pytest.raises(ConfigError, match="not both"):
        client.conversation(id="u1", history=[{"role": "user", "content": "x"}])
    with pytest.raises(ConfigError, match="history"):
        client.conversation(history="hello")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="id"):
        client.conversation(id="")
    with pytest.raises(ConfigError, match="two tools"):
        client.conversation(tools=[Probe("look"), Probe("look")])


def test_a_prompt_that_is_none_changes_nothing(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    talk = make_client().conversation()
    with pytest.raises(ConfigError, match="prompt"):
        talk.send(None)  # type: ignore[arg-type]
    assert (talk.messages, llm.requests) == ([], [])


def test_a_question_is_pending_until_it_is_answered(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay = Pay()
    llm.say("m", tool_calls(call("pay", {"amount": 1}), call("pay", {"amount": 2})))
    llm.say("m", text("paid"))
    talk = make_client().conversation(tools=[pay])
    assert talk.pending is None
    result = talk.send("pay")
    first = talk.pending
    assert first is not None
    assert first == result.pending
    assert first.prompt == "Pay 1?"
    with pytest.raises(ConversationParked):
        talk.send("well?")

    assert talk.answer(Answer(first.id, True)).status == "pending"
    second = talk.pending
    assert second is not None
    assert second.prompt == "Pay 2?"
    pieces: list[str] = []
    done = talk.answer(Answer(second.id, False), on_text=pieces.append)
    assert (done.text, "".join(pieces), talk.pending) == ("paid", "paid", None)
    assert pay.paid == [(1, first.id)]
    assert list(llm.requests[-1].tool_results.values()) == [
        "paid 1",
        "declined/expired: Pay 2?",
    ]


def test_an_answer_to_nothing_is_refused(llm: ScriptedLlm, make_client: MakeClient) -> None:
    pay = Pay()
    llm.say("m", text("a"), tool_call("pay", {"amount": 1}))
    talk = make_client().conversation(tools=[pay])
    with pytest.raises(NothingSuspended):
        talk.answer(Answer("made-up", True))
    talk.send("one")
    with pytest.raises(NothingSuspended):
        talk.answer(Answer("made-up", True))
    talk.send("two")
    with pytest.raises(UnknownRequest):
        talk.answer(Answer("made-up", True))
    assert pay.paid == []


def test_a_send_may_supersede_the_question(llm: ScriptedLlm, make_client: MakeClient) -> None:
    pay = Pay()
    llm.say("m", tool_call("pay", {"amount": 1}, "c1"), text("as you like"))
    talk = make_client().conversation(tools=[pay])
    talk.send("pay")
    assert talk.send("Never mind.", supersede=True).text == "as you like"
    assert llm.requests[1].tool_results == {"c1": "not executed: the user sent a new message"}
    assert (talk.pending, pay.paid) == (None, [])


def test_a_reset_forgets_the_question_too(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", tool_call("pay", {"amount": 1}), text("hello"))
    talk = make_client().conversation(tools=[Pay()])
    parked = talk.send("pay")
    assert parked.pending is not None
    talk.reset()
    with pytest.raises(NothingSuspended):
        talk.answer(Answer(parked.pending.id, True))
    assert talk.send("hi").text == "hello"


def test_it_streams_and_a_closed_stream_leaves_it_as_it_was(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("hello"), text("hello again"))
    talk = make_client().conversation()
    with closing(talk.stream("one")) as events:
        assert next(events).kind == "text"
    assert talk.messages == []

    events = talk.stream("two")
    assert talk.messages == []  # nothing happens before it is asked for
    *_, done = events
    assert done.kind == "done"
    assert contents(talk.messages) == ["two", "hello again"]


def test_a_stream_tells_of_the_question(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", tool_calls(call("pay", {"amount": 1}), call("pay", {"amount": 2})))
    talk = make_client().conversation(tools=[Pay()])
    events = list(talk.stream("pay"))

    kinds = [event.kind for event in events]
    assert kinds == ["tool_call", "tool_call", "pending", "pending", "done"]
    asked = [event.request.prompt for event in events if event.kind == "pending"]
    assert asked == ["Pay 1?", "Pay 2?"]
    assert talk.pending is not None
    with pytest.raises(ConversationParked):
        list(talk.stream("well?"))
    llm.say("m", text("ok"))
    *_, done = talk.stream("Never mind.", supersede=True)
    assert done.kind == "done"
    assert done.result.text == "ok"


def test_its_repr_tells_nothing_of_what_was_said(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("a"))
    talk = make_client().conversation(id="u1")
    talk.send("my secret")
    assert repr(talk) == "<Conversation u1>"
