"""Files of a store: names that stay in their directory, locks, writes whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from toolnexus.errors import ConfigError, StoreError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # asked for before each use

HAS_LOCKS: Final = fcntl is not None
"""Whether the system can lock files; where it cannot, taking one excludes nobody."""


class Held(int):
    """The descriptor of a file that is or will be locked, and the process that opened it."""

    owner: int


_held: Final[set[Held]] = set()


def _open(path: Path, flags: int) -> Held:
    descriptor = Held(os.open(path, flags | _BINARY, 0o600))
    descriptor.owner = os.getpid()
    _held.add(descriptor)
    return descriptor


def _close_inherited() -> None:
    """Close what a child has inherited, and unlock nothing: the lock is its parent's.

    A copy that stayed open would keep the lock for as long as the child lives.
    """
    for descriptor in list(_held):
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):///?(?P<file>[^?]*)")
_STEM_CHARS: Final = 200  # with an ending below the 255 bytes that file systems take
_BINARY: Final = getattr(os, "O_BINARY", 0)


def file_stem(key: str) -> str:
    """Return a file name for any text, readable for simple ones, no two texts the same.

    Capitals are encoded too: many file systems take `A` and `a` for one name. A long name ends
    in `~` and a digest; no other has a `~`.
    """
    raw = key.encode("utf-8", "surrogatepass")
    stem = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in raw)
    if stem.startswith("."):
        stem = "%2e" + stem[1:]
    if len(stem) <= _STEM_CHARS:
        return stem
    return f"{stem[:100]}~{hashlib.sha256(raw).hexdigest()}"


def key_of(stem: str) -> str | None:
    """Return the text that `file_stem` made `stem` of; None where the name does not tell."""
    try:
        key = unquote(stem, errors="surrogatepass")
    except UnicodeDecodeError:
        return None
    return key if "~" not in stem and file_stem(key) == stem else None


def plain_path(path: str | os.PathLike[str]) -> str:
    """Return a path as a text.

    Raises:
        ConfigError: It is a URL; says what is right, and quotes nothing that may be a password.
    """
    text = os.fspath(path)
    if text == ":memory:" or "\0" in text:
        raise ConfigError(
            f"a file's path is due here, not {text!r}; MemoryStore(), or"
            " AgentRuntime(store='memory://'), keeps runs in memory"
        )
    found = _URL.match(text)
    if found is None:
        return text
    if found["scheme"] != "sqlite":
        raise ConfigError(f"a file's path is due here, not a URL of {found['scheme']}")
    file = found["file"] or "runs.db"
    raise ConfigError(
        f"a file's path is due here, not a URL: SqliteStore({file!r}), or"
        f" AgentRuntime(store='sqlite:///{file}') with the URL"
    )


def make_directory(directory: str | os.PathLike[str]) -> Path:
    """Return `directory` as a path; one that is made here is its owner's only.

    Raises:
        StoreError: It cannot be made, or is a file.
    """
    path = Path(directory)
    with store_errors(path, "make"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextmanager
def store_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn an `OSError` of the block into a `StoreError` with the file and the reason."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreError(f"cannot {verb} {path}: {reason}") from error


def take(path: Path) -> Held:
    """Make the file if need be, lock it for this caller alone, and return its descriptor.

    Blocks. Threads of this process exclude each other too.
    """
    while True:
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            _lock(descriptor, is_shared=False)
            # Who deleted it while this one waited took the name away from the locked file.
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            _close(descriptor)
            raise
        give_back(descriptor)


def try_take(path: Path) -> Held | None:
    """Do the same without blocking: None where somebody else has the lock."""
    descriptor = _open(path, os.O_RDWR | os.O_CREAT)
    try:
        _lock(descriptor, is_shared=False, is_patient=False)
        if _is_at(descriptor, path):
            return descriptor
    except BlockingIOError:
        _close(descriptor)
        return None
    except BaseException:
        _close(descriptor)
        raise
    give_back(descriptor)
    return None


def give_back(descriptor: Held) -> None:
    """Unlock and close. In a child of the process that has it, nothing: it is closed there."""
    if descriptor.owner != os.getpid():
        return
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        _close(descriptor)


def _close(descriptor: Held) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


def read_shared(path: Path) -> bytes | None:
    """Return the content, never in the midst of a write under a lock; None for no file."""
    try:
        descriptor = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        _lock(descriptor, is_shared=True)
        return content(descriptor)
    finally:
        give_back(descriptor)


def content(descriptor: int) -> bytes:
    """Return the whole content of an open file."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def append(descriptor: int, end: int, data: bytes, *, is_synced: bool) -> None:
    """Write `data` behind the first `end` bytes in one write; what stood there is cut off.

    Raises:
        OSError: It was not written whole; the file ends at `end` again.
    """
    os.ftruncate(descriptor, end)
    try:
        _write(descriptor, data)
        if is_synced:
            os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):  # the first failure is the one to tell
            os.ftruncate(descriptor, end)
        raise


def write_whole(path: Path, data: bytes, *, is_synced: bool) -> None:
    """Make `path` with `data` in it, or leave no trace of either."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if is_synced:
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if is_synced:
        sync_names(path.parent)


def sync_names(directory: Path) -> None:
    """Make what was created or deleted in `directory` last through a power cut."""
    if os.name == "nt":
        return  # a directory cannot be opened there
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    if written < len(data):
        raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")


def _lock(descriptor: int, *, is_shared: bool, is_patient: bool = True) -> None:
    if fcntl is None:
        return
    how = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    fcntl.flock(descriptor, how if is_patient else how | fcntl.LOCK_NB)


def _is_at(descriptor: int, path: Path) -> bool:
    """Say whether `path` still leads to the open file."""
    mine = os.fstat(descriptor)
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
