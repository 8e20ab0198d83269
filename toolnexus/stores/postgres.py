"""Runs in PostgreSQL: any number of machines. The extra `toolnexus[postgres]`.

The only user of psycopg, which is imported when a store is made.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toolnexus.errors import ConfigError, StoreError
from toolnexus.process import ProcessBound, watch
from toolnexus.stores.patience import (
    SILENCE_SECONDS,
    Silent,
    has_limit_of_its_own,
    limited,
    limits_beside,
)
from toolnexus.stores.sql import schema
from toolnexus.stores.sql.session import Outdated, Row, Session
from toolnexus.stores.sql.store import SqlStore

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool

T = TypeVar("T")

_ATTEMPTS: Final = 20
"""How often a transaction is begun anew that others got in the way of."""

_STATEMENTS: Final = 512
_EXIT_SECONDS: Final = 0.5
_PROBE_SECONDS: Final = 2  # the least that libpq takes for a limit
_LOCK: Final = 0x746F6F6C  # any number that other programs do not lock

# Every statement has its index. The server would read tables that are small whole, and goes on
# to do so for as long as it remembers the plan, while they grow.
_BEGIN_READ: Final = """BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET LOCAL enable_seqscan = off"""
_BEGIN_WRITE: Final = """BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
    SET LOCAL enable_seqscan = off"""
# Unless the database or its user has a limit. Not among the options of a connection, which a
# pooler in between may refuse.
_LIMIT: Final = """; SELECT set_config('statement_timeout', '60s', true)
    WHERE current_setting('statement_timeout') = '0'"""
# From a table, for what another session has made since shows only to who opens one.
_HAS_TABLES: Final = "SELECT 1 FROM pg_class WHERE oid = to_regclass('toolnexus_schema')"
_LIMIT_LOCK: Final = b"SET LOCAL lock_timeout = '60s'"
_LOCK_TABLES: Final = "SELECT pg_advisory_xact_lock(?)"

# What a child has inherited of its parent's pools. They are kept for good: what is collected
# is closed, and would take leave of the server on its parent's connection.
_inherited: Final[list[object]] = []


class PostgresStore(SqlStore):
    """Keeps runs in a PostgreSQL database, for any number of processes and machines.

    The tables are made by the first call, in the schema that comes first in the search path.
    All times are those of the server. A call that meets a connection that has died, as all do
    when the server is restarted, gets another one and is done once more, unless it was about
    to be committed: whether that has happened nobody knows, and it raises `StoreError`.

    A server that hangs holds nobody up for ever: connections have TCP keepalives and time
    limits, a statement may take a minute, and one without a reply for longer raises. A
    conninfo that says otherwise of one of these wins.
    """

    def __init__(self, conninfo: str, *, pool_size: int = 8, timeout: float = 10.0) -> None:
        """Keep runs in the database that `conninfo` leads to; nothing is opened yet.

        Args:
            conninfo: As libpq reads it: a URL, or `host=... dbname=...`.
            pool_size: How many connections a process has open at most.
            timeout: Seconds for which a call waits for a connection.

        Raises:
            ConfigError: psycopg is not installed, or an argument makes no sense.
        """
        if type(pool_size) is not int or pool_size < 1:
            raise ConfigError(f"pool_size must be a number from 1 on, not {pool_size!r}")
        if not timeout > 0:
            raise ConfigError(f"timeout must be more than 0 seconds, not {timeout!r}")
        self._place = _place(conninfo)
        super().__init__(PoolDatabase(conninfo, self._place, pool_size, timeout))

    def __repr__(self) -> str:
        return f"PostgresStore({str(self._place)!r})"


class _Place:
    """Where a database is, without the password."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    def __str__(self) -> str:
        user, host, port, name = (
            str(self.parts.get(part) or "") for part in ("user", "host", "port", "dbname")
        )
        before = f"{user}@" if user else ""
        return f"postgresql://{before}{host}{port and ':' + port}/{name}"

    def without_secrets(self, text: str) -> str:
        """Return a text of the driver's in which no password stands."""
        for part in ("password", "sslpassword"):
            secret = self.parts.get(part)
            if secret:
                text = text.replace(str(secret), "***")
        return text


