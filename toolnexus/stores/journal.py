"""The form of a conversation's file: JSON lines that are only ever added.

    {"toolnexus":"conversation","schema":1,"id":"u1"}
    {"message":{"role":"user","content":"hi"}}
    {"commit":1,"crc32":3917034358}

A save adds lines that end in a commit. `{"keep":n}` cuts the transcript back to its first n
messages, `{"message":...}` adds one; the commit says how many there are now, and the checksum
of the lines since the last commit. Lines without a commit behind them never happened.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.errors import StoreError
from toolnexus.messages import Message

SCHEMAS: Final = {1: "first form"}
CURRENT_SCHEMA: Final = max(SCHEMAS)


@attrs.frozen
class Journal:
    """What the file of one conversation says.

    Attributes:
        conversation_id: Whose it is.
        messages: The transcript as it was committed last.
        end: Bytes up to the end of the last commit; 0 where there is none.
    """

    conversation_id: str
    messages: list[Message] = attrs.field(repr=False)
    end: int

    def entry(self, messages: Sequence[Message]) -> bytes:
        """Return what has to be added so that `messages` is the transcript; b"" for nothing.

        Raises:
            StoreError: A message is not JSON.
        """
        shared = shared_length(self.messages, messages)
        if self.end and shared == len(self.messages) == len(messages):
            return b""
        lines = [] if self.end else [_header(self.conversation_id)]
        if shared < len(self.messages):
            lines.append(_line({"keep": shared}))
        for index in range(shared, len(messages)):
            own = own_copy(messages[index], self.conversation_id, index)
            lines.append(_line({"message": own}))
        body = b"".join(lines)
        return body + _line({"commit": len(messages), "crc32": zlib.crc32(body)})


def read_journal(data: bytes, path: Path, conversation_id: str) -> Journal:
    """Read a file, or what a crash has left of one.

    Raises:
        StoreError: It is of a newer schema, or no conversation of this id, or a line before
            the last commit is damaged; the message names the file and the line.
    """
    reader = _Reader(path, conversation_id)
    *lines, unfinished = data.split(b"\n")
    if lines:
        reader.check_header(lines[0])
    elif not _header(conversation_id).startswith(unfinished):
        raise reader.failure(1, "this is no conversation file")
    start = 0
    position = len(lines[0]) + 1 if lines else 0
    for number, line in enumerate(lines[1:], 2):
        record = _record(line)
        if record is not None and "commit" in record:
            reader.commit(number, record, zlib.crc32(data[start:position]))
            start = position + len(line) + 1
        else:
            reader.add(number, record)
        position += len(line) + 1
    return Journal(conversation_id, reader.messages, start)


class _Reader:
    """The records of a file, applied save by save."""

    def __init__(self, path: Path, conversation_id: str) -> None:
        self._path = path
        self._id = conversation_id
        self.messages: list[Message] = []
        self._first = 1  # the first line of the save that is being read
        self._pending: list[Mapping[str, JsonValue]] = []
        self._damaged: int | None = None

    def check_header(self, line: bytes) -> None:
        header = _object(line)
        if header is None or header.get("toolnexus") != "conversation":
            raise self.failure(1, "this is no conversation file")
        schema = header.get("schema")
        if type(schema) is not int or schema not in SCHEMAS:
            known = ", ".join(map(str, SCHEMAS))
            raise self.failure(
                1, f"schema {schema!r} cannot be read by this release (reads {known})"
            )
        if header.get("id") != self._id:
            raise self.failure(1, "the file belongs to a conversation of another id")

    def add(self, number: int, record: Mapping[str, JsonValue] | None) -> None:
        """Take a line in. A damaged one is what a crash left, unless a commit follows."""
        if record is not None:
            self._pending.append(record)
        elif self._damaged is None:
            self._damaged = number

    def commit(self, number: int, record: Mapping[str, JsonValue], checksum: int) -> None:
        if self._damaged is not None:
            raise self.failure(self._damaged, "the line is damaged")
        if record["crc32"] != checksum:
            raise self.failure(
                number, f"lines {self._first} to {number - 1} are not as they were written"
            )
        for change in self._pending:
            if "keep" in change:
                del self.messages[change["keep"] :]
            else:
                self.messages.append(change["message"])
        if len(self.messages) != record["commit"]:
            raise self.failure(number, "the line is damaged: its count of messages is wrong")
        self._pending.clear()
        self._first = number + 1

    def failure(self, number: int, what: str) -> StoreError:
        return StoreError(f"{self._path}, line {number}: {what}; the file is left as it is")


def shared_length(ours: Sequence[Message], given: Sequence[Message]) -> int:
    """Return how many messages at the beginning of both are the same JSON.

    Compared rather than trusted to be the same objects: a caller may have changed one.
    """
    for index, (one, other) in enumerate(zip(ours, given, strict=False)):
        if not _is_same(one, other):
            return index
    return min(len(ours), len(given))


def own_copy(message: Message, conversation_id: str, index: int) -> Message:
    """Return a copy of what can be written and read again without loss.

    Raises:
        StoreError: It is no JSON object, or nests too deeply; nothing of it is quoted.
    """
    place = f"message {index} of conversation {conversation_id!r}"
    if not isinstance(message, Mapping):
        raise StoreError(f"{place} must be an object, not {type(message).__name__}")
    try:
        own: Message = codec.copy(message)
        line = {"message": own}
        if codec.loads(codec.dumps(line)) != line:
            raise StoreError(f"{place} has a key that is no text")
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"{place} cannot be stored: {error}") from None
    return own


def header_id(line: bytes) -> str | None:
    """Return the id in the first line of a file; None where it has none."""
    header = _object(line)
    found = None if header is None else header.get("id")
    return found if isinstance(found, str) else None


def _is_same(ours: JsonValue, given: object) -> bool:
    if isinstance(ours, dict):
        return (
            (type(given) is dict or isinstance(given, Mapping))
            and len(ours) == len(given)
            and all(key in given and _is_same(item, given[key]) for key, item in ours.items())
        )
    if isinstance(ours, list):
        return (
            isinstance(given, (list, tuple))
            and len(ours) == len(given)
            and all(map(_is_same, ours, given))
        )
    # 1, 1.0 and true are equal to Python, and not the same JSON.
    return ours == given and (isinstance(ours, str) or type(ours) is type(given))


def _header(conversation_id: str) -> bytes:
    return _line({"toolnexus": "conversation", "schema": CURRENT_SCHEMA, "id": conversation_id})


def _line(value: JsonValue) -> bytes:
    return codec.lossless(value).encode() + b"\n"


def _object(line: bytes) -> dict[str, JsonValue] | None:
    try:
        value = codec.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _record(line: bytes) -> dict[str, JsonValue] | None:
    """Return what one line says; None where it is no record of this schema."""
    record = _object(line)
    if record is None:
        return None
    match record:
        case {"message": dict()} | {"keep": int()} if len(record) == 1:
            return record
        case {"commit": int(), "crc32": int()} if len(record) == 2:
            return record
        case _:
            return None
