"""The values that cross a boundary: their wire form, what they refuse, how they travel."""

from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import attrs
import pytest

from toolnexus import (
    Answer,
    Budget,
    CallState,
    Checkpoint,
    InboxItem,
    Request,
    RunResult,
    TaskResult,
    ToolResult,
    Usage,
    WireFormatError,
)
from toolnexus.checkpoint import CURRENT_SCHEMA

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=timezone.utc)

EVERY_KEY: list[tuple[Any, dict[str, Any]]] = [
    (
        Request("approval", "Pay?", "https://pay.example", {"n": 1}, NOON, id="r1"),
        {
            "id": "r1",
            "kind": "approval",
            "prompt": "Pay?",
            "url": "https://pay.example",
            "data": {"n": 1},
            "expiresAt": "2026-01-31T12:00:00Z",
        },
    ),
    (
        Answer("r1", False, {"n": 1}, "declined"),
        {"id": "r1", "ok": False, "data": {"n": 1}, "reason": "declined"},
    ),
    (
        ToolResult("no", is_error=True, metadata={"n": 1}),
        {"output": "no", "isError": True, "metadata": {"n": 1}},
    ),
    (
        TaskResult(
            "Pay?", True, "pending", Request("q", "Pay?", id="r1"), ("root", "a.1"), 2, 80, "x"
        ),
        {
            "text": "Pay?",
            "isError": True,
            "status": "pending",
            "pending": {"id": "r1", "kind": "q", "prompt": "Pay?"},
            "pendingPath": ["root", "a.1"],
            "turns": 2,
            "totalTokens": 80,
            "limit": "x",
        },
    ),
    (
        RunResult(
            text="Pay?",
            status="pending",
            messages=[{"role": "user", "content": "hi"}],
            turns=1,
            usage=Usage(30, 10, 40),
            tool_calls=1,
            pending=Request("q", "Pay?", id="r1"),
            checkpoint=Checkpoint("run", 0, ()),
            limit="x",
        ),
        {
            "text": "Pay?",
            "status": "pending",
            "messages": [{"role": "user", "content": "hi"}],
            "turns": 1,
            "usage": {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40},
            "toolCalls": 1,
            "pending": {"id": "r1", "kind": "q", "prompt": "Pay?"},
            "checkpoint": {
                "schema": CURRENT_SCHEMA,
                "run": "run",
                "base": 0,
                "messages": [],
                "calls": [],
                "turns": 0,
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
                "toolCalls": 0,
            },
            "limit": "x",
        },
    ),
    (
        InboxItem("root", "note", "hi"),
        {"sender": "root", "channel": "note", "text": "hi"},
    ),
    (
        Budget(1, 2, 3, 4, 5, 6, 7),
        {
            "max_turns": 1,
            "max_tokens": 2,
            "max_tool_calls": 3,
            "max_wall_ms": 4,
            "max_children": 5,
            "max_concurrent": 6,
            "max_depth": 7,
        },
    ),
]

FEWEST_KEYS: list[tuple[Any, dict[str, Any]]] = [
    (Request("q", "?", id="r1"), {"id": "r1", "kind": "q", "prompt": "?"}),
    (Answer("r1", True), {"id": "r1", "ok": True}),
    (ToolResult("hi"), {"output": "hi", "isError": False}),
    (
        TaskResult("hi"),
        {"text": "hi", "isError": False, "status": "done", "turns": 0, "totalTokens": 0},
    ),
    (Budget(), {}),
    (Budget(max_children=0), {"max_children": 0}),
]


def by_class(pair: tuple[Any, dict[str, Any]]) -> str:
    return type(pair[0]).__name__


@pytest.mark.parametrize("pair", EVERY_KEY + FEWEST_KEYS, ids=by_class)
def test_a_value_has_exactly_its_wire_keys_and_reads_them_back(
    pair: tuple[Any, dict[str, Any]],
) -> None:
    value, wire = pair

    assert value.to_dict() == wire
    assert type(value).from_dict(json.loads(json.dumps(wire))) == value


@pytest.mark.parametrize("pair", EVERY_KEY, ids=by_class)
def test_an_unknown_key_is_refused_by_name(pair: tuple[Any, dict[str, Any]]) -> None:
    value, wire = pair

    with pytest.raises(WireFormatError, match=r"unknown keys surprise, zebra; known: "):
        type(value).from_dict({**wire, "zebra": 1, "surprise": None})


