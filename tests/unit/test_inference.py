"""Type hints to JSON Schema and back to values."""

# ruff: noqa: UP007, UP045 - the older spellings are hints too

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Optional, TypeVar, Union

import attrs
import pytest
from typing_extensions import NotRequired, Required, TypedDict

from toolnexus.errors import ToolSchemaError
from toolnexus.tools.native import tool
from toolnexus.toolspec import ToolContext

if TYPE_CHECKING:
    from decimal import Decimal

CTX = ToolContext()
T = TypeVar("T")
UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    A = "a"


@dataclasses.dataclass
class Point:
    """A place.

    Attributes:
        x: To the right.
    """

    x: int
    y: float = 0.5
    tags: set[str] = dataclasses.field(default_factory=set)
    cached: int = dataclasses.field(default=0, init=False)


@attrs.frozen
class Box:
    _corner: Point
    color: Color = Color.RED
    notes: list[str] = attrs.Factory(list)


class Options(TypedDict, total=False):
    depth: Required[int]
    color: Color


class Extras(Options):
    name: str
    at: NotRequired[Point]


@dataclasses.dataclass
class Tree:
    value: int
    left: Optional[Tree] = None
    rest: list[Tree] = dataclasses.field(default_factory=list)


@attrs.frozen
class Ping:
    pong: Pong | None = None


@attrs.frozen
class Pong:
    ping: Ping | None = None


def seen(hint: Any, value: Any) -> Any:
    """Return what a function gets for `value` where its parameter has `hint`."""
    got: list[Any] = []

    def f(it):  # type: ignore[no-untyped-def]
        got.append(it)

    f.__annotations__["it"] = hint
    result = tool(f).execute({"it": value}, CTX)
    assert not result.is_error, result.output
    return got[0]


def schema_of(hint: Any) -> Any:
    def f(it): ...  # type: ignore[no-untyped-def]

    f.__annotations__["it"] = hint
    return tool(f).input_schema["properties"]["it"]


POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "description": "To the right."},
        "y": {"type": "number", "default": 0.5},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    },
    "required": ["x"],
    "additionalProperties": False,
    "description": "A place.",
}
NULL = {"type": "null"}
STRING = {"type": "string"}
INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, STRING),
        (int, INTEGER),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, NULL),
        (Any, {}),
        (object, {}),
        (bytes, {}),
        (T, {}),
        (Callable[[], int], {}),
        (UserId, INTEGER),
        ("str", STRING),
        (list, {"type": "array"}),
        (list["int"], {"type": "array", "items": INTEGER}),
        (Sequence[list[str]], {"type": "array", "items": {"type": "array", "items": STRING}}),
        (set[int], {"type": "array", "items": INTEGER, "uniqueItems": True}),
        (tuple[int, ...], {"type": "array", "items": INTEGER}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "maxItems": 2},
        ),
        (dict, {"type": "object"}),
        (dict[str, Any], {"type": "object"}),
        (Mapping[str, int], {"type": "object", "additionalProperties": INTEGER}),
        (Optional[str], STRING),
        (str | None, STRING),
        (Annotated[Optional[str], "Why."], {"type": "string", "description": "Why."}),
        (list[Optional[str]], {"type": "array", "items": {"anyOf": [STRING, NULL]}}),
        (Union[int, str], {"anyOf": [INTEGER, STRING]}),
        (int | str | None, {"anyOf": [INTEGER, STRING]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, "a", None], {"enum": [1, "a", None]}),
        (Literal[Color.RED], {"type": "string", "enum": ["red"]}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Level, {"type": "integer", "enum": [1, 2]}),
        (Mixed, {"enum": [1, "a"]}),
        (Annotated[int, 5, "Cents.", "more"], {"type": "integer", "description": "Cents."}),
        (Point, POINT),
        (Annotated[Point, "Where."], {**POINT, "description": "Where."}),
        (
            Box,
            {
                "type": "object",
                "properties": {
                    "corner": POINT,
                    "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                    "notes": {"type": "array", "items": STRING},
                },
                "required": ["corner"],
                "additionalProperties": False,
            },
        ),
        (
            Extras,
            {
                "type": "object",
                "properties": {
                    "depth": INTEGER,
                    "color": {"type": "string", "enum": ["red", "blue"]},
                    "name": STRING,
                    "at": POINT,
                },
                "required": ["depth", "name"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_the_schema_of_a_hint(hint: Any, schema: Any) -> None:
    assert schema_of(hint) == schema


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, 5.0, 5),
        (list[int], [1.0, 2], [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, Color], [1.0, "red"], (1, Color.RED)),
        (set[Color], ["red", "red"], {Color.RED}),
        (frozenset[int], [1], frozenset({1})),
        (dict[str, Level], {"a": 2}, {"a": Level.HIGH}),
        (Mixed, 1.0, Mixed.ONE),
        (Literal[1, "a"], 1.0, 1),
        (Literal[Color.RED], "red", Color.RED),
        (Point, {"x": 1.0, "tags": ["a"]}, Point(1, 0.5, {"a"})),
        (Box, {"corner": {"x": 1}, "color": "blue"}, Box(Point(1), Color.BLUE)),
        (Options, {"depth": 1, "color": "red"}, {"depth": 1, "color": Color.RED}),
        (
            Extras,
            {"depth": 1, "name": "n", "at": {"x": 1}},
            {"depth": 1, "name": "n", "at": Point(1)},
        ),
        (Union[Point, Options], {"depth": 2}, {"depth": 2}),
        (Union[Options, Point, str], {"x": 2}, Point(2)),
        (Optional[Color], None, None),
        (list[Optional[Color]], ["red", None], [Color.RED, None]),
        (Tree, {"value": 1, "left": {"value": 2}}, Tree(1, Tree(2))),
        (
            Tree,
            {"value": 1, "rest": [{"value": 2}, {"value": 3}]},
            Tree(1, None, [Tree(2), Tree(3)]),
        ),
        (Ping, {"pong": {"ping": {"pong": None}}}, Ping(Pong(Ping()))),
        (Any, {"a": [1.0]}, {"a": [1.0]}),
    ],
)
def test_json_becomes_the_hinted_value(hint: Any, value: Any, expected: Any) -> None:
    got = seen(hint, value)
    assert got == expected
    assert repr(got) == repr(expected)


