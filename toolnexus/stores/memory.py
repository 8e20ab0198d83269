"""Runs in memory, for as long as the process lives."""

from __future__ import annotations

from toolnexus.clock import Clock, RealClock
from toolnexus.stores.sql.store import SqlStore
from toolnexus.stores.sqlite import MemoryDatabase


class MemoryStore(SqlStore):
    """Keeps runs for as long as this object lives; for tests, and for what may be lost.

    It does what the stores in files do, statement by statement, in an SQLite database in
    memory. A forked child goes on with a copy of its own. `close` closes nothing.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        """Keep runs in memory.

        Args:
            clock: Tells leases their time; None for the machine's.
        """
        super().__init__(MemoryDatabase(clock or RealClock()))

    def __repr__(self) -> str:
        return "MemoryStore()"
