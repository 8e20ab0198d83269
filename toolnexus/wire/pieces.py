"""What the streams of both dialects do alike: read an event, let texts and lists grow."""

from __future__ import annotations

import io
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeVar

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.wire.replies import raise_if_error, unusable
from toolnexus.wire.sse import ServerSentEvent

_BODIES: Final[Mapping[str, str]] = {
    "text": "text",
    "thinking": "thinking",
    "reasoning.text": "text",
    "reasoning.summary": "summary",
}
"""Parts that come in pieces, and the key of each that grows."""

_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class GrowingText(io.StringIO):
    """A text that comes in pieces.

    A piece may end between the halves of a surrogate pair, where a proxy cut the text by
    UTF-16 units: the pair becomes one character again, as it is in a body that comes whole.
    """

    _half = ""

    def say(self, piece: str) -> str:
        """Add `piece` and return what of it can be shown."""
        self.write(piece)
        if self._half or "\ud800" <= piece[-1:] < "\udc00":
            piece = _joined(self._half + piece)
            self._half = piece[-1:] if "\ud800" <= piece[-1:] < "\udc00" else ""
            return piece[:-1] if self._half else piece
        return piece

    def last_words(self) -> str:
        """Return what could not be shown before it was clear that no more comes."""
        half, self._half = self._half, ""
        return half

    def text(self) -> str:
        """Return all of it."""
        return _joined(self.getvalue())


def _joined(text: str) -> str:
    return text if text.isascii() else _PAIR.sub(_one_character, text)


def _one_character(pair: re.Match[str]) -> str:
    return codec.joined(pair.group())


def growing(text: str) -> GrowingText:
    """Return a text that begins with `text`."""
    made = GrowingText()
    made.write(text)
    return made


def settled(value: Any) -> JsonValue:
    """Return a copy of `value` in which every growing text is a plain one."""
    if isinstance(value, GrowingText):
        return value.text()
    if isinstance(value, dict):
        return {key: settled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [settled(item) for item in value]
    return value


def grow(target: dict[str, Any], key: str, value: JsonValue) -> None:
    """Add `value` to what stands under `key`: texts and lists grow, the rest is replaced."""
    held = target.get(key)
    if isinstance(value, str):
        if not isinstance(held, GrowingText):
            held = target[key] = growing(held if isinstance(held, str) else "")
        held.write(value)
    elif isinstance(value, list):
        if not isinstance(held, list):
            held = target[key] = []
        extend(held, value)
    elif value is not None:
        target[key] = value


def extend(held: list[Any], more: list[Any]) -> None:
    """Add the parts of one delta; its first may go on with the last one there is."""
    for number, part in enumerate(more):
        body = _BODIES.get(part["type"]) if _has_type(part) else None
        if body is None:
            held.append(part)
            continue
        if number > 0 or not held or not _continues(part, held[-1], body):
            held.append({})
        target = held[-1]
        for key, value in part.items():
            if key == body:
                grow(target, key, value)
            elif value is not None or key not in target:
                target[key] = value


def _has_type(part: JsonValue) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str)


def _continues(part: Mapping[str, Any], last: Any, body: str) -> bool:
    if not _has_type(last) or part["type"] != last["type"]:
        return False
    value, held = part.get(body), last.get(body)
    if value is not None and isinstance(value, str) != isinstance(held, GrowingText):
        return False
    if part["type"].startswith("reasoning."):
        return index_of(part) is not None and index_of(part) == index_of(last)
    # Of a part with further keys nobody knows whether it is one with the part before.
    return len(part) == 2 and value is not None


class Indexed(Protocol):
    """A part of a reply that may say where it stands."""

    index: int | None


_Part = TypeVar("_Part", bound=Indexed)


def in_order(parts: Sequence[_Part]) -> Sequence[_Part]:
    """Return the parts by their index; as they came where not each has one of its own."""
    by_index = {part.index: part for part in parts if part.index is not None}
    if len(by_index) < len(parts):
        return parts
    return [by_index[index] for index in sorted(by_index)]


def index_of(holder: Mapping[str, JsonValue]) -> int | None:
    """Return the index that a delta names; None for none."""
    index = holder.get("index")
    return index if type(index) is int else None


def data_of(event: ServerSentEvent, known: Container[str]) -> dict[str, Any] | None:
    """Return the JSON object that an event holds.

    Args:
        event: The event.
        known: The events of the dialect; others may hold anything.

    Returns:
        None where there is nothing to read: no data, `[DONE]`, something of an unknown event.

    Raises:
        LlmError: It is an error, or a known event without a JSON object.
    """
    name, data = event
    try:
        value = codec.loads(data)
    except ValueError:
        value = data
    if name == "error":
        _raise_error(value)
    if type(value) is dict:
        if "error" in value or value.get("type") == "error":
            raise_if_error(value, value)
        return value
    if name not in known or (value is data and data.strip() in ("", "[DONE]")):
        return None
    why = "the stream sent data that is no JSON object"
    raise unusable(data, why)


def _raise_error(value: JsonValue) -> NoReturn:
    if isinstance(value, dict):
        raise_if_error(value, value)
        raise_if_error(value, {"type": "error", "error": value})
    raise unusable(value, "the stream sent an error")
