"""Many threads in one conversation: no turn is lost, nobody waits for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.runtime.support import Pay, in_thread, within
from tests.threads.racing import race
from toolnexus import (
    Answer,
    Cancelled,
    CancelToken,
    ConversationParked,
    LlmClient,
    MemoryConversationStore,
    NothingSuspended,
    Request,
    RunResult,
)
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    text,
    tool_call,
)

THREADS = 20


class Queued(CancelToken):
    """A token that tells when somebody waits for it to be thrown."""

    __slots__ = ("is_heard",)

    def __init__(self) -> None:
        super().__init__()
        self.is_heard = threading.Event()

    def on_cancel(
        self, callback: Callable[[], object], *, is_urgent: bool = False
    ) -> Callable[[], None]:
        forget = super().on_cancel(callback, is_urgent=is_urgent)
        self.is_heard.set()
        return forget


def echo(request: RecordedRequest) -> Reply:
    """Say which question is answered."""
    return text(f"re {users(request.messages)[-1]}")


def users(messages: list[dict[str, Any]]) -> list[str]:
    return [one["content"] for one in messages if one["role"] == "user"]


def check_turns(messages: list[dict[str, Any]], count: int) -> None:
    """Each question is there once, and right after it the reply to it."""
    asked = users(messages)
    assert sorted(asked) == sorted(f"q{number}" for number in range(count))
    assert [one["content"] for one in messages] == [
        each for question in asked for each in (question, f"re {question}")
    ]


@pytest.mark.usefixtures("threads_change_often")
def test_twenty_asks_in_one_conversation_queue_and_lose_no_turn(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client = make_client()
    llm.answer("m", echo)
    works = [partial(client.ask, f"q{number}", id="u1") for number in range(THREADS)]
    given = race(*works)
    assert [one.text for one in given] == [f"re q{number}" for number in range(THREADS)]

    check_turns(client.conversation_store.get("u1"), THREADS)
    # Each saw all that was said before it, so no two were at it at once.
    seen = sorted(len(request.messages) for request in llm.requests)
    assert seen == [2 * number + 1 for number in range(THREADS)]


@pytest.mark.usefixtures("threads_change_often")
def test_sends_of_one_conversation_object_queue_too(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.answer("m", echo)
    talk = make_client().conversation()
    race(*[partial(talk.send, f"q{number}") for number in range(THREADS)])
    check_turns(talk.messages, THREADS)


@pytest.mark.usefixtures("threads_change_often")
def test_clients_that_share_a_store_lose_no_turn(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.answer("m", echo)
    store = MemoryConversationStore()
    clients = [make_client(conversation_store=store) for _ in range(4)]
    race(
        *[
            lambda n=number: clients[n % 4].ask(f"q{n}", id="u1").text
            for number in range(THREADS)
        ]
    )
    check_turns(store.get("u1"), THREADS)


def test_another_conversation_does_not_wait(llm: ScriptedLlm, make_client: MakeClient) -> None:
    gate = threading.Event()
    llm.say("m", text("slow").held_by(gate))
    client = make_client()
    slow = in_thread(client.ask, "one", id="u1")
    llm.wait_asked("m")
    llm.say("m", text("quick"))

    assert within(client.ask, "two", id="u2").text == "quick"
    assert not slow.done()
    gate.set()
    assert slow.result(LIMIT).text == "slow"


def test_the_queue_is_first_in_first_out_and_a_cancelled_waiter_leaves_at_once(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    gate = threading.Event()
    llm.say("m", text("re q0").held_by(gate))
    llm.answer("m", echo)
    client = make_client()
    waiting = [in_thread(client.ask, "q0", id="u1")]
    llm.wait_asked("m")
    tokens = [Queued() for _ in range(4)]
    for number, token in enumerate(tokens, 1):
        waiting.append(in_thread(client.ask, f"q{number}", id="u1", cancel=token))
        assert token.is_heard.wait(LIMIT)

    tokens[1].cancel("no patience")
    with pytest.raises(Cancelled, match="no patience"):
        waiting[2].result(LIMIT)
    assert not any(waiting[number].done() for number in (0, 1, 3, 4))
    gate.set()
    for number in (0, 1, 3, 4):
        assert waiting[number].result(LIMIT).text == f"re q{number}"
    assert users(client.conversation_store.get("u1")) == ["q0", "q1", "q3", "q4"]
    assert len(llm.requests) == 4


def test_an_ask_that_was_cancelled_beforehand_does_nothing(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    token = CancelToken()
    token.cancel("too late")
    client = make_client()
    with pytest.raises(Cancelled, match="too late"):
        client.ask("go", id="u1", cancel=token)
    assert (llm.requests, client.conversation_store.get("u1")) == ([], [])


def test_a_dropped_stream_lets_the_next_one_in(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("one"), text("two"))
    client = make_client()
    events = client.stream("q0", id="u1")
    next(events)
    token = Queued()
    second = in_thread(client.ask, "q1", id="u1", cancel=token)
    assert token.is_heard.wait(LIMIT)
    assert not second.done()
    del events

    assert second.result(LIMIT).text == "two"
    assert users(client.conversation_store.get("u1")) == ["q1"]


def parked(llm: ScriptedLlm, client: LlmClient, pay: Pay) -> Request:
    llm.say("m", tool_call("pay", {"amount": 1}), text("paid"))
    result = client.ask("pay", id="u1", tools=[pay])
    assert result.pending is not None
    return result.pending


@pytest.mark.usefixtures("threads_change_often")
def test_twenty_threads_give_one_answer_and_the_call_runs_once(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client, pay = make_client(), Pay()
    answer = Answer(parked(llm, client, pay).id, True)
    given = race(*[lambda: client.ask_with_answer([pay], "u1", answer)] * THREADS)

    assert pay.paid == [(1, answer.id)]
    assert {(one.status, one.text) for one in given} == {("done", "paid")}
    assert len(llm.requests) == 2


@pytest.mark.usefixtures("threads_change_often")
def test_of_an_answer_and_a_new_message_one_wins(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    for number in range(10):
        client, pay = make_client(), Pay()
        answer = Answer(parked(llm, client, pay).id, True)
        llm.say("m", text("well"))
        answered, superseded = race(
            partial(client.ask_with_answer, [pay], "u1", answer),
            partial(client.ask, "stop", id="u1", tools=[pay], supersede=True),
        )

        assert isinstance(superseded, RunResult), f"round {number}: {superseded!r}"
        (result,) = llm.requests[-1].tool_results.values()
        if isinstance(answered, NothingSuspended):
            assert (pay.paid, result) == ([], "not executed: the user sent a new message")
            llm.answer("m", lambda request: text("unused"))
            client.ask("one more", id="u1")  # takes the reply that is left
        else:
            assert (pay.paid, result) == ([(1, answer.id)], "paid 1")
        llm.assert_done()


@pytest.mark.usefixtures("threads_change_often")
def test_texts_that_race_with_an_answer_are_refused_or_come_after_it(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client, pay = make_client(), Pay()
    answer = Answer(parked(llm, client, pay).id, True)
    llm.answer("m", lambda request: text("re"))
    works: list[Callable[[], Any]] = [lambda: client.ask_with_answer([pay], "u1", answer)]
    works += [partial(client.ask, f"q{n}", id="u1", tools=[pay]) for n in range(8)]
    first, *others = race(*works)

    assert (first.text, pay.paid) == ("paid", [(1, answer.id)])
    refused = [one for one in others if isinstance(one, ConversationParked)]
    came = [one for one in others if isinstance(one, RunResult)]
    assert len(refused) + len(came) == 8
    assert len(users(client.conversation_store.get("u1"))) == 1 + len(came)
