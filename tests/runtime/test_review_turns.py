"""What a turn leaves behind: texts of calls it stopped, retryable work, waits, trace lines."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Pay, Probe, approve, in_thread, run_turn, start, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    ConfigError,
    Handle,
    InboxItem,
    State,
    ToolContext,
    ToolResult,
)
from toolnexus.clock import Signal
from toolnexus.testing import ScriptedLlm, call, status, text, tool_call, tool_calls

PAY_ASKS = tool_call("pay", {"amount": 1}, "c1")
IN_FLIGHT = "interrupted while the call was in flight: it may or may not have taken effect"


def told(rt: AgentRuntime, handle: Handle) -> dict[str, str]:
    """Return the texts of the tool messages that the transcript keeps, by call."""
    messages = rt.transcript(handle)
    return {one["tool_call_id"]: one["content"] for one in messages if one["role"] == "tool"}


# -- what the transcript says of a call that was stopped ---------------------------------------


def test_an_unanswered_call_says_so(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", PAY_ASKS)
    rt = make_runtime(AgentDef("a", tools=[Pay()]))
    handle, _ = start(rt, "a")
    within(rt.interrupt, handle)
    assert told(rt, handle) == {
        "c1": "not executed: interrupted before the question was answered: Pay 1?"
    }


def test_a_call_that_was_answered_and_not_executed_says_so(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """The turn waits for the only place when it is stopped."""
    hold, pay = threading.Event(), Pay()
    llm.say("pay", PAY_ASKS)
    llm.say("work", text("finished").held_by(hold))
    rt = make_runtime(
        AgentDef("a", model="pay", tools=[pay]),
        AgentDef("work", model="work"),
        budget=Budget(max_concurrent=1),
    )
    handle, parked = start(rt, "a")
    worker = rt.spawn(rt.root, "work").handle
    finished = rt.future_result(worker)
    rt.wake(worker, "go")
    llm.wait_asked("work")
    assert parked.pending is not None
    resumed = rt.future_resume(Answer(parked.pending.id, ok=True))
    within(rt.interrupt, handle)
    resumed.result(LIMIT)
    assert told(rt, handle) == {
        "c1": "not executed: interrupted after the question was answered: Pay 1?"
    }
    hold.set()
    assert finished.result(LIMIT).text == "finished"
    assert pay.paid == []
    assert handle.state is State.IDLE


def test_a_call_whose_child_was_not_answered_says_so(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", tool_call("task", {"agent": "a", "prompt": "x"}, "t1"))
    llm.say("pay", PAY_ASKS)
    rt = make_runtime(
        AgentDef("lead", model="lead", team=["a"]), AgentDef("a", model="pay", tools=[Pay()])
    )
    lead, _ = start(rt, "lead")
    within(rt.interrupt, lead)
    assert told(rt, lead) == {
        "t1": "interrupted before the agent's question was answered: Pay 1?"
    }


def test_a_call_in_flight_and_one_not_begun_say_so(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    inside, let_go = threading.Event(), threading.Event()

    def stick(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        inside.set()
        let_go.wait(LIMIT)
        return ToolResult.ok("too late to count")

    mail = Probe("mail")
    llm.say("m", tool_calls(call("stick", {}, "c1"), call("mail", {}, "c2")))
    # The only worker is in the first call, so nobody begins the second.
    rt = make_runtime(AgentDef("a", tools=[Probe("stick", stick), mail]), max_workers=1)
    handle = rt.spawn(rt.root, "a").handle
    end = rt.future_result(handle)
    rt.wake(handle, "go")
    assert inside.wait(LIMIT)
    within(rt.interrupt, handle)
    let_go.set()
    assert end.result(LIMIT).status == "interrupted"
    assert told(rt, handle) == {"c1": IN_FLIGHT, "c2": "not executed: interrupted"}
    assert mail.runs == []


# -- retry and budgets -------------------------------------------------------------------------


def test_a_wake_refused_for_budget_keeps_what_can_be_retried(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    mail = Probe("mail")
    llm.say("m", tool_call("mail", {}, "c1"), status(503), text("mailed"))
    rt = make_runtime(AgentDef("a", tools=[mail]))
    handle, failed = start(rt, "a", "send it")
    assert failed.status == "error"
    rt.root.budget = Budget(max_tokens=40)
    ack = rt.wake(handle, "something else")
    assert (ack.ok, ack.error) == (False, "budget exhausted (tokens); partial work preserved")
    assert within(rt.run_turn, handle, "again").status == "incomplete"

    rt.root.budget = Budget(max_tokens=1000)
    assert within(rt.retry, handle).text == "mailed"
    assert len(mail.runs) == 1
    prompts = [one["content"] for one in llm.requests[-1].messages if one["role"] == "user"]
    assert prompts == ["send it"]
    assert llm.requests[-1].tool_results == {"c1": "mail done"}


def test_a_wake_refused_for_budget_keeps_the_children_of_the_failed_turn(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", tool_call("task", {"agent": "a", "prompt": "x"}), text("all"))
    llm.say("pay", PAY_ASKS, status(503), text("paid"))
    pay = Pay()
    rt = make_runtime(
        AgentDef("lead", model="lead", team=["a"]), AgentDef("a", model="pay", tools=[pay])
    )
    lead, parked = start(rt, "lead")
    (child,) = lead.children
    approve(rt, parked.pending)
    assert rt.wait_on(lead, LIMIT).status == "error"
    rt.root.budget = Budget(max_tokens=40)
    assert not rt.wake(lead, "something else").ok
    assert lead.children == (child,)

    rt.root.budget = Budget(max_tokens=1000)
    assert within(rt.retry, lead).text == "all"
    assert len(pay.paid) == 1


def test_retry_of_a_handle_without_a_turn_changes_nothing(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    before = handle.budget
    with pytest.raises(ConfigError, match="no turn to retry"):
        within(rt.retry, handle, Budget(max_turns=99))
    assert handle.budget == before
    assert handle.state is State.IDLE


def test_retry_where_nothing_failed_changes_nothing(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", text("done"))
    rt = make_runtime(AgentDef("a"))
    handle, done = start(rt, "a")
    before = rt.transcript(handle)
    assert within(rt.retry, handle, Budget(max_turns=99)) == done
    assert rt.transcript(handle) == before
    assert len(llm.requests) == 1


# -- waits -------------------------------------------------------------------------------------


def alive(kind: type) -> int:
    gc.collect()
    # By type: others proxy isinstance, and want to be set up first.
    return sum(issubclass(type(one), kind) for one in gc.get_objects())


def test_waits_that_time_out_leave_nothing_behind(llm: ScriptedLlm, make_runtime: Make) -> None:
    hold = threading.Event()
    llm.say("m", text("late").held_by(hold))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    end = rt.future_result(handle)
    rt.wake(handle, "go")
    llm.wait_asked("m")
    assert rt.wait_on(handle, 0).status == "timeout"
    before = alive(Future), alive(Signal)
    for _ in range(200):
        assert rt.wait_on(handle, 0).status == "timeout"
        assert rt.run_turn(handle, "more", 0).status == "error"
    after = alive(Future), alive(Signal)
    assert after[0] <= before[0] + 5, "futures"
    assert after[1] <= before[1] + 5, "watchers"
    hold.set()
    assert end.result(LIMIT).text == "late"


# -- a bare wake that comes to nothing ---------------------------------------------------------


@pytest.mark.parametrize("ends_as", ["error", "interrupted"])
def test_a_bare_wake_that_is_dropped_leaves_a_trace_line(
    llm: ScriptedLlm, make_runtime: Make, ends_as: str
) -> None:
    hold = threading.Event()
    llm.say("m", status(500).held_by(hold), text("read"))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    end = rt.future_result(handle)
    rt.wake(handle, "go")
    llm.wait_asked("m")
    rt.post(handle, InboxItem("me", "chat", "meanwhile"))
    assert rt.wake(handle).ok
    if ends_as == "interrupted":
        within(rt.interrupt, handle)
    hold.set()
    assert end.result(LIMIT).status == ends_as
    assert f"{handle.id}: bare wake DROPPED (turn {ends_as})" in rt.trace()
    assert [one.text for one in handle.inbox] == ["meanwhile"]
    assert len(llm.requests) == 1

    assert run_turn(rt, handle, None).text == "read"
    assert "meanwhile" in llm.requests[-1].prompt


def test_an_answer_that_came_while_a_replay_waits_for_its_place_is_executed(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """Two questions of one message; both answers arrive while the only place is taken."""
    hold, pay = threading.Event(), Pay()
    asks = [call("pay", {"amount": n}, f"c{n}") for n in (1, 2)]
    llm.say("pay", tool_calls(*asks), text("both paid"))
    llm.say("work", text("finished").held_by(hold))
    rt = make_runtime(
        AgentDef("a", model="pay", tools=[pay]),
        AgentDef("work", model="work"),
        budget=Budget(max_concurrent=1),
    )
    handle, _ = start(rt, "a")
    worker = rt.spawn(rt.root, "work").handle
    rt.wake(worker, "go")
    llm.wait_asked("work")
    answers = [Answer(one.request.id, ok=True) for one in rt.pending()]
    resumed = [rt.future_resume(answers[0])]
    resumed.append(in_thread(rt.resume, answers[1]))
    assert pay.paid == []
    hold.set()
    for one in resumed:
        one.result(LIMIT)
    assert rt.wait_on(handle, LIMIT).text == "both paid"
    assert sorted(amount for amount, _ in pay.paid) == [1, 2]
