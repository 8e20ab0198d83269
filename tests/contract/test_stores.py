"""The stores of runs keep the contract."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import Postgres
from toolnexus.clock import RealClock
from toolnexus.stores import MemoryStore, PostgresStore, RunStore, SqliteStore
from toolnexus.testing import StoreContract, VirtualClock
from toolnexus.testing.store_suite.base import LONG_MS, RT, begin, start, write


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


# -- what these stores tell beyond the contract ------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_leases_of_others_are_counted(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store: Any = SqliteStore(tmp_path / "runs.db")
    if kind == "postgres":
        store = PostgresStore(request.getfixturevalue("postgres").schema(tmp_path.name))
    assert store.leased(RT, but="me") == (0, None)
    start(store, runtime="another")
    first, second = begin(store, lease_ms=LONG_MS), begin(store, lease_ms=2 * LONG_MS)
    assert store.leased(RT, but="me") == (0, None)  # nothing is to be done in them
    for lease in (first, second):
        write(store, lease, is_busy=True)
    count, until = store.leased(RT, but="me")
    assert count == 2
    left = until - RealClock().now()
    assert timedelta(milliseconds=LONG_MS) < left <= timedelta(milliseconds=2 * LONG_MS)
    assert store.leased(RT, but=first.owner)[0] == (0 if first.owner == second.owner else 1)
    write(store, second, is_busy=True, releases=True)
    assert store.leased(RT, but="me")[0] == 1
    store.close()
