"""An answer is bound to one question; what fits nothing changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from tests.runtime.support import Make, Pay, Probe, approve, in_thread, run_turn, start, within
from toolnexus import (
    AgentDef,
    AlreadyAnswered,
    Answer,
    NothingSuspended,
    Request,
    RequestExpired,
    State,
    ToolContext,
    ToolResult,
    UnknownRequest,
)
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    VirtualClock,
    call,
    text,
    tool_call,
    tool_calls,
)


def two_questions(request_id: str | None = None) -> Callable[..., ToolResult]:
    """Return the work of a tool that asks a name and then an age."""
    fixed: dict[str, Any] = {} if request_id is None else {"id": request_id}
    heard: dict[str, list[Any]] = {}

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        got = heard.setdefault(ctx.idempotency_key, [])
        if ctx.answer is not None:
            got.append(ctx.answer.data)
        if len(got) < 2:
            return ToolResult.pending(Request("question", ["name?", "age?"][len(got)], **fixed))
        return ToolResult.ok(f"{got[0]} is {got[1]}")

    return work


@pytest.mark.parametrize("fixed_id", [None, "q"])
def test_the_same_tools_second_question_is_not_approved(
    llm: ScriptedLlm, make_runtime: Make, fixed_id: str | None
) -> None:
    llm.say("m", tool_call("ask", id="c1"), text("thanks"))
    ask = Probe("ask", two_questions(fixed_id))
    rt = make_runtime(AgentDef("a", tools=[ask]))
    handle, first = start(rt, "a")
    assert first.text == "name?"

    approve(rt, first.pending, data="Ann")
    second = rt.wait_on(handle, LIMIT)
    assert (second.status, second.text) == ("pending", "age?")
    assert first.pending is not None
    assert second.pending is not None
    assert second.pending.id != first.pending.id
    within(rt.resume, Answer(first.pending.id, ok=True, data="Ann"))  # delivered twice
    assert len(ask.runs) == 2
    assert handle.state is State.SUSPENDED

    approve(rt, second.pending, data=41)
    assert llm.requests[-1].tool_results == {"c1": "Ann is 41"}
    assert rt.wait_on(handle, LIMIT).text == "thanks"
    assert len(llm.requests) == 2


@pytest.mark.parametrize("fixed_id", [None, "q"])
def test_a_call_of_the_same_message_is_not_approved(
    llm: ScriptedLlm, make_runtime: Make, fixed_id: str | None
) -> None:
    calls = [call("pay", {"amount": n}) for n in (1, 1_000_000)]
    llm.say("m", tool_calls(*calls), text("settled"))
    pay = Pay(request_id=fixed_id)
    rt = make_runtime(AgentDef("a", tools=[pay]))
    handle, _ = start(rt, "a")
    by_amount = {one.arguments["amount"]: one.request for one in rt.pending()}
    assert len({one.id for one in by_amount.values()}) == 2

    approve(rt, by_amount[1])
    assert [amount for amount, _ in pay.paid] == [1]
    assert handle.pending_request == by_amount[1_000_000]
    within(rt.resume, Answer(by_amount[1_000_000].id, ok=False))
    assert [amount for amount, _ in pay.paid] == [1]
    assert list(llm.requests[-1].tool_results.values()) == [
        "paid 1",
        "declined/expired: Pay 1000000?",
    ]


@pytest.mark.parametrize("fixed_id", [None, "q"])
def test_a_sibling_agent_is_not_approved(
    llm: ScriptedLlm, make_runtime: Make, fixed_id: str | None
) -> None:
    llm.answer("pay", _pay_as_told)
    pay = Pay(request_id=fixed_id)
    rt = make_runtime(AgentDef("pay", "", "", "pay", tools=[pay]))
    first, parked = start(rt, "pay", "1")
    second, other = start(rt, "pay", "2")
    assert parked.pending is not None
    assert other.pending is not None
    assert parked.pending.id != other.pending.id

    approve(rt, parked.pending)
    assert [amount for amount, _ in pay.paid] == [1]
    assert first.state is State.IDLE
    assert second.state is State.SUSPENDED
    approve(rt, other.pending)
    assert [amount for amount, _ in pay.paid] == [1, 2]


@pytest.mark.parametrize("fixed_id", [None, "q"])
def test_a_later_turn_is_not_approved(
    llm: ScriptedLlm, make_runtime: Make, fixed_id: str | None
) -> None:
    pay = Pay(request_id=fixed_id)
    llm.say("m", tool_call("pay", {"amount": 1}), text("one"))
    llm.say("m", tool_call("pay", {"amount": 2}), text("two"))
    rt = make_runtime(AgentDef("a", tools=[pay]))
    handle, first = start(rt, "a")
    approve(rt, first.pending)
    second = run_turn(rt, handle)
    assert second.status == "pending"
    assert first.pending is not None
    assert second.pending is not None
    within(rt.resume, Answer(first.pending.id, ok=True))
    assert [amount for amount, _ in pay.paid] == [1]
    assert handle.state is State.SUSPENDED
    assert second.pending.id != first.pending.id
    approve(rt, second.pending)
    assert [amount for amount, _ in pay.paid] == [1, 2]


def _pay_as_told(request: RecordedRequest) -> Reply:
    if request.tool_results:
        return text("settled")
    return tool_call("pay", {"amount": int(request.prompt)})


def test_the_same_answer_again_executes_nothing(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("charge_card"), text("charged"))
    charge = Charge()
    rt = make_runtime(AgentDef("a", tools=[charge]))
    _, parked = start(rt, "a")
    for _ in range(3):
        approve(rt, parked.pending, data={"note": 1})
    assert len(charge.charged) == 1
    assert len(llm.requests) == 2


def test_a_different_answer_raises_already_answered(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("charge_card"), text("not charged"))
    charge = Charge()
    rt = make_runtime(AgentDef("a", tools=[charge]))
    _, parked = start(rt, "a")
    assert parked.pending is not None
    no = Answer(parked.pending.id, ok=False, reason="declined")
    within(rt.resume, no)
    for other in (Answer(no.id, ok=True), Answer(no.id, ok=False, data=0)):
        with pytest.raises(AlreadyAnswered) as caught:
            within(rt.resume, other)
        assert caught.value.recorded == no
    assert charge.charged == []
    assert len(llm.requests) == 2


def test_an_unknown_id_changes_nothing(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("charge_card"))
    rt = make_runtime(AgentDef("a", tools=[Charge()]))
    _, parked = start(rt, "a")
    before = (rt.trace(), rt.list(), rt.pending())
    with pytest.raises(UnknownRequest, match="made-up") as caught:
        within(rt.resume, Answer("made-up", ok=True))
    assert parked.pending is not None
    assert caught.value.open_count == 1
    assert parked.pending.id not in str(caught.value)
    with pytest.raises(UnknownRequest):
        within(rt.future_resume, Answer("made-up", ok=True))
    assert (rt.trace(), rt.list(), rt.pending()) == before


def test_nothing_suspended_says_so(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"))
    with pytest.raises(NothingSuspended, match="made-up"):
        within(rt.resume, Answer("made-up", ok=True))


@pytest.mark.parametrize("ok", [True, False])
def test_past_its_expiry_a_request_can_only_be_declined(
    llm: ScriptedLlm, make_runtime: Make, ok: bool
) -> None:
    clock = VirtualClock()
    expires = clock.now() + timedelta(minutes=5)
    llm.say("m", tool_call("ask"), text("settled"))

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "sure?", expires_at=expires))
        return ToolResult.ok("did it")

    ask = Probe("ask", work)
    rt = make_runtime(AgentDef("a", tools=[ask]), clock=clock)
    handle, parked = start(rt, "a")
    assert parked.pending is not None
    clock.advance(300.0)
    with pytest.raises(RequestExpired, match=r"2026-01-01T00:05:00Z"):
        within(rt.resume, Answer(parked.pending.id, ok=True))
    assert handle.state is State.SUSPENDED
    assert len(ask.runs) == 1
    if not ok:
        within(rt.resume, Answer(parked.pending.id, ok=False, reason="expired"))
        assert rt.wait_on(handle, LIMIT).status == "done"
        assert len(ask.runs) == 1


def test_before_its_expiry_a_request_is_answered(llm: ScriptedLlm, make_runtime: Make) -> None:
    clock = VirtualClock()
    expires = clock.now() + timedelta(minutes=5)
    llm.say("m", tool_call("ask"), text("settled"))

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "sure?", expires_at=expires))
        return ToolResult.ok("did it")

    rt = make_runtime(AgentDef("a", tools=[Probe("ask", work)]), clock=clock)
    handle, parked = start(rt, "a")
    clock.advance(299.0)
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "settled"


@pytest.mark.parametrize("data", [None, 0, "", {}, [], False, {"a": [1, None]}])
def test_any_json_is_an_answers_data(llm: ScriptedLlm, make_runtime: Make, data: Any) -> None:
    llm.say("m", tool_call("charge_card"), text("charged"))
    charge = Charge()
    rt = make_runtime(AgentDef("a", tools=[charge]))
    _, parked = start(rt, "a")
    approve(rt, parked.pending, data=data)
    assert [one.data for one in charge.charged] == [data]
    assert type(charge.charged[0].data) is type(data)


def test_pending_lists_every_open_request_oldest_first(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    clock = VirtualClock()
    llm.answer("pay", _pay_as_told)
    rt = make_runtime(AgentDef("pay", "", "", "pay", tools=[Pay()]), clock=clock)
    for amount in (3, 1, 2):
        start(rt, "pay", str(amount))
        clock.advance(1.0)
    found = rt.pending()
    assert [one.arguments for one in found] == [{"amount": n} for n in (3, 1, 2)]
    assert [one.path for one in found] == [("root", f"pay.{n}") for n in (1, 2, 3)]
    assert {(one.agent, one.tool) for one in found} == {("pay", "pay")}
    assert [(one.asked_at - clock.now()).total_seconds() for one in found] == [-3, -2, -1]
    assert rt.inspect(rt.root) is not None


def test_future_resume_does_not_block(llm: ScriptedLlm, make_runtime: Make) -> None:
    import threading

    hold = threading.Event()
    llm.say("m", tool_call("charge_card"), text("charged").held_by(hold))
    rt = make_runtime(AgentDef("a", tools=[Charge()]))
    handle, parked = start(rt, "a")
    assert parked.pending is not None
    future = rt.future_resume(Answer(parked.pending.id, ok=True))
    llm.wait_asked("m", 2)
    assert not future.done()
    assert in_thread(lambda: handle.state).result(LIMIT) is State.RUNNING
    hold.set()
    assert future.result(LIMIT) is None
    assert handle.state is State.IDLE


def test_a_request_keeps_its_own_data_beside_the_path(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("charge_card", {"amount": 5}))
    rt = make_runtime(AgentDef("a", tools=[Charge()]))
    _, parked = start(rt, "a")
    assert parked.pending is not None
    assert parked.pending.data == {"amount": 5, "path": ["root", "a.1"]}
