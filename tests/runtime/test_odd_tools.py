"""Tools that give what no tool should: the model reads of it, and the conversation goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.support import Make, Probe, approve, run_turn, start
from toolnexus import AgentDef, Request, ToolContext, ToolResult
from toolnexus.testing import ScriptedLlm, text, tool_call


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class MuteBase(Mute):
    @property
    def args(self) -> Any:  # type: ignore[override]  # what a hostile class may do
        raise ValueError("no args")


class Word(str):
    __slots__ = ()


def nest(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def circle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["me"] = value
    return value


def fail(error: BaseException) -> Any:
    raise error


def caused_by_a_mute() -> RuntimeError:
    error = RuntimeError("outer")
    error.__cause__ = Mute()
    return error


ODD: dict[str, tuple[Callable[[], Any], bool]] = {
    "an exception without text": (lambda: fail(Mute()), True),
    "a cause without text": (lambda: fail(caused_by_a_mute()), True),
    "an exception without args": (lambda: fail(MuteBase()), True),
    "metadata that is a list": (lambda: ToolResult("x", metadata=["a"]), False),
    "metadata that is a text": (lambda: ToolResult("x", metadata="ab"), False),
    "metadata nested deeply": (lambda: ToolResult.ok("x", data=nest(900)), False),
    "metadata in a circle": (lambda: ToolResult.ok("x", data=circle()), False),
    "metadata of objects": (lambda: ToolResult.ok("x", data=object()), False),
    "a subclass of str": (lambda: ToolResult.ok(Word("x")), False),
    "output nested deeply": (lambda: ToolResult.ok(nest(900)), False),
    "a lone surrogate": (lambda: ToolResult.ok("\ud800"), False),
    "None": (lambda: None, True),
    "a number": (lambda: 7, True),
}


@pytest.mark.parametrize(("work", "is_error"), ODD.values(), ids=ODD.keys())
def test_an_odd_result_is_the_models_to_read_and_no_dead_end(
    llm: ScriptedLlm, make_runtime: Make, work: Callable[[], Any], *, is_error: bool
) -> None:
    llm.say("m", tool_call("t", id="c1"), text("end"), text("fine"))
    tool = Probe("t", lambda args, ctx: work())
    rt = make_runtime(AgentDef("a", tools=[tool]))
    handle, result = start(rt, "a")
    assert (result.text, len(tool.runs)) == ("end", 1)
    (told,) = [one for one in rt.transcript(handle) if one["role"] == "tool"]
    assert bool(told.get("_is_error")) or not is_error
    assert run_turn(rt, handle).text == "fine"


def test_a_question_that_is_changed_after_it_was_asked_is_asked_as_it_was(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """The tool keeps the list of its request and puts into it what could not be stored."""

    def ask(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is not None:
            return ToolResult.ok("answered")
        items: list[Any] = [1]
        result = ToolResult.pending(Request("k", "p?", data={"items": items}))
        items.append(object())
        return result

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", ask)]))
    handle, parked = start(rt, "a")
    assert parked.pending is not None
    assert parked.pending.data == {"items": [1], "path": ["root", "a.1"]}
    approve(rt, parked.pending)
    assert handle.last_result is not None
    assert handle.last_result.text == "end"
