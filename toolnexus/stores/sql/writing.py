"""The steps of runs, written by their owners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from toolnexus.codec import JsonValue
from toolnexus.errors import LeaseLost, StoreError
from toolnexus.stores.records import HandleChange, Lease, NewRequest, RunChange, Wait
from toolnexus.stores.sql.asking import Requests, lock_requests
from toolnexus.stores.sql.session import Session
from toolnexus.stores.sql.values import to_column, to_text

_RUN: Final = """SELECT id, runtime, owner, fence, mail, busy FROM toolnexus_run
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?
    FOR UPDATE"""
_CHANGE_HANDLE: Final = """UPDATE toolnexus_handle
    SET state = ?, head = COALESCE(?, head), changed = store_time()
    WHERE runtime = ? AND name = ? AND run = ? RETURNING id"""
_NEW_HANDLE: Final = """INSERT INTO toolnexus_handle
    (state, head, changed, runtime, name, run, agent) VALUES (?, ?, store_time(), ?, ?, ?, ?)
    ON CONFLICT (runtime, name) DO NOTHING RETURNING id"""
_HANDLE: Final = """SELECT id FROM toolnexus_handle
    WHERE runtime = ? AND name = ? AND run = ?"""
_CUT: Final = "DELETE FROM toolnexus_message WHERE handle = ? AND place >= ?"
_PUT_MESSAGE: Final = """INSERT INTO toolnexus_message (handle, place, body) VALUES (?, ?, ?)
    ON CONFLICT (handle, place) DO UPDATE SET body = excluded.body"""
_PUT_CALL: Final = """INSERT INTO toolnexus_call (handle, place, body) VALUES (?, ?, ?)
    ON CONFLICT (handle, place) DO UPDATE SET body = excluded.body"""
_PUT_POST: Final = """INSERT INTO toolnexus_post (handle, place, body) VALUES (?, ?, ?)
    ON CONFLICT (handle, place) DO UPDATE SET body = excluded.body"""
_TAKE_CALL: Final = "DELETE FROM toolnexus_call WHERE handle = ? AND place = ?"
_TAKE_POST: Final = "DELETE FROM toolnexus_post WHERE handle = ? AND place = ?"
_TAKE_SIGNAL: Final = "DELETE FROM toolnexus_signal WHERE run = ? AND id = ?"
_HAS_MAIL: Final = """SELECT CASE WHEN EXISTS (
        SELECT 1 FROM toolnexus_wait w JOIN toolnexus_request r ON r.id = w.request
        WHERE w.run = ? AND w.done = 0 AND r.state = 'answered')
    OR EXISTS (SELECT 1 FROM toolnexus_signal WHERE run = ?) THEN 1 ELSE 0 END"""
_KEEP: Final = """UPDATE toolnexus_run SET busy = ?, mail = ?, changed = store_time()
    WHERE id = ?"""
_RELEASE: Final = """UPDATE toolnexus_run SET busy = ?, mail = 0, changed = store_time(),
    owner = NULL, expires = NULL, recoveries = CASE WHEN ? = 0 THEN 0 ELSE recoveries END
    WHERE id = ?"""


@attrs.frozen
class Texts:
    """The values of a mapping by number as JSON text; and the numbers that are taken away."""

    kept: Sequence[tuple[int, str]]
    taken: Sequence[int]

    @classmethod
    def of(cls, values: Mapping[int, JsonValue | None], what: str) -> Texts:
        """Encode the values of a mapping; `what` is told where one is no JSON."""
        kept = [
            (place, to_column(value, f"{what} {place}"))
            for place, value in values.items()
            if value is not None
        ]
        return cls(kept, [place for place, value in values.items() if value is None])


@attrs.frozen
class HandleStep:
    """A change of a handle with its values as JSON text."""

    change: HandleChange
    head: str | None
    messages: Sequence[tuple[int, str]]
    calls: Texts
    posts: Texts

    @classmethod
    def of(cls, change: HandleChange) -> HandleStep:
        """Encode what has changed of a handle."""
        what = f"of handle {change.id!r}"
        head = None if change.head is None else to_column(change.head, f"the head {what}")
        messages = [
            (place, to_column(value, f"message {place} {what}"))
            for place, value in change.messages.items()
        ]
        calls = Texts.of(change.calls, f"a call {what}, at")
        posts = Texts.of(change.posts, f"a post {what}, number")
        return cls(change, head, messages, calls, posts)


@attrs.frozen
class RunStep:
    """A change of a run with its values as JSON text."""

    change: RunChange
    handles: Sequence[HandleStep]
    opened: Sequence[tuple[NewRequest, str]]
    notes: Mapping[str, str]

    @classmethod
    def of(cls, change: RunChange) -> RunStep:
        """Encode what has changed of a run."""
        # A handle's id begins with its parent's: parents are made before their children.
        handles = sorted(change.handles, key=lambda one: len(one.id))
        # In the order given: that is the one in which they are listed.
        opened = [(new, to_column(new.body, f"request {new.id!r}")) for new in change.opened]
        notes = {
            request_id: to_column(note, f"the note of request {request_id!r}")
            for request_id, note in change.notes.items()
        }
        return cls(change, [HandleStep.of(one) for one in handles], opened, notes)


@attrs.define
class _Run:
    """A run whose row is locked."""

    key: int
    runtime: int
    mail: int
    busy: int


def has_content(change: RunChange) -> bool:
    """Whether a change says anything of a run besides whose it is."""
    return bool(
        change.handles
        or change.opened
        or change.waits
        or change.done
        or change.notes
        or change.signals
    )


def write(session: Session, runtime: str, steps: Sequence[RunStep]) -> tuple[str, ...]:
    """Write all steps; return the runs that were to be released and are not.

    Raises:
        LeaseLost: Of some run it is void.
        RequestConflict: A request is not what the step takes it for.
        StoreError: A handle is another run's, or not known.
    """
    runs = _lock_runs(session, runtime, [step.change.lease for step in steps])
    requests = lock_requests(session, runtime, set(_named_requests(steps)))
    kept: list[str] = []
    for step in steps:
        run = runs[step.change.lease.run_id]
        _write_step(session, run, step, requests)
    requests.settle(session)
    for step in steps:
        run = runs[step.change.lease.run_id]
        if not _end_step(session, run, step.change):
            kept.append(step.change.lease.run_id)
    return tuple(kept)


def _lock_runs(session: Session, runtime: str, leases: Sequence[Lease]) -> dict[str, _Run]:
    runs: dict[str, _Run] = {}
    lost: list[str] = []
    for lease in sorted(leases, key=lambda one: one.run_id):
        row = session.row(_RUN, runtime, lease.run_id)
        if row is None or row[2:4] != (lease.owner, lease.fence):
            lost.append(lease.run_id)
        else:
            runs[lease.run_id] = _Run(row[0], row[1], row[4], row[5])
    if lost:
        raise LeaseLost(tuple(dict.fromkeys(lost)))
    return runs


def _named_requests(steps: Sequence[RunStep]) -> Iterator[str]:
    for step in steps:
        yield from (new.id for new, _ in step.opened)
        yield from (wait.request_id for wait in (*step.change.waits, *step.change.done))
        yield from step.notes


def _write_step(session: Session, run: _Run, step: RunStep, requests: Requests) -> None:
    keys = {one.change.id: _write_handle(session, run, one) for one in step.handles}

    def handle_key(wait: Wait) -> int:
        if wait.handle_id not in keys:
            keys[wait.handle_id] = _handle_key(session, run, wait.handle_id)
        return keys[wait.handle_id]

    for new, body in step.opened:
        requests.open(session, run.runtime, run.key, new, body)
    # What is done first: a call that ends one wait and begins it anew does wait.
    for wait in step.change.done:
        requests.end_wait(session, wait, handle_key(wait))
    for wait in step.change.waits:
        requests.begin_wait(session, wait, handle_key(wait), run.key)
    for request_id, note in step.notes.items():
        requests.note(session, request_id, note)
    if step.change.signals:
        session.many(_TAKE_SIGNAL, [(run.key, number) for number in step.change.signals])


def _write_handle(session: Session, run: _Run, step: HandleStep) -> int:
    change = step.change
    place = (run.runtime, change.id, run.key)
    row = session.row(_CHANGE_HANDLE, change.state, step.head, *place)
    if row is None:
        row = session.row(_NEW_HANDLE, change.state, step.head, *place, to_text(change.agent))
    if row is None:
        raise StoreError(f"handle {change.id!r} belongs to another run")
    key = int(row[0])
    if change.keep is not None:
        session.run(_CUT, key, change.keep)
    _put(session, _PUT_MESSAGE, key, step.messages)
    _put(session, _PUT_CALL, key, step.calls.kept)
    _put(session, _PUT_POST, key, step.posts.kept)
    _take(session, _TAKE_CALL, key, step.calls.taken)
    _take(session, _TAKE_POST, key, step.posts.taken)
    return key


def _put(session: Session, statement: str, key: int, texts: Sequence[tuple[int, str]]) -> None:
    if texts:
        session.many(statement, [(key, place, text) for place, text in texts])


def _take(session: Session, statement: str, key: int, places: Sequence[int]) -> None:
    if places:
        session.many(statement, [(key, place) for place in places])


def _handle_key(session: Session, run: _Run, handle_id: str) -> int:
    row = session.row(_HANDLE, run.runtime, handle_id, run.key)
    if row is None:
        raise StoreError(f"the run has no handle {handle_id!r} that could wait")
    return int(row[0])


def _end_step(session: Session, run: _Run, change: RunChange) -> bool:
    """Write where the run stands; say whether its lease is as the change wants it."""
    busy, mail = int(change.is_busy), run.mail
    if change.waits or change.done or change.signals:
        ((mail,),) = session.rows(_HAS_MAIL, run.key, run.key)
    if change.releases and not mail:
        session.run(_RELEASE, busy, busy, run.key)
        return True
    # When a run was changed last is of no use as long as a turn is under way.
    if not busy or (busy, mail) != (run.busy, run.mail):
        session.run(_KEEP, busy, mail, run.key)
        run.busy, run.mail = busy, mail
    return not change.releases
