"""JSON in and out: one canonical form, what is not JSON, lone surrogates."""

from __future__ import annotations

import json
import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from toolnexus.errors import WireFormatError

JsonValue: TypeAlias = Any
"""A value that `json` writes without loss: None, bool, int, float, str, list, dict of str."""

NESTING_MAX: Final = 200
"""How deep JSON from outside may nest: what is kept is walked again, on a deeper stack."""

_PART_MAX: Final = NESTING_MAX - 10
"""How deep a value may nest that is kept as a part of a record."""

_KINDS: Final = {str: "string", int: "integer", list: "array", dict: "object"}

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def dumps(value: JsonValue) -> str:
    """Return compact JSON text.

    Raises:
        TypeError: A part is not JSON.
        ValueError: NaN or an infinity, or a value that contains itself.
    """
    return _encode(value)


def lossless(value: JsonValue) -> str:
    """Return compact JSON text that UTF-8 can hold, and that reads as `value` again.

    Raises:
        TypeError: A part is not JSON.
        ValueError: NaN or an infinity, or a value that contains itself.
    """
    text = dumps(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate: only its escape keeps it
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text


def canonical(value: JsonValue) -> str:
    """Return the one text that a value is digested as: sorted keys, ASCII; 1 is not 1.0."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def encode(value: JsonValue) -> bytes:
    """Return compact JSON as UTF-8; a lone surrogate becomes U+FFFD, never an error."""
    text = _encode_body(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return well_formed(text).encode()


def _plain_mapping(value: object) -> dict[str, JsonValue]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def well_formed(text: str) -> str:
    """Return `text` as valid Unicode: surrogate pairs joined, lone surrogates as U+FFFD."""
    if not _SURROGATE.search(text):
        return text
    return _SURROGATE.sub("\ufffd", _PAIR.sub(lambda found: joined(found.group()), text))


def joined(pair: str) -> str:
    """Return the character that a surrogate pair stands for."""
    # Not by the codec for UTF-16: its first use imports it, and a thread that imports while
    # another forks leaves the child with a lock that nobody holds.
    high, low = map(ord, pair)
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def loads(text: str | bytes) -> JsonValue:
    """Parse strict JSON.

    Raises:
        ValueError: The text is not JSON; no NaN, infinity, number beyond a float.
    """
    if isinstance(text, bytes):
        # Not by `utf-8-sig`, for the reason in `joined`.
        text = text.removeprefix(BOM_UTF8).decode()
    try:
        value = _parse(text)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if text.count("[") + text.count("{") > NESTING_MAX and _is_too_deep(value, NESTING_MAX):
        raise ValueError(f"JSON nested more than {NESTING_MAX} levels deep")
    return value


def _parse(text: str) -> JsonValue:
    """Parse at once what has no white space around it, as nearly all that is received."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        return _decoder.decode(text)
    return value if end == len(text) else _decoder.decode(text)


def _is_too_deep(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            item
            for one in level
            if isinstance(one, (dict, list, tuple))
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return any(isinstance(one, (dict, list, tuple)) for one in level)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond a float")
    return number


_encoder: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
# Takes mappings of any kind, such as the schema of a tool that freezes it.
_body_encoder: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain_mapping
)


def _made_once(encoder: json.JSONEncoder) -> Callable[[JsonValue], str]:
    """Return what `encoder.encode` does, without making the encoder's inside for each value."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    quote: Any = getattr(json.encoder, "encode_basestring")  # noqa: B009 - the stubs lack it
    # Without notes of what it is inside of: they would be all threads' own at once.
    inside = make(None, encoder.default, quote, None, ":", ",", False, False, False)  # noqa: FBT003

    def encode(value: JsonValue) -> str:
        try:
            return "".join(inside(value, 0))
        except RecursionError:
            # Too deep, or without end: the slow way says which.
            return encoder.encode(value)

    return encode


_encode: Final = _made_once(_encoder)
_encode_body: Final = _made_once(_body_encoder)
_decoder: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)
_scan: Final[Callable[[str, int], tuple[JsonValue, int]]] = vars(_decoder)["scan_once"]


def copy(value: JsonValue) -> JsonValue:
    """Return a JSON value that shares nothing that may change with `value`.

    Any mapping becomes a dict, any tuple a list.
    """
    kind = type(value)
    if kind is str:  # most parts are texts, and asking an abstract class takes its time
        return value
    if kind is dict or (kind is not list and isinstance(value, Mapping)):
        return {key: copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [copy(item) for item in value]
    return value


def check_json(value: object, where: str) -> None:
    """Raise unless `value` is JSON to the letter (string keys, finite numbers, no tuples lost).

    Raises:
        WireFormatError: It is not, or is nested so deeply that it could not be read again as a
            part of a record; the message names the place and the value's type.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise WireFormatError(f"{where} must be JSON: {error}") from None
    if text.count("[") + text.count("{") > _PART_MAX and _is_too_deep(value, _PART_MAX):
        raise WireFormatError(f"{where} must be JSON of at most {_PART_MAX} levels")
    _check_keys(value, where)


def _check_keys(value: object, where: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise WireFormatError(f"{where} must have string keys, not {key!r}")
            _check_keys(item, f"{where}[{key!r}]")
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for index, item in enumerate(value):
            _check_keys(item, f"{where}[{index}]")


def refuse_unknown(
    cls: str, data: object, known: Sequence[str], required: Sequence[str]
) -> Mapping[str, JsonValue]:
    """Return `data` as a mapping that has the required keys and no unknown one.

    Raises:
        WireFormatError: It is not a mapping, or the message names the keys at fault.
    """
    if not isinstance(data, Mapping):
        raise WireFormatError(f"{cls} must be an object, not {type(data).__name__}")
    unknown = sorted(str(key) for key in data if key not in known)
    if unknown:
        raise WireFormatError(
            f"{cls} has unknown keys {', '.join(unknown)}; known: {', '.join(known)}"
        )
    missing = [key for key in required if key not in data]
    if missing:
        raise WireFormatError(f"{cls} lacks {', '.join(missing)}")
    return data


def typed(cls: str, data: Mapping[str, JsonValue], key: str, kind: type) -> Any:
    """Return what is at `key`.

    Raises:
        WireFormatError: It is no `kind`: a str, int, list or dict.
    """
    value = data[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WireFormatError(f"{cls}.{key} must be a JSON {_KINDS[kind]}, not {value!r}")
    return value


def optional(cls: str, data: Mapping[str, JsonValue], key: str, kind: type) -> Any:
    """Return what is at `key`; None for null, and where there is nothing.

    Raises:
        WireFormatError: It is no `kind`.
    """
    return None if data.get(key) is None else typed(cls, data, key, kind)
