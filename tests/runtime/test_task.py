"""`task`: delegation, and the reattachment of a halted call to its child."""

from __future__ import annotations

from typing import Any

from tests.conftest import LIMIT
from tests.helpers import Charge, moves
from tests.runtime.support import Make, Pay, approve, run_turn, start, within
from toolnexus import AgentDef, AgentRuntime, Answer, Budget, ToolResult
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    text,
    tool_call,
    tool_calls,
)


def task(agent: str, prompt: str, call_id: str | None = None) -> Reply:
    return tool_call("task", {"agent": agent, "prompt": prompt}, call_id)


def lead_and_pay(make_runtime: Make, tool: Any, **options: Any) -> AgentRuntime:
    return make_runtime(
        AgentDef("lead", "leads", "", "lead", team=["pay"]),
        AgentDef("pay", "pays", "", "pay", tools=[tool]),
        **options,
    )


def test_the_tool_lists_the_team_sorted(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", text("x"))
    rt = make_runtime(
        AgentDef("lead", team=["zed", "abe"]),
        AgentDef("zed", "does z"),
        AgentDef("abe", "does a"),
        AgentDef("out", "is not in it"),
    )
    start(rt, "lead")
    (tool,) = llm.requests[0].tools
    function = tool["function"]
    assert function["name"] == "task"
    assert "abe: does a; zed: does z" in function["description"]
    assert "out" not in function["description"].split()
    assert function["parameters"]["required"] == ["agent", "prompt"]


def test_an_agent_without_a_team_has_no_task_tool(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", text("x"))
    rt = make_runtime(AgentDef("a"))
    start(rt, "a")
    assert "tools" not in llm.requests[0].body


def test_an_agent_out_of_the_team_is_refused(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", task("out", "x", "c1"), text("never mind"))
    rt = make_runtime(
        AgentDef("lead", team=["zed", "abe"]), AgentDef("zed"), AgentDef("abe"), AgentDef("out")
    )
    _, result = start(rt, "lead")
    assert result.text == "never mind"
    assert llm.requests[-1].tool_results == {
        "c1": 'agent "out" not in this agent\'s team (abe, zed)'
    }
    assert [view.agent for view in rt.list()] == ["lead"]


def test_the_parents_transcript_gains_one_message_with_metadata(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    seen: list[ToolResult] = []

    class Watch:
        def after_tool(self, call: Any, args: Any, result: ToolResult) -> None:
            seen.append(result)

    llm.say("lead", task("w", "look", "c1"), text("done"))
    llm.say("w", text("found it"))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["w"]), AgentDef("w", "", "", "w"), hooks=Watch()
    )
    lead, _ = start(rt, "lead")
    roles = [m["role"] for m in rt.transcript(lead)]
    assert roles == ["user", "assistant", "tool", "assistant"]
    (result,) = seen
    assert (result.output, result.is_error) == ("found it", False)
    assert result.metadata is not None
    assert {"agent": "w", "turns": 1, "totalTokens": 40}.items() <= result.metadata.items()
    assert llm.requests_of("w")[0].prompt == "look"


def test_a_result_that_is_not_done_says_its_status(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", task("w", "look", "c1"), text("done"))
    llm.say("w", tool_call("nothing"))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["w"]),
        AgentDef("w", "", "", "w", budget=Budget(max_turns=1)),
    )
    start(rt, "lead")
    assert llm.requests[-1].tool_results == {
        "c1": "[incomplete] hit maxTurns without a final answer"
    }


def test_a_refused_spawn_is_an_error_result(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", task("lead", "again", "c1"), text("deep enough"))
    rt = make_runtime(AgentDef("lead", team=["lead"]), budget=Budget(max_depth=1))
    _, result = start(rt, "lead")
    assert result.text == "deep enough"
    assert "maxDepth 1 exceeded" in llm.requests[-1].tool_results["c1"]


def test_a_definition_inherits_the_model_of_the_nearest_above(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("big", task("w", "look"), text("from w"), text("from lead"))
    rt = make_runtime(AgentDef("lead", "", "", "big", team=["w"]), AgentDef("w"))
    _, result = start(rt, "lead")
    assert result.text == "from lead"
    assert {request.model for request in llm.requests} == {"big"}


def test_two_equal_tasks_of_one_turn_are_two_children(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    equal = {"agent": "pay", "prompt": "pay 5"}
    llm.say("lead", tool_calls(call("task", equal, "c1"), call("task", equal, "c2")))
    llm.say("lead", text("both"))
    counter = iter(range(1, 9))

    def pay(request: RecordedRequest) -> Reply:
        if request.tool_results:
            return text(*request.tool_results.values())
        return tool_call("pay", {"amount": next(counter)})

    llm.answer("pay", pay)
    tool = Pay()
    rt = lead_and_pay(make_runtime, tool)
    lead, _ = start(rt, "lead")
    first, second = lead.children
    assert (first.id, second.id) == ("root/lead.1/pay.1", "root/lead.1/pay.2")
    asked = {"/".join(one.path): one for one in rt.pending()}
    assert sorted(asked) == [first.id, second.id]

    within(rt.resume, Answer(asked[second.id].request.id, ok=True))
    assert lead.pending_request == asked[first.id].request
    within(rt.resume, Answer(asked[first.id].request.id, ok=False))
    assert rt.wait_on(lead, LIMIT).text == "both"
    results = llm.requests[-1].tool_results
    assert sorted(results) == ["c1", "c2"]
    said = sorted(results.values())
    assert said[0].startswith("declined/expired: Pay ")
    assert said[1].startswith("paid ")
    assert len(tool.paid) == 1
    for child in (first, second):
        assert rt.trace_has(f"{lead.id}: task replay → REATTACH to {child.id} (state ")
        assert moves(rt.trace(), child.id)[-1] == "closed"
    assert not rt.trace_has("root/lead.1/pay.3")


def test_the_same_task_in_a_later_turn_is_a_new_child(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    for _ in range(2):
        llm.say("lead", task("pay", "charge"), text("ok"))
        llm.say("pay", tool_call("charge_card"), text("charged"))
    charge = Charge()
    rt = lead_and_pay(make_runtime, charge)
    lead, first = start(rt, "lead")
    approve(rt, first.pending)
    second = run_turn(rt, lead)
    assert second.status == "pending"
    assert second.pending_path == ("root", "lead.1", "pay.2")
    approve(rt, second.pending)
    assert len(charge.charged) == 2
    assert len(llm.requests) == 8
    llm.assert_done()


def test_the_same_task_later_in_the_resumed_turn_is_a_new_child(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", task("pay", "charge"), task("pay", "charge"), text("ok"))
    llm.say("pay", tool_call("charge_card"), text("1"), tool_call("charge_card"), text("2"))
    charge = Charge()
    rt = lead_and_pay(make_runtime, charge)
    lead, first = start(rt, "lead")
    approve(rt, first.pending)
    second = rt.wait_on(lead, LIMIT)
    assert second.pending_path == ("root", "lead.1", "pay.2")
    approve(rt, second.pending)
    assert rt.wait_on(lead, LIMIT).text == "ok"
    assert list(llm.requests[-1].tool_results.values()) == ["1", "2"]
    assert len(charge.charged) == 2


def test_a_task_that_failed_earlier_is_run_anew(llm: ScriptedLlm, make_runtime: Make) -> None:
    from toolnexus.testing import status

    llm.say("lead", task("pay", "x"), task("pay", "x"), text("second time"))
    llm.say("pay", status(500), text("fine"))
    rt = lead_and_pay(make_runtime, Charge())
    _, result = start(rt, "lead")
    assert result.text == "second time"
    assert list(llm.requests[-1].tool_results.values())[1] == "fine"


def test_a_child_that_asks_again_parks_its_ancestors_again(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", task("pay", "charge twice"), text("ok"))
    llm.say("pay", tool_call("charge_card"), tool_call("charge_card"), text("charged"))
    charge = Charge()
    rt = lead_and_pay(make_runtime, charge)
    lead, first = start(rt, "lead")
    approve(rt, first.pending)
    second = rt.wait_on(lead, LIMIT)
    assert second.status == "pending"
    assert first.pending is not None
    assert second.pending is not None
    assert second.pending.id != first.pending.id
    assert second.pending_path == ("root", "lead.1", "pay.1")
    assert len(lead.children) == 1
    approve(rt, second.pending)
    assert rt.wait_on(lead, LIMIT).text == "ok"
    assert len(charge.charged) == 2
    assert len(llm.requests) == 5


def test_a_finished_task_beside_a_parked_one_runs_once(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    tasks = [call("task", {"agent": name, "prompt": "x"}) for name in ("w", "pay")]
    llm.say("lead", tool_calls(*tasks), text("both"))
    llm.say("w", text("looked"))
    llm.say("pay", tool_call("charge_card"), text("charged"))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["w", "pay"]),
        AgentDef("w", "", "", "w"),
        AgentDef("pay", "", "", "pay", tools=[Charge()]),
    )
    lead, first = start(rt, "lead")
    assert [child.definition.name for child in lead.children] == ["pay"]
    approve(rt, first.pending)
    assert rt.wait_on(lead, LIMIT).text == "both"
    assert list(llm.requests[-1].tool_results.values()) == ["looked", "charged"]
    assert len(llm.requests_of("w")) == 1


def test_children_of_one_turn_are_numbered_in_call_order(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """An id is the same in every run, whichever thread comes first; many rounds to be sure."""
    names = [f"w{number}" for number in range(1, 7)]
    tasks = [call("task", {"agent": name, "prompt": "x"}) for name in names]
    llm.answer("lead", lambda r: text("all") if r.tool_results else tool_calls(*tasks))
    llm.answer("w", lambda request: text("done"))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=names),
        *[AgentDef(name, "", "", "w") for name in names],
    )
    for _ in range(20):
        lead, _ = start(rt, "lead")
        spawned = [
            line.partition(":")[0].rpartition("/")[2]
            for line in rt.trace()
            if line.startswith(f"{lead.id}/") and ": spawned" in line
        ]
        assert sorted(spawned) == [f"{name}.{n}" for n, name in enumerate(names, 1)]
