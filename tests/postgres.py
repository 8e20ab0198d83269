"""A PostgreSQL server for tests: started, stopped and thrown away by them."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

USER = "toolnexus"
PROGRAMS = Path("/usr/lib/postgresql")
LIMIT = 60.0
POLL_SECONDS = 0.02


class Postgres:
    """A server that listens on a socket in a directory of its own."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs = programs
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {"cwd": directory}
        if os.geteuid() == 0:  # as whom the server refuses to run
            account = unprivileged()
            os.chown(directory, account.pw_uid, account.pw_gid)
            self._as |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._run("initdb", "-D", "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")

    def conninfo(self, **more: str) -> str:
        """Return what leads to the server's first database."""
        parts = {"host": str(self._directory), "user": USER, "dbname": "postgres", **more}
        return make_conninfo("", **parts)

    def schema(self, name: str) -> str:
        """Make a schema, unless it is there; return a conninfo for which there is no other."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            statement = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name))
            try:
                connection.execute(statement)
            except psycopg.errors.UniqueViolation:  # another process makes it just now
                connection.execute(statement)
        return self.conninfo(options=f"-csearch_path={name}")

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        where = ("-D", "data", "-k", str(self._directory), "-h", "", "-F")
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", *where], stdout=log, stderr=log, **self._as
            )
        until = time.monotonic() + LIMIT
        while True:
            try:
                psycopg.connect(self.conninfo(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                is_late = time.monotonic() > until or self._process.poll() is not None
                assert not is_late, (self._directory / "log").read_text()
            threading.Event().wait(POLL_SECONDS)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and all its sessions at once; `SIGQUIT` is a crash."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(LIMIT)
            finally:
                process.kill()

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._programs / program, *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT, **self._as)


def programs() -> Path | None:
    """Return the directory of the server's programs; None where it is not installed."""
    found = [path.parent for path in PROGRAMS.glob("*/bin/initdb")]
    in_path = shutil.which("initdb")
    if in_path is not None:
        found.append(Path(in_path).resolve().parent)
    return max(found, key=version, default=None)


def version(path: Path) -> int:
    number = re.search(r"/(\d+)/bin$", str(path))
    return int(number[1]) if number else 0


def unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError("there is no user postgres or nobody to run the server as")


@contextmanager
def server(found: Path) -> Iterator[Postgres]:
    """Start a server with nothing in it."""
    # Not below pytest's directories: only their owner may enter those.
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        made = Postgres(found, Path(directory))
        made.start()
        try:
            yield made
        finally:
            made.stop()
