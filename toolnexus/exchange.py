"""Exchange: a reply on its way, and what is told of one that does not come."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import requests
import urllib3

from toolnexus.abort import Flight
from toolnexus.cancel import CancelToken
from toolnexus.chunks import ChunkedBody, is_plainly_chunked
from toolnexus.clock import RealClock
from toolnexus.errors import LlmError

Undo: TypeAlias = Callable[[], None]

FAULTS: Final = (urllib3.exceptions.HTTPError, requests.RequestException, OSError)
"""What a request may fail with, apart from a socket that is shut down under a TLS read."""

_PIECE: Final = 65_536
_real: Final = RealClock()  # a socket's timeout is real time, whatever clock the client has
_SILENT: Final = "read timeout (no bytes for read_timeout_ms)"


class Exchange:
    """A reply whose body is still on its way. Whoever opened it closes it.

    Attributes:
        status: HTTP status.
        headers: Case-insensitive.
    """

    def __init__(
        self, url: str, response: Any, flight: Flight, cancel: CancelToken, forget: Undo
    ) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self._url = url
        self._response = response
        self._flight = flight
        self._cancel = cancel
        self._forget = forget
        self._end: float | None = None
        self._is_read = False

    def read(self) -> bytes:
        """Return the whole body. Blocks.

        Raises:
            Cancelled: The token was thrown.
            LlmError: A reply of success broke off; an error's is done without.
        """
        try:
            body = bytes(self._response.read(decode_content=True))
            self._is_read = True
            return body
        except (*FAULTS, ValueError, AttributeError) as error:
            self._cancel.raise_if_cancelled()
            if self.status < 300:
                # Not sent again: the provider has answered, and will bill for it.
                raise self._broken(error) from error
            return b""

    def pieces(self) -> Iterator[bytes]:
        """Yield the body in pieces as they arrive, until its end. Blocks for each.

        Raises:
            Cancelled: The token was thrown.
            LlmError: The body broke off; worth another attempt where nobody has seen any of it.
        """
        read = ChunkedBody(self._response).read if is_plainly_chunked(self._response) else None
        read1 = getattr(self._response, "read1", None)
        if read is None and read1 is not None:
            read = partial(read1, _PIECE, decode_content=True)
        elif read is None:
            # urllib3 1 has no read1; byte by byte is slow, and never late.
            read = partial(self._response.read, 1)
        while True:
            try:
                piece = read()
            except (*FAULTS, ValueError, AttributeError) as error:
                self._cancel.raise_if_cancelled()
                raise self._broken(error, retryable=True) from error
            if not piece:
                self._cancel.raise_if_cancelled()
                return
            yield piece
            if self._end is not None and _real.monotonic() >= self._end:
                return

    def expect_end_within(self, seconds: float) -> None:
        """The body is as good as over: from now on `pieces` goes on for no longer than this."""
        self._end = _real.monotonic() + seconds
        self._flight.set_timeout(seconds)

    def skip_to_end(self, seconds: float) -> None:
        """Read what is left of a body that has said all, so that its connection is kept.

        Where the end does not come within `seconds`, the connection is given up instead.
        """
        self.expect_end_within(seconds)
        with contextlib.suppress(LlmError):
            for _ in self.pieces():
                pass

    def close(self) -> None:
        """Let go. A body that was not read to its end is aborted."""
        self._forget()
        self._flight.land()
        if not self._is_read:
            self._response.close()

    def _broken(self, error: Exception, *, retryable: bool = False) -> LlmError:
        host = host_of(self._url)
        cause = _first_cause(error)
        if isinstance(cause, (urllib3.exceptions.ReadTimeoutError, TimeoutError)):
            return LlmError(f"LLM request to {host}: {_SILENT}")
        return LlmError(f"LLM request to {host}: the reply broke off", retryable=retryable)


class SessionReply:
    """A reply of `Session.post` as urllib3 would give it, whatever adapter it came from."""

    def __init__(self, response: requests.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self._response = response
        self._pieces: Iterator[bytes] | None = None

    def read(self, *, decode_content: bool) -> bytes:  # noqa: ARG002 - always decoded
        """Return the whole body."""
        return self._response.content

    def read1(self, size: int, *, decode_content: bool) -> bytes:
        """Return what has come, or wait for the next bytes; b"" at the end."""
        raw = self._response.raw
        if isinstance(raw, urllib3.HTTPResponse) and hasattr(raw, "read1"):
            return bytes(raw.read1(size, decode_content=decode_content))
        if self._pieces is None:
            self._pieces = self._response.iter_content(1)
        return next(self._pieces, b"")

    def close(self) -> None:
        """Let go."""
        self._response.close()


def network_error(url: str, error: Exception) -> LlmError:
    """Return what the host is told of a request that got no reply."""
    host = host_of(url)
    reason = _first_cause(error)
    if isinstance(reason, (urllib3.exceptions.ReadTimeoutError, TimeoutError)):
        # Not retried: the provider may be at work on it, and will bill for it.
        return LlmError(f"LLM request to {host}: {_SILENT}")
    if isinstance(reason, ssl.SSLCertVerificationError):
        return LlmError(f"LLM request to {host}: TLS failed: {reason}")
    # What `requests` finds wrong with a URL or a header is a ValueError, and stays wrong.
    system = reason.__cause__ if isinstance(reason.__cause__, OSError) else reason
    said = f" ({system.strerror})" if isinstance(system, OSError) and system.strerror else ""
    return LlmError(
        f"LLM request to {host} failed: {type(reason).__name__}{said}",
        retryable=not isinstance(reason, ValueError),
    )


def host_of(url: str) -> str:
    """Return host and port of a URL, without anybody's password."""
    return urlsplit(url).netloc.rpartition("@")[2] or "?"


def _first_cause(error: Exception) -> Exception:
    """Return what `requests` and `MaxRetryError` wrap."""
    while True:
        inner = getattr(error, "reason", None) or (error.args[0] if error.args else None)
        if isinstance(error, urllib3.exceptions.ProtocolError) or not isinstance(
            inner, Exception
        ):
            return error
        error = inner
