"""Chunked bodies, read in as large pieces as have arrived.

A streamed reply has a chunk for each event. urllib3 and http.client take several calls for each
chunk, which costs more than parsing what is in it; here everything that has come is taken at
once, and nothing is waited for that is not needed.
"""

from __future__ import annotations

import re
from typing import Any, Final

import urllib3
from urllib3.exceptions import InvalidChunkLength, ProtocolError

_PIECE: Final = 65_536
_HEAD_MOST: Final = 4_096
"""More than any size line or trailer needs."""

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")


def is_plainly_chunked(response: object) -> bool:
    """Say whether a response is chunked, has no other coding, and its connection is at hand."""
    return (
        type(response) is urllib3.HTTPResponse
        and response.chunked
        and response.supports_chunked_reads()
        and "content-encoding" not in response.headers
        and hasattr(getattr(response._fp, "fp", None), "read1")  # noqa: SLF001 - as urllib3 does
    )


class ChunkedBody:
    """The body of a chunked response whose connection nobody else reads from."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._file = response._fp.fp  # noqa: SLF001 - urllib3's own way to read chunks
        self._buffer = b""
        # What is left of the chunk under way: its bytes, and then its line end.
        self._left = 0
        self._is_over = False

    def read(self) -> bytes:
        """Return what has come, waiting for at least a byte; b"" once the body is over.

        Raises:
            ProtocolError: It broke off, or is not chunked as it should be.
        """
        while not self._is_over:
            arrived = self._file.read1(_PIECE)
            if not arrived:
                raise ProtocolError("the chunked body broke off")
            self._buffer += arrived
            piece = self._take()
            if piece:
                return piece
        return b""

    def _take(self) -> bytes:
        """Return the content of all of the buffer that can be understood, and keep the rest."""
        buffer, at, content = self._buffer, 0, []
        while True:
            if self._left > 2:
                end = min(at + self._left - 2, len(buffer))
                content.append(buffer[at:end])
                self._left -= end - at
                at = end
                if self._left > 2:
                    break  # the chunk goes on
            if self._left:
                if len(buffer) < at + 2:
                    break
                if buffer[at : at + 2] != b"\r\n":
                    raise ProtocolError("a chunk is longer than it says")
                at, self._left = at + 2, 0
            line_end = buffer.find(b"\r\n", at)
            if line_end < 0:
                self._check_head(len(buffer) - at)
                break
            size = _SIZE.fullmatch(buffer, at, line_end)
            if size is None:
                raise InvalidChunkLength(self._response, buffer[at:line_end])
            length = int(size[1], 16)
            if length == 0:
                at = self._end(buffer, at, line_end)
                break
            at, self._left = line_end + 2, length + 2
        self._buffer = buffer[at:]
        return b"".join(content)

    def _end(self, buffer: bytes, at: int, line_end: int) -> int:
        """Give the connection back if the trailer is there; return where reading stopped."""
        if buffer.startswith(b"\r\n", line_end + 2):
            end = line_end + 4
        else:
            end = buffer.find(b"\r\n\r\n", line_end) + 4
            if end < 4:
                self._check_head(len(buffer) - at)
                return at
        self._is_over = True
        if end < len(buffer):
            # Nobody asked for more, so it cannot be the next request's reply.
            self._response.close()
        else:
            self._response._original_response.close()  # noqa: SLF001 - as `read_chunked` ends
            self._response.release_conn()
        return end

    @staticmethod
    def _check_head(length: int) -> None:
        if length > _HEAD_MOST:
            raise ProtocolError("a chunk's size or the trailer is too long")
