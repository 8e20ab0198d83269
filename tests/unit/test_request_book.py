"""The book keeps what is open, and little of what was."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from toolnexus import AgentDef, AgentRuntime, Answer, Request, ToolContext, ToolResult, tool
from toolnexus.stores import MemoryStore
from toolnexus.testing import ScriptedLlm, text, tool_call

SOON = datetime.now(timezone.utc) + timedelta(days=7)
COUNT = 200


@tool
def ask(ctx: ToolContext) -> ToolResult:
    """Ask for something that expires."""
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", "ok?", expires_at=SOON))
    return ToolResult.ok("yes")


def test_requests_that_could_expire_are_forgotten_with_a_store_too() -> None:
    with ScriptedLlm() as llm:
        llm.answer("m", lambda asked: text("end") if asked.tool_results else tool_call("ask"))
        rt = AgentRuntime(
            base_url=llm.base_url,
            api_key="any",
            default_model="m",
            registry=[AgentDef("a", tools=[ask])],
            store=MemoryStore(),
        )
        with rt:
            for _ in range(COUNT):
                handle = rt.spawn(rt.root, "a").handle
                pending = rt.run_turn(handle, "go").pending
                assert pending is not None
                rt.resume(Answer(pending.id, ok=True))
            assert len(rt._core.book._expiring) < COUNT / 2