def test_a_recursive_class_is_a_definition() -> None:
    def f(tree: Annotated[Tree, "The root."], again: Tree | None = None) -> None: ...

    schema = tool(f).input_schema
    assert schema["properties"] == {
        "tree": {"$ref": "#/$defs/Tree", "description": "The root."},
        "again": {"$ref": "#/$defs/Tree"},
    }
    assert schema["$defs"]["Tree"]["properties"]["rest"]["items"] == {"$ref": "#/$defs/Tree"}
    bad = {"tree": {"value": 1, "rest": [{"value": "x"}]}}
    assert "argument tree.rest[0].value is" in tool(f).execute(bad, CTX).output


def test_two_recursive_classes_of_one_name_stay_two() -> None:
    def other() -> type:
        @dataclasses.dataclass
        class Tree:
            name: str
            below: Optional[Tree] = None

        return Tree

    made = other()

    def f(a, b): ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"a": Tree, "b": made}
    schema = tool(f).input_schema
    assert [schema["properties"][name]["$ref"] for name in "ab"] == [
        "#/$defs/Tree",
        "#/$defs/Tree-2",
    ]


def test_local_classes_closures_and_late_imports_are_found() -> None:
    class Local(enum.Enum):
        A = "a"

    class Desk:
        class Kind(enum.Enum):
            B = "b"

        @tool
        def f(self, one: Local, two: list[Kind]) -> str:
            return f"{one} {two}"

    @tool
    def g(it: Local, ctx: ToolContext) -> str:
        return repr(it)

    assert Desk().f.execute({"one": "a", "two": ["b"]}, CTX).output
    assert Desk().f.input_schema["properties"]["two"]["items"]["enum"] == ["b"]
    assert g.input_schema["properties"]["it"]["enum"] == ["a"]


def test_a_name_of_a_foreign_caller_is_not_picked_up() -> None:
    def decorate(fn: Any) -> Any:
        Nowhere = int  # noqa: F841, N806 - not visible from the function
        return tool(fn)

    def f(it: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ToolSchemaError, match="Nowhere"):
        decorate(f)


def test_a_hint_that_cannot_be_resolved_names_function_and_parameter() -> None:
    def pay(amount: Decimal) -> None: ...

    with pytest.raises(ToolSchemaError) as caught:
        tool(pay)
    text = str(caught.value)
    assert "pay" in text
    assert "'amount'" in text
    assert "Decimal" in text
    assert "TYPE_CHECKING" in text
    made = tool(pay, input_schema={"type": "object", "properties": {"amount": {}}})
    assert made.execute({"amount": 1}, CTX).output == ""


class Strange(enum.Enum):
    PAIR = (1, 2)


@dataclasses.dataclass
class Holder:
    inner: dict[int, str]


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (dict[int, str], "keys"),
        (Strange, "PAIR"),
        (Literal[b"x"], "Literal"),
        (Holder, r"Holder\.inner"),
        ("1 +", "cannot be read"),
        ([int], "cannot be read"),
    ],
)
def test_what_json_cannot_hold_is_refused(hint: Any, why: str) -> None:
    with pytest.raises(ToolSchemaError, match=why) as caught:
        schema_of(hint)
    assert "'it'" in str(caught.value)


def test_a_default_is_shown_where_it_is_json_that_fits() -> None:
    def f(a: Any = None, b: str = "x", c: Color = Color.BLUE, d: Any = T) -> None: ...

    def unfit(a: int = "auto") -> None: ...  # type: ignore[assignment]

    shown = tool(f).input_schema["properties"]
    assert [shown[name].get("default") for name in "abcd"] == [None, "x", "blue", None]
    assert tool(unfit).input_schema["properties"] == {"a": {"type": "integer"}}
    assert "default" not in shown["a"]
    assert "required" not in tool(f).input_schema


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is of 3.12")
def test_type_aliases_are_looked_through() -> None:
    names: dict[str, Any] = {}
    exec("type Pair = tuple[int, int]\ntype Endless = list[Endless]", names)
    assert seen(names["Pair"], [1, 2]) == (1, 2)
    with pytest.raises(ToolSchemaError, match="nested deeper"):
        schema_of(names["Endless"])
