"""Budgets: carved at spawn, walked while running, and never a loss of work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from tests.runtime.support import Make, Probe, approve, run_turn, start
from toolnexus import AgentDef, Budget, SpawnError, State, ToolContext, ToolResult
from toolnexus.testing import ScriptedLlm, VirtualClock, call, text, tool_call, tool_calls

REFUSED = "budget exhausted (tokens); partial work preserved"


def test_tokens_and_tool_calls_are_carved_at_spawn(make_runtime: Make) -> None:
    rt = make_runtime(
        AgentDef("lead"),
        AgentDef("w", budget=Budget(max_tokens=500, max_tool_calls=2, max_turns=99)),
    )
    limits = Budget(max_tokens=100, max_tool_calls=7, max_turns=3, max_wall_ms=9)
    lead = rt.spawn(rt.root, "lead", limits).handle
    child = rt.spawn(lead, "w").handle
    assert (child.budget.max_tokens, child.budget.max_tool_calls) == (100, 2)
    bare = rt.spawn(lead, "lead").handle
    assert (bare.budget.max_tokens, bare.budget.max_tool_calls) == (100, 7)
    # What is no pool is not handed down.
    assert (child.budget.max_turns, child.budget.max_wall_ms) == (99, None)
    assert bare.budget.max_turns != 3
    assert rt.trace_has(f"{child.id}: spawned (depth 2, tokens 100)")


def test_a_pool_of_100_leaves_20_after_80(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("w", tool_call("peek"), text("one"), text("two"))
    rt = make_runtime(AgentDef("lead"), AgentDef("w", "", "", "w", tools=[Probe("peek")]))
    lead = rt.spawn(rt.root, "lead", Budget(max_tokens=100)).handle
    first = rt.spawn(lead, "w").handle
    idle = rt.spawn(lead, "w").handle
    assert run_turn(rt, first).status == "done"
    second = rt.spawn(lead, "w").handle
    assert (first.budget.max_tokens, second.budget.max_tokens) == (100, 20)
    assert run_turn(rt, second).status == "done"

    third = rt.spawn(lead, "w")
    assert not third.ok
    assert third.error == "budget exhausted (tokens); incomplete"
    with pytest.raises(SpawnError, match=r"^budget exhausted \(tokens\); incomplete$"):
        _ = third.handle
    assert lead.usage_tree == 120

    # Spawned while there was enough, woken when there is not: the live walk refuses it.
    future = rt.future_result(idle)
    rt.wake(idle, "go")
    result = future.result(LIMIT)
    assert (result.status, result.text) == ("incomplete", REFUSED)
    assert (result.is_error, result.limit) == (True, "tokens")
    assert idle.last_result == result
    assert idle.state is State.IDLE
    assert f"{idle.id}: wake refused SETTLED incomplete (budget tokens)" in rt.trace()
    llm.assert_done()


def test_a_budget_spent_in_mid_turn_keeps_the_work(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("mail"))
    mail = Probe("mail")
    rt = make_runtime(AgentDef("a", tools=[mail], budget=Budget(max_tokens=40)))
    handle, result = start(rt, "a")
    assert (result.status, result.text, result.limit) == ("incomplete", REFUSED, "tokens")
    assert result.is_error
    assert f"{handle.id}: running→idle (INCOMPLETE at tokens 40)" in rt.trace()
    roles = [m["role"] for m in rt.transcript(handle)]
    assert roles == ["user", "assistant", "tool"]
    assert (len(mail.runs), len(llm.requests)) == (1, 1)


@pytest.mark.parametrize("limit", [1, 6, None])
def test_max_turns_is_named_with_its_value(
    llm: ScriptedLlm, make_runtime: Make, limit: int | None
) -> None:
    llm.answer("m", lambda request: tool_call("peek"))
    rt = make_runtime(
        AgentDef("a", tools=[Probe("peek")], budget=Budget(max_turns=limit)),
    )
    handle, result = start(rt, "a")
    calls = limit or 6
    assert (result.status, result.limit) == ("incomplete", "maxTurns")
    assert result.text == "hit maxTurns without a final answer"
    assert len(llm.requests) == result.turns == calls
    assert f"{handle.id}: running→idle (INCOMPLETE at maxTurns {calls})" in rt.trace()


def test_the_tool_call_limit_is_exact(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_calls(call("mail"), call("mail"), call("mail")))
    mail = Probe("mail")
    rt = make_runtime(AgentDef("a", tools=[mail], budget=Budget(max_tool_calls=2)))
    handle, result = start(rt, "a")
    assert len(mail.runs) == 2
    assert (result.status, result.limit) == ("incomplete", "toolCalls")
    assert result.text == "budget exhausted (toolCalls); partial work preserved"
    outputs = [m["content"] for m in rt.transcript(handle) if m["role"] == "tool"]
    assert sorted(outputs)[:2] == ["mail done", "mail done"]
    assert "budget exhausted (toolCalls)" in sorted(outputs)[2]


def test_a_parked_call_is_booked_once(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("charge_card"), tool_call("mail"), text("x"))
    rt = make_runtime(
        AgentDef("a", tools=[Charge(), mail := Probe("mail")]), budget=Budget(max_tool_calls=3)
    )
    handle, parked = start(rt, "a")
    approve(rt, parked.pending)
    assert len(mail.runs) == 1
    assert rt.wait_on(handle, LIMIT).text == "x"


def test_the_wall_budget_counts_running_time_only(llm: ScriptedLlm, make_runtime: Make) -> None:
    clock = VirtualClock()

    def slow(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        clock.advance(0.4)
        return ToolResult.ok("slow")

    llm.say("m", tool_call("slow"), tool_call("charge_card"), text("in time"))
    llm.say("m", tool_call("slow"), tool_call("slow"))
    rt = make_runtime(
        AgentDef("a", tools=[Probe("slow", slow), Charge()], budget=Budget(max_wall_ms=1000)),
        clock=clock,
    )
    handle = rt.spawn(rt.root, "a").handle
    clock.advance(3600.0)  # the window starts at the first turn
    parked = run_turn(rt, handle)
    assert parked.status == "pending"
    clock.advance(86_400.0)  # and parked time is free
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "in time"

    clock.advance(86_400.0)
    result = run_turn(rt, handle)
    assert (result.status, result.limit) == ("incomplete", "wallMs")
    assert rt.trace_has("INCOMPLETE at wallMs 1000")


def test_an_ancestors_budget_stops_a_descendant(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("lead", tool_call("task", {"agent": "w", "prompt": "work"}))
    llm.say("w", tool_call("peek"))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["w"], budget=Budget(max_tokens=80)),
        AgentDef("w", "", "", "w", tools=[Probe("peek")]),
    )
    lead, result = start(rt, "lead")
    assert (result.status, result.limit) == ("incomplete", "tokens")
    (told,) = [m["content"] for m in rt.transcript(lead) if m["role"] == "tool"]
    assert told == f"[incomplete] {REFUSED}"
    assert lead.usage_tree == 80
    llm.assert_done()


REFUSALS = [
    (Budget(max_depth=1), "maxDepth 1 exceeded"),
    (Budget(max_children=1), "maxChildren 1 exceeded"),
    (Budget(max_tool_calls=0), "budget exhausted (toolCalls); incomplete"),
    (Budget(max_tokens=0), "budget exhausted (tokens); incomplete"),
]


@pytest.mark.parametrize(("limits", "why"), REFUSALS)
def test_spawn_refusals_are_data(make_runtime: Make, limits: Budget, why: str) -> None:
    rt = make_runtime(AgentDef("lead"), AgentDef("w"))
    lead = rt.spawn(rt.root, "lead", limits).handle
    if limits.max_children:
        assert rt.spawn(lead, "w").ok
    refused = rt.spawn(lead, "w")
    assert (refused.ok, refused.error) == (False, why)


def test_defaults_are_depth_3_and_any_number_of_children(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("w"))
    one = rt.root
    for _ in range(3):
        one = rt.spawn(one, "w").handle
    assert one.depth == 3
    assert rt.spawn(one, "w").error == "maxDepth 3 exceeded"
    assert all(rt.spawn(rt.root, "w").ok for _ in range(100))


def test_only_live_children_count(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("w"), budget=Budget(max_children=1))
    for number in range(1, 4):
        child = rt.spawn(rt.root, "w").handle
        assert child.id == f"root/w.{number}"
        assert not rt.spawn(rt.root, "w").ok
        rt.close(child)


def test_a_parent_that_is_closed_has_no_more_children(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("w"))
    parent = rt.spawn(rt.root, "w").handle
    rt.close(parent)
    assert rt.spawn(parent, "w").error == "parent closed"


def test_ids_come_from_one_counter_per_parent(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"), AgentDef("b"))
    names = ["a", "b", "a"]
    found = [rt.spawn(rt.root, name).handle.id for name in names]
    assert found == ["root/a.1", "root/b.2", "root/a.3"]
    below = rt.spawn(rt.root.children[1], "a").handle
    assert below.id == "root/b.2/a.1"


def test_the_trace_names_the_limit_that_stopped_the_turn(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("w", tool_call("peek"), text("80 used"), tool_call("peek"))
    rt = make_runtime(AgentDef("lead"), AgentDef("w", "", "", "w", tools=[Probe("peek")]))
    lead = rt.spawn(rt.root, "lead", Budget(max_tokens=100)).handle
    first = rt.spawn(lead, "w").handle
    second = rt.spawn(lead, "w", Budget(max_tokens=90)).handle
    run_turn(rt, first)
    result = run_turn(rt, second)
    assert result.limit == "tokens"
    assert second.usage_total == 40
    assert f"{second.id}: running→idle (INCOMPLETE at tokens 100)" in rt.trace()


def test_a_parents_max_turns_is_not_the_childs(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.answer("m", lambda request: tool_call("peek"))
    rt = make_runtime(AgentDef("lead"), AgentDef("w", tools=[Probe("peek")]), max_turns=2)
    lead = rt.spawn(rt.root, "lead", Budget(max_turns=1)).handle
    child = rt.spawn(lead, "w").handle
    assert run_turn(rt, child).turns == 2
    assert f"{child.id}: running→idle (INCOMPLETE at maxTurns 2)" in rt.trace()
