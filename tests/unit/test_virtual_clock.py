"""VirtualClock: time that moves only by `advance`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest

from toolnexus.cancel import CancelToken
from toolnexus.clock import Clock, Signal
from toolnexus.testing import VirtualClock

LIMIT = 5.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    before = set(threading.enumerate())
    with ThreadPoolExecutor(16) as threads:
        yield threads
    assert not set(threading.enumerate()) - before


def test_it_is_a_clock(clock: VirtualClock) -> None:
    checked: Clock = clock
    assert checked.wait(Signal(), 0) is False


def test_time_stands_still_until_it_is_advanced() -> None:
    start = datetime(2030, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    clock = VirtualClock(start)
    first = clock.monotonic()
    assert (clock.now(), clock.monotonic()) == (start, first)
    assert clock.now().tzinfo is timezone.utc
    clock.advance(90.5)
    assert clock.now() - start == timedelta(seconds=90.5)
    assert clock.monotonic() - first == 90.5


def test_a_naive_start_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        VirtualClock(datetime(2030, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_time_never_goes_back(clock: VirtualClock, seconds: float) -> None:
    with pytest.raises(ValueError, match="forward"):
        clock.advance(seconds)


def test_a_wait_ends_when_its_time_has_passed_and_not_before(
    clock: VirtualClock, pool: ThreadPoolExecutor
) -> None:
    got = pool.submit(clock.wait, Signal(), 30.0)
    clock.wait_parked(1)
    clock.advance(29.0)
    assert not got.done()
    assert clock.parked == 1
    clock.advance(1.0)
    assert got.result(LIMIT) is False
    assert clock.parked == 0


def test_a_signal_ends_the_wait_with_no_time_passing(
    clock: VirtualClock, pool: ThreadPoolExecutor
) -> None:
    signal = Signal()
    waits = [pool.submit(clock.wait, signal, limit) for limit in (1.0, 2.0, None)]
    clock.wait_parked(2)
    signal.set()
    assert [wait.result(LIMIT) for wait in waits] == [True, True, True]
    assert clock.wait(signal, 5.0) is True
    assert clock.wait(signal, -1.0) is True


def test_waiters_of_one_signal_keep_their_own_limits(
    clock: VirtualClock, pool: ThreadPoolExecutor
) -> None:
    signal = Signal()
    short = pool.submit(clock.wait, signal, 1.0)
    long = pool.submit(clock.wait, signal, 10.0)
    clock.wait_parked(2)
    clock.advance(1.0)
    assert short.result(LIMIT) is False
    assert not long.done()
    signal.set()
    assert long.result(LIMIT) is True


def test_a_cancelled_token_wakes_its_sleeper(
    clock: VirtualClock, pool: ThreadPoolExecutor
) -> None:
    token = CancelToken()
    slept = pool.submit(token.wait, clock, 60.0)
    clock.wait_parked(1)
    token.cancel()
    assert slept.result(LIMIT) is True


def test_waiters_that_are_over_are_not_counted_as_parked(
    clock: VirtualClock, pool: ThreadPoolExecutor
) -> None:
    def sleep_often(times: int) -> int:
        for _ in range(times):
            clock.wait(Signal(), 1.0)
        return times

    slept = pool.submit(sleep_often, 200)
    for _ in range(200):  # each round would run ahead of the sleeper if it counted the last one
        clock.wait_parked(1)
        clock.advance(1.0)
    assert slept.result(LIMIT) == 200
    assert clock.monotonic() == 1200.0


def test_no_wake_up_is_lost_among_racing_waiters(
    clock: VirtualClock, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        start = threading.Barrier(9)

        def wait_once(start: threading.Barrier = start) -> bool:
            start.wait(LIMIT)
            return clock.wait(Signal(), 1.0)

        waits = [pool.submit(wait_once) for _ in range(8)]
        start.wait(LIMIT)
        clock.wait_parked(8)
        clock.advance(1.0)
        assert not any(wait.result(LIMIT) for wait in waits)


@pytest.mark.parametrize("step", [0.1, 0.3, 0.7, 1 / 3, 1e-9])
def test_advancing_by_the_limit_always_reaches_the_deadline(
    clock: VirtualClock, step: float
) -> None:
    for _ in range(20):
        deadline = clock.monotonic() + step
        clock.advance(step)
        assert clock.monotonic() >= deadline


def test_wait_parked_says_how_many_there_are(clock: VirtualClock) -> None:
    with pytest.raises(TimeoutError, match="0 of 2 threads"):
        clock.wait_parked(2, timeout=0.01)
