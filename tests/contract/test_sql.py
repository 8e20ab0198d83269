"""The statements: constants, found by indexes, of a size that messages decide."""

from __future__ import annotations

import ast
import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import toolnexus.stores
from toolnexus.errors import StoreError
from toolnexus.stores import SqliteStore, copying, sqlite
from toolnexus.stores.records import RunChange, Wait
from toolnexus.stores.sql import (
    asking,
    grants,
    owning,
    pruning,
    reading,
    requests,
    schema,
    writing,
)
from toolnexus.stores.sql.session import Session
from toolnexus.testing.store_suite.base import RT, at, begin, later, new, start, write

ROOM = Path(toolnexus.stores.__file__).parent
SOURCES = [
    *ROOM.glob("sql/*.py"),
    *(ROOM / f"{n}.py" for n in ("sqlite", "postgres", "copying")),
]
MODULES = (owning, writing, asking, reading, requests, grants, pruning, copying)
RUNS = ("rows", "row", "run", "many", "execute", "executemany")


# -- statements are constants ------------------------------------------------------------------


def is_constant(node: ast.expr) -> bool:
    """Say whether an expression is a text of the source, or a name of one."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    return isinstance(node, ast.Name) and node.id.strip("_").isupper()


def is_statement(node: ast.expr) -> bool:
    """Say whether an expression is one of the ways in which a statement is given."""
    if isinstance(node, ast.Subscript):  # a choice of constants
        return is_constant(node.value)
    if isinstance(node, ast.Name):  # handed on; checked where it comes from
        return is_constant(node) or node.id in ("statement", "begin")
    if isinstance(node, ast.Call):  # translated
        called = ast.unparse(node.func)
        return called in ("_translated", "begin.encode")
    return is_constant(node) or ast.unparse(node) in ("table.page", "table.put", "table.some")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_value_is_ever_put_into_a_statement(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in RUNS and node.args:
                assert is_statement(node.args[0]), ast.unparse(node)
        elif isinstance(node, (ast.JoinedStr, ast.BinOp)):
            text = ast.unparse(node).upper()
            words = ("SELECT ", "INSERT ", "UPDATE TOOL", "DELETE ", " WHERE ")
            assert not any(word in text for word in words), ast.unparse(node)


# -- and found by indexes ----------------------------------------------------------------------


def statements(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Return the name and text of each statement of a module that looks for rows."""
    for name, value in vars(module).items():
        is_text = isinstance(value, str) and name != "_HEAD"  # which is a part of some
        if is_text and value.startswith(("SELECT", "UPDATE", "DELETE")):
            yield name, value
    if module is requests:
        for name, parts in SEARCHES.items():
            yield name, "".join((requests._HEAD, *parts, requests._TAIL))
    if module is copying:
        for table in copying._TABLES:
            yield from (
                ("used", statement) for statement in (*table.used, table.some) if statement
            )


