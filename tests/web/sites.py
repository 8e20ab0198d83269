"""The example applications behind gunicorn, and a client that speaks HTTP with them."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import attrs
import psycopg
import requests

from tests.conftest import LIMIT
from tests.web.apps import PID
from toolnexus.testing import ScriptedLlm

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
MODEL = "gpt-4o-mini"
SECONDS = 30.0
"""Limit for child interpreters to start on a busy machine."""


@attrs.frozen
class Framework:
    """How an example is served.

    Attributes:
        name: Of the framework.
        folder: Where the example is.
        target: What gunicorn is given.
        command: What recovers runs.
        table: Where the refunds are.
    """

    name: str
    folder: Path
    target: str
    command: tuple[str, ...]
    table: str

    def environment(
        self, llm: ScriptedLlm, place: Path, options: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return the variables for a process of the example, whose files are in `place`."""
        given: dict[str, Any] = {"base_url": llm.base_url, "api_key": "test-key", "retries": 0}
        given |= {"store": None, **options}
        kept = {key: value for key, value in os.environ.items() if "API_KEY" not in key}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(self.folder)]),
            "PYTHONWARNINGS": "error",
            "PYTHONDONTWRITEBYTECODE": "1",
            "FLASK_SECRET_KEY": "secret",
            "FLASK_REFUNDS": json.dumps(str(place / "refunds.db")),
            **{f"FLASK_TOOLNEXUS__{key}": json.dumps(value) for key, value in given.items()},
            "DJANGO_SECRET_KEY": "secret",
            "DJANGO_SETTINGS_MODULE": "tests.web.django_settings",
            "TEST_TOOLNEXUS": json.dumps(given),
            "TEST_DATABASE": str(place / "refunds.db"),
        }


FLASK = Framework(
    "flask",
    EXAMPLES / "flask_app",
    "tests.web.apps:make_flask()",
    ("flask", "--app", "app", "toolnexus", "recover"),
    "refunds",
)
DJANGO = Framework(
    "django",
    EXAMPLES / "django_app",
    "tests.web.apps:make_django()",
    ("django", "toolnexus_recover"),
    "refunds_refund",
)


