"""A small HTTP/1.1 server on loopback whose threads and sockets all end with it.

Not `http.server`: that one cannot tell a client that hung up while its reply is held, polls
twice a second for its own end, and writes tracebacks for clients that go away.
"""

from __future__ import annotations

import contextlib
import http.client
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs

from toolnexus.testing.recorded import Headers
from toolnexus.testing.replies import Gate

_BACKLOG: Final = 256
_JOIN_SECONDS: Final = 5.0
_GATE_SLICE_SECONDS: Final = 0.02
"""How often a held reply looks whether its client is still there."""

_LONGEST_LINE: Final = 65_536


class HungUp(Exception):
    """The client is gone, or the server is closing."""


@attrs.frozen
class HttpRequest:
    """One request as it came over the wire."""

    method: str
    path: str
    headers: Headers
    content: bytes


class Connection:
    """The server's end of one client connection. One thread reads and writes it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._reader = sock.makefile("rb")

    def receive(self) -> HttpRequest:
        """Block for the next request.

        Raises:
            HungUp: There is none, or it is not HTTP/1.1 with a content length.
        """
        line = self._reader.readline(_LONGEST_LINE)
        parts = line.decode("latin-1").split()
        if len(parts) != 3:
            raise HungUp
        try:
            headers = Headers(dict(http.client.parse_headers(self._reader).items()))
            length = int(headers.get("content-length", "0"))
        except (http.client.HTTPException, ValueError):
            raise HungUp from None
        if headers.get("expect", "").lower() == "100-continue":
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        content = self._reader.read(length)
        if len(content) < length:
            raise HungUp
        return HttpRequest(parts[0], parts[1].partition("?")[0], headers, content)

    def send(
        self,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        body_gate: Gate | None = None,
        *,
        cut: bool = False,
    ) -> None:
        """Write a response; with a gate or a cut, the body apart from its headers.

        Raises:
            HungUp: The client left while the gate was shut, or `cut` asked for half a body.
            OSError: The client left at another time.
        """
        head = _head(status, {**headers, "content-length": str(len(body))})
        if body_gate is not None:
            self._sock.sendall(head)
            self.wait_for(body_gate)
            head = b""
        if cut:
            self._sock.sendall(head + body[: len(body) // 2])
            raise HungUp
        self._sock.sendall(head + body)

    def stream(
        self,
        status: int,
        headers: Mapping[str, str],
        steps: Iterable[bytes | Gate],
        *,
        cut: bool = False,
    ) -> None:
        """Write a response in chunks, and wait for the gates between them.

        Raises:
            HungUp: The client left while a gate was shut, or `cut` asked for no end.
            OSError: The client left at another time.
        """
        unsent = [_head(status, {**headers, "transfer-encoding": "chunked"})]
        for step in steps:
            if isinstance(step, bytes):
                unsent.append(b"%x\r\n%b\r\n" % (len(step), step))
                continue
            self._sock.sendall(b"".join(unsent))
            unsent = []
            self.wait_for(step)
        if cut:
            self._sock.sendall(b"".join(unsent))
            raise HungUp
        self._sock.sendall(b"".join([*unsent, b"0\r\n\r\n"]))

    def wait_for(self, gate: Gate) -> None:
        """Block until `gate` is open.

        Raises:
            HungUp: The client left, or the server closes.
        """
        while not gate.wait(_GATE_SLICE_SECONDS):
            if self._is_gone():
                raise HungUp

    def hang_up(self) -> None:
        """End the connection; wakes the thread that reads it. Safe from any thread."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up and free the socket. Only for the thread that reads it."""
        self.hang_up()
        self._reader.close()
        self._sock.close()

    def _is_gone(self) -> bool:
        self._sock.settimeout(0)
        try:
            return self._sock.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._sock.settimeout(None)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    phrase = http.client.responses.get(status, "Scripted")
    lines = [f"HTTP/1.1 {status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


class LoopbackServer:
    """Accepts connections on a port of 127.0.0.1, one thread for each.

    Args:
        respond: Answers one request on the connection's thread. It may raise `HungUp` or
            `OSError` to end the connection.
        port: 0 for any that is free.
    """

    def __init__(
        self, respond: Callable[[HttpRequest, Connection], None], port: int = 0
    ) -> None:
        self._respond = respond
        # Guards _open and _threads; notified when a connection comes or goes.
        self._changed = threading.Condition(threading.Lock())
        self._open: set[Connection] = set()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        self._listener.settimeout(0)
        self.port: int = self._listener.getsockname()[1]
        self._bell, self._ringer = socket.socketpair()
        self._acceptor = threading.Thread(
            target=self._accept, name=f"scripted-llm-{self.port}", daemon=True
        )
        self._acceptor.start()

    @property
    def open_connections(self) -> int:
        """How many clients are connected."""
        with self._changed:
            return len(self._open)

    def wait_connections(self, most: int, timeout: float) -> bool:
        """Block until at most `most` clients are connected; say whether that came about."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._open) <= most, timeout)

    def close(self) -> None:
        """End every connection, thread and socket. May be called again.

        Raises:
            TimeoutError: A thread is stuck in a function of the test.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
        self._ringer.sendall(b"x")
        self._acceptor.join(_JOIN_SECONDS)
        for end in (self._listener, self._bell, self._ringer):
            end.close()
        with self._changed:
            threads = list(self._threads)
            for connection in self._open:
                connection.hang_up()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)
            if thread.is_alive() and thread is not threading.current_thread():
                raise TimeoutError(f"{thread.name} is stuck in an answer function")

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._bell in ready:
                    return
                with contextlib.suppress(OSError):  # the client left before it was accepted
                    self._start(self._listener.accept()[0])

    def _start(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        try:
            connection = Connection(sock)
        except OSError:
            sock.close()
            return
        thread = threading.Thread(
            target=self._serve,
            args=(connection,),
            name=f"scripted-llm-{self.port}-connection",
            daemon=True,
        )
        with self._changed:
            self._threads = [old for old in self._threads if old.is_alive()]
            thread.start()
            self._threads.append(thread)
            self._open.add(connection)
            self._changed.notify_all()

    def _serve(self, connection: Connection) -> None:
        try:
            with contextlib.suppress(HungUp, OSError):
                while True:
                    request = connection.receive()
                    self._respond(request, connection)
                    if request.headers.get("connection", "").lower() == "close":
                        return
        finally:
            # Under the lock, so that `close` never hangs up a socket whose number is reused.
            with self._changed:
                connection.close()
                self._open.discard(connection)
                self._changed.notify_all()
