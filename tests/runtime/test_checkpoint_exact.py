"""A resume goes on exactly where the turn stopped."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge, moves
from tests.runtime.support import Make, Pay, Probe, approve, in_thread, run_turn, start, within
from toolnexus import (
    AgentDef,
    Answer,
    Checkpoint,
    Request,
    State,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import RecordedRequest, ScriptedLlm, call, text, tool_call, tool_calls


def users(request: RecordedRequest) -> list[Any]:
    return [m["content"] for m in request.messages if m["role"] == "user"]


def test_the_users_prompt_is_still_there(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", text("hello"), tool_call("charge_card", id="c1"), text("charged"))
    rt = make_runtime(AgentDef("a", soul="You are careful.", tools=[Charge()]))
    handle, _ = start(rt, "a", "hi")
    parked = run_turn(rt, handle, "Charge 500.")
    approve(rt, parked.pending)

    assert len(llm.requests) == 3
    assert [m["role"] for m in llm.requests[-1].messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
    ]
    assert users(llm.requests[-1]) == ["hi", "Charge 500."]
    assert llm.requests[-1].messages[:4] == llm.requests[-2].messages
    assert llm.requests[-1].tool_results == {"c1": "charged"}
    llm.assert_done()


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_one_mail_where_send_mail_came_before_charge(
    llm: ScriptedLlm, make_runtime: Make, style: str
) -> None:
    llm.say("m", tool_call("send_mail"), tool_call("charge_card"), text("mailed and charged"))
    mail, charge = Probe("send_mail"), Charge()
    rt = make_runtime(AgentDef("a", tools=[mail, charge]), style=style)
    handle, parked = start(rt, "a", "Mail, then charge.")
    assert (parked.turns, parked.total_tokens) == (2, 80)
    approve(rt, parked.pending)

    assert rt.wait_on(handle, LIMIT).text == "mailed and charged"
    assert len(mail.runs) == 1
    assert len(charge.charged) == 1
    assert len(llm.requests) == 3
    assert llm.requests[-1].prompt == "Mail, then charge."
    assert list(llm.requests[-1].tool_results.values()) == ["send_mail done", "charged"]
    assert (handle.turns_total, handle.usage_tree) == (3, 120)
    llm.assert_done()


def test_one_mail_where_both_calls_are_of_one_message(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_calls(call("send_mail"), call("charge_card")), text("done"))
    mail, charge = Probe("send_mail"), Charge()
    rt = make_runtime(AgentDef("a", tools=[mail, charge]))
    _, parked = start(rt, "a")
    assert len(mail.runs) == 1
    approve(rt, parked.pending)
    assert len(mail.runs) == 1
    assert len(charge.charged) == 1
    assert len(llm.requests) == 2
    llm.assert_done()


SAID = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("order", list(itertools.permutations([0, 1])))
def test_first_and_third_of_three_calls_ask(
    llm: ScriptedLlm, make_runtime: Make, order: tuple[int, int], said: tuple[bool, bool]
) -> None:
    llm.say(
        "m",
        tool_calls(
            call("pay", {"amount": 1}, "c1"),
            call("note", {}, "c2"),
            call("pay", {"amount": 3}, "c3"),
        ),
        text("all settled"),
    )
    pay, note = Pay(), Probe("note")
    rt = make_runtime(AgentDef("a", tools=[pay, note]))
    handle, parked = start(rt, "a")

    opened = [one.request for one in rt.pending()]
    assert {one.prompt for one in opened} == {"Pay 1?", "Pay 3?"}
    by_call = {one.call_id: one.request for one in rt.pending()}
    requests = [by_call["c1"], by_call["c3"]]
    assert parked.pending == requests[0], "the first in call order"

    first, second = order
    in_thread(rt.resume, Answer(requests[first].id, ok=said[first])).result(LIMIT)
    assert handle.state is State.SUSPENDED
    assert handle.pending_request == requests[second]
    assert [one.request for one in rt.pending()] == [requests[second]]
    assert len(llm.requests) == 1, "the model waits for all"
    in_thread(rt.resume, Answer(requests[second].id, ok=said[second])).result(LIMIT)

    assert rt.wait_on(handle, LIMIT).text == "all settled"
    wanted = {
        f"c{n}": f"paid {n}" if ok else f"declined/expired: Pay {n}?"
        for n, ok in zip((1, 3), said, strict=True)
    }
    assert llm.requests[-1].tool_results == {
        "c1": wanted["c1"],
        "c2": "note done",
        "c3": wanted["c3"],
    }
    assert list(llm.requests[-1].tool_results) == ["c1", "c2", "c3"]
    assert len(note.runs) == 1
    paid = [(n, r.id) for n, r, ok in zip((1, 3), requests, said, strict=True) if ok]
    assert sorted(pay.paid) == paid
    assert len(llm.requests) == 2
    llm.assert_done()


def test_an_answer_that_comes_while_the_other_is_replayed(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """The second answer is given by the first one's own execution: no lost wake-up."""
    calls = tool_calls(call("pay", {"amount": 1}, "c1"), call("ask", {}, "c2"))
    llm.say("m", calls, text("both"))
    pay = Pay()

    def answer_the_other(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "go?"))
        other = next(one for one in rt.pending() if one.tool == "pay")
        rt.resume(Answer(other.request.id, ok=True))
        return ToolResult.ok("answered")

    rt = make_runtime(AgentDef("a", tools=[pay, Probe("ask", answer_the_other)]))
    handle, _ = start(rt, "a")
    mine = next(one for one in rt.pending() if one.tool == "ask")
    approve(rt, mine.request)
    assert rt.wait_on(handle, LIMIT).text == "both"
    assert llm.requests[-1].tool_results == {"c1": "paid 1", "c2": "answered"}
    llm.assert_done()


