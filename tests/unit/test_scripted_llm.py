"""ScriptedLlm over real HTTP: lanes, gates, faults, records, and a clean end."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    text,
    tool_call,
)

LIMIT = 5.0
ADD = {"name": "add", "description": "adds"}
SCHEMA = {"type": "object", "properties": {}}
OPENAI_TOOL = {"type": "function", "function": {**ADD, "parameters": SCHEMA}}
ANTHROPIC_HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}


@pytest.fixture
def llm() -> Iterator[ScriptedLlm]:
    before = set(threading.enumerate())
    with ScriptedLlm() as server:
        yield server
    assert not set(threading.enumerate()) - before


def ask(llm: ScriptedLlm, model: str = "m", prompt: str = "hi", **body: Any) -> Any:
    """Ask in OpenAI's style on a connection of its own."""
    return requests.post(
        f"{llm.base_url}/chat/completions",
        headers={"authorization": "Bearer k"},
        json={"model": model, "messages": [{"role": "user", "content": prompt}], **body},
        timeout=LIMIT,
    )


def ask_text(llm: ScriptedLlm, model: str = "m") -> str:
    """Ask and drop the response: while one lives, its closed session's socket stays open."""
    return str(ask(llm, model).json()["choices"][0]["message"]["content"])


def ask_anthropic(llm: ScriptedLlm, model: str = "m", **body: Any) -> Any:
    """Ask in Anthropic's style on a connection of its own."""
    messages = [{"role": "user", "content": "hi"}]
    return requests.post(
        f"{llm.base_url}/messages",
        headers=ANTHROPIC_HEADERS,
        json={"model": model, "max_tokens": 99, "messages": messages, **body},
        timeout=LIMIT,
    )


def test_both_base_urls_of_anthropic_lead_here(llm: ScriptedLlm) -> None:
    llm.say("m", text("hello"))
    assert llm.base_url.endswith("/v1")
    root = llm.base_url.removesuffix("/v1")
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    url = f"{root}/v1/messages"
    assert requests.post(url, headers=ANTHROPIC_HEADERS, json=body, timeout=LIMIT).ok


def test_lanes_keep_the_replies_of_parallel_agents_apart(llm: ScriptedLlm) -> None:
    models = [f"model-{n}" for n in range(60)]
    gate = threading.Event()
    for model in models:
        llm.say(model, text(f"I am {model}").held_by(gate))
    with ThreadPoolExecutor(60) as pool:
        said = [pool.submit(ask_text, llm, model) for model in models]
        for model in models:
            llm.wait_asked(model)
        assert llm.open_connections == 60
        gate.set()
        assert [s.result(LIMIT) for s in said] == [f"I am {model}" for model in models]
    llm.wait_connections(0)
    llm.assert_done()


def test_a_function_answers_what_is_not_scripted(llm: ScriptedLlm) -> None:
    def echo(request: RecordedRequest) -> Reply:
        return text(f"{request.prompt} / {request.system} / {request.tool_names}")

    llm.answer("m", echo)
    llm.say("m", text("scripted"))
    texts = [ask_text(llm)]
    system = {"role": "system", "content": "be kind"}
    messages = [system, {"role": "user", "content": [{"type": "text", "text": "yo"}]}]
    reply = ask(llm, messages=messages, tools=[OPENAI_TOOL])
    texts.append(reply.json()["choices"][0]["message"]["content"])
    reply = ask_anthropic(llm, system="be kind", tools=[{**ADD, "input_schema": SCHEMA}])
    texts.append(reply.json()["content"][0]["text"])
    assert texts == ["scripted", "yo / be kind / ['add']", "hi / be kind / ['add']"]
    llm.assert_done()


def test_a_function_that_fails_is_a_500_and_the_cause_of_the_assertion(
    llm: ScriptedLlm,
) -> None:
    def fail(request: RecordedRequest) -> Reply:
        raise AssertionError("wrong prompt")

    llm.answer("m", fail)
    assert ask(llm).status_code == 501
    with pytest.raises(AssertionError, match="answer function of 'm' raised") as caught:
        llm.assert_done()
    assert str(caught.value.__cause__) == "wrong prompt"


