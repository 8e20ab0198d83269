"""`ctx.ask` beside everything else that suspends a call: each answer has one question."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Probe, approve, start, told, within
from toolnexus import (
    AgentDef,
    Answer,
    ConfigError,
    Request,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
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


class AskingHook:
    def before_tool(self, call: ToolCall, args: Any, ctx: ToolContext) -> None:
        ctx.ask("approval", "Shall it?")


def test_a_hook_that_asks_by_ctx_stays_shut(llm: ScriptedLlm, make_runtime: Make) -> None:
    probe = Probe("t")
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe], hooks=AskingHook()))
    _, result = start(rt, "a")
    assert (result.text, probe.runs) == ("end", [])
    assert told(llm) == "not executed: a before_tool hook failed (ConfigError)"


def test_a_gate_that_asks_by_ctx_asks_for_approval(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    ran: list[str] = []

    @tool(needs_approval=lambda args, ctx: ctx.ask("approval", "Shall it?").ok)
    def work() -> str:
        """Work."""
        ran.append("work")
        return "done"

    llm.say("m", tool_call("work"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[work]))
    handle, _ = start(rt, "a")
    asked = handle.pending_request
    assert asked is not None
    assert (asked.prompt, ran) == ("Run work()?", [])
    approve(rt, asked)
    assert ran == ["work"]


def test_a_thread_that_outlives_its_call_reaches_no_other(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    contexts: list[ToolContext] = []
    kept: list[str] = []

    def first(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        contexts.append(ctx)
        return ToolResult.ok("")

    def second(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        with pytest.raises(ConfigError, match="the call is over"):
            contexts[0].once("k", lambda: "of the first call")
        with pytest.raises(ConfigError, match="the call is over"):
            contexts[0].ask("question", "Anybody?")
        ctx.ask("question", "Go on?")
        kept.append(ctx.once("k", lambda: "mine"))
        return ToolResult.ok("")

    llm.say("m", tool_call("first"), tool_call("second"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("first", first), Probe("second", second)]))
    handle, _ = start(rt, "a")
    approve(rt, handle.pending_request)
    assert kept == ["mine"]


@pytest.mark.parametrize("inline", [False, True])
def test_a_tool_that_asks_may_delegate_to_an_agent_that_asks(
    llm: ScriptedLlm, make_runtime: Make, inline: bool
) -> None:
    asked: list[str] = []

    def decide(request: Request) -> Answer:
        asked.append(request.prompt)
        return Answer(request.id, ok=True)

    def own(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        ctx.ask("question", "And the agent?")
        ctx.ask("question", "Still?")
        return ToolResult.ok("")

    worker = AgentDef("w", model="w", tools=[Probe("own", own)])

    def outer(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        ctx.ask("approval", "Delegate?")
        assert ctx.delegate is not None
        return ctx.delegate(worker, "work")

    llm.say("m", tool_call("t"), text("end"))
    llm.say("w", tool_call("own"), text("worked"))
    rt = make_runtime(
        AgentDef("a", tools=[Probe("t", outer)]), wait_for=decide if inline else None
    )
    handle, result = start(rt, "a")
    for _ in range(0 if inline else 3):
        request = handle.pending_request
        assert request is not None
        within(rt.resume, decide(request))
        result = rt.wait_on(handle, LIMIT)
    assert asked == ["Delegate?", "And the agent?", "Still?"]
    assert (result.text, told(llm)) == ("end", "worked")


@pytest.mark.parametrize("how", ["ask", "return"])
def test_a_tool_that_has_delegated_asks_nothing_more(
    llm: ScriptedLlm, make_runtime: Make, how: str
) -> None:
    worker = AgentDef("w", model="w")

    def outer(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        assert ctx.delegate is not None
        ctx.delegate(worker, "work")
        if how == "ask":
            ctx.ask("approval", "Fine?")
        return ToolResult.pending(Request("approval", "Fine?"))

    llm.say("m", tool_call("t"), text("end"))
    llm.say("w", text("worked"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", outer)]))
    handle = rt.spawn(rt.root, "a").handle
    assert within(rt.run_turn, handle, "go").text == "end"
    assert told(llm).endswith("a call that has delegated to an agent may ask nothing more")
