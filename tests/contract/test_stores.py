"""The stores of runs keep the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres import Postgres
from toolnexus.stores import MemoryStore, PostgresStore, RunStore, SqliteStore
from toolnexus.testing import StoreContract, VirtualClock


class Moving:
    """A store's time that moves when a test says so."""

    @pytest.fixture(autouse=True)
    def _start_clock(self) -> None:
        self.clock = VirtualClock()

    def let_pass(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)


class TestMemoryStore(Moving, StoreContract):
    can_be_shared = False

    def make_store(self, directory: Path) -> RunStore:
        made: dict[Path, RunStore] = self.__dict__.setdefault("made", {})
        return made.setdefault(directory, MemoryStore(clock=self.clock))


class TestSqliteStore(Moving, StoreContract):
    def make_store(self, directory: Path) -> RunStore:
        return SqliteStore(directory / "runs.db", clock=self.clock)


class TestSqliteStoreInRealTime(StoreContract):
    def make_store(self, directory: Path) -> RunStore:
        return SqliteStore(directory / "runs.db", synchronous="normal")


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _find_server(self, postgres: Postgres) -> None:
        self.postgres = postgres

    def make_store(self, directory: Path) -> RunStore:
        return PostgresStore(self.postgres.schema(directory.name))
