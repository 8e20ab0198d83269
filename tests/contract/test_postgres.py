"""What a server may do to its clients: restart, crash, refuse, run full."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.conftest import LIMIT
from tests.postgres import Postgres, programs, server
from toolnexus.errors import ConfigError, StoreError
from toolnexus.stores import PostgresStore, open_store
from toolnexus.stores.postgres import PoolDatabase
from toolnexus.stores.records import Lease
from toolnexus.testing.store_suite.base import (
    RT,
    answer,
    answers_of,
    ask,
    at,
    begin,
    head_of,
    ids,
    messages_of,
    start,
    write,
)
from toolnexus.testing.store_suite.processes import Forked, Tell, in_processes, in_threads

SECRET = "s3cr3t-canary"


@pytest.fixture
def conninfo(postgres: Postgres, tmp_path: Path) -> str:
    return postgres.schema(tmp_path.name)


@pytest.fixture
def store(conninfo: str) -> Iterator[PostgresStore]:
    made = PostgresStore(conninfo)
    yield made
    made.close()


@pytest.fixture
def own(postgres: Postgres) -> Iterator[Postgres]:
    """Start a server that a test may stop."""
    del postgres  # there is one, then
    found = programs()
    assert found is not None
    with server(found) as started:
        yield started


def run(conninfo: str, statement: bytes, *values: object) -> list[Any]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


# -- connections that die ----------------------------------------------------------------------


def stored(store: PostgresStore, lease: Lease, turn: int) -> bool:
    """Write a step; say whether it is known that it was written."""
    try:
        write(store, lease, handles=(at(lease.run_id, head=turn, messages={turn: turn}),))
    except StoreError as error:
        if "may have happened or not" in str(error):  # its commit was under way
            return False
        raise
    return True


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["restart", "crash"])
def test_a_server_that_was_restarted_is_found_again(own: Postgres, how: signal.Signals) -> None:
    store = PostgresStore(own.conninfo())
    lease = begin(store)
    ask(store, lease, "q1")
    in_threads(lambda _: head_of(store, lease.run_id), 6)  # several connections
    own.stop(how)
    own.start()
    write(store, lease, handles=(at(lease.run_id, head="after"),))
    assert head_of(store, lease.run_id) == "after"
    own.stop(how)
    own.start()
    assert ids(store.requests(RT, state="open")) == ["q1"]
    store.close()


def test_a_server_that_is_down_is_told_and_found_when_it_is_back(own: Postgres) -> None:
    store = PostgresStore(own.conninfo(), timeout=0.2)
    lease = begin(store)
    own.stop()
    with pytest.raises(StoreError, match=r"postgresql://toolnexus@/.*connection"):
        write(store, lease, handles=(at(lease.run_id, head="lost"),))
    with pytest.raises(StoreError):
        list(store.handles(RT))
    own.start()
    store.close()  # the pool takes its time to try again
    assert head_of(store, lease.run_id) == {"made": True}
    write(store, lease, handles=(at(lease.run_id, head="kept"),))
    assert head_of(store, lease.run_id) == "kept"
    store.close()


def test_work_goes_on_while_the_server_restarts(own: Postgres) -> None:
    store = PostgresStore(own.conninfo(), timeout=3 * LIMIT)
    lease = begin(store)
    ready = threading.Barrier(2)

    def act(number: int) -> int:
        ready.wait(LIMIT)
        if number:
            own.stop()
            own.start()
            return 0
        return [stored(store, lease, turn) for turn in range(400)].count(True)

    written, _ = in_threads(act, 2)
    assert written >= 399
    assert head_of(store, lease.run_id) == 399
    assert len(messages_of(store, lease.run_id)) >= written
    store.close()


def test_a_commit_whose_outcome_is_unknown_is_not_repeated(
    store: PostgresStore, conninfo: str
) -> None:
    lease = begin(store)
    # Ends the session as the transaction is committed, when all of it has been sent.
    run(
        conninfo,
        b"""CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'""",
    )
    run(
        conninfo,
        b"""CREATE CONSTRAINT TRIGGER die AFTER INSERT ON toolnexus_signal
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()""",
    )
    with pytest.raises(StoreError, match="may have happened or not"):
        store.send(RT, lease.run_id, "hello")
    run(conninfo, b"DROP TRIGGER die ON toolnexus_signal")
    store.send(RT, lease.run_id, "again")
    assert list(store.mail(RT, lease.run_id).signals.values()) == ["again"]


