"""Turns whose process ended in the middle go on in another one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import LIMIT
from tests.durable.test_one_process_after_another import Make
from toolnexus import AgentDef, State, tool
from toolnexus.testing import ScriptedLlm, text, tool_call

CHILD = """
import os, sys
from toolnexus import AgentDef, AgentRuntime, tool

@tool
def look(place: str) -> str:
    '''Look.

    Args:
        place: Where.
    '''
    with open(sys.argv[3], "a") as file:
        file.write("looked\\n")
    return "seen"

@tool
def crash() -> str:
    '''Crash.'''
    with open(sys.argv[3], "a") as file:
        file.write("crashed\\n")
    os._exit(9)

rt = AgentRuntime(base_url=sys.argv[1], api_key="k", default_model="m", retries=0,
    registry=[AgentDef("a", tools=[look, crash])], store=sys.argv[2], lease_ms=200)
handle = rt.spawn(rt.root, "a").handle
rt.run_turn(handle, "go")
"""


def test_a_finished_call_is_not_run_again_and_one_in_flight_is_told_as_it_is(
    make_runtime: Make, llm: ScriptedLlm, tmp_path: Path
) -> None:
    url, seen = f"sqlite:///{tmp_path}/runs.db", tmp_path / "seen"
    llm.say("m", tool_call("look", {"place": "x"}), tool_call("crash"), text("done"))
    child = subprocess.run(
        [sys.executable, "-c", CHILD, llm.base_url, url, str(seen)], timeout=LIMIT * 3
    )
    assert child.returncode == 9
    assert seen.read_text() == "looked\ncrashed\n"

    @tool
    def look(place: str) -> str:
        """Look."""
        raise AssertionError("it has a result")

    @tool
    def crash() -> str:
        """Crash."""
        raise AssertionError("it is not safe to be run again")

    rt = make_runtime(AgentDef("a", tools=[look, crash]), store=url)
    handle = rt.handle("root/a.1")
    assert handle.state is State.RUNNING
    while not rt.recover():
        pass
    result = rt.wait_on(handle, LIMIT)
    assert (result.text, result.status, result.turns) == ("done", "done", 3)
    told = [one["content"] for one in rt.transcript(handle) if one["role"] == "tool"]
    assert told[0] == "seen"
    assert "may or may not have taken effect" in told[1]
    assert len(llm.requests) == 3
