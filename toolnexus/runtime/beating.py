"""Beating: the thread that keeps what this process has, and hears what comes for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from toolnexus.clock import RealClock, Signal
from toolnexus.errors import StoreError
from toolnexus.runtime.core import Core
from toolnexus.runtime.keeping import Keeper
from toolnexus.runtime.tree import NotHeld
from toolnexus.threads import OwnThread, wrapped

logger = logging.getLogger(__name__)

_LISTEN_SECONDS: Final = 0.2
"""How often it looks whether something has come for a run that this process has."""

_IDLE_SECONDS: Final = 10.0
"""How long the thread stays where this process has no run."""

# Leases run by the time of other processes too, which is not virtual.
_real: Final = RealClock()


class Beating:
    """Renews leases, and sees to letters. One thread, started when there is a lease."""

    def __init__(self, core: Core, keeper: Keeper, collect: Callable[[str], object]) -> None:
        self._core = core
        self._keeper = keeper
        self._collect = collect
        self._lease_ms = core.options.lease_ms
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the thread of the parent process."""
        # A leaf: nothing else is taken under it. A signal's handler may close the runtime.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._wake = Signal()
        # Threads that see to something, by what that is. The thread's own.
        self._busy: dict[str, threading.Thread] = {}

    def start(self) -> None:
        """Have the thread going."""
        with self._lock:
            if self._thread is not None or self._is_closed:
                return
            thread = OwnThread(self._work, "toolnexus-lease", self._core.options.wrap_job)
            try:
                thread.start()
            except RuntimeError:  # the machine gives no more threads; fences keep it right
                logger.warning("no thread to renew leases: another process may take runs over")
            else:
                self._thread = thread

    def close(self, timeout: float) -> None:
        """End the thread."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
            self._wake.set()
        clock = RealClock()
        limit = clock.monotonic() + timeout
        for threads in ([thread], self._busy.values()):  # it starts the others
            for one in list(threads):
                if one is not None and one is not threading.current_thread():
                    one.join(max(limit - clock.monotonic(), 0))

    def _work(self) -> None:
        renewed = busy = _real.monotonic()
        renew_seconds = self._lease_ms / 3000
        seconds = min(_LISTEN_SECONDS, renew_seconds)
        while not _real.wait(self._wake, seconds):
            now = _real.monotonic()
            if self._keeper.has_work():
                busy = now
            elif now - busy > _IDLE_SECONDS and self._ends():
                return
            else:
                continue
            is_due = now - renewed >= renew_seconds
            try:
                self._beat(is_due=is_due)
            except StoreError as error:
                logger.warning("the store cannot be asked for what has come: %s", error)
                continue
            except Exception:
                logger.exception("a beat failed")
                continue
            renewed = now if is_due else renewed

    def _ends(self) -> bool:
        with self._lock:
            if self._keeper.has_work():
                return False
            self._thread = None
            return True

    def _beat(self, *, is_due: bool) -> None:
        keeper = self._keeper
        mine = keeper.open_trees()
        if mine or keeper.owing:
            if is_due:
                keeper.store.renew(keeper.name, keeper.owner, self._lease_ms)
            owned = keeper.store.owned(keeper.name, keeper.owner)
            lost = [one for one in mine if one.run_id not in owned]
            if lost:
                self._aside("lost", lambda: keeper.losing.lose(lost))
            named = [one.run_id for one in mine if owned.get(one.run_id)]
            for run_id in (*named, *keeper.owing.strays(owned)):
                self._aside(run_id, partial(self._see_to, run_id))
        if is_due and keeper.owing:
            self._aside("owed", keeper.owing.pay)  # a store that fails may take its time
        if keeper.elsewhere.is_watched:
            self._aside("", keeper.elsewhere.look)

    def _aside(self, name: str, work: Callable[[], object]) -> None:
        """Do what may call the host's code on a thread of its own: leases do not wait for it.

        One at a time of each name; what is still to be done by then is found by a later beat.
        """
        busy = self._busy.get(name)
        if busy is not None and busy.is_alive():
            return
        self._busy = {key: one for key, one in self._busy.items() if one.is_alive()}
        thread = OwnThread(
            lambda: self._guarded(work), "toolnexus-letters", self._core.options.wrap_job
        )
        try:
            thread.start()
        except RuntimeError:  # the machine gives no more threads
            self._guarded(work)
        else:
            self._busy[name] = thread

    @staticmethod
    def _guarded(work: Callable[[], object]) -> None:
        try:
            wrapped(work)
        except StoreError as error:
            logger.warning("what has come cannot be seen to now: %s", error)
        except Exception:
            logger.exception("what has come cannot be seen to now")

    def _see_to(self, run_id: str) -> None:
        with suppress(NotHeld):
            self._collect(run_id)
