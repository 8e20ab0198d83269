"""Forms: the flat schemas that answers fit, and which of their fields are secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from toolnexus.codec import JsonValue, canonical, check_json, dumps
from toolnexus.errors import ConfigError, WireFormatError
from toolnexus.keywords import LIMITS, RULES, TYPES, echo, same_json
from toolnexus.suspension import LOGIN, Request, parse_time

_NOTES: Final = frozenset({"type", "title", "description", "default", "secret"})
_OF_NUMBERS: Final = frozenset(
    {"enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)
_KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"enum", "minLength", "maxLength", "pattern", "format"}),
    "number": _OF_NUMBERS,
    "integer": _OF_NUMBERS,
    "boolean": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems", "uniqueItems"}),
}
_TOLD: Final = frozenset({"title", "description", "default", "enum", "pattern"})
"""The keywords whose values a person reads, in the question or in a fault."""

_FORM_KEYS: Final = frozenset(
    {"type", "properties", "required", "title", "description", "additionalProperties"}
)
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
_CREDENTIAL: Final = re.compile(
    r"pass_?(word|wd|phrase|code)|secret|credential|access_?token|api_?key|private_?key"
    r"|access_?key|(^|_)(token|pwd|pin|otp|cvv|cvc|mfa|totp|ssn)(_|$)|card_?number",
    re.IGNORECASE,
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\s.-]+")


def check_question(request: Request) -> None:
    """Check that a person can answer `request`, and that it asks for no secret in the open.

    Raises:
        ConfigError: Its schema is not flat, or a field looks like a credential and is not
            marked `secret`.
    """
    if "schema" not in (request.data or {}):
        return
    schema = request.schema
    if schema is None:
        raise ConfigError(f"schema must be a flat JSON Schema, not {echo(request.data)}")
    try:
        check_json(schema, "schema")
    except WireFormatError as error:
        raise ConfigError(str(error)) from None
    if is_form(schema):
        _check_form(schema)
    else:
        _check_field("the answer", schema)
    secret = secret_fields(request)
    for name, field in fields_of(schema).items():
        if _looks_like_credential(name, field) and name not in secret:
            raise ConfigError(
                f"{f'field {name!r}' if name else 'the answer'} looks like a credential: mark "
                f'it with "secret": true, or ask with kind {LOGIN!r} and a url'
            )


def is_form(schema: Mapping[str, JsonValue]) -> bool:
    """Whether the answer is an object with fields, and not one value."""
    return schema.get("type") == "object"


def fields_of(schema: Mapping[str, JsonValue]) -> dict[str, Mapping[str, JsonValue]]:
    """Return the fields by name; the one value of a schema that is no form is `""`."""
    return dict(schema["properties"]) if is_form(schema) else {"": schema}


def secret_fields(request: Request) -> frozenset[str]:
    """Return the names of the fields that go to the tool and nowhere else.

    All that is said to a login is: it may be a token. Without a schema that is one field, `""`.
    """
    is_login = request.kind == LOGIN
    if request.schema is None:
        return frozenset({""}) if is_login else frozenset()
    fields = fields_of(request.schema).items()
    return frozenset(name for name, field in fields if is_login or field.get("secret") is True)


def login_key(request: Request) -> str | None:
    """Return what calls that can share a login have in common; None for what is not shared.

    The schema too: what one person entered fits nobody else's form by accident.
    """
    if request.resource is None:
        return None
    return dumps([request.resource, request.schema])


def is_same_question(before: Request, now: Request) -> bool:
    """Say whether an answer to the one is an answer to the other.

    Of a login that several calls share, each may have its own words. An approval is one of all
    that was shown.
    """
    if before.kind != now.kind or not same_json(before.schema, now.schema):
        return False
    key = login_key(now)
    if key is not None and key == login_key(before):
        return True
    if now.kind == "approval" and _shown(before) != _shown(now):
        return False
    return before.prompt == now.prompt


def _shown(request: Request) -> str:
    data = {key: value for key, value in (request.data or {}).items() if key != "path"}
    return canonical([request.url, data])


def form_faults(
    schema: Mapping[str, JsonValue], data: JsonValue, *, is_secret: bool = False
) -> list[str]:
    """Return everything that keeps `data` from fitting, a line each; [] where it fits.

    Args:
        schema: The question's.
        data: What was said.
        is_secret: Whether all of it is, as what is said to a login; no line quotes it then.
    """
    if is_secret:
        schema = all_secret(schema)
    if not is_form(schema):
        return list(field_faults("the answer", schema, data))
    if not isinstance(data, Mapping):
        return [f"the answer must be an object with the fields {_names(schema)}"]
    found: list[str] = []
    fields, required = fields_of(schema), schema.get("required", ())
    for name, field in fields.items():
        if name in data:
            found += field_faults(name, field, data[name])
        elif name in required:
            found.append(f"{name} is missing, but must fit {echo(field)}")
    found += [
        f"there is no field {echo(name, 40)} (known: {_names(schema)})"
        for name in data
        if name not in fields
    ]
    return found


def all_secret(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a schema with every field of it marked, as those of a login count."""
    if not is_form(schema):
        return {**schema, "secret": True}
    fields = {name: {**field, "secret": True} for name, field in fields_of(schema).items()}
    return {**schema, "properties": fields}


