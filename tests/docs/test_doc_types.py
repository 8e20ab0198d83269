"""The table of types in docs/tools.md: each hint gives that schema and that value."""

from __future__ import annotations

import datetime
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pytest

from tests.docs.pages import rows_below
from toolnexus import ToolContext, tool

NAMES = {
    "Annotated": Annotated,
    "Any": Any,
    "Decimal": Decimal,
    "Literal": Literal,
    "Optional": Optional,
    "Path": Path,
    "UUID": UUID,
    "date": datetime.date,
    "datetime": datetime.datetime,
    "time": datetime.time,
}

ROWS = [
    (hint.replace("\\|", "|"), *row[1:])
    for row in rows_below("tools.md", "Types")
    for hint in re.findall(r"`(.+?)`", row[0])
]


@pytest.mark.parametrize(("hint", "schema", "sent", "got"), ROWS, ids=[row[0] for row in ROWS])
def test_a_hint_does_what_its_row_says(hint: str, schema: str, sent: str, got: str) -> None:
    values: list[Any] = []

    def take(value: Any) -> None:
        values.append(value)

    take.__annotations__["value"] = eval(hint, dict(NAMES))
    made = tool(take)
    shown = made.input_schema["properties"]["value"]
    written = re.findall(r"`(.+?)`", schema)[0]
    if "..." in written:
        shown = dict.fromkeys(shown, ...) | {"type": shown["type"]}
        assert shown == eval(written)
    else:
        assert shown == json.loads(written)
    assert made.input_schema["required"] == ["value"]
    result = made.execute({"value": json.loads(sent.strip("`"))}, ToolContext())
    assert not result.is_error, result.output
    assert repr(values[0]) == got.strip("`")


def test_the_types_of_the_standard_library_are_listed() -> None:
    listed = {row[0] for row in ROWS}
    assert {"date", "datetime", "Decimal", "UUID", "Path"} <= listed
