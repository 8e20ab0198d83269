"""CancelToken: one throw, its callbacks, and waits that end with it."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.conftest import LIMIT
from toolnexus import Cancelled, CancelToken, RealClock
from toolnexus.testing import VirtualClock


def test_a_fresh_token_lets_everything_pass() -> None:
    token = CancelToken()

    token.raise_if_cancelled()
    assert not token.is_cancelled
    assert token.reason is None


def test_only_the_first_throw_counts() -> None:
    token = CancelToken()

    assert token.cancel("first") is True
    assert token.cancel("second") is False
    assert token.reason == "first"
    with pytest.raises(Cancelled, match=r"^first$"):
        token.raise_if_cancelled()


def test_the_default_reason_is_run_cancelled() -> None:
    token = CancelToken()
    token.cancel()

    with pytest.raises(Cancelled, match=r"^run cancelled$") as caught:
        token.raise_if_cancelled()
    assert caught.value.reason == "run cancelled"


def test_callbacks_run_once_in_order_on_the_throwing_thread() -> None:
    token, calls = CancelToken(), []
    token.on_cancel(lambda: calls.append(("a", threading.current_thread())))
    token.on_cancel(lambda: calls.append(("b", threading.current_thread())))
    token.cancel()
    token.cancel()

    assert calls == [("a", threading.current_thread()), ("b", threading.current_thread())]


def test_a_callback_added_after_the_throw_runs_at_once() -> None:
    token, calls = CancelToken(), []
    token.cancel()
    forget = token.on_cancel(lambda: calls.append("late"))

    assert calls == ["late"]
    forget()


def test_a_callback_taken_back_does_not_run() -> None:
    token, calls = CancelToken(), []
    forget = token.on_cancel(lambda: calls.append("gone"))
    token.on_cancel(lambda: calls.append("kept"))
    forget()
    forget()
    token.cancel()

    assert calls == ["kept"]


def test_a_failing_callback_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    token, calls = CancelToken(), []
    token.on_cancel(lambda: 1 / 0)
    token.on_cancel(lambda: calls.append("ran"))
    with caplog.at_level(logging.ERROR, "toolnexus.cancel"):
        assert token.cancel()

    assert calls == ["ran"]
    assert "a cancel callback failed" in caplog.text


def test_callbacks_run_without_the_lock() -> None:
    token, seen = CancelToken(), []

    def look_from_another_thread() -> None:
        other = threading.Thread(target=lambda: seen.append(token.cancel("again")))
        other.start()
        other.join(LIMIT)

    token.on_cancel(look_from_another_thread)
    token.cancel("once")

    assert seen == [False]


def test_many_threads_throw_and_one_wins() -> None:
    token, calls = CancelToken(), []
    token.on_cancel(lambda: calls.append(1))
    start = threading.Barrier(8)
    won: list[bool] = []

    def throw() -> None:
        start.wait(LIMIT)
        won.append(token.cancel())

    threads = [threading.Thread(target=throw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)

    assert sorted(won) == [False] * 7 + [True]
    assert calls == [1]


def test_a_wait_runs_out_and_leaves_no_callback() -> None:
    virtual_clock = VirtualClock()
    token, ended = CancelToken(), []
    thread = threading.Thread(target=lambda: ended.append(token.wait(virtual_clock, 5.0)))
    thread.start()
    virtual_clock.wait_parked(1)
    virtual_clock.advance(4.9)
    virtual_clock.wait_parked(1)
    virtual_clock.advance(0.1)
    thread.join(LIMIT)

    assert ended == [False]
    assert token._callbacks == []


def test_a_wait_ends_when_the_token_is_thrown() -> None:
    virtual_clock = VirtualClock()
    token, ended = CancelToken(), []
    thread = threading.Thread(target=lambda: ended.append(token.wait(virtual_clock, 5.0)))
    thread.start()
    virtual_clock.wait_parked(1)
    token.cancel()
    thread.join(LIMIT)

    assert ended == [True]


def test_a_wait_on_a_thrown_token_does_not_wait() -> None:
    token = CancelToken()
    token.cancel()

    assert token.wait(RealClock(), 3600.0) is True
