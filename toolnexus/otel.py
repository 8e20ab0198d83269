"""OpenTelemetry: spans of runs, model calls and tools. The extra `toolnexus[otel]`.

Names and attributes are those of the semantic conventions for generative AI, as this version
knows them; they are written out here and in `client/tracing.py`, for the package that lists
them calls them deprecated and refers to a repository.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import toolnexus
from toolnexus.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.util.types import AttributeValue

    from toolnexus.client.tracing import Attributes, Operation, Span


class OtelTracing:
    """Records spans with OpenTelemetry. Thread-safe.

    Prompts, arguments, results and what providers say in errors are not recorded.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        """Record with `tracer_provider`; None takes the global one, whenever that is set.

        Raises:
            ConfigError: OpenTelemetry is not installed.
        """
        api = _api()
        self._tracer = api.get_tracer("toolnexus", toolnexus.__version__, tracer_provider)

    def start(self, name: str, attributes: Attributes) -> Span:
        """Start a run's span, below the active span of this thread's context, if any."""
        return _start(self._tracer, "invoke_agent", name, attributes, None)


class _OtelSpan:
    """A span of OpenTelemetry's, under the names of our seam."""

    __slots__ = ("_ending", "_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span
        # Never released: whoever takes it ends the span.
        self._ending = threading.Lock()

    def child(self, operation: Operation, name: str, attributes: Attributes) -> Span:
        return _start(self._tracer, operation, name, attributes, self._span)

    def set(self, attributes: Attributes) -> None:
        if not self._ending.locked():
            self._span.set_attributes(_known(attributes))

    def current(self) -> AbstractContextManager[object]:
        # The words of an exception may be content.
        active: AbstractContextManager[object] = _api().use_span(
            self._span, record_exception=False, set_status_on_exception=False
        )
        return active

    def end(self, error: str | None = None, error_type: str | None = None) -> None:
        if not self._ending.acquire(blocking=False):
            return
        if error is not None or error_type is not None:
            api = _api()
            self._span.set_attribute("error.type", error_type or "_OTHER")
            self._span.set_status(api.Status(api.StatusCode.ERROR, error))
        self._span.end()


def _start(
    tracer: trace.Tracer,
    operation: Operation,
    name: str,
    attributes: Attributes,
    parent: trace.Span | None,
) -> Span:
    api = _api()
    kind = api.SpanKind.CLIENT if operation == "chat" else api.SpanKind.INTERNAL
    span = tracer.start_span(
        f"{operation} {name}" if name else operation,
        # Made from the active context, for what else is in that: baggage, say.
        None if parent is None else api.set_span_in_context(parent),
        kind,
        {"gen_ai.operation.name": operation, **_known(attributes)},
    )
    return _OtelSpan(tracer, span)


def _known(attributes: Attributes) -> dict[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if value is not None}


def _api() -> Any:
    """Return the module `opentelemetry.trace`, imported at first use.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ConfigError(
            "OtelTracing needs OpenTelemetry: pip install 'toolnexus[otel]'"
        ) from error
    return trace
