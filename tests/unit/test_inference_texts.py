"""Dates, decimals, UUIDs and paths: text for the model, values for the function."""

# ruff: noqa: UP007, UP045 - the older spellings are hints too

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
import subprocess
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, InvalidOperation, localcontext
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, NewType, Optional, TypedDict, Union
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolnexus
from toolnexus.schema import faults
from toolnexus.tools.native import NativeTool, tool
from toolnexus.toolspec import ToolContext, ToolResult

CTX = ToolContext()
ID = "123e4567-e89b-12d3-a456-426614174000"
DATE = {"type": "string", "format": "date"}
DATE_TIME = {"type": "string", "format": "date-time"}
PATTERN = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
DECIMAL = {"type": "string", "pattern": PATTERN}
CET = timezone(timedelta(hours=1))
OUT = Path("out")
Price = NewType("Price", Decimal)


@attrs.frozen
class Order:
    due: date
    total: Decimal
    lines: list[Decimal] = attrs.Factory(list)
    file: Optional[Path] = None


@dataclasses.dataclass
class Job:
    at: datetime
    id: UUID
    parent: Optional[Job] = None
    cost: Decimal = Decimal("0.50")


class Window(TypedDict):
    opens: time
    closes: time


def tool_of(hint: Any, got: list[Any] | None = None) -> NativeTool[..., Any]:
    def f(it):  # type: ignore[no-untyped-def]
        if got is not None:
            got.append(it)

    f.__annotations__["it"] = hint
    return tool(f)


def seen(hint: Any, value: Any) -> Any:
    """Return what a function gets for `value` where its parameter has `hint`."""
    got: list[Any] = []
    result = tool_of(hint, got).execute({"it": value}, CTX)
    assert not result.is_error, result.output
    return got[0]


def refusal(hint: Any, value: Any) -> str:
    """Return what the model reads about `value`; nothing has run."""
    got: list[Any] = []
    result = tool_of(hint, got).execute({"it": value}, CTX)
    assert result.is_error
    assert got == []
    assert "nothing was executed" in result.output
    return result.output.splitlines()[1]


# -- what the model sees -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (date, DATE),
        ("dt.date", DATE),
        (datetime, DATE_TIME),
        (time, {"type": "string", "format": "time"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Decimal, DECIMAL),
        (Price, DECIMAL),
        (Path, {"type": "string"}),
        (PurePath, {"type": "string"}),
        (Optional[date], DATE),
        (list[date], {"type": "array", "items": DATE}),
        (dict[str, Decimal], {"type": "object", "additionalProperties": DECIMAL}),
        (Annotated[Decimal, "Euros."], {**DECIMAL, "description": "Euros."}),
        (Union[date, datetime], {"anyOf": [DATE, DATE_TIME]}),
        (dt.timedelta, {}),
        (bytes, {}),
        (complex, {}),
    ],
)
def test_the_schema_of_a_hint_that_is_text_in_json(hint: Any, schema: Any) -> None:
    assert tool_of(hint).input_schema["properties"]["it"] == schema


def test_fields_of_classes_have_the_same_schema() -> None:
    properties = tool_of(Order).input_schema["properties"]["it"]["properties"]
    assert properties == {
        "due": DATE,
        "total": DECIMAL,
        "lines": {"type": "array", "items": DECIMAL},
        "file": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }


def test_defaults_are_shown_as_the_model_would_write_them() -> None:
    def f(
        a: date = date(2026, 1, 31),
        b: Decimal = Decimal("1.50"),
        c: Path = OUT,
        d: Decimal = Decimal("NaN"),
        e: Optional[UUID] = None,
    ) -> str:
        return f"{a} {b} {c} {d} {e}"

    made = tool(f)
    shown = made.input_schema["properties"]
    assert [shown[name].get("default") for name in "abcde"] == [
        "2026-01-31",
        "1.50",
        "out",
        None,
        None,
    ]
    assert made.execute({"e": None}, CTX).output == "2026-01-31 1.50 out NaN None"


