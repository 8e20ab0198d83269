"""The Flask example behind real servers: what a browser sees, and what its leaving does."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import ModuleType
from typing import Any

import pytest
from werkzeug.serving import make_server

from tests.conftest import LIMIT
from tests.docs.pages import DOCS, ROOT
from toolnexus import AgentRuntime, LlmClient
from toolnexus.testing import Reply, ScriptedLlm, raw, text, tool_call

EXAMPLE = DOCS / "examples" / "stream_to_browser.py"
MODEL = "gpt-4o-mini"
SSE = "text/event-stream"
SECONDS = 30.0
"""Limit for a child interpreter to start on a busy machine."""


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stream_to_browser", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def werkzeug(example: ModuleType, llm: ScriptedLlm) -> Iterator[int]:
    options: dict[str, Any] = {"base_url": llm.base_url, "api_key": "test-key", "retries": 0}
    rt = AgentRuntime(default_model=MODEL, registry=[example.payments], **options)
    with rt, LlmClient(model=MODEL, **options) as client:
        server = make_server("127.0.0.1", 0, example.make_app(rt, client), threaded=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.port
        finally:
            server.shutdown()
            thread.join(LIMIT)
            server.server_close()


@contextmanager
def gunicorn(example: ModuleType, llm: ScriptedLlm) -> Iterator[int]:
    variables = {
        "OPENAI_API_KEY": "test-key",
        "OPENAI_BASE_URL": llm.base_url,
        "PYTHONPATH": str(ROOT),
    }
    environment = {key: value for key, value in os.environ.items() if "API_KEY" not in key}
    command = ["gunicorn", "--threads", "4", "--bind", "127.0.0.1:0", "--log-level", "info"]
    with subprocess.Popen(
        [sys.executable, "-m", *command, "stream_to_browser:create_app()"],
        cwd=EXAMPLE.parent,
        env=environment | variables | {"PYTHONDONTWRITEBYTECODE": "1"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watchdog = threading.Timer(SECONDS, process.kill)
        watchdog.start()
        try:
            assert process.stderr is not None
            said = ""
            while (found := re.search(r"Listening at: http://127.0.0.1:(\d+)", said)) is None:
                line = process.stderr.readline()
                assert line, said
                said += line
            yield int(found[1])
            process.send_signal(signal.SIGTERM)
            said += process.communicate(timeout=LIMIT)[1]
            assert process.returncode == 0, said
            assert "Traceback" not in said, said
        finally:
            watchdog.cancel()
            watchdog.join()
            process.kill()


@pytest.fixture
def port(example: ModuleType, llm: ScriptedLlm) -> Iterator[int]:
    with werkzeug(example, llm) as number:
        yield number


@pytest.fixture(params=[werkzeug, gunicorn], ids=["werkzeug", "gunicorn"])
def any_port(
    request: pytest.FixtureRequest, example: ModuleType, llm: ScriptedLlm
) -> Iterator[int]:
    with request.param(example, llm) as number:
        yield number


def post(port: int, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return exchange(port, "POST", path, body)


def get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    return exchange(port, "GET", path)


def exchange(
    port: int, method: str, path: str, body: dict[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    with opened(port, method, path, body) as response:
        found = response.read()
        is_json = "json" in response.headers["content-type"]
        return response.status, json.loads(found) if is_json else {}


@contextmanager
def opened(
    port: int, method: str, path: str, body: dict[str, Any] | None = None
) -> Iterator[http.client.HTTPResponse]:
    """Send a request; leaving the block before the response's end is a browser that goes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    headers = {"Content-Type": "application/json"}
    with closing(connection):
        connection.request(method, path, json.dumps(body), headers)
        with connection.getresponse() as response:
            yield response


def start(port: int, prompt: str = "Charge 500 dollars.") -> str:
    status, run = post(port, "/runs", {"prompt": prompt})
    assert status == 202
    return str(run["id"])


