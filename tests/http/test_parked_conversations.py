"""A conversation that waits for an answer takes no text, unless that drops the question."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.http.test_conversations import Store
from tests.runtime.support import Pay, Probe
from toolnexus import (
    Answer,
    ConversationParked,
    Done,
    LlmClient,
    LlmError,
    NothingSuspended,
    Request,
    RunResult,
    StoreError,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.testing import ScriptedLlm, call, status, text, tool_call, tool_calls

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])
SUPERSEDED = "not executed: the user sent a new message"


def park(llm: ScriptedLlm, client: LlmClient, pay: Pay) -> tuple[str, str]:
    """Park `u1` on two payments beside a finished call; return the requests' ids."""
    calls = (
        call("pay", {"amount": 1}, "c1"),
        call("look", {}, "c2"),
        call("pay", {"amount": 2}, "c3"),
    )
    llm.say("m", tool_calls(*calls))
    result = client.ask("pay", id="u1", tools=[pay, Probe("look")])
    assert result.checkpoint is not None
    one, two = result.checkpoint.requests
    assert result.pending == one
    return one.id, two.id


@STYLES
def test_a_text_to_a_parked_conversation_is_refused_and_changes_nothing(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    store, pay = Store(), Pay()
    client = make_client(conversation_store=store, style=style)
    ids = park(llm, client, pay)
    before = copy.deepcopy(store.kept)

    with pytest.raises(ConversationParked, match=r"Pay 1\?; Pay 2\?") as caught:
        client.ask("hello?", id="u1", tools=[pay])
    with pytest.raises(ConversationParked):
        list(client.stream("hello?", id="u1", tools=[pay]))

    assert tuple(request.id for request in caught.value.requests) == ids
    assert store.log == ["get:u1", "save:u1", "get:u1", "get:u1"]
    assert store.kept == before
    assert len(llm.requests) == 1
    assert pay.paid == []


@STYLES
@pytest.mark.parametrize("streams", [False, True])
def test_superseding_settles_each_open_call_truthfully(
    llm: ScriptedLlm, make_client: MakeClient, style: str, streams: bool
) -> None:
    store, pay = Store(), Pay()
    client = make_client(conversation_store=store, style=style)
    one, _ = park(llm, client, pay)
    llm.say("m", text("as you like"))
    if streams:
        *_, done = client.stream("Never mind.", id="u1", tools=[pay], supersede=True)
        assert isinstance(done, Done)
        assert isinstance(done.result, RunResult)
        result = done.result
    else:
        result = client.ask("Never mind.", id="u1", tools=[pay], supersede=True)

    assert (result.text, result.status) == ("as you like", "done")
    assert llm.requests[1].tool_results == {
        "c1": SUPERSEDED,
        "c2": "look done",
        "c3": SUPERSEDED,
    }
    assert llm.requests[1].prompt == "Never mind."
    assert [one.get("_is_error") for one in result.messages if one["role"] == "tool"] == [
        True,
        None,
        True,
    ]
    with pytest.raises(NothingSuspended):
        client.ask_with_answer([pay], "u1", Answer(one, True))
    assert pay.paid == []
    llm.assert_done()


def test_a_superseding_run_that_raises_leaves_the_question_open(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    store, pay = Store(), Pay()
    client = make_client(conversation_store=store)
    one, two = park(llm, client, pay)
    before = copy.deepcopy(store.kept)
    llm.say("m", status(500), text("paid"))
    with pytest.raises(LlmError):
        client.ask("Never mind.", id="u1", tools=[pay], supersede=True)
    assert store.kept == before

    client.ask_with_answer([pay], "u1", Answer(two, True))
    result = client.ask_with_answer([pay], "u1", Answer(one, True))
    assert (result.text, pay.paid) == ("paid", [(2, two), (1, one)])


def test_superseding_where_nothing_is_asked_changes_nothing(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("a"), text("b"))
    client = make_client()
    client.ask("one", id="u1")
    client.ask("two", id="u1", supersede=True)

    assert [one["content"] for one in llm.requests[1].messages] == ["one", "a", "two"]


def test_what_a_conversation_keeps_for_itself_is_not_sent(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay = Pay()
    client = make_client()
    one, two = park(llm, client, pay)
    llm.say("m", text("paid"), text("b"))
    client.ask_with_answer([pay], "u1", Answer(one, True, {"pin": "4711"}))
    client.ask_with_answer([pay], "u1", Answer(two, True))
    client.ask("more", id="u1")

    for request in llm.requests:
        assert not any(key.startswith("_") for one in request.messages for key in one)
        assert "4711" not in json.dumps(request.body)


@STYLES
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("tools_go_along", [False, True])
def test_a_parked_history_takes_no_text_unless_that_drops_the_question(
    llm: ScriptedLlm, make_client: MakeClient, style: str, streams: bool, tools_go_along: bool
) -> None:
    pay, client = Pay(), make_client(style=style)
    tools = [pay] if tools_go_along else []
    llm.say("m", tool_calls(call("pay", {"amount": 1}, "c1"), call("pay", {"amount": 2}, "c2")))
    parked = client.run("pay", tools=[pay])
    before = copy.deepcopy(parked.messages)

    def say(**options: Any) -> RunResult:
        if not streams:
            return client.run("hello?", tools=tools, history=parked.messages, **options)
        events = client.stream("hello?", tools=tools, history=parked.messages, **options)
        *_, done = events
        assert isinstance(done, Done)
        assert isinstance(done.result, RunResult)
        return done.result

    with pytest.raises(ConversationParked, match=r"Pay 1\?; Pay 2\?") as caught:
        say()
    with pytest.raises(ConversationParked):
        say(supersede=False)
    assert parked.checkpoint is not None
    assert caught.value.requests == parked.checkpoint.requests
    assert (len(llm.requests), parked.messages) == (1, before)

    llm.say("m", text("as you like"))
    assert say(supersede=True).text == "as you like"
    assert llm.requests[1].tool_results == {"c1": SUPERSEDED, "c2": SUPERSEDED}
    assert (parked.messages, pay.paid) == (before, [])


def test_a_stream_on_a_parked_history_is_refused_before_it_is_read(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client = make_client()
    llm.say("m", tool_calls(call("pay", {"amount": 1}, "c1")))
    parked = client.run("pay", tools=[Pay()])
    with pytest.raises(ConversationParked):
        client.stream("hello?", history=parked.messages)


@STYLES
def test_after_a_run_that_hit_a_limit_the_same_answer_again_is_incomplete_too(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    pay, client = Pay(), make_client(max_turns=1, style=style)
    llm.say("m", tool_call("pay", {"amount": 5}))
    parked = client.ask("pay", id="u1", tools=[pay])
    assert parked.pending is not None
    answer = Answer(parked.pending.id, True)
    first = client.ask_with_answer([pay], "u1", answer)
    again = client.ask_with_answer([pay], "u1", answer)

    assert (first.status, first.limit) == ("incomplete", "maxTurns")
    assert (again.status, again.text) == ("incomplete", "")
    assert again.messages == first.messages
    assert (len(pay.paid), len(llm.requests)) == (1, 1)


class Full(Store):
    """A store whose disk is full from the moment that something was done."""

    def __init__(self, done: list[str]) -> None:
        super().__init__()
        self.done = done
        self.is_full = True

    def save(self, id: str, messages: list[Any]) -> None:  # noqa: A002 - as the contract has it
        if self.done and self.is_full:
            raise OSError("disk full")
        super().save(id, messages)


def _cancels(done: list[str], how: str) -> Probe:
    """Return a tool that takes its reservation back where nobody wants to keep it."""

    def keep(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        answer = ctx.answer
        if how == "ask":
            answer = ctx.ask("approval", "Keep?", on_decline="return")
        if answer is None:
            return ToolResult.pending(Request("approval", "Keep?"))
        if not answer.ok:
            done.append("cancelled")
        return ToolResult.ok("done")

    return Probe("keep", keep, handles_decline=how == "handles_decline")


@pytest.mark.parametrize("how", ["ask", "handles_decline"])
def test_a_no_that_the_tool_hears_is_executed_once_though_it_could_not_be_saved(
    llm: ScriptedLlm, make_client: MakeClient, how: str
) -> None:
    done: list[str] = []
    store, probe = Full(done), _cancels(done, how)
    client = make_client(conversation_store=store)
    llm.say("m", tool_call("keep"), text("end"), text("as it may be"))
    result = client.ask("go", id="u1", tools=[probe])
    assert result.pending is not None
    no = Answer(result.pending.id, ok=False)
    with pytest.raises(StoreError, match="disk full"):
        client.ask_with_answer([probe], "u1", no)

    store.is_full = False
    assert client.ask_with_answer([probe], "u1", no).text == "as it may be"

    assert done == ["cancelled"]
    (told,) = llm.requests[-1].tool_results.values()
    assert "it may or may not have taken effect" in told


def test_a_text_after_a_call_whose_end_could_not_be_saved_tells_no_lie(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    done: list[str] = []

    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        done.append("paid")
        return "paid"

    store = Full(done)
    client = make_client(conversation_store=store)
    llm.say("m", tool_call("pay"), text("end"), text("I do not know."))
    result = client.ask("go", id="u1", tools=[pay])
    assert result.pending is not None
    with pytest.raises(StoreError, match="disk full"):
        client.ask_with_answer([pay], "u1", Answer(result.pending.id, ok=True))

    store.is_full = False
    client.ask("Was it paid?", id="u1", tools=[pay])

    assert done == ["paid"]
    (told,) = llm.requests[-1].tool_results.values()
    assert "it may or may not have taken effect" in told
