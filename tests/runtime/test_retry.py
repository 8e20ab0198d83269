"""An answer that was accepted is never lost: retry finishes the work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from tests.runtime.support import Make, Probe, approve, chain_of, run_turn, start, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    ConfigError,
    Handle,
    Request,
    State,
)
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    status,
    text,
    tool_call,
    tool_calls,
)

WAYS = ["retry the top", "retry the leaf", "the same answer"]


def go_on(
    way: str, rt: AgentRuntime, top: Handle, leaf: Handle, request: Request | None
) -> None:
    if way == "retry the top":
        within(rt.retry, top)
    elif way == "retry the leaf":
        within(rt.retry, leaf)
    else:
        approve(rt, request)


def down_to(rt: AgentRuntime, top: Handle) -> Handle:
    leaf = top
    while leaf.children:
        leaf = leaf.children[0]
    return leaf


@pytest.mark.parametrize("workers", [1, 32])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("failures", [1, 2])
def test_a_provider_that_is_down_at_the_resume_costs_nothing(
    llm: ScriptedLlm, make_runtime: Make, failures: int, depth: int, way: str, workers: int
) -> None:
    for level in range(1, depth):
        ask = tool_call("task", {"agent": f"d{level + 1}", "prompt": "x"})
        llm.say(f"d{level}", ask, text(f"done {level}"))
    leaf_name = f"d{depth}"
    llm.say(leaf_name, tool_calls(call("mail"), call("charge_card")))
    llm.say(leaf_name, *[status(503)] * failures, text("leaf done"))
    mail, charge = Probe("mail"), Charge()
    rt = make_runtime(*chain_of(depth, [mail, charge]), max_workers=workers)
    top, parked = start(rt, "d1")
    leaf = down_to(rt, top)
    approve(rt, parked.pending)

    for _ in range(failures):
        assert top.state is State.IDLE
        result = rt.wait_on(top, LIMIT)
        assert (result.status, result.is_error) == ("error", True)
        assert "503" in result.text
        assert len(charge.charged) == 1
        go_on(way, rt, top, leaf, parked.pending)
    result = rt.wait_on(top, LIMIT)
    assert (result.status, result.text) == ("done", "leaf done" if depth == 1 else "done 1")
    assert (len(mail.runs), len(charge.charged)) == (1, 1)
    assert len(llm.requests) == 2 * depth + failures
    assert (result.turns, result.total_tokens) == (2, 80 * depth)
    assert rt.list()[1:] == ()
    llm.assert_done()


@pytest.mark.parametrize("way", WAYS)
def test_a_provider_that_is_down_for_an_ancestor(
    llm: ScriptedLlm, make_runtime: Make, way: str
) -> None:
    llm.say("d1", tool_call("task", {"agent": "d2", "prompt": "x"}), text("done 1"))
    ask = tool_call("task", {"agent": "d3", "prompt": "x"})
    llm.say("d2", ask, status(503), text("done 2"))
    llm.say("d3", tool_call("charge_card"), text("done 3"))
    charge = Charge()
    rt = make_runtime(*chain_of(3, [charge]))
    top, parked = start(rt, "d1")
    middle = top.children[0]
    approve(rt, parked.pending)
    assert rt.wait_on(top, LIMIT).status == "error"
    go_on(way, rt, top, middle, parked.pending)
    assert rt.wait_on(top, LIMIT).text == "done 1"
    assert len(charge.charged) == 1
    assert len(llm.requests) == 7
    llm.assert_done()


@pytest.mark.in_memory
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_budget_that_is_spent_at_the_resume_costs_nothing(
    llm: ScriptedLlm, make_runtime: Make, depth: int, way: str
) -> None:
    for level in range(1, depth):
        ask = tool_call("task", {"agent": f"d{level + 1}", "prompt": "x"})
        llm.say(f"d{level}", ask, text(f"done {level}"))
    llm.say(f"d{depth}", tool_call("charge_card"), text("leaf done"))
    charge = Charge()
    rt = make_runtime(*chain_of(depth, [charge]))
    top = rt.spawn(rt.root, "d1").handle
    leaf_budget = Budget(max_tokens=40 * depth)
    rt.root.budget = leaf_budget
    parked = run_turn(rt, top)
    leaf = down_to(rt, top)
    approve(rt, parked.pending)
    result = rt.wait_on(top, LIMIT)
    assert (result.status, result.limit) == ("incomplete", "tokens")
    assert len(charge.charged) == 1
    assert len(llm.requests) == depth

    rt.root.budget = Budget(max_tokens=10_000)
    leaf.budget = Budget(max_tokens=10_000)
    go_on(way, rt, top, leaf, parked.pending)
    result = rt.wait_on(top, LIMIT)
    assert (result.status, result.text) == ("done", "leaf done" if depth == 1 else "done 1")
    assert len(charge.charged) == 1
    assert len(llm.requests) == 2 * depth


def test_retry_of_a_turn_that_failed_before_the_first_reply(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", status(500), text("at last"))
    rt = make_runtime(AgentDef("a"))
    handle, failed = start(rt, "a", "do it")
    assert failed.status == "error"
    assert within(rt.retry, handle).text == "at last"
    assert llm.requests[-1].messages == [{"role": "user", "content": "do it"}]


def test_retry_of_a_turn_whose_tools_have_run(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("mail"), status(500), text("mailed"))
    mail = Probe("mail")
    rt = make_runtime(AgentDef("a", tools=[mail]))
    handle, failed = start(rt, "a", "do it")
    assert failed.status == "error"
    assert within(rt.retry, handle).text == "mailed"
    assert len(mail.runs) == 1
    assert llm.requests[-1].messages == llm.requests[-2].messages
    roles = [m["role"] for m in rt.transcript(handle)]
    assert roles == ["user", "assistant", "tool", "assistant"]


def test_retry_after_an_interrupt_asks_about_what_was_withdrawn(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("charge_card"), text("went on"))
    charge = Charge()
    rt = make_runtime(AgentDef("a", tools=[charge]))
    handle, _ = start(rt, "a", "charge")
    within(rt.interrupt, handle)
    result = within(rt.retry, handle)
    assert result.text == "went on"
    assert charge.charged == []
    (told,) = llm.requests[-1].tool_results.values()
    assert "not executed" in told


def test_retry_where_nothing_failed_gives_the_last_result(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", text("x"))
    rt = make_runtime(AgentDef("a"))
    fresh = rt.spawn(rt.root, "a").handle
    with pytest.raises(ConfigError):
        within(rt.retry, fresh)
    handle, result = start(rt, "a")
    assert within(rt.retry, handle) == result
    assert len(llm.requests) == 1


def test_retry_of_a_parked_turn_changes_nothing(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("charge_card"))
    rt = make_runtime(AgentDef("a", tools=[Charge()]))
    handle, parked = start(rt, "a")
    assert within(rt.retry, handle) == parked
    assert handle.state is State.SUSPENDED
    assert len(llm.requests) == 1


def test_a_new_prompt_after_a_failure_goes_on_from_what_was_kept(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("mail"), status(500), text("new turn"))
    mail = Probe("mail")
    rt = make_runtime(AgentDef("a", tools=[mail]))
    handle, _ = start(rt, "a", "do it")
    assert run_turn(rt, handle, "never mind").text == "new turn"
    roles = [m["role"] for m in llm.requests[-1].messages]
    assert roles == ["user", "assistant", "tool", "user"]
    within(rt.retry, handle)
    assert len(llm.requests) == 3


def test_a_new_prompt_for_the_parent_gives_the_stalled_child_up(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", tool_call("task", {"agent": "pay", "prompt": "x"}), text("something else"))
    llm.say("pay", tool_call("charge_card"), status(500))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"]),
        AgentDef("pay", "", "", "pay", tools=[Charge()]),
    )
    lead, parked = start(rt, "lead")
    child = lead.children[0]
    approve(rt, parked.pending)
    assert rt.wait_on(lead, LIMIT).status == "error"
    assert run_turn(rt, lead, "do something else").text == "something else"
    assert child.state is State.CLOSED
    assert lead.children == ()
    approve(rt, parked.pending)  # delivered once more, long after
    assert len(llm.requests) == 4


def test_the_first_of_two_answers_meets_a_provider_that_is_down(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """Two children ask; one's provider is down when it is answered, the other goes on."""
    tasks = [call("task", {"agent": name, "prompt": "x"}) for name in ("p1", "p2")]
    llm.say("lead", tool_calls(*tasks), text("both"))
    llm.say("p1", tool_call("charge_card"), status(503), text("one"))
    llm.say("p2", tool_call("charge_card"), text("two"))
    charge = Charge()
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["p1", "p2"]),
        AgentDef("p1", "", "", "p1", tools=[charge]),
        AgentDef("p2", "", "", "p2", tools=[charge]),
    )
    lead, _ = start(rt, "lead")
    asked = {one.agent: one.request for one in rt.pending()}
    approve(rt, asked["p1"])
    assert [one.agent for one in rt.pending()] == ["p2"], "the other question stays open"
    approve(rt, asked["p2"])
    within(rt.retry, lead)
    assert rt.wait_on(lead, LIMIT).text == "both"
    assert len(charge.charged) == 2
    assert list(llm.requests[-1].tool_results.values()) == ["one", "two"]
    llm.assert_done()


