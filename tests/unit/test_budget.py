"""Budget and RetryPolicy: arithmetic without a clock or a network."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from toolnexus import Budget, ConfigError, LlmError, RetryPolicy, WireFormatError
from toolnexus.budget import EMPTY_BUDGET, parse_retry_after

BUSY = LlmError("busy", 503, True)
FIELDS = [field.name for field in attrs.fields(Budget)]


def rng() -> random.Random:
    return random.Random(1)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [-1, 1.5, True, "5", [5]])
def test_a_limit_is_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Budget\.{name} must be a whole number"):
        Budget(**{name: value})


def test_a_budget_takes_its_limits_by_position_in_the_documented_order() -> None:
    assert FIELDS == [
        "max_turns",
        "max_tokens",
        "max_tool_calls",
        "max_wall_ms",
        "max_children",
        "max_concurrent",
        "max_depth",
    ]


def test_over_keeps_what_is_given_and_fills_what_is_not() -> None:
    mine, theirs = Budget(max_children=0, max_tokens=9), Budget(max_children=5, max_depth=2)

    assert mine.over(theirs) == Budget(max_children=0, max_tokens=9, max_depth=2)
    assert mine.over(EMPTY_BUDGET) is mine
    assert mine.over(Budget()) == mine


def test_an_unknown_limit_on_the_wire_is_named() -> None:
    with pytest.raises(WireFormatError, match="unknown keys maxTurns"):
        Budget.from_dict({"maxTurns": 5})


@pytest.mark.parametrize(("attempt", "least"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0)])
def test_backoff_doubles_with_up_to_100_ms_of_jitter(attempt: int, least: float) -> None:
    policy = RetryPolicy(retries=9)
    waits = {policy.wait_before(attempt, BUSY, rng=random.Random(seed)) for seed in range(50)}

    assert len(waits) > 1
    assert all(wait is not None and least <= wait <= least + 0.1 for wait in waits)


def test_retries_are_attempts_beyond_the_first() -> None:
    policy = RetryPolicy(retries=2)

    waits = [policy.wait_before(attempt, BUSY, rng=rng()) for attempt in range(4)]
    assert [wait is not None for wait in waits] == [True, True, False, False]
    assert RetryPolicy(retries=0).wait_before(0, BUSY, rng=rng()) is None


def test_what_is_not_retryable_is_retried_only_by_force() -> None:
    refused = LlmError("no", 400)
    policy = RetryPolicy(retries=1)

    assert policy.wait_before(0, refused, rng=rng()) is None
    assert policy.wait_before(0, refused, force=True, rng=rng()) is not None
    assert policy.wait_before(1, refused, force=True, rng=rng()) is None


@pytest.mark.parametrize("seconds", [0.0, 2.0, 60.0])
def test_retry_after_replaces_the_backoff_without_jitter(seconds: float) -> None:
    error = LlmError("busy", 429, True, seconds)

    assert RetryPolicy().wait_before(0, error, rng=rng()) == seconds


def test_a_backoff_never_outgrows_the_longest_wait() -> None:
    policy = RetryPolicy(retries=99, max_wait_ms=1000)

    assert policy.wait_before(50, BUSY, rng=rng()) == 1.0


def test_statuses_worth_another_attempt() -> None:
    assert RetryPolicy().statuses >= {429, 500, 502, 503, 504}
    assert not RetryPolicy().statuses & {400, 401, 403, 404, 422}


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("2", 2.0),
        (" 7\t", 7.0),
        ("007", 7.0),
        ("0000000000007", 7.0),
        ("2147483647", 2147483647.0),
        ("2147483648", None),
        ("99999999999999999999", None),
        ("9" * 5000, None),
        ("0" * 5000, 0.0),
        ("1.5", None),
        ("+5", None),
        ("-5", None),
        ("5s", None),
        ("1e3", None),
        ("0x10", None),
        ("1_000", None),
        ("٣", None),
        ("５", None),
        ("²", None),
        ("", None),
        ("  ", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        (None, None),
    ],
)
def test_retry_after_is_plain_ascii_digits(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header) == seconds