class Visitor:
    """A client of a site: its cookies, and a connection of its own for each request.

    Django's own server closes such a connection without saying so, and has to be spared that.
    """

    def __init__(self, url: str, framework: Framework, *, stays: bool = False) -> None:
        self.url = url
        self.session = requests.Session()
        if not stays:
            self.session.headers["Connection"] = "close"
        self.session.trust_env = False
        if framework is DJANGO:
            self._log_in()

    def _log_in(self) -> None:
        page = f"{self.url}/admin/login/"
        form = {"username": "ann", "password": "ann", "next": "/requests"}
        self.session.get(page, timeout=LIMIT)
        form["csrfmiddlewaretoken"] = self.session.cookies["csrftoken"]
        response = self.session.post(page, data=form, timeout=LIMIT, allow_redirects=False)
        assert response.status_code == 302, response.text
        self.session.headers["X-CSRFToken"] = self.session.cookies["csrftoken"]

    def get(self, path: str) -> requests.Response:
        return self.session.get(self.url + path, timeout=LIMIT)

    def post(self, path: str, body: object) -> requests.Response:
        return self.session.post(self.url + path, json=body, timeout=LIMIT)

    def send(self, path: str, form: Mapping[str, str]) -> requests.Response:
        """Send a form, without the token that a script would add."""
        headers = {"X-CSRFToken": None}
        return self.session.post(self.url + path, data=form, headers=headers, timeout=LIMIT)

    def start(self) -> tuple[str, int]:
        """Start a run; return its id, and the worker that has started it."""
        response = self.post("/runs", {"prompt": "Refund Ann 80 dollars."})
        assert response.status_code == 202, response.text
        return str(response.json()["id"]), pid_of(response)

    def answer(self, request_id: str, ok: bool) -> int:
        return self.post(f"/requests/{request_id}", {"ok": ok}).status_code

    def wait_open(self) -> dict[str, Any]:
        """Wait until one request is open, and return it."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = self.get("/requests").json()["open"]
            return bool(found)

        until(look, "no request opens")
        (one,) = found
        return one

    def wait_status(self, run_id: str, status: str) -> dict[str, Any]:
        """Wait until a run stands so, and return what is told of it."""
        told: dict[str, Any] = {}

        def look() -> bool:
            told.update(self.get(f"/runs/{run_id}").json())
            return bool(told["status"] == status)

        until(look, f"never {status}", told)
        return told


def pid_of(response: requests.Response) -> int:
    return int(response.headers[PID])


def until(
    is_so: Callable[[], bool], problem: str, *seen: object, seconds: float = LIMIT
) -> None:
    """Look again and again; what is looked at has no other way to tell."""
    over = threading.Event()
    limit = threading.Timer(seconds, over.set)
    limit.start()
    try:
        while not is_so():
            assert not over.wait(0.02), (problem, *seen)
    finally:
        limit.cancel()
        limit.join(LIMIT)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@attrs.frozen
class Site:
    """An application that is served.

    Attributes:
        framework: Which.
        url: Where.
        master: The process id of the server's parent process.
        environment: The variables of its processes.
        place: Where its files are.
    """

    framework: Framework
    url: str
    master: int
    environment: Mapping[str, str]
    place: Path

    def visitor(self) -> Visitor:
        return Visitor(self.url, self.framework)

    def refunds(self) -> list[tuple[str, int]]:
        """Return what was refunded."""
        query = f"SELECT customer, amount FROM {self.framework.table}"
        if self.framework is DJANGO and "PGDATABASE" in self.environment:
            return list(self._ask(query))
        with closing(sqlite3.connect(self.place / "refunds.db")) as db:
            # Flask's example makes its table with the first refund.
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            return list(db.execute(query)) if self.framework.table in tables else []

    def connections(self) -> int:
        """Return how many connections Django has with PostgreSQL."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'django'"
        ((count,),) = self._ask(query)
        return int(count)

    @contextmanager
    def locking(self) -> Iterator[None]:
        """Let nobody write a refund."""
        with self._connected() as connection:
            connection.execute(f"LOCK TABLE {self.framework.table} IN EXCLUSIVE MODE".encode())
            yield

    def is_waiting(self) -> bool:
        """Say whether Django waits for a lock."""
        query = """SELECT 1 FROM pg_stat_activity
            WHERE application_name = 'django' AND wait_event_type = 'Lock'"""
        return bool(self._ask(query))

    def _ask(self, query: str) -> list[Any]:
        with self._connected() as connection:
            return connection.execute(query.encode()).fetchall()

    def _connected(self) -> psycopg.Connection:
        known = self.environment
        return psycopg.connect(
            host=known["PGHOST"], user=known["PGUSER"], dbname=known["PGDATABASE"]
        )

    def recover(self) -> str:
        """Run the command that recovers what a dead process has left; return what it says."""
        return run([*self.framework.command], self.framework, self.environment)

    @contextmanager
    def recovering(self, seconds: float) -> Iterator[IO[str]]:
        """Run the command again and again, by itself; yield what it says."""
        with subprocess.Popen(
            [sys.executable, "-u", "-m", *self.framework.command, "--every", str(seconds)],
            cwd=self.framework.folder,
            env=dict(self.environment),
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            watchdog = threading.Timer(SECONDS, process.kill)
            watchdog.start()
            try:
                assert process.stdout is not None
                yield process.stdout
            finally:
                watchdog.cancel()
                watchdog.join()
                process.kill()


def run(command: list[str], framework: Framework, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=framework.folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MAKE_USER = """
from django.contrib.auth import get_user_model
get_user_model().objects.create_superuser("ann", "ann@example.org", "ann")
"""


def prepare(environment: Mapping[str, str]) -> None:
    """Make the tables of the Django example, and a user."""
    run(["django", "migrate", "-v0"], DJANGO, environment)
    run(["django", "shell", "-v0", "-c", MAKE_USER], DJANGO, environment)


@contextmanager
def served(
    framework: Framework,
    llm: ScriptedLlm,
    place: Path,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Site]:
    """Serve an example by gunicorn with these arguments; it ends well in the end."""
    environment = {**framework.environment(llm, place, options), **(variables or {})}
    command = ["gunicorn", *arguments, "--bind", "127.0.0.1:0", "--log-level", "info"]
    with subprocess.Popen(
        [sys.executable, "-m", *command, framework.target],
        cwd=framework.folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watchdog = threading.Timer(2 * SECONDS, process.kill)
        watchdog.start()
        try:
            assert process.stderr is not None
            said = ""
            while (found := re.search(r"Listening at: (http://127.0.0.1:\d+)", said)) is None:
                line = process.stderr.readline()
                assert line, said
                said += line
            yield Site(framework, found[1], process.pid, environment, place)
            process.send_signal(signal.SIGTERM)
            said += process.communicate(timeout=LIMIT)[1]
            assert process.returncode == 0, said
            assert "Traceback" not in said, said
        finally:
            watchdog.cancel()
            watchdog.join()
            process.kill()
