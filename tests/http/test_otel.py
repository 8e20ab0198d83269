"""OpenTelemetry spans: what they are called, what is below what, and which have failed."""

from __future__ import annotations

import contextvars
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.conftest import LIMIT
from toolnexus import (
    ConfigError,
)
from toolnexus.client.tracing import guarded
from toolnexus.otel import OtelTracing


@attrs.frozen
class Spans:
    """Where the tests' spans go, and how they are read back."""

    provider: TracerProvider = attrs.field(
        factory=lambda: TracerProvider(shutdown_on_exit=False)
    )
    exporter: InMemorySpanExporter = attrs.field(factory=InMemorySpanExporter)

    def __attrs_post_init__(self) -> None:
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def tracing(self) -> OtelTracing:
        return OtelTracing(self.provider)

    @property
    def tracer(self) -> trace.Tracer:
        """The tracer of whoever has spans beside ours."""
        return self.provider.get_tracer("host")

    def ended(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.ended() if span.name == name]
        return found

    def tree(self) -> list[Any]:
        """Return each span that ended as its name, or as (name, what is below it)."""
        spans = self.ended()
        known = {span.context.span_id for span in spans if span.context}
        for span in spans:
            assert span.parent is None or span.parent.span_id in known, f"{span.name}: lost"
        return self._below(None)

    def _below(self, parent: int | None) -> list[Any]:
        below: list[Any] = []
        for span in self.ended():
            if (span.parent.span_id if span.parent else None) == parent:
                inner = self._below(span.context.span_id if span.context else 0)
                below.append((span.name, inner) if inner else span.name)
        return below


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def is_failed(span: ReadableSpan) -> bool:
    return span.status.status_code is StatusCode.ERROR


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_spans_have_the_names_and_kinds_of_the_conventions(spans: Spans) -> None:
    run = spans.tracing.start("boss", {"gen_ai.agent.name": "boss"})
    for operation, name in (("chat", "gpt-4o-mini"), ("execute_tool", "add")):
        run.child(operation, name, {"a": 1}).end()  # type: ignore[arg-type]  # both are one
    run.end()

    assert spans.tree() == [("invoke_agent boss", ["chat gpt-4o-mini", "execute_tool add"])]
    agent, chat, execution = spans.ended()
    assert (agent.kind, chat.kind, execution.kind) == (
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
    )
    assert attributes(agent) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "boss",
    }
    assert attributes(chat) == {"gen_ai.operation.name": "chat", "a": 1}
    assert attributes(execution) == {"gen_ai.operation.name": "execute_tool", "a": 1}


def test_a_run_without_an_agent_has_the_operation_for_a_name(spans: Spans) -> None:
    spans.tracing.start("", {}).end()
    assert spans.tree() == ["invoke_agent"]


def test_the_library_says_who_it_is(spans: Spans) -> None:
    spans.tracing.start("", {}).end()
    scope = spans.named("invoke_agent").instrumentation_scope
    assert scope is not None
    assert scope.name == "toolnexus"
    assert scope.version


def test_attributes_are_added_until_the_end(
    spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    span = spans.tracing.start("", {"none": None, "words": ["stop"]})
    span.set({"tokens": 3, "nothing": None})
    with caplog.at_level(logging.DEBUG):
        span.end()
        span.set({"late": 1})
        span.end("too late", "E")

    (ended,) = spans.ended()
    assert attributes(ended) == {
        "gen_ai.operation.name": "invoke_agent",
        "words": ("stop",),
        "tokens": 3,
    }
    assert not is_failed(ended)
    assert not caplog.records


def test_what_went_well_or_was_parked_says_no_status(spans: Spans) -> None:
    span = spans.tracing.start("", {})
    span.set({"toolnexus.status": "pending"})
    span.end()
    assert spans.named("invoke_agent").status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("given", "description", "error_type"),
    [(("no", "429"), "no", "429"), (("no", None), "no", "_OTHER"), ((None, "E"), None, "E")],
)
def test_a_failure_has_a_status_and_a_type(
    spans: Spans, given: tuple[str | None, str | None], description: str, error_type: str
) -> None:
    spans.tracing.start("", {}).end(*given)
    (ended,) = spans.ended()
    assert is_failed(ended)
    assert ended.status.description == description
    assert attributes(ended)["error.type"] == error_type


# -- what is below what ------------------------------------------------------------------------


def test_a_run_is_below_the_span_of_its_caller(spans: Spans) -> None:
    with spans.tracer.start_as_current_span("request"):
        spans.tracing.start("boss", {}).end()
    spans.tracing.start("alone", {}).end()
    assert spans.tree() == [("request", ["invoke_agent boss"]), "invoke_agent alone"]


