"""The seam of tracing: what a recorder raises stays there, and nothing holds content."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import attrs
import pytest

from toolnexus import Cancelled, ConfigError, LlmError, Request, RunTimeoutError, ToolResult
from toolnexus.client import tracing
from toolnexus.client.tracing import NO_SPAN, NoTracing, Span, Tracing, guarded
from toolnexus.messages import STATUSES, ToolCall, Usage
from toolnexus.wire.base import ModelReply, ModelRequest


@attrs.define
class Recorded:
    """A span that keeps what it is told."""

    name: str = ""
    attributes: dict[str, Any] = attrs.field(factory=dict)
    children: list[Recorded] = attrs.field(factory=list)
    calls: list[str] = attrs.field(factory=list)
    ends: list[tuple[str | None, str | None]] = attrs.field(factory=list)

    def child(self, operation: str, name: str, attributes: Mapping[str, Any]) -> Recorded:
        self.children.append(Recorded(f"{operation} {name}", dict(attributes)))
        return self.children[-1]

    def set(self, attributes: Mapping[str, Any]) -> None:
        self.attributes.update(attributes)

    @contextmanager
    def current(self) -> Iterator[None]:
        self.calls.append("enter")
        try:
            yield
        except BaseException as error:
            self.calls.append(f"saw {error!r}")
            raise
        self.calls.append("exit")

    def end(self, error: str | None = None, error_type: str | None = None) -> None:
        self.ends.append((error, error_type))


class Recorder:
    """Tracing that keeps its spans."""

    def __init__(self) -> None:
        self.root = Recorded("root")

    def start(self, name: str, attributes: Mapping[str, Any]) -> Span:
        return self.root.child("invoke_agent", name, attributes)


class Broken:
    """Tracing and span at once; whatever is named in `failing` raises."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing

    def _do(self, what: str) -> Broken:
        if what in self.failing:
            raise OSError(f"{what} of the exporter")
        return self

    def start(self, name: str, attributes: Mapping[str, Any]) -> Span:
        return self._do("start")

    def child(self, operation: str, name: str, attributes: Mapping[str, Any]) -> Span:
        return self._do("child")

    def set(self, attributes: Mapping[str, Any]) -> None:
        self._do("set")

    def current(self) -> AbstractContextManager[object]:
        self._do("current")
        return self

    def __enter__(self) -> object:
        return self._do("enter")

    def __exit__(self, *_: object) -> bool:
        self._do("exit")
        return True

    def end(self, error: str | None = None, error_type: str | None = None) -> None:
        self._do("end")


def trace_a_call(traced: Tracing) -> str:
    """Trace a run with one execution as the loop does; return what the execution gave."""
    run = traced.start("agent", {})
    call = run.child("execute_tool", "add", {})
    with call.current():
        given = "3"
    call.set({"a": 1})
    call.end()
    run.end("no", "E")
    return given


def test_a_run_without_tracing_records_nothing_and_makes_no_object() -> None:
    traced = guarded(None)
    assert isinstance(traced, NoTracing)
    span = traced.start("agent", {"a": 1})
    assert span is NO_SPAN
    assert span.child("chat", "m", {}) is NO_SPAN
    assert span.current() is span.current()
    assert trace_a_call(traced) == "3"


def test_the_span_of_nobody_can_be_active_within_itself() -> None:
    with NO_SPAN.current(), NO_SPAN.current():
        NO_SPAN.set({})
    NO_SPAN.end()


def test_a_recorder_gets_everything() -> None:
    recorder = Recorder()
    assert trace_a_call(guarded(recorder)) == "3"

    (run,) = recorder.root.children
    (call,) = run.children
    assert (run.name, call.name) == ("invoke_agent agent", "execute_tool add")
    assert (run.ends, call.ends) == ([("no", "E")], [(None, None)])
    assert call.attributes == {"a": 1}
    assert call.calls == ["enter", "exit"]


@pytest.mark.parametrize("what", ["start", "child", "set", "current", "enter", "exit", "end"])
def test_what_a_recorder_raises_is_logged_and_no_more(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "toolnexus"):
        assert trace_a_call(guarded(Broken(what))) == "3"
    assert f"{what} of the exporter" in caplog.text


