"""What SQLite may meet: damaged records, other schemas, full disks, locks, forks, crowds."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT
from toolnexus.clock import RealClock
from toolnexus.errors import ConfigError, StoreError
from toolnexus.stores import SqliteStore
from toolnexus.stores.records import Lease
from toolnexus.testing.store_suite.base import (
    RT,
    answer,
    ask,
    at,
    begin,
    head_of,
    ids,
    messages_of,
    start,
    take,
    write,
)
from toolnexus.testing.store_suite.processes import Forked, Tell, in_processes, in_threads


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(path, timeout=LIMIT)
    yield made
    made.close()


def spoil(path: Path, statement: str, *values: object) -> None:
    """Change the file behind the store's back."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


# -- damaged records ---------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ['{"half": ', "", b"\xff\xfe\x00", "NaN", 7, "[" * 999])
def test_a_damaged_handle_is_told_and_hides_no_other(
    store: SqliteStore, path: Path, damage: object
) -> None:
    leases = [begin(store) for _ in range(3)]
    spoilt = leases[1].run_id
    change = "UPDATE toolnexus_handle SET head = CAST(? AS TEXT) WHERE name = ?"
    spoil(path, change, damage, spoilt)
    found = {one.id: one for one in store.handles(RT)}
    assert list(found) == [one.run_id for one in leases]
    assert [one.fault is None for one in found.values()] == [True, damage == 7, True]
    if damage != 7:
        assert found[spoilt].head is None
        with pytest.raises(StoreError, match=spoilt):
            store.load(RT, spoilt)
    assert store.load(RT, leases[2].run_id)
    write(store, leases[1], handles=(at(spoilt, head="mended"),))
    assert head_of(store, spoilt) == "mended"


@pytest.mark.parametrize("table", ["message", "call", "post"])
def test_a_damaged_part_is_told_by_its_handle(
    store: SqliteStore, path: Path, table: str
) -> None:
    lease, other = begin(store), begin(store)
    parts: Any = {"messages": {0: "SECRET"}, "calls": {0: "SECRET"}, "posts": {0: "SECRET"}}
    for one in (lease, other):
        write(store, one, handles=(at(one.run_id, **parts),))
    spoil(path, f"UPDATE toolnexus_{table} SET body = 'SECRET' WHERE handle = 1")
    with pytest.raises(StoreError, match=lease.run_id) as told:
        store.load(RT, lease.run_id)
    assert "SECRET" not in str(told.value)
    assert store.load(RT, other.run_id)
    if table == "message":
        with pytest.raises(StoreError, match=lease.run_id):
            messages_of(store, lease.run_id)
    if table == "call":
        with pytest.raises(StoreError, match=lease.run_id):
            store.calls(RT, lease.run_id)


@pytest.mark.parametrize("column", ["body", "answer", "note"])
def test_a_damaged_request_is_told_and_hides_no_other(
    store: SqliteStore, path: Path, column: str
) -> None:
    lease = begin(store)
    for number in range(3):
        ask(store, lease, f"q{number}", number)
        answer(store, f"q{number}")
    spoil(path, f"UPDATE toolnexus_request SET {column} = '[1,' WHERE name = 'q1'")
    found = list(store.requests(RT))
    assert [one.fault is None for one in found] == [True, False, True]
    assert getattr(found[1], column) is None
    assert column in str(found[1].fault)
    if column == "answer":
        with pytest.raises(StoreError, match="q1"):
            store.mail(RT, lease.run_id)


