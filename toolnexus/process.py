"""What happens to threads, locks and sockets when the process forks or ends."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Final

logger = logging.getLogger(__name__)


class ProcessBound:
    """An object that owns threads, locks or sockets of this process. Does nothing by itself.

    Attributes:
        forks_last: Whether `before_fork` runs after that of all others. It may then wait for
            work under way, which others have to let end first.
    """

    forks_last: bool = False

    def before_fork(self) -> None:
        """Run before a fork: bring what a child may inherit to a consistent point."""

    def after_fork_in_parent(self) -> None:
        """Run in the forking process afterwards."""

    def after_fork(self) -> None:
        """Run in the child, where only the forking thread lives on: start afresh."""

    def at_exit(self) -> None:
        """Run when the interpreter ends: stop within a fraction of a second.

        A call of a store that hangs takes as long as its own limit lets it.
        """


# Weak, so that being watched keeps nothing alive.
_watched: Final[weakref.WeakSet[ProcessBound]] = weakref.WeakSet()


def watch(owner: ProcessBound) -> None:
    """Tell `owner` of forks and of the interpreter's end for as long as it lives."""
    _watched.add(owner)


def unwatch(owner: ProcessBound) -> None:
    """Forget `owner`."""
    _watched.discard(owner)


# Whom a fork in progress has told of it: the same are told that it is over.
_forking: Final[list[ProcessBound]] = []


def _tell(step: str, owners: list[ProcessBound]) -> None:
    for owner in owners:
        try:
            getattr(owner, step)()
        except Exception:
            logger.exception("%s of %r failed", step, owner)


def _before_fork() -> None:
    # In one order, whoever forks: two of them may hold locks meanwhile.
    owners = sorted(_watched, key=lambda one: (one.forks_last, id(one)))
    _tell("before_fork", owners)
    _forking[:] = owners


def _after_fork(step: str) -> None:
    owners = list(_forking)
    _forking.clear()
    _tell(step, owners)


def _at_exit() -> None:
    _tell("at_exit", list(_watched))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork("after_fork_in_parent"),
        after_in_child=lambda: _after_fork("after_fork"),
    )
atexit.register(_at_exit)
