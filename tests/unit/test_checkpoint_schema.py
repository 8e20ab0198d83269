"""The stored form of a parked turn: what a release wrote is read for ever, exactly."""

from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from toolnexus import Answer, CallState, Checkpoint, Request, ToolResult, Usage, WireFormatError
from toolnexus.answering import asks_approval
from toolnexus.checkpoint import CURRENT_SCHEMA, SCHEMAS, Asker, Exchange

FILES = Path(__file__).parents[1] / "wire" / "schema"
NEGATIVE = sorted((FILES / "negative").glob("*.json"))


def frozen(version: int) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FILES / f"v{version}.json").read_text())
    return loaded


def test_each_schema_has_its_frozen_example() -> None:
    assert {path.stem for path in FILES.glob("v*.json")} == {f"v{n}" for n in SCHEMAS}
    assert max(SCHEMAS) == CURRENT_SCHEMA


def test_the_first_form_is_read_whole() -> None:
    saved = Checkpoint.from_dict(frozen(1))
    done, charge, task, ready = saved.calls

    assert (saved.run, saved.base, saved.turns, saved.tool_calls) == (
        "9f2c4b7d1e6a8035",
        2,
        1,
        4,
    )
    assert saved.usage == Usage(30, 10, 40)
    assert list(saved.messages) == frozen(1)["messages"]
    assert done == CallState(
        "call_1",
        "send_mail",
        '{"to":"ann"}',
        "done",
        1,
        result=ToolResult("sent", metadata={"bytes": 0}),
    )
    assert charge.request == Request(
        "approval",
        "Approve $500 charge?",
        "https://pay.example/q1",
        {"amount": 500, "path": ["root", "shop.1"]},
        datetime(2026, 1, 1, 12, tzinfo=timezone.utc) + timedelta(days=30),
        id="q1",
    )
    assert charge.answer == Answer("q1", True, 0, "fine")
    assert (task.child, task.attempt) == ("root/shop.1/bob.1", 2)
    assert ready == CallState("call_4", "note", '{"a": ')


def test_the_second_form_has_what_a_call_asked_and_did() -> None:
    *_, asks, gated = Checkpoint.from_dict(frozen(2)).calls

    assert (asks.by.place, asks.approved, asks.proposed) == (1, "sha256:00", '{"amount":50}')
    assert asks.by.past == (
        Exchange(Request("question", "How fast?", id="q4"), Answer("q4", True, 0)),
    )
    assert asks.once == {"open": {"case": 7}}
    assert (gated.by.gate, gated.by.passed) == (1, ("shop.Limits", "toolnexus.approval"))
    assert asks_approval(gated)
    assert not asks_approval(asks)


def test_the_third_form_has_the_numbers_of_children() -> None:
    _, _, task, *_, ready, _ = Checkpoint.from_dict(frozen(3)).calls

    assert (task.child, task.number) == ("root/shop.1/bob.1", 1)
    assert (ready.child, ready.number, ready.status) == (None, 2, "ready")


def test_the_third_form_has_what_a_call_was_that_may_have_run() -> None:
    *_, asked = Checkpoint.from_dict(frozen(3)).calls

    assert (asked.status, asked.answer) == ("open", None)
    lost = CallState(
        "call_8",
        "charge",
        '{"amount":9}',
        "started",
        1,
        Request("question", "Which card?", id="q7"),
        "2026-01-01T00:00:02Z",
        Answer("q7", True, "blue"),
        by=Asker(place=0),
    )
    assert asked.by == Asker(before=lost)


@pytest.mark.parametrize("version", SCHEMAS)
def test_a_stored_form_survives_reading_and_writing(version: int) -> None:
    saved = Checkpoint.from_dict(frozen(version))
    written = json.loads(json.dumps(saved.to_dict()))

    assert Checkpoint.from_dict(written) == saved
    assert pickle.loads(pickle.dumps(saved)) == saved
    if version == CURRENT_SCHEMA:
        assert written == frozen(version)


def test_the_pending_request_is_the_first_in_call_order() -> None:
    saved = Checkpoint.from_dict(frozen(1))

    assert saved.pending is not None
    # q1 has its answer already.
    assert saved.pending.id == "q2"
    assert [request.id for request in saved.requests] == ["q2"]
    assert Checkpoint("r", 0, ()).pending is None
    assert Checkpoint("r", 0, ()).requests == ()


def test_there_are_negative_examples() -> None:
    assert len(NEGATIVE) > 10


@pytest.mark.parametrize("path", NEGATIVE, ids=lambda path: path.stem)
def test_what_is_no_checkpoint_is_refused_with_the_reason(path: Path) -> None:
    example = json.loads(path.read_text())

    with pytest.raises(WireFormatError) as caught:
        Checkpoint.from_dict(example["checkpoint"])
    assert example["refused"] in str(caught.value)


def test_only_a_newer_schema_is_called_newer() -> None:
    for schema in (0, None, "1", -1):
        with pytest.raises(WireFormatError) as caught:
            Checkpoint.from_dict({**frozen(1), "schema": schema})
        assert "newer" not in str(caught.value)


def test_a_request_that_has_its_answer_is_no_longer_asked() -> None:
    one, two = Request("approval", "One?", id="q1"), Request("approval", "Two?", id="q2")
    yes = Answer("q1", True)

    def parked(*calls: CallState) -> Checkpoint:
        return Checkpoint("r", 0, (), calls)

    asks_one = CallState("c1", "pay", "{}", "open", 1, request=one)
    has_one = CallState("c1", "pay", "{}", "open", 1, request=one, answer=yes)
    asks_two = CallState("c2", "pay", "{}", "open", 1, request=two)
    shares_two = CallState("c3", "pay", "{}", "open", 1, request=two)

    assert parked(asks_one, asks_two).requests == (one, two)
    assert parked(has_one, asks_two, shares_two).requests == (two,)
    assert parked(has_one, asks_two).pending == two
    assert parked(asks_two, has_one).pending == two
    assert parked(has_one).requests == ()
    assert parked(has_one).pending is None
    assert not parked(has_one).is_waiting
