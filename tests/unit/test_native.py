"""`@tool`: what a model sees of a function, what reaches the function, what comes back."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import inspect
from typing import Any

import attrs
import pytest

from toolnexus.errors import ToolSchemaError
from toolnexus.suspension import Answer, Request
from toolnexus.tools.native import NativeTool, tool
from toolnexus.toolspec import Tool, ToolContext, ToolResult, require_tool

CTX = ToolContext(call_id="call-1")


class Mood(enum.Enum):
    GOOD = "good"


class Word(str, enum.Enum):
    YES = "yes"


@dataclasses.dataclass
class Row:
    mood: Mood
    day: datetime.date


@attrs.frozen
class Cell:
    rows: list[Row]


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: The first.
    """
    return a + b


def run(value: object) -> ToolResult:
    return tool(lambda: value, name="f").execute({}, CTX)


# -- what the model sees -----------------------------------------------------------------------


def test_a_tool_is_what_the_loop_takes() -> None:
    added = tool(add)
    assert isinstance(added, Tool)
    assert require_tool(added) is added
    assert (added.name, added.source, added.description) == (
        "add", "native", "Add two numbers.",
    )  # fmt: skip
    assert added.input_schema == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "The first."},
            "b": {"type": "integer", "default": 2},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert not added.handles_decline


def test_a_function_without_parameters_has_the_empty_schema() -> None:
    assert tool(lambda: "", name="f").input_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_the_tool_is_called_and_looks_like_the_function() -> None:
    added = tool(add)
    assert added(1, b=5) == 6
    assert (added.__name__, added.__doc__) == ("add", add.__doc__)
    assert inspect.signature(added) == inspect.signature(add)
    assert "a tool" in (NativeTool.__doc__ or "")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        added.name = "x"  # type: ignore[misc]


def test_what_is_given_goes_before_what_is_inferred() -> None:
    @tool(name="plus", description="Sum.", handles_decline=True)
    def other(a: int) -> int:
        """Never shown."""
        return a

    assert (other.name, other.description, other.handles_decline) == ("plus", "Sum.", True)
    assert tool(add, name="plus").name == "plus"
    assert tool()(add).name == "add"


def test_no_docstring_is_an_empty_description() -> None:
    assert tool(lambda: "", name="f").description == ""


@pytest.mark.parametrize("name", ["", "has space", "x" * 65, "ü"])
def test_a_name_no_provider_takes_is_refused(name: str) -> None:
    with pytest.raises(ToolSchemaError, match="tool name"):
        tool(add, name=name)


# -- the context -------------------------------------------------------------------------------


def test_the_context_is_injected_by_its_hint_wherever_it_stands() -> None:
    @tool
    def first(ctx: ToolContext, a: int) -> str:
        return f"{ctx.call_id} {a}"

    @tool
    def keyword(a: int, *, where: ToolContext | None = None) -> str:
        return f"{where.call_id if where else None} {a}"

    @tool
    def unhinted(a: int, context) -> str:  # type: ignore[no-untyped-def]
        return f"{context.call_id} {a}"

    for each in (first, keyword, unhinted):
        assert list(each.input_schema["properties"]) == ["a"]
        assert each.execute({"a": 1}, CTX).output == "call-1 1"


def test_an_argument_that_is_called_context_stays_an_argument() -> None:
    @tool
    def search(context: str) -> str:
        return context

    assert search.input_schema["required"] == ["context"]
    assert search.execute({"context": "x"}, CTX).output == "x"


def test_the_context_cannot_be_forged_by_an_argument() -> None:
    @tool(input_schema={"type": "object"})
    def pay(amount: int, ctx: ToolContext) -> str:
        return ctx.call_id

    assert pay.execute({"amount": 1, "ctx": {"answer": True}}, CTX).output == "call-1"


def test_a_suspension_passes_and_the_answer_arrives() -> None:
    asked = Request("approval", "Approve?")

    @tool
    def charge(amount: int, ctx: ToolContext) -> ToolResult:
        return ToolResult.ok("charged") if ctx.answer else ToolResult.pending(asked)

    assert charge.execute({"amount": 5}, CTX).request is asked
    answered = ToolContext(answer=Answer(asked.id, ok=True))
    assert charge.execute({"amount": 5}, answered).output == "charged"


# -- what reaches the function -----------------------------------------------------------------


def test_what_does_not_fit_executes_nothing_and_is_told() -> None:
    ran: list[int] = []

    @tool
    def spend(amount: int) -> None:
        ran.append(amount)

    for args in (
        {},
        {"amount": "ten"},
        {"amount": 1, "more": 2},
        {"amount": None},
        {"amount": True},
    ):
        result = spend.execute(args, CTX)  # type: ignore[arg-type]
        assert result.is_error
        assert "nothing was executed" in result.output
        assert '{"type":"integer"}' in result.output
    assert ran == []
    assert 'amount is "ten"' in spend.execute({"amount": "ten"}, CTX).output


def test_a_whole_float_is_an_integer() -> None:
    @tool
    def kind(n: int, x: float) -> str:
        return f"{n!r} {x!r}"

    assert kind.execute({"n": 5.0, "x": 5}, CTX).output == "5 5.0"


