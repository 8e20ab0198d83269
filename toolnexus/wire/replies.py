"""What both dialects read alike: counts, and bodies that are no reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toolnexus.codec import JsonValue
from toolnexus.errors import BODY_EXCERPT_CHARS, LlmError
from toolnexus.parts.media import without_base64
from toolnexus.wire.content import json_text

_RETRYABLE_CODES: Final = frozenset({429, 500, 502, 503, 504, 529})
_RETRYABLE_WORDS: Final = frozenset(
    {
        "api_error",
        "overloaded",
        "overloaded_error",
        "rate_limit_error",
        "rate_limit_exceeded",
        "server_error",
        "timeout_error",
    }
)


def count(value: object) -> int:
    """Return a token count; 0 for what is no whole number above it."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and value > 0 else 0


def unusable(payload: JsonValue, why: str = "", *, retryable: bool = False) -> LlmError:
    """Return the error for a 2xx body that is no reply.

    Not worth another attempt unless it says so: it was answered, and will be billed.
    """
    excerpt = without_base64(json_text(payload))[:BODY_EXCERPT_CHARS]
    return LlmError(
        f"LLM 200: {why}: {excerpt}" if why else f"LLM 200: {excerpt}", 200, retryable
    )


def raise_if_error(payload: JsonValue, holder: Mapping[str, JsonValue]) -> None:
    """Raise if `holder`, a part of the body, has an error instead of a reply.

    Raises:
        LlmError: It has; retryable where the error's code or type says so, never by its text.
    """
    error = holder.get("error")
    if not error and holder.get("type") != "error":
        return
    words = (
        [error.get(key) for key in ("code", "status", "type")]
        if isinstance(error, dict)
        else []
    )
    raise unusable(payload, retryable=any(_is_passing(word) for word in words))


def _is_passing(word: object) -> bool:
    if isinstance(word, str):
        return word in _RETRYABLE_WORDS or (
            word.isdecimal() and len(word) == 3 and int(word) in _RETRYABLE_CODES
        )
    return type(word) is int and word in _RETRYABLE_CODES
