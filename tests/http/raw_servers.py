"""Servers that misbehave byte by byte, a proxy, and work on a thread of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeAlias

import attrs

from tests.conftest import LIMIT

HELLO: dict[str, Any] = {
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40},
}


class Gone(Exception):
    """The other side hung up."""


@attrs.frozen
class Incoming:
    """One request: the first line in two parts, headers by lower-case name, the body."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """One accepted connection."""

    def __init__(self, sock: socket.socket, closing: threading.Event) -> None:
        self.sock = sock
        self.closing = closing
        self._reader = sock.makefile("rb")

    def request(self) -> Incoming:
        """Block for the next request; raise `Gone` where there is none."""
        line = self._reader.readline().decode("latin-1").split()
        if len(line) != 3:
            raise Gone
        headers = {}
        while text := self._reader.readline().decode("latin-1").strip():
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        body = self._reader.read(int(headers.get("content-length", "0")))
        return Incoming(line[0], line[1], headers, body)

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.sock.sendall(data)

    def reply(
        self, body: object = HELLO, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole response; a body that is not bytes is sent as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + content)

    def wait_gone(self) -> None:
        """Block until the client has hung up."""
        with contextlib.suppress(OSError):
            while self._reader.read(65_536):
                pass

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


Handler: TypeAlias = Callable[[Peer], None]


class RawServer:
    """A TCP server on loopback; each connection is played by `handle` on its own thread."""

    def __init__(
        self, handle: Handler, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        self._handle = handle
        self._tls = tls
        self._closing = threading.Event()
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        scheme = "http" if tls is None else "https"
        self.base_url = f"{scheme}://{host}:{self.port}/v1"
        self.accepted = 0
        self._peers: list[Peer] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Hang up on everybody and join all threads."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(LIMIT)
        self._listener.close()
        for peer in self._peers:
            peer.close()
        for thread in self._threads:
            thread.join(LIMIT)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            thread = threading.Thread(target=self._play, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _play(self, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
        except OSError:
            sock.close()
            return
        with sock:
            peer = Peer(sock, self._closing)
            self._peers.append(peer)
            with contextlib.suppress(OSError, Gone, ValueError), peer._reader:
                self._handle(peer)
            peer.close()


class Proxy:
    """Plays a forward proxy that also tunnels; give its `play` to a `RawServer`."""

    def __init__(self) -> None:
        self.seen: list[Incoming] = []
        self.asked = threading.Event()
        self.answers = True

    def play(self, peer: Peer) -> None:
        while True:
            request = peer.request()
            self.seen.append(request)
            self.asked.set()
            if not self.answers:
                peer.wait_gone()
                return
            if request.method == "CONNECT":
                self._tunnel(peer, request)
                return
            self._forward(peer, request)

    def _forward(self, peer: Peer, request: Incoming) -> None:
        host, _, path = request.target.partition("://")[2].partition("/")
        name, _, port = host.partition(":")
        with socket.create_connection((name, int(port)), LIMIT) as upstream:
            lines = [f"POST /{path} HTTP/1.1"]
            lines += [f"{k}: {v}" for k, v in request.headers.items() if k != "connection"]
            lines += ["connection: close", "", ""]
            upstream.sendall("\r\n".join(lines).encode("latin-1") + request.body)
            while data := upstream.recv(65_536):
                peer.send(data)

    def _tunnel(self, peer: Peer, request: Incoming) -> None:
        name, _, port = request.target.partition(":")
        with socket.create_connection((name, int(port)), LIMIT) as upstream:
            upstream.settimeout(None)
            peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pump, args=(upstream, peer.sock), daemon=True)
            back.start()
            _pump(peer.sock, upstream)
            back.join(LIMIT)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


class Background:
    """A function on a thread of its own."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._future: Future[Any] = Future()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def result(self) -> Any:
        """Return what the function gave, or raise what it raised."""
        return self._future.result(LIMIT)

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "work in the background did not end"

    @property
    def is_done(self) -> bool:
        """Whether the function has ended."""
        return self._future.done()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._future.set_result(work())
        except BaseException as error:
            self._future.set_exception(error)
