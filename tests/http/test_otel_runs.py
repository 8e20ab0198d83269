"""The spans of whole runs: of a client, streamed or not, and of a tree of agents."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tests.conftest import LIMIT, MakeClient
from tests.helpers import Charge
from tests.http.test_client_run import add
from tests.http.test_otel import BrokenProcessor, Spans, attributes, is_failed
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    Cancelled,
    CancelToken,
    ConfigError,
    LlmError,
    RunTimeoutError,
    tool,
)
from toolnexus.otel import OtelTracing
from toolnexus.testing import ScriptedLlm, call, status, text, tool_call, tool_calls


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


# -- a run of a client -------------------------------------------------------------------------

SECRETS = ("PROMPT", "ARGUMENT", "OUTPUT", "REPLY", "SYSTEM", "PROVIDER", "test-key")


@pytest.fixture
def only_names_and_numbers(spans: Spans) -> Iterator[None]:
    """Check that no span of the test holds content."""
    yield
    for span in spans.ended():
        shown = span.to_json() + repr(span.events)
        assert not [secret for secret in SECRETS if secret in shown]


@tool
def shout(word: str) -> str:
    """Shout a word."""
    return f"OUTPUT {word}"


@pytest.mark.usefixtures("only_names_and_numbers")
def test_a_run_is_a_tree_of_model_calls_and_executions(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    llm.say("m", tool_call("shout", {"word": "ARGUMENT"}), text("REPLY"))
    make_client(tracing=spans.tracing, system_prompt="SYSTEM").run("PROMPT", tools=[shout])

    assert spans.tree() == [("invoke_agent", ["chat m", "execute_tool shout", "chat m"])]
    run, first, execution, last = spans.ended()
    assert not any(is_failed(span) for span in spans.ended())
    assert attributes(run) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.request.model": "m",
        "toolnexus.status": "done",
    }
    asked = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 10,
    }
    assert attributes(first) == {**asked, "gen_ai.response.finish_reasons": ("tool_calls",)}
    assert attributes(last) == {**asked, "gen_ai.response.finish_reasons": ("stop",)}
    sent = llm.requests[1].body["messages"][-1]
    assert attributes(execution) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "shout",
        "gen_ai.tool.call.id": sent["tool_call_id"],
    }


def test_a_run_of_a_client_is_below_its_callers_span(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    llm.say("m", text("hi"))
    with spans.tracer.start_as_current_span("GET /chat"):
        make_client(tracing=spans.tracing).run("go")
    assert spans.tree() == [("GET /chat", [("invoke_agent", ["chat m"])])]


def test_parallel_tools_each_have_their_own_spans_below(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    barrier = threading.Barrier(2)

    @tool
    def query(name: str) -> str:
        """Ask the database."""
        barrier.wait(LIMIT)
        with spans.tracer.start_as_current_span(f"SELECT {name}"):
            barrier.wait(LIMIT)
        return "rows"

    calls = tool_calls(call("query", {"name": "a"}), call("query", {"name": "b"}))
    llm.say("m", calls, text("done"))
    make_client(tracing=spans.tracing).run("go", tools=[query])

    ((_, (first, *executions, last)),) = spans.tree()
    assert (first, last) == ("chat m", "chat m")
    assert sorted(executions) == [("execute_tool query", [f"SELECT {name}"]) for name in "ab"]


@pytest.mark.usefixtures("only_names_and_numbers")
def test_a_parked_run_has_not_failed(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    llm.say("m", tool_call("charge_card"))
    charge = Charge(prompt="PROMPT")
    assert make_client(tracing=spans.tracing).run("go", tools=[charge]).status == "pending"

    assert spans.tree() == [("invoke_agent", ["chat m", "execute_tool charge_card"])]
    assert not any(is_failed(span) for span in spans.ended())
    for name in ("invoke_agent", "execute_tool charge_card"):
        assert attributes(spans.named(name))["toolnexus.status"] == "pending"


@pytest.mark.usefixtures("only_names_and_numbers")
def test_a_provider_that_fails_fails_the_call_and_the_run(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    llm.say("m", status(400, "PROVIDER says: PROMPT"))
    with pytest.raises(LlmError):
        make_client(tracing=spans.tracing).run("PROMPT")

    assert spans.tree() == [("invoke_agent", ["chat m"])]
    for span in spans.ended():
        assert is_failed(span)
        assert attributes(span)["error.type"] == "400"


def test_a_request_with_its_retries_is_one_span(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    llm.say("m", status(503), status(503), text("hi"))
    make_client(tracing=spans.tracing, retries=2, retry_base_ms=0).run("go")
    assert spans.tree() == [("invoke_agent", ["chat m"])]
    assert not any(is_failed(span) for span in spans.ended())


@pytest.mark.usefixtures("only_names_and_numbers")
def test_a_tool_that_fails_fails_its_span_alone(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError("OUTPUT")

    llm.say("m", tool_call("fail"), text("done"))
    make_client(tracing=spans.tracing).run("go", tools=[fail])
    assert [span.name for span in spans.ended() if is_failed(span)] == ["execute_tool fail"]
    assert attributes(spans.named("execute_tool fail"))["error.type"] == "tool_error"


def test_what_was_never_executed_has_no_span(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    llm.say("m", tool_calls(call("ghost"), call("add", "nonsense")), text("done"))
    make_client(tracing=spans.tracing).run("go", tools=[add])
    assert spans.tree() == [("invoke_agent", ["chat m", "chat m"])]


def test_a_cancelled_run_has_not_failed(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    token = CancelToken()

    @tool
    def stop() -> str:
        """Stop the run."""
        token.cancel()
        return "stopped"

    llm.say("m", tool_call("stop"))
    with pytest.raises(Cancelled):
        make_client(tracing=spans.tracing).run("go", tools=[stop], cancel=token)
    assert spans.tree() == [("invoke_agent", ["chat m", "execute_tool stop"])]
    assert not any(is_failed(span) for span in spans.ended())
    assert attributes(spans.named("invoke_agent"))["toolnexus.status"] == "interrupted"


def test_a_late_run_has_failed(make_client: MakeClient, spans: Spans) -> None:
    with pytest.raises(RunTimeoutError):
        make_client(tracing=spans.tracing, timeout_ms=0).run("go")
    assert is_failed(spans.named("invoke_agent"))
    assert attributes(spans.named("invoke_agent"))["error.type"] == "RunTimeoutError"


def test_a_recorder_that_fails_does_not_fail_the_run(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BrokenProcessor())
    llm.say("m", tool_call("add", {"a": 1, "b": 2}), text("3"))
    with caplog.at_level(logging.ERROR, "toolnexus"):
        client = make_client(tracing=OtelTracing(provider))
        assert client.run("go", tools=[add]).text == "3"
    assert "the disk is full" in caplog.text


@pytest.mark.parametrize("given", ["otel", 3, object()])
def test_what_cannot_trace_is_refused(given: object, make_client: MakeClient) -> None:
    with pytest.raises(ConfigError, match="tracing"):
        make_client(tracing=given)


def test_a_streamed_run_has_the_same_tree_and_shows_its_spans_to_nobody(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    llm.say("m", tool_call("add", {"a": 1, "b": 2}), text("3"))
    client = make_client(tracing=spans.tracing)
    with spans.tracer.start_as_current_span("GET /chat") as request:
        kinds = []
        for event in client.stream("go", tools=[add]):
            assert trace.get_current_span() is request
            kinds.append(event.kind)
    assert kinds[-1] == "done"
    assert spans.tree() == [
        ("GET /chat", [("invoke_agent", ["chat m", "execute_tool add", "chat m"])])
    ]
    assert not any(is_failed(span) for span in spans.ended())
    assert attributes(spans.named("invoke_agent"))["toolnexus.status"] == "done"


def test_a_stream_that_is_closed_ends_its_spans_without_failure(
    llm: ScriptedLlm, make_client: MakeClient, spans: Spans
) -> None:
    llm.say("m", text("one two three"))
    events = make_client(tracing=spans.tracing).stream("go")
    assert next(events).kind == "text"
    events.close()
    assert spans.tree() == [("invoke_agent", ["chat m"])]
    assert not any(is_failed(span) for span in spans.ended())
    for span in spans.ended():
        assert attributes(span)["toolnexus.status"] == "interrupted"


# -- a tree of agents --------------------------------------------------------------------------

MakeRuntime = Callable[..., AgentRuntime]


def team(*tools: Any) -> tuple[AgentDef, AgentDef]:
    """Return a boss and the worker it delegates to."""
    worker = AgentDef("worker", does="works", tools=tools, model="m-worker")
    return AgentDef("boss", team=["worker"], model="m-boss"), worker


TASK = {"agent": "worker", "prompt": "PROMPT"}


@pytest.mark.parametrize("max_workers", [1, 4])
@pytest.mark.usefixtures("only_names_and_numbers")
def test_a_delegated_agent_is_below_the_call_that_delegates(
    llm: ScriptedLlm, make_runtime: MakeRuntime, spans: Spans, max_workers: int
) -> None:
    llm.say("m-boss", tool_call("task", TASK), text("REPLY"))
    llm.say("m-worker", tool_call("shout", {"word": "ARGUMENT"}), text("REPLY"))
    rt = make_runtime(*team(shout), tracing=spans.tracing, max_workers=max_workers)
    boss = rt.spawn(rt.root, "boss").handle
    assert rt.run_turn(boss, "PROMPT", timeout=LIMIT).status == "done"

    inner = ["chat m-worker", "execute_tool shout", "chat m-worker"]
    delegated = ("execute_tool task", [("invoke_agent worker", inner)])
    assert spans.tree() == [("invoke_agent boss", ["chat m-boss", delegated, "chat m-boss"])]
    assert attributes(spans.named("invoke_agent worker")) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "worker",
        "gen_ai.agent.id": "root/boss.1/worker.1",
        "gen_ai.request.model": "m-worker",
        "toolnexus.status": "done",
    }
    assert not any(is_failed(span) for span in spans.ended())


def test_two_agents_at_once_are_each_below_their_own_call(
    llm: ScriptedLlm, make_runtime: MakeRuntime, spans: Spans
) -> None:
    llm.say("m-boss", tool_calls(call("task", TASK), call("task", TASK)), text("done"))
    llm.say("m-worker", text("one"), text("two"))
    rt = make_runtime(*team(), tracing=spans.tracing)
    rt.run_turn(rt.spawn(rt.root, "boss").handle, "go", timeout=LIMIT)

    each = ("execute_tool task", [("invoke_agent worker", ["chat m-worker"])])
    assert spans.tree() == [("invoke_agent boss", ["chat m-boss", each, each, "chat m-boss"])]


def test_a_turn_is_below_the_span_of_whoever_woke_it(
    llm: ScriptedLlm, make_runtime: MakeRuntime, spans: Spans
) -> None:
    llm.say("m-worker", text("done"))
    rt = make_runtime(*team(), tracing=spans.tracing)
    handle = rt.spawn(rt.root, "worker").handle
    with spans.tracer.start_as_current_span("POST /wake"):
        rt.wake(handle, "go")
    assert rt.wait_on(handle, timeout=LIMIT).status == "done"
    assert spans.tree() == [("POST /wake", [("invoke_agent worker", ["chat m-worker"])])]


@pytest.mark.usefixtures("only_names_and_numbers")
def test_a_parked_tree_and_its_resume_have_not_failed(
    llm: ScriptedLlm, make_runtime: MakeRuntime, spans: Spans
) -> None:
    llm.say("m-boss", tool_call("task", TASK), text("REPLY"))
    llm.say("m-worker", tool_call("charge_card"), text("REPLY"))
    rt = make_runtime(*team(Charge(prompt="PROMPT")), tracing=spans.tracing)
    handle = rt.spawn(rt.root, "boss").handle
    parked = rt.run_turn(handle, "PROMPT", timeout=LIMIT)
    assert parked.pending is not None

    asks = ("invoke_agent worker", ["chat m-worker", "execute_tool charge_card"])
    before = ("invoke_agent boss", ["chat m-boss", ("execute_tool task", [asks])])
    assert spans.tree() == [before]
    for span in spans.ended():
        if not span.name.startswith("chat"):
            assert attributes(span)["toolnexus.status"] == "pending"

    with spans.tracer.start_as_current_span("POST /answer"):
        rt.resume(Answer(parked.pending.id, ok=True))
    assert rt.wait_on(handle, timeout=LIMIT).status == "done"

    goes_on = ("invoke_agent worker", ["execute_tool charge_card", "chat m-worker"])
    after = ("invoke_agent boss", ["execute_tool task", "chat m-boss"])
    assert spans.tree() == [before, ("POST /answer", [goes_on, after])]
    assert not any(is_failed(span) for span in spans.ended())


def test_a_provider_that_fails_a_delegated_agent_is_a_failure_up_to_the_call(
    llm: ScriptedLlm, make_runtime: MakeRuntime, spans: Spans
) -> None:
    llm.say("m-boss", tool_call("task", TASK), text("It failed."))
    llm.say("m-worker", status(500, "PROVIDER"))
    rt = make_runtime(*team(), tracing=spans.tracing)
    rt.run_turn(rt.spawn(rt.root, "boss").handle, "go", timeout=LIMIT)

    failed = {
        span.name: attributes(span)["error.type"] for span in spans.ended() if is_failed(span)
    }
    assert failed == {
        "chat m-worker": "500",
        "invoke_agent worker": "500",
        "execute_tool task": "tool_error",
    }


def test_an_interrupted_turn_has_not_failed(
    llm: ScriptedLlm, make_runtime: MakeRuntime, spans: Spans
) -> None:
    hold = threading.Event()
    llm.say("m-worker", text("late").held_by(hold))
    rt = make_runtime(*team(), tracing=spans.tracing)
    handle = rt.spawn(rt.root, "worker").handle
    rt.wake(handle, "go")
    llm.wait_asked("m-worker")
    rt.interrupt(handle)
    hold.set()
    rt.close(rt.root, force=True)

    assert spans.tree() == [("invoke_agent worker", ["chat m-worker"])]
    for span in spans.ended():
        assert not is_failed(span)
        assert attributes(span)["toolnexus.status"] == "interrupted"


def test_a_turn_that_never_leaves_the_queue_has_no_span(
    llm: ScriptedLlm, make_runtime: MakeRuntime, spans: Spans
) -> None:
    hold = threading.Event()
    llm.say("m-worker", text("done").held_by(hold))
    rt = make_runtime(*team(), tracing=spans.tracing, budget=Budget(max_concurrent=1))
    first, second = (rt.spawn(rt.root, "worker").handle for _ in range(2))
    rt.wake(first, "go")
    rt.wake(second, "go")
    llm.wait_asked("m-worker")
    rt.interrupt(second)
    hold.set()
    assert rt.wait_on(first, timeout=LIMIT).status == "done"
    assert spans.tree() == [("invoke_agent worker", ["chat m-worker"])]
