"""Runs in an SQLite file: one machine, any number of processes. The only user of `sqlite3`."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Final, Literal, TypeAlias, TypeVar, get_args

from toolnexus.clock import Clock, RealClock, Signal
from toolnexus.errors import ConfigError, StoreError
from toolnexus.process import ProcessBound, watch
from toolnexus.stores.files import plain_path
from toolnexus.stores.sql import schema
from toolnexus.stores.sql.session import Row, Session
from toolnexus.stores.sql.store import SqlStore
from toolnexus.stores.sql.values import readable, to_micros

T = TypeVar("T")

Synchronous: TypeAlias = Literal["full", "normal"]
"""What a write waits for: that the disk has it, or that the system has it."""

_OLDEST: Final = (3, 35)  # the first with RETURNING
_IDLE_MAX: Final = 8
_STATEMENTS: Final = 256  # more than there are; each is prepared once for a connection
_NAP_SECONDS: Final = 0.01
_FORK_SECONDS: Final = 30.0  # more than a transaction takes
_REAL: Final = RealClock()

_HAS_TABLES: Final = "SELECT 1 FROM sqlite_master WHERE name = 'toolnexus_schema'"
_SYNCHRONOUS: Final = {
    "full": "PRAGMA synchronous = FULL",
    "normal": "PRAGMA synchronous = NORMAL",
}

# A child's copies of connections that its parent has opened. They are kept for good: to close
# one, or to let it be collected, would write to the file and take the parent's locks off it.
_inherited: Final[list[sqlite3.Connection]] = []


class SqliteStore(SqlStore):
    """Keeps runs in one file, for any number of threads and processes of one machine.

    The file is made by the first call, with two more beside it that end in `-wal` and `-shm`.
    It has to be on a local disk: SQLite's locks do not work on network file systems.

    Attributes:
        path: The file's absolute path.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "full",
        timeout: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        """Keep runs in the file `path`, whose directory has to be there.

        Args:
            path: The file.
            synchronous: What a write that has returned survives. `full`: also a power cut,
                but for leases, which the processes that have them do not survive either.
                `normal`: the end of the process, however it ends; of the writes before a power
                cut the last ones may be missing, and what is there is consistent.
            timeout: Seconds for which a call waits where another process, or other threads,
                write; then it raises `StoreError`.
            clock: Tells leases their time; None for the machine's. All who share the file have
                to go by the same time.

        Raises:
            ConfigError: An argument makes no sense, such as a URL in place of the path, or this
                Python's SQLite is too old.
        """
        if synchronous not in get_args(Synchronous):
            raise ConfigError(f"synchronous is full or normal, not {synchronous!r}")
        if not timeout > 0:
            raise ConfigError(f"timeout must be more than 0 seconds, not {timeout!r}")
        self.path: Final = os.path.abspath(plain_path(path))
        super().__init__(FileDatabase(self.path, synchronous, timeout, clock or _REAL))

    def __repr__(self) -> str:
        return f"SqliteStore({self.path!r})"


