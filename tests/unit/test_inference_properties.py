"""What a hint generates fits its schema; any JSON is judged and never a crash."""

# ruff: noqa: UP007, UP045 - the older spellings are hints too

from __future__ import annotations

import datetime
import enum
import json
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional, Union

from hypothesis import given
from hypothesis import strategies as st

from toolnexus.schema import faults
from toolnexus.tools.native import tool
from toolnexus.toolspec import ToolContext

CTX = ToolContext()


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


CASES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, st.text()),
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bool, st.booleans()),
    (Color, st.sampled_from(["red", "blue"])),
    (Level, st.sampled_from([1, 2])),
    (Literal["a", 2], st.sampled_from(["a", 2])),
    (datetime.date, st.dates().map(str)),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False).map(str)),
]


def wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def grow(case: tuple[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
        hint, values = case
        return st.sampled_from(
            [
                (list[hint], st.lists(values, max_size=3)),
                (tuple[hint, ...], st.lists(values, max_size=3)),
                (tuple[hint, int], st.tuples(values, st.integers()).map(list)),
                (dict[str, hint], st.dictionaries(st.text(), values, max_size=3)),
                (Optional[hint], st.none() | values),
                (Union[hint, None, bool], st.none() | st.booleans() | values),
                (Annotated[hint, "Text."], values),
            ]
        )

    return inner.flatmap(grow)


hints_with_values = st.recursive(st.sampled_from(CASES), wider, max_leaves=4)


@given(st.data())
def test_whatever_a_hint_generates_fits_its_schema_and_converts(data: st.DataObject) -> None:
    hint, values = data.draw(hints_with_values)
    value = data.draw(values)

    def f(it):  # type: ignore[no-untyped-def]
        return it

    f.__annotations__["it"] = hint
    made = tool(f)
    result = made.execute({"it": value}, CTX)
    assert not result.is_error, result.output
    if value is not None:
        assert faults({"it": value}, made.input_schema) == []
    if not isinstance(value, str) and value is not None:
        assert json.loads(result.output) == value


@given(st.data(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_json_is_a_value_or_an_error_result(data: st.DataObject, value: Any) -> None:
    hint, _ = data.draw(hints_with_values)

    def f(it):  # type: ignore[no-untyped-def]
        return ""

    f.__annotations__["it"] = hint
    result = tool(f).execute({"it": value}, CTX)
    assert result.is_error == ("do not fit" in result.output)
