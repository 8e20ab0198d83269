"""A cancelled request ends at once, wherever it is, and takes nothing else with it."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.conftest import LIMIT, MakeClient
from tests.http.raw_servers import Background, Peer, RawServer
from toolnexus import AgentDef, AgentRuntime, Cancelled, CancelToken, LlmClient
from toolnexus.abort import Flight, current_flight, make_abortable
from toolnexus.testing import ScriptedLlm, VirtualClock, status, text

InBackground = Callable[[Callable[[], Any]], Background]


def cancelled(run: Background, reason: str = "run cancelled") -> bool:
    with pytest.raises(Cancelled, match=f"^{reason}$"):
        run.result()
    return True


def spin_then(act: Callable[[], Any], steps: int) -> None:
    """Act a little later: another moment in each round."""
    for _ in range(steps * 200):
        pass
    act()


def test_a_thrown_token_asks_nothing(llm: ScriptedLlm, make_client: MakeClient) -> None:
    token = CancelToken()
    token.cancel("changed my mind")
    with pytest.raises(Cancelled, match="changed my mind"):
        make_client().run("hi", cancel=token)

    assert llm.requests == []


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_before_the_first_header(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground, style: str
) -> None:
    token = CancelToken()
    llm.say("m", text("never").held_by(threading.Event()))
    run = background(lambda: make_client(style=style, retries=3).run("hi", cancel=token))
    llm.wait_asked("m")
    token.cancel()

    assert cancelled(run)
    llm.wait_connections(0)
    assert len(llm.requests) == 1


@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_between_the_headers_and_the_body(
    llm: ScriptedLlm,
    make_client: MakeClient,
    background: InBackground,
    timeout_ms: int | None,
) -> None:
    token = CancelToken()
    llm.say("m", text("never").held_after_headers(threading.Event()))
    client = make_client(retries=3, timeout_ms=timeout_ms)
    run = background(lambda: client.run("hi", cancel=token))
    llm.wait_asked("m")
    token.cancel()

    assert cancelled(run)
    llm.wait_connections(0)


@pytest.mark.parametrize("timeout_ms", [None, 60_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_in_a_body_that_trickles(
    make_client: MakeClient,
    serve: Callable[..., RawServer],
    background: InBackground,
    timeout_ms: int | None,
    chunked: bool,
) -> None:
    token, half_way, left = CancelToken(), threading.Event(), threading.Event()

    def play(peer: Peer) -> None:
        peer.request()
        length = b"transfer-encoding: chunked" if chunked else b"content-length: 1000000"
        peer.send(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n")
        try:
            for sent in range(1000):
                peer.send(b"1\r\n \r\n" if chunked else b" ")
                if sent == 20:
                    half_way.set()
                if peer.closing.wait(0.002):
                    return
        except OSError:
            left.set()
            raise

    client = make_client(base_url=serve(play).base_url, retries=3, timeout_ms=timeout_ms)
    run = background(lambda: client.run("hi", cancel=token))
    assert half_way.wait(LIMIT)
    token.cancel()

    assert cancelled(run)
    assert left.wait(LIMIT)


def test_in_a_retry_wait(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    token, clock = CancelToken(), VirtualClock()
    llm.say("m", status(503), text("never"))
    run = background(lambda: make_client(retries=3, clock=clock).run("hi", cancel=token))
    clock.wait_parked(1)
    token.cancel()

    assert cancelled(run)
    assert len(llm.requests) == 1


@pytest.fixture
def black_hole() -> Iterator[int]:
    """Return the port of a listener whose backlog is full: a connect gets no answer."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def wait_connecting(port: int, count: int) -> None:
    """Block until `count` sockets wait for an answer to their SYN."""
    tick = threading.Event()
    for _ in range(int(LIMIT / 0.005)):
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        if sum(row[2].endswith(f":{port:04X}") and row[3] == "02" for row in rows) >= count:
            return
        tick.wait(0.005)
    raise TimeoutError(f"fewer than {count} sockets are connecting to {port}")


def connecting(port: int) -> int:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "02" for row in rows)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux says who is connecting")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_in_a_connect_that_gets_no_answer(
    make_client: MakeClient, background: InBackground, black_hole: int, scheme: str
) -> None:
    token, before = CancelToken(), connecting(black_hole)
    client = make_client(
        base_url=f"{scheme}://127.0.0.1:{black_hole}/v1",
        retries=3,
        connect_timeout_ms=3_600_000,
    )
    run = background(lambda: client.run("hi", cancel=token))
    wait_connecting(black_hole, before + 1)
    token.cancel()

    assert cancelled(run)
    assert connecting(black_hole) == before


before_connect: list[Callable[[], object]] = []


def _on_audit(event: str, _args: object) -> None:
    if event == "socket.connect" and before_connect:
        before_connect.pop()()


