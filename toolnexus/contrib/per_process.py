"""PerProcess: the runtime of each process of a server, made at its first use."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

from toolnexus.runtime.runtime import AgentRuntime


class _Place:
    """Where the runtime of one process stands."""

    __slots__ = ("lock", "runtime")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runtime: AgentRuntime | None = None


class PerProcess:
    """Makes a runtime when it is first asked for, and another one in a forked child.

    So nothing starts with the import of an application, nor in the parent of a server's
    workers. At the end of the process the runtime is closed. Thread-safe.
    """

    def __init__(self, make: Callable[[], AgentRuntime]) -> None:
        self._make = make
        # A process has a place of its own, with a lock that nobody held when it was forked. The
        # parent's runtime stays in the parent's place: collected here, it would close
        # connections that both have.
        self._places: dict[int, _Place] = {}

    def get(self) -> AgentRuntime:
        """Return the runtime of this process."""
        place = self._places.setdefault(os.getpid(), _Place())
        with place.lock:
            if place.runtime is None:
                place.runtime = self._make()
                # Before the library's own, which was registered earlier: that stops what runs.
                atexit.register(self.close)
            return place.runtime

    def close(self) -> None:
        """Close the runtime of this process, if there is one; the next use makes a new one."""
        place = self._places.get(os.getpid())
        if place is None:
            return
        with place.lock:
            runtime, place.runtime = place.runtime, None
            # Not later: by then another thread may have made the next one.
            atexit.unregister(self.close)
        if runtime is not None:
            runtime.close()
