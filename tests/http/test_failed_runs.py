"""A run of a bare client that failed goes on from where it stood, and repeats nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.runtime.support import Pay, Probe
from toolnexus import (
    Answer,
    CallState,
    Cancelled,
    CancelToken,
    Checkpoint,
    Hooks,
    LlmError,
    MetricEvent,
    Request,
    RunResult,
    RunTimeoutError,
    Tool,
    ToolContext,
    ToolResult,
    agent,
)
from toolnexus.agents.agent import AgentTool
from toolnexus.testing import (
    ScriptedLlm,
    VirtualClock,
    call,
    status,
    text,
    tool_call,
    tool_calls,
)
from toolnexus.wire.base import ModelRequest

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])


def only_id(result: RunResult) -> str:
    assert result.pending is not None
    return result.pending.id


def saved(result: RunResult) -> Any:
    """Return the checkpoint as another process would read it."""
    assert result.checkpoint is not None
    return json.loads(json.dumps(result.checkpoint.to_dict()))


@STYLES
def test_a_provider_that_is_down_after_the_tool_ran_costs_nothing(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    pay = Pay()
    llm.say("m", tool_call("pay", {"amount": 5}, "c1"), status(500), text("paid"))
    client = make_client(style=style)
    parked = client.run("go", tools=[pay])
    with pytest.raises(LlmError) as caught:
        client.resume(saved(parked), Answer(only_id(parked), True), tools=[pay])
    left = caught.value.checkpoint
    assert left is not None
    assert left.requests == ()

    result = client.resume(json.loads(json.dumps(left.to_dict())), tools=[pay])
    assert (result.text, pay.paid) == ("paid", [(5, only_id(parked))])
    assert llm.requests[2].body == llm.requests[1].body
    assert result.turns == 2


def test_a_fresh_run_that_failed_goes_on_from_its_error(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    look = Probe("look")
    llm.say("m", status(500), tool_call("look"), status(500), text("done"))
    client = make_client()
    with pytest.raises(LlmError) as caught:
        client.run("go", tools=[look])
    assert caught.value.checkpoint is not None
    with pytest.raises(LlmError) as again:
        client.resume(caught.value.checkpoint, tools=[look])
    assert again.value.checkpoint is not None
    assert client.resume(again.value.checkpoint, tools=[look]).text == "done"

    assert len(look.runs) == 1
    assert llm.requests[3].body == llm.requests[2].body


def test_a_cancelled_run_says_truthfully_what_was_in_flight(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    stop = CancelToken()

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        stop.cancel("enough")
        ctx.cancel.raise_if_cancelled()
        return ToolResult.ok()

    llm.say("m", tool_call("work", {}, "c1"), text("I see"))
    client, tools = make_client(), [Probe("work", work)]
    with pytest.raises(Cancelled, match="enough") as caught:
        client.run("go", tools=tools, cancel=stop)
    left = caught.value.checkpoint
    assert left is not None
    assert client.resume(left, tools=tools).text == "I see"
    assert llm.requests[1].tool_results == {
        "c1": "enough while the call was in flight: it may or may not have taken effect"
    }
    assert len(tools[0].runs) == 1


def test_a_late_run_goes_on_too(llm: ScriptedLlm, make_client: MakeClient) -> None:
    clock = VirtualClock()

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        clock.advance(2)
        return ToolResult.ok("worked")

    tools = [Probe("work", work)]
    llm.say("m", tool_call("work"), text("done"))
    client = make_client(clock=clock, timeout_ms=1000)
    with pytest.raises(RunTimeoutError, match="run timeout after 1000ms") as caught:
        client.run("go", tools=tools)
    assert caught.value.checkpoint is not None
    assert client.resume(caught.value.checkpoint, tools=tools).text == "done"
    assert len(tools[0].runs) == 1


def test_a_call_that_was_in_flight_when_its_process_died_may_have_taken_effect(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    asked = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    halted = Checkpoint(
        run="r",
        base=0,
        messages=(
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [asked]},
        ),
        calls=(CallState("c1", "pay", "{}", status="started", attempt=1),),
        turns=1,
    )
    pay = Pay()
    llm.say("m", text("I see"))
    assert make_client().resume(halted, tools=[pay]).text == "I see"
    assert pay.runs == []
    assert "may or may not have taken effect" in llm.requests[0].tool_results["c1"]


class FailsOnce(Hooks):
    """A hook that fails at the second request."""

    def __init__(self) -> None:
        self.requests = 0

    def before_llm(self, request: ModelRequest) -> None:
        self.requests += 1
        if self.requests == 2:
            raise RuntimeError("the hook is broken")


def test_whatever_a_run_failed_of_says_where_it_stands(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pay, client = Pay(), make_client(hooks=FailsOnce())
    llm.say("m", tool_call("pay", {"amount": 5}), text("paid"))
    parked = client.run("go", tools=[pay])
    with pytest.raises(RuntimeError, match="broken") as caught:
        client.resume(saved(parked), Answer(only_id(parked), True), tools=[pay])
    left = getattr(caught.value, "checkpoint", None)
    assert isinstance(left, Checkpoint)
    assert client.resume(left, tools=[pay]).text == "paid"
    assert len(pay.paid) == 1


class FailsAt(Hooks):
    """Hooks of which one method fails, the first time that it is called late enough."""

    def __init__(self, place: str, error: Exception) -> None:
        self.replies, self.place, self.error = 0, place, error
        self.has_failed = False

    def before_llm(self, request: ModelRequest) -> None:
        self.replies += 1
        self._fail("before_llm")

    def on_text(self, piece: str) -> None:
        self._fail("on_text")

    def _fail(self, place: str) -> None:
        if place == self.place and self.replies == 2 and not self.has_failed:
            self.has_failed = True
            raise self.error


class Hosts(Exception):
    """An error of the host's own, which has a place for it."""

    checkpoint: Checkpoint | None = None


