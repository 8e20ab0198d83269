"""A decline executes nothing, and says why to the model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge, moves
from tests.runtime.support import Make, Probe, start, within
from toolnexus import AgentDef, Answer, Request, ToolContext, ToolResult
from toolnexus.testing import ScriptedLlm, text, tool_call

ASKED = "declined/expired: Approve $500 charge?"

SAID = [
    ({}, ASKED),
    ({"reason": "declined"}, f"{ASKED} (declined)"),
    ({"data": {"message": "too much"}}, f"{ASKED} (too much)"),
    (
        {"reason": "declined", "data": {"message": "too much"}},
        f"{ASKED} (declined: too much)",
    ),
    ({"reason": "cancelled", "data": 5}, f"{ASKED} (cancelled)"),
]


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(("said", "read"), SAID)
def test_the_model_reads_what_was_said(
    llm: ScriptedLlm, make_runtime: Make, inline: bool, said: dict[str, Any], read: str
) -> None:
    llm.say("m", tool_call("charge_card", id="c1"), text("not charged"))
    charge = Charge()

    def no(request: Request) -> Answer:
        return Answer(request.id, ok=False, **said)

    rt = make_runtime(AgentDef("a", tools=[charge], wait_for=no if inline else None))
    handle, result = start(rt, "a")
    if not inline:
        assert result.pending is not None
        within(rt.resume, no(result.pending))
        result = rt.wait_on(handle, LIMIT)
    assert (result.status, result.text) == ("done", "not charged")
    assert charge.charged == []
    assert llm.requests[-1].tool_results == {"c1": read}
    assert len(llm.requests) == 2
    inline_moves = ["idle", "running", "suspended", "running", "idle"]
    parked_moves = ["idle", "running", "suspended", "idle", "running", "idle"]
    assert moves(rt.trace(), handle.id) == (inline_moves if inline else parked_moves)
    assert rt.trace_has("Answer ok=false" if inline else "resume with Answer(ok=false)")


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_a_decline_is_an_error_result_on_the_wire(
    llm: ScriptedLlm, make_runtime: Make, style: str
) -> None:
    llm.say("m", tool_call("charge_card"), text("not charged"))
    rt = make_runtime(AgentDef("a", tools=[Charge()]), style=style)
    handle, parked = start(rt, "a")
    assert parked.pending is not None
    within(rt.resume, Answer(parked.pending.id, ok=False))
    assert rt.wait_on(handle, LIMIT).status == "done"
    if style == "anthropic":
        block = llm.requests[-1].messages[-1]["content"][0]
        assert block["is_error"] is True
    assert list(llm.requests[-1].tool_results.values()) == [ASKED]


def speaks(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", "sure?"))
    return ToolResult.ok(f"heard {ctx.answer.ok} {ctx.answer.reason}")


@pytest.mark.parametrize("inline", [True, False])
def test_a_tool_that_handles_declines_runs(
    llm: ScriptedLlm, make_runtime: Make, inline: bool
) -> None:
    llm.say("m", tool_call("ask", id="c1"), text("ok"))
    ask = Probe("ask", speaks, handles_decline=True)

    def no(request: Request) -> Answer:
        return Answer(request.id, ok=False, reason="declined")

    rt = make_runtime(AgentDef("a", tools=[ask], wait_for=no if inline else None))
    _, result = start(rt, "a")
    if not inline:
        assert result.pending is not None
        within(rt.resume, no(result.pending))
    assert llm.requests[-1].tool_results == {"c1": "heard False declined"}
    assert [ctx.attempt for _, ctx in ask.runs] == [1, 2]


def raises(request: Request) -> Answer:
    raise RuntimeError("nobody home")


ODD: dict[str, Any] = {
    "none": lambda request: None,
    "another id": lambda request: Answer("other", ok=True),
    "no answer": lambda request: True,
    "raises": raises,
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_answer_inline_declines(
    llm: ScriptedLlm, make_runtime: Make, kind: str
) -> None:
    llm.say("m", tool_call("charge_card"), text("not charged"))
    charge = Charge()
    rt = make_runtime(AgentDef("a", tools=[charge], wait_for=ODD[kind]))
    handle, result = start(rt, "a")
    assert result.status == "done"
    assert charge.charged == []
    (read,) = llm.requests[-1].tool_results.values()
    assert read.startswith(ASKED)
    assert moves(rt.trace(), handle.id) == ["idle", "running", "suspended", "running", "idle"]


def asks_for_ever(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
    return ToolResult.pending(Request("approval", f"sure ({ctx.attempt})?"))


def test_a_second_question_inline_is_unresolved(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("ask", id="c1"), text("gave up"))
    ask = Probe("ask", asks_for_ever)
    rt = make_runtime(
        AgentDef("a", tools=[ask], wait_for=lambda request: Answer(request.id, ok=True))
    )
    _, result = start(rt, "a")
    assert result.text == "gave up"
    assert len(ask.runs) == 2
    assert llm.requests[-1].tool_results == {"c1": "unresolved: sure (2)?"}


def test_a_second_question_parked_parks_again(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("ask", id="c1"), text("gave up"))
    rt = make_runtime(AgentDef("a", tools=[Probe("ask", asks_for_ever)]))
    handle, result = start(rt, "a")
    for attempt in (1, 2, 3):
        assert result.text == f"sure ({attempt})?"
        assert result.pending is not None
        within(rt.resume, Answer(result.pending.id, ok=True))
        result = rt.wait_on(handle, LIMIT)
    assert result.pending is not None
    within(rt.resume, Answer(result.pending.id, ok=False))
    assert rt.wait_on(handle, LIMIT).text == "gave up"


def test_a_decline_deep_in_the_tree_reaches_the_model_that_asked(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", tool_call("task", {"agent": "pay", "prompt": "charge"}), text("told"))
    llm.say("pay", tool_call("charge_card", id="c1"), text("they said no"))
    charge = Charge()
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"]),
        AgentDef("pay", "", "", "pay", tools=[charge]),
    )
    handle, parked = start(rt, "lead")
    assert parked.pending is not None
    within(rt.resume, Answer(parked.pending.id, ok=False))
    assert rt.wait_on(handle, LIMIT).text == "told"
    assert llm.requests_of("pay")[-1].tool_results == {"c1": ASKED}
    assert list(llm.requests[-1].tool_results.values()) == ["they said no"]
    assert charge.charged == []