class PoolDatabase(ProcessBound):
    """Connections to one database, borrowed for the time of a transaction."""

    def __init__(self, conninfo: str, place: _Place, pool_size: int, timeout: float) -> None:
        self._conninfo = conninfo
        self._place = place
        given = place.parts
        self._limits = limits_beside(given, os.environ)
        has_its_own = has_limit_of_its_own(given, os.environ)
        self._limit = "" if has_its_own else _LIMIT
        # Seconds without a reply, after which a connection is given up.
        self.patience = math.inf if has_its_own else SILENCE_SECONDS
        self._pool_size = pool_size
        self._timeout = timeout
        # Guards _pool; held while the first connection is made.
        self._lock = threading.Lock()
        self._pool: ConnectionPool | None = None
        watch(self)

    # -- transactions -----------------------------------------------------------------------

    def read(self, work: Callable[[Session], T]) -> T:
        """Run work that only reads; all its statements see the same state."""
        return self._run(_BEGIN_READ + self._limit, work)

    def write(self, work: Callable[[Session], T], *, is_light: bool = False) -> T:  # noqa: ARG002
        """Run work and commit it; nothing of it is light, for leases outlive this machine."""
        return self._run(_BEGIN_WRITE + self._limit, work)

    def _run(self, begin: str, work: Callable[[Session], T]) -> T:
        from psycopg import errors

        has_died = False
        for _ in range(_ATTEMPTS):
            try:
                return self._run_once(begin, work)
            except (
                Outdated,
                errors.DeadlockDetected,
                errors.SerializationFailure,
                # Two were the first with one id. Now that one of them is there, it is found.
                errors.UniqueViolation,
            ):
                continue
            except _Died as died:
                if has_died or died.is_silent:
                    raise self._told(died.cause) from None
                has_died = True
                # The others in the pool have died of the same.
                self._opened().check()
            except (errors.Error, UnicodeEncodeError) as error:
                raise self._told(error) from None
        raise StoreError(f"{self._place}: others were in the way {_ATTEMPTS} times in a row")

    def _run_once(self, begin: str, work: Callable[[Session], T]) -> T:
        from psycopg import errors

        with self._borrowed() as connection:
            is_ending = False
            try:
                connection.execute(begin.encode())
                result = work(_PgSession(connection))
                is_ending = True
                connection.execute(b"COMMIT")
            except (errors.OperationalError, errors.InterfaceError) as error:
                if not connection.broken:
                    raise
                if is_ending and begin.startswith(_BEGIN_WRITE):
                    raise StoreError(
                        f"{self._place}: the connection died while a change was committed;"
                        " it may have happened or not"
                    ) from None
                raise _Died(error, is_silent=connection.is_silent) from None
            finally:
                with suppress(errors.Error):
                    connection.rollback()
            return result

    @contextmanager
    def _borrowed(self) -> Iterator[Any]:
        from psycopg_pool import PoolTimeout

        pool = self._opened()
        try:
            connection = pool.getconn(self._timeout)
        except PoolTimeout:
            raise self._why_none() from None
        try:
            yield connection
        finally:
            pool.putconn(connection)

    # -- connections ------------------------------------------------------------------------

    def _opened(self) -> ConnectionPool:
        from psycopg_pool import ConnectionPool

        with self._lock:
            if self._pool is None:
                self._prepare()
                self._pool = ConnectionPool(
                    self._conninfo,
                    connection_class=_patient(self.patience),
                    kwargs={"autocommit": True, "client_encoding": "utf8", **self._limits},
                    min_size=0,
                    max_size=self._pool_size,
                    name="toolnexus",
                    open=True,
                )
            return self._pool

    def _prepare(self) -> None:
        """Bring the tables up to this release; those of a newer one are not touched.

        On a connection of its own, for a pool does not say why it gets none.
        """
        from psycopg import Error

        try:
            with self._connected(max(_PROBE_SECONDS, math.ceil(self._timeout))) as connection:
                session = _PgSession(connection)
                if session.row(_HAS_TABLES) is not None and schema.is_current(session):
                    return
                with connection.transaction():
                    connection.execute(_LIMIT_LOCK)
                    session.rows(_LOCK_TABLES, _LOCK)
                    schema.migrate(session, is_new=session.row(_HAS_TABLES) is None)
        except Error as error:
            raise self._told(error) from None

    def _connected(self, limit_seconds: int) -> Connection:
        limits = dict(self._limits)
        if "connect_timeout" in limits:
            limits["connect_timeout"] = limit_seconds
        made: Connection = _patient(self.patience).connect(
            self._conninfo, autocommit=True, client_encoding="utf8", **limits
        )
        return made

    def _why_none(self) -> StoreError:
        from psycopg import Error

        try:
            self._connected(_PROBE_SECONDS).close()
        except Error as error:
            return self._told(error)
        return StoreError(
            f"{self._place}: all {self._pool_size} connections have been in use for"
            f" {self._timeout:g} seconds"
        )

    def _told(self, error: Exception) -> StoreError:
        if isinstance(error, UnicodeEncodeError):
            return StoreError(f"{self._place}: an id is not valid Unicode")
        # Without what it calls details: they have values of the record.
        told = getattr(getattr(error, "diag", None), "message_primary", None) or str(error)
        what = self._place.without_secrets(" ".join(told.split()))
        return StoreError(f"{self._place}: {what}")

    # -- processes --------------------------------------------------------------------------

    def close(self) -> None:
        """Close idle connections. Idempotent; later work opens new ones."""
        self._close(self._timeout)

    def _close(self, timeout: float) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(timeout)

    def after_fork(self) -> None:
        """Start with nothing: the pool's threads and connections are the parent's."""
        _inherited.append(self._pool)
        self._lock = threading.Lock()
        self._pool = None

    def at_exit(self) -> None:
        """Take leave of the server."""
        self._close(_EXIT_SECONDS)


