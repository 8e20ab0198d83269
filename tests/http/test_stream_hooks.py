"""Limits, hooks and metrics of a streamed run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.helpers import Charge
from tests.http.raw_servers import Background
from tests.http.streaming import (
    STYLES,
    Bomb,
    Waits,
    Watching,
    kinds,
    result_in,
    results,
    seen_before,
)
from toolnexus import (
    Answer,
    Hooks,
    ToolContext,
    ToolResult,
)
from toolnexus.messages import ToolCall
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

InBackground = Callable[[Callable[[], Any]], Background]


def test_the_turn_cap_ends_a_stream_without_usage(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", *(tool_call("bomb", {"n": n}) for n in range(2)))
    events = list(make_client(max_turns=2).stream("go", tools=[Bomb()]))

    assert kinds(events) == ["tool_call", "tool_result", "tool_call", "tool_result", "done"]
    assert (result_in(events).status, result_in(events).limit) == ("incomplete", "maxTurns")


def test_usage_is_the_whole_runs_and_told_once(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("bomb", usage=(1, 2)), tool_call("bomb", usage=(10, 20)))
    llm.say("m", text("done", usage=(100, 200)))
    events = list(make_client().stream("go", tools=[Bomb()]))
    (usage,) = [event.usage for event in events if event.kind == "usage"]

    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (111, 222, 333)
    assert usage == result_in(events).usage


class Changing(Hooks):
    """Rewrites arguments, answers one call itself, changes results, and takes a tool away."""

    def __init__(self) -> None:
        self.after: list[tuple[str, str]] = []

    def before_tool(
        self, call: ToolCall, args: Mapping[str, Any], ctx: ToolContext
    ) -> ToolResult | Mapping[str, Any] | None:
        if call.id == "c1":
            return ToolResult.ok("answered by the hook")
        return {**args, "says": "rewritten"} if call.id == "c2" else None

    def after_tool(
        self, call: ToolCall, args: Mapping[str, Any], result: ToolResult
    ) -> ToolResult | None:
        self.after.append((call.id, result.output))
        return ToolResult.ok(result.output.upper())


@STYLES
def test_hooks_do_to_a_stream_what_they_do_to_a_run(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    replies = [
        tool_calls(call("waits", {}, "c1"), call("waits", {}, "c2"), call("waits", {}, "c3")),
        text("done"),
    ]
    llm.say("m", *replies, *replies)
    client = make_client(style=style, hooks=Changing())
    plain = client.run("go", tools=[Waits()])
    events = list(client.stream("go", tools=[Waits()]))

    assert results(events) == [
        ("c1", "ANSWERED BY THE HOOK"),
        ("c2", "REWRITTEN"),
        ("c3", "WAITED"),
    ]
    assert result_in(events) == plain


def test_after_llm_knows_that_it_was_streamed_and_gets_the_whole_reply(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    watching = Watching()
    llm.say("m", tool_call("bomb", {"n": 1}, "c1", content="Now."), text("done"))
    list(make_client(**watching.options).stream("go", tools=[Bomb()]))
    first, second = [seen[1] for seen in watching.seen if seen[0] == "after_llm"]

    assert watching.streamed == [True, True]
    assert (first.text, [one.arguments for one in first.calls]) == ("Now.", ['{"n":1}'])
    assert (second.text, second.usage.total_tokens) == ("done", 40)


def test_a_suspension_is_counted_as_one_and_not_as_an_error(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    watching = Watching()
    llm.say("m", tool_call("charge_card"), text("done"))
    client = make_client(wait_for=lambda r: Answer(r.id, True), on_metric=watching.on_metric)
    list(client.stream("go", tools=[Charge()]))

    assert [(m.kind, m.status, m.pending, m.is_error) for m in watching.metrics] == [
        ("llm", "ok", False, False),
        ("tool", "", True, False),
        ("tool", "", False, False),
        ("llm", "ok", False, False),
        ("run", "done", False, False),
    ]


def test_the_run_is_counted_before_its_last_events_are_told(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    watching = Watching()
    llm.say("m", text("hello"))
    client = make_client(on_metric=watching.on_metric)
    seen_before(client.stream("hi"), "done")

    assert [metric.kind for metric in watching.metrics] == ["llm", "run"]
    assert 'toolnexus_llm_requests_total{model="m",status="ok"} 1' in client.metrics()


def test_a_before_hook_that_raises_ends_the_stream_before_anything_is_asked(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Shut(Hooks):
        def before_llm(self, request: Any) -> None:
            raise PermissionError("not today")

    with pytest.raises(PermissionError, match="not today"):
        next(make_client(hooks=Shut()).stream("hi"))
    assert llm.requests == []