def test_null_is_none_for_an_optional_argument_only() -> None:
    @tool
    def f(a: str | None = None, b: int | None = 3, c: int = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        return f"{a} {b} {c}"

    assert f.input_schema["properties"] == {
        "a": {"type": "string"},
        "b": {"type": "integer", "default": 3},
        "c": {"type": "integer"},
    }
    assert f.execute({"a": None, "b": None, "c": None}, CTX).output == "None None None"
    assert f.execute({}, CTX).output == "None 3 None"
    assert f.execute({"a": 5}, CTX).is_error


def test_a_class_that_refuses_its_value_is_told_to_the_model() -> None:
    @attrs.frozen
    class Percent:
        value: int = attrs.field(validator=attrs.validators.le(100))

    @tool
    def f(share: Percent) -> str:
        return str(share)

    assert f.execute({"share": {"value": 5}}, CTX).output == "Percent(value=5)"
    refused = f.execute({"share": {"value": 500}}, CTX)
    assert refused.is_error
    assert 'argument share is {"value":500}' in refused.output
    assert "100" in refused.output


def test_the_given_arguments_are_left_as_they_are() -> None:
    args = {"a": 5.0}
    tool(add).execute(args, CTX)
    assert args == {"a": 5.0}
    assert isinstance(args["a"], float)


# -- input_schema ------------------------------------------------------------------------------

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def test_a_given_schema_passes_arguments_by_keyword_unconverted() -> None:
    @tool(input_schema=POINT)
    def f(x: float) -> str:
        return repr(x)

    assert f.input_schema == POINT
    assert f.execute({"x": 5}, CTX).output == "5"
    assert f.execute({"x": "a"}, CTX).is_error


def test_a_given_schema_is_copied_and_gets_its_type() -> None:
    given: dict[str, Any] = {"properties": {"x": {}}}
    made = tool(lambda x: x, name="f", input_schema=given)
    given["properties"]["x"]["type"] = "string"
    assert made.input_schema == {"type": "object", "properties": {"x": {}}}


@pytest.mark.parametrize("hint", [dict, dict[str, Any], inspect.Parameter.empty])
def test_a_raw_handler_gets_all_arguments_as_one_dict(hint: Any) -> None:
    def raw(args, ctx):  # type: ignore[no-untyped-def]
        return f"{args} {ctx.call_id}"

    raw.__annotations__ = {} if hint is inspect.Parameter.empty else {"args": hint}
    made = tool(raw, input_schema=POINT)
    assert made.execute({"x": 1}, CTX).output == "{'x': 1} call-1"
    assert made.execute({}, CTX).is_error


def test_a_dict_that_the_schema_names_is_an_ordinary_argument() -> None:
    def f(data: dict[str, int]) -> str:
        return repr(data)

    made = tool(f, input_schema={"type": "object", "properties": {"data": {"type": "object"}}})
    assert made.execute({"data": {"a": 1}}, CTX).output == "{'a': 1}"


def test_any_keyword_can_be_taken_with_a_given_schema() -> None:
    made = tool(lambda **given: sorted(given), name="f", input_schema=POINT)
    assert made.execute({"x": 1, "y": 2}, CTX).output == '["x","y"]'


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "string"}, "type"),
        ([], "mapping"),
        ({"properties": {"x": {"default": object()}}}, "JSON"),
        ({"properties": {"a": {}, "zzz": {}}}, "'zzz'"),
        ({"properties": {"b": {}}}, "parameter 'a' has no default"),
    ],
)
def test_a_schema_the_function_cannot_take_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(ToolSchemaError, match=why) as caught:
        tool(add, input_schema=schema)
    assert "add" in str(caught.value)


# -- what comes back (contract A6) -------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("text", "text"),
        (Word.YES, "yes"),
        (None, ""),
        (5, "5"),
        (True, "true"),
        ({"ü": [1, None]}, '{"ü":[1,null]}'),
        ((1, 2), "[1,2]"),
        (Mood.GOOD, '"good"'),
        (
            Cell([Row(Mood.GOOD, datetime.date(2026, 1, 31))]),
            '{"rows":[{"mood":"good","day":"2026-01-31"}]}',
        ),
    ],
)
def test_a_value_is_text_or_compact_json(value: object, output: str) -> None:
    assert run(value) == ToolResult(output)


def test_a_tool_result_passes_as_it_is() -> None:
    result = ToolResult("x", True, {"a": 1})
    assert run(result) is result


@dataclasses.dataclass
class Broken:
    """An instance that lacks its field."""

    def __post_init__(self) -> None:
        del self.gone

    gone: int = dataclasses.field(default_factory=int)


def endless() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), float("nan"), b"x", Row, endless(), Broken(), [{"a": {1}}]]
)
def test_a_value_that_is_no_json_is_an_error_that_names_its_type(value: object) -> None:
    result = run(value)
    assert result.is_error
    assert type(value).__name__ in result.output


def test_a_coroutine_that_slips_through_is_an_error_without_a_warning() -> None:
    async def later() -> int:
        return 1

    result = tool(lambda: later(), name="f").execute({}, CTX)
    assert result.is_error
    assert "coroutine" in result.output


def failing(error: BaseException, cause: BaseException | None = None) -> NativeTool[[], None]:
    def f() -> None:
        raise error from cause

    return tool(f)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "cause", "output"),
    [
        (ValueError("bad"), None, "bad"),
        (ValueError("outer"), KeyError("inner"), "KeyError: 'inner'"),
        (ValueError(), None, "ValueError"),
        (ValueError("outer"), LookupError(), "LookupError"),
        (Mute(), None, "Mute"),
    ],
)
def test_an_exception_is_an_error_result(error: Exception, cause: Any, output: str) -> None:
    assert failing(error, cause).execute({}, CTX) == ToolResult(output, True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_what_is_no_exception_is_not_swallowed(error: BaseException) -> None:
    with pytest.raises(type(error)):
        failing(error).execute({}, CTX)
