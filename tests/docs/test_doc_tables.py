"""The tables of the pages list what the code has, no more."""

from __future__ import annotations

import inspect
import re

import attrs
import pytest

from tests.docs.pages import DOCS, code_of, rows_below
from toolnexus import (
    AgentRuntime,
    Budget,
    ClientOptions,
    Request,
    ResumeError,
    TaskResult,
    ToolContext,
    errors,
)
from toolnexus.messages import STATUSES
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.runtime.state import EDGES, State


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
    public = {
        name
        for name, value in vars(AgentRuntime).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert listed == public


@pytest.mark.parametrize(
    ("heading", "cls"), [("Budgets", Budget), ("Gates", RuntimeOptions)], ids=str
)
def test_every_limit_is_listed(heading: str, cls: type) -> None:
    listed = [code_of(row[0])[0] for row in rows_below("lifecycle.md", heading)]
    fields = {field.name for field in attrs.fields(cls)} | {"max_concurrent"}
    assert set(listed) <= fields
    if cls is Budget:
        assert set(listed) == fields


def test_every_limit_of_a_result_is_listed() -> None:
    rows = rows_below("lifecycle.md", "Budgets")
    documented = {name for row in rows for name in code_of(row[3]) if name != "spawn"}
    named = re.search(r"stopped it \((.+?)\)", inspect.getdoc(TaskResult) or "", re.DOTALL)
    assert named is not None
    assert documented == set(code_of(named[1]))


def test_every_option_of_the_client_is_listed() -> None:
    rows = rows_below("client.md", "Options")
    listed = [name for row in rows for name in code_of(row[0])]
    assert sorted(listed) == sorted(field.name for field in attrs.fields(ClientOptions))


def test_every_further_option_of_a_runtime_is_named() -> None:
    text = (DOCS / "client.md").read_text("utf-8")
    named = re.search(r"What a runtime has beside them (.+?)\n\n", text, re.DOTALL)
    assert named is not None
    of_client = {field.name for field in attrs.fields(ClientOptions)}
    of_runtime = {field.name for field in attrs.fields(RuntimeOptions)}
    assert set(code_of(named[1])) == of_runtime - of_client


@pytest.mark.parametrize(
    ("option", "shown"),
    [(field.name, field.default) for field in attrs.fields(ClientOptions)],
)
def test_the_defaults_of_the_client_are_as_listed(option: str, shown: object) -> None:
    row = next(r for r in rows_below("client.md", "Options") if option in code_of(r[0]))
    if isinstance(shown, int):
        assert row[1] == f"{shown:,}"
    elif isinstance(shown, frozenset):
        assert row[1] == ", ".join(map(str, sorted(shown)))
    else:
        assert not row[1][:1].isdigit()


def test_every_status_of_a_bare_run_is_listed() -> None:
    listed = [code_of(row[0])[0] for row in rows_below("client.md", "A run")]
    assert set(listed) < set(STATUSES)


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
