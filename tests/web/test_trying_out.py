"""The lines with which a newcomer tries the examples without a key, as the page prints them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.conftest import LIMIT
from tests.web.sites import DJANGO, EXAMPLES, FLASK, ROOT, SECONDS, Framework, Visitor, until

PAGE = ROOT / "docs" / "deploying.md"
RESULT = "I refunded $80 to Ann."


def lines_of(heading: str) -> list[str]:
    """Return the shell blocks below a heading."""
    section = PAGE.read_text("utf-8").partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Desk:
    """A copy of the examples, and a newcomer's shell in the folder of one.

    The ports that the page names may be in use here, so free ones take their places.
    """

    def __init__(self, framework: Framework, port: str, tmp_path: Path) -> None:
        ignored = shutil.ignore_patterns("*.db*", "__pycache__")
        shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=ignored)
        self.folder = tmp_path / "examples" / framework.folder.name
        self.log = tmp_path / "log"
        self._ports = {port: str(free_port()), "8900": str(free_port())}
        self.url = f"http://127.0.0.1:{self._ports[port]}"
        kept = {key: value for key, value in os.environ.items() if "API_KEY" not in key}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        self._environment = {**kept, **own, "NO_PROXY": "127.0.0.1"}

    def shell(self, lines: str) -> dict[str, Any]:
        for said, free in self._ports.items():
            lines = re.sub(rf"\b{said}\b", free, lines)
        return {"args": ["sh", "-ec", lines], "cwd": self.folder, "env": self._environment}

    def ask(self, line: str) -> Any:
        """Run one line that prints JSON."""
        done = subprocess.run(**self.shell(line), stdout=subprocess.PIPE, timeout=LIMIT)
        assert done.returncode == 0, line
        return json.loads(done.stdout)

    @contextmanager
    def serving(self, lines: str) -> Iterator[None]:
        """Run lines of which the first starts the model, and the last one the server."""
        with (
            self.log.open("wb") as log,
            subprocess.Popen(
                **self.shell(lines), stdout=log, stderr=log, start_new_session=True
            ) as process,
        ):
            try:
                for port in self._ports.values():
                    until(lambda at=port: is_up(at), "nobody listens", self, seconds=SECONDS)
                yield
            finally:
                os.killpg(process.pid, signal.SIGKILL)

    def __repr__(self) -> str:
        return self.log.read_text()


def is_up(port: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(port)), LIMIT).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_flask_example_can_be_tried_by_its_lines(tmp_path: Path) -> None:
    served, asked, _ = lines_of("The Flask example")
    header, *asked_for = asked.splitlines()
    start, look, answer, show = (f"{header}; {one}" for one in asked_for)
    desk = Desk(FLASK, "5000", tmp_path)
    with desk.serving(served):
        assert desk.ask(start)["id"] == "root/desk.1"
        found: list[Any] = []

        def is_asked() -> bool:
            found[:] = desk.ask(look)["open"]
            return bool(found)

        until(is_asked, "it asks nothing", desk)
        assert found[0]["prompt"] == "Refund $80 to Ann?"
        assert desk.ask(answer.replace("REQUEST_ID", found[0]["id"]))["ok"] is True
        until(lambda: desk.ask(show)["status"] == "done", "it is never done", desk)
        assert desk.ask(show)["text"] == RESULT
        assert desk.ask(f"curl -s {desk.url}/runs") == {"runs": []}
        assert "Refund Ann 80 dollars." in requests.get(desk.url, timeout=LIMIT).text
    with closing(sqlite3.connect(desk.folder / "refunds.db")) as db:
        assert list(db.execute("SELECT customer, amount FROM refunds")) == [("Ann", 80)]


def test_the_django_example_can_be_tried_by_its_lines(tmp_path: Path) -> None:
    served, _ = lines_of("The Django example")
    desk = Desk(DJANGO, "8000", tmp_path)
    with desk.serving(served):
        ann = Visitor(desk.url, DJANGO, stays=True)
        page = ann.get("/").text
        form = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        prompt = re.search(r'name="prompt" .*? value="([^"]*)"', page)
        assert form is not None
        assert prompt is not None
        token = {"csrfmiddlewaretoken": form[1]}
        assert "root/desk.1" in ann.send("/start", {**token, "prompt": prompt[1]}).text
        asked = ann.wait_open()
        assert "Refund $80 to Ann?" in ann.get("/").text
        ann.send("/answer", {**token, "id": asked["id"], "ok": "yes"})
        until(lambda: RESULT in ann.get("/").text, "it is never done", desk)
        assert ann.get("/runs").json() == {"runs": []}
    with closing(sqlite3.connect(desk.folder / "shop.db")) as db:
        refunds = list(db.execute("SELECT customer, amount FROM refunds_refund"))
    assert refunds == [("Ann", 80)]


@pytest.mark.parametrize(
    ("prompt", "ok", "says"),
    [
        ("Please refund Bob $5", False, "Nothing was refunded."),
        ("Hello?", None, 'I understand only such as "Refund Ann 80 dollars."'),
    ],
)
def test_the_scripted_model_says_no_more_than_it_understands(
    tmp_path: Path, prompt: str, ok: bool | None, says: str
) -> None:
    served = lines_of("The Flask example")[0]
    desk = Desk(FLASK, "5000", tmp_path)
    with desk.serving(served):
        visitor = Visitor(desk.url, FLASK, stays=True)
        run_id = visitor.post("/runs", {"prompt": prompt}).json()["id"]
        if ok is not None:
            visitor.answer(visitor.wait_open()["id"], ok)
        assert visitor.wait_status(run_id, "done")["text"] == says


def test_a_port_that_is_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        command = [sys.executable, EXAMPLES / "scripted_model.py", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"port {port}: ")
    assert "Address already in use" in ended.stderr
    assert ended.stderr.count("\n") == 1
