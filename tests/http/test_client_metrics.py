"""Metric events: one for each model call, execution and run, with exact values."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import pytest

from tests.conftest import MakeClient
from tests.helpers import Charge
from tests.http.test_client_run import add
from toolnexus import (
    Answer,
    Cancelled,
    CancelToken,
    Hooks,
    LlmClient,
    LlmError,
    MetricEvent,
    RunTimeoutError,
    ToolResult,
    Usage,
    tool,
)
from toolnexus.testing import (
    ScriptedLlm,
    VirtualClock,
    call,
    status,
    text,
    tool_call,
    tool_calls,
)

FORTY = Usage(30, 10, 40)


def facts(events: list[MetricEvent]) -> list[MetricEvent]:
    """Return the events without the time they took."""
    return [attrs.evolve(event, ms=0) for event in events]


def test_a_run_tells_each_call_each_execution_and_itself_last(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    events: list[MetricEvent] = []
    llm.say("m", tool_call("add", {"a": 1, "b": 2}), text("3"))
    make_client(on_metric=events.append).run("go", tools=[add])

    assert facts(events) == [
        MetricEvent(kind="llm", ms=0, model="m", status="ok", usage=FORTY),
        MetricEvent(kind="tool", ms=0, tool="add", source="native"),
        MetricEvent(kind="llm", ms=0, model="m", status="ok", usage=FORTY),
        MetricEvent(kind="run", ms=0, model="m", status="done", usage=FORTY + FORTY),
    ]
    assert all(event.ms >= 0 for event in events)


def test_times_are_milliseconds_of_the_clock(llm: ScriptedLlm, make_client: MakeClient) -> None:
    events: list[MetricEvent] = []
    clock = VirtualClock()

    @tool
    def dawdle() -> str:
        """Take two seconds."""
        clock.advance(2.0)
        return "done"

    llm.say("m", tool_call("dawdle"), text("done"))
    make_client(on_metric=events.append, clock=clock).run("go", tools=[dawdle])

    assert [(event.kind, event.ms) for event in events] == [
        ("llm", 0.0),
        ("tool", 2000.0),
        ("llm", 0.0),
        ("run", 2000.0),
    ]


def test_a_suspension_is_no_error_and_its_retry_is_another_event(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    events: list[MetricEvent] = []
    llm.say("m", tool_call("charge_card"), text("done"))
    make_client(on_metric=events.append, wait_for=lambda request: Answer(request.id, True)).run(
        "go", tools=[Charge()]
    )

    tools = [(e.is_error, e.pending, e.source) for e in events if e.kind == "tool"]
    assert tools == [(False, True, "custom"), (False, False, "custom")]


def test_a_decline_is_no_execution(llm: ScriptedLlm, make_client: MakeClient) -> None:
    events: list[MetricEvent] = []
    llm.say("m", tool_call("charge_card"), text("done"))
    make_client(on_metric=events.append, wait_for=lambda request: None).run(
        "go", tools=[Charge()]
    )

    assert [(e.pending, e.is_error) for e in events if e.kind == "tool"] == [(True, False)]


def test_a_parked_run_is_pending_without_an_error(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    events: list[MetricEvent] = []
    llm.say("m", tool_call("charge_card"))
    make_client(on_metric=events.append).run("go", tools=[Charge()])

    assert facts(events)[-1] == MetricEvent(
        kind="run", ms=0, model="m", status="pending", usage=FORTY
    )


def test_a_capped_run_is_incomplete_without_an_error(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    events: list[MetricEvent] = []
    llm.say("m", tool_call("add", {"a": 1, "b": 2}))
    make_client(on_metric=events.append, max_turns=1).run("go", tools=[add])

    assert (events[-1].kind, events[-1].status, events[-1].error) == ("run", "incomplete", None)


def test_a_failed_call_counts_no_tokens_and_fails_the_run(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    events: list[MetricEvent] = []
    llm.say("m", tool_call("add", {"a": 1, "b": 2}), status(400, "no"))
    with pytest.raises(LlmError):
        make_client(on_metric=events.append).run("go", tools=[add])

    assert facts(events)[2:] == [
        MetricEvent(kind="llm", ms=0, model="m", status="error", error="LLM 400: no"),
        MetricEvent(
            kind="run", ms=0, model="m", status="error", usage=FORTY, error="LLM 400: no"
        ),
    ]


def test_a_call_with_its_retries_is_one_event(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    events: list[MetricEvent] = []
    llm.say("m", status(503), status(503), text("hi"))
    make_client(on_metric=events.append, retries=2, retry_base_ms=0).run("go")

    assert [(event.kind, event.status) for event in events] == [("llm", "ok"), ("run", "done")]


def test_a_cancelled_run_says_so_once(llm: ScriptedLlm, make_client: MakeClient) -> None:
    events: list[MetricEvent] = []
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        make_client(on_metric=events.append).run("go", cancel=token)

    assert facts(events) == [
        MetricEvent(kind="run", ms=0, model="m", status="interrupted")  # it did not fail
    ]


def test_a_late_run_says_so(llm: ScriptedLlm, make_client: MakeClient) -> None:
    events: list[MetricEvent] = []
    with pytest.raises(RunTimeoutError):
        make_client(on_metric=events.append, timeout_ms=0).run("go")

    assert (events[-1].kind, events[-1].error) == ("run", "run timeout after 0ms")
    assert [event.kind for event in events].count("run") == 1


def test_a_failing_tool_is_an_error_event(llm: ScriptedLlm, make_client: MakeClient) -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError("no")

    events: list[MetricEvent] = []
    llm.say("m", tool_call("fail"), text("done"))
    make_client(on_metric=events.append).run("go", tools=[fail])

    assert [(e.tool, e.is_error, e.pending) for e in events if e.kind == "tool"] == [
        ("fail", True, False)
    ]


def test_a_short_circuit_counts_as_an_execution(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Cache(Hooks):
        def before_tool(self, *_: Any) -> ToolResult:
            return ToolResult.ok("3")

    events: list[MetricEvent] = []
    llm.say("m", tool_call("add", {"a": 1, "b": 2}), text("done"))
    make_client(on_metric=events.append, hooks=Cache()).run("go", tools=[add])

    assert [e.tool for e in events if e.kind == "tool"] == ["add"]


def test_what_was_never_executed_is_no_tool_event(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    events: list[MetricEvent] = []
    llm.say("m", tool_calls(call("ghost"), call("add", "nonsense")), text("done"))
    make_client(on_metric=events.append).run("go", tools=[add])

    assert [event.kind for event in events] == ["llm", "llm", "run"]


def test_an_on_metric_that_fails_is_logged_and_no_more(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    llm.say("m", text("hi"))
    with caplog.at_level(logging.ERROR, "toolnexus"):
        assert make_client(on_metric=lambda event: 1 / 0).run("go").text == "hi"

    assert caplog.text.count("on_metric failed") >= 2


def run_errors(client: LlmClient) -> list[str]:
    """Return the lines that count failed runs."""
    lines = client.metrics().splitlines()
    return [line for line in lines if line.startswith("toolnexus_run_errors_total")]


def test_a_run_that_was_stopped_is_no_run_error_and_one_that_failed_is(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client, before, within = make_client(), CancelToken(), CancelToken()
    before.cancel()
    with pytest.raises(Cancelled):
        client.run("go", cancel=before)
    llm.say("m", text("hello"), text("hello"), status(500))
    stream = client.stream("go", cancel=within)
    next(stream)
    within.cancel("enough")
    with pytest.raises(Cancelled):
        next(stream)
    dropped = client.stream("go")
    next(dropped)
    dropped.close()
    assert run_errors(client) == []

    with pytest.raises(LlmError):
        client.run("go")
    assert run_errors(client) == ['toolnexus_run_errors_total{model="m"} 1']
