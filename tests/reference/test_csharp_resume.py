"""The examples of the C# page on `ResumeAsync`: tools are plain callables."""

from __future__ import annotations

from tests.conftest import LIMIT
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Request,
    RuntimeOptions,
    State,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.testing import ScriptedLlm, text, tool_call


def charge_tool(said: str) -> Tool:
    def charge(ctx: ToolContext) -> ToolResult:
        if ctx.answer is not None:
            return ToolResult.ok(f"{said} (ok={str(ctx.answer.ok).lower()})")
        return ToolResult.pending(Request(kind="approval", prompt="Approve $500 charge?"))

    return tool(charge, name="charge_card", description="charge the card")


def runtime_of(llm: ScriptedLlm, charge: Tool) -> AgentRuntime:
    registry = {"approve": AgentDef("approve", does="approves a payment", tools=[charge])}
    return AgentRuntime(
        RuntimeOptions(
            api_key="test-key",
            base_url=llm.base_url,
            style="openai",
            model="mock",
            registry=registry,
        )
    )


def test_smallest_suspend_resume_final_answer(llm: ScriptedLlm) -> None:
    llm.say("mock", tool_call("charge_card", id="c1"), text("Done — charged."))
    rt = runtime_of(llm, charge_tool("charged"))
    handle = rt.spawn(rt.root, "approve").handle
    wait = rt.future_result(handle)
    rt.wake(handle, "Charge the card.")
    first = wait.result(LIMIT)

    assert handle.state is State.SUSPENDED
    assert handle.pending_request is not None
    assert handle.pending_request.kind == "approval"

    rt.resume(Answer(id=handle.pending_request.id, ok=True))
    result = handle.last_result

    assert handle.state is State.IDLE
    assert result is not None
    assert (result.status, result.text) == ("done", "Done — charged.")
    assert wait.result(LIMIT) is first, "the first wait settled on the suspension, once"
    assert llm.requests[-1].tool_results == {"c1": "charged (ok=true)"}
    rt.close(rt.root)
    llm.assert_done()


def test_declined_the_run_finishes(llm: ScriptedLlm) -> None:
    said = "Understood — the charge was cancelled."
    llm.say("mock", tool_call("charge_card", id="c1"), text(said))
    rt = runtime_of(llm, charge_tool("charge outcome"))
    handle = rt.spawn(rt.root, "approve").handle
    wait = rt.future_result(handle)
    rt.wake(handle, "Charge the card.")
    wait.result(LIMIT)
    assert handle.state is State.SUSPENDED
    assert handle.pending_request is not None

    rt.resume(Answer(id=handle.pending_request.id, ok=False, reason="declined"))
    result = handle.last_result

    assert result is not None
    assert result.status == "done"
    assert "cancelled" in result.text
    assert llm.requests[-1].tool_results == {
        "c1": "declined/expired: Approve $500 charge? (declined)"
    }
    rt.close(rt.root)
    llm.assert_done()


def test_inspecting_the_parked_handle_by_id(llm: ScriptedLlm) -> None:
    llm.say("mock", tool_call("charge_card"), text("Charged."))
    rt = runtime_of(llm, charge_tool("charged"))
    handle = rt.spawn(rt.root, "approve").handle
    wait = rt.future_result(handle)
    rt.wake(handle, "Charge the card.")
    wait.result(LIMIT)

    view = rt.inspect(handle.id)
    assert view is not None
    assert view.state is State.SUSPENDED
    assert handle.pending_request is not None
    assert view.pending == handle.pending_request

    rt.resume(Answer(id=handle.pending_request.id, ok=True))
    assert handle.last_result is not None
    assert handle.last_result.status == "done"
    rt.close(rt.root)
    llm.assert_done()
