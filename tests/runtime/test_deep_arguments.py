"""Arguments that could not be read again are refused before anything is changed by them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.support import Make, Probe, approve, start, told, within
from toolnexus import (
    AgentDef,
    Answer,
    InvalidAnswer,
    ToolCall,
    ToolContext,
    ToolResult,
    WireFormatError,
    tool,
)
from toolnexus.testing import ScriptedLlm, text, tool_call


def _deep() -> dict[str, Any]:
    deep: dict[str, Any] = {}
    for _ in range(230):
        deep = {"a": deep}
    return deep


@pytest.mark.parametrize("edited", [_deep(), "x" * 1_100_000], ids=["deep", "long"])
def test_edited_arguments_that_cannot_be_kept_leave_the_request_open(
    llm: ScriptedLlm, make_runtime: Make, edited: Any
) -> None:
    ran: list[Any] = []

    @tool(needs_approval=True)
    def work(what: Any, ctx: ToolContext) -> str:
        """Work.

        Args:
            what: On what.
        """
        ctx.ask("question", "Sure?")
        ran.append(what)
        return "done"

    llm.say("m", tool_call("work", {"what": 1}), text("end"))
    rt = make_runtime(AgentDef("a", tools=[work]))
    handle, result = start(rt, "a")
    assert result.pending is not None
    with pytest.raises((InvalidAnswer, WireFormatError), match=r"must be .*JSON"):
        within(rt.resume, Answer(result.pending.id, ok=True, data={"args": {"what": edited}}))
    (still,) = rt.pending()
    assert still.request.id == result.pending.id
    approve(rt, still.request)
    approve(rt, handle.pending_request)
    assert (ran, told(llm)) == ([1], "done")


def test_arguments_of_a_hook_that_cannot_be_kept_execute_nothing(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    class Deepen:
        def before_tool(self, call: ToolCall, args: Any, ctx: ToolContext) -> dict[str, Any]:
            return _deep()

    def ask(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        return ToolResult.ok(ctx.ask("question", "?").data)

    probe = Probe("t", ask)
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe], hooks=Deepen()))
    _, result = start(rt, "a")
    assert (result.text, probe.runs) == ("end", [])
    assert told(llm) == "not executed: a before_tool hook failed (WireFormatError)"
