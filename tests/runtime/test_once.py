"""`ctx.once`: a step of a tool that is done once, however often the tool asks."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Probe, answer_all, start, told, within
from toolnexus import AgentDef, Answer, ConfigError, ToolContext, ToolResult, tool
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls


def test_a_step_runs_once_however_often_the_tool_asks(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    made: list[str] = []
    keys: set[str] = set()
    attempts: list[int] = []

    def order(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        keys.add(ctx.idempotency_key)
        attempts.append(ctx.attempt)

        def create() -> dict[str, Any]:
            made.append("order")
            return {"number": len(made)}

        number = ctx.once("create", create)["number"]
        ctx.ask("approval", f"Send order {number}?")
        ctx.once("send", lambda: made.append("sent"))
        ctx.ask("question", "How was it?")
        return ToolResult.ok(f"order {number}")

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", order)]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, None, "good")
    assert made == ["order", "sent"]
    assert told(llm) == "order 1"
    assert attempts == [1, 2, 3]
    assert len(keys) == 1


def test_what_a_step_gave_is_not_the_tools_to_change(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    seen: list[Any] = []

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        value = ctx.once("list", lambda: [1])
        seen.append(list(value))
        value.append(2)
        ctx.ask("question", "1?")
        ctx.ask("question", "2?")
        return ToolResult.ok("x")

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", work)]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, 1, 2)
    assert seen == [[1], [1], [1]]


def test_a_step_that_raises_runs_again_and_one_whose_result_is_no_json_does_not(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    ran: list[str] = []

    def fails() -> None:
        ran.append("fails")
        raise ValueError("not now")

    def no_json() -> object:
        ran.append("no json")
        return object()

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        with suppress(ValueError):
            ctx.once("fails", fails)
        with pytest.raises(ConfigError, match="JSON"):
            ctx.once("no json", no_json)
        ctx.ask("question", "?")
        return ToolResult.ok("x")

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", work)]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, 1)
    assert ran == ["fails", "no json", "fails"]
    assert told(llm) == "x"


def test_two_calls_of_one_tool_have_their_own_steps_and_questions(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    made: list[int] = []

    @tool
    def make(number: int, ctx: ToolContext) -> str:
        ctx.once("make", lambda: made.append(number))
        return f"{number}:{ctx.ask('question', 'colour?').data}"

    llm.say(
        "m",
        tool_calls(call("make", {"number": 1}), call("make", {"number": 2})),
        text("end"),
    )
    rt = make_runtime(AgentDef("a", tools=[make]))
    handle, _ = start(rt, "a")
    for one in rt.pending():
        within(
            rt.resume,
            Answer(one.request.id, True, "red" if one.arguments["number"] == 1 else "tan"),
        )
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert sorted(made) == [1, 2]
    assert list(llm.requests[-1].tool_results.values()) == ["1:red", "2:tan"]


@pytest.mark.in_memory
def test_a_step_with_a_secret_in_it_gives_it_again_and_is_kept_nowhere(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    schema = {"type": "object", "properties": {"pw": {"type": "string", "secret": True}}}
    ran: list[str] = []
    seen: list[str] = []

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        password = str(ctx.ask("input", "?", schema=schema).secret("pw"))
        seen.append(ctx.once("hash", lambda: ran.append("hash") or f"hash of {password}"))
        ctx.ask("question", "Go on?")
        return ToolResult.ok("x")

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", work)]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, {"pw": "hunter2"})
    parked = handle._parked
    assert parked is not None
    assert "hunter2" not in str(parked.to_dict())
    answer_all(rt, handle, 1)
    assert (seen, ran) == (["hash of hunter2", "hash of hunter2"], ["hash"])
    assert dict(rt._core.vault._entries) == {}
