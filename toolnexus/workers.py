"""Jobs and the threads that run them: whoever claims a job first runs it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from toolnexus.clock import Clock, RealClock, Signal
from toolnexus.threads import OwnThread, WrapJob

logger = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 10.0
"""How long a worker waits for its next job before it ends."""


class Claimable(Protocol):
    """Work that a worker offers to do; somebody else may have begun it."""

    def run_if_unclaimed(self) -> bool:
        """Do the work unless another thread has begun; say whether it was done here."""


class Job:
    """A piece of work that exactly one thread runs: the first to claim it.

    A thread that needs the outcome calls `finish`: it runs the job itself if nobody has begun,
    so waiting never depends on a free worker.
    """

    __slots__ = ("_claim", "_done", "_error", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        # Never released: whoever takes it owns the job for good.
        self._claim = threading.Lock()
        self._done = Signal()
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether the work has ended."""
        return self._done.is_set()

    def claim(self) -> bool:
        """Take the job; True for exactly one caller, who then must `run` it."""
        return self._claim.acquire(blocking=False)

    def run(self) -> None:
        """Do the work. What it raises is kept for `finish`."""
        work, self._work = self._work, None
        try:
            if work is not None:
                work()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = error
        finally:
            self._done.set()

    def run_if_unclaimed(self) -> bool:
        """Run the job unless another thread has begun; say whether it ran here."""
        if not self.claim():
            return False
        self.run()
        return True

    def wait(self, clock: Clock) -> None:
        """Return when the work is done by whoever claimed it."""
        clock.wait(self._done)

    def finish(self, clock: Clock) -> None:
        """Return when the work is done, doing it here if nobody has begun.

        Raises:
            BaseException: Whatever the work raised.
        """
        if not self.run_if_unclaimed():
            clock.wait(self._done)
        if self._error is not None:
            raise self._error


class WorkerPool:
    """Up to `max_workers` daemon threads, started on demand, that run jobs in order.

    Daemon threads, so that a script that ends does not wait for a slow model; `close` joins
    them. A fork's child starts with none. Thread-safe.

    Attributes:
        wrap_job: The host's hook around what is done on them.
    """

    def __init__(
        self, max_workers: int, name: str = "toolnexus", wrap_job: WrapJob | None = None
    ) -> None:
        self._max_workers = max_workers
        self._name = name
        self.wrap_job = wrap_job
        self._started = 0
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the threads and jobs of the parent process."""
        # Guards everything below; notified when a job is queued and on close.
        self._condition = threading.Condition(threading.Lock())
        self._jobs: deque[Claimable] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_closed = False

    def submit(self, job: Claimable) -> bool:
        """Queue `job`; False where nobody but a waiter will run it.

        That is on a closed pool, and on one that has no workers.
        """
        with self._condition:
            if self._is_closed or not self._max_workers:
                return False
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._condition.notify()
                return True
            if len(self._threads) >= self._max_workers:
                return True
            self._started += 1
            thread = OwnThread(self._work, f"{self._name}-{self._started}", self.wrap_job)
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            # The machine gives no more threads: the ones there are have to do.
            with self._condition:
                self._threads.discard(thread)
                is_alone = not self._threads
            if is_alone:
                job.run_if_unclaimed()
        return True

    def is_worker_here(self) -> bool:
        """Whether the calling thread is one of the workers."""
        return threading.current_thread() in self._threads

    def take_queued(self) -> list[Claimable]:
        """Return what no worker has begun, for the caller to see to."""
        with self._condition:
            jobs = list(self._jobs)
            self._jobs.clear()
            return jobs

    def close(self, timeout: float) -> list[str]:
        """Stop the workers and join them for at most `timeout` seconds, all together.

        Returns:
            Names of the threads that are still inside foreign code; they end with it.
        """
        with self._condition:
            self._is_closed = True
            self._jobs.clear()
            threads = [one for one in self._threads if one is not threading.current_thread()]
            self._condition.notify_all()
        clock = RealClock()
        limit = clock.monotonic() + timeout
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(limit - clock.monotonic(), 0))
        return [thread.name for thread in threads if thread.is_alive()]

    def _work(self) -> None:
        condition = self._condition
        while (job := self._next_job(condition)) is not None:
            try:
                job.run_if_unclaimed()
            except BaseException:
                with contextlib.suppress(BaseException):
                    logger.exception("a job failed")
            # Not kept while waiting: a finished job may hold a whole transcript.
            del job

    def _next_job(self, condition: threading.Condition) -> Claimable | None:
        with condition:
            self._idle += 1
            try:
                condition.wait_for(lambda: self._jobs or self._is_closed, _IDLE_SECONDS)
            finally:
                self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._threads.discard(threading.current_thread())
            return None
