"""`ctx.ask` beside everything else that suspends a call: each answer has one question."""

from __future__ import annotations

from typing import Any

from tests.runtime.support import Make, Probe, approve, start
from toolnexus import AgentDef, Request, ToolContext, ToolResult
from toolnexus.testing import ScriptedLlm, text, tool_call


def test_an_answer_to_ask_is_no_answer_to_what_the_tool_returns(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    charged: list[str] = []

    def charge(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        who = ctx.ask("question", "Whom?").data
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", f"Charge {who}?"))
        charged.append(who)
        return ToolResult.ok("charged")

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", charge)]))
    handle, _ = start(rt, "a")
    approve(rt, handle.pending_request, data="ann")
    assert charged == []
    asked = handle.pending_request
    assert asked is not None
    assert asked.prompt == "Charge ann?"
    approve(rt, asked)
    assert charged == ["ann"]
