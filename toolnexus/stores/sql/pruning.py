"""What is deleted of what rests: whole runs, and closed handles of runs that stay.

A request goes with the last handle that has waited for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from toolnexus.stores.sql.session import Database, Row, Session
from toolnexus.stores.sql.values import below, to_micros

PAGE: Final = 100
"""How many runs, or handles, one transaction deletes at most: nobody waits long for it."""

_OLD_RUNS: Final = """SELECT changed, id, name FROM toolnexus_run
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    AND busy = 0 AND mail = 0 AND changed < ? AND (changed, id) > (?, ?)
    ORDER BY changed, id LIMIT ?"""
_LOCK_RESTING: Final = """SELECT id, name, runtime FROM toolnexus_run
    WHERE id = ? AND busy = 0 AND mail = 0 AND changed < ?
    AND (owner IS NULL OR expires <= store_time()) FOR UPDATE"""
_IS_SUSPENDED: Final = """SELECT 1 FROM toolnexus_request WHERE run = ? AND state = 'open'
    UNION ALL SELECT 1 FROM toolnexus_wait w JOIN toolnexus_request r ON r.id = w.request
    WHERE w.run = ? AND w.done = 0 AND r.state = 'open' LIMIT 1"""
_RUN_HANDLES: Final = """SELECT id FROM toolnexus_handle
    WHERE runtime = ? AND name >= ? AND name < ? AND (name = ? OR name >= ?)"""
_RUN_REQUESTS: Final = """SELECT name, id FROM toolnexus_request WHERE run = ?
    UNION SELECT r.name, r.id FROM toolnexus_wait w JOIN toolnexus_request r ON r.id = w.request
    WHERE w.run = ?"""
_END_WAITS: Final = "DELETE FROM toolnexus_wait WHERE run = ?"
_END_RUN: Final = "DELETE FROM toolnexus_run WHERE id = ?"
_DISOWN: Final = "UPDATE toolnexus_request SET run = NULL WHERE run = ?"

_OLD_HANDLES: Final = """SELECT h.changed, h.id, n.id, n.name
    FROM toolnexus_handle h JOIN toolnexus_run n ON n.id = h.run
    WHERE h.runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    AND h.state = 'closed' AND h.changed < ? AND (h.changed, h.id) > (?, ?)
    AND h.name <> n.name ORDER BY h.changed, h.id LIMIT ?"""
# A call of a turn under way may still want to know what became of a closed handle.
_LOCK_RUN: Final = "SELECT id FROM toolnexus_run WHERE id = ? AND busy = 0 FOR UPDATE"
_IS_CLOSED: Final = """SELECT 1 FROM toolnexus_handle
    WHERE id = ? AND state = 'closed' AND changed < ? AND NOT EXISTS (
    SELECT 1 FROM toolnexus_wait WHERE run = ? AND handle = ? AND done = 0)"""
_HANDLE_REQUESTS: Final = """SELECT DISTINCT r.name, r.id
    FROM toolnexus_wait w JOIN toolnexus_request r ON r.id = w.request
    WHERE w.run = ? AND w.handle = ?"""
_END_HANDLE_WAITS: Final = "DELETE FROM toolnexus_wait WHERE run = ? AND handle = ?"

_END_PARTS: Final = (
    "DELETE FROM toolnexus_message WHERE handle = ?",
    "DELETE FROM toolnexus_call WHERE handle = ?",
    "DELETE FROM toolnexus_post WHERE handle = ?",
    "DELETE FROM toolnexus_handle WHERE id = ?",
)
_LOCK_REQUEST: Final = "SELECT id FROM toolnexus_request WHERE id = ? FOR UPDATE"
_END_REQUEST: Final = """DELETE FROM toolnexus_request
    WHERE id = ? AND NOT EXISTS (SELECT 1 FROM toolnexus_wait WHERE request = ?)"""
_GONE: Final = """UPDATE toolnexus_request SET state = 'gone' WHERE id = ? AND state = 'open'
    AND NOT EXISTS (SELECT 1 FROM toolnexus_wait WHERE request = ? AND done = 0)"""


def prune(database: Database, runtime: str, before: datetime, *, keep_suspended: bool) -> int:
    """Delete what rests, page by page; return how many handles that were."""
    limit = to_micros(before)
    deleted = 0
    last = (-1, 0)
    while True:
        rows = database.read(partial(_old, _OLD_RUNS, (runtime, limit, *last, PAGE)))
        if rows:
            runs = [key for _, key, _ in sorted(rows, key=lambda row: str(row[2]))]
            deleted += database.write(partial(_end_runs, runs, limit, keep_suspended))
        if len(rows) < PAGE:
            break
        last = (rows[-1][0], rows[-1][1])
    last = (-1, 0)
    while True:
        rows = database.read(partial(_old, _OLD_HANDLES, (runtime, limit, *last, PAGE)))
        if rows:
            by_run = sorted(rows, key=lambda row: (str(row[3]), int(row[1])))
            deleted += database.write(partial(_end_handles, by_run, limit))
        if len(rows) < PAGE:
            return deleted
        last = (rows[-1][0], rows[-1][1])


def _old(statement: str, values: tuple[object, ...], session: Session) -> Sequence[Row]:
    return session.rows(statement, *values)


def _end_runs(runs: Sequence[int], limit: int, keeps: bool, session: Session) -> int:  # noqa: FBT001
    """Delete those of the runs, given in the order of their ids, that still rest."""
    resting = [row for run in runs for row in session.rows(_LOCK_RESTING, run, limit)]
    if keeps:
        resting = [row for row in resting if session.row(_IS_SUSPENDED, row[0], row[0]) is None]
    keys = [row[0] for row in resting]
    found = {row for key in keys for row in session.rows(_RUN_REQUESTS, key, key)}
    requests = _lock_requests(session, found)
    handles = 0
    for _, name, runtime in resting:
        handles += _end(session, session.rows(_RUN_HANDLES, runtime, *below(name)))
    session.many(_END_WAITS, [(key,) for key in keys])
    _end_requests(session, requests)
    session.many(_DISOWN, [(key,) for key in keys])
    session.many(_END_RUN, [(key,) for key in keys])
    return handles


def _end_handles(rows: Sequence[Row], limit: int, session: Session) -> int:
    """Delete those of the handles, given in the order of their runs' ids, that are closed."""
    runs = dict.fromkeys(row[2] for row in rows)
    resting = {run for run in runs if session.row(_LOCK_RUN, run) is not None}
    closed = [
        (run, key)
        for _, key, run, _ in rows
        if run in resting and session.row(_IS_CLOSED, key, limit, run, key) is not None
    ]
    found = {row for one in closed for row in session.rows(_HANDLE_REQUESTS, *one)}
    requests = _lock_requests(session, found)
    session.many(_END_HANDLE_WAITS, closed)
    _end_requests(session, requests)
    return _end(session, [(key,) for _, key in closed])


def _lock_requests(session: Session, rows: Iterable[Row]) -> list[int]:
    keys = [int(key) for _, key in sorted(rows)]
    for key in keys:
        session.row(_LOCK_REQUEST, key)
    return keys


def _end_requests(session: Session, keys: Sequence[int]) -> None:
    session.many(_END_REQUEST, [(key, key) for key in keys])
    session.many(_GONE, [(key, key) for key in keys])


def _end(session: Session, handles: Sequence[Row]) -> int:
    """Delete handles and what belongs to them; return how many."""
    for statement in _END_PARTS:
        session.many(statement, handles)
    return len(handles)
