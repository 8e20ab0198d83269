"""The same answer again is the same JSON value, whoever wrote it, whatever was done to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Probe, start, within
from toolnexus import AgentDef, AlreadyAnswered, Answer, Request, ToolContext, ToolResult
from toolnexus.testing import ScriptedLlm, text, tool_call

DATA: dict[str, Any] = {"a": 1, "b": {"c": [1, 2], "d": None}}


class Ask(Probe):
    """Asks, and keeps what each answer says; may change the answer's data."""

    def __init__(self, *, spoils: bool = False) -> None:
        self.data: list[str] = []
        self.spoils = spoils
        super().__init__("ask", self._ask)

    def _ask(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("question", "What?"))
        data: Any = ctx.answer.data
        self.data.append(json.dumps(data))
        if self.spoils:
            data["seen"] = True
            data["b"]["c"].clear()
        return ToolResult.ok("heard")


def answered(
    llm: ScriptedLlm, make: Make, data: Any, *, spoils: bool = False
) -> tuple[Any, Ask, str]:
    """Answer a question with `data`; return the runtime, the tool and the request's id."""
    llm.say("m", tool_call("ask"), text("end"))
    ask = Ask(spoils=spoils)
    rt = make(AgentDef("a", tools=[ask]))
    handle, parked = start(rt, "a")
    assert parked.pending is not None
    within(rt.resume, Answer(parked.pending.id, ok=True, data=data))
    assert rt.wait_on(handle, LIMIT).text == "end"
    return rt, ask, parked.pending.id


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"o": {"x": 1, "y": 2}}, {"o": {"y": 2, "x": 1}}),
        ({"n": 1}, {"n": 1.0}),
        (1.0, 1),
        ([1, 2.0], [1.0, 2]),
        ({"n": 0}, {"n": -0.0}),
        ("é", "\u00e9"),
        (None, None),
        ({}, {}),
    ],
)
def test_equal_json_is_the_same_answer(
    llm: ScriptedLlm, make_runtime: Make, first: Any, again: Any
) -> None:
    rt, ask, request_id = answered(llm, make_runtime, first)
    within(rt.resume, Answer(request_id, ok=True, data=again))
    rt.future_resume(Answer(request_id, ok=True, data=again)).result(LIMIT)
    assert len(ask.data) == 1


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": True}),
        (True, 1),
        (False, 0),
        (0, None),
        ({}, []),
        ("", None),
        ("1", 1),
        ([1, 2], [2, 1]),
        ({"a": None}, {}),
        (2**53, 2.0**53 + 2),
        (2**53 + 1, 2**53),
    ],
)
def test_different_json_is_another_answer(
    llm: ScriptedLlm, make_runtime: Make, first: Any, other: Any
) -> None:
    rt, ask, request_id = answered(llm, make_runtime, first)
    with pytest.raises(AlreadyAnswered) as caught:
        within(rt.resume, Answer(request_id, ok=True, data=other))
    recorded = caught.value.recorded
    assert (recorded.id, json.dumps(recorded.data)) == (request_id, json.dumps(first))
    assert len(ask.data) == 1


def test_another_word_is_another_answer(llm: ScriptedLlm, make_runtime: Make) -> None:
    rt, _, request_id = answered(llm, make_runtime, DATA)
    with pytest.raises(AlreadyAnswered):
        within(rt.resume, Answer(request_id, ok=False, data=DATA))


def test_another_reason_is_no_other_answer(llm: ScriptedLlm, make_runtime: Make) -> None:
    """A reason is advice only."""
    rt, ask, request_id = answered(llm, make_runtime, DATA)
    within(rt.resume, Answer(request_id, ok=True, data=DATA, reason="late"))
    assert len(ask.data) == 1


def test_a_tool_that_changes_its_answer_changes_no_record(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, ask, request_id = answered(llm, make_runtime, json.loads(json.dumps(DATA)), spoils=True)
    within(rt.resume, Answer(request_id, ok=True, data=DATA))
    with pytest.raises(AlreadyAnswered) as caught:
        within(rt.resume, Answer(request_id, ok=True, data={**DATA, "seen": True}))
    assert caught.value.recorded.data == DATA
    assert ask.data == [json.dumps(DATA)]


def test_a_caller_that_changes_its_data_afterwards_changes_no_record(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    data = json.loads(json.dumps(DATA))
    rt, ask, request_id = answered(llm, make_runtime, data)
    data["b"]["c"].append(3)
    within(rt.resume, Answer(request_id, ok=True, data=DATA))
    assert ask.data == [json.dumps(DATA)]


def test_data_changed_between_the_answer_and_the_resume_was_never_accepted(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("ask"), text("end"))
    ask, data = Ask(), json.loads(json.dumps(DATA))
    rt = make_runtime(AgentDef("a", tools=[ask]))
    handle, parked = start(rt, "a")
    assert parked.pending is not None
    answer = Answer(parked.pending.id, ok=True, data=data)
    data["late"] = object()
    within(rt.resume, answer)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert ask.data == [json.dumps(DATA)]
