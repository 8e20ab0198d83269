"""Whose a run is, and what has come for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

from toolnexus.codec import JsonValue
from toolnexus.stores.records import Held, Lease, Mail, Wait
from toolnexus.stores.sql.session import Session
from toolnexus.stores.sql.values import from_column, from_micros, to_text

_PUT_RUNTIME: Final = """INSERT INTO toolnexus_runtime (name, runs) VALUES (?, 0)
    ON CONFLICT (name) DO NOTHING"""
_LOCK_RUNTIME: Final = "SELECT id FROM toolnexus_runtime WHERE name = ? FOR UPDATE"
_LIVE: Final = """SELECT COUNT(*) FROM (SELECT 1 FROM toolnexus_handle h
    JOIN toolnexus_run r ON r.id = h.run AND r.name = h.name
    WHERE h.runtime = ? AND h.state <> 'closed' LIMIT ?) AS live"""
_COUNT: Final = """INSERT INTO toolnexus_runtime (name, runs) VALUES (?, 1)
    ON CONFLICT (name) DO UPDATE SET runs = toolnexus_runtime.runs + 1 RETURNING id, runs"""
_NEW_RUN: Final = """INSERT INTO toolnexus_run
    (runtime, number, name, owner, fence, expires, busy, mail, recoveries, changed)
    VALUES (?, ?, ?, NULL, 0, NULL, 0, 0, 0, store_time()) RETURNING id"""
_FIRST_HANDLE: Final = """INSERT INTO toolnexus_handle
    (runtime, run, name, agent, state, head, changed)
    VALUES (?, ?, ?, ?, 'idle', ?, store_time())"""
_RUN: Final = """SELECT id, owner, fence, busy, recoveries,
    CASE WHEN expires > store_time() THEN 1 ELSE 0 END, mail
    FROM toolnexus_run
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?
    FOR UPDATE"""
_TAKE: Final = """UPDATE toolnexus_run
    SET owner = ?, fence = ?, expires = store_time() + ?, recoveries = ? WHERE id = ?"""
# Sorted by an expression: SQLite would rather read all runs in order than sort the owner's.
_RENEW: Final = """UPDATE toolnexus_run SET expires = store_time() + ?
    WHERE id IN (SELECT id FROM toolnexus_run WHERE owner = ?
    AND runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    ORDER BY name || '' FOR UPDATE)"""
# Taken over, the turn is as often recovered as it was before.
_ABANDON: Final = """UPDATE toolnexus_run
    SET owner = NULL, expires = NULL, recoveries = recoveries - busy
    WHERE id IN (SELECT id FROM toolnexus_run WHERE owner = ?
    AND runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    ORDER BY name || '' FOR UPDATE)"""
_RELEASE: Final = """UPDATE toolnexus_run
    SET owner = NULL, expires = NULL, recoveries = recoveries - busy * ?
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?
    AND owner = ? AND fence = ?"""
_OWNED: Final = """SELECT name, mail FROM toolnexus_run WHERE owner = ?
    AND runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) ORDER BY number"""
_ABANDONED: Final = """SELECT name FROM toolnexus_run
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    AND (busy = 1 OR mail = 1) AND (owner IS NULL OR expires <= store_time())
    ORDER BY number"""
_LEASED: Final = """SELECT COUNT(*), MAX(expires) FROM toolnexus_run
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?)
    AND (busy = 1 OR mail = 1) AND owner <> ? AND expires > store_time()"""
_ANNOUNCE: Final = """UPDATE toolnexus_run SET mail = 1
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?
    RETURNING id"""
_SIGNAL: Final = "INSERT INTO toolnexus_signal (run, body) VALUES (?, ?)"
_ANSWERS: Final = """SELECT r.name, h.name, w.call, r.answer
    FROM toolnexus_wait w JOIN toolnexus_request r ON r.id = w.request
    JOIN toolnexus_handle h ON h.id = w.handle
    WHERE w.run = (SELECT id FROM toolnexus_run
        WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?)
    AND w.done = 0 AND r.state = 'answered' ORDER BY r.id, h.id, w.call"""
_SIGNALS: Final = """SELECT id, body FROM toolnexus_signal
    WHERE run = (SELECT id FROM toolnexus_run
        WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?)
    ORDER BY id"""


class OwnedRun(NamedTuple):
    """A run whose row is locked."""

    key: int
    owner: str | None
    fence: int
    busy: int
    recoveries: int
    is_current: int
    mail: int


def put_runtime(session: Session, runtime: str) -> None:
    """Have a row for a runtime, which may be its first."""
    session.run(_PUT_RUNTIME, runtime)


def has_runs(session: Session, runtime: str, most: int) -> bool:
    """Say whether there are as many runs that are not closed; none is begun until the end."""
    put_runtime(session, runtime)
    ((key,),) = session.rows(_LOCK_RUNTIME, runtime)
    ((count,),) = session.rows(_LIVE, key, most)
    return bool(count >= most)


def start_run(session: Session, runtime: str, parent: str, agent: str, head: str) -> str:
    """Make a run, given its head as JSON text; return its id."""
    # The runtime's row stays locked until the end, so no number is given twice or left out.
    ((runtime_key, number),) = session.rows(_COUNT, runtime)
    run_id = f"{parent}/{agent}.{number}"
    ((run,),) = session.rows(_NEW_RUN, runtime_key, number, run_id)
    session.run(_FIRST_HANDLE, runtime_key, run, run_id, to_text(agent), head)
    return run_id


def locked(session: Session, runtime: str, run_id: str) -> OwnedRun | None:
    """Lock a run and return whose it is; None for an unknown id."""
    row = session.row(_RUN, runtime, run_id)
    return None if row is None else OwnedRun(*row)


def acquire(
    session: Session, run_id: str, run: OwnedRun, new: tuple[str, int], *, takes_busy: bool
) -> Lease | Held:
    """Take a run that is locked; `new` is its owner to be, and the lease's microseconds."""
    owner, fence, busy, recoveries = run.owner, run.fence, run.busy, run.recoveries
    mine, lasts = new
    if owner != mine:
        if owner is not None and run.is_current:
            return Held(owner=owner, is_busy=bool(busy))
        if busy and not takes_busy:
            return Held(owner=None, is_busy=True)
        fence += 1
        recoveries += busy
    session.run(_TAKE, mine, fence, lasts, recoveries, run.key)
    was_busy = bool(busy) and owner != mine
    return Lease(
        run_id=run_id, owner=mine, fence=fence, was_busy=was_busy, recoveries=recoveries
    )


