"""JSON Schema as far as tool arguments need it, and the arguments a model wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import unquote

from toolnexus.codec import JsonValue, dumps, loads
from toolnexus.keywords import RULES, TYPES, echo, fits_type, matches

ARGUMENTS_MAX_CHARS: Final = 1_000_000
"""The longest arguments text that is parsed; no model writes as much on purpose."""

SCHEMA_CHARS: Final = 1_000
"""How much of a whole schema an error text quotes."""

FAULTS_MAX: Final = 20
"""How many faults are reported; the rest would not help a model."""

_LEVELS_MAX: Final = 64
_NESTING_MAX: Final = 32


# -- keywords that hold schemas ----------------------------------------------------------------


class _Place(NamedTuple):
    """Where a check stands: the path of the value, and how many schemas deep on that value."""

    path: tuple[str | int, ...] = ()
    nesting: int = 0

    def down(self, part: str | int) -> _Place:
        return _Place((*self.path, part), 0)

    def again(self) -> _Place:
        return _Place(self.path, self.nesting + 1)

    def __str__(self) -> str:
        out = ""
        for part in self.path:
            if isinstance(part, str) and part.isidentifier():
                out += f".{part}" if out else part
            else:
                out += f"[{echo(part, 40)}]"
        return f"argument {out}" if out else "the arguments object"


def _misfit(place: _Place, value: object, wanted: object) -> str:
    return f"{place} is {echo(value)}, but must fit {echo(wanted)}"


def _is_schema(schema: object) -> bool:
    return type(schema) is dict or isinstance(schema, Mapping)


class _Checker:
    """One check of one value. `brief`: only whether it fits matters, not why it does not."""

    def __init__(self, root: JsonValue, *, brief: bool) -> None:
        self._root = root
        self._brief = brief
        self._probe = self if brief else _Checker(root, brief=True)
        # (referenced schema, value) -> fits, or is being looked at. Recursion goes through
        # `$ref` only, so this bounds the work by schema size times value size.
        self._known: dict[tuple[int, int], bool] = {}

    def check(self, value: JsonValue, schema: JsonValue, place: _Place) -> Iterator[str]:
        if schema is False:
            yield f"{place} is {echo(value)}, but the schema allows nothing here"
        if not _is_schema(schema) or place.nesting > _NESTING_MAX:
            return
        if len(place.path) > _LEVELS_MAX:
            yield f"the arguments are nested deeper than {_LEVELS_MAX} levels"
            return
        if value is None and schema.get("nullable") is True:  # OpenAPI 3.0's word
            return
        for keyword, wanted in schema.items():
            rule = RULES.get(keyword)
            if rule is not None:
                if not rule(value, wanted):
                    yield _misfit(place, value, {keyword: wanted})
            elif (nested := _NESTED.get(keyword)) is not None:
                yield from nested(self, value, schema, place)

    def fits(self, value: JsonValue, schema: JsonValue, place: _Place) -> bool:
        return next(self._probe.check(value, schema, place), None) is None

    def properties(self, value: JsonValue, schema: JsonValue, place: _Place) -> Iterator[str]:
        known = schema["properties"]
        if isinstance(value, dict) and isinstance(known, Mapping):
            for name, item in value.items():
                if name in known:
                    yield from self.check(item, known[name], place.down(name))

    def required(self, value: JsonValue, schema: JsonValue, place: _Place) -> Iterator[str]:
        names, known = schema["required"], schema.get("properties")
        if not isinstance(value, dict) or not isinstance(names, (list, tuple)):
            return
        for name in names:
            if isinstance(name, str) and name not in value:
                wanted = known.get(name, {}) if isinstance(known, Mapping) else {}
                yield f"{place.down(name)} is missing, but must fit {echo(wanted)}"

    def additional(self, value: JsonValue, schema: JsonValue, place: _Place) -> Iterator[str]:
        wanted, known = schema["additionalProperties"], schema.get("properties")
        patterns = schema.get("patternProperties")
        if not isinstance(value, dict):
            return
        known = known if isinstance(known, Mapping) else {}
        for name, item in value.items():
            if name in known or _is_patterned(name, patterns):
                continue
            if wanted is False:
                names = ", ".join(map(str, known)) or "none"
                yield (
                    f"{place.down(name)} is {echo(item)}, but there is no such argument "
                    f"(known: {echo(names)[1:-1]})"
                )
            else:
                yield from self.check(item, wanted, place.down(name))

    def items(self, value: JsonValue, schema: JsonValue, place: _Place) -> Iterator[str]:
        wanted, before = schema["items"], schema.get("prefixItems")
        if isinstance(wanted, list):  # how older drafts write prefixItems
            yield from self._each(value, wanted, place)
        elif isinstance(value, (list, tuple)):
            start = len(before) if isinstance(before, list) else 0
            for index in range(start, len(value)):
                yield from self.check(value[index], wanted, place.down(index))

    def prefix_items(self, value: JsonValue, schema: JsonValue, place: _Place) -> Iterator[str]:
        yield from self._each(value, schema["prefixItems"], place)

    def _each(self, value: JsonValue, schemas: JsonValue, place: _Place) -> Iterator[str]:
        if isinstance(value, (list, tuple)) and isinstance(schemas, (list, tuple)):
            for index, (item, wanted) in enumerate(zip(value, schemas, strict=False)):
                yield from self.check(item, wanted, place.down(index))

    def all_of(self, value: JsonValue, schema: JsonValue, place: _Place) -> Iterator[str]:
        for branch in _branches(schema["allOf"]):
            yield from self.check(value, branch, place.again())

    def any_of(self, value: JsonValue, schema: JsonValue, place: _Place) -> Iterator[str]:
        branches = _branches(schema["anyOf"])
        if not branches or any(self.fits(value, each, place.again()) for each in branches):
            return
        near = [each for each in branches if self._is_near(value, each)]
        if len(near) == 1 and not self._brief:
            yield from self.check(value, near[0], place.again())
        else:
            yield _misfit(place, value, {"anyOf": branches})

    def one_of(self, value: JsonValue, schema: JsonValue, place: _Place) -> Iterator[str]:
        branches = _branches(schema["oneOf"])
        fitting = sum(self.fits(value, each, place.again()) for each in branches)
        if branches and fitting != 1:
            how = "several" if fitting else "none"
            yield f"{_misfit(place, value, {'oneOf': branches})} (it fits {how} of them)"

    def _is_near(self, value: JsonValue, schema: JsonValue) -> bool:
        if _is_schema(schema) and isinstance(schema.get("$ref"), str):
            schema = _pointed(self._root, schema["$ref"])
        return _is_schema(schema) and fits_type(value, schema.get("type"))

    def ref(self, value: JsonValue, schema: JsonValue, place: _Place) -> Iterator[str]:
        target = _pointed(self._root, schema["$ref"])
        if not _is_schema(target):
            return
        key = (id(target), id(value))
        known = self._known.get(key)
        if known:
            return
        if known is False and self._brief:
            yield _misfit(place, value, target)
            return
        self._known[key] = True
        for fault in self.check(value, target, place.again()):
            # Before the yield: a caller that has seen one fault does not come back.
            self._known[key] = False
            yield fault


_NESTED: Final[
    Mapping[object, Callable[[_Checker, JsonValue, JsonValue, _Place], Iterator[str]]]
] = {
    "properties": _Checker.properties,
    "required": _Checker.required,
    "additionalProperties": _Checker.additional,
    "items": _Checker.items,
    "prefixItems": _Checker.prefix_items,
    "allOf": _Checker.all_of,
    "anyOf": _Checker.any_of,
    "oneOf": _Checker.one_of,
    "$ref": _Checker.ref,
}


def _branches(schemas: JsonValue) -> Sequence[JsonValue]:
    return schemas if isinstance(schemas, (list, tuple)) else ()


def _is_patterned(name: str, patterns: object) -> bool:
    return isinstance(patterns, Mapping) and any(
        matches(name, pattern) is not False for pattern in patterns
    )


def _pointed(root: JsonValue, pointer: object) -> JsonValue:
    """Return what a `#/...` pointer of `root` means; None for nothing."""
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        return None
    target = root
    for part in unquote(pointer[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(key)
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target


def faults(value: JsonValue, schema: Mapping[str, JsonValue]) -> list[str]:
    """Return what keeps `value` from fitting `schema`, one line each; [] where it fits.

    A keyword that is unknown or malformed rejects nothing; `$ref` works within `schema`.

    Returns:
        At most `FAULTS_MAX` lines with the argument's path, its value cut to `ECHO_CHARS`, and
        what the schema wants.
    """
    checker = _Checker(schema, brief=False)
    try:
        return list(islice(checker.check(value, schema, _Place()), FAULTS_MAX))
    except RecursionError:
        return ["the arguments are nested too deeply to be checked"]


# -- the arguments of a call -------------------------------------------------------------------


def misfit_text(problems: Sequence[str], schema: Mapping[str, JsonValue]) -> str:
    """Return what a model reads about arguments that were not accepted."""
    lines = "\n".join(f"- {problem}" for problem in problems)
    return (
        "The arguments do not fit the tool's schema; nothing was executed.\n"
        f"{lines}\nschema: {echo(schema, SCHEMA_CHARS)}"
    )


def parse_arguments(text: str, schema: Mapping[str, JsonValue]) -> dict[str, JsonValue] | str:
    """Read the arguments of a call as the model wrote them; never raises, never guesses.

    No text at all (or only blanks) means no arguments, where the schema requires none. Whether
    an object fits the schema is for `faults` to say.

    Returns:
        The object; or, as a str, what the model reads about arguments that are none: what is
        wrong, a short echo, and the schema.
    """
    if not text.strip():
        missing = faults({}, schema)
        return misfit_text(missing, schema) if missing else {}
    if len(text) > ARGUMENTS_MAX_CHARS:
        problem = f"they have {len(text)} characters, more than {ARGUMENTS_MAX_CHARS}"
        return _bad(problem, text, schema)
    try:
        value = loads(text)
        dumps(value)  # 1e999 is read as an infinity, which is no JSON either
    except (ValueError, RecursionError) as error:
        return _bad(f"they are not valid JSON ({error})", text, schema)
    if isinstance(value, dict):
        return value
    twice = ", which looks like JSON encoded twice" if isinstance(value, str) else ""
    return _bad(f"they are a JSON {_kind(value)}{twice}", text, schema)


def _kind(value: JsonValue) -> str:
    return next(str(name) for name, is_kind in TYPES.items() if is_kind(value))


def _bad(problem: str, text: str, schema: Mapping[str, JsonValue]) -> str:
    return (
        f"The arguments must be one JSON object, but {problem}; nothing was executed.\n"
        f"arguments: {echo(text)}\nschema: {echo(schema, SCHEMA_CHARS)}"
    )