SEARCHES = {
    "one": (requests._OF_RUNTIME, requests._IS_NAMED),
    "any": (requests._OF_RUNTIME, requests._PAGE),
    "open": (requests._OF_RUNTIME, requests._IS_OPEN, requests._PAGE),
    "untold": (requests._OF_RUNTIME, requests._IS_OPEN, requests._IS_UNTOLD, requests._PAGE),
    "login": (requests._OF_RUNTIME, requests._IS_OPEN, requests._IS_LOGIN, requests._PAGE),
    "due": (requests._OF_RUNTIME, requests._IS_OPEN, requests._IS_DUE, requests._PAGE_OF_DUE),
    "of run": (requests._OF_RUNTIME_TOO, requests._IS_OF_RUN, requests._PAGE),
    "open of run": (
        requests._OF_RUNTIME_TOO,
        requests._IS_OPEN,
        requests._IS_OF_RUN,
        requests._PAGE,
    ),
}
PLANS = {
    "_OWNED": "toolnexus_run_owner",
    "_RENEW": "toolnexus_run_owner",
    "_ABANDON": "toolnexus_run_owner",
    "_ABANDONED": "toolnexus_run_active",
    "_LEASED": "toolnexus_run_active",
    "_OLD_RUNS": "toolnexus_run_resting",
    "_OLD_HANDLES": "toolnexus_handle_closed",
    "_ALL_HANDLES": "toolnexus_handle_open (runtime=? AND run>?)",
    "_NEXT_EXPIRY": "toolnexus_request_due",
    "any": "toolnexus_request_order (runtime=? AND id>?)",
    "open": "toolnexus_request_open (runtime=? AND id>?)",
    "untold": "toolnexus_request_untold",
    "login": "toolnexus_request_login",
    "due": "toolnexus_request_due",
    "of run": "SEARCH r USING INTEGER PRIMARY KEY",
    "open of run": "SEARCH r USING INTEGER PRIMARY KEY",
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("plans") / "runs.db"
    store = SqliteStore(path)
    start(store)
    store.close()
    connection = sqlite3.connect(path)
    connection.create_function("store_time", 0, lambda: 0)
    yield connection
    connection.close()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_no_statement_looks_at_all_rows(tables: sqlite3.Connection, module: ModuleType) -> None:
    for name, statement in statements(module):
        text = sqlite._translated(statement)
        rows = tables.execute(f"EXPLAIN QUERY PLAN {text}", [1] * text.count("?")).fetchall()
        plan = [str(row[3]) for row in rows]
        whole = [one for one in plan if one.startswith("SCAN toolnexus")]
        assert not whole or (module, name) == (copying, "_RUNTIMES"), (name, plan)
        assert PLANS.get(name, "") in "\n".join(plan), (name, plan)


# -- sizes -------------------------------------------------------------------------------------


def test_a_file_is_little_more_than_its_messages(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db", synchronous="normal")
    sizes = []
    message = {"role": "user", "content": "x" * 270}
    for _ in range(2):
        lease = begin(store)
        for step in range(200):
            messages = {step * 5 + place: message for place in range(5)}
            write(store, lease, handles=(at(lease.run_id, head=step, messages=messages),))
        store.close()
        sizes.append((tmp_path / "runs.db").stat().st_size)
    added = sizes[1] - sizes[0]
    assert added <= 1.2 * 1000 * len(json.dumps(message))


def parked(path: Path, count: int) -> None:
    """Make a file with runs that wait for an answer."""
    store = SqliteStore(path, synchronous="normal")
    steps = []
    for number in range(count):
        lease = begin(store)
        steps.append(
            RunChange(
                lease=lease,
                handles=(at(lease.run_id, "suspended", messages={0: "hi"}),),
                opened=(new(f"q{number}", expires_at=later(0)),),
                waits=(Wait(f"q{number}", lease.run_id, 0),),
                releases=True,
            )
        )
    store.write(RT, steps)
    store.announced(RT, [f"q{number}" for number in range(count)])
    store.close()


def work_of(path: Path) -> dict[str, int]:
    """Return how many thousand instructions of SQLite each look at a file takes."""
    store = SqliteStore(path)
    store.abandoned(RT)
    (connection,) = store.database._idle  # type: ignore[attr-defined]
    done = 0

    def count() -> None:
        nonlocal done
        done += 1

    connection.set_progress_handler(count, 100)
    found: dict[str, int] = {}
    now = datetime(2050, 1, 1, tzinfo=timezone.utc)
    looks: dict[str, Any] = {
        "abandoned": lambda: store.abandoned(RT),
        "owned": lambda: store.owned(RT, "one"),
        "next_expiry": lambda: store.next_expiry(RT),
        "open": lambda: list(store.requests(RT, state="open", limit=10)),
        "due": lambda: list(store.requests(RT, state="open", due=now)),
        "untold": lambda: list(store.requests(RT, state="open", is_announced=False)),
        "login": lambda: list(store.requests(RT, state="open", login="github")),
        "below": lambda: list(store.requests(RT, state="open", under="root/a.7")),
        "below nothing": lambda: list(store.requests(RT, under="root/b.0")),
        "handles of nothing": lambda: list(store.handles(RT, under="root/b.0")),
        "load": lambda: store.load(RT, "root/a.7"),
        "mail": lambda: store.mail(RT, "root/a.7"),
        "load_handle": lambda: store.load_handle(RT, "root/a.7", ("messages",)),
        "take": lambda: store.take(RT, "root/a.7", "two", 1, takes_busy=True),
        "renew": lambda: store.renew(RT, "two", 1),
        "abandon": lambda: store.abandon(RT, "two"),
        "handles": lambda: list(store.handles(RT, limit=10)),
        "prune": lambda: store.prune(
            RT, datetime(2000, 1, 1, tzinfo=timezone.utc), keep_suspended=True
        ),
    }
    for name, look in looks.items():
        done = 0
        look()
        found[name] = done
    store.close()
    return found


def test_a_look_costs_the_same_however_many_runs_are_parked(tmp_path: Path) -> None:
    few, many = tmp_path / "few.db", tmp_path / "many.db"
    parked(few, 300)
    parked(many, 3000)
    costs = work_of(few)
    for name, cost in work_of(many).items():
        assert cost <= costs[name] + 10, name


# -- versions ----------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """Return a session with the tables of this release and one run."""
    store = SqliteStore(tmp_path / "runs.db")
    start(store)
    store.close()
    connection = connected(tmp_path / "runs.db")
    yield connection
    connection.close()


def connected(path: Path) -> sqlite._Connection:
    """Return a session that is no store's."""
    connection = sqlite3.connect(path, isolation_level=None, factory=sqlite._Connection)
    connection.tell_time(lambda: 0)
    return connection


def test_tables_of_an_older_release_become_those_of_this_one(
    session: Session, tmp_path: Path
) -> None:
    newer = {**schema.MIGRATIONS, 2: ("ALTER TABLE toolnexus_run ADD COLUMN extra BIGINT",)}
    for _ in range(2):
        schema.migrate(session, is_new=False, migrations=newer)
        assert session.rows("SELECT name, extra FROM toolnexus_run") == [("root/a.1", None)]
        assert schema.is_current(session, newer)
    with pytest.raises(StoreError, match="schema 2"):
        SqliteStore(tmp_path / "runs.db").handle(RT, "root/a.1")


def test_a_store_is_made_by_all_migrations_in_order(tmp_path: Path) -> None:
    made = connected(tmp_path / "new.db")
    newer = {**schema.MIGRATIONS, 2: ("ALTER TABLE toolnexus_run ADD COLUMN extra BIGINT",)}
    schema.migrate(made, is_new=True, migrations=newer)
    assert made.rows("SELECT extra FROM toolnexus_run") == []
    assert schema.is_current(made, newer)
    made.close()