def field_faults(name: str, field: Mapping[str, JsonValue], value: JsonValue) -> Iterator[str]:
    """Yield what keeps `value` from fitting one field."""
    # Never the value of a secret: the line goes into an exception.
    shown = "a secret that does not fit" if field.get("secret") is True else echo(value)
    for keyword, wanted in field.items():
        rule = RULES.get(keyword)
        fits = rule(value, wanted) if rule is not None else True
        if keyword == "format" and isinstance(value, str):
            fits = _FORMATS[wanted](value)
        if keyword == "uniqueItems" and wanted is True and isinstance(value, list):
            fits = len({dumps(item) for item in value}) == len(value)
        if keyword == "items" and isinstance(value, list):
            fits = all(RULES["enum"](item, wanted["enum"]) for item in value)
        if not fits:
            yield f"{name} is {shown}, but must fit {echo({keyword: wanted})}"


def masked(request: Request, mask: Callable[[Any], Any]) -> Request:
    """Return `request` with what `mask` puts in the place of secrets; its schema stays one."""
    data: Any = request.data
    if request.schema is None:
        data = mask(data)
    else:
        # A secret may well be `string` or `1000`: what no person reads is left as it is.
        rest = {key: value for key, value in data.items() if key != "schema"}
        data = {**mask(rest), "schema": _masked_field(request.schema, mask)}
    prompt, url = mask(request.prompt), mask(request.url)
    return attrs.evolve(request, prompt=prompt, url=url, data=data)


def _masked_field(
    field: Mapping[str, JsonValue], mask: Callable[[Any], Any]
) -> dict[str, JsonValue]:
    out = {key: mask(field[key]) if key in _TOLD else field[key] for key in field}
    if isinstance(field.get("items"), Mapping):
        out["items"] = _masked_field(field["items"], mask)
    if isinstance(field.get("properties"), Mapping):
        out["properties"] = {
            name: _masked_field(inner, mask) if isinstance(inner, Mapping) else inner
            for name, inner in field["properties"].items()
        }
    return out


def _names(schema: Mapping[str, JsonValue]) -> str:
    return ", ".join(schema["properties"]) or "none"


def _check_form(schema: Mapping[str, JsonValue]) -> None:
    properties, required = schema.get("properties"), schema.get("required", [])
    unknown = sorted(set(schema) - _FORM_KEYS)
    if unknown:
        raise ConfigError(f"schema: a form has no {', '.join(unknown)}; it is flat")
    if schema.get("additionalProperties", False) is not False:
        raise ConfigError("schema: a form takes no fields but its own; leave the others out")
    if not isinstance(properties, Mapping):
        raise ConfigError('schema: a form lists its fields under "properties"')
    strangers = [one for one in _list(required) if one not in properties]
    if not isinstance(required, (list, tuple)) or strangers:
        raise ConfigError(f"schema: required must list fields of the form, not {required!r}")
    for name, field in properties.items():
        _check_field(f"field {name!r}", field)


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _check_field(place: str, field: object) -> None:
    if not isinstance(field, Mapping):
        raise ConfigError(f"schema: {place} must be an object, not {field!r}")
    kind = field.get("type")
    if kind is None and _list(field.get("enum")):
        unknown = sorted(set(field) - _NOTES - {"enum"})
    elif isinstance(kind, str) and kind in _KEYWORDS:
        unknown = sorted(set(field) - _NOTES - _KEYWORDS[kind])
    else:
        known = ", ".join(_KEYWORDS)
        raise ConfigError(f"schema: {place} must have one type of {known}, not {kind!r}")
    if unknown:
        raise ConfigError(f"schema: {place} may not have {', '.join(unknown)}")
    if "enum" in field and not _list(field["enum"]):
        raise ConfigError(f"schema: the enum of {place} must list values")
    if "secret" in field and not isinstance(field["secret"], bool):
        raise ConfigError(f"schema: secret of {place} must be true or false")
    _check_limits(place, field)
    _check_texts(place, field)
    if kind == "array":
        items = field.get("items")
        if not isinstance(items, Mapping) or not _list(items.get("enum")):
            raise ConfigError(f'schema: {place} is an array; give "items": {{"enum": [...]}}')


def _check_limits(place: str, field: Mapping[str, JsonValue]) -> None:
    """Refuse what would be no limit: a keyword that is malformed rejects nothing."""
    for keyword in LIMITS.keys() & field.keys():
        if not TYPES["number"](field[keyword]):
            raise ConfigError(f"schema: {keyword} of {place} must be a number")
    if not isinstance(field.get("uniqueItems", False), bool):
        raise ConfigError(f"schema: uniqueItems of {place} must be true or false")


def _check_texts(place: str, field: Mapping[str, JsonValue]) -> None:
    pattern, name = field.get("pattern"), field.get("format")
    if pattern is not None:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(f"schema: the pattern of {place} is none: {error}") from None
    if name is not None and name not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise ConfigError(f"schema: the format of {place} must be one of {known}, not {name!r}")


def _looks_like_credential(name: str, field: Mapping[str, JsonValue]) -> bool:
    said = (name, field.get("title"))
    words = (_CAMEL.sub("_", text) for text in said if isinstance(text, str))
    return field.get("format") == "password" or any(map(_CREDENTIAL.search, words))


# -- formats -----------------------------------------------------------------------------------


def _is_uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme and (parts.netloc or parts.path)) and not re.search(r"\s", text)


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_moment(text: str) -> bool:
    try:
        return parse_time(text, "") is not None
    except WireFormatError:
        return False


_FORMATS: Final[Mapping[str, Callable[[str], bool]]] = {
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
    "uri": _is_uri,
    "date": _is_date,
    "date-time": _is_moment,
    "password": lambda text: True,  # noqa: ARG005 - how it is shown, not what it is
}
