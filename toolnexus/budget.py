"""Budget and RetryPolicy: what a run may use, and when a request is sent again."""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping
from typing import Any, Final

import attrs

from toolnexus.checks import MOST, whole_from
from toolnexus.codec import JsonValue, refuse_unknown
from toolnexus.errors import LlmError

DEFAULT_MAX_TURNS: Final = 6
DEFAULT_MAX_CONCURRENT: Final = 8
DEFAULT_MAX_DEPTH: Final = 3

RETRYABLE_STATUSES: Final = frozenset({429, 500, 502, 503, 504, 529})
"""HTTP statuses that may pass: the usual five, and 529 (overloaded)."""

_JITTER_MS: Final = 100
_RETRY_AFTER_MAX: Final = 2**31 - 1


def _limit(least: int = 0, most: int | None = None) -> Any:
    return attrs.field(default=None, validator=whole_from(least, most))


@attrs.frozen(repr=False)
class Budget:
    """Limits of one handle. Tokens, tool calls and depth hold for everything below it as well.

    None means that no limit is given.

    Attributes:
        max_turns: LLM calls in one turn; 6 where nothing is given.
        max_tokens: Tokens of the handle and its descendants, over its life.
        max_tool_calls: Tool calls of the handle and its descendants, over its life.
        max_wall_ms: Milliseconds of running time over its life; parked time is free.
        max_children: Live children.
        max_concurrent: Children that run at the same time; 8 where nothing is given.
        max_depth: Depth of the deepest handle below (the root is 0); 3 where nothing is given.
    """

    max_turns: int | None = _limit(least=1)
    max_tokens: int | None = _limit()
    max_tool_calls: int | None = _limit()
    max_wall_ms: int | None = _limit(most=MOST)
    max_children: int | None = _limit()
    max_concurrent: int | None = _limit(least=1)  # with 0 no child would ever run
    max_depth: int | None = _limit()

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.to_dict().items())
        return f"Budget({given})"

    def over(self, other: Budget) -> Budget:
        """Return the limits given here, and those of `other` where none is given here."""
        if other is EMPTY_BUDGET:
            return self
        if self is EMPTY_BUDGET:
            return other
        return Budget(
            *(
                theirs if mine is None else mine
                for mine, theirs in zip(attrs.astuple(self), attrs.astuple(other), strict=True)
            )
        )

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the limits that are given, under their field names."""
        return attrs.asdict(self, filter=lambda _, value: value is not None)

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Budget:
        """Read what `to_dict` wrote.

        Raises:
            WireFormatError: A key is unknown.
        """
        names = [field.name for field in attrs.fields(cls)]
        return cls(**refuse_unknown("Budget", data, names, ()))


EMPTY_BUDGET: Final = Budget()


class Tier(str, enum.Enum):
    """What `on_error` makes of a failed attempt."""

    RETRY = "retry"
    """Send it again, as far as `retries` goes."""

    FAIL = "fail"
    """Let the error surface at once."""


@attrs.frozen
class RetryPolicy:
    """When a failed request is sent again, and after how long. Pure; no clock, no network.

    Attributes:
        retries: Further attempts after the first.
        base_ms: Milliseconds before the first retry; doubles each time.
        max_wait_ms: A longer `Retry-After` is not waited for: the error surfaces with it.
        statuses: HTTP statuses worth another attempt.
    """

    retries: int = 2
    base_ms: int = 500
    max_wait_ms: int = 60_000
    statuses: frozenset[int] = RETRYABLE_STATUSES

    def wait_before(
        self, attempt: int, error: LlmError, *, force: bool = False, rng: random.Random
    ) -> float | None:
        """Return seconds to wait before the next attempt, or None to give up.

        Args:
            attempt: 0 for the first attempt.
            error: What that attempt gave.
            force: Whether a hook asked for a retry of an error that is not retryable.
            rng: Source of the jitter, up to 100 ms and no more than `base_ms`.
        """
        if attempt >= self.retries or not (error.retryable or force):
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after * 1000 <= self.max_wait_ms else None
        backoff: float = self.base_ms * 2**attempt + rng.uniform(
            0, min(_JITTER_MS, self.base_ms)
        )
        return min(backoff, self.max_wait_ms) / 1000


def parse_retry_after(value: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header; None for all but plain ASCII digits."""
    text = (value or "").strip()
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > 10:  # int() takes its time over long texts, and refuses very long ones
        return None
    seconds = int(digits)
    return float(seconds) if seconds <= _RETRY_AFTER_MAX else None
