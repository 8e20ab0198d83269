"""The examples of the JavaScript page on `resume`: the declared form."""

from __future__ import annotations

from typing import Any

from toolnexus import Agent, Answer, Request, State, ToolContext, ToolResult, agent
from toolnexus.testing import ScriptedLlm, text, tool_call


class ChargeCard:
    name = "charge_card"
    description = "Charge the card"
    source = "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {
            "type": "object",
            "properties": {},
            "additionalProperties": False,
        }

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is not None:
            return ToolResult.ok("charged")
        return ToolResult.pending(Request("approval", "Approve $500 charge?"))


def approver() -> Agent:
    return agent("approve", does="Approves a payment", tools=[ChargeCard()])


def options(llm: ScriptedLlm) -> dict[str, Any]:
    return {"base_url": llm.base_url, "api_key": "k", "default_model": "m"}


def test_smallest_suspend_resume_final_answer(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("charge_card", id="c1"), text("Done — charged."))
    first = approver().run("Charge the card.", **options(llm))
    assert first.status == "pending"
    assert first.pending is not None
    assert first.pending.kind == "approval"

    handle = first.runtime.root.children[0]
    first.runtime.resume(Answer(id=first.pending.id, ok=True))
    second = first.runtime.wait_on(handle)

    assert second.status == "done"
    assert "Done — charged" in second.text
    assert llm.requests[-1].tool_results == {"c1": "charged"}
    first.runtime.close(first.runtime.root)
    llm.assert_done()


def test_declined_the_run_finishes(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("charge_card"), text("Understood — the charge was cancelled."))
    first = approver().run("Charge the card.", **options(llm))
    assert first.status == "pending"
    assert first.pending is not None

    handle = first.runtime.root.children[0]
    first.runtime.resume(Answer(id=first.pending.id, ok=False, reason="declined"))
    second = first.runtime.wait_on(handle)

    assert second.status == "done"
    assert "cancelled" in second.text
    (result,) = llm.requests[-1].tool_results.values()
    assert result == "declined/expired: Approve $500 charge? (declined)"
    first.runtime.close(first.runtime.root)
    llm.assert_done()


def test_inspecting_the_parked_tree(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("charge_card"), text("Charged."))
    first = approver().run("Charge the card.", **options(llm))
    assert first.pending is not None
    handle = first.runtime.root.children[0]

    view = first.runtime.inspect(handle)
    assert view is not None
    assert view.state is State.SUSPENDED
    assert view.pending is not None
    assert view.pending.kind == "approval"
    assert view.pending.id == first.pending.id

    first.runtime.resume(Answer(id=view.pending.id, ok=True))
    second = first.runtime.wait_on(handle)
    assert second.status == "done"
    first.runtime.close(first.runtime.root)
    llm.assert_done()
