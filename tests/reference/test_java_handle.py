"""The examples of the Java page on `Handle`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.conftest import LIMIT
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Handle,
    Request,
    RuntimeOptions,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]


class RevealSecret:
    """The page's tool: it looks at the answer's `ok` itself."""

    name = "reveal_secret"
    description = "needs human approval"
    source = "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {"type": "object", "properties": {}}

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is not None and ctx.answer.ok:
            return ToolResult.ok("classified data")
        return ToolResult.pending(Request("approval", "approve access?"))


def test_a_fresh_handle_starts_idle() -> None:
    registry = {"worker": AgentDef("worker", "does work", "", "inherit")}
    with AgentRuntime(RuntimeOptions(registry=registry)) as rt:
        handle = rt.spawn(rt.root, "worker").handle

        assert handle.state is Handle.State.IDLE
        assert handle.id == "root/worker.1"
        assert handle.depth == 1
        assert handle.parent is rt.root
        assert not handle.inbox
        assert not handle.children
        assert handle.definition is registry["worker"]

        second = rt.spawn(rt.root, "worker").handle
        assert second.id == "root/worker.2"


def test_idle_running_idle_across_one_wake(llm: ScriptedLlm) -> None:
    llm.say("test-model", text("done"))
    registry = {"worker": AgentDef("worker", "does work", "", "test-model")}
    options = RuntimeOptions(base_url=llm.base_url, api_key="test-key", registry=registry)
    with AgentRuntime(options) as rt:
        handle = rt.spawn(rt.root, "worker").handle

        future = rt.future_result(handle)
        rt.wake(handle, "go")
        result = future.result(LIMIT)

        assert result.text == "done"
        assert handle.state is Handle.State.IDLE
        assert rt.trace_has("idle→running"), rt.trace()
        assert rt.trace_has("running→idle"), rt.trace()
        assert handle.turns_total == 1
    llm.assert_done()


def test_suspended_on_a_pending_then_resumed(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("test-model", tool_call("reveal_secret", id="c1"), text("secret retrieved"))
    rt = make_runtime(
        AgentDef("asker", "needs approvals", "", "test-model", tools=[RevealSecret()])
    )
    handle = rt.spawn(rt.root, "asker").handle

    future = rt.future_result(handle)
    rt.wake(handle, "get the secret")
    first = future.result(LIMIT)

    assert first.status == "pending"
    assert handle.state is Handle.State.SUSPENDED
    assert first.pending is not None

    rt.resume(Answer(first.pending.id, True))

    assert handle.state is Handle.State.IDLE
    assert handle.last_result is not None
    assert handle.last_result.text == "secret retrieved"
    assert llm.requests[-1].tool_results == {"c1": "classified data"}
    llm.assert_done()