def test_a_recorder_that_always_fails_breaks_nothing() -> None:
    everything = ("start", "child", "set", "current", "enter", "exit", "end")
    assert trace_a_call(guarded(Broken(*everything))) == "3"


@pytest.mark.parametrize("error", [ValueError("secret"), KeyboardInterrupt(), GeneratorExit()])
def test_what_a_tool_raises_passes_a_recorder_by(error: BaseException) -> None:
    recorder = Recorder()
    swallowing = guarded(Broken()).start("", {})
    span = guarded(recorder).start("", {})
    with pytest.raises(type(error)) as raised, swallowing.current(), span.current():
        raise error
    assert raised.value is error
    assert recorder.root.children[0].calls == ["enter", "exit"]


def test_an_interrupt_in_a_recorder_is_not_swallowed() -> None:
    class Interrupted(Broken):
        def _do(self, what: str) -> Broken:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(Interrupted()).start("", {})


# -- what is said of a run, a request and a call -----------------------------------------------


def test_a_run_says_its_model_agent_and_handle() -> None:
    assert tracing.run_attributes("m", "boss", "root/boss.1") == {
        "gen_ai.request.model": "m",
        "gen_ai.agent.name": "boss",
        "gen_ai.agent.id": "root/boss.1",
    }
    assert set(tracing.run_attributes("").values()) == {None}


def test_a_request_says_provider_and_model_and_no_content() -> None:
    request = ModelRequest(model="m", messages=[{"role": "user", "content": "s"}], system="s")
    assert tracing.chat_attributes(request, "anthropic") == {
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "m",
    }


def test_a_reply_says_why_it_ended_and_what_it_cost() -> None:
    reply = ModelReply(message={}, text="s", usage=Usage(30, 10, 40), finish_reason="length")
    assert tracing.reply_attributes(reply) == {
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 10,
    }


def test_a_reply_whose_tokens_nobody_counted_says_none() -> None:
    said = tracing.reply_attributes(ModelReply(message={}))
    assert said["gen_ai.usage.input_tokens"] is said["gen_ai.usage.output_tokens"] is None


def test_a_call_says_its_name_and_id_and_not_its_arguments() -> None:
    assert tracing.call_attributes(ToolCall("call_1", "add", '{"a": 1}')) == {
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": "call_1",
    }


@pytest.mark.parametrize(
    ("result", "status", "end"),
    [
        (ToolResult.ok("s"), None, (None, None)),
        (ToolResult.pending(Request("approval", "s")), "pending", (None, None)),
        (ToolResult.error("s"), None, ("the tool's result is an error", "tool_error")),
    ],
)
def test_a_call_that_asks_has_not_failed(
    result: ToolResult, status: str | None, end: tuple[str | None, str | None]
) -> None:
    span = Recorded()
    tracing.end_call(span, result)
    assert span.attributes.get(tracing.STATUS) == status
    assert span.ends == [end]


@pytest.mark.parametrize("status", STATUSES)
def test_a_run_has_failed_only_where_its_status_is_error(status: Any) -> None:
    span = Recorded()
    tracing.end_run(span, status)
    assert span.attributes == {"toolnexus.status": status}
    is_failed = status == "error"
    assert span.ends == [("the run failed", "_OTHER") if is_failed else (None, None)]


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (LlmError("LLM 429: s", 429), "429"),
        (LlmError("LLM 302: s", 302), "302"),
        (LlmError("LLM 200: s", 200), "LlmError"),
        (LlmError("s"), "LlmError"),
        (RunTimeoutError("run timeout after 1ms"), "RunTimeoutError"),
        (ConfigError("s"), "ConfigError"),
        (MemoryError("s"), "MemoryError"),
    ],
)
def test_a_failure_is_told_by_its_sort_and_not_in_its_words(
    error: BaseException, error_type: str
) -> None:
    span = Recorded()
    tracing.end_failed(span, error)
    assert span.attributes == {"toolnexus.status": "error"}
    assert span.ends == [(error_type, error_type)]


@pytest.mark.parametrize("make", [Cancelled, GeneratorExit, KeyboardInterrupt])
def test_to_be_stopped_is_no_failure(make: Callable[[], BaseException]) -> None:
    span = Recorded()
    tracing.end_failed(span, make())
    assert span.attributes == {"toolnexus.status": "interrupted"}
    assert span.ends == [(None, None)]
