"""A before_tool hook that asks is a gate of its own: its yes opens nothing but itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Pay, Probe, approve, start, within
from toolnexus import (
    AgentDef,
    Answer,
    Budget,
    Request,
    State,
    ToolContext,
    ToolResult,
    UnknownRequest,
)
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls


class Gate:
    """A hook that does what the test says; it remembers every call it looked at."""

    def __init__(self, decide: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self.decide = decide or (lambda args: None)
        self.seen: list[dict[str, Any]] = []

    def before_tool(self, call: Any, args: Any, ctx: ToolContext) -> Any:
        self.seen.append(dict(args))
        return self.decide(args)


def asking(prompt: str = "May tools run?") -> Gate:
    return Gate(lambda args: ToolResult.pending(Request("gate", prompt)))


def denying() -> Gate:
    return Gate(lambda args: ToolResult.error("denied by policy"))


def decline(rt: Any, request: Request | None, **more: Any) -> None:
    assert request is not None
    within(rt.resume, Answer(request.id, ok=False, **more))


def test_the_hooks_behind_a_question_are_asked_after_the_yes(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("wipe", id="c1"), text("end"))
    wipe, first, second = Probe("wipe"), asking(), denying()
    rt = make_runtime(AgentDef("a", tools=[wipe], hooks=[first, second]))
    handle, parked = start(rt, "a")
    assert (parked.status, second.seen) == ("pending", [])
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert (len(first.seen), len(second.seen), wipe.runs) == (1, 1, [])
    assert llm.requests[-1].tool_results == {"c1": "denied by policy"}


def test_each_hook_that_asks_gets_an_answer_of_its_own(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("wipe"), text("end"))
    wipe = Probe("wipe")
    hooks = [asking("first?"), asking("second?")]
    rt = make_runtime(AgentDef("a", tools=[wipe], hooks=hooks))
    handle, first = start(rt, "a")
    approve(rt, first.pending)
    assert wipe.runs == []
    second = handle.pending_request
    assert first.pending is not None
    assert second is not None
    assert (first.pending.prompt, second.prompt) == ("first?", "second?")
    assert first.pending.id != second.id
    approve(rt, second)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert ([len(one.seen) for one in hooks], len(wipe.runs)) == ([1, 1], 1)


def test_a_hooks_yes_is_no_yes_to_the_tools_own_question(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5000}, "c1"), text("end"))
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay], hooks=asking("May I log this?")))
    handle, logged = start(rt, "a")
    approve(rt, logged.pending)
    assert (handle.state, pay.paid) == (State.SUSPENDED, [])
    assert [(args, ctx.answer, ctx.attempt) for args, ctx in pay.runs] == [
        ({"amount": 5000}, None, 1)
    ]
    own = handle.pending_request
    assert own is not None
    assert own.prompt == "Pay 5000?"
    approve(rt, own)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert pay.paid == [(5000, own.id)]
    assert len({ctx.idempotency_key for _, ctx in pay.runs}) == 1


def test_a_yes_to_the_tools_question_does_not_ask_the_hooks_again(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}), text("end"))
    pay, watch = Pay(), Gate()
    rt = make_runtime(AgentDef("a", tools=[pay], hooks=[asking(), watch]))
    handle, parked = start(rt, "a")
    approve(rt, parked.pending)
    approve(rt, handle.pending_request)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert (len(pay.paid), len(watch.seen)) == (1, 1)


@pytest.mark.parametrize("handles_decline", [False, True])
def test_a_no_to_a_hook_executes_nothing(
    llm: ScriptedLlm, make_runtime: Make, *, handles_decline: bool
) -> None:
    """Not even a tool that speaks for itself: it was not the tool that asked."""
    llm.say("m", tool_call("wipe", id="c1"), text("end"))
    wipe = Probe("wipe", handles_decline=handles_decline)
    behind = Gate()
    rt = make_runtime(AgentDef("a", tools=[wipe], hooks=[asking(), behind]))
    handle, parked = start(rt, "a")
    decline(rt, parked.pending, reason="declined")
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert (wipe.runs, behind.seen) == ([], [])
    told = llm.requests[-1].tool_results["c1"]
    assert told == "declined/expired: May tools run? (declined)"


def test_a_no_to_the_tools_question_behind_a_gate_pays_nothing(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}, "c1"), text("end"))
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay], hooks=asking()))
    handle, parked = start(rt, "a")
    approve(rt, parked.pending)
    decline(rt, handle.pending_request)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert pay.paid == []
    assert llm.requests[-1].tool_results["c1"] == "declined/expired: Pay 5?"


def test_a_gates_answer_given_again_executes_nothing(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}), text("end"))
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay], hooks=asking()))
    handle, parked = start(rt, "a")
    approve(rt, parked.pending)
    approve(rt, parked.pending)
    assert (handle.state, len(pay.runs), pay.paid) == (State.SUSPENDED, 1, [])
    with pytest.raises(UnknownRequest):
        within(rt.resume, Answer("forged", ok=True))


@pytest.mark.parametrize("word", [True, False])
def test_inline_the_gate_and_the_tool_are_answered_apart(
    llm: ScriptedLlm, make_runtime: Make, *, word: bool
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5000}), text("end"))
    pay = Pay()
    asked: list[str] = []

    def decide(request: Request) -> Answer:
        asked.append(request.prompt)
        return Answer(request.id, ok=word or request.kind == "gate")

    hooks = asking("May I log this?")
    rt = make_runtime(AgentDef("a", tools=[pay], hooks=hooks, wait_for=decide))
    assert start(rt, "a")[1].text == "end"
    assert asked == ["May I log this?", "Pay 5000?"]
    assert [amount for amount, _ in pay.paid] == ([5000] if word else [])


def test_inline_the_hooks_behind_a_question_are_asked_after_the_yes(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("wipe", id="c1"), text("end"))
    wipe = Probe("wipe")
    rt = make_runtime(
        AgentDef("a", tools=[wipe], hooks=[asking(), denying()]),
        wait_for=lambda request: Answer(request.id, ok=True),
    )
    assert start(rt, "a")[1].text == "end"
    assert wipe.runs == []
    assert llm.requests[-1].tool_results == {"c1": "denied by policy"}


def test_a_gate_before_several_calls_asks_for_each(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_calls(call("one", id="c1"), call("two", id="c2")), text("end"))
    one, two = Probe("one"), Probe("two")
    rt = make_runtime(AgentDef("a", tools=[one, two], hooks=asking()))
    handle, _ = start(rt, "a")
    first, second = rt.pending()
    decline(rt, first.request)
    assert (one.runs, two.runs) == ([], [])
    approve(rt, second.request)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert (one.runs, len(two.runs)) == ([], 1)


def test_a_gate_before_a_task_lets_one_child_through(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", tool_call("task", {"agent": "w", "prompt": "x"}, "c1"), text("end"))
    llm.say("w", text("worked"))
    rt = make_runtime(
        AgentDef("lead", model="lead", team=["w"], hooks=asking()), AgentDef("w", model="w")
    )
    handle, parked = start(rt, "lead")
    assert handle.children == ()
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert llm.requests[-1].tool_results == {"c1": "worked"}
    assert len(llm.requests_of("w")) == 1


def test_a_gated_call_counts_once_against_the_budget(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("wipe"), tool_call("wipe"), text("end"))
    wipe, gate = Probe("wipe"), asking()
    rt = make_runtime(AgentDef("a", tools=[wipe], hooks=gate, budget=Budget(max_tool_calls=2)))
    handle, parked = start(rt, "a")
    approve(rt, parked.pending)
    approve(rt, handle.pending_request)
    assert rt.wait_on(handle, LIMIT).status in ("done", "incomplete")
    assert len(wipe.runs) == 2


# -- what a hook does to the arguments --------------------------------------------------------


def lowered_in_place(args: dict[str, Any]) -> None:
    args["amount"] = 50
    args["lines"].append("more")


def test_a_hooks_edits_in_place_change_nothing(llm: ScriptedLlm, make_runtime: Make) -> None:
    """What a person is asked, what is shown and what is paid are the same amount."""
    given = {"amount": 5000, "lines": ["a"]}
    llm.say("m", tool_call("pay", given), text("end"))
    pay, behind = Pay(), Gate()
    rt = make_runtime(AgentDef("a", tools=[pay], hooks=[Gate(lowered_in_place), behind]))
    handle, parked = start(rt, "a")
    assert parked.text == "Pay 5000?"
    assert [one.arguments for one in rt.pending()] == [given]
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert [args for args, _ in pay.runs] == [given, given]
    assert [amount for amount, _ in pay.paid] == [5000]
    assert behind.seen == [given]


def test_a_returned_mapping_is_asked_about_shown_and_executed(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5000}), text("end"))
    pay, behind = Pay(), Gate()
    clamp = Gate(lambda args: {**args, "amount": 50})
    rt = make_runtime(AgentDef("a", tools=[pay], hooks=[clamp, behind]))
    handle, parked = start(rt, "a")
    assert parked.text == "Pay 50?"
    assert [one.arguments for one in rt.pending()] == [{"amount": 50}]
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert [args for args, _ in pay.runs] == [{"amount": 50}] * 2
    assert behind.seen == [{"amount": 50}]


def test_arguments_edited_and_returned_are_executed(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    def clamp(args: dict[str, Any]) -> dict[str, Any]:
        args["amount"] = 50
        return args

    llm.say("m", tool_call("pay", {"amount": 5000}), text("end"))
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay], hooks=Gate(clamp)))
    handle, parked = start(rt, "a")
    assert [one.arguments for one in rt.pending()] == [{"amount": 50}]
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert [amount for amount, _ in pay.paid] == [50]


def test_rewritten_arguments_survive_the_question_of_a_hook_behind(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("wipe", {"path": "/"}), text("end"))
    wipe, last = Probe("wipe"), Gate()
    narrow = Gate(lambda args: {"path": "/tmp/x"})
    rt = make_runtime(AgentDef("a", tools=[wipe], hooks=[narrow, asking(), last]))
    handle, parked = start(rt, "a")
    assert [one.arguments for one in rt.pending()] == [{"path": "/tmp/x"}]
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert [args for args, _ in wipe.runs] == last.seen == [{"path": "/tmp/x"}]
    assert narrow.seen == [{"path": "/"}]
