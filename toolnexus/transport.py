"""One POST over a `requests` session, which another thread can abort at any moment.

The session decides proxies, certificates and adapters; its settings are merged once, not at
every request. A plain `HTTPAdapter` is reached through its urllib3 pool, which costs less than
half of `Session.post`; a session or adapter of another class is asked as its author meant it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import attrs
import requests
import urllib3
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.cookies import extract_cookies_to_jar
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ClosedPoolError

from toolnexus.abort import Flight, current_flight, make_abortable
from toolnexus.cancel import CancelToken
from toolnexus.errors import ConfigError
from toolnexus.exchange import FAULTS, Exchange, SessionReply, network_error


@attrs.frozen
class _Route:
    """Where a URL leads with the session's settings merged."""

    stamp: tuple[object, ...] = attrs.field(repr=False)
    pool: HTTPConnectionPool
    target: str
    request: requests.PreparedRequest = attrs.field(repr=False)
    headers: dict[str, str] = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Timeouts:
    """How long one request may take.

    Attributes:
        connect_seconds: Until the connection stands.
        read_seconds: Between two arrivals of bytes.
    """

    connect_seconds: float
    read_seconds: float


class Transport:
    """Sends requests and takes them back. Thread-safe; one serves any number of threads."""

    def __init__(self, session: requests.Session | None = None, pool_size: int = 32) -> None:
        """Make a transport.

        Args:
            session: The caller's own; it is never closed here. None makes one at first use.
            pool_size: Connections that are kept alive.
        """
        self._given = session
        self._pool_size = pool_size
        self._begin()

    def after_fork(self) -> None:
        """Begin without connections: a forked child must not talk over its parent's sockets."""
        if self._given is not None:
            for adapter in self._given.adapters.values():
                adapter.close()
        self._begin()

    def _begin(self) -> None:
        # Guards _own and _is_closed, and the writing of _routes, whose readers need no lock.
        self._lock = threading.Lock()
        self._own: requests.Session | None = None
        self._is_closed = False
        self._routes: dict[str, _Route] = {}

    def open(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        cancel: CancelToken,
        timeouts: Timeouts,
    ) -> Exchange:
        """Post `body` and return as soon as status and headers are there. Blocks.

        `cancel` aborts the request until the exchange is closed, by the caller.

        Raises:
            Cancelled: `cancel` was thrown; the request is aborted at once.
            LlmError: No reply came; `retryable` says whether trying again makes sense.
        """
        flight = Flight()
        outer = current_flight.set(flight)
        forget = cancel.on_cancel(flight.abort, is_urgent=True)
        is_open = False
        try:
            cancel.raise_if_cancelled()
            response = self._send(url, headers, body, timeouts)
            is_open = True
            return Exchange(url, response, flight, cancel, forget)
        except FAULTS as error:
            cancel.raise_if_cancelled()
            raise network_error(url, error) from None
        except (ValueError, AttributeError) as error:
            # A socket that is shut down under a TLS read surfaces as either.
            cancel.raise_if_cancelled()
            raise network_error(url, error) from error
        finally:
            # Only sending looks at it: where the reply is read there may be other requests.
            current_flight.reset(outer)
            if not is_open:
                forget()
                flight.land()

    def close(self) -> None:
        """Close the connections of the transport's own session, for good."""
        with self._lock:
            self._is_closed = True
            own, self._own = self._own, None
            routes, self._routes = self._routes, {}
        if own is not None:
            # A session leaves the closing of its pools to the garbage collector.
            for route in routes.values():
                route.pool.close()
            own.close()

    def _send(
        self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts
    ) -> Any:
        """Return urllib3's response, or what stands in for it, its body unread."""
        session = self._session()
        timeout = (timeouts.connect_seconds, timeouts.read_seconds)
        adapter = session.get_adapter(url)
        if not _is_plain(session, adapter):
            return self._send_by_session(session, url, headers, body, timeout)
        for attempt in (1, 2):
            route = self._route(session, adapter, url, headers)
            try:
                response = route.pool.urlopen(
                    "POST",
                    route.target,
                    body=body,
                    headers=route.headers,
                    retries=False,
                    redirect=False,
                    assert_same_host=False,
                    preload_content=False,
                    timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
                )
            except ClosedPoolError:
                # The session dropped the pool (it keeps the ten last used); nothing was sent.
                if attempt == 2:
                    raise
                self._forget_route(url)
                continue
            if self._given is not None and "set-cookie" in response.headers:
                extract_cookies_to_jar(  # type: ignore[no-untyped-call]  # requests
                    session.cookies, route.request, response
                )
            return response
        raise AssertionError("unreachable")

    def _send_by_session(
        self,
        session: requests.Session,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout: tuple[float, float],
    ) -> Any:
        make_abortable(session.get_adapter(url))
        response = session.post(
            url,
            data=body,
            headers=dict(headers),
            # Without one of its own, a session would put a key from ~/.netrc over ours.
            auth=session.auth or _as_it_is,
            timeout=timeout,
            allow_redirects=False,
            stream=True,
        )
        return SessionReply(response)

    def _session(self) -> requests.Session:
        if self._is_closed:
            raise ConfigError("closed: make a new client or runtime")
        if self._given is not None:
            return self._given
        with self._lock:
            if self._own is None:
                self._own = requests.Session()
                for scheme in ("http://", "https://"):
                    adapter = HTTPAdapter(pool_connections=8, pool_maxsize=self._pool_size)
                    self._own.mount(scheme, adapter)
            return self._own

    def _route(
        self,
        session: requests.Session,
        adapter: BaseAdapter,
        url: str,
        headers: Mapping[str, str],
    ) -> _Route:
        stamp = (
            id(session),
            id(adapter),
            session.trust_env,
            session.verify,
            session.cert,
            tuple(session.proxies.items()),
            tuple(session.headers.items()),
            tuple(headers.items()),
        )
        route = self._routes.get(url)
        if route is None or route.stamp != stamp:
            route = _find_route(session, url, headers, stamp)
            with self._lock:
                self._routes[url] = route
        return route

    def _forget_route(self, url: str) -> None:
        with self._lock:
            self._routes.pop(url, None)


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _is_plain(session: requests.Session, adapter: BaseAdapter) -> bool:
    """Say whether a POST through the adapter's pool is all that the session would do."""
    return (
        type(session) is requests.Session
        and type(adapter) is HTTPAdapter
        and session.auth is None
        and not session.hooks.get("response")
        and not session.params
        and not session.cookies
    )


def _find_route(
    session: requests.Session,
    url: str,
    headers: Mapping[str, str],
    stamp: tuple[object, ...],
) -> _Route:
    adapter = session.get_adapter(url)
    assert isinstance(adapter, HTTPAdapter)  # noqa: S101 - _is_plain asked
    # A session header of None takes the header away, as `requests` has it.
    own: Mapping[str, Any] = session.headers
    kept = {name: value for name, value in own.items() if value is not None}
    request = requests.Request("POST", url, headers={**kept, **headers}, data=b"{}")
    prepared = request.prepare()
    del prepared.headers["Content-Length"]
    settings = session.merge_environment_settings(url, {}, None, None, None)
    proxies, verify, cert = settings["proxies"], settings["verify"], settings["cert"]
    make_abortable(adapter)
    pool: Any = adapter.get_connection_with_tls_context(
        prepared, verify, proxies=proxies, cert=cert
    )
    adapter.cert_verify(pool, url, verify, cert)  # type: ignore[no-untyped-call]  # requests
    target = adapter.request_url(prepared, proxies)
    return _Route(stamp, pool, target, prepared, dict(prepared.headers))
