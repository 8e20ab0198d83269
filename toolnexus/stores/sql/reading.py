"""What a store has of handles and their parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from toolnexus.codec import JsonValue
from toolnexus.errors import StoreError
from toolnexus.stores.records import HandleRecord, Part, StoredHandle
from toolnexus.stores.sql.session import Database, Row, Session
from toolnexus.stores.sql.values import below, from_column, from_micros, from_text

PAGE: Final = 200
"""How many records an iterator holds at once."""

_RUN_BELOW: Final = """SELECT id FROM toolnexus_run
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    AND name >= ? AND name < ? LIMIT 1"""
_RUN_KEY: Final = """SELECT id FROM toolnexus_run
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?"""
_HANDLE: Final = """SELECT run, id, name, agent, state, head, changed FROM toolnexus_handle
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?"""
_ALL_HANDLES: Final = """SELECT run, id, name, agent, state, head, changed
    FROM toolnexus_handle
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND state <> 'closed'
    AND (run, id) > (?, ?) ORDER BY run, id LIMIT ?"""
_HANDLES_BELOW: Final = """SELECT run, id, name, agent, state, head, changed
    FROM toolnexus_handle
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND state <> 'closed'
    AND run = ? AND id > ?
    AND name >= ? AND name < ? AND (name = ? OR name >= ?) ORDER BY id LIMIT ?"""
_RUN_HANDLES: Final = """SELECT run, id, name, agent, state, head, changed
    FROM toolnexus_handle
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND state <> 'closed'
    AND run = ? ORDER BY id"""
_RUN_MESSAGES: Final = """SELECT h.name, m.place, m.body
    FROM toolnexus_handle h JOIN toolnexus_message m ON m.handle = h.id
    WHERE h.runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    AND h.state <> 'closed' AND h.run = ? ORDER BY h.id, m.place"""
_RUN_CALLS: Final = """SELECT h.name, c.place, c.body
    FROM toolnexus_handle h JOIN toolnexus_call c ON c.handle = h.id
    WHERE h.runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    AND h.state <> 'closed' AND h.run = ? ORDER BY h.id, c.place"""
_RUN_POSTS: Final = """SELECT h.name, p.place, p.body
    FROM toolnexus_handle h JOIN toolnexus_post p ON p.handle = h.id
    WHERE h.runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    AND h.state <> 'closed' AND h.run = ? ORDER BY h.id, p.place"""
_MESSAGES: Final = "SELECT place, body FROM toolnexus_message WHERE handle = ? ORDER BY place"
_CALLS: Final = "SELECT place, body FROM toolnexus_call WHERE handle = ? ORDER BY place"
_POSTS: Final = "SELECT place, body FROM toolnexus_post WHERE handle = ? ORDER BY place"


def load(session: Session, runtime: str, run_id: str) -> tuple[StoredHandle, ...]:
    """Return the handles of a run that are not closed, whole.

    Raises:
        StoreError: A record cannot be read; names the handle.
    """
    run = run_key(session, runtime, run_id)
    return () if run is None else load_run(session, runtime, run)


def load_run(session: Session, runtime: str, run: int) -> tuple[StoredHandle, ...]:
    """Return what `load` does of the run with that key."""
    records = [to_handle(row) for row in session.rows(_RUN_HANDLES, runtime, run)]
    for record in records:
        if record.fault is not None:
            raise StoreError(f"handle {record.id!r} cannot be read: {record.fault}")
    messages = _by_handle(session, _RUN_MESSAGES, runtime, run, "message")
    calls = _by_handle(session, _RUN_CALLS, runtime, run, "call")
    posts = _by_handle(session, _RUN_POSTS, runtime, run, "post")
    return tuple(
        StoredHandle(
            record=record,
            messages=messages.get(record.id, {}),
            calls=calls.get(record.id, {}),
            posts=posts.get(record.id, {}),
        )
        for record in records
    )


def handle(session: Session, runtime: str, handle_id: str) -> HandleRecord | None:
    """Return one handle; None for an unknown id."""
    row = session.row(_HANDLE, runtime, handle_id)
    return None if row is None else to_handle(row)


def load_handle(
    session: Session, runtime: str, handle_id: str, parts: Collection[Part]
) -> StoredHandle | None:
    """Return one handle with some of its parts; None for an unknown id.

    Raises:
        StoreError: One of those cannot be read; names the handle.
    """
    row = session.row(_HANDLE, runtime, handle_id)
    if row is None:
        return None

    def part(name: Part, statement: str, what: str) -> dict[int, JsonValue]:
        rows = session.rows(statement, row[1]) if name in parts else ()
        return {
            place: from_column(text, f"{what} {place} of handle {handle_id!r}")
            for place, text in rows
        }

    return StoredHandle(
        record=to_handle(row),
        messages=part("messages", _MESSAGES, "message"),
        calls=part("calls", _CALLS, "call"),
        posts=part("posts", _POSTS, "post"),
    )


def calls(session: Session, runtime: str, run_id: str) -> Mapping[str, Mapping[int, JsonValue]]:
    """Return the unfinished calls of a run.

    Raises:
        StoreError: One cannot be read; names the handle.
    """
    run = run_key(session, runtime, run_id)
    return {} if run is None else _by_handle(session, _RUN_CALLS, runtime, run, "call")


def each_handle(
    database: Database, runtime: str, under: str | None, limit: int | None
) -> Iterator[HandleRecord]:
    """Yield handles that are not closed, a page at a time, with nothing open in between."""
    inside = None
    if under is not None:
        inside = database.read(lambda session: run_above(session, runtime, under))
        if inside is None and not database.read(
            partial(has_below, runtime=runtime, above=under)
        ):
            return
    if under is None or inside is None:
        rows = _rows_of_all(database, runtime)
    else:
        rows = _rows_below(database, runtime, inside, under)
    last, count = 0, 0
    for row in rows:
        record = to_handle(row)
        if under is not None and not f"{record.id}/".startswith(f"{under}/"):
            continue
        if row[0] != last:
            last, count = row[0], count + 1
        if limit is not None and count > limit:
            return
        yield record


def run_key(session: Session, runtime: str, run_id: str) -> int | None:
    """Return the key of a run; None for an unknown id."""
    row = session.row(_RUN_KEY, runtime, run_id)
    return None if row is None else int(row[0])


def run_above(session: Session, runtime: str, handle_id: str) -> int | None:
    """Return the key of the run that a handle is of; None where it is above all runs."""
    parts = handle_id.split("/")
    for count in range(len(parts), 0, -1):
        key = run_key(session, runtime, "/".join(parts[:count]))
        if key is not None:
            return key
    return None


def has_below(session: Session, runtime: str, above: str) -> bool:
    """Whether there are runs below a handle that is of none; not so below an unknown one."""
    return session.row(_RUN_BELOW, runtime, f"{above}/", f"{above}0") is not None


def to_handle(row: Row) -> HandleRecord:
    """Return the record of a row as the statements here select it."""
    _, _, name, agent, state, text, changed = row
    head, fault = None, None
    try:
        head = None if text is None else from_column(text, "its head")
    except StoreError as error:
        fault = str(error)
    return HandleRecord(
        id=name,
        agent=from_text(agent),
        state=state,
        head=head,
        changed_at=from_micros(changed),
        fault=fault,
    )


def _by_handle(
    session: Session, statement: str, runtime: str, run: int, what: str
) -> dict[str, dict[int, JsonValue]]:
    found: dict[str, dict[int, JsonValue]] = {}
    for name, place, text in session.rows(statement, runtime, run):
        value = from_column(text, f"{what} {place} of handle {name!r}")
        found.setdefault(name, {})[place] = value
    return found


def _rows_of_all(database: Database, runtime: str) -> Iterator[Row]:
    run, key = 0, 0
    while True:
        values = (runtime, run, key, PAGE)
        rows = database.read(partial(_page, statement=_ALL_HANDLES, values=values))
        yield from rows
        if len(rows) < PAGE:
            return
        run, key = rows[-1][:2]


def _rows_below(database: Database, runtime: str, run: int, under: str) -> Iterator[Row]:
    key = 0
    while True:
        values = (runtime, run, key, *below(under), PAGE)
        rows = database.read(partial(_page, statement=_HANDLES_BELOW, values=values))
        yield from rows
        if len(rows) < PAGE:
            return
        key = rows[-1][1]


def _page(session: Session, *, statement: str, values: tuple[object, ...]) -> Sequence[Row]:
    return session.rows(statement, *values)