@contextmanager
def watched(port: int, run_id: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """Give what a page is told, until it is told how the run stands."""
    with opened(port, "GET", f"/runs/{run_id}/events") as response:
        assert response.headers["content-type"].startswith(SSE)
        yield read_events(response)


def read_events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in response:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def page(port: int, run_id: str) -> list[tuple[str, Any]]:
    """Return what a page is told that connects again while the run goes on, as browsers do."""
    told: list[tuple[str, Any]] = [("report", {"status": "running"})]
    while told[-1][1]["status"] == "running":
        with watched(port, run_id) as events:
            told = list(events)
    return told


def held_in_the_middle(said: str) -> tuple[Reply, threading.Event]:
    """Return a reply whose stream stops after its first half."""
    gate = threading.Event()
    return text(said).paused_after(2, gate), gate


def first_text(port: int, run_id: str) -> str:
    """Return the first piece that a page is told; then the browser goes away."""
    while True:
        with watched(port, run_id) as events:
            kind, data = next(events)
            if kind == "text":
                return str(data)


def test_a_page_shows_the_first_words_while_the_model_still_speaks(
    port: int, llm: ScriptedLlm
) -> None:
    reply, gate = held_in_the_middle("Hello there.")
    llm.say(MODEL, reply)
    run_id = start(port)
    llm.wait_asked(MODEL)
    with watched(port, run_id) as events:
        assert next(events) == ("text", "Hello ")
        assert get(port, f"/runs/{run_id}") == (200, {"status": "running", "text": ""})
        gate.set()
        assert list(events) == [
            ("text", "there."),
            ("report", {"status": "done", "text": "Hello there."}),
        ]


def test_a_run_goes_on_when_its_page_goes_away(any_port: int, llm: ScriptedLlm) -> None:
    reply, gate = held_in_the_middle("Hello there.")
    llm.say(MODEL, reply)
    run_id = start(any_port)
    assert first_text(any_port, run_id) == "Hello "
    gate.set()
    assert page(any_port, run_id)[-1] == ("report", {"status": "done", "text": "Hello there."})
    assert get(any_port, f"/runs/{run_id}") == (200, {"status": "done", "text": "Hello there."})
    assert len(llm.requests) == 1


def test_a_page_that_comes_back_is_told_what_was_told_before(
    port: int, llm: ScriptedLlm
) -> None:
    reply, gate = held_in_the_middle("Hello there.")
    llm.say(MODEL, reply)
    run_id = start(port)
    assert first_text(port, run_id) == "Hello "
    with watched(port, run_id) as events, watched(port, run_id) as more:
        assert next(events) == next(more) == ("text", "Hello ")
        gate.set()
        assert list(events) == list(more)
    llm.assert_done()


def test_a_run_that_nobody_looked_at_has_its_result(port: int, llm: ScriptedLlm) -> None:
    llm.say(MODEL, text("Hello."))
    run_id = start(port)
    assert page(port, run_id)[-1] == ("report", {"status": "done", "text": "Hello."})
    with watched(port, run_id) as events:
        assert list(events) == [("report", {"status": "done", "text": "Hello."})]


def test_a_question_is_answered_over_http_and_the_run_goes_on(
    port: int, llm: ScriptedLlm
) -> None:
    llm.say(MODEL, tool_call("charge_card", {"amount": 500}), text("All charged."))
    run_id = start(port)
    kind, report = page(port, run_id)[-1]
    assert (kind, report["status"]) == ("report", "pending")
    assert report["text"] == "Approve the $500 charge?"

    given = {"id": report["id"], "ok": True}
    assert post(port, f"/runs/{run_id}/answer", given)[0] == 202
    assert post(port, f"/runs/{run_id}/answer", given)[0] == 202
    assert post(port, f"/runs/{run_id}/answer", {**given, "ok": False})[0] == 409
    assert page(port, run_id)[-1] == ("report", {"status": "done", "text": "All charged."})
    assert list(llm.requests[-1].tool_results.values()) == ["charged $500"]
    llm.assert_done()


def test_what_does_not_exist_is_not_found(port: int) -> None:
    assert get(port, "/runs/root/payments.9")[0] == 404
    assert get(port, "/runs/root")[0] == 404
    assert get(port, "/runs/root/payments.9/events")[0] == 404
    assert post(port, "/runs/root/payments.9/answer", {"id": "x", "ok": True})[0] == 404


def test_an_answer_to_nothing_is_not_found(port: int, llm: ScriptedLlm) -> None:
    llm.say(MODEL, text("Hello."))
    run_id = start(port)
    page(port, run_id)
    assert post(port, f"/runs/{run_id}/answer", {"id": "unheard of", "ok": True})[0] == 404


def test_the_plain_view_streams_text(port: int, llm: ScriptedLlm) -> None:
    reply, gate = held_in_the_middle("Hello there.")
    llm.say(MODEL, reply)
    with opened(port, "POST", "/ask", {"prompt": "Hi."}) as response:
        assert response.read1() == b"Hello "
        gate.set()
        assert response.read() == b"there."


def test_the_plain_view_ends_the_request_when_its_browser_goes(
    any_port: int, llm: ScriptedLlm
) -> None:
    goes_on, ends = threading.Event(), threading.Event()
    words = [f"word{number} " for number in range(50)]
    llm.say(MODEL, streamed(words).paused_after(1, goes_on).paused_after(len(words), ends))
    with opened(any_port, "POST", "/ask", {"prompt": "Hi."}) as response:
        assert response.read1() == b"word0 "
    # The server writes the second word, and the third, to a browser that is gone. It notices,
    # closes the view, and that ends the request: its reply has not come to its end.
    goes_on.set()
    llm.wait_connections(0, LIMIT)
    assert not ends.is_set()


def streamed(words: list[str]) -> Reply:
    """Return a reply in one event for each word, then the end of the stream."""
    chunks = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in words]
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    events.append('data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n')
    return raw("".join([*events, "data: [DONE]\n\n"]), headers={"content-type": SSE})


def test_the_page_itself_is_served(port: int) -> None:
    with opened(port, "GET", "/") as response:
        assert b"new EventSource(" in response.read()
