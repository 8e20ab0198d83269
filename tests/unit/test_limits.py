"""Times that no clock can add are refused where they are given, not where they are used."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from toolnexus import (
    Budget,
    ClientOptions,
    ConfigError,
    Request,
    RuntimeOptions,
    WireFormatError,
)

CLIENT_TIMES = ("timeout_ms", "connect_timeout_ms", "read_timeout_ms")
RETRY_TIMES = ("retry_base_ms", "max_retry_wait_ms")
RUNTIME_TIMES = ("shutdown_ms",)
DAY_MS = 24 * 60 * 60 * 1000


@pytest.mark.parametrize("value", [10**13, 10**14, 10**15, 10**400])
@pytest.mark.parametrize("name", [*CLIENT_TIMES, *RETRY_TIMES])
def test_a_client_option_beyond_any_clock_is_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=name):
        ClientOptions(**{name: value})


@pytest.mark.parametrize("value", [10**13, 10**15])
@pytest.mark.parametrize("name", [*CLIENT_TIMES, *RETRY_TIMES, *RUNTIME_TIMES])
def test_a_runtime_option_beyond_any_clock_is_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=name):
        RuntimeOptions(**{name: value})


@pytest.mark.parametrize("value", [1, DAY_MS, 7 * DAY_MS])
@pytest.mark.parametrize("name", [*CLIENT_TIMES, *RETRY_TIMES, *RUNTIME_TIMES])
def test_a_week_is_no_huge_time(name: str, value: int) -> None:
    assert getattr(RuntimeOptions(**{name: value}), name) == value


@pytest.mark.parametrize("name", [*CLIENT_TIMES, *RETRY_TIMES, *RUNTIME_TIMES])
@pytest.mark.parametrize("value", [-1, 1.5, True, "1", float("inf"), float("nan")])
def test_what_is_no_whole_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        RuntimeOptions(**{name: value})


def test_a_message_about_a_huge_time_says_what_would_be_right() -> None:
    with pytest.raises(ConfigError, match=r"timeout_ms must be .*\d"):
        ClientOptions(timeout_ms=10**15)


def test_a_token_budget_may_be_larger_than_any_time() -> None:
    """A year of a whole company's tokens is a sound limit."""
    assert Budget(max_tokens=10**12).max_tokens == 10**12


def at(hours: int, *moment: int) -> datetime:
    return datetime(*moment, tzinfo=timezone(timedelta(hours=hours)))


@pytest.mark.parametrize(
    "moment",
    [
        at(-1, 9999, 12, 31, 23, 59, 59, 999_999),
        at(-12, 9999, 12, 31, 12),
        at(1, 1, 1, 1),
        at(14, 1, 1, 1, 13),
    ],
)
def test_an_end_that_has_no_time_in_utc_is_refused(moment: datetime) -> None:
    with pytest.raises(WireFormatError, match="expires_at"):
        Request("approval", "ok?", expires_at=moment)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"])
def test_an_end_on_the_wire_that_has_no_time_in_utc_is_refused(text: str) -> None:
    wire = {"id": "r", "kind": "approval", "prompt": "ok?", "expiresAt": text}
    with pytest.raises(WireFormatError, match="expires"):
        Request.from_dict(wire)


@pytest.mark.parametrize(
    "moment",
    [at(0, 2026, 1, 31, 12), at(0, 9999, 12, 30), at(-11, 9999, 12, 30), at(14, 2, 1, 1)],
)
def test_an_end_that_has_one_survives_the_wire(moment: datetime) -> None:
    request = Request("approval", "ok?", expires_at=moment)
    again = Request.from_dict(request.to_dict())
    assert again.expires_at == moment
