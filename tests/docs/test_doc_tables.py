"""The tables of the pages list what the code has, no more."""

from __future__ import annotations

import inspect
import re
from typing import get_args

import attrs
import pytest

from tests.docs.pages import DOCS, ROOT, code_of, rows_below
from toolnexus import (
    AgentRuntime,
    AuditRecord,
    Budget,
    ClientOptions,
    Conversation,
    Event,
    Grant,
    PendingRequest,
    Request,
    ResumeError,
    TaskResult,
    ToolContext,
    ToolnexusError,
    TranslateRequest,
    errors,
)
from toolnexus.budget import RETRYABLE_STATUSES
from toolnexus.contrib import web
from toolnexus.events import KINDS
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
        for name, value in inspect.getmembers(AgentRuntime, inspect.isfunction)
        if not name.startswith("_")
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
    private = {"delegate", "dialogue"}
    fields = {field.name for field in attrs.fields(ToolContext)}
    assert set(listed) == fields - private


def test_every_field_of_a_request_is_listed() -> None:
    listed = [code_of(row[0])[0] for row in rows_below("suspending.md", "The question")]
    assert listed == [field.name for field in attrs.fields(Request)]


@pytest.mark.parametrize(
    ("heading", "package"),
    [
        ("Floors", "toolnexus"),
        ("Inside the stores", "toolnexus/stores"),
        ("Inside the runtime", "toolnexus/runtime"),
    ],
)
def test_every_file_has_its_floor(heading: str, package: str) -> None:
    listed = [name for row in rows_below("development.md", heading) for name in code_of(row[0])]
    files = {path.stem for path in (DOCS.parent / package).glob("*.py")}
    rooms = {path.parent.name for path in (DOCS.parent / package).glob("*/__init__.py")}
    assert sorted(listed) == sorted((files | rooms) - {"__init__"})


@pytest.mark.parametrize(
    ("heading", "contract"),
    [("Floors", "floors"), ("Inside the stores", "stores"), ("Inside the runtime", "runtime")],
)
def test_the_floors_are_those_of_the_contract(heading: str, contract: str) -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    given = text.partition(f'id = "{contract}"')[2].partition("layers = [")[2].partition("]")[0]
    floors = [set(re.findall(r"\w+", line)) for line in given.splitlines() if line.strip()]
    assert [set(code_of(row[0])) for row in rows_below("development.md", heading)] == floors


def test_every_kind_of_event_is_listed_with_what_it_has() -> None:
    rows = rows_below("streaming.md", "A client's run")
    assert tuple(code_of(row[0])[0] for row in rows) == KINDS
    listed = {code_of(row[1])[0]: code_of(row[2]) for row in rows}
    assert listed == {
        cls.__name__: [field.name for field in attrs.fields(cls) if field.name != "handle_id"]
        for cls in get_args(Event)
    }


def test_every_error_is_listed_with_what_it_has() -> None:
    rows = rows_below("errors.md", "The errors")
    listed = {code_of(row[0])[0]: set(code_of(row[2])) for row in rows}
    classes = {
        name: cls
        for name, cls in vars(errors).items()
        if inspect.isclass(cls)
        and issubclass(cls, ToolnexusError)
        and cls is not ToolnexusError
    }
    assert set(listed) == set(classes)
    for name, cls in classes.items():
        assert listed[name] == members_of(cls), name


def members_of(cls: type[Exception]) -> set[str]:
    """Return what an error has beside its text: what it is made of, and what is set later."""
    if cls is errors.RunTimeoutError:
        return set()  # the row says that it has the same as the one above
    makes = inspect.isfunction(cls.__init__)
    made_of = set(inspect.signature(cls).parameters) if makes else set()
    own = [one for one in cls.__mro__ if one is not ToolnexusError]
    return made_of | {name for one in own for name in inspect.get_annotations(one)}


def test_the_statuses_that_are_tried_again_are_those_of_the_code() -> None:
    rows = rows_below("errors.md", "What is tried again")
    (row,) = [row for row in rows if "`retryable_statuses`:" in row[0]]
    assert set(map(int, re.findall(r"\d+", row[0]))) == RETRYABLE_STATUSES


def test_every_status_of_an_error_over_http_is_listed() -> None:
    rows = rows_below("deploying.md", "Errors over HTTP")
    listed = {name: int(row[1]) for row in rows for name in code_of(row[0])}
    given = {kind.__name__: status for kind, status in web.STATUSES}
    assert listed == given


def test_every_field_of_a_translation_is_listed() -> None:
    listed = [code_of(row[0])[0] for row in rows_below("client.md", "Translation")]
    assert listed == [field.name for field in attrs.fields(TranslateRequest)]


def test_everything_that_a_conversation_has_is_listed() -> None:
    listed = {code_of(row[0])[0] for row in rows_below("client.md", "Conversations")}
    public = {name for name in vars(Conversation) if not name.startswith("_")} | {"id"}
    assert listed == public


@pytest.mark.parametrize(
    ("first", "cls"),
    [("PendingRequest", PendingRequest), ("AuditRecord", AuditRecord), ("Grant", Grant)],
)
def test_every_field_of_what_a_page_shows_is_listed(first: str, cls: type) -> None:
    text = (DOCS / "asking.md").read_text("utf-8")
    table = text.partition(f"| Field of `{first}` |")[2].partition("\n\n")[0]
    listed = [name for row in table.splitlines()[2:] for name in code_of(row.split("|")[1])]
    assert sorted(listed) == sorted(field.name for field in attrs.fields(cls))


def test_every_argument_of_ask_is_listed() -> None:
    text = (DOCS / "asking.md").read_text("utf-8")
    table = text.partition("| Argument of `ctx.ask` |")[2].partition("\n\n")[0]
    listed = [code_of(row.split("|")[1])[0] for row in table.splitlines()[2:]]
    assert listed == list(inspect.signature(ToolContext.ask).parameters)[1:]


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