def test_a_started_span_is_active_for_nobody(spans: Spans) -> None:
    run = spans.tracing.start("boss", {})
    chat = run.child("chat", "m", {})
    assert trace.get_current_span() is trace.INVALID_SPAN
    spans.tracer.start_span("elsewhere").end()
    chat.end()
    run.end()
    assert spans.tree() == [("invoke_agent boss", ["chat m"]), "elsewhere"]


def test_a_child_is_below_its_own_span_whatever_is_active(spans: Spans) -> None:
    run = spans.tracing.start("boss", {})
    with spans.tracer.start_as_current_span("elsewhere"):
        run.child("chat", "m", {}).end()
    run.end()
    assert spans.tree() == [("invoke_agent boss", ["chat m"]), "elsewhere"]


def test_what_a_tool_traces_is_below_its_execution(spans: Spans) -> None:
    run = spans.tracing.start("boss", {})
    execution = run.child("execute_tool", "task", {})
    with execution.current():
        spans.tracer.start_span("query").end()
        spans.tracing.start("child", {}).end()
    spans.tracer.start_span("afterwards").end()
    execution.end()
    run.end()
    assert spans.tree() == [
        ("invoke_agent boss", [("execute_tool task", ["query", "invoke_agent child"])]),
        "afterwards",
    ]


def test_a_thread_in_a_copy_of_the_context_is_below_the_execution(spans: Spans) -> None:
    run = spans.tracing.start("boss", {})
    execution = run.child("execute_tool", "task", {})

    def work() -> None:
        inner = spans.tracing.start("child", {})
        inner.child("chat", "m", {}).end()
        inner.end()

    with execution.current():
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(work,), daemon=True)
        thread.start()
        thread.join(LIMIT)
        assert not thread.is_alive()
    execution.end()
    run.end()
    assert spans.tree() == [
        ("invoke_agent boss", [("execute_tool task", [("invoke_agent child", ["chat m"])])])
    ]


def test_executions_on_several_threads_keep_apart(spans: Spans) -> None:
    run = spans.tracing.start("boss", {})
    barrier = threading.Barrier(3)

    def work(number: int) -> None:
        execution = run.child("execute_tool", str(number), {})
        with execution.current():
            barrier.wait(LIMIT)
            spans.tracer.start_span(f"query {number}").end()
            barrier.wait(LIMIT)
        execution.end()

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    run.end()
    ((name, executions),) = spans.tree()
    assert name == "invoke_agent boss"
    assert sorted(executions) == [(f"execute_tool {n}", [f"query {n}"]) for n in range(3)]


def test_a_generator_that_holds_a_span_shows_it_to_nobody(spans: Spans) -> None:
    def stream() -> Iterator[str]:
        run = spans.tracing.start("boss", {})
        chat = run.child("chat", "m", {})
        yield "text"
        chat.end()
        execution = run.child("execute_tool", "add", {})
        with execution.current():
            spans.tracer.start_span("query").end()
        yield "result"
        execution.end()
        run.end()

    for event in stream():
        assert trace.get_current_span() is trace.INVALID_SPAN
        spans.tracer.start_span(f"got {event}").end()
    assert spans.tree() == [
        ("invoke_agent boss", ["chat m", ("execute_tool add", ["query"])]),
        "got text",
        "got result",
    ]


def test_the_words_of_an_exception_in_a_tool_are_not_recorded(spans: Spans) -> None:
    span = spans.tracing.start("", {})
    with pytest.raises(ValueError, match="secret"), span.current():
        raise ValueError("secret")
    span.end()
    (ended,) = spans.ended()
    assert not ended.events
    assert not is_failed(ended)


# -- the package -------------------------------------------------------------------------------


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_missing_package_is_named_with_the_command_that_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'toolnexus\[otel\]'"):
        OtelTracing()


def test_opentelemetry_is_imported_when_it_is_used() -> None:
    code = "import sys, toolnexus.otel; print('opentelemetry' in sys.modules)"
    assert run_python(code) == "False"


def test_the_global_provider_may_be_set_later() -> None:
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from toolnexus.otel import OtelTracing

tracing = OtelTracing()
tracing.start("early", {}).end()
provider, exporter = TracerProvider(), InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracing.start("late", {}).end()
print(*[span.name for span in exporter.get_finished_spans()])
"""
    assert run_python(code) == "invoke_agent late"


class BrokenProcessor(SpanProcessor):
    """A processor of the host's that always fails."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise OSError("the disk is full")


def test_a_processor_that_fails_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BrokenProcessor())
    with caplog.at_level(logging.ERROR, "toolnexus"):
        run = guarded(OtelTracing(provider)).start("boss", {})
        with run.child("execute_tool", "add", {}).current():
            pass
        run.end()
    assert "the disk is full" in caplog.text
