"""Classes whose instances are JSON objects: dataclasses, attrs classes, TypedDicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, get_args, get_origin

import attrs

from toolnexus.tools.scope import Scope

NO_DEFAULT: Final = object()
"""The default of a field that has none, or one that is made anew each time."""


@attrs.frozen
class Field:
    """One member of a class.

    Attributes:
        name: The key in JSON, and the keyword of the constructor.
        annotation: Resolved; Any where there is none.
        required: Whether the constructor insists on it.
        default: `NO_DEFAULT` where JSON Schema cannot show one.
    """

    name: str
    annotation: Any
    required: bool
    default: Any = NO_DEFAULT


@attrs.frozen
class Record:
    """A class as its fields; `build` takes them by keyword."""

    cls: type
    fields: tuple[Field, ...]
    build: Callable[..., Any]


def read_record(cls: type, scope: Scope) -> Record | None:
    """Return the fields of `cls`; None for a class of another kind.

    Raises:
        Exception: An annotation cannot be resolved.
    """
    if dataclasses.is_dataclass(cls):
        return Record(cls, _dataclass_fields(cls, scope.hints(cls)), cls)
    if attrs.has(cls):
        return Record(cls, _attrs_fields(cls, scope.hints(cls)), cls)
    if issubclass(cls, dict) and hasattr(cls, "__required_keys__"):
        return Record(cls, _typed_dict_fields(cls, scope.hints(cls)), dict)
    return None


def _dataclass_fields(cls: type, hints: dict[str, Any]) -> tuple[Field, ...]:
    fields = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        has_default = field.default is not dataclasses.MISSING
        required = not has_default and field.default_factory is dataclasses.MISSING
        default = field.default if has_default else NO_DEFAULT
        fields.append(Field(field.name, hints.get(field.name, Any), required, default))
    return tuple(fields)


def _attrs_fields(cls: type, hints: dict[str, Any]) -> tuple[Field, ...]:
    fields = []
    for field in attrs.fields(cls):
        if not field.init:
            continue
        annotation = hints.get(field.name, Any if field.type is None else field.type)
        required = field.default is attrs.NOTHING
        made = required or isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]
        default = NO_DEFAULT if made else field.default
        fields.append(Field(field.alias or field.name, annotation, required, default))
    return tuple(fields)


def _typed_dict_fields(cls: type, hints: dict[str, Any]) -> tuple[Field, ...]:
    fields = []
    for name, hint in hints.items():
        # The qualifiers win: where annotations are text, `__required_keys__` has not seen them.
        annotation, required = hint, name in cls.__required_keys__  # type: ignore[attr-defined]
        while (word := qualifier(annotation)) is not None:
            if word != "ReadOnly":
                required = word == "Required"
            annotation = get_args(annotation)[0]
        fields.append(Field(name, annotation, required))
    return tuple(fields)


def qualifier(annotation: Any) -> str | None:
    """Return `Required`, `NotRequired` or `ReadOnly` where the annotation is wrapped in it."""
    # By name, because typing_extensions has forms of its own on older Pythons.
    name = getattr(get_origin(annotation), "_name", None)
    return name if name in ("Required", "NotRequired", "ReadOnly") else None
