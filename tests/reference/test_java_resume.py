"""The examples of the Java page on `AgentRuntime.resume`."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import LIMIT
from tests.helpers import Charge
from toolnexus import AgentDef, AgentRuntime, Answer, Handle
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]


def test_smallest_suspend_resume_final_answer(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("test-model", tool_call("charge_card"), text("Done — charged."))
    charge = Charge()
    rt = make_runtime(
        AgentDef("approve", "approves a payment", "", "test-model", tools=[charge])
    )
    handle = rt.spawn(rt.root, "approve").handle

    future = rt.future_result(handle)
    rt.wake(handle, "Charge the card.")
    first = future.result(LIMIT)

    assert first.status == "pending"
    assert first.pending is not None
    assert handle.state is Handle.State.SUSPENDED

    rt.resume(Answer(first.pending.id, True))

    assert handle.state is Handle.State.IDLE
    assert handle.last_result is not None
    assert handle.last_result.text == "Done — charged."
    assert len(charge.charged) == 1
    llm.assert_done()


def test_declined_the_run_finishes(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say(
        "test-model", tool_call("charge_card"), text("Understood — the charge was cancelled.")
    )
    charge = Charge()
    rt = make_runtime(
        AgentDef("approve", "approves a payment", "", "test-model", tools=[charge])
    )
    handle = rt.spawn(rt.root, "approve").handle
    future = rt.future_result(handle)
    rt.wake(handle, "Charge the card.")
    first = future.result(LIMIT)
    assert first.pending is not None
    assert handle.state is Handle.State.SUSPENDED

    rt.resume(Answer(first.pending.id, False, None, "declined"))

    assert handle.last_result is not None
    assert handle.last_result.status == "done"
    assert "cancelled" in handle.last_result.text
    assert charge.charged == []
    (result,) = llm.requests[-1].tool_results.values()
    assert result == "declined/expired: Approve $500 charge? (declined)"


def test_inspecting_the_parked_handle(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("test-model", tool_call("charge_card"), text("Charged."))
    rt = make_runtime(
        AgentDef("approve", "approves a payment", "", "test-model", tools=[Charge()])
    )
    handle = rt.spawn(rt.root, "approve").handle
    future = rt.future_result(handle)
    rt.wake(handle, "Charge the card.")
    first = future.result(LIMIT)
    assert first.pending is not None

    view = next(view for view in rt.list() if view.id == handle.id)
    assert view.state is Handle.State.SUSPENDED
    assert view.pending == first.pending

    rt.resume(Answer(first.pending.id, True))
    assert handle.last_result is not None
    assert handle.last_result.status == "done"
