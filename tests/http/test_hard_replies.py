"""Replies as nobody should make them: no secret told, no second bill, no dead end."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.conftest import MakeClient
from tests.http.raw_servers import Gone, Peer, RawServer
from tests.runtime.support import Make, Probe, run_turn, start
from toolnexus import (
    AgentDef,
    ClientOptions,
    ConfigError,
    LlmError,
    RuntimeOptions,
)
from toolnexus.testing import Reply, ScriptedLlm, raw, text, tool_call

Serve = Callable[..., RawServer]

CANARY = "canary-0123456789"
JSON = {"content-type": "application/json"}


# -- secrets ----------------------------------------------------------------------------------


def echo(peer: Peer) -> None:
    """Answer 401 and quote all headers, as a debugging proxy does."""
    while True:
        seen = peer.request()
        lines = [f"{name}: {value}" for name, value in seen.headers.items()]
        # Secrets first, so that the excerpt shows them if anything does.
        lines.sort(key=lambda line: not any(word in line for word in ("canary", "Basic")))
        peer.reply("\n".join(lines).encode(), 401)


def shown_by(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    """Return everything of a failure that a log or a screen may show."""
    parts = [str(error), repr(error), *traceback.format_exception(error), caplog.text]
    return "\n".join(parts)


def failure_of(client: Any) -> LlmError:
    with pytest.raises(LlmError) as caught:
        client.run("hi")
    return caught.value


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Client-Secret": CANARY},
        {"Cookie": f"theme=dark; session={CANARY}"},
        {"Proxy-Authorization": f"Basic {CANARY}"},
        {"Authorization": f"Token token={CANARY}; nonce=1"},
        {"Authorization": f'Digest username="u", response="{CANARY}"'},
        {"api-key": CANARY},
        {"Ocp-Apim-Subscription-Key": CANARY},
    ],
    ids=lambda headers: " ".join(headers),
)
@pytest.mark.parametrize("whose", ["options", "session"])
def test_an_echo_of_a_header_of_the_host_is_masked(
    make_client: MakeClient,
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    headers: dict[str, str],
    whose: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    options: dict[str, Any] = {"headers": headers}
    if whose == "session":
        session = requests.Session()
        session.headers.update(headers)
        options = {"session": session}
    error = failure_of(make_client(base_url=serve(echo).base_url, **options))
    assert error.status == 401
    assert CANARY not in shown_by(error, caplog)


def test_an_echo_of_one_cookie_alone_is_masked(
    make_client: MakeClient, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def play(peer: Peer) -> None:
        peer.request()
        peer.reply(f"unknown session {CANARY}".encode(), 401)

    cookie = {"Cookie": f"theme=dark; session={CANARY}"}
    error = failure_of(make_client(base_url=serve(play).base_url, headers=cookie))
    assert CANARY not in shown_by(error, caplog)


@pytest.mark.parametrize("whose", ["auth", "cookies"])
def test_an_echo_of_what_the_session_adds_is_masked(
    make_client: MakeClient, serve: Serve, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    caplog.set_level(logging.DEBUG)
    session = requests.Session()
    if whose == "auth":
        session.auth = ("user", CANARY)
    else:
        session.cookies.set("session", CANARY)
    key = None if whose == "auth" else "test-key"
    error = failure_of(make_client(base_url=serve(echo).base_url, session=session, api_key=key))
    shown = shown_by(error, caplog)
    assert CANARY not in shown
    assert base64.b64encode(f"user:{CANARY}".encode()).decode() not in shown


@pytest.mark.parametrize("key", ["test-key", None])
def test_the_user_of_the_url_is_not_shown(
    make_client: MakeClient,
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    url = serve(echo).base_url.replace("//", f"//user:{CANARY}@")
    shown = shown_by(failure_of(make_client(base_url=url, api_key=key)), caplog)
    assert CANARY not in shown
    assert base64.b64encode(f"user:{CANARY}".encode()).decode() not in shown


def test_the_user_of_the_url_is_not_shown_where_nobody_listens(
    make_client: MakeClient, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = serve(lambda peer: None)
    server.close()
    url = server.base_url.replace("//", f"//user:{CANARY}@")
    assert CANARY not in shown_by(failure_of(make_client(base_url=url)), caplog)


def test_the_user_of_a_proxy_is_not_shown_where_it_is_down(
    make_client: MakeClient, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = serve(lambda peer: None)
    server.close()
    session = requests.Session()
    proxy = f"http://user:{CANARY}@127.0.0.1:{server.port}"
    session.proxies = {"http": proxy, "https": proxy}
    options = {"base_url": "http://model.invalid/v1", "session": session}
    assert CANARY not in shown_by(failure_of(make_client(**options)), caplog)


@pytest.mark.parametrize(
    "location",
    [
        f"https://user:{CANARY}@host.example/v1",
        f"https://host.example/v1?key={CANARY}",
        f"/login?token={CANARY}",
        f"//user:{CANARY}@host.example/",
        f"user:{CANARY}@host.example",
    ],
)
def test_the_secrets_of_a_redirect_are_not_shown(
    make_client: MakeClient, serve: Serve, caplog: pytest.LogCaptureFixture, location: str
) -> None:
    def play(peer: Peer) -> None:
        peer.request()
        peer.reply(b"", 302, {"location": location})

    error = failure_of(make_client(base_url=serve(play).base_url))
    assert error.status == 302
    assert CANARY not in shown_by(error, caplog)


@pytest.mark.parametrize("cls", [ClientOptions, RuntimeOptions])
@pytest.mark.parametrize(
    "url",
    [
        f"ftp://user:{CANARY}@host.example/v1",
        f" http://user:{CANARY}@host.example/v1",
        f"HTTPS://user:{CANARY}@host.example/v1",
        f"http://user:{CANARY}@more@host.example/v1",
        f"http://user:part/{CANARY}@host.example/v1",
        f"user:{CANARY}@host.example/v1",
    ],
)
def test_options_do_not_show_the_password_of_a_url(cls: Any, url: str) -> None:
    try:
        shown = repr(cls(base_url=url))
    except ConfigError as error:
        shown = str(error)
    assert CANARY not in shown


# -- nesting ----------------------------------------------------------------------------------


def nested_body(style: str, levels: int) -> str:
    deep = "[" * levels + "]" * levels
    if style == "openai":
        message = f'{{"role":"assistant","content":"hi","reasoning_details":{deep}}}'
        return f'{{"choices":[{{"message":{message},"finish_reason":"stop"}}],"usage":{{}}}}'
    block = f'{{"type":"server_thing","data":{deep}}}'
    content = f'[{{"type":"text","text":"hi"}},{block}]'
    return f'{{"content":{content},"stop_reason":"end_turn","usage":{{}}}}'


@pytest.mark.parametrize("levels", [600, 750, 900, 980, 100_000])
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_a_reply_nested_too_deeply_is_an_error_and_no_dead_end(
    llm: ScriptedLlm, make_runtime: Make, style: str, levels: int
) -> None:
    llm.say("m", text("before"), raw(nested_body(style, levels), headers=JSON), text("after"))
    rt = make_runtime(AgentDef("a"), style=style)
    handle, _ = start(rt, "a")
    kept = rt.transcript(handle)
    failed = run_turn(rt, handle)
    assert (failed.status, failed.text[:4]) == ("error", "LLM ")
    assert rt.transcript(handle) == kept
    assert run_turn(rt, handle).text == "after"


@pytest.mark.parametrize("levels", [600, 900])
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_a_client_raises_for_a_reply_nested_too_deeply(
    llm: ScriptedLlm, make_client: MakeClient, style: str, levels: int
) -> None:
    llm.say("m", raw(nested_body(style, levels), headers=JSON))
    error = failure_of(make_client(style=style, retries=2))
    assert (error.status, error.retryable) == (200, False)
    assert len(llm.requests) == 1


def test_a_reply_nested_moderately_goes_home_in_later_requests(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", raw(nested_body("openai", 60), headers=JSON), text("after"))
    rt = make_runtime(AgentDef("a"))
    handle, result = start(rt, "a")
    assert (result.text, run_turn(rt, handle).text) == ("hi", "after")
    (sent,) = [m for m in llm.requests[-1].messages if m["role"] == "assistant"]
    assert str(sent["reasoning_details"]) == "[" * 60 + "]" * 60


@pytest.mark.parametrize("levels", [100, 400, 900, 5000])
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_arguments_nested_deeply_leave_a_conversation_that_goes_on(
    llm: ScriptedLlm, make_runtime: Make, style: str, levels: int
) -> None:
    arguments = '{"a":' + "[" * levels + "]" * levels + "}"
    llm.say("m", tool_call("t", arguments, "c1"))
    llm.answer("m", lambda request: text("fine"))
    tool = Probe("t")
    rt = make_runtime(AgentDef("a", tools=[tool]), style=style)
    handle, _ = start(rt, "a")
    assert run_turn(rt, handle).text == "fine"
    assert len(tool.runs) <= 1
    assert [one.refusal for one in llm.requests] == [None] * len(llm.requests)


# -- a reply that came is paid for ------------------------------------------------------------

BROKEN = {
    "cut": text("hello").cut_in_body(),
    "a page": raw("<html>oops", headers={"content-type": "text/html"}),
    "empty": raw(""),
    "half": raw('{"choices":[{"message":{"role":"assis', headers=JSON),
    "no choices": raw({"choices": []}),
    "no message": raw({"choices": [{}]}),
    "a list": raw([]),
    "another shape": raw({"output": "hello"}),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("style", ["openai", "anthropic"])
@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_a_2xx_that_cannot_be_used_is_not_paid_for_twice(
    llm: ScriptedLlm, make_client: MakeClient, style: str, broken: Reply, timeout_ms: int | None
) -> None:
    llm.answer("m", lambda request: broken)
    client = make_client(style=style, retries=2, retry_base_ms=0, timeout_ms=timeout_ms)
    error = failure_of(client)
    assert not error.retryable
    assert len(llm.requests) == 1


def test_a_connection_that_breaks_before_a_status_is_tried_again(
    make_client: MakeClient, serve: Serve
) -> None:
    def play(peer: Peer) -> None:
        peer.request()
        if server.accepted == 1:
            raise Gone
        peer.reply()

    server = serve(play)
    client = make_client(base_url=server.base_url, retries=2, retry_base_ms=0)
    assert client.run("hi").text == "hello"
    assert server.accepted == 2
