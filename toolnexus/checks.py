"""Validators for what a host configures: they say the field, the value, what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeAlias

import attrs

from toolnexus.errors import ConfigError

Check: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], None]


MOST: Final = 2**31 - 1
"""The largest number an option may be: as milliseconds 24 days, which every clock can add."""


def whole_from(least: int, most: int | None = MOST) -> Check:
    """Return a check for a whole number from `least` to `most`; None: as large as it may be.

    None passes where it is the default.
    """

    def check(instance: Any, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is None and attribute.default is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"{_place(instance, attribute)} must be a whole number from {least}, "
                f"not {value!r}"
            )
        if most is not None and value > most:
            raise ConfigError(f"{_place(instance, attribute)} must be at most {most}")

    return check


def instance_of(kind: type) -> Check:
    """Return a check for instances of `kind`; None passes where it is the default."""

    def check(instance: Any, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is None and attribute.default is None:
            return
        if not isinstance(value, kind):
            raise ConfigError(
                f"{_place(instance, attribute)} must be a {kind.__name__}, not {value!r}"
            )

    return check


def can_be_called(instance: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    """Check for something callable, or None."""
    if value is not None and not callable(value):
        raise ConfigError(f"{_place(instance, attribute)} must be callable, not {value!r}")


def span(given: object, what: str) -> timedelta:
    """Return seconds, or a timedelta, as a timedelta.

    Raises:
        ConfigError: It is neither, or longer than a timedelta can be.
    """
    if isinstance(given, timedelta):
        return given
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        with suppress(OverflowError, ValueError):
            return timedelta(seconds=given)
        raise ConfigError(f"{what} is no time: {given!r} seconds")
    raise ConfigError(f"{what} must be seconds or a timedelta, not {given!r}")


text: Check = instance_of(str)
mapping: Check = instance_of(Mapping)


def _place(instance: Any, attribute: attrs.Attribute[Any]) -> str:
    """Return `Class.field`, with the instance's name where it has one."""
    name = getattr(instance, "name", None)
    owner = type(instance).__name__ + (f" {name!r}" if isinstance(name, str) else "")
    return f"{owner}.{attribute.name}"
