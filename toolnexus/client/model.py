"""Model: one question to a model over HTTP, with its retries."""

from __future__ import annotations

import contextlib
import logging
import random
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from toolnexus import codec
from toolnexus.budget import parse_retry_after
from toolnexus.cancel import CancelToken
from toolnexus.client.metrics import Meter, MetricEvent
from toolnexus.client.options import ClientOptions, find_api_key, secrets_of
from toolnexus.errors import (
    BODY_EXCERPT_CHARS,
    ConfigError,
    LlmError,
)
from toolnexus.messages import Usage
from toolnexus.transport import HttpReply, Patience, Transport
from toolnexus.wire.base import ModelReply, ModelRequest
from toolnexus.wire.styles import dialect_of

logger = logging.getLogger(__name__)

_PROTECTED: Final = ("messages", "tools", "stream")
_SECRET: Final = re.compile(r"\b(?:sk|pk|key|org|proj|acct|user|req)[-_][A-Za-z0-9_-]{6,}")


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


class Model:
    """Asks models of one endpoint. Thread-safe."""

    def __init__(
        self, options: ClientOptions, transport: Transport, gate: Gate | None = None
    ) -> None:
        self._options = options
        self._transport = transport
        self._gate = gate or OpenGate()
        self._dialect = dialect_of(options.style)
        self._policy = options.retry_policy
        self._rng = random.Random()  # noqa: S311 - jitter, not a secret
        self._url = self._dialect.endpoint(options.base_url) if options.base_url else ""
        self._host = urlsplit(options.base_url).netloc.rpartition("@")[2]
        self._secrets: list[str] = []
        self._headers: dict[str, str] | None = None

    def origin(self, model: str) -> str:
        """Return `"<style> <host> <model>"`."""
        return f"{self._options.style} {self._host} {model}"

    def ask(
        self,
        request: ModelRequest,
        *,
        meter: Meter,
        cancel: CancelToken,
        allow: Callable[[], str | None],
    ) -> ModelReply:
        """Send one request and read its reply. Blocks; retries by the options' policy.

        Raises:
            LlmError: No usable reply.
            Cancelled: `cancel` was thrown, or its deadline has passed.
            ConfigError: An option gave something that cannot be sent.
            RequestRefused: `allow` named a limit.
        """
        clock = self._options.clock
        began = clock.monotonic()
        usage, error = Usage(), "ended with its thread"
        is_sent = True
        try:
            reply = self._ask_with_retries(request, self._body(request), cancel, allow)
            usage, error = reply.usage, ""
        except RequestRefused:
            is_sent = False
            raise
        except Exception as failure:
            error = str(failure)
            raise
        finally:
            if is_sent:
                meter.emit(
                    lambda: MetricEvent(
                        kind="llm",
                        ms=(clock.monotonic() - began) * 1000,
                        model=request.model,
                        status="error" if error else "ok",
                        usage=usage,
                        error=error or None,
                    )
                )
        return reply

    def _ask_with_retries(
        self,
        request: ModelRequest,
        body: bytes,
        cancel: CancelToken,
        allow: Callable[[], str | None],
    ) -> ModelReply:
        attempt = 0
        while True:
            # A request that could only come too late is not sent: it would be paid for.
            cancel.raise_if_cancelled()
            try:
                return self._attempt(request, body, cancel, allow)
            except LlmError as error:
                cancel.raise_if_cancelled()
                wait = self._wait_after(error, attempt)
                if wait is None:
                    raise
            cancel.wait(self._options.clock, wait)
            attempt += 1

    def _wait_after(self, error: LlmError, attempt: int) -> float | None:
        """Return seconds until the next attempt, or None to let the error surface."""
        verdict = None
        if self._options.on_error is not None:
            try:
                verdict = self._options.on_error(error, attempt)
            except Exception:
                logger.exception("on_error failed; the retry policy decides")
        if verdict == "fail":
            return None
        return self._policy.wait_before(attempt, error, force=verdict == "retry", rng=self._rng)

    def _attempt(
        self,
        request: ModelRequest,
        body: bytes,
        cancel: CancelToken,
        allow: Callable[[], str | None],
    ) -> ModelReply:
        headers = self._auth_headers()
        patience = Patience(
            connect_seconds=self._options.connect_timeout_ms / 1000,
            read_seconds=self._options.read_timeout_ms / 1000,
        )
        with self._gate.hold(cancel):
            # Looked at here, for others may have spent the budget while this one waited.
            limit = allow()
            if limit is not None:
                raise RequestRefused(limit)
            reply = self._transport.post(
                self._url, headers, body, cancel=cancel, patience=patience
            )
        if not 200 <= reply.status < 300:
            raise self._error_of(reply)
        try:
            payload = codec.loads(reply.body)
        except ValueError:
            shown = self._excerpt(reply.body)
            raise LlmError(
                f"LLM {reply.status}: the reply is not JSON: {shown}",
                reply.status,
            ) from None
        try:
            return self._dialect.read_reply(payload, self.origin(request.model))
        except LlmError as error:
            # Not sent again: it was answered, and will be billed.
            raise LlmError(self._without_secrets(error.message), error.status) from None

    def _body(self, request: ModelRequest) -> bytes:
        body: dict[str, Any] = self._dialect.request_body(request)
        params = self._options.request_params or {}
        ignored = [name for name in params if name in _PROTECTED]
        if ignored:
            logger.warning("request_params: %s ignored: the loop owns them", ", ".join(ignored))
        body.update((name, value) for name, value in params.items() if name not in _PROTECTED)
        if self._options.body_transform is not None:
            # It may edit the body in place, and the body shares the tools' schemas.
            body = codec.copy(body)
            changed = self._options.body_transform(body)
            body = body if changed is None else changed
        try:
            return codec.encode(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"the request body is not JSON: {error}") from None

    def _auth_headers(self) -> dict[str, str]:
        if self._headers is None:
            given: Mapping[str, str] = self._options.headers or {}
            if not self._url:
                raise ConfigError("no base_url: give one, such as https://api.openai.com/v1")
            session = self._options.session
            key = find_api_key(self._options.style, self._options.api_key, given, session)
            self._secrets = secrets_of(key, self._options.base_url, given, session)
            headers = {"Content-Type": "application/json"}
            headers.update(self._dialect.headers(key))
            if not key:
                # The caller's own headers or session carry the key.
                headers = {k: v for k, v in headers.items() if self._carries_no_key(k)}
            self._headers = {**headers, **given}
        return self._headers

    @staticmethod
    def _carries_no_key(name: str) -> bool:
        return name.lower() not in ("authorization", "x-api-key")

    def _error_of(self, reply: HttpReply) -> LlmError:
        where = reply.headers.get("location", "")
        if 300 <= reply.status < 400:
            return LlmError(
                f"LLM {reply.status}: redirects are not followed; base_url should lead there: "
                f"{urlsplit(where).netloc.rpartition('@')[2] or 'elsewhere'}",
                reply.status,
            )
        return LlmError(
            f"LLM {reply.status}: {self._excerpt(reply.body)}",
            reply.status,
            retryable=reply.status in self._policy.statuses,
            retry_after=parse_retry_after(reply.headers.get("retry-after")),
        )

    def _excerpt(self, body: bytes) -> str:
        """Return at most 200 characters of `body` without keys or account identifiers."""
        text = self._without_secrets(body.decode("utf-8", "replace").strip())
        return text[:BODY_EXCERPT_CHARS]

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _SECRET.sub("***", text)
