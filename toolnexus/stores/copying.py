"""Runs taken from one store to another, of whatever kind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import attrs

from toolnexus.errors import ConfigError, StoreError
from toolnexus.stores.base import RunStore
from toolnexus.stores.memory import MemoryStore
from toolnexus.stores.opening import open_store
from toolnexus.stores.sql.session import Row, Session
from toolnexus.stores.sql.store import SqlStore
from toolnexus.stores.sql.values import from_text, to_text
from toolnexus.stores.sqlite import SqliteStore

PAGE: Final = 200
"""How many rows are in memory at once."""

_RUNTIMES: Final = "SELECT id, name, runs FROM toolnexus_runtime ORDER BY id"
_RUNTIME: Final = "SELECT id, name, runs FROM toolnexus_runtime WHERE name = ?"
_HELD: Final = """SELECT name, owner FROM toolnexus_run
    WHERE runtime = ? AND owner IS NOT NULL AND expires > store_time() LIMIT 1"""
_PUT_RUNTIME: Final = """INSERT INTO toolnexus_runtime (name, runs) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE
    SET runs = CASE WHEN excluded.runs > toolnexus_runtime.runs
        THEN excluded.runs ELSE toolnexus_runtime.runs END RETURNING id"""


@attrs.frozen
class _Table:
    """How the rows of one table are read, page by page, and written elsewhere by their names.

    Attributes:
        page: Reads rows after a key; the key's columns come first.
        keys: How many columns the key has.
        put: Writes a row, which is given without its key and then the runtime for each `in`.
        runtimes: How often the runtime is a parameter at the end of `put`.
        used: Each finds what is in the way of a row, given the runtime and columns of it.
        by: Which ones for each, counted after the key.
        some: Finds any row of the runtime; where there is none, none is in the way.
    """

    page: str
    keys: int
    put: str
    runtimes: int
    used: tuple[str, ...] = ()
    by: tuple[tuple[int, ...], ...] = ()
    some: str = ""


_TABLES: Final = (
    _Table(
        """SELECT id, name, number, fence, busy, mail, recoveries, changed FROM toolnexus_run
            WHERE runtime = ? AND id > ? ORDER BY id LIMIT ?""",
        1,
        """INSERT INTO toolnexus_run
            (name, number, fence, busy, mail, recoveries, changed, runtime)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
        1,
        (
            "SELECT name FROM toolnexus_run WHERE runtime = ? AND name = ?",
            "SELECT name FROM toolnexus_run WHERE runtime = ? AND number = ?",
        ),
        ((0,), (1,)),
        "SELECT 1 FROM toolnexus_run WHERE runtime = ? LIMIT 1",
    ),
    _Table(
        """SELECT h.id, h.name, h.agent, h.state, h.head, h.changed, n.name
            FROM toolnexus_handle h JOIN toolnexus_run n ON n.id = h.run
            WHERE h.runtime = ? AND h.id > ? ORDER BY h.id LIMIT ?""",
        1,
        """INSERT INTO toolnexus_handle (name, agent, state, head, changed, run, runtime)
            VALUES (?, ?, ?, ?, ?,
            (SELECT id FROM toolnexus_run WHERE name = ? AND runtime = ?), ?)""",
        2,
    ),
    _Table(
        """SELECT m.handle, m.place, m.place, m.body, h.name
            FROM toolnexus_message m JOIN toolnexus_handle h ON h.id = m.handle
            WHERE h.runtime = ? AND (m.handle, m.place) > (?, ?)
            ORDER BY m.handle, m.place LIMIT ?""",
        2,
        """INSERT INTO toolnexus_message (place, body, handle) VALUES (?, ?,
            (SELECT id FROM toolnexus_handle WHERE name = ? AND runtime = ?))""",
        1,
    ),
    _Table(
        """SELECT c.handle, c.place, c.place, c.body, h.name
            FROM toolnexus_call c JOIN toolnexus_handle h ON h.id = c.handle
            WHERE h.runtime = ? AND (c.handle, c.place) > (?, ?)
            ORDER BY c.handle, c.place LIMIT ?""",
        2,
        """INSERT INTO toolnexus_call (place, body, handle) VALUES (?, ?,
            (SELECT id FROM toolnexus_handle WHERE name = ? AND runtime = ?))""",
        1,
    ),
    _Table(
        """SELECT p.handle, p.place, p.place, p.body, h.name
            FROM toolnexus_post p JOIN toolnexus_handle h ON h.id = p.handle
            WHERE h.runtime = ? AND (p.handle, p.place) > (?, ?)
            ORDER BY p.handle, p.place LIMIT ?""",
        2,
        """INSERT INTO toolnexus_post (place, body, handle) VALUES (?, ?,
            (SELECT id FROM toolnexus_handle WHERE name = ? AND runtime = ?))""",
        1,
    ),
    _Table(
        """SELECT r.id, r.name, r.kind, r.login, r.state, r.body, r.answer, r.note, r.expires,
            r.announced, n.name
            FROM toolnexus_request r LEFT JOIN toolnexus_run n ON n.id = r.run
            WHERE r.runtime = ? AND r.id > ? ORDER BY r.id LIMIT ?""",
        1,
        """INSERT INTO toolnexus_request (name, kind, login, state, body, answer, note, expires,
            announced, run, runtime) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?,
            (SELECT id FROM toolnexus_run WHERE name = ? AND runtime = ?), ?)""",
        2,
        (
            "SELECT name FROM toolnexus_request WHERE runtime = ? AND name = ?",
            """SELECT name FROM toolnexus_request WHERE runtime = ? AND login = ?
                AND state = 'open' AND ? = 'open'""",
        ),
        ((0,), (2, 3)),
        "SELECT 1 FROM toolnexus_request WHERE runtime = ? LIMIT 1",
    ),
    _Table(
        """SELECT w.request, w.handle, w.call, w.call, w.done, r.name, h.name
            FROM toolnexus_wait w JOIN toolnexus_request r ON r.id = w.request
            JOIN toolnexus_handle h ON h.id = w.handle
            WHERE r.runtime = ? AND (w.request, w.handle, w.call) > (?, ?, ?)
            ORDER BY w.request, w.handle, w.call LIMIT ?""",
        3,
        """INSERT INTO toolnexus_wait (call, done, request, handle, run)
            SELECT ?, ?, r.id, h.id, h.run FROM toolnexus_request r, toolnexus_handle h
            WHERE r.name = ? AND h.name = ? AND r.runtime = ? AND h.runtime = ?""",
        2,
    ),
    _Table(
        """SELECT s.id, s.body, n.name
            FROM toolnexus_signal s JOIN toolnexus_run n ON n.id = s.run
            WHERE n.runtime = ? AND s.id > ? ORDER BY s.id LIMIT ?""",
        1,
        """INSERT INTO toolnexus_signal (body, run) VALUES (?,
            (SELECT id FROM toolnexus_run WHERE name = ? AND runtime = ?))""",
        1,
    ),
    _Table(
        """SELECT id, name, body FROM toolnexus_grant
            WHERE runtime = ? AND id > ? ORDER BY id LIMIT ?""",
        1,
        "INSERT INTO toolnexus_grant (name, body, runtime) VALUES (?, ?, ?)",
        1,
        ("SELECT name FROM toolnexus_grant WHERE runtime = ? AND name = ?",),
        ((0,),),
        "SELECT 1 FROM toolnexus_grant WHERE runtime = ? LIMIT 1",
    ),
)


