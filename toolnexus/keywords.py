"""What each JSON Schema keyword that looks at one value alone wants, and values as one line."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from toolnexus.codec import JsonValue

ECHO_CHARS: Final = 120
"""How much of a value, or of one keyword of a schema, a fault quotes."""


_MULTILINE: Final = re.compile(r"\(\?[a-zA-Z]*m")
"""Where a pattern says itself that its `$` means the end of each line."""


def echo(value: object, limit: int = ECHO_CHARS) -> str:
    """Return `value` as one line of at most `limit` characters of JSON; never raises."""
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_typename)
    text = ""
    try:
        # Chunk by chunk, so that a huge value is not written out to be cut afterwards.
        for chunk in encoder.iterencode(value):
            text += chunk
            if len(text) > limit:
                break
    except (TypeError, ValueError, RecursionError):
        text = text or _typename(value)
    text = " ".join(text[: limit + 1].splitlines())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _typename(value: object) -> str:
    return f"<{type(value).__name__}>"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


TYPES: Final[Mapping[object, Callable[[object], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "integer": _is_integer,
    "number": _is_finite,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, (list, tuple)),
    "object": lambda value: isinstance(value, dict),
}


def fits_type(value: object, wanted: object) -> bool:
    """Whether `value` is of a wanted type; a type nobody knows fits everything."""
    names = wanted if isinstance(wanted, list) else [wanted]
    for name in names:
        known = TYPES.get(name) if isinstance(name, str) else None
        if known is None or known(value):
            return True
    return not names


def same_json(left: JsonValue, right: JsonValue) -> bool:
    """Whether two values are the same JSON: 1 is 1.0, but True is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_json, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            same_json(item, right[key]) for key, item in left.items()
        )
    return bool(left == right)


def _fits_enum(value: object, wanted: object) -> bool:
    return not isinstance(wanted, (list, tuple)) or any(same_json(value, one) for one in wanted)


@lru_cache(maxsize=1_024)
def _exact(pattern: str) -> str:
    """Return `pattern` with `$` for the very end alone, as JSON Schema means it.

    In Python it is found before a last line break as well, which `^ann$` would let pass.
    """
    if "$" not in pattern or _MULTILINE.search(pattern):
        return pattern
    out, class_began, index = "", -1, 0
    while index < len(pattern):
        one = pattern[index : index + 2] if pattern[index] == "\\" else pattern[index]
        if class_began >= 0:
            # A bracket right at the beginning is one of the class.
            is_first = pattern[class_began + 1 : index] in ("", "^")
            class_began = -1 if one == "]" and not is_first else class_began
        elif one == "[":
            class_began = index
        out += r"\Z" if one == "$" and class_began < 0 else one
        index += len(one)
    return out


def matches(text: str, pattern: object) -> bool | None:
    """Whether `pattern` is found in `text`; None where it is no regular expression of ours."""
    try:
        return re.search(_exact(pattern), text) is not None
    except (re.error, TypeError, ValueError, OverflowError, RecursionError, Warning):
        return None


def _fits_pattern(value: object, wanted: object) -> bool:
    return not isinstance(value, str) or matches(value, wanted) is not False


_Rule: TypeAlias = Callable[[Any, Any], bool]


def _limit(compare: _Rule) -> _Rule:
    def fits(value: Any, wanted: Any) -> bool:
        return not (_is_number(value) and _is_number(wanted)) or compare(value, wanted)

    return fits


def _size(kind: Any, compare: _Rule) -> _Rule:
    def fits(value: Any, wanted: Any) -> bool:
        return not (isinstance(value, kind) and _is_number(wanted)) or compare(
            len(value), wanted
        )

    return fits


LIMITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "number"),
    **dict.fromkeys(("minLength", "maxLength"), "string"),
    **dict.fromkeys(("minItems", "maxItems"), "array"),
}
"""The keywords whose value is a number, and the type of what they limit."""

RULES: Final[Mapping[object, _Rule]] = {
    "type": fits_type,
    "enum": _fits_enum,
    "const": same_json,
    "pattern": _fits_pattern,
    "minimum": _limit(operator.ge),
    "maximum": _limit(operator.le),
    "exclusiveMinimum": _limit(operator.gt),
    "exclusiveMaximum": _limit(operator.lt),
    "minLength": _size(str, operator.ge),
    "maxLength": _size(str, operator.le),
    "minItems": _size((list, tuple), operator.ge),
    "maxItems": _size((list, tuple), operator.le),
}
