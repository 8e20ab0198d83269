"""What happens to threads, locks and sockets when the process forks or ends."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Final, Protocol

logger = logging.getLogger(__name__)


class ProcessBound(Protocol):
    """An object that owns threads, locks or sockets of this process."""

    def after_fork(self) -> None:
        """Run in a forked child, where only the forking thread lives on: start afresh."""

    def at_exit(self) -> None:
        """Run when the interpreter ends: stop within a fraction of a second."""


# Weak, so that being watched keeps nothing alive.
_watched: Final[weakref.WeakSet[ProcessBound]] = weakref.WeakSet()


def watch(owner: ProcessBound) -> None:
    """Tell `owner` of forks and of the interpreter's end for as long as it lives."""
    _watched.add(owner)


def unwatch(owner: ProcessBound) -> None:
    """Forget `owner`."""
    _watched.discard(owner)


def _after_fork() -> None:
    for owner in list(_watched):
        try:
            owner.after_fork()
        except Exception:
            logger.exception("starting %r afresh after a fork failed", owner)


def _at_exit() -> None:
    for owner in list(_watched):
        try:
            owner.at_exit()
        except Exception:
            logger.exception("shutting %r down at exit failed", owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