def test_in_the_moment_before_the_connect(make_client: MakeClient, black_hole: int) -> None:
    # A socket that does not connect yet cannot be shut down: the abort must not be lost.
    sys.addaudithook(_on_audit)
    client = make_client(
        base_url=f"http://127.0.0.1:{black_hole}/v1", connect_timeout_ms=3_600_000
    )
    token = CancelToken()
    before_connect.append(token.cancel)
    with pytest.raises(Cancelled):
        client.run("hi", cancel=token)

    assert before_connect == []


def test_an_abort_after_the_reply_does_not_touch_the_idle_connection(
    serve: Callable[..., RawServer],
) -> None:
    def play(peer: Peer) -> None:
        while peer.request():
            peer.reply()

    server = serve(play)
    with requests.Session() as session:
        make_abortable(session.get_adapter(server.base_url))
        for _ in range(3):
            flight = Flight()
            outer = current_flight.set(flight)
            assert session.post(server.base_url, data=b"{}", timeout=LIMIT).status_code == 200
            flight.abort()  # has not landed, but its connection is back in the pool
            current_flight.reset(outer)

    assert server.accepted == 1


def test_while_waiting_for_the_turn_gate(
    llm: ScriptedLlm, make_runtime: Callable[..., AgentRuntime]
) -> None:
    hold = threading.Event()
    llm.say("first", text("one").held_by(hold))
    llm.say("second", text("never"))
    rt = make_runtime(
        AgentDef("a", model="first"), AgentDef("b", model="second"), max_concurrent_turns=1
    )
    first, second = (rt.spawn(rt.root, name).handle for name in "ab")
    ended = [rt.future_result(handle) for handle in (first, second)]
    rt.wake(first, "go")
    llm.wait_asked("first")
    rt.wake(second, "go")
    rt.interrupt(second)

    assert ended[1].result(LIMIT).status == "interrupted"
    hold.set()
    assert ended[0].result(LIMIT).text == "one"
    assert llm.requests_of("second") == []


def test_only_its_own_request(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    hold, token = threading.Event(), CancelToken()
    llm.say("m", *[text("kept").held_by(hold)] * 4)
    client = make_client()
    others = [background(lambda: client.run("other").text) for _ in range(3)]
    mine = background(lambda: client.run("mine", cancel=token))
    llm.wait_asked("m", 4)
    token.cancel()

    assert cancelled(mine)
    hold.set()
    assert [other.result() for other in others] == ["kept"] * 3
    llm.wait_connections(3)


def test_a_late_cancel_does_not_reach_the_next_request_of_the_connection(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.answer("m", lambda request: text("hi"))
    client = make_client()
    for _ in range(20):
        token = CancelToken()
        client.run("hi", cancel=token)
        token.cancel()

    assert client.run("hi").text == "hi"
    assert llm.open_connections == 1  # the same all along: nothing was shut down


def test_a_cancel_as_the_reply_arrives_hits_nobody_else(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    """Runs that share connections, each cancelled about when its reply comes.

    With no retries, a neighbour whose connection was shut down would raise `LlmError`.
    """
    llm.answer("m", lambda request: text("hi"))
    client = make_client(max_workers=2)
    stop = threading.Event()

    def cancel_often() -> int:
        rounds = 0
        while not stop.is_set():
            token = CancelToken()
            timer = background(lambda token=token, n=rounds: spin_then(token.cancel, n % 50))
            with contextlib.suppress(Cancelled):
                client.run("mine", cancel=token)
            timer.join()
            rounds += 1
        return rounds

    def ask() -> None:
        for _ in range(150):
            assert client.run("other").text == "hi"

    noise = background(cancel_often)
    others = [background(ask) for _ in range(2)]
    try:
        for other in others:
            other.result()
    finally:
        stop.set()
    assert noise.result() > 0


def test_a_client_is_as_good_as_new_afterwards(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    client = make_client()
    for round_number in range(3):
        token = CancelToken()
        llm.say("m", text("never").held_by(threading.Event()), text("fine"))
        run = background(lambda token=token: client.run("hi", cancel=token))
        llm.wait_asked("m", 2 * round_number + 1)
        token.cancel()
        assert cancelled(run)
        assert client.run("again").text == "fine"


def test_a_cancelled_run_leaves_no_thread_and_no_connection(llm: ScriptedLlm) -> None:
    before = set(threading.enumerate())
    token = CancelToken()
    llm.say("m", text("never").held_by(threading.Event()))
    with LlmClient(base_url=llm.base_url, api_key="k", model="m") as client:
        run = Background(lambda: client.run("hi", cancel=token))
        llm.wait_asked("m")
        token.cancel()
        assert cancelled(run)
        run.join()
    llm.wait_connections(0)

    ours = [t for t in set(threading.enumerate()) - before if "toolnexus" in t.name]
    assert ours == []
