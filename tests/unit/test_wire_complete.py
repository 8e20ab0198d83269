"""The balanced view of a transcript."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from toolnexus.wire.view import NO_RESULT, complete


def call(call_id: Any, name: str = "f", arguments: Any = "{}") -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def asks(*ids: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call(i) for i in ids]}


def result(call_id: Any, content: Any = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def missing(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": NO_RESULT, "_is_error": True}


USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "done"}

CASES: dict[str, tuple[list[Any], list[Any]]] = {
    "empty": ([], []),
    "balanced stays": (
        [USER, asks("a", "b"), result("a"), result("b"), SAID],
        [USER, asks("a", "b"), result("a"), result("b"), SAID],
    ),
    "one id in two turns": (
        [asks("a"), result("a", "1"), asks("a"), result("a", "2")],
        [asks("a"), result("a", "1"), asks("a"), result("a", "2")],
    ),
    "call without result at the end": ([USER, asks("a")], [USER, asks("a"), missing("a")]),
    "call without result in between": (
        [asks("a"), USER, SAID],
        [asks("a"), missing("a"), USER, SAID],
    ),
    "one of two results missing": (
        [asks("a", "b"), result("b")],
        [asks("a", "b"), missing("a"), result("b")],
    ),
    "results in the wrong order": (
        [asks("a", "b"), result("b"), result("a")],
        [asks("a", "b"), result("a"), result("b")],
    ),
    "result found later": (
        [asks("a"), USER, SAID, result("a", "late"), USER],
        [asks("a"), result("a", "late"), USER, SAID, USER],
    ),
    "result before its call is an orphan": (
        [result("a"), asks("a")],
        [asks("a"), missing("a")],
    ),
    "orphan without an id": ([USER, result(None)], [USER]),
    "orphan": ([USER, result("x"), SAID], [USER, SAID]),
    "duplicate: the first stays": (
        [asks("a"), result("a", "1"), result("a", "2"), SAID],
        [asks("a"), result("a", "1"), SAID],
    ),
    "a late result is the nearest call's": (
        [asks("a"), asks("a"), result("a")],
        [asks("a"), missing("a"), asks("a"), result("a")],
    ),
    "equal ids take their results in order": (
        [asks("a", "a"), result("a", "1"), result("a", "2")],
        [asks("a", "a_2"), result("a", "1"), result("a_2", "2")],
    ),
    "a made id does not take a real one": (
        [asks("a", "a", "a_2"), result("a_2", "own")],
        [asks("a", "a_3", "a_2"), missing("a"), missing("a_3"), result("a_2", "own")],
    ),
    "missing ids": (
        [asks(None, ""), result(None, "1"), result(None, "2")],
        [asks("call_0", "call_1"), result("call_0", "1"), result("call_1", "2")],
    ),
    "number as id": ([asks(7), result(7)], [asks("call_0"), result("call_0")]),
    "number and its text": ([asks(7), result("7")], [asks("call_0"), result("call_0")]),
    "messages that are none": ([None, 3, "x", [], USER], [USER]),
    "unknown role is the user's": (
        [{"role": "human", "content": "x", "tool_calls": 1}, {"content": "y"}],
        [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}],
    ),
    "role of a wrong type": ([{"role": ["user"]}], [{"role": "user", "content": None}]),
    "legacy function call": (
        [
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "f", "arguments": ""},
            },
            {"role": "function", "name": "f", "content": "r"},
        ],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call("call_0", arguments="")],
            },
            {"role": "tool", "name": "f", "content": "r", "tool_call_id": "call_0"},
        ],
    ),
    "empty tool_calls": (
        [{"role": "assistant", "content": "x", "tool_calls": []}],
        [{"role": "assistant", "content": "x", "tool_calls": []}],
    ),
    "tool_calls of a wrong type": (
        [{"role": "assistant", "content": "x", "tool_calls": "oops"}],
        [{"role": "assistant", "content": "x", "tool_calls": []}],
    ),
    "calls with missing parts": (
        [
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "a"},
                    5,
                    {"id": "b", "function": {"arguments": {"x": 1}}},
                ],
            }
        ],
        [
            {"role": "assistant", "tool_calls": [call("a", "", ""), call("b", "", '{"x":1}')]},
            missing("a"),
            missing("b"),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_view(name: str) -> None:
    stored, expected = copy.deepcopy(CASES[name])
    assert complete(stored) == expected
    assert stored == CASES[name][0], "the stored transcript is never altered"
    assert complete(expected) == expected, "a view is its own view"


def test_a_balanced_view_is_a_new_list() -> None:
    stored = [USER, SAID]
    assert complete(stored) is not stored


def test_extra_keys_of_a_call_are_kept() -> None:
    odd = {**call(None), "extra_content": {"signature": "s"}}
    view = complete([{"role": "assistant", "tool_calls": [odd]}])
    assert view[0]["tool_calls"][0]["extra_content"] == {"signature": "s"}


def test_late_results_of_a_long_transcript_are_found_in_linear_time() -> None:
    count = 50_000  # a quadratic search would run into the time limit of the suite
    view = complete(
        [*(asks(f"c{i}") for i in range(count)), *(result(f"c{i}", i) for i in range(count))]
    )
    assert [m["content"] for m in view[1::2]] == list(range(count))
