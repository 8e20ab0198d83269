"""What a store has of requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

from toolnexus.codec import JsonValue
from toolnexus.errors import StoreError
from toolnexus.stores.records import RequestRecord, RequestState, Wait
from toolnexus.stores.sql.reading import has_below, run_above
from toolnexus.stores.sql.session import Database, Row, Session
from toolnexus.stores.sql.values import (
    below,
    from_column,
    from_micros,
    from_text,
    to_key,
    to_micros,
    to_text,
)

PAGE: Final = 100
"""How many requests an iterator holds at once."""

_NEXT_EXPIRY: Final = """SELECT expires FROM toolnexus_request
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    AND state = 'open' AND expires IS NOT NULL ORDER BY expires LIMIT 1"""

# A statement that finds requests is the head, some of the conditions, one of the pages and the
# tail. It joins the calls that wait: a request comes once for each of these.
_HEAD: Final = """SELECT q.id, q.name, q.kind, q.state, q.body, q.answer, q.note,
    q.expires, q.announced, h.name, w.call FROM (
    SELECT r.id, r.name, r.kind, r.state, r.body, r.answer, r.note, r.expires, r.announced
    FROM toolnexus_request r WHERE"""
_OF_RUNTIME: Final = " r.runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)"
# The sign keeps SQLite from looking at all requests of the runtime for the few of a run.
_OF_RUNTIME_TOO: Final = " +r.runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)"
_IS_NAMED: Final = " AND r.name = ?"
_IS_OPEN: Final = " AND r.state = 'open'"
_IS_IN_STATE: Final = " AND r.state = ?"
_IS_OF_KIND: Final = " AND r.kind = ?"
_IS_LOGIN: Final = " AND r.login IS NOT NULL AND r.login = ?"
_IS_DUE: Final = " AND r.expires IS NOT NULL AND r.expires <= ?"
_IS_ANNOUNCED: Final = " AND r.announced = 1"
_IS_UNTOLD: Final = " AND r.announced = 0"
_IS_OF_RUN: Final = """ AND r.id IN (SELECT w.request
    FROM toolnexus_wait w JOIN toolnexus_handle h ON h.id = w.handle WHERE w.run = ?
    AND h.name >= ? AND h.name < ? AND (h.name = ? OR h.name >= ?))"""
_IS_BELOW: Final = """ AND EXISTS (SELECT 1
    FROM toolnexus_wait w JOIN toolnexus_handle h ON h.id = w.handle WHERE w.request = r.id
    AND h.name >= ? AND h.name < ? AND (h.name = ? OR h.name >= ?))"""
_IS_ANY_OF_RUN: Final = """ AND r.id IN (
    SELECT w.request FROM toolnexus_wait w WHERE w.run = ?)"""
_PAGE: Final = " AND r.id > ? ORDER BY r.id LIMIT ?"
# The sign keeps SQLite from looking at all open requests, in order, for the few that are due.
_PAGE_OF_DUE: Final = " AND +r.id > ? ORDER BY +r.id LIMIT ?"
_TAIL: Final = """) q LEFT JOIN toolnexus_wait w ON w.request = q.id AND w.done = 0
    LEFT JOIN toolnexus_handle h ON h.id = w.handle ORDER BY q.id, w.handle, w.call"""

Condition: TypeAlias = "tuple[str, tuple[object, ...]]"


def request(session: Session, runtime: str, request_id: str) -> RequestRecord | None:
    """Return one request; None for an unknown id."""
    rows = _found(session, [(_OF_RUNTIME, (runtime,)), (_IS_NAMED, (request_id,))])
    return to_request(rows) if rows else None


def open_of_run(session: Session, runtime: str, run: int) -> Sequence[Row]:
    """Return the rows of the open requests that a call of a run has waited for."""
    wanted = [(_OF_RUNTIME_TOO, (runtime,)), (_IS_OPEN, ()), (_IS_ANY_OF_RUN, (run,))]
    return _found(session, wanted)


def conditions(
    *,
    state: RequestState | None,
    kind: str | None,
    login: str | None,
    due: datetime | None,
    is_announced: bool | None,
) -> list[Condition]:
    """Return what is to hold of the requests that are looked for."""
    found: list[Condition] = []
    if state is not None:
        # In so many words for the index of those.
        found.append((_IS_OPEN, ()) if state == "open" else (_IS_IN_STATE, (state,)))
    if kind is not None:
        found.append((_IS_OF_KIND, (to_text(kind),)))
    if login is not None:
        found.append((_IS_LOGIN, (to_key(login),)))
    if due is not None:
        found.append((_IS_DUE, (to_micros(due),)))
    if is_announced is not None:
        found.append((_IS_ANNOUNCED if is_announced else _IS_UNTOLD, ()))
    return found


def each_request(
    database: Database,
    runtime: str,
    wanted: Sequence[Condition],
    *,
    under: str | None,
    limit: int | None,
) -> Iterator[RequestRecord]:
    """Yield requests, a page at a time, with nothing open in between."""
    conditions: list[Condition] = [(_OF_RUNTIME, (runtime,)), *wanted]
    if under is not None:
        run = database.read(partial(run_above, runtime=runtime, handle_id=under))
        if run is None and not database.read(partial(has_below, runtime=runtime, above=under)):
            return
        if run is None:
            conditions.append((_IS_BELOW, below(under)))
        else:
            conditions[0] = (_OF_RUNTIME_TOO, (runtime,))
            conditions.append((_IS_OF_RUN, (run, *below(under))))
    is_due = any(clause == _IS_DUE for clause, _ in conditions)
    page = _PAGE_OF_DUE if is_due else _PAGE
    last = 0
    left = limit
    while left is None or left > 0:
        size = PAGE if left is None else min(left, PAGE)
        looked_for = [*conditions, (page, (last, size))]
        rows = database.read(partial(_found, conditions=looked_for))
        records = [list(same) for _, same in groupby(rows, key=itemgetter(0))]
        yield from map(to_request, records)
        if len(records) < size:
            return
        last = rows[-1][0]
        left = None if left is None else left - size


def next_expiry(session: Session, runtime: str) -> datetime | None:
    """Return when the first open request expires; None where none does."""
    row = session.row(_NEXT_EXPIRY, runtime)
    return None if row is None else from_micros(row[0])


def to_request(rows: Sequence[Row]) -> RequestRecord:
    """Return the record of a request's rows, one for each call that waits for it."""
    _, name, kind, state, body, answer, note, expires, announced, _, _ = rows[0]
    faults: list[str] = []

    def value(text: object, what: str) -> JsonValue:
        try:
            return None if text is None else from_column(text, what)
        except StoreError as error:
            faults.append(str(error))
            return None

    return RequestRecord(
        id=name,
        kind=from_text(kind),
        state=state,
        body=value(body, "its body"),
        waits=tuple(Wait(name, row[9], row[10]) for row in rows if row[9] is not None),
        answer=value(answer, "its answer"),
        note=value(note, "its note"),
        expires_at=None if expires is None else from_micros(expires),
        is_announced=bool(announced),
        fault="; ".join(faults) or None,
    )


def _found(session: Session, conditions: Sequence[Condition]) -> Sequence[Row]:
    """Return the rows of all requests for which the conditions hold."""
    statement = "".join((_HEAD, *(clause for clause, _ in conditions), _TAIL))
    values = [value for _, some in conditions for value in some]
    return session.rows(statement, *values)
