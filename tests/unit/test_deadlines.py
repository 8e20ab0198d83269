"""Deadlines: watched by one thread, for as long as something is due."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import LIMIT
from toolnexus.clock import RealClock
from toolnexus.deadlines import Deadlines
from toolnexus.testing import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def deadlines(clock: VirtualClock) -> Iterator[Deadlines]:
    made = Deadlines(clock)
    yield made
    made.close()


def our_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "toolnexus-deadlines"]


class Calls:
    """What was called, in order; a test waits for the next."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()

    def note(self, what: object) -> Any:
        return lambda: self._queue.put(what)

    def next(self) -> Any:
        return self._queue.get(timeout=LIMIT)

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()


def test_calls_come_in_the_order_of_their_instants(
    clock: VirtualClock, deadlines: Deadlines
) -> None:
    calls, start = Calls(), clock.monotonic()
    for seconds in (3, 1, 2):
        deadlines.call_at(start + seconds, calls.note(seconds))
    for seconds in (1, 2, 3):
        clock.wait_parked(1)
        clock.advance(0.5)
        clock.wait_parked(1)
        assert calls.is_empty
        clock.advance(0.5)
        assert calls.next() == seconds


def test_calls_of_one_instant_all_come(clock: VirtualClock, deadlines: Deadlines) -> None:
    calls, instant = Calls(), clock.monotonic() + 1
    for number in range(20):
        deadlines.call_at(instant, calls.note(number))
    clock.wait_parked(1)
    clock.advance(1)
    # Each on a thread of its own, so in no order.
    assert sorted(calls.next() for _ in range(20)) == list(range(20))


def test_an_earlier_instant_given_later_is_kept(
    clock: VirtualClock, deadlines: Deadlines
) -> None:
    calls, start = Calls(), clock.monotonic()
    deadlines.call_at(start + 1000, calls.note("late"))
    clock.wait_parked(1)
    deadlines.call_at(start + 1, calls.note("early"))
    clock.advance(1)
    assert calls.next() == "early"
    assert calls.is_empty


def test_an_instant_that_has_passed_is_called_at_once(
    clock: VirtualClock, deadlines: Deadlines
) -> None:
    calls = Calls()
    deadlines.call_at(clock.monotonic() - 5, calls.note("now"))
    assert calls.next() == "now"


def test_what_was_taken_back_is_not_called(clock: VirtualClock, deadlines: Deadlines) -> None:
    calls, start = Calls(), clock.monotonic()
    take_back = deadlines.call_at(start + 1, calls.note("gone"))
    deadlines.call_at(start + 2, calls.note("kept"))
    take_back()
    take_back()
    clock.wait_parked(1)
    clock.advance(3)
    assert calls.next() == "kept"
    take_back()
    assert calls.is_empty


@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(1), KeyboardInterrupt()])
def test_a_call_that_raises_keeps_no_later_one_from_coming(
    clock: VirtualClock,
    deadlines: Deadlines,
    error: BaseException,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls, start = Calls(), clock.monotonic()

    def fail() -> None:
        raise error

    deadlines.call_at(start + 1, fail)
    deadlines.call_at(start + 2, calls.note("kept"))
    clock.wait_parked(1)
    clock.advance(1)
    clock.wait_parked(1)
    clock.advance(1)
    assert calls.next() == "kept"
    deadlines.close()  # joins the threads of the calls, so that what they log is there
    assert [one.message for one in caplog.records] == [
        "what was to be done at a deadline failed"
    ]


def test_there_is_one_thread_and_none_where_nothing_is_due(
    clock: VirtualClock, deadlines: Deadlines
) -> None:
    assert our_threads() == []
    instant = clock.monotonic() + 1
    taken_back = [deadlines.call_at(instant, lambda: None) for _ in range(200)]
    (thread,) = our_threads()
    for take_back in taken_back:
        take_back()
    thread.join(LIMIT)
    assert our_threads() == []

    calls = Calls()
    deadlines.call_at(instant, calls.note("again"))
    clock.wait_parked(1)
    clock.advance(1)
    assert calls.next() == "again"
    for one in our_threads():
        one.join(LIMIT)
    assert our_threads() == []


def test_close_ends_the_thread_and_calls_nothing(
    clock: VirtualClock, deadlines: Deadlines
) -> None:
    calls = Calls()
    for seconds in range(1, 50):
        deadlines.call_at(clock.monotonic() + seconds, calls.note(seconds))
    clock.wait_parked(1)
    deadlines.close()
    assert our_threads() == []
    clock.advance(100)
    deadlines.close()
    assert calls.is_empty


def test_a_call_may_close_the_deadlines(clock: VirtualClock, deadlines: Deadlines) -> None:
    calls, start = Calls(), clock.monotonic()

    def end() -> None:
        deadlines.close()
        calls.note("closed")()

    deadlines.call_at(start + 1, end)
    deadlines.call_at(start + 2, calls.note("too late"))
    clock.wait_parked(1)
    clock.advance(1)
    assert calls.next() == "closed"
    clock.advance(4)
    for one in our_threads():
        one.join(LIMIT)
    assert our_threads() == []
    assert calls.is_empty


def test_a_call_may_give_another(clock: VirtualClock, deadlines: Deadlines) -> None:
    calls, start = Calls(), clock.monotonic()
    deadlines.call_at(
        start + 1, lambda: deadlines.call_at(start + 2, calls.note("second")) and None
    )
    clock.wait_parked(1)
    clock.advance(1)
    clock.wait_parked(1)
    clock.advance(1)
    assert calls.next() == "second"


def test_a_clock_of_the_machine_will_do() -> None:
    calls, real = Calls(), RealClock()
    deadlines = Deadlines(real)
    deadlines.call_at(real.monotonic() + 3600, calls.note("in an hour"))
    deadlines.call_at(real.monotonic() + 0.02, calls.note("soon"))
    assert calls.next() == "soon"
    deadlines.close()
    assert our_threads() == []


def test_threads_that_give_and_take_back_at_once_lose_nothing() -> None:
    real, fired, lock = RealClock(), [0], threading.Lock()
    deadlines = Deadlines(real)
    over = [threading.Event() for _ in range(4)]

    def note(event: threading.Event) -> None:
        with lock:
            fired[0] += 1
        event.set()

    def churn(event: threading.Event) -> None:
        for _ in range(200):
            deadlines.call_at(real.monotonic() + 3600, lambda: None)()
        deadlines.call_at(real.monotonic(), lambda: note(event))

    threads = [threading.Thread(target=churn, args=(one,), daemon=True) for one in over]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert all(one.wait(LIMIT) for one in over)
    deadlines.close()
    assert fired == [4]
    assert our_threads() == []
