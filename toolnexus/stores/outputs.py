"""Output stores: results too long for a model, whole, and the tool that reads them."""

from __future__ import annotations

import logging
import os
import re
import secrets
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from toolnexus import process
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError, StoreError
from toolnexus.shortening import LEAST_CHARS
from toolnexus.stores import files
from toolnexus.toolspec import ToolContext, ToolResult

logger = logging.getLogger(__name__)

_REFERENCE: Final = re.compile("[0-9a-f]{32}")
_ENDING: Final = ".txt"
_NOTE_CHARS: Final = 120
_MEBIBYTE: Final = 1 << 20


@runtime_checkable
class OutputStore(Protocol):
    """Keeps long texts by reference. Any object with these two methods is one.

    A reference is all that is needed to read a text, and a model sees it. So it must be
    unguessable, and not made of the text either: what can be guessed could then be looked up.
    """

    def put(self, text: str) -> str:
        """Keep `text` and return its reference, a new one each time."""

    def get(self, reference: str) -> str | None:
        """Return the text; None for a reference that is not known, or not any more."""


class MemoryOutputStore(process.ProcessBound):
    """Keeps texts in memory up to a limit; the oldest go first. Thread-safe."""

    def __init__(self, max_bytes: int = 64 * _MEBIBYTE) -> None:
        """Keep at most `max_bytes` of memory.

        Raises:
            ConfigError: It is no whole number from 1.
        """
        self._max_bytes = _require_whole("max_bytes", max_bytes, 1)
        # Guards the texts and their sum.
        self._lock = threading.RLock()
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._bytes = 0
        process.watch(self)

    def put(self, text: str) -> str:
        """Keep `text` and return its reference; older texts may have to go.

        Raises:
            StoreError: It alone is larger than the limit; nothing has changed.
        """
        size = sys.getsizeof(text)
        if size > self._max_bytes:
            raise StoreError(f"an output of {size:,} bytes is beyond {self._max_bytes:,}")
        reference = _new_reference()
        with self._lock:
            self._texts[reference] = text
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, oldest = self._texts.popitem(last=False)
                self._bytes -= sys.getsizeof(oldest)
        return reference

    def get(self, reference: str) -> str | None:
        """Return the text; None for a reference that is not known, or not any more."""
        with self._lock:
            return self._texts.get(reference)

    def before_fork(self) -> None:
        """Wait until no other thread is between two steps."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork(self) -> None:
        """Go on in the child, which has the texts too."""
        self._lock = threading.RLock()

    def at_exit(self) -> None:
        """Nothing runs and nothing is open."""


class FileOutputStore:
    """Keeps each text as a file, for threads and processes alike.

    Files stay until somebody deletes them, by age for example: a reference without its file is
    one that is not known any more.
    """

    def __init__(self, directory: str | os.PathLike[str], *, fsync: bool = True) -> None:
        """Keep texts in `directory`, which is made if need be.

        Args:
            directory: Whoever can list it can read every text.
            fsync: Whether `put` returns only when the text would outlast a power cut.

        Raises:
            StoreError: The directory cannot be made.
        """
        self._directory = files.make_directory(directory)
        self._fsync = fsync

    def __repr__(self) -> str:
        return f"FileOutputStore({str(self._directory)!r})"

    def put(self, text: str) -> str:
        """Keep `text` and return its reference.

        Raises:
            StoreError: It cannot be written; no part of it is left behind.
        """
        reference = _new_reference()
        path = self._path(reference)
        with files.store_errors(path, "write"):
            data = text.encode("utf-8", "surrogatepass")
            files.write_whole(path, data, is_synced=self._fsync)
        return reference

    def get(self, reference: str) -> str | None:
        """Return the text; None for a reference that is not known, whatever it looks like.

        Raises:
            StoreError: The file is there and cannot be read, or is no text any more.
        """
        if not _REFERENCE.fullmatch(reference):
            return None
        path = self._path(reference)
        with files.store_errors(path, "read"):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise StoreError(f"cannot read {path}: not UTF-8 at byte {error.start}") from None

    def _path(self, reference: str) -> Path:
        return self._directory / (reference + _ENDING)


class ReadOutput:
    """A tool with which a model reads an output that was too long for it, part by part."""

    name = "read_output"
    description = (
        "Read a part of an output that was too long to be shown whole. The line about what was "
        "left out has the reference."
    )
    source = "builtin"
    retry_safe = True

    def __init__(self, store: OutputStore, max_chars: int = 50_000) -> None:
        """Read from `store`.

        Args:
            store: Where the whole outputs are.
            max_chars: The longest result, in characters. Not above the cap on a tool's result,
                or what the model reads is shortened again.

        Raises:
            ConfigError: It is no store, or `max_chars` is below `LEAST_CHARS`.
        """
        if not isinstance(store, OutputStore):
            raise ConfigError(f"an output store has put and get; {store!r} has not")
        self._store = store
        self._max_chars = _require_whole("max_chars", max_chars, LEAST_CHARS)
        self.input_schema: dict[str, Any] = {
            "type": "object",
            "properties": {
                "reference": {"type": "string", "description": "Which output."},
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "default": 0,
                    "description": "The first character to read.",
                },
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "description": f"How many characters; at most about {max_chars}.",
                },
            },
            "required": ["reference"],
            "additionalProperties": False,
        }

    def execute(self, args: dict[str, JsonValue], ctx: ToolContext) -> ToolResult:  # noqa: ARG002
        """Return the part; an error result for an unknown reference or no such part."""
        reference, offset = args.get("reference"), _whole(args.get("offset", 0), 0)
        limit = _whole(args.get("limit", self._max_chars), 1)
        if not isinstance(reference, str) or offset is None or limit is None:
            return ToolResult.error("reference is a text, offset a number from 0, limit from 1")
        try:
            text = self._store.get(reference)
        except StoreError:
            # Its message is about the host's files, which are no business of the model.
            logger.exception("an output could not be read")
            return ToolResult.error("the output is there but cannot be read now")
        if text is None:
            return ToolResult.error(
                f"unknown output {reference[:40]!r}: mistyped, or not kept any more"
            )
        if offset and offset >= len(text):
            return ToolResult.error(f"the output ends at offset {len(text)}")
        return ToolResult(self._part(text, offset, limit))

    def _part(self, text: str, offset: int, limit: int) -> str:
        if len(text) - offset <= min(limit, self._max_chars):
            return text[offset:]
        end = offset + min(limit, self._max_chars - _NOTE_CHARS)
        note = f"[... characters {offset} to {end} of {len(text)}; go on with offset={end} ...]"
        return f"{text[offset:end]}\n{note}"


def _new_reference() -> str:
    return secrets.token_hex(16)


def _require_whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number from {least}, not {value!r}")
    return value


def _whole(value: object, least: int) -> int | None:
    """Return a whole number from `least`, which JSON may write as 10.0; None for all else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        return None
    return value