def test_a_damaged_grant_grants_nothing(
    store: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("g1", "g2"):
        store.put_grant(RT, name, {"tool": "charge"})
    spoil(path, "UPDATE toolnexus_grant SET body = '{' WHERE name = 'g1'")
    assert list(store.grants(RT)) == ["g2"]
    assert "g1" in caplog.text


# -- files that are no store -------------------------------------------------------------------


def refused(store: SqliteStore, what: str) -> None:
    """Check that nothing works, and the error says where and what."""
    for act in (lambda: start(store), lambda: list(store.handles(RT))):
        with pytest.raises(StoreError, match=what) as told:
            act()
        assert str(store.path) in str(told.value)
        assert told.value.__cause__ is None


def test_a_newer_schema_is_refused_untouched(store: SqliteStore, path: Path) -> None:
    start(store)
    store.close()
    spoil(path, "UPDATE toolnexus_schema SET version = 99")
    before = path.read_bytes()
    for act in (lambda: start(store), lambda: list(store.handles(RT))):
        with pytest.raises(StoreError, match=r"schema 99, .* up to 1\b"):
            act()
    store.close()
    assert path.read_bytes() == before


def test_a_file_of_another_kind_is_refused_untouched(path: Path, store: SqliteStore) -> None:
    path.write_bytes(b"no database " * 1000)
    refused(store, "not a database")
    assert path.read_bytes() == b"no database " * 1000


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "nowhere" / "runs.db")
    refused(store, "no directory .*nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    refused(SqliteStore(tmp_path), "unable to open")


def test_the_tables_of_others_stay(path: Path, store: SqliteStore) -> None:
    spoil(path, "CREATE TABLE mine (a)")
    start(store)
    store.close()
    spoil(path, "INSERT INTO mine VALUES (1)")
    assert head_of(store, "root/a.1") == {"made": True}


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_a_file_that_may_not_be_written(mode: int) -> None:
    # Not below pytest's directories: only their owner may enter those.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "runs.db"
        store = SqliteStore(path)
        start(store)
        store.close()
        path.chmod(mode)
        Path(directory).chmod(0o555)

        def work(tell: Tell) -> None:
            if os.geteuid() == 0:  # who may write everything
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            with pytest.raises(StoreError) as told:
                start(SqliteStore(path))
            tell(str(told.value))

        child = Forked(work)
        child.go()
        (told,) = child.end()
        Path(directory).chmod(0o755)
        assert str(path) in told
        assert "readonly" in told or "unable to open" in told


# -- no room, no lock, no Unicode --------------------------------------------------------------


def test_a_full_disk_leaves_nothing_half_written(store: SqliteStore, path: Path) -> None:
    lease = begin(store)
    write(store, lease, handles=(at(lease.run_id, head="before"),))
    connection = store.database._idle[0]  # type: ignore[attr-defined]
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count = {pages + 20}").fetchall()
    big = at(lease.run_id, head="after", messages=dict.fromkeys(range(100), "x" * 4000))
    with pytest.raises(StoreError, match="full") as told:
        write(store, lease, handles=(big,))
    assert str(path) in str(told.value)
    assert head_of(store, lease.run_id) == "before"
    assert messages_of(store, lease.run_id) == {}
    write(store, lease, handles=(big,))  # with room again, on another connection
    assert head_of(store, lease.run_id) == "after"


def test_who_waits_for_another_writer_too_long_is_told(path: Path) -> None:
    store = SqliteStore(path, timeout=0.05)
    lease = begin(store)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"another process .* 0\.05 seconds"):
        write(store, lease, handles=(at(lease.run_id, head="late"),))
    assert head_of(store, lease.run_id) == {"made": True}  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    write(store, lease, handles=(at(lease.run_id, head="now"),))
    store.close()


def test_a_writer_that_is_let_in_goes_on(store: SqliteStore, path: Path) -> None:
    lease = begin(store)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    ready = threading.Barrier(2)

    def act(number: int) -> None:
        ready.wait(LIMIT)
        if number:
            write(store, lease, handles=(at(lease.run_id, head="in the end"),))
        else:
            other.execute("COMMIT")

    in_threads(act, 2)
    other.close()
    assert head_of(store, lease.run_id) == "in the end"


def test_ctrl_c_in_the_midst_of_a_write_stays_what_it_is(path: Path) -> None:
    clock = StoppedOnce()
    store = SqliteStore(path, timeout=LIMIT, clock=clock)
    lease = begin(store)
    clock.is_pressed = True
    with pytest.raises(KeyboardInterrupt):
        write(store, lease, handles=(at(lease.run_id, head="stopped"),))
    assert head_of(store, lease.run_id) == {"made": True}
    write(store, lease, handles=(at(lease.run_id, head="now"),))
    assert head_of(store, lease.run_id) == "now"
    store.close()


class StoppedOnce(RealClock):
    """A clock during one look at which somebody presses Ctrl-C."""

    is_pressed = False

    def now(self) -> datetime:
        if self.is_pressed:
            self.is_pressed = False
            raise KeyboardInterrupt
        return super().now()


def test_ids_that_are_no_unicode_are_refused(store: SqliteStore) -> None:
    lease = begin(store)
    with pytest.raises(StoreError, match="Unicode"):
        ask(store, lease, "q \ud800")
    assert ids(store.requests(RT)) == []
    write(store, lease)


