"""A parked run of a bare client goes on from its checkpoint, and repeats nothing."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import MakeClient
from tests.runtime.support import Pay, Probe
from toolnexus import (
    AlreadyAnswered,
    Answer,
    Cancelled,
    CancelToken,
    Checkpoint,
    ConfigError,
    LlmClient,
    NothingSuspended,
    Request,
    RequestExpired,
    RunResult,
    ToolContext,
    ToolResult,
    UnknownRequest,
    WireFormatError,
)
from toolnexus.checkpoint import CURRENT_SCHEMA
from toolnexus.testing import (
    Reply,
    ScriptedLlm,
    VirtualClock,
    call,
    text,
    tool_call,
    tool_calls,
)

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])
BY_JSON = pytest.mark.parametrize("by_json", [False, True], ids=["value", "json"])


def saved(result: RunResult, by_json: bool = True) -> Any:
    """Return the checkpoint as it is, or as another process would read it."""
    assert result.checkpoint is not None
    return json.loads(json.dumps(result.checkpoint.to_dict())) if by_json else result.checkpoint


def only_id(result: RunResult) -> str:
    assert result.pending is not None
    return result.pending.id


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without what the library notes in them for itself."""
    return [{k: v for k, v in one.items() if not k.startswith("_")} for one in messages]


TWO_ROUNDS: tuple[Reply, ...] = (
    tool_calls(
        call("look", {"n": 1}, "c1"),
        call("pay", {"amount": 5}, "c2"),
        call("look", {"n": 2}, "c3"),
        content="I look.",
    ),
    tool_call("pay", {"amount": 6}, "c4"),
    text("all paid"),
)


@STYLES
@BY_JSON
def test_a_resumed_run_is_the_run_that_was_answered_inline(
    llm: ScriptedLlm, make_client: MakeClient, style: str, by_json: bool
) -> None:
    look, pay = Probe("look"), Pay()
    llm.say("m", *TWO_ROUNDS)
    inline = make_client(style=style, wait_for=lambda r: Answer(r.id, True)).run(
        "go", tools=[look, pay]
    )
    asked_inline = [request.body for request in llm.requests]
    assert len(look.runs) == 2
    look.runs.clear()
    pay.runs.clear()

    llm.say("m", *TWO_ROUNDS)
    client = make_client(style=style)
    result = client.run("go", tools=[look, pay])
    for turns in (1, 2):
        assert (result.status, result.turns) == ("pending", turns)
        answer = Answer(only_id(result), True)
        result = client.resume(saved(result, by_json), answer, tools=[look, pay])

    assert [request.body for request in llm.requests[3:]] == asked_inline
    assert sorted(args["n"] for args, _ in look.runs) == [1, 2]
    assert [args["amount"] for args, _ in pay.runs] == [5, 5, 6, 6]
    assert (result.text, result.status) == ("all paid", "done")
    assert plain(result.messages) == plain(inline.messages)
    assert (result.turns, result.usage, result.tool_calls) == (
        inline.turns,
        inline.usage,
        inline.tool_calls,
    )
    assert (result.pending, result.checkpoint) == (None, None)


def test_the_halted_call_is_executed_once_more_as_the_same_call(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay = Pay()
    llm.say("m", tool_call("pay", {"amount": 5}), text("paid"))
    client = make_client()
    parked = client.run("go", tools=[pay])
    client.resume(saved(parked), Answer(only_id(parked), True, {"by": "ann"}), tools=[pay])

    (_, first), (args, second) = pay.runs
    assert args == {"amount": 5}
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.idempotency_key == second.idempotency_key
    assert first.call_id == second.call_id
    assert second.answer == Answer(only_id(parked), True, {"by": "ann"})
    assert second.request == parked.pending


class Gated:
    """A model in this process that asks for payments and then is content."""

    def __init__(self, kinds: list[str]) -> None:
        self.kinds, self.asked = kinds, 0

    def __call__(self, body: Any) -> dict[str, Any]:
        self.asked += 1
        if body["messages"][-1]["role"] == "tool":
            return {"text": "done"}
        calls = [
            {"name": kind, "arguments": {"amount": number}}
            for number, kind in enumerate(self.kinds)
        ]
        return {"tool_calls": calls}


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_requests_are_answered_in_any_order_and_each_answer_reaches_its_own_call(
    data: st.DataObject,
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(["pay", "look"]), min_size=1, max_size=5))
    kinds.append("pay")
    amounts = [number for number, kind in enumerate(kinds) if kind == "pay"]
    order = data.draw(st.permutations(amounts))
    says = data.draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    model, pay, look = Gated(kinds), Pay(), Probe("look")

    with LlmClient.in_process(model="m", generate=model) as client:
        result = client.run("go", tools=[pay, look])
        assert result.checkpoint is not None
        requests = dict(zip(amounts, result.checkpoint.requests, strict=True))
        for number, (amount, ok) in enumerate(zip(order, says, strict=True)):
            assert result.status == "pending"
            waiting = [requests[one] for one in amounts if one not in order[:number]]
            assert result.pending == waiting[0]
            answer = Answer(requests[amount].id, ok)
            result = client.resume(saved(result), answer, tools=[pay, look])

    assert (result.status, result.text, model.asked) == ("done", "done", 2)
    yes = dict(zip(order, says, strict=True))
    assert pay.paid == [(one, requests[one].id) for one in order if yes[one]]
    assert len(look.runs) == kinds.count("look")
    results = [one["content"] for one in result.messages if one["role"] == "tool"]
    assert results == [
        "look done"
        if kind == "look"
        else f"paid {number}"
        if yes[number]
        else f"declined/expired: Pay {number}?"
        for number, kind in enumerate(kinds)
    ]


