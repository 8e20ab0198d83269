"""`faults` and `parse_arguments`: exact where a schema is plain, harmless where it is odd."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus.keywords import ECHO_CHARS, RULES, echo, same_json
from toolnexus.schema import (
    _NESTED,
    ARGUMENTS_MAX_CHARS,
    FAULTS_MAX,
    SCHEMA_CHARS,
    faults,
    parse_arguments,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
keyword_names = st.sampled_from(
    [*RULES, *_NESTED, "patternProperties", "$defs", "nullable", "unknown"]
)
odd_schemas = st.recursive(
    st.booleans() | json_values | st.sampled_from(["string", "object", "#", "#/$defs/a", "[["]),
    lambda inner: (
        st.dictionaries(keyword_names, inner, max_size=4) | st.lists(inner, max_size=3)
    ),
    max_leaves=15,
)

FITS = [
    (3, {"type": "integer"}),
    (5.0, {"type": "integer"}),
    (3.5, {"type": "number"}),
    (3, {"type": "number"}),
    (None, {"type": "null"}),
    (None, {"type": "string", "nullable": True}),
    (None, {"type": ["string", "null"]}),
    ("x", {"type": ["string", "null"]}),
    ("x", {"type": "a kind nobody knows"}),
    (1, {"enum": [1.0]}),
    ({"a": [1]}, {"const": {"a": [1.0]}}),
    ({"a": 1}, {"required": ["a"], "properties": {"a": {"type": "integer"}}}),
    ({"b": 1}, {"properties": {"a": {"type": "string"}}}),
    ({"b": 1}, {"additionalProperties": {"type": "integer"}}),
    (
        {"x-1": 1},
        {"additionalProperties": False, "patternProperties": {"^x-": {"type": "integer"}}},
    ),
    ([1, "a", "b"], {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}}),
    (["a", 1], {"items": [{"type": "string"}, {"type": "integer"}]}),
    (5, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
    (5, {"oneOf": [{"type": "string"}, {"type": "integer"}]}),
    (5, {"allOf": [{"minimum": 5}, {"maximum": 5}]}),
    ("abc", {"minLength": 3, "maxLength": 3, "pattern": "b"}),
    ([1], {"minItems": 1, "maxItems": 1}),
    (5, {"exclusiveMinimum": 4, "exclusiveMaximum": 6}),
    ("no number", {"minimum": 5}),
    (7, {"minLength": 5, "minItems": 5, "pattern": "x", "required": ["a"]}),
    ("x", True),
]
REFUSED = [
    (3.5, {"type": "integer"}),
    (True, {"type": "integer"}),
    (True, {"type": "number"}),
    (float("nan"), {"type": "number"}),
    (float("inf"), {"type": "number"}),
    (float("inf"), {"type": "integer"}),
    (1, {"type": "boolean"}),
    ("5", {"type": ["integer", "null"]}),
    (None, {"type": "string"}),
    (True, {"enum": [1]}),
    (1, {"const": True}),
    ([1], {"const": [1, 2]}),
    ({}, {"required": ["a"]}),
    ({"b": 1}, {"properties": {"a": {}}, "additionalProperties": False}),
    ({"b": "x"}, {"additionalProperties": {"type": "integer"}}),
    ([1, 2], {"prefixItems": [{}, {"type": "string"}]}),
    ([1, 2], {"prefixItems": [{}], "items": False}),
    ([1], {"items": [{"type": "string"}]}),
    (5, {"anyOf": [{"type": "string"}, {"minimum": 6}]}),
    (5, {"oneOf": [{"type": "integer"}, {"minimum": 5}]}),
    (5, {"oneOf": [{"type": "string"}]}),
    (5, {"allOf": [{"minimum": 5}, {"maximum": 4}]}),
    ("ab", {"minLength": 3}),
    ("abcd", {"maxLength": 3}),
    ("abc", {"pattern": "^b"}),
    ([], {"minItems": 1}),
    ([1, 2], {"maxItems": 1}),
    (4, {"exclusiveMinimum": 4}),
    (6, {"exclusiveMaximum": 6}),
    ("x", False),
]
MALFORMED = [
    {"type": 5},
    {"type": []},
    {"type": {"a": 1}},
    {"enum": 5},
    {"required": "amount"},
    {"required": [1, None]},
    {"properties": ["amount"]},
    {"properties": {"amount": 7}},
    {"anyOf": {}},
    {"anyOf": []},
    {"oneOf": []},
    {"allOf": "x"},
    {"$ref": 5},
    {"$ref": "#/$defs/nowhere"},
    {"$ref": "https://example.com/schema"},
    {"$ref": "#"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"properties": {"amount": {"pattern": "(", "minimum": "x", "maxLength": None}}},
    {"properties": {"amount": {"pattern": "[[a]"}}},
    {"x-unknown": {"type": "string"}},
]


@pytest.mark.parametrize(("value", "schema"), FITS)
def test_what_fits_has_no_faults(value: Any, schema: Any) -> None:
    assert faults(value, schema) == []


@pytest.mark.parametrize(("value", "schema"), REFUSED)
def test_what_does_not_fit_has_one_fault_that_says_what_would(value: Any, schema: Any) -> None:
    [fault] = faults(value, schema)
    assert re.search(r"must fit|there is no such|allows nothing", fault)


@pytest.mark.parametrize("schema", MALFORMED)
def test_a_malformed_schema_rejects_nothing(schema: Any) -> None:
    assert faults({"amount": 5}, schema) == []


@given(json_values, odd_schemas)
def test_no_schema_makes_it_raise(value: Any, schema: Any) -> None:
    for line in faults(value, schema):
        assert "\n" not in line


def test_a_fault_names_path_value_and_wish() -> None:
    schema = {"properties": {"rows": {"items": {"properties": {"a b": {"type": "integer"}}}}}}
    assert faults({"rows": [{}, {"a b": "ten"}]}, schema) == [
        'argument rows[1]["a b"] is "ten", but must fit {"type":"integer"}'
    ]


def test_a_missing_and_a_strange_argument_are_named() -> None:
    schema = {
        "type": "object",
        "properties": {"amount": {"type": "integer"}},
        "required": ["amount"],
        "additionalProperties": False,
    }
    assert faults({"amuont": 5}, schema) == [
        'argument amount is missing, but must fit {"type":"integer"}',
        "argument amuont is 5, but there is no such argument (known: amount)",
    ]


def test_a_fault_in_the_only_fitting_branch_is_told_in_detail() -> None:
    point = {"type": "object", "properties": {"x": {"type": "integer"}}}
    schema = {"$defs": {"p": point}, "anyOf": [{"$ref": "#/$defs/p"}, {"type": "null"}]}
    assert faults({"x": "a"}, schema) == ['argument x is "a", but must fit {"type":"integer"}']


def test_pointers_are_unescaped() -> None:
    schema = {"$defs": {"a/b c": {"type": "string"}}, "$ref": "#/$defs/a~1b%20c"}
    assert faults("x", schema) == []
    assert len(faults(5, schema)) == 1


def test_a_huge_value_is_cut() -> None:
    [fault] = faults({"a": "x" * 100_000}, {"properties": {"a": {"type": "integer"}}})
    assert len(fault) < 2 * ECHO_CHARS + 40


def test_faults_are_counted_out() -> None:
    assert len(faults(list(range(1000)), {"items": {"type": "string"}})) == FAULTS_MAX


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"left": value}
    return value


TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "anyOf": [
                {"properties": {"left": {"$ref": "#/$defs/tree"}}, "required": ["no"]},
                {"properties": {"left": {"$ref": "#/$defs/tree"}}, "required": ["never"]},
                {"allOf": [{"$ref": "#/$defs/both"}, {"$ref": "#/$defs/both"}]},
            ]
        },
        "both": {"properties": {"left": {"$ref": "#/$defs/tree"}}},
    },
}


def test_branching_recursion_takes_no_exponential_time() -> None:
    assert faults(nested(50), TREE) == []
    bad = json.loads(json.dumps(TREE))
    bad["$defs"]["both"]["properties"]["left"] = {"anyOf": [{"$ref": "#/$defs/tree"}] * 2}
    for branch in (*bad["$defs"]["tree"]["anyOf"], bad["$defs"]["both"]):
        branch["type"] = "object"
    assert faults(nested(50), bad)


def test_nesting_without_end_is_a_fault() -> None:
    schema = {"properties": {"left": {"$ref": "#"}}}
    assert faults(nested(60), schema) == []
    [fault] = faults(nested(900), schema)
    assert "nested deeper" in fault


def test_a_deep_schema_on_one_value_rejects_nothing() -> None:
    schema: Any = {"type": "string"}
    for _ in range(500):
        schema = {"allOf": [schema]}
    assert faults(5, schema) == []


@given(json_values)
def test_any_value_is_the_same_json_as_itself_and_fits_its_const(value: Any) -> None:
    again = json.loads(json.dumps(value))
    assert same_json(value, again)
    assert faults(value, {"const": again}) == []
    assert faults(value, {"enum": [again]}) == []


@given(json_values, st.integers(5, 200))
def test_an_echo_is_one_short_line(value: Any, limit: int) -> None:
    text = echo(value, limit)
    assert len(text) <= limit
    assert len(text.splitlines()) <= 1


def test_an_echo_shows_what_json_cannot_write() -> None:
    assert echo(object()) == '"<object>"'
    endless: list[Any] = []
    endless.append(endless)
    assert echo(endless)


# -- parse_arguments ---------------------------------------------------------------------------

AMOUNT = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}},
    "required": ["amount"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def refusal(text: str, schema: Any = AMOUNT) -> str:
    parsed = parse_arguments(text, schema)
    assert isinstance(parsed, str)
    assert len(parsed) < SCHEMA_CHARS + 3 * ECHO_CHARS + 200
    return parsed


def test_an_object_is_read_as_it_is() -> None:
    assert parse_arguments('{"amount": 5, "more": [null]}', AMOUNT) == {
        "amount": 5,
        "more": [None],
    }


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_no_text_is_no_arguments_only_where_none_is_required(text: str) -> None:
    assert parse_arguments(text, NOTHING) == {}
    assert parse_arguments(text, {}) == {}
    assert "amount is missing" in refusal(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"amount": 5', "not valid JSON"),
        ("amount=5", "not valid JSON"),
        ('{"amount": NaN}', "NaN"),
        ('{"amount": -Infinity}', "Infinity"),
        ('{"amount": 1e999}', "not valid JSON"),
        ('{"amount": 5} {}', "not valid JSON"),
        ("[1]", "a JSON array"),
        ("null", "a JSON null"),
        ("true", "a JSON boolean"),
        ("5", "a JSON integer"),
        ('"{\\"amount\\": 5}"', "encoded twice"),
        ('{"amount": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a":"' + "x" * ARGUMENTS_MAX_CHARS + '"}', "characters"),
    ],
)
def test_anything_else_is_refused_with_an_echo_and_the_schema(text: str, why: str) -> None:
    told = refusal(text)
    assert why in told
    assert echo(text) in told
    assert echo(AMOUNT, SCHEMA_CHARS) in told


def test_a_long_schema_is_cut() -> None:
    assert "…" in refusal("5", {"type": "object", "description": "x" * 10_000})


@given(st.text() | st.text('{}[]",:0123456789.eE-ntrufals\\ ') | json_values.map(json.dumps))
def test_no_text_makes_it_raise(text: str) -> None:
    assert isinstance(parse_arguments(text, AMOUNT), (dict, str))


@given(st.dictionaries(st.text(), json_values))
def test_what_json_writes_comes_back(arguments: dict[str, Any]) -> None:
    text = json.dumps(arguments)
    if "Infinity" not in text:
        assert parse_arguments(text, {}) == arguments