@pytest.mark.parametrize("options", [{"synchronous": "off"}, {"timeout": 0}])
def test_options_that_make_no_sense(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SqliteStore(path, **options)
    assert not path.exists()


@pytest.mark.parametrize(("synchronous", "number"), [("full", 2), ("normal", 1)])
def test_what_a_write_waits_for(path: Path, synchronous: Any, number: int) -> None:
    store = SqliteStore(path, synchronous=synchronous)
    start(store)
    connection = store.database._idle[0]  # type: ignore[attr-defined]
    assert connection.execute("PRAGMA synchronous").fetchall() == [(number,)]
    assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    store.close()
    assert sorted(one.name for one in path.parent.iterdir()) == [path.name]


def test_only_a_lease_does_not_wait_for_the_disk(store: SqliteStore) -> None:
    lease = begin(store)
    connection = store.database._idle[0]  # type: ignore[attr-defined]

    def number() -> Any:
        return connection.execute("PRAGMA synchronous").fetchall()[0][0]

    assert number() == 1
    write(store, lease, handles=(at(lease.run_id, head="kept"),))
    assert number() == 2
    write(store, lease, releases=True)
    assert number() == 1


# -- dying in the midst ------------------------------------------------------------------------


class Deadly:
    """Is told of every statement, and ends the process when it was told of enough."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, statement: str) -> None:
        self.left -= 1
        if self.left < 0:
            os._exit(70)


@pytest.mark.parametrize("count", range(10))
def test_a_process_that_dies_before_it_commits_has_written_nothing(
    store: SqliteStore, path: Path, count: int
) -> None:
    lease = begin(store)
    names = [lease.run_id, f"{lease.run_id}/b.1", f"{lease.run_id}/b.2"]
    write(store, lease, handles=tuple(at(name, head="before") for name in names))

    def work(tell: Tell) -> None:
        mine = SqliteStore(path)
        mine.owned(RT, "anybody")
        (connection,) = mine.database._idle  # type: ignore[attr-defined]
        connection.set_trace_callback(Deadly(count))
        handles = tuple(at(name, head="after", messages={0: "m"}) for name in names)
        write(mine, lease, handles=handles)
        tell("all of it")

    child = Forked(work)
    child.go()
    # It begins, finds the run, writes handle and message three times and the run, commits.
    assert child.end(code=70) == []
    assert {head_of(store, name) for name in names} == {"before"}
    assert messages_of(store, lease.run_id) == {}
    write(store, lease, handles=(at(lease.run_id, head="mine"),))


# -- forks and crowds --------------------------------------------------------------------------


def test_a_fork_leaves_no_connection_open(store: SqliteStore) -> None:
    start(store)
    assert store.database._idle  # type: ignore[attr-defined]

    def work(tell: Tell) -> None:
        tell(len(store.database._idle))  # type: ignore[attr-defined]

    child = Forked(work)
    child.go()
    assert child.end() == [0]


def test_connections_that_a_fork_has_left_open_are_not_touched(store: SqliteStore) -> None:
    start(store)
    (connection,) = store.database._idle  # type: ignore[attr-defined]
    store.database.after_fork()  # type: ignore[attr-defined]
    start(store)
    store.close()
    assert connection.execute("SELECT 1").fetchall() == [(1,)]
    connection.close()


def test_crowds_of_threads_in_crowds_of_processes(path: Path) -> None:
    threads, processes, turns = 16, 4, 25

    def crowd(number: int, tell: Tell) -> None:
        store = SqliteStore(path, synchronous="normal", timeout=3 * LIMIT)

        def turn(thread: int) -> int:
            owner = f"{number}-{thread}"
            lease = begin(store, owner=owner)
            for count in range(turns):
                handle = at(lease.run_id, head=count, messages={count: owner})
                write(store, lease, handles=(handle,), is_busy=True)
                store.renew(RT, owner, 10_000)
                assert store.owned(RT, owner) == {lease.run_id: False}
            write(store, lease, releases=True)
            return int(lease.run_id.rpartition(".")[2])

        tell(in_threads(turn, threads))
        store.close()

    told = in_processes(crowd, processes)
    numbers = sorted(number for ((some),) in told for number in some)
    assert numbers == list(range(1, threads * processes + 1))
    store = SqliteStore(path)
    for record in store.handles(RT):
        assert record.head == turns - 1
        messages = messages_of(store, record.id)
        assert list(messages) == list(range(turns))
        assert len(set(messages.values())) == 1
    assert store.abandoned(RT) == ()
    store.close()


def test_few_connections_stay_open(store: SqliteStore) -> None:
    lease = begin(store)
    in_threads(lambda _: [messages_of(store, lease.run_id) for _ in range(20)], 16)
    assert len(store.database._idle) <= 8  # type: ignore[attr-defined]


def test_a_failed_write_leaves_its_connection_clean(store: SqliteStore) -> None:
    lease = begin(store)
    with pytest.raises(StoreError):
        write(store, Lease(run_id=lease.run_id, owner="nobody", fence=7))
    assert not store.database._idle[0].in_transaction  # type: ignore[attr-defined]
    assert take(store, lease.run_id) == lease
