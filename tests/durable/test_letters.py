"""What comes for a run in the midst of something else: letters, answers, Ctrl-C."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.durable.hooked import HookedStore, fails
from tests.durable.staying import Staying
from tests.runtime.streams import until
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
from toolnexus.stores.records import Mail
from toolnexus.testing import ScriptedLlm, text, tool_call


def nonsense(handle_id: str) -> list[Any]:
    """Return letters that cannot be followed."""
    return [
        *({}, 7, None, [], {"verb": "close"}, {"verb": "interrupt", "handle": 7}),
        {"verb": "close", "handle": handle_id},
        {"verb": "close", "handle": handle_id, "force": 1, "reason": None},
        {"verb": "close", "handle": handle_id, "force": True, "reason": 7},
        {"verb": "interrupt", "handle": {}},
        {"verb": [], "handle": handle_id},
        {"verb": "post", "handle": handle_id},
        {"verb": "post", "handle": handle_id, "item": {"sender": 1}},
        {"verb": "unknown", "handle": handle_id},
    ]


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
    stay = Staying(retry_safe=True)
    llm.say("m", tool_call("stay"), text("done"))
    store = MemoryStore()
    first = make_runtime(AgentDef("a", tools=[stay.tool]), store=store)
    handle = first.spawn(first.root, "a").handle
    first.wake(handle, "go")
    assert stay.inside.wait(LIMIT)
    for letter in nonsense(handle.id):
        store.send("default", handle.id, letter)
    first.close(force=True)
    second = make_runtime(AgentDef("a", tools=[stay.tool]), store=store)
    assert second.recover() == (handle.id,)
    assert second.wait_on(second.handle(handle.id), LIMIT).text == "done"
    assert second.post(second.handle(handle.id), InboxItem("x", "note", "hello")).ok
    assert store.mail("default", handle.id) == Mail()
    stay.go.set()


def test_a_letter_that_makes_no_sense_keeps_none_behind_it_from_being_obeyed(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    llm.say("m", tool_call("pay"))
    store = MemoryStore()
    agent = AgentDef("a", tools=[pay])
    rt, other = make_runtime(agent, store=store), make_runtime(agent, store=store)
    handle = rt.spawn(rt.root, "a").handle
    assert rt.run_turn(handle, "go").status == "pending"
    for letter in nonsense(handle.id):
        store.send("default", handle.id, letter)
    store.send("default", handle.id, {"verb": "interrupt", "handle": handle.id})
    assert other.post(other.handle(handle.id), InboxItem("x", "note", "hello")).ok
    assert store.mail("default", handle.id) == Mail()
    assert handle.state is State.IDLE
    assert handle.inbox[0].text == "hello"


def test_a_post_is_not_left_in_the_letter_box_of_a_run_that_was_just_let_go(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    stay = Staying()
    llm.say("m", tool_call("stay"), text("done"))
    store = HookedStore()
    agent = AgentDef("a", tools=[stay.tool])
    rt, other = (make_runtime(agent, store=store) for _ in range(2))
    handle = rt.spawn(rt.root, "a").handle
    ended = rt.future_result(handle)
    rt.wake(handle, "go")
    assert stay.inside.wait(LIMIT)

    def let_go() -> None:
        stay.go.set()
        assert ended.result(LIMIT).text == "done"
        until(lambda: store.owned("default", rt._core.keeper.owner) == {})

    seen = other.handle(handle.id)
    store.before["send"] = let_go
    assert other.post(seen, InboxItem("x", "note", "hello")).ok
    assert store.abandoned("default") == ()
    assert [one.text for one in seen.inbox] == ["hello"]


def test_letters_that_cannot_be_looked_for_undo_nothing_that_is_written(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    inside, go = threading.Event(), threading.Event()

    @tool
    def stay() -> str:
        """Stay."""
        inside.set()
        assert go.wait(LIMIT)
        store.before["mail"] = fails
        return "stayed"

    llm.say("m", tool_call("stay"), text("first"), text("second"))
    store = HookedStore()
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


class Secretive:
    """An agent that asks for a word which nobody else may hear."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def agent(self) -> AgentDef:
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
            self.heard.append(ctx.answer.secret("word"))
            return ToolResult.ok("in")

        return AgentDef("a", tools=[enter])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_secret_whose_answer_was_not_recorded_is_not_given(
    make_runtime: Make, llm: ScriptedLlm, when: str
) -> None:
    llm.say("m", tool_call("enter"), text("done"))
    store, secretive = HookedStore(), Secretive()
    rt = make_runtime(secretive.agent(), store=store)
    handle = rt.spawn(rt.root, "a").handle
    pending = rt.run_turn(handle, "go").pending
    assert pending is not None
    getattr(store, when)["claim"] = fails
    with pytest.raises(StoreError):
        rt.resume(Answer(pending.id, ok=True, data={"word": "the first"}))
    # What is said in secret is nowhere to be compared with: it counts as the same.
    within(rt.resume, Answer(pending.id, ok=True, data={"word": "the second"}))
    assert rt.wait_on(handle, LIMIT).text == "done"
    assert secretive.heard == ["the second" if when == "before" else "the first"]


def test_of_two_who_answer_in_secret_the_first_is_heard(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    """The second has read that the request is open, and is at it while the tool runs."""
    llm.say("m", tool_call("enter"), text("done"))
    store, secretive = HookedStore(), Secretive()
    rt = make_runtime(secretive.agent(), store=store)
    handle = rt.spawn(rt.root, "a").handle
    pending = rt.run_turn(handle, "go").pending
    assert pending is not None

    def first() -> None:
        in_thread(rt.resume, Answer(pending.id, ok=True, data={"word": "the first"})).result(
            LIMIT
        )

    store.after["request"] = first
    within(rt.resume, Answer(pending.id, ok=True, data={"word": "the second"}))
    assert rt.wait_on(handle, LIMIT).text == "done"
    assert secretive.heard == ["the first"]


def test_a_secret_is_there_before_its_tool_can_be_given_it(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    llm.say("m", tool_call("enter"), text("done"))
    store, secretive = HookedStore(), Secretive()
    rt = make_runtime(secretive.agent(), store=store)
    handle = rt.spawn(rt.root, "a").handle
    pending = rt.run_turn(handle, "go").pending
    assert pending is not None
    ended = rt.future_result(handle)
    item = InboxItem("x", "y", "z")
    # Any verb from another thread takes the run, and with it what has come for it.
    store.after["claim"] = lambda: in_thread(rt.post, handle, item).result(LIMIT)
    within(rt.resume, Answer(pending.id, ok=True, data={"word": "open sesame"}))
    assert ended.result(LIMIT).text == "done"
    assert secretive.heard == ["open sesame"]


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
