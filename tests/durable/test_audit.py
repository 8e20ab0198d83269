"""What the audit of a store keeps, whatever the runtime has in memory."""

from __future__ import annotations

import pytest

from tests.runtime.support import Make, start, within
from toolnexus import AgentDef, Answer, Request, ToolContext, ToolResult, tool
from toolnexus.stores import MemoryStore
from toolnexus.testing import ScriptedLlm, text, tool_call


@tool
def pay(ctx: ToolContext) -> ToolResult:
    """Pay."""
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", "Pay?"))
    return ToolResult.ok("paid")


@pytest.mark.parametrize("limit", [0, 1, 10_000])
def test_it_has_what_was_asked_inline_and_what_was_withdrawn(
    llm: ScriptedLlm, make_runtime: Make, limit: int
) -> None:
    llm.answer("m", lambda one: text("end") if one.tool_results else tool_call("pay"))
    inline = AgentDef("a", tools=[pay], wait_for=lambda one: Answer(one.id, ok=True))
    store = MemoryStore()
    agents = (inline, AgentDef("b", tools=[pay]))
    rt = make_runtime(*agents, store=store, audit_limit=limit)
    for _ in range(2):
        assert start(rt, "a")[1].status == "done"
    within(rt.close, start(rt, "b")[0], reason="enough")
    expected = [("answered", "wait_for"), ("answered", "wait_for"), ("cancelled", "close")]
    assert [(one.outcome, one.how) for one in rt.audit()] == expected
    assert [(one.outcome, one.how) for one in make_runtime(store=store).audit()] == expected
