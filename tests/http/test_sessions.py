"""A user's own session: its proxies, headers, auth, cookies and adapters are honoured."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool

from tests.conftest import LIMIT, MakeClient
from tests.http.raw_servers import HELLO, Background, Peer, Proxy, RawServer
from toolnexus import Cancelled, CancelToken, LlmError
from toolnexus.testing import ScriptedLlm, text

InBackground = Callable[[Callable[[], Any]], Background]


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as own:
        yield own


def is_abortable(llm: ScriptedLlm, client: Any, background: InBackground) -> bool:
    token = CancelToken()
    llm.say("m", text("never").held_by(threading.Event()))
    run = background(lambda: client.run("hi", cancel=token))
    llm.wait_asked("m", len(llm.requests_of("m")) or 1)
    token.cancel()
    with pytest.raises(Cancelled):
        run.result()
    return True


def test_session_headers_go_along_and_ours_win(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session
) -> None:
    session.headers.update({"X-Team": "blue", "Content-Type": "text/plain", "User-Agent": "me"})
    llm.say("m", text("hi"))
    make_client(session=session, headers={"X-Team": "red"}).run("hi")
    headers = llm.requests[0].headers

    assert (headers["x-team"], headers["user-agent"]) == ("red", "me")
    assert headers["content-type"] == "application/json"


def test_a_session_header_of_none_is_left_out(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session
) -> None:
    session.headers["Accept"] = None  # type: ignore[assignment]  # how requests has it
    llm.say("m", text("hi"))
    make_client(session=session).run("hi")

    assert "accept" not in llm.requests[0].headers


def test_a_header_set_later_in_the_session_counts_from_then_on(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session
) -> None:
    llm.say("m", text("hi"), text("hi"))
    client = make_client(session=session)
    client.run("hi")
    session.headers["X-Team"] = "blue"
    client.run("hi")

    assert [r.headers.get("x-team") for r in llm.requests] == [None, "blue"]


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_a_key_in_the_sessions_headers_is_key_enough(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session, name: str
) -> None:
    session.headers[name] = "Bearer from-session"
    llm.say("m", text("hi"))
    make_client(session=session, api_key=None).run("hi")

    assert llm.requests[0].headers["authorization"] == "Bearer from-session"


def test_session_auth_signs_each_request(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session
) -> None:
    class Sign(requests.auth.AuthBase):
        def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = f"Bearer signed-{len(request.body or b'')}"
            return request

    session.auth = Sign()
    llm.say("m", text("hi"))
    make_client(session=session, api_key=None).run("hi")
    (request,) = llm.requests

    assert request.headers["authorization"] == f"Bearer signed-{len(request.content)}"


def test_session_cookies_and_query_go_along(
    make_client: MakeClient, serve: Callable[..., RawServer], session: requests.Session
) -> None:
    seen: list[Any] = []

    def play(peer: Peer) -> None:
        while True:
            seen.append(peer.request())
            peer.reply()

    session.cookies.set("sticky", "node-7")
    session.params = {"api-version": "1"}
    make_client(base_url=serve(play).base_url, session=session).run("hi")

    assert seen[0].headers["cookie"] == "sticky=node-7"
    assert seen[0].target == "/v1/chat/completions?api-version=1"


def test_response_hooks_of_the_session_run(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session
) -> None:
    seen: list[int] = []
    session.hooks["response"].append(lambda reply, **_: seen.append(reply.status_code))
    llm.say("m", text("hi"))
    make_client(session=session).run("hi")

    assert seen == [200]


def test_the_session_is_not_closed_and_can_be_shared(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session
) -> None:
    llm.say("m", text("one"), text("two"))
    first = make_client(session=session)
    first.run("hi")
    first.close()

    assert llm.open_connections == 1
    assert make_client(session=session).run("hi").text == "two"
    assert llm.open_connections == 1


def test_a_session_that_was_used_before_can_be_aborted_too(
    llm: ScriptedLlm,
    make_client: MakeClient,
    session: requests.Session,
    background: InBackground,
) -> None:
    assert session.post(llm.base_url, timeout=LIMIT).status_code == 404

    assert is_abortable(llm, make_client(session=session), background)


class MySession(requests.Session):
    """A session of another class: asked as its author meant it."""

    posted = 0

    def post(self, *args: Any, **kwargs: Any) -> requests.Response:
        self.posted += 1
        return super().post(*args, **kwargs)


def test_a_session_subclass_sees_each_post_and_can_be_aborted(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    llm.say("m", text("hi"))
    with MySession() as session:
        client = make_client(session=session)

        assert client.run("hi").text == "hi"
        assert session.posted == 1
        llm.wait_asked("m")
        token = CancelToken()
        llm.say("m", text("never").held_by(threading.Event()))
        run = background(lambda: client.run("hi", cancel=token))
        llm.wait_asked("m", 2)
        token.cancel()
        with pytest.raises(Cancelled):
            run.result()


class CountingAdapter(HTTPAdapter):
    """An adapter subclass with pool settings of its own."""

    sent = 0

    def send(self, *args: Any, **kwargs: Any) -> requests.Response:
        self.sent += 1
        return super().send(*args, **kwargs)


@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_a_custom_adapter_is_used(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session, timeout_ms: int | None
) -> None:
    adapter = CountingAdapter(pool_connections=1, pool_maxsize=1)
    session.mount("http://", adapter)
    llm.say("m", text("x" * 200_000), text("two"))
    client = make_client(session=session, timeout_ms=timeout_ms)

    assert len(client.run("hi").text) == 200_000
    assert client.run("hi").text == "two"
    assert adapter.sent == 2
    assert llm.open_connections == 1


def test_a_plain_adapters_pool_settings_hold(
    llm: ScriptedLlm,
    make_client: MakeClient,
    session: requests.Session,
    background: InBackground,
) -> None:
    session.mount("http://", HTTPAdapter(pool_maxsize=1, pool_block=True))
    hold = threading.Event()
    llm.say("m", text("one").held_by(hold), text("two"))
    client = make_client(session=session)
    runs = [background(lambda: client.run("hi").text) for _ in range(2)]
    llm.wait_asked("m")
    hold.set()

    assert sorted(run.result() for run in runs) == ["one", "two"]
    assert llm.open_connections == 1


class PoolOfMine(HTTPConnectionPool):
    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        type(self).made += 1


def test_an_adapters_own_pool_class_is_kept(
    llm: ScriptedLlm, make_client: MakeClient, session: requests.Session
) -> None:
    # A SOCKS proxy is one: taking its pools away would go round the proxy.
    class MyAdapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, **kwargs)
            self.poolmanager.pool_classes_by_scheme = {"http": PoolOfMine}

    session.mount("http://", MyAdapter())
    llm.say("m", text("hi"))

    assert make_client(session=session).run("hi").text == "hi"
    assert PoolOfMine.made == 1


class InMemory(BaseAdapter):
    """An adapter that has no socket, as test tools and WSGI bridges have."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        self.timeout = kwargs["timeout"]
        reply = requests.Response()
        reply.status_code = 200
        reply.url, reply.request = str(request.url), request
        reply.raw = io.BytesIO(json.dumps(HELLO).encode())
        return reply

    def close(self) -> None:
        pass