def copy_runs(
    source: str | RunStore, target: str | RunStore, *, runtime: str | None = None
) -> int:
    """Copy all that a store has of one runtime, or of all, to another store.

    Everything comes along: closed handles, settled requests, grants, and the count of runs. It
    is read as it stands at one moment and written in one transaction, so all of it is there in
    the end, or nothing. The source stays as it is: have its runtimes stopped, and start them on
    the target. Leases do not come along.

    Args:
        source: One of this package's stores, or the URL of one, such as `sqlite:///runs.db`. A
            file has to be there.
        target: One too. What a URL opens is closed again.
        runtime: Whose runs; None for those of all runtimes.

    Returns:
        How many runs were copied.

    Raises:
        ConfigError: A store is of another kind, or both are one.
        StoreError: The source's file is not there, a process still has one of the runs, or a
            run, an open login, a request or a grant of the same name is in the target, or a
            store does not work.
    """
    with ExitStack() as opened:
        here, there = _opened(source, opened), _opened(target, opened)
        if here is there:
            raise ConfigError("runs cannot be copied to the store that they are in")
        # Opened, it would be made.
        if isinstance(here, SqliteStore) and not os.path.exists(here.path):
            raise StoreError(f"{here.path}: there is no such file to copy runs from")
        return here.database.read(
            lambda reading: there.database.write(
                lambda writing: _copy(reading, writing, runtime)
            )
        )


def _opened(given: str | RunStore, opened: ExitStack) -> SqlStore:
    """Return a store that is given, or one of a URL, which is closed with `opened`."""
    store, is_owned = open_store(given)
    if is_owned:
        opened.callback(store.close)
    if not isinstance(store, SqlStore):
        raise ConfigError("runs are copied between a SqliteStore, PostgresStore or MemoryStore")
    if is_owned and isinstance(store, MemoryStore):
        raise ConfigError("memory:// is a new store each time: give copy_runs the MemoryStore")
    return store


def _copy(source: Session, target: Session, runtime: str | None) -> int:
    if runtime is None:
        found = source.rows(_RUNTIMES)
    else:
        found = source.rows(_RUNTIME, to_text(runtime))
    return sum(_copy_runtime(source, target, *row) for row in found)


def _copy_runtime(source: Session, target: Session, key: int, name: str, runs: int) -> int:
    held = source.row(_HELD, key)
    if held is not None:
        raise StoreError(
            f"run {held[0]!r} of runtime {from_text(name)!r} is in use: stop the process that"
            " has it before its runs are copied"
        )
    ((there,),) = target.rows(_PUT_RUNTIME, name, runs)
    counts = [_copy_table(source, target, table, key, there) for table in _TABLES]
    return counts[0]


def _copy_table(source: Session, target: Session, table: _Table, key: int, there: int) -> int:
    count = 0
    may_meet = bool(table.used) and target.row(table.some, there) is not None
    for rows in _pages(source, table, key):
        plain = [row[table.keys :] for row in rows]
        if may_meet:
            _check_unused(target, table, plain, there)
        target.many(table.put, [(*row, *[there] * table.runtimes) for row in plain])
        count += len(rows)
    return count


def _check_unused(target: Session, table: _Table, rows: Sequence[Row], there: int) -> None:
    for statement, columns in zip(table.used, table.by, strict=True):
        for row in rows:
            used = target.row(statement, there, *(row[column] for column in columns))
            if used is not None:
                raise StoreError(f"{used[0]!r} is in the target already; nothing was copied")


def _pages(source: Session, table: _Table, key: int) -> Iterator[Sequence[Row]]:
    last: Row = (-1,) * table.keys
    while True:
        rows = source.rows(table.page, key, *last, PAGE)
        if rows:
            yield rows
        if len(rows) < PAGE:
            return
        last = rows[-1][: table.keys]