def test_a_write_on_a_connection_that_dies_before_its_commit_is_done_once_more(
    store: PostgresStore, conninfo: str
) -> None:
    lease = begin(store)
    run(conninfo, b"CREATE SEQUENCE deaths")
    run(
        conninfo,
        b"""CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN IF nextval(''deaths'') = 1 THEN
                PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
            RETURN NEW; END'""",
    )
    run(
        conninfo,
        b"""CREATE TRIGGER die BEFORE INSERT ON toolnexus_signal
            FOR EACH ROW EXECUTE FUNCTION die()""",
    )
    store.send(RT, lease.run_id, "hello")
    assert list(store.mail(RT, lease.run_id).signals.values()) == ["hello"]
    assert run(conninfo, b"SELECT nextval('deaths')") == [(3,)]


def test_nothing_is_open_between_two_calls(store: PostgresStore, conninfo: str) -> None:
    lease = begin(store)
    ask(store, lease, "q1")
    handles = store.handles(RT)
    next(handles)
    with pytest.raises(StoreError):
        ask(store, lease, "q1")
    states = run(
        conninfo,
        b"""SELECT DISTINCT state FROM pg_stat_activity
            WHERE application_name = '' AND pid <> pg_backend_pid()
            AND backend_type = 'client backend' AND state LIKE 'idle in%%'""",
    )
    assert states == []
    handles.close()  # type: ignore[attr-defined]


# -- a server that hangs -----------------------------------------------------------------------


def sessions(conninfo: str) -> list[int]:
    statement = b"""SELECT pid FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"""
    return [pid for (pid,) in run(conninfo, statement)]


@pytest.mark.parametrize("does", ["read", "write"])
def test_a_session_that_hangs_is_given_up(own: Postgres, does: str) -> None:
    store = PostgresStore(own.conninfo())
    assert isinstance(store.database, PoolDatabase)
    store.database.patience = 0.3
    lease = begin(store)
    acts: dict[str, Callable[[], object]] = {
        "read": lambda: store.handle(RT, lease.run_id),
        "write": lambda: write(store, lease, handles=(at(lease.run_id, head="lost"),)),
    }
    hanging = sessions(own.conninfo())
    assert hanging
    for pid in hanging:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreError, match=r"has not replied for 0\.3 seconds"):
            acts[does]()
        assert head_of(store, lease.run_id) == {"made": True}
    finally:
        for pid in hanging:
            os.kill(pid, signal.SIGCONT)
    write(store, lease, handles=(at(lease.run_id, head="kept"),))
    assert head_of(store, lease.run_id) == "kept"
    store.close()


def test_a_session_that_is_waited_for_and_comes_to_an_end_is_not_given_up(
    conninfo: str,
) -> None:
    store = PostgresStore(conninfo)
    assert isinstance(store.database, PoolDatabase)
    store.database.patience = 0.3
    start(store)
    # The server says nothing for twice as long, but in pieces, each of which comes in time.
    slow = "SELECT pg_sleep(0.15)"
    store.database.read(lambda session: [session.row(slow) for _ in range(4)])
    store.close()