@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_an_adapter_without_a_socket(
    make_client: MakeClient, session: requests.Session, timeout_ms: int | None
) -> None:
    adapter = InMemory()
    session.mount("mem://", adapter)
    session.mount("http://memory", adapter)
    client = make_client(base_url="http://memory/v1", session=session, timeout_ms=timeout_ms)

    assert client.run("hi").text == "hello"
    assert isinstance(adapter.timeout, tuple)


def test_a_stale_connection_is_replaced_without_a_retry(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("one").then_closing(), text("two"))
    client = make_client(retries=0)
    client.run("hi")
    llm.wait_connections(0)

    assert client.run("hi").text == "two"


@pytest.mark.parametrize("how", ["session", "environment", "own class"])
def test_plain_http_through_a_proxy(
    llm: ScriptedLlm,
    make_client: MakeClient,
    serve: Callable[..., RawServer],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    proxy = Proxy()
    url = f"http://me:secret@127.0.0.1:{serve(proxy.play).port}"
    llm.say("m", text("one"), text("two"))
    with MySession() if how == "own class" else requests.Session() as session:
        if how == "environment":
            monkeypatch.setenv("HTTP_PROXY", url)
            monkeypatch.setenv("http_proxy", url)
        else:
            session.proxies["http"] = url
        client = make_client(session=None if how == "environment" else session)

        assert [client.run("hi").text for _ in range(2)] == ["one", "two"]
    assert {one.target for one in proxy.seen} == {f"{llm.base_url}/chat/completions"}
    assert {one.headers["authorization"] for one in proxy.seen} == {"Bearer test-key"}
    assert all(one.headers["proxy-authorization"].startswith("Basic ") for one in proxy.seen)


def test_no_proxy_and_trust_env_are_heeded(
    llm: ScriptedLlm, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    llm.say("m", text("one"), text("two"))
    with requests.Session() as session:
        session.trust_env = False
        assert make_client(session=session).run("hi").text == "one"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert make_client().run("hi").text == "two"


@pytest.mark.parametrize("own_class", [False, True])
def test_an_abort_ends_a_wait_for_a_proxy(
    make_client: MakeClient,
    serve: Callable[..., RawServer],
    background: InBackground,
    own_class: bool,
) -> None:
    proxy, token = Proxy(), CancelToken()
    proxy.answers = False
    with MySession() if own_class else requests.Session() as session:
        session.proxies["http"] = f"http://127.0.0.1:{serve(proxy.play).port}"
        client = make_client(base_url="http://api.invalid/v1", session=session, retries=3)
        run = background(lambda: client.run("hi", cancel=token))
        assert proxy.asked.wait(LIMIT)
        token.cancel()

        with pytest.raises(Cancelled):
            run.result()


def test_a_dead_proxy_is_a_network_error(
    make_client: MakeClient, serve: Callable[..., RawServer], session: requests.Session
) -> None:
    server = serve(lambda peer: None)
    server.close()
    session.proxies["http"] = f"http://me:canary@127.0.0.1:{server.port}"
    with pytest.raises(LlmError) as caught:
        make_client(base_url="http://api.invalid/v1", session=session).run("hi")

    assert caught.value.retryable
    assert "canary" not in str(caught.value)
