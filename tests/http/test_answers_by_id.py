"""`ask_with_answer`: a conversation takes each answer once, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.runtime.support import Pay, Probe
from toolnexus import (
    AlreadyAnswered,
    Answer,
    Cancelled,
    CancelToken,
    ConfigError,
    LlmClient,
    LlmError,
    MemoryConversationStore,
    NothingSuspended,
    Request,
    RequestExpired,
    RunResult,
    StoreError,
    ToolContext,
    ToolResult,
    UnknownRequest,
    WireFormatError,
)
from toolnexus.testing import (
    ScriptedLlm,
    VirtualClock,
    call,
    status,
    text,
    tool_call,
    tool_calls,
)

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])


def park(llm: ScriptedLlm, client: LlmClient, *tools: Any) -> RunResult:
    """Ask in `u1` for one payment."""
    llm.say("m", tool_call("pay", {"amount": 5}, "c1"))
    return client.ask("pay", id="u1", tools=tools)


def id_of(result: RunResult) -> str:
    assert result.pending is not None
    return result.pending.id


@STYLES
def test_an_answer_goes_on_and_the_conversation_remembers(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    pay, client = Pay(), make_client(style=style)
    parked = park(llm, client, pay)
    llm.say("m", text("paid"), text("b"))
    result = client.ask_with_answer([pay], "u1", Answer(id_of(parked), True))
    assert (result.text, result.status, result.turns) == ("paid", "done", 2)
    client.ask("more", id="u1")

    roles = [one["role"] for one in client.conversation_store.get("u1")]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert llm.requests[2].tool_results == {"c1": "paid 5"}
    llm.assert_done()


def test_two_open_requests_are_answered_one_by_one(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, look, client = Pay(), Probe("look"), make_client()
    calls = (call("pay", {"amount": 1}), call("look"), call("pay", {"amount": 2}))
    llm.say("m", tool_calls(*calls), text("all paid"))
    parked = client.ask("pay", id="u1", tools=[pay, look])
    assert parked.checkpoint is not None
    one, two = parked.checkpoint.requests

    halfway = client.ask_with_answer([pay, look], "u1", Answer(two.id, True))
    assert (halfway.status, halfway.pending) == ("pending", one)
    again = client.ask_with_answer([pay, look], "u1", Answer(two.id, True))
    assert (again.status, again.pending, again.turns) == ("pending", one, 1)
    done = client.ask_with_answer([pay, look], "u1", Answer(one.id, False))

    assert done.text == "all paid"
    assert pay.paid == [(2, two.id)]
    assert len(look.runs) == 1
    assert len(llm.requests) == 2


def test_the_same_answer_again_executes_nothing_and_says_how_things_stand(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, client = Pay(), make_client()
    answer = Answer(id_of(park(llm, client, pay)), True, {"by": "ann"}, "fine")
    llm.say("m", text("paid"))
    first = client.ask_with_answer([pay], "u1", answer)
    for reason in ("fine", None):  # the reason is advice and no part of what was decided
        again = client.ask_with_answer(
            [pay], "u1", Answer(answer.id, True, {"by": "ann"}, reason)
        )
        assert (again.text, again.status) == ("paid", "done")
        assert again.messages == first.messages
    assert (len(pay.paid), len(llm.requests)) == (1, 2)


@pytest.mark.parametrize("other", [(False, {"by": "ann"}), (True, {"by": "bob"}), (True, None)])
def test_a_different_answer_is_refused_and_the_recorded_one_is_told(
    llm: ScriptedLlm, make_client: MakeClient, other: tuple[bool, Any]
) -> None:
    pay, client = Pay(), make_client()
    answer = Answer(id_of(park(llm, client, pay)), True, {"by": "ann"})
    llm.say("m", text("paid"))
    client.ask_with_answer([pay], "u1", answer)
    before = client.conversation_store.get("u1")
    with pytest.raises(AlreadyAnswered) as caught:
        client.ask_with_answer([pay], "u1", Answer(answer.id, *other))

    # What a person said is not kept: it may be a secret.
    assert caught.value.recorded == Answer(answer.id, answer.ok)
    assert client.conversation_store.get("u1") == before
    assert (len(pay.paid), len(llm.requests)) == (1, 2)


def test_an_answer_that_fits_nothing_changes_nothing(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, client = Pay(), make_client()
    with pytest.raises(NothingSuspended):
        client.ask_with_answer([pay], "nobody", Answer("made-up", True))
    park(llm, client, pay)
    before = client.conversation_store.get("u1")
    with pytest.raises(UnknownRequest):
        client.ask_with_answer([pay], "u1", Answer("made-up", True))
    assert client.conversation_store.get("u1") == before
    assert (len(pay.runs), len(llm.requests)) == (1, 1)


@pytest.mark.parametrize("is_parked", [False, True])
def test_what_is_no_answer_is_refused_as_such(
    llm: ScriptedLlm, make_client: MakeClient, is_parked: bool
) -> None:
    pay, client = Pay(), make_client()
    if is_parked:
        park(llm, client, pay)
    with pytest.raises(ConfigError, match="Answer"):
        client.ask_with_answer([pay], "u1", {"id": "x", "ok": True})  # type: ignore[arg-type]


def test_an_answer_that_comes_too_late_leaves_the_question_open(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    clock = VirtualClock()
    until = clock.now() + timedelta(hours=1)

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        return ToolResult.pending(Request("q", "Sure?", expires_at=until))

    ask, client = Probe("pay", work), make_client(clock=clock)
    parked = park(llm, client, ask)
    clock.advance(3600)
    with pytest.raises(RequestExpired):
        client.ask_with_answer([ask], "u1", Answer(id_of(parked), True))
    llm.say("m", text("as you wish"))
    result = client.ask_with_answer([ask], "u1", Answer(id_of(parked), False))
    assert (result.text, len(ask.runs)) == ("as you wish", 1)


@pytest.mark.parametrize("way", ["ask", "supersede", "answer", "stream", "reset and ask"])
def test_a_conversation_of_a_newer_release_is_refused_and_not_touched(
    llm: ScriptedLlm, make_client: MakeClient, way: str
) -> None:
    pay, store = Pay(), MemoryConversationStore()
    client = make_client(conversation_store=store)
    request_id = id_of(park(llm, client, pay))
    newer = store.get("u1")
    newer[-1]["_parked"] = {**newer[-1]["_parked"], "schema": 99, "novelty": True}
    store.save("u1", newer)

    if way == "reset and ask":
        llm.say("m", text("hello"))
        client.conversation(id="u1").reset()
        assert client.ask("hi", id="u1").text == "hello"
        return
    answer = Answer(request_id, True)
    ways: dict[str, Callable[[], object]] = {
        "ask": lambda: client.ask("hi", id="u1", tools=[pay]),
        "supersede": lambda: client.ask("hi", id="u1", tools=[pay], supersede=True),
        "answer": lambda: client.ask_with_answer([pay], "u1", answer),
        "stream": lambda: list(client.stream("hi", id="u1", tools=[pay])),
    }
    with pytest.raises(WireFormatError, match="newer toolnexus"):
        ways[way]()
    assert store.get("u1") == newer
    assert (len(pay.runs), len(llm.requests)) == (1, 1)


# -- what goes wrong on the way -------------------------------------------------------------


@STYLES
@pytest.mark.parametrize("way", ["the same answer", "the error's checkpoint"])
def test_a_provider_that_is_down_after_the_tool_ran_executes_nothing_twice(
    llm: ScriptedLlm, make_client: MakeClient, style: str, way: str
) -> None:
    pay, client = Pay(), make_client(style=style)
    answer = Answer(id_of(park(llm, client, pay)), True)
    llm.say("m", status(500), text("paid"))
    with pytest.raises(LlmError) as caught:
        client.ask_with_answer([pay], "u1", answer)
    assert pay.paid == [(5, answer.id)]

    if way == "the same answer":
        result = client.ask_with_answer([pay], "u1", answer)
        assert result.messages == client.conversation_store.get("u1")
    else:
        assert caught.value.checkpoint is not None
        result = client.resume(caught.value.checkpoint, tools=[pay])
    assert (result.text, pay.paid) == ("paid", [(5, answer.id)])
    assert llm.requests[2].body == llm.requests[1].body


def test_a_different_answer_after_a_failure_is_refused(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, client = Pay(), make_client()
    answer = Answer(id_of(park(llm, client, pay)), True)
    llm.say("m", status(500), text("paid"))
    with pytest.raises(LlmError):
        client.ask_with_answer([pay], "u1", answer)
    with pytest.raises(AlreadyAnswered):
        client.ask_with_answer([pay], "u1", Answer(answer.id, False))
    assert client.ask_with_answer([pay], "u1", answer).text == "paid"


def test_after_a_failure_the_user_may_say_something_new(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, client = Pay(), make_client()
    answer = Answer(id_of(park(llm, client, pay)), True)
    llm.say("m", status(500), text("it was paid"))
    with pytest.raises(LlmError):
        client.ask_with_answer([pay], "u1", answer)

    # Nothing is asked any more, so there is nothing to refuse the text for.
    assert client.conversation(id="u1").pending is None
    assert client.ask("Was it paid?", id="u1", tools=[pay]).text == "it was paid"
    assert llm.requests[-1].tool_results == {"c1": "paid 5"}
    assert llm.requests[-1].prompt == "Was it paid?"


@pytest.mark.parametrize("way", ["the same answer", "another request's answer"])
def test_an_answer_that_was_taken_but_not_acted_on_is_not_lost(
    llm: ScriptedLlm, make_client: MakeClient, way: str
) -> None:
    stop = CancelToken()

    class Stopping(MemoryConversationStore):
        def get(self, conversation_id: str) -> list[dict[str, Any]]:
            try:
                return super().get(conversation_id)
            finally:
                if len(llm.requests) and not pay.paid:
                    stop.cancel("shutting down")  # between the answer and its execution

    pay, client = Pay(), make_client(conversation_store=Stopping())
    calls = [call("pay", {"amount": 5}, "c1"), call("pay", {"amount": 6}, "c2")]
    llm.say("m", tool_calls(*calls[: 1 if way == "the same answer" else 2]))
    parked = client.ask("pay", id="u1", tools=[pay])
    assert parked.checkpoint is not None
    first, *others = (Answer(one.id, True) for one in parked.checkpoint.requests)
    with pytest.raises(Cancelled, match="shutting down"):
        client.ask_with_answer([pay], "u1", first, cancel=stop)
    assert pay.paid == []

    llm.say("m", text("paid"))
    result = client.ask_with_answer([pay], "u1", (others or [first])[0])
    assert (result.status, result.text) == ("done", "paid")
    assert sorted(pay.paid)[0] == (5, first.id)
    assert len(pay.paid) == len(parked.checkpoint.requests)


def test_a_call_that_was_in_flight_is_not_executed_again(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    stop = CancelToken()

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("q", "Sure?"))
        stop.cancel("enough")
        ctx.cancel.raise_if_cancelled()
        return ToolResult.ok()

    pay, client = Probe("pay", work), make_client()
    answer = Answer(id_of(park(llm, client, pay)), True)
    with pytest.raises(Cancelled, match="enough"):
        client.ask_with_answer([pay], "u1", answer, cancel=stop)
    llm.say("m", text("I see"))
    assert client.ask_with_answer([pay], "u1", answer).text == "I see"
    assert len(pay.runs) == 2
    told = llm.requests[1].tool_results["c1"]
    assert told.endswith("while the call was in flight: it may or may not have taken effect")


def test_a_listener_that_fails_costs_nothing_either(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, client = Pay(), make_client()
    answer = Answer(id_of(park(llm, client, pay)), True)
    llm.say("m", text("paid"), text("paid, I said"))
    with pytest.raises(ZeroDivisionError):
        client.ask_with_answer([pay], "u1", answer, on_text=lambda piece: 1 / 0)
    assert client.ask_with_answer([pay], "u1", answer).text == "paid, I said"
    assert len(pay.paid) == 1


class Filling(MemoryConversationStore):
    """Takes so many more saves; after that the disk is full."""

    room = 1_000

    def save(self, conversation_id: str, messages: Any) -> None:
        if self.room == 0:
            raise StoreError("disk full")
        self.room -= 1
        super().save(conversation_id, messages)


def test_what_cannot_be_noted_before_is_not_executed(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, store = Pay(), Filling()
    client = make_client(conversation_store=store)
    answer = Answer(id_of(park(llm, client, pay)), True)
    store.room = 0
    with pytest.raises(StoreError, match="disk full"):
        client.ask_with_answer([pay], "u1", answer)
    assert pay.paid == []

    store.room = 10
    llm.say("m", text("paid"))
    assert client.ask_with_answer([pay], "u1", answer).text == "paid"
    assert len(pay.paid) == 1


def test_a_result_that_cannot_be_saved_is_in_the_error(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, store = Pay(), Filling()
    client = make_client(conversation_store=store)
    answer = Answer(id_of(park(llm, client, pay)), True)
    llm.say("m", text("paid"), text("perhaps"))
    store.room = 1
    with pytest.raises(StoreError, match="disk full") as caught:
        client.ask_with_answer([pay], "u1", answer)
    assert caught.value.result is not None
    assert caught.value.result.text == "paid"

    # Nobody can know any more whether it was executed, so it is not executed again.
    store.room = 10
    assert client.ask_with_answer([pay], "u1", answer).text == "perhaps"
    assert len(pay.paid) == 1
    (told,) = llm.requests[-1].tool_results.values()
    assert "may or may not have taken effect" in told


def test_a_full_disk_does_not_hide_what_the_run_failed_of(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, store = Pay(), Filling()
    client = make_client(conversation_store=store)
    answer = Answer(id_of(park(llm, client, pay)), True)
    llm.say("m", status(500), text("paid"))
    store.room = 1
    with pytest.raises(LlmError) as caught:
        client.ask_with_answer([pay], "u1", answer)

    # The tool ran, and here alone it is known.
    left = caught.value.checkpoint
    assert left is not None
    assert client.resume(left, tools=[pay]).text == "paid"
    assert len(pay.paid) == 1
