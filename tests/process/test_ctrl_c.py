"""Ctrl-C inside a blocking verb ends the script, or leaves a runtime that works."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from tests.process.child import BOUND, Child, running
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

AGENTS = """
    rt = make(
        AgentDef("boss", model="boss", team=["kid"], tools=[charge]),
        AgentDef("kid", model="kid"),
        AgentDef("pay", model="pay", tools=[charge]),
    )
    handle = rt.spawn(rt.root, sys.argv[2]).handle
"""
VERBS = {
    "run_turn": "rt.run_turn(handle, 'Go.')",
    "run_turn with a timeout": "rt.run_turn(handle, 'Go.', timeout=600)",
    "wait_on": "rt.wake(handle, 'Go.'); rt.wait_on(handle)",
    "wait_on with a timeout": "rt.wake(handle, 'Go.'); rt.wait_on(handle, 600)",
    "with": "    \n    ".join(["with rt:", "    rt.run_turn(handle, 'Go.')"]),
}


def assert_quiet_interrupt(child: Child, took: float) -> None:
    sys.stdout.write(f"ended after {took * 1000:.0f} ms\n")
    assert child.process.returncode == -signal.SIGINT, child.errors
    assert child.errors.count("Traceback") == 1, child.errors
    assert child.errors.rstrip().endswith("KeyboardInterrupt"), child.errors
    assert "Exception ignored" not in child.errors
    assert took < BOUND


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("agent", ["a", "boss"])
def test_ctrl_c_while_the_model_hangs(llm: ScriptedLlm, verb: str, agent: str) -> None:
    gate = threading.Event()
    llm.say("boss", tool_call("task", {"agent": "kid", "prompt": "go"}))
    for model in ("m", "kid"):
        llm.answer(model, lambda request: text("too late").held_by(gate))
    with running(AGENTS + "    " + VERBS[verb], llm.base_url, agent) as child:
        llm.wait_asked("kid" if agent == "boss" else "m")
        took = child.end(child.press_ctrl_c())
    assert_quiet_interrupt(child, took)


def test_ctrl_c_while_two_tasks_of_one_turn_hang(llm: ScriptedLlm) -> None:
    gate = threading.Event()
    tasks = [call("task", {"agent": "kid", "prompt": f"job {n}"}) for n in range(2)]
    llm.say("boss", tool_calls(*tasks))
    llm.answer("kid", lambda request: text("too late").held_by(gate))
    with running(AGENTS + "    rt.run_turn(handle, 'Go.')", llm.base_url, "boss") as child:
        llm.wait_asked("kid", 2)
        took = child.end(child.press_ctrl_c())
    assert_quiet_interrupt(child, took)


def test_ctrl_c_while_a_tool_is_stuck_beside_another(llm: ScriptedLlm) -> None:
    llm.say("m", tool_calls(call("stuck"), call("stuck")))
    script = """
        rt = make(AgentDef("b", tools=[stuck]))
        rt.run_turn(rt.spawn(rt.root, "b").handle, "Go.")
    """
    with running(script, llm.base_url) as child:
        child.expect("inside")
        child.expect("inside")
        took = child.end(child.press_ctrl_c())
    assert_quiet_interrupt(child, took)


def test_ctrl_c_inside_resume(llm: ScriptedLlm) -> None:
    llm.say("pay", tool_call("charge"), text("too late").held_by(threading.Event()))
    script = """
        parked = rt.run_turn(handle, "Go.")
        rt.resume(Answer(parked.pending.id, True))
    """
    with running(AGENTS + script[5:].replace("        ", "    "), llm.base_url, "pay") as child:
        llm.wait_asked("pay", 2)
        took = child.end(child.press_ctrl_c())
    assert_quiet_interrupt(child, took)


AGAIN = """
    {before}
    try:
        {verb}
    except KeyboardInterrupt:
        say("interrupted " + handle.state.value)
    say(rt.run_turn(handle, "Again.").text)
    rt.close(rt.root)
    say(str([one.name for one in threading.enumerate()]))
"""


@pytest.mark.parametrize("agent", ["a", "boss"])
def test_after_ctrl_c_in_run_turn_the_agent_is_idle_and_takes_the_next(
    llm: ScriptedLlm, agent: str
) -> None:
    gate = threading.Event()
    llm.say("boss", tool_call("task", {"agent": "kid", "prompt": "go"}), text("fresh"))
    llm.say("kid", text("too late").held_by(gate))
    llm.say("m", text("too late").held_by(gate), text("fresh"))
    script = AGENTS + AGAIN.format(before="", verb="rt.run_turn(handle, 'Go.')")
    with running(script, llm.base_url, agent) as child:
        llm.wait_asked("kid" if agent == "boss" else "m")
        child.press_ctrl_c()
        child.expect("interrupted idle")
        child.expect("fresh")
        child.expect("['MainThread']")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_after_ctrl_c_in_a_queued_run_turn_the_place_is_not_lost(llm: ScriptedLlm) -> None:
    gate = threading.Event()
    llm.say("m", text("first").held_by(gate), text("fresh"), text("fresh"))
    script = """
        rt = make(budget=Budget(max_concurrent=1))
        first, handle = (rt.spawn(rt.root, "a").handle for _ in range(2))
        future = rt.future_result(first)
        rt.wake(first, "Go.")

        def tell():
            while not rt.trace_has("QUEUED"):
                threading.Event().wait(0.01)
            say("waits")

        threading.Thread(target=tell).start()
        try:
            rt.run_turn(handle, "Go.")
        except KeyboardInterrupt:
            say("interrupted")
        sys.stdin.readline()
        say(future.result(5).text)
        rt.wait_on(handle, 2)
        say(rt.run_turn(rt.spawn(rt.root, "a").handle, "Go.", timeout=5).text)
        rt.close(rt.root)
    """
    with running(script, llm.base_url) as child:
        child.expect("waits")
        llm.wait_asked("m")
        child.press_ctrl_c()
        child.expect("interrupted")
        gate.set()
        child.go_on()
        child.expect("first")
        child.expect("fresh")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")