def test_the_conversation_is_as_before_while_the_turn_is_parked(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", text("hello"), tool_call("charge_card"), text("charged"))
    rt = make_runtime(AgentDef("a", tools=[Charge()]))
    handle, _ = start(rt, "a", "hi")
    before = rt.transcript(handle)
    assert [m["role"] for m in before] == ["user", "assistant"]
    parked = run_turn(rt, handle, "charge")
    assert rt.transcript(handle) == before
    approve(rt, parked.pending)
    roles = [m["role"] for m in rt.transcript(handle)]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant"]


def test_attempt_and_idempotency_key_of_the_retried_call(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    def ask_once(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "sure?"))
        return ToolResult.ok("did it")

    both = tool_calls(call("ask", {"n": 1}, "c1"), call("ask", {"n": 2}, "c2"))
    llm.say("m", both, text("done"))
    ask = Probe("ask", ask_once)
    rt = make_runtime(AgentDef("a", tools=[ask]))
    start(rt, "a")
    for one in rt.pending():
        approve(rt, one.request)
    by_call: dict[str, list[ToolContext]] = {}
    for _, ctx in ask.runs:
        by_call.setdefault(ctx.call_id, []).append(ctx)
    for contexts in by_call.values():
        assert [ctx.attempt for ctx in contexts] == [1, 2]
        assert len({ctx.idempotency_key for ctx in contexts}) == 1
        assert {ctx.handle_id for ctx in contexts} == {"root/a.1"}
    assert len({ctx.idempotency_key for _, ctx in ask.runs}) == 2


def test_a_turn_that_parks_again_and_again_adds_up(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say(
        "m",
        tool_call("pay", {"amount": 1}),
        tool_call("pay", {"amount": 2}),
        tool_call("pay", {"amount": 3}),
        text("all"),
    )
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay]))
    handle, result = start(rt, "a", "pay thrice")
    for amount in (1, 2, 3):
        assert result.text == f"Pay {amount}?"
        assert (result.turns, result.total_tokens) == (amount, amount * 40)
        approve(rt, result.pending)
        result = rt.wait_on(handle, LIMIT)
    assert (result.status, result.turns, result.total_tokens) == ("done", 4, 160)
    assert [amount for amount, _ in pay.paid] == [1, 2, 3]
    assert users(llm.requests[-1]) == ["pay thrice"]
    parked = ["suspended", "idle", "running"]
    assert moves(rt.trace(), handle.id) == ["idle", "running", *parked * 3, "idle"]


def test_max_turns_counts_over_the_whole_parked_turn(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("charge_card"), tool_call("note"))
    rt = make_runtime(AgentDef("a", tools=[Charge(), Probe("note")]), max_turns=2)
    handle, parked = start(rt, "a")
    approve(rt, parked.pending)
    result = rt.wait_on(handle, LIMIT)
    assert (result.status, result.limit) == ("incomplete", "maxTurns")
    assert len(llm.requests) == 2


def test_the_inbox_of_a_parked_turn_is_in_the_resumed_request(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    from toolnexus import InboxItem

    llm.say("m", tool_call("charge_card"), text("charged"))
    rt = make_runtime(AgentDef("a", tools=[Charge()]))
    handle = rt.spawn(rt.root, "a").handle
    rt.post(handle, InboxItem("bob", "chat", "it is urgent"))
    parked = run_turn(rt, handle, "charge")
    rt.post(handle, InboxItem("eve", "chat", "wait"))
    approve(rt, parked.pending)
    assert "it is urgent" in llm.requests[-1].prompt
    assert llm.requests[-1].prompt == llm.requests[-2].prompt
    assert [item.sender for item in handle.inbox] == ["eve"]


def test_a_parked_turn_is_a_json_value(llm: ScriptedLlm, make_runtime: Make) -> None:
    """What a bare client hands out is the same value that a handle keeps."""
    from toolnexus import LlmClient

    llm.say("m", tool_calls(call("note"), call("charge_card")))
    with LlmClient(base_url=llm.base_url, api_key="k", model="m", retries=0) as client:
        result = within(client.run, "go", tools=[Probe("note"), Charge()])
    saved = result.checkpoint
    assert saved is not None
    again = Checkpoint.from_dict(json.loads(json.dumps(saved.to_dict())))
    assert again == saved
    assert [one.status for one in again.calls] == ["done", "open"]
    assert again.pending == result.pending