# -- what reaches the function -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (date, "2026-01-31", date(2026, 1, 31)),
        (datetime, "2026-01-31T09:30:00", datetime(2026, 1, 31, 9, 30)),  # noqa: DTZ001
        (datetime, "2026-01-31 09:30", datetime(2026, 1, 31, 9, 30)),  # noqa: DTZ001
        (datetime, "2026-01-31T09:30:00Z", datetime(2026, 1, 31, 9, 30, tzinfo=timezone.utc)),
        (datetime, "2026-01-31t09:30:00z", datetime(2026, 1, 31, 9, 30, tzinfo=timezone.utc)),
        (datetime, "2026-01-31T09:30:00+01:00", datetime(2026, 1, 31, 9, 30, tzinfo=CET)),
        (datetime, "2026-01-31T09:30:00+0100", datetime(2026, 1, 31, 9, 30, tzinfo=CET)),
        (datetime, "2026-01-31 09:30:00+01", datetime(2026, 1, 31, 9, 30, tzinfo=CET)),
        (
            datetime,
            "2026-01-31T09:30:00.5Z",
            datetime(2026, 1, 31, 9, 30, 0, 500000, timezone.utc),
        ),
        (
            datetime,
            "2026-01-31T09:30:00.123456789Z",
            datetime(2026, 1, 31, 9, 30, 0, 123456, timezone.utc),
        ),
        (time, "09:30", time(9, 30)),
        (time, "09:30:01.25", time(9, 30, 1, 250000)),
        (time, "09:30:00Z", time(9, 30, tzinfo=timezone.utc)),
        (Decimal, "19.90", Decimal("19.90")),
        (Decimal, "-0.000000000000000000001", Decimal("-0.000000000000000000001")),
        (Decimal, "1E+3", Decimal("1E+3")),
        (Decimal, "1" * 60, Decimal("1" * 60)),
        (Decimal, 0.1, Decimal("0.1")),
        (Decimal, 5, Decimal(5)),
        (Decimal, 10**40 + 1, Decimal(10**40 + 1)),
        (Decimal, 1e300, Decimal("1e300")),
        (Price, "5", Decimal(5)),
        (Annotated[Decimal, "Euros."], 5, Decimal(5)),
        (UUID, ID, UUID(ID)),
        (UUID, ID.replace("-", "").upper(), UUID(ID)),
        (Path, "reports/june.csv", Path("reports/june.csv")),
        (PurePath, "a/b", PurePath("a/b")),
        (PurePosixPath, "a/b", PurePosixPath("a/b")),
        (PureWindowsPath, r"a\b", PureWindowsPath("a/b")),
        (Optional[date], "2026-01-31", date(2026, 1, 31)),
        (Optional[date], None, None),
        (list[date], ["2026-01-31"], [date(2026, 1, 31)]),
        (list[Optional[Decimal]], ["1", None, 2.5], [Decimal(1), None, Decimal("2.5")]),
        (set[UUID], [ID], {UUID(ID)}),
        (tuple[date, Decimal], ["2026-01-31", 1], (date(2026, 1, 31), Decimal(1))),
        (dict[str, Decimal], {"a": "1.0", "b": 2}, {"a": Decimal("1.0"), "b": Decimal(2)}),
        (
            Order,
            {"due": "2026-01-31", "total": 5, "lines": ["2.50", 2.5], "file": "a"},
            Order(date(2026, 1, 31), Decimal(5), [Decimal("2.50"), Decimal("2.5")], Path("a")),
        ),
        (
            Window,
            {"opens": "09:00", "closes": "17:30"},
            {"opens": time(9), "closes": time(17, 30)},
        ),
        (Any, "2026-01-31", "2026-01-31"),
        (dt.timedelta, "1 day", "1 day"),
    ],
)
def test_json_becomes_the_hinted_value(hint: Any, value: Any, expected: Any) -> None:
    assert repr(seen(hint, value)) == repr(expected)


def test_a_class_that_contains_itself_takes_numbers_and_texts_at_every_depth() -> None:
    inner = {"at": "2026-01-31T09:30:00Z", "id": ID, "cost": 7, "parent": None}
    outer = {**inner, "cost": "1.25", "parent": inner}

    at = datetime(2026, 1, 31, 9, 30, tzinfo=timezone.utc)
    expected = Job(at, UUID(ID), Job(at, UUID(ID), None, Decimal(7)), Decimal("1.25"))
    assert seen(Job, outer) == expected
    assert seen(Optional[Job], outer) == expected
    assert tool_of(Job).input_schema["$defs"]["Job"]["properties"]["cost"] == {
        **DECIMAL,
        "default": "0.50",
    }


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Union[datetime, date], "2026-01-31", date(2026, 1, 31)),
        (Union[date, datetime], "2026-01-31T09:30:00", datetime(2026, 1, 31, 9, 30)),  # noqa: DTZ001
        (Union[date, str], "tomorrow", "tomorrow"),
        (Union[date, str], "2026-01-31", date(2026, 1, 31)),
        (Union[str, date], "2026-01-31", "2026-01-31"),
        (Union[int, Decimal], 5, 5),
        (Union[int, Decimal], 5.5, Decimal("5.5")),
        (Union[Decimal, str], "five", "five"),
        (Union[list[date], list[str]], ["2026-01-31", "later"], ["2026-01-31", "later"]),
    ],
)
def test_a_union_gives_the_first_member_that_the_text_means(
    hint: Any, value: Any, expected: Any
) -> None:
    got = seen(hint, value)
    assert got == expected
    assert type(got) is type(expected)


