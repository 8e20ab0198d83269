"""The tables of docs/lifecycle.md and docs/suspending.md list what the code has, no more."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import attrs
import pytest

from toolnexus import AgentRuntime, Budget, Request, ResumeError, ToolContext, errors
from toolnexus.messages import STATUSES
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.runtime.state import EDGES, State

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows_below(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    text = (DOCS / page).read_text("utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None, f"{page} has no table below {heading!r}"
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def code_of(cell: str) -> list[str]:
    return re.findall(r"`(\w+)", cell)


def test_every_state_is_listed() -> None:
    listed = [code_of(row[0])[0] for row in rows_below("lifecycle.md", "States")]
    assert listed == [state.value for state in State]


def test_every_move_is_listed() -> None:
    listed = {
        (before, after)
        for row in rows_below("lifecycle.md", "Moves")
        for before in code_of(row[0])
        for after in code_of(row[1])
    }
    assert listed == {(before.value, after.value) for (before, _), after in EDGES.items()}


def test_every_status_is_listed() -> None:
    listed = [code_of(row[0])[0] for row in rows_below("lifecycle.md", "Results")]
    assert sorted(listed) == sorted(STATUSES)


def test_every_verb_is_listed() -> None:
    listed = {name for row in rows_below("lifecycle.md", "Verbs") for name in code_of(row[0])}
    process_events = {"after_fork", "at_exit"}
    public = {
        name
        for name, value in vars(AgentRuntime).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert listed == public - process_events


@pytest.mark.parametrize(
    ("heading", "cls"), [("Budgets", Budget), ("Gates", RuntimeOptions)], ids=str
)
def test_every_limit_is_listed(heading: str, cls: type) -> None:
    listed = [code_of(row[0])[0] for row in rows_below("lifecycle.md", heading)]
    fields = {field.name for field in attrs.fields(cls)} | {"max_concurrent"}
    assert set(listed) <= fields
    if cls is Budget:
        assert set(listed) == fields


def test_every_field_of_the_context_is_listed() -> None:
    listed = [code_of(row[0])[0] for row in rows_below("suspending.md", "What a tool is told")]
    private = {"delegate"}
    fields = {field.name for field in attrs.fields(ToolContext)}
    assert set(listed) == fields - private


def test_every_field_of_a_request_is_listed() -> None:
    listed = [code_of(row[0])[0] for row in rows_below("suspending.md", "The question")]
    assert listed == [field.name for field in attrs.fields(Request)]


@pytest.mark.parametrize(
    ("heading", "package"),
    [("Floors", "toolnexus"), ("Inside the runtime", "toolnexus/runtime")],
)
def test_every_file_has_its_floor(heading: str, package: str) -> None:
    listed = [name for row in rows_below("development.md", heading) for name in code_of(row[0])]
    files = {path.stem for path in (DOCS.parent / package).glob("*.py")}
    rooms = {path.parent.name for path in (DOCS.parent / package).glob("*/__init__.py")}
    assert sorted(listed) == sorted((files | rooms) - {"__init__"})


def test_every_error_of_resume_is_listed() -> None:
    listed = {code_of(row[0])[0] for row in rows_below("suspending.md", "Errors")}
    resume_errors = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value)
        and issubclass(value, ResumeError)
        and value is not ResumeError
    }
    assert listed == {*resume_errors, "ConfigError"}