class FileDatabase(ProcessBound):
    """Connections to one file, borrowed for the time of a transaction."""

    # Others may have to write before they are ready for a fork.
    forks_last = True
    _is_only = False  # whether a connection cannot be replaced

    def __init__(
        self, path: str, synchronous: Synchronous, timeout: float, clock: Clock
    ) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise ConfigError(
                f"SQLite {oldest} or newer is needed, this Python has {sqlite3.sqlite_version}"
            )
        self._path = path
        self._synchronous = synchronous
        self._timeout = timeout
        self._clock = clock
        self._start()
        watch(self)

    def _start(self) -> None:
        # Who has it writes. SQLite lets waiting writers try again now and then, in no order;
        # a lock wakes the next thread at once.
        self._writer = threading.RLock()
        self._lock = threading.Lock()
        # -- guarded by _lock ------------------------------------------
        # Notified when the last transaction ends under a fork, and when a fork is over.
        self._changed = threading.Condition(self._lock)
        self._idle: list[_Connection] = []
        self._inside = 0  # transactions under way
        self._forks = 0
        self._is_ready = False

    # -- transactions -----------------------------------------------------------------------

    def read(self, work: Callable[[Session], T]) -> T:
        """Run work that only reads; all its statements see the same state."""
        return self._transact("BEGIN", work, None)

    def write(self, work: Callable[[Session], T], *, is_light: bool = False) -> T:
        """Run work and commit it."""
        writer = self._writer  # a fork in between would leave another one there
        try:
            if not writer.acquire(timeout=self._timeout):
                why = f"other threads have been writing for {self._timeout:g} seconds"
                raise StoreError(f"{self._path}: {why}")
            # The next write that waits for the disk has it wait for this one too.
            synchronous = "normal" if is_light else self._synchronous
            return self._transact("BEGIN IMMEDIATE", work, synchronous)
        finally:
            # Ctrl-C may come with the lock, before it is known to be there.
            try:  # noqa: SIM105 - nothing may come between, and a function may be stopped
                writer.release()
            except RuntimeError:
                pass  # it is not this thread's

    def _transact(
        self, begin: str, work: Callable[[Session], T], synchronous: Synchronous | None
    ) -> T:
        """Run work in a transaction; a connection that has failed is not used again."""
        connection = self._enter()
        is_sound = False
        try:
            if connection is None:
                connection = self._opened()
            connection.begin(begin, synchronous)
            result = work(connection)
            connection.execute("COMMIT")
            is_sound = True
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise self._told(error) from None
        except Exception:
            is_sound = True  # it was the work that failed
            raise
        else:
            return result
        finally:
            is_over = _ended(connection)
            self._leave(connection, is_sound=is_over and (is_sound or self._is_only))

    def _enter(self) -> _Connection | None:
        with self._lock:
            while self._forks:
                self._changed.wait()
            self._inside += 1
            return self._idle.pop() if self._idle else None

    def _leave(self, connection: _Connection | None, *, is_sound: bool) -> None:
        with self._lock:
            is_kept = is_sound and len(self._idle) < _IDLE_MAX
            if is_kept and connection is not None:
                self._idle.append(connection)
                self._left_locked()
                return
        # Closed while it counts as under way: a fork must not meet it half closed.
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()
        with self._lock:
            self._left_locked()

    def _left_locked(self) -> None:
        self._inside -= 1
        if self._forks and not self._inside:
            self._changed.notify_all()

    # -- connections ------------------------------------------------------------------------

    def _opened(self) -> _Connection:
        """Open the file, which may be new, or of an older release, or no store at all."""
        limit = _REAL.monotonic() + self._timeout
        while True:
            try:
                return self._open()
            except sqlite3.OperationalError as error:
                # Where several open a new file at once, SQLite does not wait by itself.
                is_busy = "locked" in str(error)
                if not is_busy or _REAL.monotonic() > limit:
                    raise
            _REAL.wait(Signal(), _NAP_SECONDS)

    def _open(self) -> _Connection:
        connection = sqlite3.connect(
            self._path,
            timeout=self._timeout,
            isolation_level=None,  # transactions are ours
            check_same_thread=False,  # one thread at a time has it
            cached_statements=_STATEMENTS,
            factory=_Connection,
        )
        try:
            connection.text_factory = readable
            clock = self._clock  # and not this object, which its connection would keep alive
            connection.tell_time(lambda: to_micros(clock.now()))
            if not self._is_ready:
                self._prepare(connection)
                self._is_ready = True
        except BaseException:
            with suppress(sqlite3.Error):
                connection.close()
            raise
        return connection

    def _prepare(self, session: _Connection) -> None:
        """Bring the tables up to this release; those of a newer one are not touched."""
        is_new = session.row(_HAS_TABLES) is None
        is_current = not is_new and schema.is_current(session)
        session.execute("PRAGMA journal_mode = WAL").fetchall()
        if is_current:
            return
        session.begin("BEGIN IMMEDIATE", self._synchronous)
        try:
            # Once more: another process may have been first.
            schema.migrate(session, is_new=session.row(_HAS_TABLES) is None)
            session.execute("COMMIT")
        finally:
            _ended(session)

    def _told(self, error: Exception) -> StoreError:
        if isinstance(error, UnicodeEncodeError):
            return StoreError(f"{self._path}: an id is not valid Unicode")
        directory = os.path.dirname(self._path)
        if not os.path.isdir(directory):
            return StoreError(f"{self._path}: there is no directory {directory!r}")
        what = str(error)
        if "locked" in what:
            what = f"another process has been writing for {self._timeout:g} seconds ({what})"
        return StoreError(f"{self._path}: {what}; nothing was changed")

    # -- processes --------------------------------------------------------------------------

    def close(self) -> None:
        """Close idle connections. Idempotent; later work opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._is_ready = False
            self._inside += 1  # a fork waits until they are closed
        for connection in idle:
            with suppress(sqlite3.Error):
                connection.close()
        with self._lock:
            self._left_locked()

    def before_fork(self) -> None:
        """Close all connections: those that are open would share their locks with the child's.

        SQLite keeps a process's locks on a file in one place. A child that opened the file
        anew would find there that it has them already, which is true only of its parent.
        """
        with self._changed:
            self._forks += 1
            # Not for ever: a transaction that Ctrl-C has stopped may still be counted.
            self._changed.wait_for(lambda: not self._inside, _FORK_SECONDS)
        self.close()

    def after_fork_in_parent(self) -> None:
        """Let transactions begin again."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def after_fork(self) -> None:
        """Start with nothing; what the parent has left open is never touched again."""
        _inherited.extend(self._idle)
        self._start()

    def at_exit(self) -> None:
        """Close what is open, so that the file is whole without the one beside it."""
        self.close()