def test_a_reply_that_is_not_json_is_reported(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("add", {"a": object()}))
    assert ask(llm).status_code == 501
    with pytest.raises(AssertionError, match="not JSON"):
        llm.assert_done()


def test_a_held_reply_waits_before_its_headers(llm: ScriptedLlm) -> None:
    gate = threading.Event()
    llm.say("m", text("late").held_by(gate))
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(ask, llm)
        llm.wait_asked("m")
        assert not reply.done()
        gate.set()
        assert reply.result(LIMIT).ok


def test_a_reply_held_after_its_headers_shows_them(llm: ScriptedLlm) -> None:
    gate = threading.Event()
    llm.say("m", text("late").held_after_headers(gate))
    connection = connect(llm)
    post(connection)
    response = connection.getresponse()
    assert response.status == 200
    gate.set()
    assert b"late" in response.read()
    connection.close()


def test_a_cut_comes_before_the_headers_or_in_the_body(llm: ScriptedLlm) -> None:
    llm.say("m", text("x").cut_before_headers(), text("x").cut_in_body())
    with pytest.raises(requests.ConnectionError):
        ask(llm)
    with pytest.raises(requests.RequestException, match="IncompleteRead"):
        ask(llm)
    llm.assert_done()


def connect(llm: ScriptedLlm) -> http.client.HTTPConnection:
    host = llm.base_url.removeprefix("http://").removesuffix("/v1")
    return http.client.HTTPConnection(host, timeout=LIMIT)


def post(connection: http.client.HTTPConnection, content: bytes | None = None) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": "Bearer k", "content-type": "application/json"}
    data = json.dumps(body).encode() if content is None else content
    connection.request("POST", "/v1/chat/completions", data, headers)


def test_a_connection_is_kept_alive_until_a_reply_closes_it(llm: ScriptedLlm) -> None:
    llm.say("m", text("1"), text("2").then_closing())
    connection = connect(llm)
    for _ in range(2):
        post(connection)
        assert connection.getresponse().read()
    assert connection.sock.recv(1) == b""
    assert len(llm.requests) == 2
    llm.wait_connections(0)
    connection.close()


def test_a_client_that_leaves_a_held_reply_is_noticed(
    llm: ScriptedLlm, capfd: pytest.CaptureFixture[str]
) -> None:
    gate = threading.Event()
    llm.say("m", text("never").held_by(gate), text("nor").held_after_headers(gate))
    for count in (1, 2):
        connection = connect(llm)
        post(connection)
        llm.wait_asked("m", count)
        assert llm.open_connections == 1
        connection.close()
        llm.wait_connections(0)
    assert capfd.readouterr() == ("", "")


