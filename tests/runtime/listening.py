"""Waiting for a line of the trace: the log tells of each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.conftest import LIMIT


class Heard(logging.Handler):
    """Counts the trace lines that hold a fragment."""

    def __init__(self, fragment: str) -> None:
        super().__init__(logging.DEBUG)
        self.fragment = fragment
        self.count = 0
        self.changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        if self.fragment in record.getMessage():
            with self.changed:
                self.count += 1
                self.changed.notify_all()

    def wait(self, count: int = 1) -> None:
        """Block until that many such lines were written."""
        with self.changed:
            heard = self.changed.wait_for(lambda: self.count >= count, LIMIT)
        assert heard, f"{self.count} of {count} lines with {self.fragment!r}"


@contextmanager
def listening(fragment: str) -> Iterator[Heard]:
    """Listen for trace lines that hold `fragment`."""
    logger = logging.getLogger("toolnexus.trace")
    heard, level = Heard(fragment), logger.level
    logger.addHandler(heard)
    logger.setLevel(logging.DEBUG)
    try:
        yield heard
    finally:
        logger.removeHandler(heard)
        logger.setLevel(level)
