"""What a content part is made from: a path, bytes, a file object, a data URL, an https URL."""

from __future__ import annotations

import os
import re
import stat
from typing import Final, Protocol, TypeAlias
from urllib.parse import unquote

import attrs

from toolnexus.errors import ConfigError
from toolnexus.parts.media import is_data_url, read_data_url, require_https, without_base64

READ_MOST_BYTES: Final = 128 * 2**20
"""No source is read beyond this, whatever a client's `max_part_bytes`: it is held in memory."""

_CHUNK_BYTES: Final = 2**20
_PATH_CHARS: Final = 4096
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_WAYS: Final = "a path, bytes, a binary file object, a data: URL or an https:// URL"


class BinaryFile(Protocol):
    """A file opened in binary mode, or anything that reads like one."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


PartSource: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryFile"


@attrs.frozen
class Source:
    """A source that has been read.

    Attributes:
        data: Its bytes; empty for an https URL.
        url: The https URL, which the provider fetches; "" for what has bytes.
        name: The name of the file; "" where there is none.
        media_type: What a data URL says of itself; "" elsewhere.
    """

    data: bytes = attrs.field(default=b"", repr=False)
    url: str = attrs.field(default="", repr=False)
    name: str = ""
    media_type: str = ""


def read_source(source: PartSource) -> Source:
    """Read a source to its end. A file object is read from where it is, and left open.

    Raises:
        ConfigError: It is something else, cannot be read, is empty or too large, or has a
            scheme that is not taken. The message quotes no data and no query.
    """
    read = _read(source)
    if not read.data and not read.url:
        raise ConfigError("the source is empty: no provider takes a part of 0 bytes")
    return read


def _read(source: object) -> Source:
    if isinstance(source, (bytes, bytearray, memoryview)):
        _check_size(memoryview(source).nbytes)
        return Source(bytes(source))
    if is_data_url(source):
        _check_size(len(str(source)) * 3 // 4)
        media_type, data = read_data_url(str(source))
        return Source(data, media_type=media_type)
    if isinstance(source, str):
        scheme = _SCHEME.match(source)
        return _read_path(source) if scheme is None else _web(source, scheme[1].lower())
    if isinstance(source, os.PathLike):
        return _read_path(os.fsdecode(source))
    if callable(getattr(source, "read", None)):
        name = getattr(source, "name", None)
        data = _read_file(source, "the file object")  # type: ignore[arg-type]  # it reads
        return Source(data, name=os.path.basename(name) if isinstance(name, str) else "")
    raise ConfigError(f"a part is made from {_WAYS}, not {type(source).__name__}")


def _web(url: str, scheme: str) -> Source:
    if scheme == "file":
        raise ConfigError("a file: URL is not taken; give its path")
    if scheme != "https":
        raise ConfigError(
            f"{scheme}:// is not taken: the provider fetches the URL, and only over https://; "
            "fetch it yourself and give the bytes"
        )
    path = require_https(url)
    return Source(url=url, name=os.path.basename(unquote(path)))


def _read_path(path: str) -> Source:
    if len(path) > _PATH_CHARS:
        raise ConfigError(
            f"a str is a path or a URL, and this one of {len(path):,} characters is neither; "
            "for base64 write data:<media type>;base64,<it>"
        )
    shown = without_base64(path)
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "no regular file; open it yourself"
            raise ConfigError(f"{shown!r} is {kind}")
        with open(path, "rb") as file:
            _check_size(os.fstat(file.fileno()).st_size)
            return Source(_read_file(file, repr(shown)), name=os.path.basename(path))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{shown!r} cannot be read: {why}") from None


def _read_file(file: BinaryFile, what: str) -> bytes:
    read = bytearray()
    while True:
        try:
            chunk: object = file.read(_CHUNK_BYTES)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise ConfigError(f"{what} cannot be read: {why}") from None
        if not isinstance(chunk, (bytes, bytearray, memoryview)):
            kind = type(chunk).__name__
            raise ConfigError(
                f"{what} gave {kind} where bytes were due; open it in binary mode"
            )
        if not len(chunk):
            return bytes(read)
        read += chunk
        _check_size(len(read))


def _check_size(size_bytes: int) -> None:
    if size_bytes > READ_MOST_BYTES:
        raise ConfigError(
            f"the source is larger than {READ_MOST_BYTES:,} bytes, the most a part may hold"
        )