class MemoryDatabase(FileDatabase):
    """One connection, which is the database."""

    _is_only = True
    _made: _Connection | None = None

    def __init__(self, clock: Clock) -> None:
        super().__init__(":memory:", "normal", threading.TIMEOUT_MAX, clock)

    def read(self, work: Callable[[Session], T]) -> T:
        """Run work that only reads, alone: there is one connection."""
        return self.write(work)

    def close(self) -> None:
        """Do nothing: what is in memory would be gone."""

    def after_fork(self) -> None:
        """Go on with a copy: no lock of the system belongs to it."""
        kept = self._idle
        self._start()
        self._idle = kept

    def _enter(self) -> _Connection | None:
        # One that Ctrl-C has kept from coming back is still the only one.
        return super()._enter() or self._made

    def _open(self) -> _Connection:
        self._is_ready = False
        self._made = connection = super()._open()
        weakref.finalize(self, connection.close)
        return connection


class _Connection(sqlite3.Connection):
    """A connection as a session: one transaction after another."""

    def tell_time(self, time: Callable[[], int]) -> None:
        """Have `store_time()` give what `time` gives, the same within a transaction."""
        self._synchronous: Synchronous | None = None
        self._time = time
        self._now: dict[str, int] = {}
        # Nothing of it is Python: Ctrl-C in the middle of a function would be its failure.
        self.create_function("store_time", 0, partial(self._now.get, "now"))

    def begin(self, begin: str, synchronous: Synchronous | None) -> None:
        """Begin a transaction, whose commit waits for what `synchronous` says."""
        if synchronous is not None and synchronous != self._synchronous:
            self.execute(_SYNCHRONOUS[synchronous])
            self._synchronous = synchronous
        self.execute(begin)
        # Not before: it may have waited for another writer.
        self._now["now"] = self._time()

    def rows(self, statement: str, *values: object) -> Sequence[Row]:
        """See `Session`; these do what is said there."""
        # All of them: a statement that is not read to its end keeps the transaction open.
        return self.execute(_translated(statement), values).fetchall()

    def row(self, statement: str, *values: object) -> Row | None:
        rows = self.execute(_translated(statement), values).fetchall()
        return rows[0] if rows else None

    def run(self, statement: str, *values: object) -> int:
        return self.execute(_translated(statement), values).rowcount

    def many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        self.executemany(_translated(statement), rows)


@lru_cache(maxsize=_STATEMENTS)
def _translated(statement: str) -> str:
    words = {
        "id KEY": "id INTEGER PRIMARY KEY",
        "id COUNTER": "id INTEGER PRIMARY KEY AUTOINCREMENT",
        " NAME": " TEXT",
        "FOR UPDATE": "",
    }
    for ours, theirs in words.items():
        statement = statement.replace(ours, theirs)
    return statement


def _ended(connection: sqlite3.Connection | None) -> bool:
    """End a transaction that was not committed; say whether the connection is fit for use."""
    if connection is None:
        return False
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return True
