"""Job and WorkerPool: whoever claims a job runs it, and nobody waits for a free worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import LIMIT
from toolnexus import RealClock
from toolnexus.workers import Job, WorkerPool

CLOCK = RealClock()


@pytest.fixture
def make_pool() -> Iterator[Callable[[int], WorkerPool]]:
    made: list[WorkerPool] = []

    def make(size: int) -> WorkerPool:
        made.append(WorkerPool(size, "test-pool"))
        return made[-1]

    yield make
    for pool in made:
        assert pool.close(LIMIT) == []


def test_a_job_is_claimed_once_by_one_of_many() -> None:
    ran: list[str] = []
    job = Job(lambda: ran.append(threading.current_thread().name))
    start = threading.Barrier(8)
    here: list[bool] = []

    def take() -> None:
        start.wait(LIMIT)
        here.append(job.run_if_unclaimed())

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)

    assert sorted(here) == [False] * 7 + [True]
    assert len(ran) == 1


def test_finish_runs_a_job_that_nobody_began() -> None:
    ran: list[threading.Thread] = []
    job = Job(lambda: ran.append(threading.current_thread()))
    job.finish(CLOCK)
    job.finish(CLOCK)

    assert ran == [threading.current_thread()]


def test_finish_waits_for_the_thread_that_began() -> None:
    begun, release = threading.Event(), threading.Event()
    ran: list[str] = []

    def work() -> None:
        begun.set()
        assert release.wait(LIMIT)
        ran.append("work")

    job = Job(work)
    worker = threading.Thread(target=job.run_if_unclaimed)
    worker.start()
    assert begun.wait(LIMIT)
    waiter = threading.Thread(target=lambda: (job.finish(CLOCK), ran.append("waiter")))
    waiter.start()
    release.set()
    worker.join(LIMIT)
    waiter.join(LIMIT)

    assert ran == ["work", "waiter"]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_what_the_work_raised_reaches_every_waiter(error: BaseException) -> None:
    def work() -> None:
        raise error

    job = Job(work)
    assert job.run_if_unclaimed()
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            job.finish(CLOCK)
        assert caught.value is error


def test_a_finished_job_lets_its_work_go() -> None:
    job = Job(lambda: None)
    job.finish(CLOCK)

    assert job._work is None


def test_one_worker_runs_jobs_in_order(make_pool: Callable[[int], WorkerPool]) -> None:
    pool, ran = make_pool(1), []
    jobs = [
        Job(lambda n=n: ran.append((n, threading.current_thread().name))) for n in range(20)
    ]
    hold = threading.Event()
    pool.submit(Job(lambda: hold.wait(LIMIT)))
    for job in jobs:
        assert pool.submit(job)
    done = threading.Event()
    pool.submit(Job(done.set))
    hold.set()
    assert done.wait(LIMIT)

    assert [n for n, _ in ran] == list(range(20))
    assert {name for _, name in ran} == {"test-pool-1"}


def test_a_pool_never_exceeds_its_size(make_pool: Callable[[int], WorkerPool]) -> None:
    pool = make_pool(3)
    together = threading.Barrier(3)
    done = threading.Semaphore(0)
    names: set[str] = set()

    def work() -> None:
        names.add(threading.current_thread().name)
        together.wait(LIMIT)  # three really do run at once
        done.release()

    for _ in range(9):
        pool.submit(Job(work))
    for _ in range(9):
        assert done.acquire(timeout=LIMIT)

    assert len(names) == 3


def test_an_idle_worker_is_used_again(make_pool: Callable[[int], WorkerPool]) -> None:
    pool = make_pool(8)
    names = set()
    for _ in range(10):
        job = Job(lambda: names.add(threading.current_thread().name))
        begun = threading.Event()
        pool.submit(Job(begun.set))
        assert begun.wait(LIMIT)
        pool.submit(job)
        job.finish(CLOCK)

    # The waiter may take a job over; workers themselves never number more than the two at hand.
    assert len(names - {threading.current_thread().name}) <= 2


def test_a_job_that_raises_costs_no_worker(make_pool: Callable[[int], WorkerPool]) -> None:
    pool = make_pool(1)
    for _ in range(3):
        pool.submit(Job(lambda: 1 / 0))
    done = threading.Event()
    pool.submit(Job(done.set))

    assert done.wait(LIMIT)


def test_a_waiter_takes_over_what_a_full_pool_cannot_begin(
    make_pool: Callable[[int], WorkerPool],
) -> None:
    pool, hold = make_pool(1), threading.Event()
    pool.submit(Job(lambda: hold.wait(LIMIT)))
    ran: list[threading.Thread] = []
    job = Job(lambda: ran.append(threading.current_thread()))
    pool.submit(job)
    job.finish(CLOCK)
    hold.set()

    assert ran == [threading.current_thread()]


def test_workers_are_daemons_and_end_with_the_pool() -> None:
    pool, seen = WorkerPool(2, "ending"), []
    done = threading.Event()
    pool.submit(Job(lambda: (seen.append(threading.current_thread()), done.set())))
    assert done.wait(LIMIT)

    assert pool.close(LIMIT) == []
    assert seen[0].daemon
    assert not seen[0].is_alive()


def test_a_closed_pool_refuses_and_a_waiter_still_gets_there() -> None:
    pool, ran = WorkerPool(2), []
    pool.close(LIMIT)
    job = Job(lambda: ran.append(1))

    assert pool.submit(job) is False
    job.finish(CLOCK)
    assert ran == [1]


def test_close_names_the_threads_that_are_still_busy() -> None:
    pool, hold, begun = WorkerPool(1, "stuck"), threading.Event(), threading.Event()
    pool.submit(Job(lambda: (begun.set(), hold.wait(LIMIT))))
    assert begun.wait(LIMIT)

    assert pool.close(0.01) == ["stuck-1"]
    hold.set()
    assert pool.close(LIMIT) == []


def test_close_from_a_worker_does_not_wait_for_itself() -> None:
    pool, closed = WorkerPool(1), []
    done = threading.Event()
    pool.submit(Job(lambda: (closed.append(pool.close(LIMIT)), done.set())))

    assert done.wait(LIMIT)
    assert closed == [[]]


def test_jobs_left_at_close_are_not_begun_by_a_worker() -> None:
    pool, hold, begun = WorkerPool(1), threading.Event(), threading.Event()
    ran: list[int] = []
    pool.submit(Job(lambda: (begun.set(), hold.wait(LIMIT))))
    assert begun.wait(LIMIT)
    pool.submit(Job(lambda: ran.append(1)))
    pool.close(0.01)
    hold.set()
    pool.close(LIMIT)

    assert ran == []
