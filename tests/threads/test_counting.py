"""Counting events on several threads, in finalisers, and in forked processes."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import pytest

from tests.conftest import LIMIT
from tests.threads.racing import race
from tests.unit.test_prometheus import EMPTY, EVENTS, check_histogram, metrics_of, series_of
from toolnexus import MetricEvent
from toolnexus.client.prometheus import Counters

FAILED = MetricEvent(kind="run", ms=0, model="inner", status="error", error="no")


@pytest.mark.usefixtures("threads_change_often")
def test_threads_that_record_and_read_at_once_lose_nothing() -> None:
    recorders, each = 8, 400
    counters = Counters()

    def record() -> None:
        for _ in range(each):
            counters.record(EVENTS[0])

    def read() -> list[str]:
        return [counters.text() for _ in range(30)]

    *_, first, second = race(*[record] * recorders, read, read)

    total = recorders * each
    text = counters.text()
    assert f'toolnexus_llm_requests_total{{model="m",status="ok"}} {total}\n' in text
    assert f'toolnexus_llm_tokens_total{{type="prompt"}} {total * 30}\n' in text
    assert f'duration_seconds_sum{{model="m"}} {total // 4}\n' in text
    for one in (*first, *second, text):
        check_histogram(metrics_of(one)["toolnexus_llm_request_duration_seconds"])


def test_nothing_is_kept_of_an_event_that_nobody_reads() -> None:
    counters = Counters()
    for _ in range(100):
        counters.record(EVENTS[0])
    assert not counters._queue


class Interfering(str):
    """A name that does something whenever it is looked up, as a finaliser might."""

    __slots__ = ("deed",)
    deed: Callable[[], object]

    def __hash__(self) -> int:
        self.deed()
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


@contextmanager
def counting_in_another_thread(counters: Counters) -> Iterator[None]:
    """Have another thread stand in the middle of a count."""
    is_counting, may_go_on = threading.Event(), threading.Event()
    name = Interfering("outer")

    def hold() -> None:
        is_counting.set()
        may_go_on.wait(3 * LIMIT)

    name.deed = hold
    event = attrs.evolve(FAILED, model=name)
    thread = threading.Thread(target=counters.record, args=(event,), daemon=True)
    thread.start()
    assert is_counting.wait(LIMIT)
    try:
        yield
    finally:
        may_go_on.set()
        thread.join(LIMIT)


def test_an_event_recorded_in_the_middle_of_a_count_waits_for_nobody() -> None:
    counters = Counters()
    name = Interfering("outer")
    left = [FAILED]

    def interfere() -> None:
        if left:
            counters.record(left.pop())

    name.deed = interfere
    counters.record(attrs.evolve(FAILED, model=name))

    assert series_of(counters.text()) == [
        'toolnexus_run_errors_total{model="inner"} 1',
        'toolnexus_run_errors_total{model="outer"} 1',
    ]


def test_an_event_recorded_while_another_thread_counts_does_not_wait() -> None:
    counters = Counters()
    with counting_in_another_thread(counters):
        recorder = threading.Thread(target=counters.record, args=(FAILED,), daemon=True)
        recorder.start()
        recorder.join(LIMIT)
        has_waited = recorder.is_alive()

    assert not has_waited
    assert len(series_of(counters.text())) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_counts_from_nothing_whoever_was_counting() -> None:
    counters = Counters()
    with counting_in_another_thread(counters):
        with warnings.catch_warnings():
            # Newer Pythons warn of a fork beside threads, which is what this is about.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(int(LIMIT))
                counters.after_fork()
                code = 0 if counters.text() == EMPTY else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