def renew(session: Session, runtime: str, owner: str, lasts: int) -> None:
    """Let the leases of `owner` last as many microseconds from now."""
    session.run(_RENEW, lasts, owner, runtime)


def owned(session: Session, runtime: str, owner: str) -> Mapping[str, bool]:
    """Return the runs of `owner`, each with whether something has come for it."""
    return {name: bool(mail) for name, mail in session.rows(_OWNED, owner, runtime)}


def release(session: Session, runtime: str, lease: Lease, *, on_purpose: bool) -> None:
    """Give a lease back, whatever has come for the run."""
    session.run(_RELEASE, int(on_purpose), runtime, lease.run_id, lease.owner, lease.fence)


def abandon(session: Session, runtime: str, owner: str) -> None:
    """Give back the leases of `owner`."""
    session.run(_ABANDON, owner, runtime)


def abandoned(session: Session, runtime: str) -> tuple[str, ...]:
    """Return the runs that nobody is at and that have something to do."""
    return tuple(name for (name,) in session.rows(_ABANDONED, runtime))


def leased(session: Session, runtime: str, but: str) -> tuple[int, datetime | None]:
    """Return how many runs with something to do others than `but` have, and until when."""
    ((count, expires),) = session.rows(_LEASED, runtime, but)
    return count, None if expires is None else from_micros(expires)


def send(session: Session, runtime: str, run_id: str, signal: str) -> None:
    """Put a signal, as JSON text, in a run's letter box."""
    # The run's row is locked before the signal has its number: numbers are in the order in
    # which the signals can be seen.
    row = session.row(_ANNOUNCE, runtime, run_id)
    if row is not None:
        session.run(_SIGNAL, row[0], signal)


def mail(session: Session, runtime: str, run_id: str) -> Mail:
    """Return what has come for a run."""
    answers: list[tuple[Wait, JsonValue]] = []
    for request_id, handle_id, call, text in session.rows(_ANSWERS, runtime, run_id):
        answer = from_column(text, f"the answer to request {request_id!r}")
        answers.append((Wait(request_id, handle_id, call), answer))
    signals = {
        number: from_column(text, f"signal {number} of run {run_id!r}")
        for number, text in session.rows(_SIGNALS, runtime, run_id)
    }
    return Mail(answers=tuple(answers), signals=signals)