# -- what does not parse -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "value", "right"),
    [
        (date, "tomorrow", "2026-01-31"),
        (date, "31.01.2026", "2026-01-31"),
        (date, "20260131", "2026-01-31"),
        (date, "2026-01-31T09:30:00", "2026-01-31"),
        (date, "", "2026-01-31"),
        (datetime, "2026-01-31", "2026-01-31T09:30:00+01:00"),
        (datetime, "2026-01-31T24:00:00", "2026-01-31T09:30:00+01:00"),
        (datetime, "2026-01-31T09:30:00+25:00", "2026-01-31T09:30:00+01:00"),
        (datetime, "2026-01-31T09:30:00[Europe/Berlin]", "2026-01-31T09:30:00+01:00"),
        (datetime, "1769846400", "2026-01-31T09:30:00+01:00"),
        (time, "9:30", "09:30:00"),
        (time, "09:30 PM", "09:30:00"),
        (time, "09", "09:30:00"),
        (UUID, "42", ID),
        (UUID, "1_2" + "0" * 29, ID),
        (Path, "", "reports/june.csv"),
        (Path, "a\0b", "reports/june.csv"),
        (Decimal, "1e99999999999999999999", "19.90"),
        (Order, {"due": "soon", "total": 1}, "2026-01-31"),
    ],
)
def test_a_text_that_means_nothing_is_quoted_beside_what_is_right(
    hint: Any, value: Any, right: str
) -> None:
    line = refusal(hint, value)
    quoted = json.dumps(value, separators=(",", ":"))
    assert line.startswith(f"- argument it is {quoted}, but must fit {{")
    assert f'write it like "{right}"' in line


def test_a_day_that_does_not_exist_is_told_why() -> None:
    assert "day" in refusal(date, "2026-02-30").partition("is no date")[2]


def test_the_wrong_item_is_quoted_where_only_one_is_wrong() -> None:
    line = refusal(list[date], ["2026-01-31", "later"])
    assert '"later" is no date; write it like "2026-01-31"' in line


def test_every_member_of_a_union_says_what_would_be_right() -> None:
    line = refusal(Union[date, datetime], "later")
    assert '"2026-01-31"' in line
    assert '"2026-01-31T09:30:00+01:00"' in line


@pytest.mark.parametrize("value", ["19,90", "$5", "NaN", "Infinity", "1_000", "", " ", "٣"])
def test_a_text_that_is_no_decimal_number_is_refused_with_the_pattern(value: str) -> None:
    line = refusal(Decimal, value)
    assert line.startswith("- argument it is ")
    assert json.dumps(PATTERN) in line


@pytest.mark.parametrize("hint", [date, datetime, time, UUID, Path, Decimal])
@pytest.mark.parametrize("value", [True, [], {}, None])
def test_what_is_no_text_is_refused(hint: Any, value: Any) -> None:
    assert "but must fit" in refusal(hint, value)


@pytest.mark.parametrize("hint", [date, datetime, time, UUID, Path])
def test_a_number_stands_for_a_decimal_only(hint: Any) -> None:
    assert 'it is 5, but must fit {"type":"string"}' in refusal(hint, 5)


def test_the_hosts_decimal_context_makes_no_number_of_what_is_none() -> None:
    with localcontext(Context(prec=3)) as context:
        context.traps[InvalidOperation] = False
        assert "19.90" in refusal(Decimal, "1e99999999999999999999")
        assert repr(seen(Decimal, "1.23456789")) == "Decimal('1.23456789')"


# -- there and back ----------------------------------------------------------------------------

offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
values = st.one_of(
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=offsets),
    st.times(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.sampled_from([Path("a/b.txt"), Path(), PurePosixPath("/x"), PureWindowsPath("c:/x")]),
)


@given(values)
def test_a_value_that_a_tool_returned_comes_back_as_the_same_value(value: Any) -> None:
    text = json.loads(tool(lambda: [value], name="f").execute({}, CTX).output)[0]

    if isinstance(value, (datetime, time)):
        value = value.replace(fold=0)  # ISO 8601 has no word for it
    hint = Path if isinstance(value, Path) else type(value)
    assert faults({"it": text}, tool_of(hint).input_schema) == []
    got = seen(hint, text)
    assert repr(got) == repr(value)


def test_such_values_are_written_inside_what_a_tool_returns() -> None:
    order = Order(date(2026, 1, 31), Decimal("19.90"), [], Path("a"))
    assert tool(lambda: {"order": order, "id": UUID(ID)}, name="f").execute(
        {}, CTX
    ) == ToolResult(
        '{"order":{"due":"2026-01-31","total":"19.90","lines":[],"file":"a"},"id":"' + ID + '"}'
    )


def test_reading_hints_imports_none_of_their_modules() -> None:
    code = (
        "import sys, toolnexus.tools.records, toolnexus.keywords\n"
        "for name in ('decimal', 'uuid', 'pathlib'): sys.modules.pop(name, None)\n"
        "import toolnexus.tools.native as native\n"
        "native.tool(lambda a: a, name='f').execute({'a': 1}, native.ToolContext())\n"
        "print([n for n in ('decimal', 'uuid', 'pathlib') if n in sys.modules])"
    )
    project = Path(toolnexus.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
        cwd=project,
    )
    assert done.stdout == "[]\n"


def test_the_pattern_of_decimals_is_one_that_other_regex_engines_read() -> None:
    assert not re.search(r"\(\?|\\[dwsAZ]", PATTERN)
