"""Forms: which schemas an answer may have, and what fits them."""

from __future__ import annotations

from typing import Any

import pytest

from toolnexus import ConfigError, Request
from toolnexus.forms import check_question, form_faults, secret_fields

FITS: list[tuple[Any, Any, bool]] = [
    ({"type": "string"}, "", True),
    ({"type": "string"}, 5, False),
    ({"type": "string", "minLength": 1, "maxLength": 2}, "", False),
    ({"type": "string", "minLength": 1, "maxLength": 2}, "abc", False),
    ({"type": "string", "pattern": "^[a-z]+$"}, "abc", True),
    ({"type": "string", "pattern": "^[a-z]+$"}, "a1", False),
    ({"type": "string", "pattern": "^[a-z]+$"}, "abc\n", False),
    ({"type": "string", "pattern": r"^[$\]]\$[]$]$"}, "$$]", True),
    ({"type": "string", "pattern": r"^[$\]]\$[]$]$"}, "$$]\n", False),
    ({"type": "string", "pattern": "(?m)^[a-z]$"}, "a\nb1", True),
    ({"type": "string", "format": "email"}, "ann@example.org", True),
    ({"type": "string", "format": "email"}, "ann@example", False),
    ({"type": "string", "format": "email"}, "a b@example.org", False),
    ({"type": "string", "format": "uri"}, "https://example.org/x", True),
    ({"type": "string", "format": "uri"}, "example.org", False),
    ({"type": "string", "format": "uri"}, "http://[x", False),
    ({"type": "string", "format": "date"}, "2026-01-31", True),
    ({"type": "string", "format": "date"}, "2026-02-31", False),
    ({"type": "string", "format": "date"}, "20260131", False),
    ({"type": "string", "format": "date-time"}, "2026-01-31T12:00:00Z", True),
    ({"type": "string", "format": "date-time"}, "2026-01-31T12:00:00", False),
    ({"type": "integer"}, 5, True),
    ({"type": "integer"}, 5.0, True),
    ({"type": "integer"}, 5.5, False),
    ({"type": "integer"}, True, False),
    ({"type": "integer"}, "5", False),
    ({"type": "integer", "minimum": 1, "maximum": 5}, 0, False),
    ({"type": "integer", "minimum": 1, "maximum": 5}, 5, True),
    ({"type": "number", "exclusiveMinimum": 0}, 0, False),
    ({"type": "number", "exclusiveMaximum": 1}, 0.5, True),
    ({"type": "boolean"}, False, True),
    ({"type": "boolean"}, 0, False),
    ({"type": "boolean"}, "true", False),
    ({"enum": ["a", 1, None]}, None, True),
    ({"enum": ["a", 1]}, True, False),
    ({"type": "string", "enum": ["a", "b"]}, "c", False),
    ({"type": "array", "items": {"enum": ["a", "b"]}}, ["a", "b", "a"], True),
    ({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}, ["a", "a"], False),
    ({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1}, [], False),
    ({"type": "array", "items": {"enum": ["a", "b"]}}, ["c"], False),
    ({"type": "array", "items": {"enum": ["a", "b"]}}, "a", False),
]


@pytest.mark.parametrize(("field", "value", "fits"), FITS)
@pytest.mark.parametrize("in_form", [False, True])
def test_a_value_fits_its_field_or_the_fault_names_it(
    field: Any, value: Any, fits: bool, in_form: bool
) -> None:
    schema = {"type": "object", "properties": {"x": field}} if in_form else field
    check_question(Request("input", "?", data={"schema": schema}))
    found = form_faults(schema, {"x": value} if in_form else value)
    assert (found == []) is fits
    for line in found:
        assert line.startswith("x is " if in_form else "the answer is ")