@STYLES
def test_a_no_executes_nothing_and_the_model_reads_it(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    pay = Pay()
    llm.say("m", tool_call("pay", {"amount": 5}, "c1"), text("as you wish"))
    client = make_client(style=style)
    parked = client.run("go", tools=[pay])
    answer = Answer(only_id(parked), False, {"message": "too much"}, "declined")
    result = client.resume(saved(parked), answer, tools=[pay])

    assert (result.text, len(pay.runs)) == ("as you wish", 1)
    assert llm.requests[1].tool_results == {
        "c1": "declined/expired: Pay 5? (declined: too much)"
    }
    assert result.messages[2]["_is_error"] is True


def test_a_tool_that_handles_a_no_speaks_for_itself(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("q", "Sure?"))
        return ToolResult.ok(f"heard {ctx.answer.ok} {ctx.answer.reason}")

    ask = Probe("ask", work, handles_decline=True)
    llm.say("m", tool_call("ask", {}, "c1"), text("ok"))
    client = make_client()
    parked = client.run("go", tools=[ask])
    client.resume(saved(parked), Answer(only_id(parked), False, reason="no"), tools=[ask])
    assert llm.requests[1].tool_results == {"c1": "heard False no"}


@BY_JSON
def test_a_second_question_parks_again_and_the_first_answer_does_not_fit_it(
    llm: ScriptedLlm, make_client: MakeClient, by_json: bool
) -> None:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.attempt < 3:
            return ToolResult.pending(Request("q", f"Question {ctx.attempt}?", id="same"))
        assert ctx.answer is not None
        return ToolResult.ok(str(ctx.answer.data))

    ask = Probe("ask", work)
    llm.say("m", tool_call("ask", {}, "c1"), text("ok"))
    client = make_client()
    one = client.run("go", tools=[ask])
    first = Answer(only_id(one), True, "one")
    two = client.resume(saved(one, by_json), first, tools=[ask])
    assert (two.status, two.text) == ("pending", "Question 2?")
    assert only_id(two) != first.id

    again = client.resume(saved(two, by_json), first, tools=[ask])
    assert (again.status, again.pending, len(ask.runs)) == ("pending", two.pending, 2)
    with pytest.raises(AlreadyAnswered):
        client.resume(saved(two), Answer(first.id, False), tools=[ask])

    three = client.resume(saved(two, by_json), Answer(only_id(two), True, "two"), tools=[ask])
    assert (three.text, len(ask.runs)) == ("ok", 3)
    assert llm.requests[1].tool_results == {"c1": "two"}


def test_after_its_time_a_request_can_only_be_declined(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    clock = VirtualClock()
    until = clock.now() + timedelta(hours=1)

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("q", "Sure?", expires_at=until))
        return ToolResult.ok("did it")

    ask = Probe("ask", work)
    llm.say("m", tool_call("ask", {}, "c1"), text("in time"), text("too late"))
    client = make_client(clock=clock)
    parked = client.run("go", tools=[ask])
    yes, no = (Answer(only_id(parked), ok) for ok in (True, False))
    clock.advance(3599)
    assert client.resume(saved(parked), yes, tools=[ask]).text == "in time"

    clock.advance(1)
    with pytest.raises(RequestExpired):
        client.resume(saved(parked), yes, tools=[ask])
    assert (len(ask.runs), len(llm.requests)) == (2, 2)
    assert client.resume(saved(parked), no, tools=[ask]).text == "too late"
    assert llm.requests[2].tool_results == {"c1": "declined/expired: Sure?"}


def test_an_answer_that_fits_nothing_executes_nothing(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay = Pay()
    llm.say("m", tool_call("pay", {"amount": 5}), text("done"))
    client = make_client()
    parked = client.run("go", tools=[pay])
    with pytest.raises(UnknownRequest):
        client.resume(saved(parked), Answer("made-up", True), tools=[pay])
    with pytest.raises(ConfigError, match="Answer"):
        client.resume(saved(parked), "yes", tools=[pay])  # type: ignore[arg-type]
    unanswered = client.resume(saved(parked), tools=[pay])
    assert (unanswered.status, unanswered.pending) == ("pending", parked.pending)
    settled = Checkpoint(run="r", base=0, messages=({"role": "user", "content": "go"},))
    with pytest.raises(NothingSuspended):
        client.resume(settled, Answer("made-up", True))

    assert (len(pay.runs), len(llm.requests)) == (1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": CURRENT_SCHEMA + 1}, "newer toolnexus"),
        ({"schema": 99, "novelty": True}, "newer toolnexus"),
        ({"schema": None}, "cannot be read"),
        ({"calls": "x"}, "calls"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_refused(
    llm: ScriptedLlm, make_client: MakeClient, change: dict[str, Any], message: str
) -> None:
    pay = Pay()
    llm.say("m", tool_call("pay", {"amount": 5}))
    client = make_client()
    parked = client.run("go", tools=[pay])
    with pytest.raises(WireFormatError, match=message):
        client.resume({**saved(parked), **change}, Answer(only_id(parked), True), tools=[pay])
    assert (len(pay.runs), len(llm.requests)) == (1, 1)


def test_a_tool_that_is_gone_is_an_error_that_the_model_reads(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, look = Pay(), Probe("look")
    llm.say("m", tool_calls(call("pay", {"amount": 5}, "c1"), call("look", {}, "c2")))
    llm.say("m", text("a pity"))
    client = make_client()
    parked = client.run("go", tools=[pay, look])
    result = client.resume(saved(parked), Answer(only_id(parked), True), tools=[look])

    assert (result.text, result.status) == ("a pity", "done")
    gone = llm.requests[1].tool_results
    assert gone == {"c1": "Unknown tool: pay (no longer available)", "c2": "look done"}
    assert (pay.paid, len(look.runs)) == ([], 1)


def test_arguments_that_no_longer_fit_are_not_executed(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, newer = Pay(), Pay()
    newer.input_schema = {
        "type": "object",
        "properties": {"amount": {"type": "integer", "maximum": 3}},
    }
    llm.say("m", tool_call("pay", {"amount": 5}, "c1"), text("a pity"))
    client = make_client()
    parked = client.run("go", tools=[pay])
    result = client.resume(saved(parked), Answer(only_id(parked), True), tools=[newer])

    assert (result.text, newer.runs) == ("a pity", [])
    assert "maximum" in llm.requests[1].tool_results["c1"]


def test_text_of_a_resumed_run_is_told_as_it_comes(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, pieces = Pay(), list[str]()
    llm.say("m", tool_call("pay", {"amount": 5}), text("all is paid"))
    client = make_client()
    parked = client.run("go", tools=[pay])
    answer = Answer(only_id(parked), True)
    client.resume(saved(parked), answer, tools=[pay], on_text=pieces.append)
    assert "".join(pieces) == "all is paid"


def test_run_with_answer_tells_its_text_and_can_be_stopped(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, stop, pieces = Pay(), CancelToken(), list[str]()
    llm.say("m", tool_call("pay", {"amount": 5}), text("all is paid"), text("never read"))
    client = make_client()
    parked = client.run("go", tools=[pay])
    assert parked.pending is not None
    given = ([pay], parked.messages, parked.pending, Answer(parked.pending.id, True))
    result = client.run_with_answer(*given, on_text=pieces.append, cancel=CancelToken())
    assert ("".join(pieces), result.text) == ("all is paid", "all is paid")
    assert len(pieces) > 1

    with pytest.raises(Cancelled, match="enough"):
        client.run_with_answer(*given, on_text=lambda piece: stop.cancel("enough"), cancel=stop)
    with pytest.raises(Cancelled, match="enough"):
        client.run_with_answer(*given, cancel=stop)
    assert (len(llm.requests), len(pay.paid)) == (3, 2)


def test_a_models_thoughts_go_back_to_it_as_they_came(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay = Pay()
    asks = tool_call("pay", {"amount": 5}, content="I pay.").with_thinking("hm")
    llm.say("m", asks, text("done"))
    client = make_client(style="anthropic")
    parked = client.run("go", tools=[pay])
    client.resume(saved(parked), Answer(only_id(parked), True), tools=[pay])
    (_, halted, _) = llm.requests[1].messages
    assert [block["type"] for block in halted["content"]] == ["thinking", "text", "tool_use"]
    assert halted["content"][0]["thinking"] == "hm"
