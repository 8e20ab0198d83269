"""Who joins a streamed turn, whenever that is, is told all that it has told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Event,
    Handle,
    Request,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]


@tool
def charge(ctx: ToolContext) -> ToolResult:
    """Charge."""
    return ToolResult.ok("charged") if ctx.answer else ToolResult.pending(Request("q", "Sure?"))


def told(rt: AgentRuntime, handle: Handle) -> list[Any]:
    return [_short(event) for event in rt.stream(handle)]


def _short(event: Event) -> Any:
    return event.delta if event.kind == "text" else event.kind


@pytest.fixture
def asked(llm: ScriptedLlm, make_runtime: Make) -> tuple[AgentRuntime, Handle]:
    llm.say("m", tool_call("charge", {}, content="Let me ask. "), text("Done."), text("Again."))
    rt = make_runtime(AgentDef("a", tools=[charge], model="m"))
    handle = rt.spawn(rt.root, "a").handle
    assert rt.wake(handle, "go", streams=True).ok
    assert rt.wait_on(handle).status == "pending"
    return rt, handle


def test_a_parked_turn_is_told_from_its_beginning(asked: tuple[AgentRuntime, Handle]) -> None:
    assert told(*asked) == ["Let me ask. ", "tool_call", "pending", "done"]


def test_a_turn_that_went_on_is_told_from_its_beginning(
    asked: tuple[AgentRuntime, Handle],
) -> None:
    rt, handle = asked
    pending = rt.wait_on(handle).pending
    assert pending is not None
    rt.resume(Answer(pending.id, ok=True))

    begun = ["Let me ask. ", "tool_call", "pending"]
    assert told(rt, handle) == [*begun, "tool_result", "Done.", "usage", "done"]
    assert told(rt, handle) == told(rt, handle)


def test_a_new_turn_forgets_what_the_last_one_told(asked: tuple[AgentRuntime, Handle]) -> None:
    rt, handle = asked
    rt.interrupt(handle)
    rt.run_turn(handle, "anew")  # not streamed

    assert told(rt, handle) == ["done"]


def test_a_closed_handle_tells_its_result_alone(asked: tuple[AgentRuntime, Handle]) -> None:
    rt, handle = asked
    rt.close(handle)

    assert told(rt, handle) == ["done"]