def test_every_fault_is_listed() -> None:
    fields = {f"f{number}": {"type": "integer"} for number in range(40)}
    schema = {"type": "object", "properties": fields, "required": ["f0"]}
    data: dict[str, Any] = {f"f{number}": "x" for number in range(1, 40)}
    assert len(form_faults(schema, {**data, "other": 1})) == 41
    assert form_faults({"type": "object", "properties": {}}, {}) == []
    assert form_faults(schema, None) != []


BAD: list[Any] = [
    {"type": "object"},
    {"type": "object", "properties": []},
    {"type": "object", "properties": {"a": 1}},
    {"type": "object", "properties": {"a": {}}},
    {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}},
    {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
    {"type": "object", "properties": {"a": {"type": "array"}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}},
    {"type": "object", "properties": {"a": {"type": "string", "maximum": 5}}},
    {"type": "object", "properties": {"a": {"type": "string", "format": "colour"}}},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": 5}}},
    {"type": "object", "properties": {"a": {"type": "integer", "maximum": "5"}}},
    {"type": "string", "minLength": None},
    {"type": "string", "maxLength": True},
    {"type": "array", "items": {"enum": [1]}, "maxItems": [1]},
    {"type": "array", "items": {"enum": [1]}, "uniqueItems": "yes"},
    {"type": "object", "properties": {"a": {"type": "string", "secret": "yes"}}},
    {"type": "object", "properties": {"a": {"enum": []}}},
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"},
    {"type": "object", "properties": {}, "oneOf": []},
    {"$ref": "#/x"},
    {},
    "string",
    5,
    None,
]


@pytest.mark.parametrize("schema", BAD)
def test_a_schema_that_is_not_flat_cannot_be_asked(schema: Any) -> None:
    with pytest.raises(ConfigError, match="schema"):
        check_question(Request("input", "?", data={"schema": schema}))


@pytest.mark.parametrize("name", ["passenger", "pinned", "keyboard", "max_tokens", "spin"])
def test_a_harmless_name_may_stand_in_the_open(name: str) -> None:
    field = {"type": "string"}
    check_question(Request("input", "?", data={"schema": form(name, field)}))


def form(name: str, field: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: field}}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("x", {"type": "string", "format": "password"}),
        ("x", {"type": "string", "title": "API key"}),
        ("PASSWORD", {"type": "string"}),
        ("user.password", {"type": "string"}),
        ("clientSecret", {"type": "string"}),
        ("pin", {"type": "integer"}),
        ("cardNumber", {"type": "string"}),
    ],
)
def test_a_credential_may_not_and_marked_it_may(name: str, field: Any) -> None:
    with pytest.raises(ConfigError, match="looks like a credential"):
        check_question(Request("input", "?", data={"schema": form(name, field)}))
    marked = Request("input", "?", data={"schema": form(name, {**field, "secret": True})})
    check_question(marked)
    assert secret_fields(marked) == {name}
    login = Request("authorization", "?", data={"schema": form(name, field)})
    check_question(login)
    assert secret_fields(login) == {name}


@pytest.mark.parametrize("extra", [{"format": "password"}, {"title": "API key"}])
def test_one_value_may_be_a_credential_too(extra: Any) -> None:
    field = {"type": "string", **extra}
    with pytest.raises(ConfigError, match="the answer looks like a credential"):
        check_question(Request("question", "?", data={"schema": field}))
    check_question(Request("question", "?", data={"schema": {**field, "secret": True}}))
    login = Request("authorization", "?", data={"schema": field})
    check_question(login)
    assert secret_fields(login) == {""}


def test_a_fault_never_quotes_a_secret() -> None:
    field = {"type": "string", "maxLength": 3, "secret": True}
    for schema, data in ((field, "hunter2"), (form("pw", field), {"pw": "hunter2"})):
        (fault,) = form_faults(schema, data)
        assert "hunter2" not in fault
        assert "a secret that does not fit" in fault
    field = {"type": "string", "maxLength": 3}
    for schema, data in ((field, "hunter2"), (form("pw", field), {"pw": "hunter2"})):
        (fault,) = form_faults(schema, data, is_secret=True)
        assert "hunter2" not in fault
