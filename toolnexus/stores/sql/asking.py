"""Requests as they change: opened, waited for, answered, gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from toolnexus.errors import RequestConflict
from toolnexus.stores.records import NewRequest, Wait
from toolnexus.stores.sql.session import Outdated, Session
from toolnexus.stores.sql.values import to_key, to_micros, to_text

_REQUEST: Final = """SELECT id, state FROM toolnexus_request
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?
    FOR UPDATE"""
_OPEN_LOGIN: Final = """SELECT name FROM toolnexus_request
    WHERE runtime = ? AND login = ? AND state = 'open'"""
_OPEN: Final = """INSERT INTO toolnexus_request
    (runtime, run, name, kind, login, state, body, expires, announced)
    VALUES (?, ?, ?, ?, ?, 'open', ?, ?, 0) RETURNING id"""
_WAIT: Final = """INSERT INTO toolnexus_wait (request, handle, call, run, done)
    VALUES (?, ?, ?, ?, 0) ON CONFLICT (request, handle, call) DO UPDATE SET done = 0"""
_DONE: Final = """UPDATE toolnexus_wait SET done = 1
    WHERE request = ? AND handle = ? AND call = ?"""
_NOTE: Final = "UPDATE toolnexus_request SET note = ? WHERE id = ?"
_GONE: Final = """UPDATE toolnexus_request SET state = 'gone' WHERE id = ? AND state = 'open'
    AND NOT EXISTS (SELECT 1 FROM toolnexus_wait WHERE request = ? AND done = 0)"""
_WAITING_RUNS: Final = """SELECT DISTINCT n.name, n.id FROM toolnexus_request r
    JOIN toolnexus_wait w ON w.request = r.id AND w.done = 0
    JOIN toolnexus_run n ON n.id = w.run
    WHERE r.runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND r.name = ?"""
_LOCK_RUN: Final = "SELECT id FROM toolnexus_run WHERE id = ? FOR UPDATE"
_ANSWER: Final = """UPDATE toolnexus_request SET state = 'answered', answer = ?, note = NULL
    WHERE id = ?"""
_ANNOUNCE_MAIL: Final = "UPDATE toolnexus_run SET mail = 1 WHERE id = ?"
_WAITS: Final = """SELECT h.name, w.call
    FROM toolnexus_wait w JOIN toolnexus_handle h ON h.id = w.handle
    WHERE w.request = ? AND w.done = 0"""
_ANNOUNCED: Final = """UPDATE toolnexus_request SET announced = 1
    WHERE runtime = (SELECT id FROM toolnexus_runtime WHERE name = ?) AND name = ?"""


@attrs.define
class _Locked:
    """A request whose row is locked."""

    key: int
    state: str


@attrs.define
class Requests:
    """The requests that a write has to do with; what is known of them is locked."""

    _known: dict[str, _Locked]
    _unsure: set[str] = attrs.field(factory=set, init=False)

    def open(
        self, session: Session, runtime: int, run: int, new: NewRequest, body: str
    ) -> None:
        """Make a request.

        Raises:
            RequestConflict: Its id is in use, or one for its login is open.
        """
        used = self._known.get(new.id)
        if used is not None:
            raise RequestConflict(new.id, used.state)
        login = None if new.login is None else to_key(new.login)
        same = None if login is None else session.row(_OPEN_LOGIN, runtime, login)
        if same is not None:
            raise RequestConflict(same[0], "open")
        expires = None if new.expires_at is None else to_micros(new.expires_at)
        kind = to_text(new.kind)
        ((key,),) = session.rows(_OPEN, runtime, run, new.id, kind, login, body, expires)
        self._known[new.id] = _Locked(key, "open")
        self._unsure.add(new.id)

    def begin_wait(self, session: Session, wait: Wait, handle: int, run: int) -> None:
        """Let a call wait; where the answer is there, it is mail for the run at once.

        Raises:
            RequestConflict: The request is gone, or not known.
        """
        found = self._known.get(wait.request_id)
        if found is None or found.state == "gone":
            raise RequestConflict(wait.request_id, None if found is None else found.state)
        session.run(_WAIT, found.key, handle, wait.call, run)
        self._unsure.discard(wait.request_id)

    def end_wait(self, session: Session, wait: Wait, handle: int) -> None:
        """Let a call wait no more; it is as well where it does not."""
        found = self._known.get(wait.request_id)
        if found is not None:
            session.run(_DONE, found.key, handle, wait.call)
            self._unsure.add(wait.request_id)

    def note(self, session: Session, request_id: str, note: str) -> None:
        """Replace the note of a request; one for an unknown request is dropped."""
        found = self._known.get(request_id)
        if found is not None:
            session.run(_NOTE, note, found.key)

    def settle(self, session: Session) -> None:
        """Let the open requests be gone that no call waits for, or not any more."""
        for request_id in self._unsure:
            found = self._known[request_id]
            if found.state == "open":
                session.run(_GONE, found.key, found.key)


def lock_requests(session: Session, runtime: str, request_ids: Iterable[str]) -> Requests:
    """Lock those of the requests that there are, in the order of all who lock some."""
    known: dict[str, _Locked] = {}
    for request_id in sorted(request_ids):
        row = session.row(_REQUEST, runtime, request_id)
        if row is not None:
            known[request_id] = _Locked(*row)
    return Requests(known)


def claim(
    session: Session,
    runtime: str,
    answers: Sequence[tuple[str, tuple[Wait, ...] | None, str]],
) -> bool:
    """Record answers if all the requests are open, and no call waits that may not.

    Args:
        session: The transaction.
        runtime: Whose.
        answers: Each a request's id, the calls that may wait for it, and its answer.

    Raises:
        Outdated: A run has begun to wait for one of them meanwhile.
    """
    request_ids = [request_id for request_id, *_ in answers]
    if len(set(request_ids)) < len(request_ids):
        return False  # only one of two answers can be the one
    locked: set[int] = set()
    for _, run in sorted(_waiting(session, runtime, request_ids)):
        session.row(_LOCK_RUN, run)
        locked.add(run)
    found: dict[str, int] = {}
    for request_id in sorted(request_ids):
        row = session.row(_REQUEST, runtime, request_id)
        if row is None or row[1] != "open":
            return False
        found[request_id] = row[0]
    runs = {run for _, run in _waiting(session, runtime, request_ids)}
    if not runs <= locked:
        raise Outdated
    for request_id, may_wait, _ in answers:
        waiting = session.rows(_WAITS, found[request_id])
        known = {(wait.handle_id, wait.call) for wait in may_wait or ()}
        if may_wait is not None and not known.issuperset(waiting):
            return False
    for request_id, _, answer in answers:
        session.run(_ANSWER, answer, found[request_id])
    for run in sorted(runs):
        session.run(_ANNOUNCE_MAIL, run)
    return True


def announced(session: Session, runtime: str, request_ids: Iterable[str]) -> None:
    """Note that the host was told of these requests."""
    for request_id in sorted(set(request_ids)):
        session.run(_ANNOUNCED, runtime, request_id)


def _waiting(
    session: Session, runtime: str, request_ids: Iterable[str]
) -> set[tuple[str, int]]:
    """Return the runs, by id and key, in which a call waits for one of the requests."""
    return {
        (str(name), int(key))
        for request_id in request_ids
        for name, key in session.rows(_WAITING_RUNS, runtime, request_id)
    }