def test_a_down_provider_in_a_fresh_delegation_is_the_parents_to_judge(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", tool_call("task", {"agent": "w", "prompt": "x"}), text("without it"))
    llm.say("w", status(500))
    rt = make_runtime(AgentDef("lead", "", "", "lead", team=["w"]), AgentDef("w", "", "", "w"))
    lead, result = start(rt, "lead")
    assert result.text == "without it"
    (told,) = llm.requests[-1].tool_results.values()
    assert told.startswith("[error] LLM 500")
    assert lead.children == ()


def test_an_accepted_decline_survives_a_provider_that_is_down(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("charge_card"), status(503), text("not charged"))
    charge = Charge()
    rt = make_runtime(AgentDef("a", tools=[charge]))
    handle, parked = start(rt, "a")
    assert parked.pending is not None
    within(rt.resume, Answer(parked.pending.id, ok=False))
    assert rt.wait_on(handle, LIMIT).status == "error"
    assert within(rt.retry, handle).text == "not charged"
    assert charge.charged == []


def test_retried_work_can_ask_again(llm: ScriptedLlm, make_runtime: Make) -> None:
    """The leaf asks a second question after the retry: the whole chain parks again."""

    def pay(request: RecordedRequest) -> Reply:
        return text("paid twice")

    llm.say("lead", tool_call("task", {"agent": "pay", "prompt": "x"}), text("all"))
    llm.say("pay", tool_call("charge_card"), status(503), tool_call("charge_card"))
    llm.answer("pay", pay)
    charge = Charge()
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"]),
        AgentDef("pay", "", "", "pay", tools=[charge]),
    )
    lead, parked = start(rt, "lead")
    approve(rt, parked.pending)
    again: Any = within(rt.retry, lead)
    assert again.status == "pending"
    assert lead.state is State.SUSPENDED
    approve(rt, again.pending)
    assert rt.wait_on(lead, LIMIT).text == "all"
    assert len(charge.charged) == 2


def test_retry_of_a_parked_parent_retries_the_child_that_failed(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    tasks = [call("task", {"agent": name, "prompt": "x"}) for name in ("p1", "p2")]
    llm.say("lead", tool_calls(*tasks), text("both"))
    llm.say("p1", tool_call("charge_card"), status(503), text("one"))
    llm.say("p2", tool_call("charge_card"), text("two"))
    charge = Charge()
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["p1", "p2"]),
        AgentDef("p1", "", "", "p1", tools=[charge]),
        AgentDef("p2", "", "", "p2", tools=[charge]),
    )
    lead, _ = start(rt, "lead")
    asked = {one.agent: one.request for one in rt.pending()}
    approve(rt, asked["p1"])
    still: Any = within(rt.retry, lead)
    assert still.status == "pending"
    assert still.pending == asked["p2"]
    assert len(llm.requests_of("p1")) == 3
    approve(rt, asked["p2"])
    assert rt.wait_on(lead, LIMIT).text == "both"
    assert len(charge.charged) == 2
    llm.assert_done()
