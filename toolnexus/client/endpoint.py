"""Endpoint: where requests go, with which headers and body, and what its errors say."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from toolnexus import codec
from toolnexus.budget import parse_retry_after
from toolnexus.client.options import ClientOptions, find_api_key, secrets_of
from toolnexus.errors import BODY_EXCERPT_CHARS, ConfigError, LlmError
from toolnexus.parts.media import without_base64
from toolnexus.wire.base import ModelReply, ModelRequest
from toolnexus.wire.styles import dialect_of

logger = logging.getLogger(__name__)

_TELLTALE_CHARS: Final = 3
_KEPT_SECRETS: Final = 64
_PROTECTED: Final = ("messages", "tools", "stream")
_SECRET: Final = re.compile(
    r"\b(?:sk|pk|key|org|proj|acct|user)[-_](?=[a-z_-]*[A-Z0-9])[A-Za-z0-9_-]{6,}"
    r"|\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b"
)


def shaped(body: dict[str, Any], options: ClientOptions) -> dict[str, Any]:
    """Return `body` as `request_params` and `body_transform` leave it; it may be changed."""
    params = options.request_params or {}
    ignored = [name for name in params if name in _PROTECTED]
    if ignored:
        logger.warning("request_params: %s ignored: the loop owns them", ", ".join(ignored))
    body.update((name, value) for name, value in params.items() if name not in _PROTECTED)
    if options.body_transform is None:
        return body
    # It may edit the body in place, and the body shares the tools' schemas.
    body = codec.copy(body)
    changed = options.body_transform(body)
    return body if changed is None else changed


class Endpoint:
    """One URL of one provider. Thread-safe."""

    def __init__(self, options: ClientOptions, *, is_for_translation: bool = False) -> None:
        self.dialect = dialect_of(options.style)
        self._options = options
        self._statuses = options.retry_policy.statuses
        place = (
            self.dialect.translation_endpoint if is_for_translation else self.dialect.endpoint
        )
        self._url = place(options.base_url) if options.base_url else ""
        self._host = urlsplit(options.base_url).netloc.rpartition("@")[2]
        self._key = ""
        self._secrets: list[str] = []
        self._headers: dict[str, str] | None = None

    @property
    def url(self) -> str:
        """Where requests are posted.

        Raises:
            ConfigError: There is no base URL.
        """
        if not self._url:
            raise ConfigError("no base_url: give one, such as https://api.openai.com/v1")
        return self._url

    def origin(self, model: str) -> str:
        """Return `"<style> <host> <model>"`."""
        return f"{self._options.style} {self._host} {model}"

    def body(self, request: ModelRequest, *, streams: bool = False) -> bytes:
        """Return the body of a request, after options and the host's own changes.

        Raises:
            ConfigError: An option gave something that is not JSON.
        """
        body: dict[str, Any] = self.dialect.request_body(request)
        if streams:
            body.update(self.dialect.STREAM_PARAMS)
        body.update(request.params)
        body = shaped(body, self._options)
        try:
            return codec.encode(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"the request body is not JSON: {error}") from None

    def headers(self) -> dict[str, str]:
        """Return the headers of a request, the key's among them.

        Raises:
            ConfigError: There is no key anywhere.
        """
        if self._headers is None:
            given: Mapping[str, str] = self._options.headers or {}
            session = self._options.session
            key = find_api_key(self._options.style, self._options.api_key, given, session)
            self._key = key
            self._secrets = self._find_secrets()
            headers = {"Content-Type": "application/json"}
            headers.update(self.dialect.headers(key))
            if not key:
                # The caller's own headers or session carry the key.
                headers = {k: v for k, v in headers.items() if self._carries_no_key(k)}
            self._headers = {**headers, **given}
        elif self._options.session is not None:
            # Its token may have been renewed, and be renewed again before the reply is read.
            known = [*self._find_secrets(), *self._secrets]
            self._secrets = list(dict.fromkeys(known))[:_KEPT_SECRETS]
        return self._headers

    def read_reply(self, status: int, body: bytes, model: str) -> ModelReply:
        """Read the body of a success.

        Raises:
            LlmError: It is no reply; retryable only where it says itself that it may pass.
        """
        try:
            payload = codec.loads(body)
        except ValueError:
            shown = self.excerpt(body)
            raise LlmError(f"LLM {status}: the reply is not JSON: {shown}", status) from None
        return self.read_payload(payload, model)

    def read_payload(self, payload: codec.JsonValue, model: str) -> ModelReply:
        """Read a parsed body; raises what `read_reply` raises."""
        try:
            return self.dialect.read_reply(payload, self.origin(model))
        except LlmError as error:
            text = self.without_secrets(error.message)
            raise LlmError(text, error.status, error.retryable) from None

    @staticmethod
    def _carries_no_key(name: str) -> bool:
        return name.lower() not in ("authorization", "x-api-key")

    def error_of(self, status: int, headers: Mapping[str, str], body: bytes) -> LlmError:
        """Return what a reply that is no success means."""
        where = headers.get("location", "")
        if 300 <= status < 400:
            return LlmError(
                f"LLM {status}: redirects are not followed; base_url should lead there: "
                f"{urlsplit(where).netloc.rpartition('@')[2] or 'elsewhere'}",
                status,
            )
        return LlmError(
            f"LLM {status}: {self.excerpt(body)}",
            status,
            retryable=status in self._statuses,
            retry_after=parse_retry_after(headers.get("retry-after")),
        )

    def excerpt(self, body: bytes) -> str:
        """Return at most 200 characters of `body` without keys or account identifiers."""
        text = self.without_secrets(body.decode("utf-8", "replace").strip())
        return text[:BODY_EXCERPT_CHARS]

    def _find_secrets(self) -> list[str]:
        options = self._options
        return secrets_of(self._key, options.base_url, options.headers or {}, options.session)

    def without_secrets(self, text: str) -> str:
        """Return `text` with keys and account identifiers masked, and files left out."""
        text = without_base64(text)
        # What is secret now, too: a session's token may have been renewed meanwhile.
        for secret in sorted({*self._secrets, *self._find_secrets()}, key=len, reverse=True):
            text = _without(secret, text)
        return _SECRET.sub("***", text)


def _without(secret: str, text: str) -> str:
    """Mask `secret`, and its beginning where an excerpt ends in the middle of it."""
    text = re.sub("".join(map(_in_any_form, secret)), "***", text)
    for size in range(len(secret) - 1, _TELLTALE_CHARS, -1):
        if text.endswith(secret[:size]):
            return text[:-size] + "***"
    return text


def _in_any_form(character: str) -> str:
    """Return a pattern of `character` as it is, and as JSON or a URL escapes it."""
    plain = re.escape(character)
    if character.isalnum():
        return plain
    number = ord(character)
    return rf"(?:\\?{plain}|\\u(?i:{number:04x})|%(?i:{number:02x}))"
