"""The host is told of each request at least once, also where a process ended before it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import LIMIT
from tests.durable.test_one_process_after_another import Make
from tests.runtime.support import within
from toolnexus import AgentDef, AgentRuntime, Answer, PendingRequest, ToolContext, tool
from toolnexus.testing import ScriptedLlm, text, tool_call


@tool
def ask(ctx: ToolContext) -> str:
    """Ask."""
    ctx.ask("approval", "May I?")
    return "yes"


@pytest.fixture
def make(make_runtime: Make, tmp_path: Path, llm: ScriptedLlm) -> Make:
    def made(**options: object) -> AgentRuntime:
        store = f"sqlite:///{tmp_path}/runs.db"
        return make_runtime(AgentDef("a", tools=[ask]), store=store, **options)

    llm.say("m", tool_call("ask"), text("end"))
    return made


def park(rt: AgentRuntime) -> str:
    handle = rt.spawn(rt.root, "a").handle
    result = rt.run_turn(handle, "go")
    assert result.pending is not None
    return result.pending.id


def test_a_request_that_nobody_was_told_of_is_told_by_recover_once(make: Make) -> None:
    rt = make()
    request_id = park(rt)
    rt.close()
    told: list[str] = []
    later = make(on_suspend=lambda one: told.append(one.request.id))
    later.recover()
    later.recover()
    assert told == [request_id]
    later.close()
    make(on_suspend=lambda one: told.append(one.request.id)).recover()
    assert told == [request_id]


def test_who_is_told_may_recover(make: Make) -> None:
    told: list[str] = []

    def on_suspend(pending: PendingRequest) -> None:
        told.append(pending.request.id)
        rt.recover()

    rt = make(on_suspend=on_suspend)
    request_id = within(park, rt)
    assert told == [request_id]
    within(rt.resume, Answer(request_id, ok=True))
    assert rt.wait_on(rt.handle("root/a.1"), LIMIT).text == "end"
