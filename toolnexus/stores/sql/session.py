"""What the statements of a store run on: a session within a transaction, and who makes those.

Statements are constants, values are always parameters. They are written for SQLite; PostgreSQL
reads them with other marks for parameters, and with its own clock for `store_time()`, which is
the time in microseconds since 1970. `FOR UPDATE` locks a row in PostgreSQL until the end of the
transaction. SQLite has one writer at a time and does without.

Rows are locked in one order, so that no two transactions wait for each other: first runs by
their ids, then requests by theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")


class Outdated(Exception):
    """What a transaction has read was changed before it could lock it: do it anew."""


class Session(Protocol):
    """Runs statements in one transaction."""

    def rows(self, statement: str, *values: object) -> Sequence[Row]:
        """Run a statement and return all its rows."""

    def row(self, statement: str, *values: object) -> Row | None:
        """Run a statement and return its first row; None where it has none."""

    def run(self, statement: str, *values: object) -> int:
        """Run a statement and return how many rows it has changed."""

    def many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement for each row of values."""


class Database(Protocol):
    """Runs work in transactions of its own. Thread-safe; nothing is open between two calls.

    Both methods raise `StoreError` where the database does not work, and what `work` raises.
    Nothing of that work has happened then. Work may be run again: it keeps nothing of its own.
    """

    def read(self, work: Callable[[Session], T]) -> T:
        """Run work that only reads; all its statements see the same state."""

    def write(self, work: Callable[[Session], T], *, is_light: bool = False) -> T:
        """Run work and commit it.

        Args:
            work: Does it.
            is_light: Whether it may be lost where the machine fails that the database is on,
                with all that is written before the next work that may not.
        """

    def close(self) -> None:
        """Close idle connections. Idempotent; later work opens new ones."""
