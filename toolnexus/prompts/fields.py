"""Fields: an answer that fits a flat schema, asked for field by field."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from toolnexus import forms
from toolnexus.codec import JsonValue, dumps, loads
from toolnexus.keywords import same_json
from toolnexus.prompts.screen import Screen, one_line

_Field: TypeAlias = Mapping[str, Any]

_LEFT_OUT: Final = object()

_HINTS: Final = {"integer": "a whole number", "number": "a number", "boolean": "yes or no"}
_BOOLEANS: Final = {
    "y": True,
    "yes": True,
    "true": True,
    "n": False,
    "no": False,
    "false": False,
}


class TurnedDown(Exception):
    """The person will not answer."""


class _Unclear(Exception):
    """A line stands for no value; the text is for the person."""


def fill(screen: Screen, schema: Mapping[str, JsonValue]) -> JsonValue:
    """Ask for everything that `schema` wants, and return data that fits.

    Raises:
        TurnedDown: The person declines.
        EndOfInput: The input ended.
    """
    if not forms.is_form(schema):
        return _ask_field(screen, "", schema, is_optional=False)
    for note in ("title", "description"):
        if isinstance(schema.get(note), str):
            screen.say(one_line(schema[note]))
    required = schema.get("required", ())
    filled: dict[str, JsonValue] = {}
    for name, field in forms.fields_of(schema).items():
        value = _ask_field(screen, name, field, is_optional=name not in required)
        if value is not _LEFT_OUT:
            filled[name] = value
    return filled


def _ask_field(screen: Screen, name: str, field: _Field, *, is_optional: bool) -> JsonValue:
    """Return a value that fits the field, or `_LEFT_OUT`."""
    _describe(screen, field)
    prompt = _prompt(name, field, is_optional=is_optional)
    while True:
        typed = screen.secret_line(prompt) if _is_secret(field) else screen.line(prompt)
        try:
            if typed.strip():
                value = _value(field, typed)
            else:
                value = _nothing(screen, field, is_optional=is_optional)
        except _Unclear as error:
            screen.say(str(error))
            continue
        faults = [] if value is _LEFT_OUT else _faults(name, field, value)
        if not faults:
            return value
        for fault in faults:
            screen.say(one_line(fault))


def _faults(name: str, field: _Field, value: JsonValue) -> list[str]:
    return list(forms.field_faults(name or "the answer", field, value))


def _nothing(screen: Screen, field: _Field, *, is_optional: bool) -> JsonValue:
    """Return what an empty line stands for."""
    if "default" in field:
        return field["default"]
    if is_optional:
        return _LEFT_OUT
    empty: JsonValue = [] if field.get("type") == "array" else ""
    fits = "enum" not in field and not _faults("", field, empty)
    words = ("again", "decline", "empty") if fits else ("again", "decline")
    said = screen.choose(*words, about="Nothing was entered.")
    if said == "decline":
        raise TurnedDown
    if said == "again":
        raise _Unclear("Once more:")
    return empty


# -- what is shown -----------------------------------------------------------------------------


def _is_secret(field: _Field) -> bool:
    return field.get("secret") is True


def _describe(screen: Screen, field: _Field) -> None:
    words = [
        field[note] for note in ("title", "description") if isinstance(field.get(note), str)
    ]
    if words:
        screen.say(one_line(": ".join(words)))
    options = _options_of(field)
    for mark, option in zip(_marks(options), options, strict=True):
        screen.say(f"  {mark}) {one_line(_text_of(option))}")


def _prompt(name: str, field: _Field, *, is_optional: bool) -> str:
    notes = []
    if _options_of(field):
        notes.append("some of them, with commas between" if _is_list(field) else "one of them")
    elif field.get("type") in _HINTS:
        notes.append(_HINTS[field["type"]])
    elif isinstance(field.get("format"), str):
        notes.append(field["format"])
    if _is_secret(field):
        notes.append("is not shown")
    if "default" in field:
        # Never the value of a secret.
        shown = "the default" if _is_secret(field) else one_line(_text_of(field["default"]))
        notes.append(f"empty for {shown}")
    elif is_optional:
        notes.append("may be left empty")
    noted = f" ({'; '.join(notes)})" if notes else ""
    return f"{one_line(name) or 'Answer'}{noted}: "


# -- options -----------------------------------------------------------------------------------


def _is_list(field: _Field) -> bool:
    return field.get("type") == "array"


def _options_of(field: _Field) -> Sequence[JsonValue]:
    options = field["items"]["enum"] if _is_list(field) else field.get("enum", ())
    return list(options)


def _text_of(value: JsonValue) -> str:
    return value if isinstance(value, str) else dumps(value)


def _marks(options: Sequence[JsonValue]) -> list[str]:
    """Return what stands before each option: a number by which no other could be meant."""
    texts = [_text_of(option) for option in options]
    numbers = [str(number) for number in range(1, len(texts) + 1)]
    misleading = any(
        text in numbers and text != own for text, own in zip(texts, numbers, strict=True)
    )
    return [f"#{number}" for number in numbers] if misleading else numbers


def _picked(options: Sequence[JsonValue], typed: str) -> JsonValue:
    """Return the option that is meant.

    Raises:
        _Unclear: None is, or more than one.
    """
    marked = zip(_marks(options), options, strict=True)
    meant = [option for mark, option in marked if typed in (mark, _text_of(option))]
    if len(meant) == 1:
        return meant[0]
    first, last = _marks(options)[0], _marks(options)[-1]
    raise _Unclear(f"Please type {first} to {last}, or one of them as it is written.")


# -- from the line to the value ----------------------------------------------------------------


def _value(field: _Field, typed: str) -> JsonValue:
    """Return what a line stands for; the line itself where it is nothing of that type."""
    options, word = _options_of(field), typed.strip()
    if _is_list(field):
        return [_picked(options, part.strip()) for part in typed.split(",")]
    if options:
        return _picked(options, word)
    kind = field["type"]
    if kind == "boolean":
        return _BOOLEANS.get(word.lower(), typed)
    return _number(typed, kind) if kind in ("integer", "number") else typed


def _number(typed: str, kind: str) -> JsonValue:
    with contextlib.suppress(ValueError):
        value = loads(typed.strip())
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return int(value) if kind == "integer" and same_json(value, int(value)) else value
    return typed