def test_close_ends_held_replies_opens_gates_and_frees_the_port(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = set(threading.enumerate())
    gates = [threading.Event() for _ in range(3)]
    llm = ScriptedLlm()
    llm.say("m", text("a").held_by(gates[0]), text("b").held_after_headers(gates[1]))
    llm.say("unused", text("c").held_by(gates[2]))
    idle = connect(llm)
    idle.connect()
    with ThreadPoolExecutor(2) as pool:
        replies = [pool.submit(ask, llm) for _ in range(2)]
        llm.wait_asked("m", 2)
        llm.close()
        llm.close()
        for reply in replies:
            assert isinstance(reply.exception(LIMIT), requests.RequestException)
    assert all(gate.is_set() for gate in gates)
    assert not set(threading.enumerate()) - before
    assert llm.open_connections == 0
    assert idle.sock.recv(1) == b""
    idle.close()
    with pytest.raises(ConnectionRefusedError):
        connect(llm).connect()
    assert capfd.readouterr() == ("", "")


def test_what_is_not_http_is_hung_up_on(llm: ScriptedLlm) -> None:
    for content in (b"nonsense\r\n\r\n", b"POST /x HTTP/1.1\r\ncontent-length: x\r\n\r\n"):
        connection = connect(llm)
        connection.connect()
        connection.sock.sendall(content)
        assert connection.sock.recv(1) == b""
        connection.close()
    llm.assert_done()


def test_requests_are_recorded(llm: ScriptedLlm) -> None:
    llm.say("a", text("1"))
    llm.say("b", text("2"))
    ask(llm, "a", "one")
    ask_anthropic(llm, "b", system=[{"type": "text", "text": "be kind"}])
    first, second = llm.requests
    assert (first.model, first.style, first.path) == ("a", "openai", "/v1/chat/completions")
    assert first.headers["Authorization"] == "Bearer k"
    assert first.messages == [{"role": "user", "content": "one"}]
    assert (first.tools, first.refusal, first.prompt) == ([], None, "one")
    assert json.loads(first.content) == first.body
    assert (second.style, second.system) == ("anthropic", "be kind")
    assert llm.requests_of("b") == [second]
    assert "Bearer" not in repr(first) + repr(first.headers)


def test_an_unscripted_request_is_a_500_and_remembered(llm: ScriptedLlm) -> None:
    llm.say("m", text("1"), text("2"))
    assert ask(llm, "other", "who?").status_code == 501
    assert ask(llm).ok
    with pytest.raises(AssertionError) as caught:
        llm.assert_done()
    assert "'other', was not scripted (prompt: 'who?')" in str(caught.value)
    assert "'m' has 1 unused replies" in str(caught.value)


@pytest.mark.parametrize("path", ["/v1//chat/completions", "/messages", "/v1/responses"])
def test_a_wrong_path_is_a_404_and_remembered(llm: ScriptedLlm, path: str) -> None:
    root = llm.base_url.removesuffix("/v1")
    assert requests.post(root + path, json={}, timeout=LIMIT).status_code == 404
    with pytest.raises(AssertionError, match="no endpoint"):
        llm.assert_done()


def test_a_refused_request_takes_no_reply_and_is_remembered(llm: ScriptedLlm) -> None:
    llm.say("m", text("for the next one"))
    reply = ask(llm, tools=[])
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    reply = ask_anthropic(llm, max_tokens=0)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "max_tokens" in str(llm.requests[1].refusal)
    assert ask(llm).ok
    with pytest.raises(AssertionError, match="was refused with 400: tools"):
        llm.assert_done()


def test_missing_keys_are_401(llm: ScriptedLlm) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    for path in ("chat/completions", "messages"):
        reply = requests.post(f"{llm.base_url}/{path}", json=body, timeout=LIMIT)
        assert reply.status_code == 401
        assert reply.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b'{"a": NaN}', b'{"a": "\xff"}', rb'{"a": "\ud800"}', b"[" * 100_000],
)
def test_what_is_not_strict_json_is_refused(llm: ScriptedLlm, content: bytes) -> None:
    connection = connect(llm)
    post(connection, content)
    assert connection.getresponse().status == 400
    connection.close()
    assert llm.requests[0].body == {}


def test_wait_asked_says_what_came_instead(llm: ScriptedLlm) -> None:
    llm.say("a", text("1"))
    ask(llm, "a")
    with pytest.raises(TimeoutError, match=r"'b' was asked 0 of 1 .* asked: a\)"):
        llm.wait_asked("b", timeout=0.01)
    llm.wait_asked("a")


def test_wait_connections_says_how_many_there_are(llm: ScriptedLlm) -> None:
    llm.say("m", text("1"))
    connection = connect(llm)
    post(connection)
    connection.getresponse().read()
    with pytest.raises(TimeoutError, match="1 connections are open"):
        llm.wait_connections(0, timeout=0.01)
    connection.close()


def test_it_serves_at_a_port_that_is_given() -> None:
    with ScriptedLlm() as first:
        with pytest.raises(OSError, match="in use"):
            ScriptedLlm(port=first._server.port)
        port = first._server.port
    with ScriptedLlm(port=port) as second:
        second.say("m", text("Hello."))
        assert second.base_url == f"http://127.0.0.1:{port}/v1"
        assert ask(second).status_code == 200
