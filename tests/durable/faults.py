"""What may befall a store, for as long as a test wants it to."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import Postgres
from toolnexus.clock import RealClock
from toolnexus.stores import PostgresStore, RunStore, SqliteStore
from toolnexus.stores.sql.store import SqlStore
from toolnexus.stores.sqlite import FileDatabase

TIMEOUT_SECONDS = 0.2


class Fault:
    """A store that can be struck.

    Attributes:
        says: What an error says meanwhile; a pattern.
        stores: Those that were opened.
    """

    says = ""

    def __init__(self) -> None:
        self.stores: list[SqlStore] = []

    def store(self) -> RunStore:
        """Open the store, which several may."""
        self.stores.append(self.open())
        return self.stores[-1]

    def open(self) -> SqlStore:
        raise NotImplementedError

    def strike(self) -> None:
        """Let what is written now fail."""

    def lift(self) -> None:
        """Let the store work again."""

    def close(self) -> None:
        for one in self.stores:
            one.close()


class _Struck(FileDatabase):
    """A file whose connections, once it is struck, are told a pragma."""

    pragma = ""

    def _enter(self) -> sqlite3.Connection | None:
        connection = super()._enter()
        if connection is not None and self.pragma:
            connection.execute(self.pragma).fetchall()
        return connection

    def _open(self) -> sqlite3.Connection:
        connection = super()._open()
        if self.pragma:
            connection.execute(self.pragma).fetchall()
        return connection


class Pragma(Fault):
    """A file that has no room, or may not be written, because SQLite is told so."""

    def __init__(self, path: Path, pragma: str, says: str) -> None:
        super().__init__()
        self.says = says
        self._path, self._pragma = path, pragma

    def open(self) -> SqlStore:
        return SqlStore(_Struck(str(self._path), "normal", TIMEOUT_SECONDS, RealClock()))

    def strike(self) -> None:
        self._tell(self._pragma)

    def lift(self) -> None:
        self._tell("")
        self.close()

    def _tell(self, pragma: str) -> None:
        for one in self.stores:
            assert isinstance(one.database, _Struck)
            one.database.pragma = pragma


class Locked(Fault):
    """A file that somebody else writes to, and does not come to an end."""

    says = "another process has been writing"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def open(self) -> SqlStore:
        return SqliteStore(self._path, timeout=TIMEOUT_SECONDS)

    def strike(self) -> None:
        self._connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=10
        )
        self._connection.execute("BEGIN IMMEDIATE")

    def lift(self) -> None:
        if self._connection is not None:
            self._connection.close()


class FullDisk(Fault):
    """A file on a disk of its own, which is full."""

    says = "full|disk I/O error"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def open(self) -> SqlStore:
        return SqliteStore(self._directory / "runs.db", timeout=TIMEOUT_SECONDS)

    def strike(self) -> None:
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))

    def lift(self) -> None:
        self._filler.unlink()

    @property
    def _filler(self) -> Path:
        return self._directory / "filler"


class Down(Fault):
    """A PostgreSQL server that is stopped, or crashes."""

    says = "postgresql://"

    timeout = TIMEOUT_SECONDS

    def __init__(self, server: Postgres, schema: str, how: signal.Signals) -> None:
        super().__init__()
        self._server, self._how = server, how
        self._conninfo = server.schema(schema)

    def open(self) -> SqlStore:
        return PostgresStore(self._conninfo, timeout=self.timeout)

    def strike(self) -> None:
        self._server.stop(self._how)

    def lift(self) -> None:
        self._server.start()


class Restarted(Down):
    """A PostgreSQL server that is back at once: nobody has to notice."""

    timeout = 30

    def strike(self) -> None:
        super().strike()
        super().lift()

    def lift(self) -> None:
        """Nothing is left to do."""


@contextlib.contextmanager
def mounted(directory: Path) -> Iterator[Path]:
    """Have a small disk at a directory; skipped where that may not be done."""
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk can be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True, timeout=10)
