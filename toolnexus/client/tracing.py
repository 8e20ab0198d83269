"""Tracing: the seam between a run and whoever records spans of it.

Spans are passed on explicitly. Only `Span.current` touches a context variable, and only around
the execution of a tool: a streamed run is a generator, and what it sets between two events its
caller would see.

Attributes have the names of OpenTelemetry's semantic conventions for generative AI, so every
recorder gets the same. None of them holds content: no prompt, no arguments, no output, and no
words of a provider or a tool, which may quote them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from toolnexus.codec import JsonValue
from toolnexus.errors import Cancelled, LlmError

if TYPE_CHECKING:
    from types import TracebackType

    from toolnexus.messages import Status, ToolCall
    from toolnexus.toolspec import ToolResult
    from toolnexus.wire.base import ModelReply, ModelRequest

logger = logging.getLogger(__name__)

Operation: TypeAlias = Literal["chat", "execute_tool", "invoke_agent"]
"""What a span is about: `gen_ai.operation.name`."""

Attributes: TypeAlias = Mapping[str, JsonValue]
"""By name; a value of None says nothing."""

STATUS: Final = "toolnexus.status"
"""The attribute that says how a run ended, in the words of `STATUSES`."""

_OTHER: Final = "_OTHER"
"""The conventions' word for a failure of no known sort."""

_STOPS: Final = (Cancelled, GeneratorExit, KeyboardInterrupt)
"""Ends that somebody wanted."""


class Span(Protocol):
    """A piece of work, from its start to its end. Thread-safe."""

    def child(self, operation: Operation, name: str, attributes: Attributes) -> Span:
        """Start a span below this one, now.

        Args:
            operation: What it is about.
            name: The model's, tool's or agent's name; "" for none.
            attributes: What is known of it.
        """

    def set(self, attributes: Attributes) -> None:
        """Add attributes; nothing after the end."""

    def current(self) -> AbstractContextManager[object]:
        """Make it the active span: what is traced inside goes below it.

        Of this thread's context alone, so it is left where it was entered.
        """

    def end(self, error: str | None = None, error_type: str | None = None) -> None:
        """End it; only the first call counts.

        Args:
            error: What failed, without content; None where nothing did.
            error_type: A word for the sort of failure, one of few: a status, a class.
        """


class Tracing(Protocol):
    """Whoever records spans. Thread-safe."""

    def start(self, name: str, attributes: Attributes) -> Span:
        """Start the span of a run or a turn, below the caller's active span if there is one.

        Args:
            name: The agent's name; "" for a run without an agent.
            attributes: What is known of it.
        """


class _NoSpan:
    """A span that nobody records."""

    __slots__ = ()

    def child(self, operation: Operation, name: str, attributes: Attributes) -> Span:  # noqa: ARG002
        return self

    def set(self, attributes: Attributes) -> None:
        pass

    def current(self) -> AbstractContextManager[object]:
        return _NOTHING

    def end(self, error: str | None = None, error_type: str | None = None) -> None:
        pass


_NOTHING: Final = nullcontext()
NO_SPAN: Final[Span] = _NoSpan()
"""Records nothing, and its children neither."""


class NoTracing:
    """Records nothing."""

    __slots__ = ()

    def start(self, name: str, attributes: Attributes) -> Span:  # noqa: ARG002
        """Return `NO_SPAN`."""
        return NO_SPAN


def guarded(tracing: Tracing | None) -> Tracing:
    """Return `tracing` so that what it raises is logged, never more; None records nothing."""
    return NoTracing() if tracing is None else _GuardedTracing(tracing)


class _GuardedTracing:
    """Hands on to a recorder that may raise."""

    __slots__ = ("_tracing",)

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def start(self, name: str, attributes: Attributes) -> Span:
        try:
            return _GuardedSpan(self._tracing.start(name, attributes))
        except Exception:
            logger.exception("a span could not be started")
            return NO_SPAN


class _GuardedSpan:
    """Hands on to a span that may raise."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def child(self, operation: Operation, name: str, attributes: Attributes) -> Span:
        try:
            return _GuardedSpan(self._span.child(operation, name, attributes))
        except Exception:
            logger.exception("a span could not be started")
            return NO_SPAN

    def set(self, attributes: Attributes) -> None:
        try:
            self._span.set(attributes)
        except Exception:
            logger.exception("attributes of a span could not be set")

    def current(self) -> AbstractContextManager[object]:
        return _GuardedCurrent(self._span)

    def end(self, error: str | None = None, error_type: str | None = None) -> None:
        try:
            self._span.end(error, error_type)
        except Exception:
            logger.exception("a span could not be ended")


class _GuardedCurrent(AbstractContextManager[None]):
    """Makes a span the active one, or does nothing where that fails.

    What the body raises passes by: the recorder neither sees nor swallows it.
    """

    __slots__ = ("_entered", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._entered: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        try:
            current = self._span.current()
            current.__enter__()
        except Exception:
            logger.exception("a span could not be made the active one")
        else:
            self._entered = current

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._entered is None:
            return
        try:
            self._entered.__exit__(None, None, None)
        except Exception:
            logger.exception("the active span could not be left")


# -- what a run, a request and a call say of themselves ----------------------------------------


def run_attributes(model: str, agent: str = "", handle_id: str | None = None) -> Attributes:
    """Return what is known of a run at its start.

    Args:
        model: The model's name.
        agent: The agent's name; "" for none.
        handle_id: None outside a runtime.
    """
    return {
        "gen_ai.request.model": model or None,
        "gen_ai.agent.name": agent or None,
        "gen_ai.agent.id": handle_id,
    }


def chat_attributes(request: ModelRequest, style: str) -> Attributes:
    """Return what is known of a model call at its start.

    Args:
        request: What is asked.
        style: The wire; whoever else speaks it goes by its name too.
    """
    return {"gen_ai.provider.name": style, "gen_ai.request.model": request.model}


def reply_attributes(reply: ModelReply) -> Attributes:
    """Return what a model call gave; tokens only where the provider counted them."""
    return {
        "gen_ai.response.finish_reasons": [reply.finish_reason],
        "gen_ai.usage.input_tokens": reply.usage.prompt_tokens or None,
        "gen_ai.usage.output_tokens": reply.usage.completion_tokens or None,
    }


def call_attributes(call: ToolCall) -> Attributes:
    """Return what is known of an execution at its start."""
    return {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id}


def end_call(span: Span, result: ToolResult) -> None:
    """End the span of an execution. A suspension is no failure."""
    if result.request is not None:
        span.set({STATUS: "pending"})
        span.end()
    elif result.is_error:
        span.end("the tool's result is an error", "tool_error")
    else:
        span.end()


def end_run(span: Span, status: Status, error_type: str | None = None) -> None:
    """End the span of a run or a turn. Only the status `error` is a failure.

    Args:
        span: Of the run.
        status: How it ended.
        error_type: The sort of failure, where it is known.
    """
    span.set({STATUS: status})
    if status == "error":
        span.end(error_type or "the run failed", error_type or _OTHER)
    else:
        span.end()


def end_failed(span: Span, error: BaseException) -> None:
    """End the span of a run or a model call that raised. To be stopped is no failure."""
    if isinstance(error, _STOPS):
        end_run(span, "interrupted")
    else:
        end_run(span, "error", error_type_of(error))


def error_type_of(error: BaseException) -> str:
    """Return the sort of a failure: the HTTP status that tells it, else the class's name."""
    status = error.status if isinstance(error, LlmError) else None
    return type(error).__name__ if status is None or status < 300 else str(status)
