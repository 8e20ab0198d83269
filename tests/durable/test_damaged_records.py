"""A record that cannot be read is named, loses nothing, and hides no other."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import LIMIT
from tests.durable.hooked import claim_only
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Request,
    StoreError,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.stores import SqliteStore
from toolnexus.testing import Reply, ScriptedLlm, text, tool_call
from toolnexus.testing.recorded import RecordedRequest

Make = Callable[..., AgentRuntime]

RUNS = ("root/payer.1", "root/payer.2", "root/payer.3")
SPOILT = RUNS[1]


@tool
def pay(number: int, ctx: ToolContext) -> ToolResult:
    """Pay.

    Args:
        number: Of the bill.
    """
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", f"Pay bill {number}?"))
    return ToolResult.ok(f"paid {number}")


PAYER = AgentDef("payer", tools=[pay])


def play(asked: RecordedRequest) -> Reply:
    if asked.tool_results:
        return text(*asked.tool_results.values())
    return tool_call("pay", {"number": int(asked.prompt)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def three(make_runtime: Make, llm: ScriptedLlm, path: Path) -> Make:
    """Park three runs; return what makes another runtime."""
    llm.answer("m", play)
    rt = make_runtime(PAYER, store=f"sqlite:///{path}")
    for number, run_id in enumerate(RUNS, 1):
        handle = rt.spawn(rt.root, "payer").handle
        assert handle.id == run_id
        assert rt.run_turn(handle, str(number)).status == "pending"
    rt.close(force=True)
    return lambda *agents: make_runtime(*agents, store=f"sqlite:///{path}")


def spoil(path: Path, statement: str, *values: object) -> None:
    """Change the file behind the store's back."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


HANDLE = "(SELECT id FROM toolnexus_handle WHERE name = ?)"
DAMAGE: dict[str, tuple[str, str]] = {
    # What is damaged: how, and how it is mended.
    "head": (
        "UPDATE toolnexus_handle SET head = '!' || head WHERE name = ?",
        "UPDATE toolnexus_handle SET head = substr(head, 2) WHERE name = ?",
    ),
    "form": (
        "UPDATE toolnexus_handle SET head = '{\"form\":99}' || head WHERE name = ?",
        "UPDATE toolnexus_handle SET head = substr(head, 12) WHERE name = ?",
    ),
    "message": (
        f"UPDATE toolnexus_message SET body = '!' || body WHERE handle = {HANDLE}",
        f"UPDATE toolnexus_message SET body = substr(body, 2) WHERE handle = {HANDLE}",
    ),
    "call": (
        f"UPDATE toolnexus_call SET body = '!' || body WHERE handle = {HANDLE}",
        f"UPDATE toolnexus_call SET body = substr(body, 2) WHERE handle = {HANDLE}",
    ),
    "part of a head": (
        """UPDATE toolnexus_handle SET head = replace(head, '"turns"', '"-"') WHERE name = ?""",
        """UPDATE toolnexus_handle SET head = replace(head, '"-"', '"turns"') WHERE name = ?""",
    ),
    "number of a head": (
        """UPDATE toolnexus_handle SET head = replace(head, '"ends":', '"ends":"1","-":')
        WHERE name = ?""",
        """UPDATE toolnexus_handle SET head = replace(head, '"ends":"1","-":', '"ends":')
        WHERE name = ?""",
    ),
    "part of a call": (
        f"""UPDATE toolnexus_call SET body = replace(body, '"request"', '"-"')
        WHERE handle = {HANDLE}""",
        f"""UPDATE toolnexus_call SET body = replace(body, '"-"', '"request"')
        WHERE handle = {HANDLE}""",
    ),
    "lost message": (
        f"UPDATE toolnexus_message SET place = place + 50 WHERE handle = {HANDLE}",
        f"UPDATE toolnexus_message SET place = place - 50 WHERE handle = {HANDLE}",
    ),
}