@pytest.mark.parametrize(
    ("cls", "key"),
    [
        (Request, "id"),
        (Request, "kind"),
        (Request, "prompt"),
        (Answer, "id"),
        (Answer, "ok"),
        (ToolResult, "output"),
        (TaskResult, "text"),
        (TaskResult, "status"),
        (RunResult, "status"),
        (InboxItem, "sender"),
        (InboxItem, "channel"),
        (InboxItem, "text"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_missing_key_is_named(cls: Any, key: str) -> None:
    wire = next(dict(wire) for value, wire in EVERY_KEY if type(value) is cls)
    del wire[key]

    with pytest.raises(WireFormatError, match=rf"{cls.__name__} lacks {key}"):
        cls.from_dict(wire)


@pytest.mark.parametrize("pair", EVERY_KEY, ids=by_class)
@pytest.mark.parametrize("junk", [None, [], "{}", 7], ids=repr)
def test_what_is_no_object_is_refused(pair: tuple[Any, dict[str, Any]], junk: object) -> None:
    with pytest.raises(WireFormatError, match="must be an object"):
        type(pair[0]).from_dict(junk)


@pytest.mark.parametrize(
    "broken",
    [
        {"kind": 1},
        {"prompt": None},
        {"id": ""},
        {"id": 5},
        {"url": 5},
        {"data": [1]},
        {"data": "text"},
        {"expiresAt": 5},
        {"expiresAt": "tomorrow"},
        {"expiresAt": "2026-01-31T12:00:00"},
        {"expiresAt": "2026-01-31"},
        {"expiresAt": ""},
    ],
    ids=str,
)
def test_a_malformed_request_is_refused_and_names_the_field(broken: dict[str, Any]) -> None:
    (key,) = broken
    wire = {"id": "r1", "kind": "q", "prompt": "?", **broken}

    with pytest.raises(WireFormatError, match=rf"Request\.({key}|expires_at)"):
        Request.from_dict(wire)


@pytest.mark.parametrize("status", ["finished", "DONE", "", None, 1])
@pytest.mark.parametrize("cls", [TaskResult, RunResult])
def test_a_status_outside_the_seven_is_refused(cls: Any, status: object) -> None:
    with pytest.raises(WireFormatError, match="status"):
        cls.from_dict({"text": "", "status": status})


@pytest.mark.parametrize("cls", [TaskResult, RunResult])
@pytest.mark.parametrize(
    "status", ["done", "pending", "incomplete", "interrupted", "closed", "timeout", "error"]
)
def test_each_of_the_seven_statuses_is_read(cls: Any, status: str) -> None:
    assert cls.from_dict({"text": "", "status": status}).status == status


@pytest.mark.parametrize("field", ["sender", "channel", "text"])
def test_an_inbox_item_is_three_texts(field: str) -> None:
    given: dict[str, Any] = {"sender": "s", "channel": "c", "text": "t", field: 5}

    with pytest.raises(WireFormatError, match=rf"InboxItem\.{field} must be a str, not 5"):
        InboxItem(**given)


def test_tool_result_metadata_on_the_wire_is_an_object() -> None:
    with pytest.raises(WireFormatError, match="metadata"):
        ToolResult.from_dict({"output": "x", "metadata": [1]})


def test_tool_result_is_error_on_the_wire_is_a_boolean() -> None:
    with pytest.raises(WireFormatError, match="isError"):
        ToolResult.from_dict({"output": "x", "isError": "false"})


def test_a_pending_result_keeps_its_request_on_the_wire() -> None:
    result = ToolResult.pending(Request("login", "Sign in", "https://idp.example", id="r1"))

    assert result.output == "Sign in\nhttps://idp.example"
    assert not result.is_error
    assert ToolResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert ToolResult.from_dict(result.to_dict()).request == result.request


@pytest.mark.parametrize("ok", [1, 0, "yes", "true", None, [], 1.0])
def test_an_answer_is_exactly_true_or_false(ok: Any) -> None:
    with pytest.raises(WireFormatError, match=r"Answer\.ok must be True or False"):
        Answer("r1", ok)
    with pytest.raises(WireFormatError, match=r"Answer\.ok must be True or False"):
        Answer.from_dict({"id": "r1", "ok": ok})


@pytest.mark.parametrize("data", [0, "", False, {}, [], 0.0, [None], {"a": None}], ids=repr)
def test_falsy_answer_data_is_kept(data: Any) -> None:
    wire = json.loads(json.dumps(Answer("r1", True, data).to_dict()))

    assert wire["data"] == data
    assert type(wire["data"]) is type(data)
    assert Answer.from_dict(wire).data == data


def test_empty_request_data_is_kept_apart_from_none() -> None:
    assert Request("q", "?", data={}, id="r").to_dict()["data"] == {}
    assert "data" not in Request("q", "?", id="r").to_dict()


@pytest.mark.parametrize(
    "data",
    [{1: "a"}, {"a": {2: "b"}}, {"a": float("nan")}, {"a": float("inf")}, {"a": {1, 2}}],
    ids=repr,
)
def test_data_that_is_not_json_is_refused_where_it_is_given(data: Any) -> None:
    with pytest.raises(WireFormatError, match=r"Request\.data"):
        Request("q", "?", data=data)
    with pytest.raises(WireFormatError, match=r"Answer\.data"):
        Answer("r1", True, data)


def test_a_request_does_not_see_later_changes_of_its_data() -> None:
    data = {"amount": 5}
    request = Request("approval", "?", data=data)
    data["amount"] = 500

    assert request.data == {"amount": 5}


def test_ids_are_fresh_and_carry_128_random_bits() -> None:
    ids = {Request("q", "?").id for _ in range(1000)}

    assert len(ids) == 1000
    # 22 characters of six bits each; no two share even their first half.
    assert {len(one) for one in ids} == {22}
    assert len({one[:11] for one in ids}) == 1000


def test_a_naive_expiry_is_refused() -> None:
    with pytest.raises(WireFormatError, match="time zone"):
        Request("q", "?", expires_at=datetime(2026, 1, 31))  # noqa: DTZ001 - the point
    with pytest.raises(WireFormatError, match="time zone"):
        Request("q", "?", expires_at="2026-01-31T12:00:00Z")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31t12:00:00z", NOON),
        ("2026-01-31T14:00:00+02:00", NOON),
        ("2026-01-31T07:00:00-05:00", NOON),
        ("2026-01-31T12:00:00.5Z", NOON + timedelta(seconds=0.5)),
        ("2026-01-31T12:00:00.123456789Z", NOON + timedelta(microseconds=123456)),
    ],
)
def test_every_rfc_3339_time_is_read(text: str, moment: datetime) -> None:
    wire = {"id": "r", "kind": "q", "prompt": "?", "expiresAt": text}

    assert Request.from_dict(wire).expires_at == moment


@pytest.mark.parametrize("text", ["20260131T120000Z", "2026-W05-6T12:00:00Z", "12:00:00Z"])
def test_other_iso_forms_are_no_rfc_3339(text: str) -> None:
    with pytest.raises(WireFormatError, match="RFC 3339"):
        Request.from_dict({"id": "r", "kind": "q", "prompt": "?", "expiresAt": text})


def test_an_expiry_is_written_in_utc() -> None:
    east = timezone(timedelta(hours=2))
    request = Request("q", "?", expires_at=datetime(2026, 1, 31, 14, tzinfo=east))

    assert request.to_dict()["expiresAt"] == "2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    "value",
    [value for value, _ in EVERY_KEY]
    + [CallState("c", "f", "{}", answer=Answer("r", True, 0)), Usage(1, 2, 3)],
    ids=lambda value: type(value).__name__,
)
def test_values_are_frozen_slotted_and_picklable(value: Any) -> None:
    field = attrs.fields(type(value))[0].name

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(value, field, "other")
    assert not hasattr(value, "__dict__")
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("text", [None, ""])
def test_no_output_is_an_empty_text(text: str | None) -> None:
    assert ToolResult.ok(text).output == ""


def test_ok_takes_metadata_as_keywords() -> None:
    assert ToolResult.ok("x", rows=0).metadata == {"rows": 0}
    assert ToolResult.ok("x").metadata is None
    assert ToolResult.error("no") == ToolResult("no", is_error=True)
