"""HttpModel: one question to a model over HTTP, with its retries."""

from __future__ import annotations

import logging
import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs

from toolnexus.cancel import CancelToken
from toolnexus.client.asking import Gate, ObservedCall, OpenGate, Terms
from toolnexus.client.endpoint import Endpoint
from toolnexus.client.options import ClientOptions
from toolnexus.errors import Cancelled, LlmError
from toolnexus.events import TextDelta
from toolnexus.exchange import Exchange
from toolnexus.transport import Timeouts, Transport
from toolnexus.wire.base import ModelReply, ModelRequest, StreamedReply
from toolnexus.wire.sse import EventParser

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_LAST_WORDS_SECONDS: Final = 5.0
"""How long a stream that has said it all may take to send usage and end."""

_DRAIN_SECONDS: Final = 0.25
"""How long its end may take after the stream's very last event."""

_END: Final = "[DONE]"
_STOP: Final = "message_stop"


class HttpModel:
    """Asks models of one endpoint. Thread-safe."""

    def __init__(
        self,
        options: ClientOptions,
        transport: Transport,
        gate: Gate | None = None,
        *,
        is_for_translation: bool = False,
    ) -> None:
        self._options = options
        self._transport = transport
        self._gate = gate or OpenGate()
        self._endpoint = Endpoint(options, is_for_translation=is_for_translation)
        self._policy = options.retry_policy
        self._timeouts = Timeouts(
            connect_seconds=options.connect_timeout_ms / 1000,
            read_seconds=options.read_timeout_ms / 1000,
        )
        self._rng = random.Random()  # noqa: S311 - jitter, not a secret

    def origin(self, model: str) -> str:
        """Return `"<style> <host> <model>"`."""
        return self._endpoint.origin(model)

    def ask(self, request: ModelRequest, terms: Terms) -> ModelReply:
        """Send one request and read its reply. See `Model.ask`; retries by the policy."""
        with ObservedCall(request, terms, self._options.clock, self._options.style) as watch:
            body = self._endpoint.body(request)
            attempt = 0
            while True:
                # A request that could only come too late is not sent: it would be paid for.
                terms.cancel.raise_if_cancelled()
                try:
                    reply = self._attempt(request, body, terms)
                except LlmError as error:
                    self._wait_or_raise(error, attempt, terms)
                else:
                    watch.answered(reply)
                    return reply
                attempt += 1

    def stream(
        self, request: ModelRequest, terms: Terms
    ) -> Generator[TextDelta, None, ModelReply]:
        """Send one request and yield its text as it comes. See `Model.stream`.

        Once text was given nothing is sent again: the caller would have it twice.
        """
        with ObservedCall(request, terms, self._options.clock, self._options.style) as watch:
            body = self._endpoint.body(request, streams=True)
            attempt = 0
            while True:
                terms.cancel.raise_if_cancelled()
                try:
                    reply = yield from self._stream_once(request, body, terms)
                except LlmError as error:
                    # What was given cannot be taken back, so it is not asked for again.
                    self._wait_or_raise(error, attempt, terms, is_final=bool(error.partial))
                else:
                    watch.answered(reply)
                    return reply
                attempt += 1

    def _wait_or_raise(
        self, error: LlmError, attempt: int, terms: Terms, *, is_final: bool = False
    ) -> None:
        """Wait until the next attempt; raise `error` where there is none."""
        # What led to it is dropped, not only hidden: it may quote the key or the whole reply.
        error.__cause__ = error.__context__ = None
        terms.cancel.raise_if_cancelled()
        verdict = None
        if self._options.on_error is not None:
            try:
                verdict = self._options.on_error(error, attempt)
            except Exception:
                logger.exception("on_error failed; the retry policy decides")
        wait = None
        if verdict != "fail" and not is_final:
            is_forced = verdict == "retry"
            wait = self._policy.wait_before(attempt, error, force=is_forced, rng=self._rng)
        if wait is None:
            raise error
        terms.cancel.wait(self._options.clock, wait)

    def _attempt(self, request: ModelRequest, body: bytes, terms: Terms) -> ModelReply:
        with self._open(body, terms) as exchange:
            received = exchange.read()
        # Read once the place is given back: others may be waiting for it.
        return self._endpoint.read_reply(exchange.status, received, request.model)

    def _stream_once(
        self, request: ModelRequest, body: bytes, terms: Terms
    ) -> Generator[TextDelta, None, ModelReply]:
        endpoint = self._endpoint
        with self._open(body, terms) as exchange:
            if "json" in exchange.headers.get("content-type", "").lower():
                # A server that does not stream.
                reply = endpoint.read_reply(exchange.status, exchange.read(), request.model)
                if reply.text:
                    yield TextDelta(reply.text)
                return reply
            stream = endpoint.dialect.new_stream()
            try:
                yield from _text_of(exchange, stream, terms.cancel)
                _require_whole(stream)
                reply = endpoint.read_payload(stream.payload(), request.model)
            except LlmError as error:
                # Not chained: the cause may quote the key.
                raise self._broken(error, stream) from None
            except Cancelled as stopped:
                stopped.partial = stream.text
                raise
        return attrs.evolve(reply, streamed=True)

    @contextmanager
    def _open(self, body: bytes, terms: Terms) -> Iterator[Exchange]:
        """Post and yield a reply of success.

        Raises:
            LlmError: The provider refused.
            RequestRefused: A limit did.
        """
        endpoint = self._endpoint
        url, headers = endpoint.url, endpoint.headers()
        with self._gate.hold(terms.cancel):
            terms.raise_if_refused()
            exchange = self._transport.open(
                url, headers, body, cancel=terms.cancel, timeouts=self._timeouts
            )
            try:
                if not 200 <= exchange.status < 300:
                    raise endpoint.error_of(exchange.status, exchange.headers, exchange.read())
                yield exchange
            finally:
                exchange.close()

    def _broken(self, error: LlmError, stream: StreamedReply) -> LlmError:
        """Return `error` with the text that was given, and no key in its message.

        A stream that had given nothing is worth another attempt.
        """
        broken = LlmError(
            self._endpoint.without_secrets(error.message),
            error.status,
            retryable=error.retryable and not stream.text,
        )
        broken.partial = stream.text
        return broken


def _text_of(
    exchange: Exchange, stream: StreamedReply, cancel: CancelToken
) -> Generator[TextDelta, None, None]:
    """Feed `stream` from the reply's bytes, and yield what it adds as soon as it is there."""
    parser, add = EventParser(), stream.add
    is_ending = False
    try:
        for piece in exchange.pieces():
            for event in parser.feed(piece):
                if event.data == _END:
                    exchange.skip_to_end(_DRAIN_SECONDS)
                    return
                text = add(event)
                if text:
                    yield TextDelta(text)
                    if cancel.is_cancelled:
                        cancel.raise_if_cancelled()
                elif event.event == _STOP:
                    exchange.skip_to_end(_DRAIN_SECONDS)
                    return
            if stream.is_complete and not is_ending:
                # Nobody waits for a server that keeps the connection open after its last word.
                is_ending = True
                exchange.expect_end_within(_LAST_WORDS_SECONDS)
    except LlmError:
        if not stream.is_complete:
            raise
        # Without the error's text: it may quote the key.
        logger.info("a stream broke off after its reply was whole")


def _require_whole(stream: StreamedReply) -> None:
    if not stream.is_complete:
        raise LlmError("LLM stream ended before the reply was whole", retryable=True)