@STYLES
@pytest.mark.parametrize("place", ["before_llm", "on_text"])
@pytest.mark.parametrize("error", [RuntimeError("broken"), Hosts("broken"), OSError(5, "x")])
def test_foreign_code_that_ends_a_run_costs_no_finished_tool(
    llm: ScriptedLlm, make_client: MakeClient, style: str, place: str, error: Exception
) -> None:
    look, hooks = Probe("look"), FailsAt(place, error)
    client = make_client(hooks=hooks, style=style)
    llm.say("m", tool_call("look", id="c1"), text("seen"), text("seen"))
    with pytest.raises(type(error)) as caught:
        client.ask("go", tools=[look], on_text=hooks.on_text)
    assert caught.value is error
    left = getattr(caught.value, "checkpoint", None)
    assert isinstance(left, Checkpoint)

    result = client.resume(json.loads(json.dumps(left.to_dict())), tools=[look])
    assert (result.text, result.status, len(look.runs)) == ("seen", "done", 1)
    assert llm.requests[-1].tool_results == {"c1": "look done"}


class Clumsy:
    """A tool that asks, and cannot give up what it holds; it may stop its own run."""

    name, description, source = "clumsy", "Ask", "custom"

    def __init__(self, stop: CancelToken | None = None) -> None:
        self.input_schema: dict[str, Any] = {"type": "object"}
        self.stop = stop
        self.given_up: list[str] = []

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if self.stop is not None:
            self.stop.cancel("enough")
        return ToolResult.pending(Request("approval", "May I?"))

    def give_up(self, key: str) -> None:
        self.given_up.append(key)
        raise ValueError("cannot give up")


def statuses(events: list[MetricEvent]) -> list[str]:
    return [one.status for one in events if one.kind == "run"]


def test_a_tool_that_cannot_give_up_hides_neither_a_stop_nor_its_metric(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    stop, events = CancelToken(), list[MetricEvent]()
    asks = Clumsy(stop)
    llm.say("m", tool_call("clumsy"))
    with pytest.raises(Cancelled, match=r"^enough$") as caught:
        make_client(on_metric=events.append).run("go", tools=[asks], cancel=stop)

    assert caught.value.checkpoint is not None
    assert statuses(events) == ["interrupted"]
    assert len(asks.given_up) == 1
    assert "cannot give up" in caplog.text


def test_a_tool_that_cannot_give_up_lets_a_stream_close_in_peace(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    asks, events = Clumsy(), list[MetricEvent]()
    client = make_client(on_metric=events.append, wait_for=lambda request: None)
    llm.say("m", tool_call("clumsy"))
    stream = client.stream("go", tools=[asks])
    assert "pending" in [event.kind for event in (next(stream), next(stream))]
    stream.close()

    assert statuses(events) == ["interrupted"]
    assert len(asks.given_up) == 1
    assert "cannot give up" in caplog.text


# -- a parked agent beside it ---------------------------------------------------------------


def helper(llm: ScriptedLlm, pay: Pay) -> AgentTool:
    one = agent("helper", does="helps", model="h", tools=[pay])
    return one.as_tool(base_url=llm.base_url, api_key="k", retries=0)


def test_an_agent_that_waits_is_still_there_after_the_run_was_stopped(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    inner, pay = Pay(), Pay()
    used = helper(llm, inner)
    tools: list[Tool] = [used, pay]
    calls = (call("helper", {"prompt": "x"}, "c1"), call("pay", {"amount": 1}, "c2"))
    llm.say("m", tool_calls(*calls), text("done"))
    llm.say("h", tool_call("pay", {"amount": 9}), text("helped"))
    client, stop = make_client(), CancelToken()
    parked = client.ask("go", id="u1", tools=tools)
    assert parked.checkpoint is not None
    one, two = (Answer(request.id, True) for request in parked.checkpoint.requests)

    stop.cancel("shutting down")
    with pytest.raises(Cancelled) as caught:
        client.resume(parked.checkpoint, two, tools=tools, cancel=stop)
    left = caught.value.checkpoint
    assert left is not None
    result = client.resume(left, one, tools=tools)
    used.close()
    assert result.text == "done"
    assert llm.requests_of("m")[1].tool_results == {"c1": "helped", "c2": "paid 1"}
    assert len(inner.paid) == len(pay.paid) == 1


def test_an_agent_whose_question_is_superseded_is_given_up(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    # The fixture that looks for threads is what fails where its runtime is left open.
    used = helper(llm, Pay())
    llm.say("m", tool_call("helper", {"prompt": "x"}), text("as you like"))
    llm.say("h", tool_call("pay", {"amount": 9}))
    client = make_client()
    client.ask("go", id="u1", tools=[used])
    client.ask("Never mind.", id="u1", tools=[used], supersede=True)
    left = dict(used._parked)
    used.close()
    assert left == {}
