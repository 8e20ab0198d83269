"""TLS: verified as the session says, and aborted like everything else."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.conftest import LIMIT, MakeClient
from tests.http.raw_servers import Background, Peer, Proxy, RawServer
from toolnexus import Cancelled, CancelToken, LlmError, RunTimeoutError

InBackground = Callable[[Callable[[], Any]], Background]

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the keys")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with a self-signed certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    command = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-subj", "/CN=toolnexus-test", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT * 3)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def trusting(certificate: Path) -> Any:
    with requests.Session() as session:
        session.verify = str(certificate)
        yield session


def polite(peer: Peer) -> None:
    while peer.request():
        peer.reply()


def test_the_sessions_bundle_is_trusted(
    make_client: MakeClient,
    serve: Callable[..., RawServer],
    tls: ssl.SSLContext,
    trusting: requests.Session,
) -> None:
    server = serve(polite, tls=tls)
    client = make_client(base_url=server.base_url, session=trusting)

    assert [client.run("hi").text for _ in range(3)] == ["hello"] * 3
    assert server.accepted == 1


def test_verification_can_be_switched_off_in_the_session(
    make_client: MakeClient, serve: Callable[..., RawServer], tls: ssl.SSLContext
) -> None:
    with requests.Session() as session:
        session.verify = False
        client = make_client(base_url=serve(polite, tls=tls).base_url, session=session)
        with pytest.warns(Warning, match="Unverified HTTPS request"):
            assert client.run("hi").text == "hello"


def test_a_bundle_in_the_environment_is_trusted(
    make_client: MakeClient,
    serve: Callable[..., RawServer],
    tls: ssl.SSLContext,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))

    assert make_client(base_url=serve(polite, tls=tls).base_url).run("hi").text == "hello"


def test_a_stranger_is_refused_once_and_says_why(
    make_client: MakeClient, serve: Callable[..., RawServer], tls: ssl.SSLContext
) -> None:
    server = serve(polite, tls=tls)
    with pytest.raises(LlmError, match=r"TLS failed: .*CERTIFICATE_VERIFY_FAILED") as caught:
        make_client(base_url=server.base_url, retries=3, retry_base_ms=0).run("hi")

    assert not caught.value.retryable
    assert server.accepted == 1


def test_a_stranger_is_refused_in_an_own_kind_of_session_too(
    make_client: MakeClient, serve: Callable[..., RawServer], tls: ssl.SSLContext
) -> None:
    class MySession(requests.Session):
        pass

    server = serve(polite, tls=tls)
    with MySession() as session, pytest.raises(LlmError, match="TLS failed") as caught:
        make_client(base_url=server.base_url, session=session).run("hi")
    assert not caught.value.retryable


def test_a_handshake_that_breaks_off_is_a_network_error(
    make_client: MakeClient, serve: Callable[..., RawServer]
) -> None:
    server = serve(lambda peer: peer.sock.recv(1))
    with pytest.raises(LlmError) as caught:
        make_client(
            base_url=server.base_url.replace("http", "https"), retries=1, retry_base_ms=0
        ).run("hi")

    assert caught.value.retryable
    assert server.accepted == 2


def mute(got: threading.Event, gone: threading.Event) -> Callable[[Peer], None]:
    """Play a peer that takes the first bytes of a handshake and never answers."""

    def play(peer: Peer) -> None:
        assert peer.sock.recv(1)
        got.set()
        peer.wait_gone()
        gone.set()

    return play


def test_an_abort_ends_a_handshake(
    make_client: MakeClient, serve: Callable[..., RawServer], background: InBackground
) -> None:
    token, got, gone = CancelToken(), threading.Event(), threading.Event()
    server = serve(mute(got, gone))
    client = make_client(base_url=server.base_url.replace("http", "https"), retries=3)
    run = background(lambda: client.run("hi", cancel=token))
    assert got.wait(LIMIT)
    token.cancel()

    with pytest.raises(Cancelled):
        run.result()
    assert gone.wait(LIMIT)
    assert server.accepted == 1


def test_a_deadline_ends_a_handshake(
    make_client: MakeClient, serve: Callable[..., RawServer]
) -> None:
    got, gone = threading.Event(), threading.Event()
    base_url = serve(mute(got, gone)).base_url.replace("http", "https")
    with pytest.raises(RunTimeoutError, match="run timeout after 150ms"):
        make_client(base_url=base_url, timeout_ms=150, retries=3).run("hi")

    assert gone.wait(LIMIT)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{"])
@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_an_abort_ends_a_wait_over_tls(
    make_client: MakeClient,
    serve: Callable[..., RawServer],
    background: InBackground,
    tls: ssl.SSLContext,
    trusting: requests.Session,
    sent: bytes,
    timeout_ms: int | None,
) -> None:
    token, half_way, gone = CancelToken(), threading.Event(), threading.Event()

    def play(peer: Peer) -> None:
        peer.request()
        peer.send(sent)
        half_way.set()
        peer.wait_gone()
        gone.set()

    client = make_client(
        base_url=serve(play, tls=tls).base_url,
        session=trusting,
        retries=3,
        timeout_ms=timeout_ms,
    )
    run = background(lambda: client.run("hi", cancel=token))
    assert half_way.wait(LIMIT)
    token.cancel()

    with pytest.raises(Cancelled):
        run.result()
    assert gone.wait(LIMIT)


def test_tls_through_a_tunnel(
    make_client: MakeClient,
    serve: Callable[..., RawServer],
    tls: ssl.SSLContext,
    trusting: requests.Session,
) -> None:
    proxy, server = Proxy(), serve(polite, tls=tls)
    gate = serve(proxy.play)
    trusting.proxies["https"] = f"http://me:secret@127.0.0.1:{gate.port}"
    client = make_client(base_url=server.base_url, session=trusting)

    assert [client.run("hi").text for _ in range(2)] == ["hello"] * 2
    (connect,) = proxy.seen
    assert (connect.method, connect.target) == ("CONNECT", f"127.0.0.1:{server.port}")
    assert connect.headers["proxy-authorization"].startswith("Basic ")
    assert "authorization" not in connect.headers


def test_an_abort_ends_the_wait_for_a_tunnel(
    make_client: MakeClient,
    serve: Callable[..., RawServer],
    background: InBackground,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy, token = Proxy(), CancelToken()
    proxy.answers = False
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{serve(proxy.play).port}")
    client = make_client(base_url="https://api.invalid/v1", retries=3)
    run = background(lambda: client.run("hi", cancel=token))
    assert proxy.asked.wait(LIMIT)
    token.cancel()

    with pytest.raises(Cancelled):
        run.result()


def test_an_abort_ends_a_wait_inside_a_tunnel(
    make_client: MakeClient,
    serve: Callable[..., RawServer],
    background: InBackground,
    tls: ssl.SSLContext,
    trusting: requests.Session,
) -> None:
    token, asked, gone = CancelToken(), threading.Event(), threading.Event()

    def play(peer: Peer) -> None:
        peer.request()
        asked.set()
        peer.wait_gone()
        gone.set()

    server = serve(play, tls=tls)
    trusting.proxies["https"] = f"http://127.0.0.1:{serve(Proxy().play).port}"
    client = make_client(base_url=server.base_url, session=trusting, retries=3)
    run = background(lambda: client.run("hi", cancel=token))
    assert asked.wait(LIMIT)
    token.cancel()

    with pytest.raises(Cancelled):
        run.result()
    assert gone.wait(LIMIT)