def test_a_statement_that_waits_for_a_lock_is_given_up_by_the_server(conninfo: str) -> None:
    start(PostgresStore(conninfo))
    limits = conninfo_to_dict(conninfo)["options"] + " -cstatement_timeout=200"
    store = PostgresStore(make_conninfo(conninfo, options=limits))
    lease = begin(store)
    with psycopg.connect(conninfo) as other:
        other.execute("LOCK TABLE toolnexus_handle IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreError, match="statement timeout"):
            write(store, lease, handles=(at(lease.run_id, head="late"),))
    write(store, lease, handles=(at(lease.run_id, head="kept"),))
    assert head_of(store, lease.run_id) == "kept"
    store.close()


@pytest.mark.parametrize(
    ("said", "holds"),
    [("", "1min"), ("-cstatement_timeout=5s", "5s"), ("-cstatement_timeout=0", "0")],
)
@pytest.mark.parametrize("where", ["conninfo", "environment"])
def test_a_limit_of_statements_that_somebody_has_set_holds(
    conninfo: str, monkeypatch: pytest.MonkeyPatch, said: str, holds: str, where: str
) -> None:
    options = conninfo_to_dict(conninfo)["options"]
    if where == "conninfo":
        store = PostgresStore(make_conninfo(conninfo, options=f"{options} {said}"))
    else:
        monkeypatch.setenv("PGOPTIONS", f"{options} {said}")
        parts = {k: v for k, v in conninfo_to_dict(conninfo).items() if k != "options"}
        store = PostgresStore(make_conninfo("", **parts))
    start(store)
    assert store.database.read(lambda session: session.row("SHOW statement_timeout")) == (
        holds,
    )
    store.close()


def test_a_limit_of_statements_that_the_database_has_holds(own: Postgres) -> None:
    run(own.conninfo(), b"ALTER DATABASE postgres SET statement_timeout = '7s'")
    store = PostgresStore(own.conninfo())
    start(store)
    assert store.database.read(lambda session: session.row("SHOW statement_timeout")) == ("7s",)
    store.close()


def test_a_connection_has_the_limits_of_a_network(
    conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limits(store: PostgresStore) -> dict[str, str]:
        start(store)
        with store.database._borrowed() as connection:  # type: ignore[attr-defined]
            known: dict[str, str] = connection.info.get_parameters()
        store.close()
        return known

    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    known = limits(PostgresStore(conninfo))
    assert {
        name: known.get(name)
        for name in ("connect_timeout", "keepalives_idle", "tcp_user_timeout")
    } == {"connect_timeout": "10", "keepalives_idle": "30", "tcp_user_timeout": "60000"}
    own = make_conninfo(conninfo, connect_timeout=77, keepalives_idle=88, tcp_user_timeout=99)
    known = limits(PostgresStore(own))
    assert known["connect_timeout"] == "77"
    assert known["keepalives_idle"] == "88"
    assert known["tcp_user_timeout"] == "99"
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "66")
    assert limits(PostgresStore(conninfo)).get("connect_timeout", "66") == "66"


# -- several at once ---------------------------------------------------------------------------


def test_processes_that_make_the_tables_at_once(conninfo: str) -> None:
    def work(number: int, tell: Tell) -> None:
        del number
        store = PostgresStore(conninfo)
        tell(start(store))
        store.close()

    told = [line for (line,) in in_processes(work, 4)]
    assert sorted(told) == [f"root/a.{number}" for number in (1, 2, 3, 4)]


def test_a_forked_child_leaves_its_parents_connections_alone(store: PostgresStore) -> None:
    lease = begin(store)
    ask(store, lease, "q1")

    def work(tell: Tell) -> None:
        tell(answer(store, "q1"))
        store.close()

    for expected in (True, False):
        child = Forked(work)
        child.go()
        assert child.end() == [expected]
        assert len(answers_of(store, lease.run_id)) == 1
    write(store, lease)


def test_more_threads_than_connections_wait_their_turn(conninfo: str) -> None:
    store = PostgresStore(conninfo, pool_size=2)
    runs = in_threads(lambda _: start(store), 12)
    assert len(set(runs)) == 12
    store.close()


def test_a_pool_in_use_is_told(conninfo: str) -> None:
    store = PostgresStore(conninfo, pool_size=1, timeout=0.05)
    start(store)
    borrowed = store.database._borrowed()  # type: ignore[attr-defined]
    with borrowed, pytest.raises(StoreError, match="all 1 connections"):
        start(store)
    assert start(store) == "root/a.2"
    store.close()


# -- refusals ----------------------------------------------------------------------------------


def test_a_newer_schema_is_refused_untouched(store: PostgresStore, conninfo: str) -> None:
    start(store)
    store.close()
    run(conninfo, b"UPDATE toolnexus_schema SET version = 99")
    for act in (lambda: start(store), lambda: list(store.handles(RT))):
        with pytest.raises(StoreError, match=r"schema 99, .* up to 1\b"):
            act()
    assert run(conninfo, b"SELECT version FROM toolnexus_schema") == [(99,)]


def test_a_damaged_record_is_told_and_hides_no_other(
    store: PostgresStore, conninfo: str
) -> None:
    leases = [begin(store) for _ in range(2)]
    run(conninfo, b"UPDATE toolnexus_handle SET head = '{' WHERE name = %s", leases[0].run_id)
    assert [one.fault is None for one in store.handles(RT)] == [False, True]
    with pytest.raises(StoreError, match=leases[0].run_id):
        store.load(RT, leases[0].run_id)


@pytest.mark.parametrize("bad", ["nul \x00", "unpaired \ud800"])
def test_ids_that_are_no_text_are_refused(store: PostgresStore, bad: str) -> None:
    lease = begin(store)
    with pytest.raises(StoreError):
        ask(store, lease, bad)
    write(store, lease)


def test_a_disk_that_is_full_leaves_nothing_half_written(
    store: PostgresStore, conninfo: str
) -> None:
    lease = begin(store)
    run(
        conninfo,
        b"""CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN RAISE disk_full USING MESSAGE = ''no space left''; END'""",
    )
    run(
        conninfo,
        b"""CREATE TRIGGER full_disk BEFORE INSERT ON toolnexus_message
            FOR EACH ROW EXECUTE FUNCTION full_disk()""",
    )
    with pytest.raises(StoreError, match="no space left"):
        write(store, lease, handles=(at(lease.run_id, head="x", messages={0: "m"}),))
    assert head_of(store, lease.run_id) == {"made": True}


@pytest.mark.parametrize(
    "conninfo",
    [
        f"postgresql://me:{SECRET}@127.0.0.1:1/db",
        f"host=127.0.0.1 port=1 user=me password={SECRET} dbname=db",
        f"postgresql://me@127.0.0.1:1/db?password={SECRET}",
    ],
)
def test_no_password_is_told(conninfo: str, caplog: pytest.LogCaptureFixture) -> None:
    store = PostgresStore(conninfo, timeout=0.1)
    with pytest.raises(StoreError) as told:
        start(store)
    assert SECRET not in f"{told.value!s} {told.value!r} {store!r} {caplog.text}"
    assert "127.0.0.1" in str(told.value)
    assert repr(store) == "PostgresStore('postgresql://me@127.0.0.1:1/db')"


@pytest.mark.parametrize("conninfo", [f"postgresql://a:{SECRET}@[", f"host {SECRET}", 7, None])
def test_a_conninfo_that_cannot_be_read(conninfo: Any) -> None:
    with pytest.raises(ConfigError) as told:
        PostgresStore(conninfo)
    assert SECRET not in str(told.value)


def test_a_url_leads_to_the_server(store: PostgresStore, conninfo: str) -> None:
    start(store)
    parts = conninfo_to_dict(conninfo)
    query = urlencode({"host": parts["host"], "options": parts["options"], "pool_size": 2})
    other, is_owned = open_store(f"postgresql://{parts['user']}@/postgres?{query}")
    assert is_owned
    assert ids(other.handles(RT)) == ["root/a.1"]
    other.close()


@pytest.mark.parametrize("options", [{"pool_size": 0}, {"pool_size": True}, {"timeout": 0}])
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PostgresStore("postgresql:///db", **options)


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg_pool", None)
    with pytest.raises(ConfigError, match=r"toolnexus\[postgres\]"):
        PostgresStore("postgresql:///db")


def test_ci_has_a_server() -> None:
    assert programs() is not None or os.environ.get("CI") != "true"
