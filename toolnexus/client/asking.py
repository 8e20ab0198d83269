"""What the loop asks of a model, be it behind HTTP or in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Protocol

import attrs

from toolnexus.cancel import CancelToken
from toolnexus.client.metrics import Meter
from toolnexus.client.tracing import (
    NO_SPAN,
    Span,
    chat_attributes,
    end_failed,
    reply_attributes,
)
from toolnexus.clock import Clock
from toolnexus.events import TextDelta
from toolnexus.messages import Usage
from toolnexus.wire.base import ModelReply, ModelRequest


class RequestRefused(Exception):
    """A limit does not allow the request; it was not sent."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


class Gate(Protocol):
    """Bounds how many requests are on the wire at once."""

    def hold(self, cancel: CancelToken) -> AbstractContextManager[object]:
        """Wait for a place, FIFO; give it back at the end.

        Raises:
            Cancelled: The token was thrown while waiting.
        """


class OpenGate:
    """A gate that everybody passes."""

    def hold(self, cancel: CancelToken) -> AbstractContextManager[object]:  # noqa: ARG002
        """Return at once."""
        return contextlib.nullcontext()


def _no_limit() -> str | None:
    return None


@attrs.frozen(kw_only=True)
class Terms:
    """What one question to a model is bound by.

    Attributes:
        meter: Where its metric event goes.
        cancel: Ends it, also in mid-request.
        allow: Names the limit that forbids it; None where it may go ahead.
        span: The run's span, above this call's.
    """

    meter: Meter
    cancel: CancelToken
    allow: Callable[[], str | None] = _no_limit
    span: Span = NO_SPAN

    def raise_if_refused(self) -> None:
        """Ask `allow` once more, at the gate: others may have spent the budget meanwhile.

        Raises:
            RequestRefused: It named a limit.
        """
        limit = self.allow()
        if limit is not None:
            raise RequestRefused(limit)


class Model(Protocol):
    """Who is asked. Thread-safe."""

    def origin(self, model: str) -> str:
        """Return `"<style> <host> <model>"`; see `ModelRequest.origin`."""

    def ask(self, request: ModelRequest, terms: Terms) -> ModelReply:
        """Ask and return the reply. Blocks.

        Raises:
            LlmError: No usable reply.
            Cancelled: `terms.cancel` was thrown, or its deadline has passed.
            ConfigError: An option gave something that cannot be sent.
            RequestRefused: `terms.allow` named a limit.
        """

    def stream(
        self, request: ModelRequest, terms: Terms
    ) -> Generator[TextDelta, None, ModelReply]:
        """Ask, yield the text as it comes, and return the reply that `ask` would have.

        Raises what `ask` raises; an `LlmError` after the first text keeps it in `partial`.
        """


class ObservedCall:
    """One question to a model, as metrics and traces see it; a context manager around it."""

    def __init__(self, request: ModelRequest, terms: Terms, clock: Clock, style: str) -> None:
        self._request = request
        self._terms = terms
        self._clock = clock
        self._began = clock.monotonic()
        self._reply: ModelReply | None = None
        self._span = terms.span
        if self._span is not NO_SPAN:
            attributes = chat_attributes(request, style)
            self._span = terms.span.child("chat", request.model, attributes)

    def answered(self, reply: ModelReply) -> None:
        """Note the reply."""
        self._reply = reply

    def __enter__(self) -> ObservedCall:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        reply = self._reply
        if reply is not None:
            if self._span is not NO_SPAN:
                self._span.set(reply_attributes(reply))
                self._span.end()
            self._tell("ok", reply.usage, None)
        elif isinstance(error, RequestRefused):
            self._span.end()  # nothing was sent
        elif error is not None:
            end_failed(self._span, error)
            is_plain = isinstance(error, Exception)
            self._tell("error", Usage(), str(error) if is_plain else "ended with its thread")

    def _tell(self, status: str, usage: Usage, error: str | None) -> None:
        self._terms.meter.emit(
            "llm",
            (self._clock.monotonic() - self._began) * 1000,
            model=self._request.model,
            status=status,
            usage=usage,
            error=error,
        )
