"""Values that JSON can only hold as text: dates and times, decimals, UUIDs, paths."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from toolnexus.codec import JsonValue
from toolnexus.keywords import echo

_DECIMAL: Final = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_DAY: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = (
    r"(?P<minute>(?:[01][0-9]|2[0-3]):[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<part>[0-9]+))?)?"
    r"(?P<offset>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)


class TextError(ValueError):
    """A value that JSON Schema lets pass, but that is none of the hinted class."""


class _Form(NamedTuple):
    """How values of one class look in JSON.

    Attributes:
        module: Where the class is.
        name: What it is called there.
        noun: What a model calls such a value.
        example: One of them.
        schema: JSON Schema.
        read: Makes the value from the class and the JSON; a ValueError says that it is none.
    """

    module: str
    name: str
    noun: str
    example: str
    schema: dict[str, JsonValue]
    read: Callable[[Any, JsonValue], Any]

    def convert(self, cls: type, value: JsonValue) -> Any:
        """Return the value of `cls` that the JSON means.

        Raises:
            TextError: It means none; the message quotes it, and one that would be right.
        """
        try:
            return self.read(cls, value)
        except (ValueError, ArithmeticError) as error:
            why = f" ({error})" if type(error) is ValueError and str(error) else ""
            raise TextError(
                f"{echo(value)} is no {self.noun}{why}; write it like {echo(self.example)}"
            ) from None


# -- one class after the other -----------------------------------------------------------------


def _match(pattern: str, value: str) -> re.Match[str]:
    match = re.fullmatch(pattern, value)
    if match is None:
        raise ValueError
    return match


def _read_date(cls: Any, value: str) -> Any:
    return cls.fromisoformat(_match(_DAY, value)[0])


def _read_datetime(cls: Any, value: str) -> Any:
    match = _match(rf"(?P<day>{_DAY})[Tt ]{_TIME}", value)
    return cls.fromisoformat(f"{match['day']}T{_plain_time(match)}")


def _read_time(cls: Any, value: str) -> Any:
    return cls.fromisoformat(_plain_time(_match(_TIME, value)))


def _plain_time(match: re.Match[str]) -> str:
    # Python 3.10 reads neither `Z` nor a fraction of other than 3 or 6 digits.
    offset = match["offset"] or ""
    if offset in ("Z", "z"):
        offset = "+00:00"
    elif offset:
        offset = f"{offset[:3]}:{offset[3:].lstrip(':') or '00'}"
    part = (match["part"] or "")[:6]
    return f"{match['minute']}:{match['second'] or '00'}.{part:0<6}{offset}"


def _read_decimal(cls: Any, value: JsonValue) -> Any:
    # The shortest text of a float is what the model wrote, its binary value is not.
    number = cls(repr(value) if isinstance(value, float) else value)
    if not number.is_finite():  # an exponent out of range, where the host traps nothing
        raise ValueError
    return number


def _read_uuid(cls: Any, value: str) -> Any:
    return cls(_match("[0-9a-fA-F]{32}", value.replace("-", ""))[0])


def _read_path(cls: Any, value: str) -> Any:
    if not value:
        raise ValueError("empty; the current directory is '.'")
    if "\0" in value:
        raise ValueError("it has a NUL character")
    return cls(value)


def _text(form: str) -> dict[str, JsonValue]:
    return {"type": "string", "format": form}


_FORMS: Final = (
    _Form("datetime", "date", "date", "2026-01-31", _text("date"), _read_date),
    _Form(
        "datetime",
        "datetime",
        "date-time",
        "2026-01-31T09:30:00+01:00",
        _text("date-time"),
        _read_datetime,
    ),
    _Form("datetime", "time", "time of day", "09:30:00", _text("time"), _read_time),
    _Form(
        "decimal",
        "Decimal",
        "decimal number",
        "19.90",
        {"type": "string", "pattern": _DECIMAL},
        _read_decimal,
    ),
    _Form(
        "uuid",
        "UUID",
        "UUID",
        "123e4567-e89b-12d3-a456-426614174000",
        _text("uuid"),
        _read_uuid,
    ),
    *(
        _Form("pathlib", name, "path", "reports/june.csv", {"type": "string"}, _read_path)
        for name in ("Path", "PurePath", "PurePosixPath", "PureWindowsPath")
    ),
)


# -- what the other files ask ------------------------------------------------------------------


def _loaded() -> Iterator[tuple[type, _Form]]:
    # Who has such a class has imported its module, so nothing is imported here: that would
    # cost milliseconds, for the many that have none.
    for form in _FORMS:
        cls = getattr(sys.modules.get(form.module), form.name, None)
        if cls is not None:
            yield cls, form


def text_form(cls: type) -> tuple[dict[str, JsonValue], Callable[[JsonValue], Any]] | None:
    """Return the JSON Schema of a class and what makes its values; None for other classes.

    What makes them raises `TextError` for JSON that means none.
    """
    for known, form in _loaded():
        if known is cls:
            return dict(form.schema), partial(form.convert, cls)
    return None


def text_of(value: object) -> str | None:
    """Return a value of such a class as text; None for any other value."""
    for known, _ in _loaded():
        if isinstance(value, known):
            return str(value.isoformat() if hasattr(value, "isoformat") else value)
    return None


def accepting(schema: JsonValue) -> JsonValue:
    """Return `schema` as arguments are checked by it: a decimal may be a number too.

    Models are shown a string only, because the digits of a JSON number beyond those of a float
    are lost before anybody sees them.
    """
    if isinstance(schema, list):
        return [accepting(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("pattern") == _DECIMAL:
        return {**schema, "type": ["string", "number"]}
    return {key: accepting(each) for key, each in schema.items()}
