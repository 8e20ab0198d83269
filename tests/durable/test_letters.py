"""What comes for a run in the midst of something else: letters, answers, Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, in_thread, within
from toolnexus import (
    AgentDef,
    Answer,
    InboxItem,
    Request,
    State,
    StoreError,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.runtime import tree as trees
from toolnexus.stores import MemoryStore
from toolnexus.stores.records import Claim, Mail
from toolnexus.testing import ScriptedLlm, text, tool_call


class Watched(MemoryStore):
    """A store with something to do after each claim, and before each look for letters."""

    after_claim: Callable[[], object] = staticmethod(lambda: None)
    before_mail: Callable[[], object] = staticmethod(lambda: None)

    def claim(self, runtime: str, claims: Sequence[Claim]) -> bool:
        has_won = super().claim(runtime, claims)
        self.after_claim()
        return has_won

    def mail(self, runtime: str, run_id: str) -> Mail:
        self.before_mail()
        return super().mail(runtime, run_id)


@tool
def pay(ctx: ToolContext) -> ToolResult:
    """Pay."""
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", "Pay?"))
    return ToolResult.ok("paid")


def test_a_letter_that_makes_no_sense_loses_no_answer(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    llm.say("m", tool_call("pay"), text("done"))
    store = MemoryStore()
    rt = make_runtime(AgentDef("a", tools=[pay]), store=store)
    handle = rt.spawn(rt.root, "a").handle
    pending = rt.run_turn(handle, "go").pending
    assert pending is not None
    store.send("default", handle.id, {"verb": "post", "handle": handle.id, "item": {}})
    store.send("default", handle.id, {})
    within(rt.resume, Answer(pending.id, ok=True))
    assert rt.wait_on(handle, LIMIT).text == "done"
    assert store.mail("default", handle.id) == Mail()


def test_a_letter_that_makes_no_sense_keeps_no_run_from_going_on(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    inside, go = threading.Event(), threading.Event()

    @tool(retry_safe=True)
    def stay() -> str:
        """Stay the first time."""
        if not inside.is_set():
            inside.set()
            assert go.wait(LIMIT)
        return "stayed"

    llm.say("m", tool_call("stay"), text("done"))
    store = MemoryStore()
    first = make_runtime(AgentDef("a", tools=[stay]), store=store)
    handle = first.spawn(first.root, "a").handle
    first.wake(handle, "go")
    assert inside.wait(LIMIT)
    for letter in ({}, 7, {"verb": "close"}, {"verb": "interrupt", "handle": 7}):
        store.send("default", handle.id, letter)
    first.close(force=True)
    second = make_runtime(AgentDef("a", tools=[stay]), store=store)
    assert second.recover() == (handle.id,)
    assert second.wait_on(second.handle(handle.id), LIMIT).text == "done"
    assert second.post(second.handle(handle.id), InboxItem("x", "note", "hello")).ok
    assert store.mail("default", handle.id) == Mail()
    go.set()


def test_letters_that_cannot_be_looked_for_undo_nothing_that_is_written(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    inside, go = threading.Event(), threading.Event()

    @tool
    def stay() -> str:
        """Stay."""
        inside.set()
        assert go.wait(LIMIT)
        store.before_mail = fail
        return "stayed"

    def fail() -> None:
        store.before_mail = lambda: None
        raise StoreError("not now")

    llm.say("m", tool_call("stay"), text("first"), text("second"))
    store = Watched()
    rt = make_runtime(AgentDef("a", tools=[stay]), store=store, max_workers=2)
    other = make_runtime(AgentDef("a", tools=[stay]), store=store)
    handle = rt.spawn(rt.root, "a").handle
    rt.wake(handle, "go")
    assert inside.wait(LIMIT)
    assert other.post(other.handle(handle.id), InboxItem("x", "note", "hello")).ok
    go.set()
    assert rt.wait_on(handle, LIMIT).text == "first"
    assert rt.run_turn(handle, "again").text == "second"


def test_an_interrupt_from_elsewhere_stops_what_it_has_met_and_nothing_later(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    inside, stopping = threading.Event(), threading.Event()

    @tool
    def stay(ctx: ToolContext) -> str:
        """Stay until the turn is stopped."""
        ctx.cancel.on_cancel(stopping.set)
        inside.set()
        assert stopping.wait(LIMIT)
        return "stopped"

    llm.say("m", tool_call("stay"), tool_call("pay"))
    store = MemoryStore()
    agent = AgentDef("a", tools=[stay, pay])
    rt, other = make_runtime(agent, store=store), make_runtime(agent, store=store)
    handle = rt.spawn(rt.root, "a").handle
    stopped = rt.future_result(handle)
    rt.wake(handle, "go")
    assert inside.wait(LIMIT)
    interrupting = in_thread(other.interrupt, other.handle(handle.id))
    assert stopped.result(LIMIT).status == "interrupted"
    result = rt.run_turn(handle, "pay")
    while result.status == "error":  # as long as the tool is still in its thread
        result = rt.run_turn(handle, "pay")
    interrupting.result(LIMIT)
    assert result.status == "pending"
    assert handle.state is State.SUSPENDED


def test_a_secret_is_there_before_its_tool_can_be_given_it(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    heard: list[Any] = []
    schema = {
        "type": "object",
        "properties": {"word": {"type": "string", "secret": True}},
        "required": ["word"],
    }

    @tool
    def enter(ctx: ToolContext) -> ToolResult:
        """Enter."""
        if ctx.answer is None:
            return ToolResult.pending(Request("form", "The word?", data={"schema": schema}))
        heard.append(ctx.answer.secret("word"))
        return ToolResult.ok("in")

    llm.say("m", tool_call("enter"), text("done"))
    store = Watched()
    rt = make_runtime(AgentDef("a", tools=[enter]), store=store)
    handle = rt.spawn(rt.root, "a").handle
    pending = rt.run_turn(handle, "go").pending
    assert pending is not None
    ended = rt.future_result(handle)
    # Any verb from another thread takes the run, and with it what has come for it.
    store.after_claim = lambda: in_thread(rt.post, handle, InboxItem("x", "y", "z")).result(
        LIMIT
    )
    within(rt.resume, Answer(pending.id, ok=True, data={"word": "open sesame"}))
    assert ended.result(LIMIT).text == "done"
    assert heard == ["open sesame"]


def test_ctrl_c_in_the_midst_of_a_step_leaves_no_run_in_limbo(
    make_runtime: Make, llm: ScriptedLlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.say("m", text("one"), text("two"))
    rt = make_runtime(AgentDef("a"), store=MemoryStore())
    handle = rt.spawn(rt.root, "a").handle
    assert rt.run_turn(handle, "go").text == "one"

    def pressed(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(trees, "snapshot", pressed)
    with pytest.raises(KeyboardInterrupt):
        rt.post(handle, InboxItem("x", "note", "lost"))
    assert within(rt.run_turn, handle, "again").text == "two"