def answer_of(rt: AgentRuntime, run_id: str) -> Answer:
    """Return a yes to what a run asks, whatever can be read of it."""
    rows = {one.handle_id: one.request.id for one in rt.pending()}
    return Answer(rows[run_id], ok=True)


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_handle_hides_no_other(three: Make, path: Path, what: str) -> None:
    damage, mend = DAMAGE[what]
    spoil(path, damage, SPOILT)
    rt = three(PAYER)
    whole = [RUNS[0], RUNS[2]]
    assert set(whole) <= {one.id for one in rt.list()}
    answers = {run_id: answer_of(rt, run_id) for run_id in RUNS}
    with pytest.raises(StoreError, match=SPOILT):
        rt.resume(answers[SPOILT])
    with pytest.raises(StoreError, match=SPOILT):
        rt.run_turn(rt.handle(SPOILT), "something else")
    for run_id in whole:
        rt.resume(answers[run_id])
        assert rt.wait_on(rt.handle(run_id), LIMIT).status == "done"
    assert rt.recover() == ()

    spoil(path, mend, SPOILT)
    rt.resume(answers[SPOILT])
    assert rt.wait_on(rt.handle(SPOILT), LIMIT).text == "paid 2"


def test_a_damaged_request_hides_no_other(
    three: Make, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rt = three(PAYER)
    request_id = answer_of(rt, SPOILT).id
    spoil(path, "UPDATE toolnexus_request SET body = '!' || body WHERE name = ?", request_id)
    assert [one.handle_id for one in rt.pending()] == [RUNS[0], RUNS[2]]
    assert request_id in caplog.text
    assert {one.id for one in rt.list()} == set(RUNS)
    with pytest.raises(StoreError, match=request_id):
        rt.resume(Answer(request_id, ok=True))
    for one in rt.pending():
        rt.resume(Answer(one.request.id, ok=True))
    mend = "UPDATE toolnexus_request SET body = substr(body, 2) WHERE name = ?"
    spoil(path, mend, request_id)
    rt.resume(Answer(request_id, ok=True))
    assert rt.wait_on(rt.handle(SPOILT), LIMIT).text == "paid 2"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("$.call.arguments", '{"amount": '),
        ("$.call.arguments", "7"),
        ("$.call.askedAt", "2026-13"),
        ("$.call.request", None),
        ("$.handle", None),
        ("$.turns", None),
    ],
)
def test_a_request_that_lacks_a_part_hides_no_other(
    make_runtime: Make, three: Make, path: Path, part: str, value: object
) -> None:
    rt = three(PAYER)
    request_id = answer_of(rt, SPOILT).id
    change = "UPDATE toolnexus_request SET body = json_set(body, ?, ?) WHERE name = ?"
    spoil(path, change, part, value, request_id)
    assert [one.handle_id for one in rt.pending()] == [RUNS[0], RUNS[2]]
    assert [one.handle_id for one in rt.audit()] == [RUNS[0], RUNS[2]]
    with pytest.raises(StoreError, match=request_id):
        rt.resume(Answer(request_id, ok=True))
    spoil(path, "UPDATE toolnexus_request SET announced = 0")
    told: list[str] = []
    other = make_runtime(
        PAYER, store=f"sqlite:///{path}", on_suspend=lambda one: told.append(one.handle_id)
    )
    assert other.recover() == ()
    assert told == [RUNS[0], RUNS[2]]


def test_a_damaged_run_does_not_keep_others_from_being_recovered(
    three: Make, make_runtime: Make, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(path)
    rt = make_runtime(PAYER, store=store)
    for answer in [answer_of(rt, run_id) for run_id in RUNS]:
        claim_only(store, answer.id, **answer.to_dict())
    rt.close(force=True)
    store.close()
    damage, mend = DAMAGE["head"]
    spoil(path, damage, SPOILT)
    rt = three(PAYER)
    assert rt.recover() == (RUNS[0], RUNS[2])
    for run_id in (RUNS[0], RUNS[2]):
        assert rt.wait_on(rt.handle(run_id), LIMIT).status == "done"
    assert f"{SPOILT} cannot be recovered now" in caplog.text
    spoil(path, mend, SPOILT)
    assert rt.recover() == (SPOILT,)
    assert rt.wait_on(rt.handle(SPOILT), LIMIT).text == "paid 2"
