"""Aborting a request in flight: connections that tell which socket a request uses now.

A thread that posts makes a `Flight` current; the connection that carries the request aims the
flight at its socket before every step that may block, so another thread can shut exactly that
socket down, be it in connect, in the TLS handshake, before the header or in the body.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from contextvars import ContextVar
from typing import Any, Final

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.util import wait_for_write

_IN_PROGRESS: Final = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)

# Guards the pairing of flights and connections: without it an abort could hit the next
# request of a connection that has just gone back to the pool. Re-entrant: a dropped stream may
# be finalised in the middle of anything, on any thread.
_pairing = threading.RLock()


def _after_fork() -> None:
    # The parent's thread that may hold it does not exist here.
    global _pairing
    _pairing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Aborted(ConnectionAbortedError):
    """The request was aborted before it had a socket, so no other address is tried."""


class Flight:
    """One request on its way: knows the socket to shut down when the request is aborted."""

    __slots__ = ("_connection", "_is_aborted", "_socket")

    def __init__(self) -> None:
        self._connection: _Abortable | None = None
        self._socket: socket.socket | None = None
        self._is_aborted = False

    def aim(self, connection: _Abortable, sock: socket.socket | None) -> None:
        """Say which socket carries the request now.

        Raises:
            ConnectionAbortedError: The request was aborted before it had a socket.
        """
        with _pairing:
            if self._is_aborted:
                raise _Aborted("request aborted")
            connection.flight = self
            self._connection, self._socket = connection, sock

    def land(self) -> None:
        """Let go of the connection; an abort after this does nothing."""
        with _pairing:
            if self._connection is not None and self._connection.flight is self:
                self._connection.flight = None
            self._connection = self._socket = None

    def set_timeout(self, seconds: float) -> None:
        """Wait no longer than this for bytes from now on."""
        with _pairing:
            connection, sock = self._connection, self._socket
            # A body that was read to its end has given the connection to somebody else.
            if sock is None or connection is None or connection.flight is not self:
                return
            with contextlib.suppress(OSError):
                sock.settimeout(seconds)

    def abort(self) -> None:
        """End the request at once, whatever it waits for: connect, handshake, header, body."""
        with _pairing:
            self._is_aborted = True
            connection, sock = self._connection, self._socket
            if sock is None or connection is None or connection.flight is not self:
                return
            try:
                # The base method: ssl's own would pull the TLS state away from the reader.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return  # already closed by the thread that reads it


_HELD_BYTES: Final = 65_536
"""A longer piece is sent by itself: copying it would cost more than a packet."""

current_flight: ContextVar[Flight | None] = ContextVar("toolnexus_flight", default=None)


class _Abortable(HTTPConnection):
    """A connection that tells the current flight which socket it uses."""

    flight: Flight | None = None
    _held: list[bytes] | None = None

    def request(self, *args: Any, **kwargs: Any) -> None:
        flight = current_flight.get()
        if flight is not None and self.sock is not None:
            flight.aim(self, _plain(self.sock))
        self._held = []
        try:
            super().request(*args, **kwargs)
            self._flush()
        finally:
            self._held = None

    def send(self, data: Any) -> None:
        """Hold small pieces back, so that header and body leave in one packet."""
        if self._held is not None and isinstance(data, bytes) and len(data) <= _HELD_BYTES:
            self._held.append(data)
            return
        self._flush()
        super().send(data)

    def _flush(self) -> None:
        held, self._held = self._held, None
        if held:
            super().send(b"".join(held))

    def connect(self) -> None:
        super().connect()
        flight = current_flight.get()
        if flight is not None:
            flight.aim(self, _plain(self.sock))

    def _new_conn(self) -> socket.socket:
        flight = current_flight.get()
        if flight is None:
            return super()._new_conn()
        try:
            return self._connect_aimed(flight)
        except TimeoutError as error:
            raise ConnectTimeoutError(
                self, f"Connection to {self.host} timed out after {self.timeout} s"
            ) from error
        except OSError as error:
            raise NewConnectionError(self, f"Failed to connect: {error}") from error

    def _connect_aimed(self, flight: Flight) -> socket.socket:
        """Connect like `socket.create_connection`, aimed for as long as an attempt blocks."""
        failure: OSError = OSError(f"{self.host} has no address")
        for family, kind, proto, _, address in socket.getaddrinfo(
            self._dns_host, self.port, 0, socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, proto)
            try:
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                if self.source_address:
                    sock.bind(self.source_address)
                self._connect_one(flight, sock, address)
                return sock
            except _Aborted:
                sock.close()
                raise
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure

    def _connect_one(self, flight: Flight, sock: socket.socket, address: Any) -> None:
        timeout = self.timeout
        if not (timeout is None or isinstance(timeout, (int, float))):
            timeout = socket.getdefaulttimeout()
        sock.settimeout(0)
        _raise_unless(sock.connect_ex(address), _IN_PROGRESS)
        # Only now: a socket that does not connect yet cannot be shut down, so an abort just
        # before the attempt would be lost.
        flight.aim(self, sock)
        if not wait_for_write(sock, timeout):
            raise TimeoutError("timed out")
        _raise_unless(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), (0,))
        sock.settimeout(timeout)


class _AbortableTls(_Abortable, HTTPSConnection):
    """The same over TLS, through the handshake as well."""

    def connect(self) -> None:
        self._handshake: socket.socket | None = None
        try:
            super().connect()
        finally:
            if self._handshake is not None:
                self._handshake.close()

    def _connect_aimed(self, flight: Flight) -> socket.socket:
        sock = super()._connect_aimed(flight)
        # TLS takes the descriptor out of the plain socket, so a duplicate stands in for it
        # until the handshake is over.
        try:
            self._handshake = sock.dup()
            flight.aim(self, self._handshake)
        except BaseException:
            sock.close()
            raise
        return sock


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Abortable

    def _put_conn(self, conn: Any) -> None:
        _unpair(conn)
        super()._put_conn(conn)


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _AbortableTls

    def _put_conn(self, conn: Any) -> None:
        _unpair(conn)
        super()._put_conn(conn)


def _unpair(connection: object) -> None:
    """Part a connection from its request before the next one can have it."""
    if isinstance(connection, _Abortable):
        with _pairing:
            connection.flight = None


_POOL_CLASSES: Final[dict[type, type[HTTPConnectionPool]]] = {
    HTTPConnectionPool: _Pool,
    HTTPSConnectionPool: _TlsPool,
}


class _ProxyManagers(dict[str, Any]):
    """An adapter's managers by proxy: it makes them one by one, at first use."""

    def __setitem__(self, proxy: str, manager: Any) -> None:
        _adopt(manager)
        super().__setitem__(proxy, manager)


