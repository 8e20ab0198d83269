"""The examples behind four workers that share a store: any of them answers, none is needed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from tests.conftest import LIMIT
from tests.web.conftest import Server
from tests.web.sites import (
    DJANGO,
    FLASK,
    MODEL,
    Framework,
    Site,
    Visitor,
    is_alive,
    pid_of,
    served,
    until,
)
from toolnexus.testing import ScriptedLlm, text, tool_call

Place = Callable[[Framework], Path]
ASKED = tool_call("refund", {"amount": 80, "customer": "Ann"})
LEASE_MS = 500
"""So short that a command which is started after a kill finds it over, as a rule."""

WORKERS = {
    "sync": ("-w", "4"),
    "gthread": ("-w", "4", "-k", "gthread", "--threads", "2"),
}


@pytest.fixture(params=[FLASK, DJANGO], ids=["flask", "django"])
def framework(request: pytest.FixtureRequest) -> Framework:
    found: Framework = request.param
    return found


@attrs.frozen
class Shared:
    """What the workers of a site share: the store of its runs, the place of its tables."""

    store: str
    variables: dict[str, str]


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    if request.param == "sqlite":
        return Shared(f"sqlite:///{tmp_path / 'runs.db'}", {})
    variables = request.getfixturevalue("server").database()
    return Shared(store_in(variables), variables)


def store_in(variables: Mapping[str, str]) -> str:
    host = quote(variables["PGHOST"], safe="")
    return f"postgresql://{variables['PGUSER']}@/{variables['PGDATABASE']}?host={host}"


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keep a worker from taking anything, as one that is busy."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("preload", [(), ("--preload",)], ids=["plain", "preload"])
@pytest.mark.parametrize("workers", WORKERS)
def test_another_worker_answers_and_yet_another_outlives_a_kill(
    llm: ScriptedLlm,
    place: Place,
    framework: Framework,
    shared: Shared,
    workers: str,
    preload: tuple[str, ...],
) -> None:
    arguments = (*WORKERS[workers], *preload)
    options: dict[str, Any] = {"store": shared.store, "lease_ms": LEASE_MS}
    folder = place(framework)
    with served(
        framework, llm, folder, *arguments, variables=shared.variables, **options
    ) as site:
        ann = site.visitor()
        answer_elsewhere(site, ann, llm)
        kill_in_mid_turn(site, ann, llm)
        assert site.refunds() == [("Ann", 80), ("Ann", 80)]
    llm.assert_done()


def answer_elsewhere(site: Site, ann: Visitor, llm: ScriptedLlm) -> None:
    """Start a run in one worker and answer in another one; the same again is the same."""
    llm.say(MODEL, ASKED, text("Ann has her money."))
    run_id, first = ann.start()
    asked = ann.wait_open()
    assert ann.wait_status(run_id, "pending")["open"] == [asked]
    with stopped(first):
        answered = ann.post(f"/requests/{asked['id']}", {"ok": True})
        assert answered.status_code == 200, answered.text
        assert pid_of(answered) != first
        assert ann.wait_status(run_id, "done")["text"] == "Ann has her money."
    assert ann.answer(asked["id"], ok=True) == 200
    assert ann.answer(asked["id"], ok=False) == 409
    assert site.refunds() == [("Ann", 80)]


def kill_in_mid_turn(site: Site, ann: Visitor, llm: ScriptedLlm) -> None:
    """Kill the worker that goes on after a yes, while the model thinks."""
    before = len(llm.requests)
    llm.say(MODEL, ASKED, text("lost").held_by(threading.Event()), text("Ann has it again."))
    run_id, _ = ann.start()
    asked = ann.wait_open()
    answered = ann.post(f"/requests/{asked['id']}", {"ok": True})
    assert answered.status_code == 200, answered.text
    llm.wait_asked(MODEL, before + 2)
    if site.framework is DJANGO and "PGDATABASE" in site.environment:
        # The run's worker has given its connection back, and keeps none while the model thinks.
        until(lambda: site.connections() == 0, "a connection is kept")
    os.kill(pid_of(answered), signal.SIGKILL)

    said: list[str] = []

    def recovered() -> bool:
        said.append(site.recover())
        return run_id in said[-1]

    until(recovered, "nobody takes it over", said)
    assert ann.wait_status(run_id, "done")["text"] == "Ann has it again."
    assert ann.answer(asked["id"], ok=True) == 200
    assert len(llm.requests) == before + 3


ONE_OF_EACH = pytest.mark.parametrize(
    ("framework", "shared"),
    [(FLASK, "postgres"), (DJANGO, "sqlite")],
    ids=["flask-postgres", "django-sqlite"],
    indirect=True,
)


@pytest.fixture
def site(
    llm: ScriptedLlm, place: Place, framework: Framework, shared: Shared
) -> Iterator[Site]:
    """Four workers whose leases are as long as they are by default."""
    options: dict[str, Any] = {"store": shared.store, "variables": shared.variables}
    with served(framework, llm, place(framework), *WORKERS["sync"], **options) as found:
        yield found


@ONE_OF_EACH
def test_of_many_clicks_at_once_one_counts(site: Site, llm: ScriptedLlm) -> None:
    llm.say(MODEL, ASKED, text("Done."))
    ann = site.visitor()
    run_id, _ = ann.start()
    asked = ann.wait_open()
    people = [site.visitor() for _ in range(8)]
    start = threading.Barrier(8)

    def click(number: int) -> tuple[bool, int, int]:
        ok = number % 2 == 0
        start.wait(LIMIT)
        response = people[number].post(f"/requests/{asked['id']}", {"ok": ok})
        return ok, response.status_code, pid_of(response)

    with ThreadPoolExecutor(8) as threads:
        clicks = list(threads.map(click, range(8)))
    told = ann.wait_status(run_id, "done")
    (counted,) = {ok for ok, status, _ in clicks if status == 200}
    assert {(ok, status) for ok, status, _ in clicks} == {(counted, 200), (not counted, 409)}
    assert told["text"] == "Done."
    assert site.refunds() == [("Ann", 80)] * counted
    llm.assert_done()


@ONE_OF_EACH
def test_what_a_worker_leaves_at_its_end_waits_for_no_lease(
    site: Site, llm: ScriptedLlm
) -> None:
    llm.say(MODEL, text("lost").held_by(threading.Event()), text("Nothing to do."))
    ann = site.visitor()
    run_id, pid = ann.start()
    llm.wait_asked(MODEL)
    os.kill(pid, signal.SIGTERM)
    until(lambda: not is_alive(pid), "the worker lives on")
    assert site.recover() == f"{run_id}: done\n"
    assert ann.wait_status(run_id, "done")["text"] == "Nothing to do."
    assert site.recover().startswith("nothing to recover in ")


@ONE_OF_EACH
def test_a_process_beside_the_server_looks_again_and_again(
    llm: ScriptedLlm, place: Place, framework: Framework, shared: Shared
) -> None:
    llm.say(MODEL, text("lost").held_by(threading.Event()), text("Nothing to do."))
    options: dict[str, Any] = {"store": shared.store, "lease_ms": LEASE_MS}
    options["variables"] = shared.variables
    with (
        served(framework, llm, place(framework), *WORKERS["sync"], **options) as site,
        site.recovering(0.1) as said,
    ):
        ann = site.visitor()
        run_id, pid = ann.start()
        llm.wait_asked(MODEL)
        os.kill(pid, signal.SIGKILL)
        line = said.readline()
        if line.startswith("nothing t"):  # yet, for its lease lasts
            line = said.readline()  # its first look came before the lease was over
        assert line == f"{run_id}: taken over\n"
        assert ann.wait_status(run_id, "done")["text"] == "Nothing to do."


def test_a_worker_that_is_killed_in_a_tool_costs_no_second_refund(
    llm: ScriptedLlm, place: Place, server: Server
) -> None:
    llm.say(MODEL, ASKED, text("Ann has her money."))
    variables = server.database()
    options: dict[str, Any] = {"store": store_in(variables), "lease_ms": LEASE_MS}
    folder = place(DJANGO)
    with served(DJANGO, llm, folder, "-w", "2", variables=variables, **options) as site:
        ann = site.visitor()
        run_id, _ = ann.start()
        asked = ann.wait_open()
        with site.locking():
            answered = ann.post(f"/requests/{asked['id']}", {"ok": True})
            assert answered.status_code == 200, answered.text
            until(site.is_waiting, "the tool never writes")
            os.kill(pid_of(answered), signal.SIGKILL)
        until(lambda: run_id in site.recover(), "nobody takes it over")
        assert ann.wait_status(run_id, "done")["text"] == "Ann has her money."
        assert site.refunds() == [("Ann", 80)]
    llm.assert_done()
