"""Lifetime: what a runtime does when the process forks or ends, and when its root closes."""

from __future__ import annotations

import logging
import threading
from typing import Final

from toolnexus.process import ProcessBound
from toolnexus.runtime.announcing import Announcing
from toolnexus.runtime.closing import Closing
from toolnexus.runtime.core import Core
from toolnexus.runtime.durable import Durable
from toolnexus.runtime.settling import Settling
from toolnexus.runtime.turns import Turns

logger = logging.getLogger(__name__)

_JOIN_SECONDS: Final = 1.0
"""How long `close(root)` waits for threads to leave foreign code, all together."""

_EXIT_SECONDS: Final = 0.1
"""How long the interpreter's end waits for the workers, all together."""


class Lifetime(ProcessBound):
    """Starts a runtime afresh in a forked child, and ends its threads and sockets."""

    def __init__(
        self,
        core: Core,
        settling: Settling,
        closing: Closing,
        turns: Turns,
        announcing: Announcing,
        durable: Durable | None = None,
    ) -> None:
        self._core = core
        self._settling = settling
        self._closing = closing
        self._turns = turns
        self._announcing = announcing
        self._durable = durable

    def before_fork(self) -> None:
        """Let no other thread be in the middle of a decision: a child would inherit half."""
        self._core.lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._core.lock.release()

    def after_fork(self) -> None:
        """Start afresh in a forked child: turns that ran belong to the parent process."""
        core = self._core
        core.lock = threading.RLock()
        core.pool.after_fork()
        core.counters.after_fork()
        core.feeds.after_fork()
        core.vault.after_fork()
        core.logins.after_fork()
        self._announcing.after_fork()
        self._turns.gate.after_fork()
        self._turns.transport.after_fork()
        self._turns.deadlines.after_fork()
        if self._durable is not None:
            self._durable.after_fork()
            return
        with core.deciding() as effects:
            self._settling.after_fork_locked(effects)
            self._closing.withdraw_unanswerable_locked(effects)
        self._announcing.watch()

    def at_exit(self) -> None:
        """Abort requests in flight, so that the interpreter can end."""
        if self._durable is not None:
            # Whatever these turns still do is not written any more: they go on elsewhere.
            self._durable.let_go()
        with self._core.lock:
            runs = [one._run for one in self._core.handles.values() if one._run is not None]
        for run in runs:
            run.cancel.cancel("the interpreter ends")
        self._core.pool.close(_EXIT_SECONDS)

    def end(self) -> None:
        """End the threads and sockets; name the agents whose tools do not let go."""
        self._announcing.close()
        self._turns.deadlines.close()
        self._core.vault.clear()
        if self._durable is not None:
            self._durable.end(_JOIN_SECONDS)
        # Nothing runs any more, so what waits for runs to end does so at once.
        for job in self._core.pool.take_queued():
            job.run_if_unclaimed()
        left = self._core.pool.close(_JOIN_SECONDS)
        self._turns.transport.close()
        if left:
            with self._core.lock:
                stuck = [one.id for one in self._core.closed.values() if one._stale_runs]
            logger.warning(
                "closed, but a tool still runs in %s (%s)",
                ", ".join(left),
                ", ".join(stuck) or "no turn",
            )