class _Died(Exception):
    """A connection has died, and nothing was committed on it."""

    def __init__(self, cause: Exception, *, is_silent: bool) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_silent = is_silent


@lru_cache(maxsize=4)
def _patient(seconds: float) -> Any:
    """Return a class of connections that give a silent server up: its driver waits for ever."""
    from psycopg import Connection, OperationalError

    class Patient(Connection):
        is_silent = False

        def wait(self, gen: Any, *args: Any, **more: Any) -> Any:
            try:
                return super().wait(limited(gen, seconds), *args, **more)
            except Silent:
                self.is_silent = True
                self.pgconn.finish()
                raise OperationalError(
                    f"the server has not replied for {seconds:g} seconds"
                ) from None

    return Patient


class _PgSession:
    """Statements on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, *values: object) -> Sequence[Row]:
        return self._connection.execute(_translated(statement), values).fetchall()

    def row(self, statement: str, *values: object) -> Row | None:
        return self._connection.execute(_translated(statement), values).fetchone()

    def run(self, statement: str, *values: object) -> int:
        return self._connection.execute(_translated(statement), values or None).rowcount

    def many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_translated(statement), rows)


@lru_cache(maxsize=_STATEMENTS)
def _translated(statement: str) -> bytes:
    words = {
        "?": "%s",
        "store_time()": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
        "id KEY": "id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        "id COUNTER": "id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        " NAME": ' TEXT COLLATE "C"',
    }
    for ours, theirs in words.items():
        statement = statement.replace(ours, theirs)
    return statement.encode()


def _place(conninfo: str) -> _Place:
    """Read where a database is.

    Raises:
        ConfigError: psycopg is not installed, or `conninfo` cannot be read; nothing of it is
            quoted.
    """
    try:
        import psycopg_pool  # noqa: F401 - whether it is there
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise ConfigError(
            "psycopg is not installed: pip install 'toolnexus[postgres]'"
        ) from None
    if not isinstance(conninfo, str):
        raise ConfigError(f"the conninfo is a text, not {type(conninfo).__name__}")
    try:
        return _Place(conninfo_to_dict(conninfo))
    except (Error, UnicodeError):
        raise ConfigError(
            "the conninfo of a PostgresStore cannot be read: it is a URL such as"
            " postgresql://user@host/database, or host=... dbname=..."
        ) from None
