"""Aborting a request in flight: connections that tell which socket a request uses now.

A thread that posts makes a `Flight` current; the connection that carries the request aims the
flight at its socket before every step that may block, so another thread can shut exactly that
socket down, be it in connect, in the TLS handshake, before the header or in the body.
"""

from __future__ import annotations

import os
import socket
import threading
from contextvars import ContextVar
from typing import Any, Final

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

# Guards the pairing of flights and connections: without it an abort could hit the next
# request of a connection that has just gone back to the pool.
_pairing = threading.Lock()


def _after_fork() -> None:
    # The parent's thread that may hold it does not exist here.
    global _pairing
    _pairing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
                raise ConnectionAbortedError("request aborted")
            connection.flight = self
            self._connection, self._socket = connection, sock

    def land(self) -> None:
        """Let go of the connection; an abort after this does nothing."""
        with _pairing:
            if self._connection is not None and self._connection.flight is self:
                self._connection.flight = None
            self._connection = self._socket = None

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


current_flight: ContextVar[Flight | None] = ContextVar("toolnexus_flight", default=None)


class _Abortable(HTTPConnection):
    """A connection that tells the current flight which socket it uses."""

    flight: Flight | None = None

    def request(self, *args: Any, **kwargs: Any) -> None:
        flight = current_flight.get()
        if flight is not None and self.sock is not None:
            flight.aim(self, _plain(self.sock))
        super().request(*args, **kwargs)

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
        """Connect like `socket.create_connection`, aiming before each attempt blocks."""
        failure: OSError = OSError(f"{self.host} has no address")
        for family, kind, proto, _, address in socket.getaddrinfo(
            self._dns_host, self.port, 0, socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, proto)
            try:
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                if isinstance(self.timeout, (int, float)) or self.timeout is None:
                    sock.settimeout(self.timeout)
                if self.source_address:
                    sock.bind(self.source_address)
                flight.aim(self, sock)
                sock.connect(address)
                return sock
            except OSError as error:
                sock.close()
                failure = error
        raise failure


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
        self._handshake = sock.dup()
        flight.aim(self, self._handshake)
        return sock


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Abortable


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _AbortableTls


_POOL_CLASSES: Final = {"http": _Pool, "https": _TlsPool}


def make_abortable(adapter: object) -> None:
    """Let connections that `adapter` makes from now on be aborted from another thread."""
    manager = getattr(adapter, "poolmanager", None)
    if isinstance(manager, urllib3.PoolManager):
        manager.pool_classes_by_scheme = _POOL_CLASSES
    for proxied in getattr(adapter, "proxy_manager", {}).values():
        proxied.pool_classes_by_scheme = _POOL_CLASSES


def _plain(sock: Any) -> socket.socket:
    # TLS inside TLS is no socket but holds one.
    return sock if isinstance(sock, socket.socket) else sock.socket
