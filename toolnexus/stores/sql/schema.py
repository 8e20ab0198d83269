"""The tables, and how those of an older release become those of this one.

Keys are numbers, and a record's long id stands in one row. What is asked for often is found by
indexes that have in them only what is asked for: runs with something to do, open requests. So
their size does not grow with what rests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from toolnexus.errors import StoreError
from toolnexus.stores.sql.session import Session

# `KEY` numbers rows, `COUNTER` never gives the number of a deleted row again, `NAME` is a text
# that is compared byte by byte: each database says these in its own words.
_FIRST: Final = (
    "CREATE TABLE toolnexus_runtime (id KEY, name NAME NOT NULL UNIQUE, runs BIGINT NOT NULL)",
    """CREATE TABLE toolnexus_run (
        id KEY, runtime BIGINT NOT NULL, number BIGINT NOT NULL, name NAME NOT NULL,
        owner NAME, fence BIGINT NOT NULL, expires BIGINT, busy SMALLINT NOT NULL,
        mail SMALLINT NOT NULL, recoveries BIGINT NOT NULL, changed BIGINT NOT NULL,
        UNIQUE (runtime, name))""",
    "CREATE UNIQUE INDEX toolnexus_run_number ON toolnexus_run (runtime, number)",
    """CREATE INDEX toolnexus_run_owner ON toolnexus_run (runtime, owner, number)
        WHERE owner IS NOT NULL""",
    """CREATE INDEX toolnexus_run_active ON toolnexus_run (runtime, number)
        WHERE busy = 1 OR mail = 1""",
    """CREATE INDEX toolnexus_run_resting ON toolnexus_run (runtime, changed)
        WHERE busy = 0 AND mail = 0""",
    """CREATE TABLE toolnexus_handle (
        id KEY, runtime BIGINT NOT NULL, run BIGINT NOT NULL, name NAME NOT NULL,
        agent TEXT NOT NULL, state TEXT NOT NULL, head TEXT, changed BIGINT NOT NULL,
        UNIQUE (runtime, name))""",
    """CREATE INDEX toolnexus_handle_open ON toolnexus_handle (runtime, run, id)
        WHERE state <> 'closed'""",
    """CREATE INDEX toolnexus_handle_closed ON toolnexus_handle (runtime, changed)
        WHERE state = 'closed'""",
    """CREATE TABLE toolnexus_message (
        handle BIGINT NOT NULL, place BIGINT NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (handle, place))""",
    """CREATE TABLE toolnexus_call (
        handle BIGINT NOT NULL, place BIGINT NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (handle, place))""",
    """CREATE TABLE toolnexus_post (
        handle BIGINT NOT NULL, place BIGINT NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (handle, place))""",
    """CREATE TABLE toolnexus_request (
        id KEY, runtime BIGINT NOT NULL, run BIGINT, name NAME NOT NULL, kind TEXT NOT NULL,
        login NAME, state TEXT NOT NULL, body TEXT NOT NULL, answer TEXT, note TEXT,
        expires BIGINT, announced SMALLINT NOT NULL, UNIQUE (runtime, name))""",
    "CREATE INDEX toolnexus_request_order ON toolnexus_request (runtime, id)",
    """CREATE INDEX toolnexus_request_open ON toolnexus_request (runtime, id)
        WHERE state = 'open'""",
    """CREATE INDEX toolnexus_request_untold ON toolnexus_request (runtime, id)
        WHERE state = 'open' AND announced = 0""",
    """CREATE INDEX toolnexus_request_due ON toolnexus_request (runtime, expires)
        WHERE state = 'open' AND expires IS NOT NULL""",
    """CREATE UNIQUE INDEX toolnexus_request_login ON toolnexus_request (runtime, login)
        WHERE state = 'open' AND login IS NOT NULL""",
    "CREATE INDEX toolnexus_request_run ON toolnexus_request (run)",
    """CREATE TABLE toolnexus_wait (
        request BIGINT NOT NULL, handle BIGINT NOT NULL, call BIGINT NOT NULL,
        run BIGINT NOT NULL, done SMALLINT NOT NULL, PRIMARY KEY (request, handle, call))""",
    "CREATE INDEX toolnexus_wait_run ON toolnexus_wait (run, done)",
    "CREATE TABLE toolnexus_signal (id COUNTER, run BIGINT NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX toolnexus_signal_run ON toolnexus_signal (run)",
    """CREATE TABLE toolnexus_grant (
        id KEY, runtime BIGINT NOT NULL, name NAME NOT NULL, body TEXT NOT NULL,
        UNIQUE (runtime, name))""",
    "CREATE TABLE toolnexus_schema (version BIGINT NOT NULL)",
    "INSERT INTO toolnexus_schema (version) VALUES (0)",
)

MIGRATIONS: Final = {1: _FIRST}
"""What makes each schema of the one before."""

_VERSION: Final = "SELECT version FROM toolnexus_schema"
_SET_VERSION: Final = "UPDATE toolnexus_schema SET version = ?"


Migrations: TypeAlias = Mapping[int, Sequence[str]]


def is_current(session: Session, migrations: Migrations = MIGRATIONS) -> bool:
    """Say whether the tables, which there are, are of this release.

    Raises:
        StoreError: They are of a newer one.
    """
    found, current = _version(session), max(migrations)
    if found > current:
        raise StoreError(
            f"the store has schema {found}, and this release reads up to {current};"
            " nothing was changed"
        )
    return found == current


def migrate(session: Session, *, is_new: bool, migrations: Migrations = MIGRATIONS) -> None:
    """Make the tables, or those of this release of older ones.

    Raises:
        StoreError: They are of a newer release.
    """
    if not is_new and is_current(session, migrations):
        return
    found, current = 0 if is_new else _version(session), max(migrations)
    for version in range(found + 1, current + 1):
        for statement in migrations[version]:
            session.run(statement)
    session.run(_SET_VERSION, current)


def _version(session: Session) -> int:
    row = session.row(_VERSION)
    return 0 if row is None else int(row[0])
