"""Threads that start at once, and forked processes."""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

from toolnexus.clock import RealClock, Signal
from toolnexus.codec import JsonValue
from toolnexus.testing.store_suite.base import LIMIT_SECONDS

Tell: TypeAlias = Callable[[JsonValue], None]
"""Tells a value to the process that has forked this one."""

_REAL: Final = RealClock()


def in_threads(work: Callable[[int], Any], count: int) -> list[Any]:
    """Run work in threads that start at once; return what each returns."""
    barrier = threading.Barrier(count)

    def started(number: int) -> Any:
        barrier.wait(LIMIT_SECONDS)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(started, number) for number in range(count)]
        return [one.result(LIMIT_SECONDS) for one in running]


class Forked:
    """A forked process that begins its work when it is told to."""

    def __init__(self, work: Callable[[Tell], None]) -> None:
        """Fork."""
        going, self._go = os.pipe()
        told, telling = os.pipe()
        with warnings.catch_warnings():
            # From Python 3.12 on, where other threads are there: they are not the child's.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _be_child(work, going, telling)
        os.close(going)
        os.close(telling)
        self._told = os.fdopen(told)

    def go(self) -> None:
        """Let it begin."""
        os.write(self._go, b"!")
        os.close(self._go)

    def line(self) -> JsonValue:
        """Return the next value that it tells."""
        return json.loads(self._told.readline())

    def kill(self) -> None:
        """End it in the midst of whatever it does."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._told.close()

    def end(self, code: int = 0) -> list[JsonValue]:
        """Wait for its end, and return what else it has told."""
        limit = _REAL.monotonic() + LIMIT_SECONDS
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                break
            if _REAL.monotonic() > limit:
                self.kill()
                raise AssertionError("the forked process hangs")
            _REAL.wait(Signal(), 0.005)
        with self._told:
            values = [json.loads(line) for line in self._told]
        assert os.waitstatus_to_exitcode(status) == code, "\n".join(map(str, values))
        return values


def in_processes(work: Callable[[int, Tell], None], count: int) -> list[list[JsonValue]]:
    """Run work in forked processes that start at once; return what each has told."""

    def numbered(number: int) -> Callable[[Tell], None]:
        return lambda tell: work(number, tell)

    children = [Forked(numbered(number)) for number in range(count)]
    for child in children:
        child.go()
    return [child.end() for child in children]


def _be_child(work: Callable[[Tell], None], going: int, telling: int) -> None:
    def tell(value: JsonValue) -> None:
        os.write(telling, json.dumps(value).encode() + b"\n")

    code = 1
    try:
        signal.alarm(int(2 * LIMIT_SECONDS))  # it ends whatever becomes of its parent
        os.read(going, 1)
        work(tell)
        code = 0
    except BaseException:  # noqa: BLE001 - told to the parent
        tell(traceback.format_exc())
    finally:
        os._exit(code)