def make_abortable(adapter: Any) -> None:
    """Let connections that `adapter` makes from now on be aborted from another thread.

    Pools of another class (a SOCKS proxy's, a user's own) stay what they are.
    """
    _adopt(getattr(adapter, "poolmanager", None))
    proxied = getattr(adapter, "proxy_manager", None)
    if type(proxied) is dict:
        adapter.proxy_manager = managers = _ProxyManagers()
        for proxy, manager in proxied.items():
            managers[proxy] = manager


def _adopt(manager: object) -> None:
    if not isinstance(manager, urllib3.PoolManager):
        return
    manager.pool_classes_by_scheme = {
        scheme: _POOL_CLASSES.get(kind, kind)
        for scheme, kind in manager.pool_classes_by_scheme.items()
    }
    # Pools that were made before are forgotten, so that none is used again; requests on their
    # way end as they would have.
    for key in manager.pools.keys():  # noqa: SIM118 - it cannot be iterated
        if type(manager.pools.get(key)) in _POOL_CLASSES:
            manager.pools.pop(key, None)


def _raise_unless(code: int, fine: tuple[int, ...]) -> None:
    if code not in fine:
        raise OSError(code, os.strerror(code))


def _plain(sock: Any) -> socket.socket:
    # TLS inside TLS is no socket but holds one.
    return sock if isinstance(sock, socket.socket) else sock.socket
