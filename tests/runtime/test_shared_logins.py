"""A login that several agents wait for, some of them below others."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Probe, in_thread, start, within
from toolnexus import AgentDef, Answer, State, ToolContext, ToolResult
from toolnexus.testing import ScriptedLlm, call, status, text, tool_call, tool_calls

URL = "https://crm.example/login"


def crm() -> Probe:
    def enter(_args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.auth_required(URL, resource="crm")
        return ToolResult.ok("in")

    return Probe("crm", enter)


def task(agent: str, number: int) -> Any:
    return call("task", {"agent": agent, "prompt": "go"}, id=f"task{number}")


def test_children_of_one_agent_wait_for_one_login(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("boss", tool_calls(task("one", 1), task("two", 2)), text("end"))
    for name in ("one", "two"):
        llm.say(name, tool_call("crm"), text(f"{name} is in"))
    boss = AgentDef("boss", model="boss", team=["one", "two"])
    members = [
        AgentDef(name, model=name, does="works", tools=[crm()]) for name in ("one", "two")
    ]
    rt = make_runtime(boss, *members)
    handle, result = start(rt, "boss")
    assert result.status == "pending"
    (pending,) = rt.pending()
    within(rt.resume, Answer(pending.request.id, ok=True))
    assert rt.wait_on(handle, LIMIT).text == "end"
    told = [one["content"] for one in rt.transcript(handle) if one["role"] == "tool"]
    assert told == ["one is in", "two is in"]
    assert [one.children for one in rt.list() if one.id == handle.id] == [0]


def test_a_child_joins_the_login_of_another_run(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("boss", tool_call("task", {"agent": "one", "prompt": "go"}), text("end"))
    one = AgentDef("one", model="one", does="works", tools=[crm()])
    rt = make_runtime(one, AgentDef("boss", model="boss", team=["one"]))
    llm.answer("one", lambda asked: text("in") if asked.tool_results else tool_call("crm"))
    alone, _ = start(rt, "one")
    boss, result = start(rt, "boss")
    assert result.status == "pending"
    (pending,) = rt.pending()
    within(rt.resume, Answer(pending.request.id, ok=True))
    assert rt.wait_on(alone, LIMIT).text == "in"
    assert rt.wait_on(boss, LIMIT).text == "end"


def test_a_login_is_answered_while_another_call_of_who_waits_is_at_work(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    inside, go = threading.Event(), threading.Event()

    def work(_args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        ctx.ask("approval", "May I?")
        inside.set()
        assert go.wait(LIMIT)
        return ToolResult.ok("worked")

    llm.say("a", tool_call("crm"), text("a is in"))
    llm.say("b", tool_calls(call("crm", id="b1"), call("work", id="b2")), text("b is in"))
    first = AgentDef("a", model="a", tools=[crm()])
    second = AgentDef("b", model="b", tools=[crm(), Probe("work", work)])
    rt = make_runtime(first, second)
    a, _ = start(rt, "a")
    b, _ = start(rt, "b")
    login, asked = sorted(rt.pending(), key=lambda one: one.request.kind, reverse=True)
    working = in_thread(rt.resume, Answer(asked.request.id, ok=True))
    assert inside.wait(LIMIT)
    assert [one.request.id for one in rt.pending(under=b)] == [login.request.id]
    is_in = rt.future_result(a)
    answering = in_thread(rt.resume, Answer(login.request.id, ok=True))
    assert is_in.result(LIMIT).text == "a is in"
    go.set()
    working.result(LIMIT)
    answering.result(LIMIT)
    assert rt.wait_on(b, LIMIT).text == "b is in"


def test_the_same_answer_again_finishes_the_work_of_all(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("a", tool_call("crm"), text("a is in"))
    llm.say("b", tool_call("crm"), status(503), text("b is in"))
    agents = [AgentDef(name, model=name, tools=[crm()]) for name in ("a", "b")]
    rt = make_runtime(*agents, retries=0)
    a, _ = start(rt, "a")
    b, _ = start(rt, "b")
    (login,) = rt.pending()
    for expected in ("error", "done"):
        within(rt.resume, Answer(login.request.id, ok=True))
        assert rt.wait_on(a, LIMIT).status == "done"
        assert rt.wait_on(b, LIMIT).status == expected
    assert {b.state, a.state} == {State.IDLE}


@pytest.fixture(autouse=True)
def everything_is_said(llm: ScriptedLlm) -> Any:
    yield
    llm.assert_done()
