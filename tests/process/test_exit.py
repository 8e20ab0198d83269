"""A script that simply ends does not wait for a slow model or a stuck tool."""

from __future__ import annotations

import sys
import threading

import pytest

from tests.process.child import BOUND, running
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

WITHOUT_CLOSE = """
    rt = make(AgentDef("b", tools=[stuck]))
    handle = rt.spawn(rt.root, "b").handle
    rt.wake(handle, "Go.")
    sys.stdin.readline()
"""


def test_a_script_that_ends_while_the_model_hangs(llm: ScriptedLlm) -> None:
    llm.say("m", text("too late").held_by(threading.Event()))
    with running(WITHOUT_CLOSE, llm.base_url) as child:
        llm.wait_asked("m")
        took = child.end(child.go_on())
    sys.stdout.write(f"ended after {took * 1000:.0f} ms\n")
    assert (child.process.returncode, child.errors) == (0, "")
    assert took < BOUND


def test_a_script_that_ends_while_the_reply_hangs_after_its_headers(llm: ScriptedLlm) -> None:
    llm.say("m", text("too late").held_after_headers(threading.Event()))
    with running(WITHOUT_CLOSE, llm.base_url) as child:
        llm.wait_asked("m")
        took = child.end(child.go_on())
    assert (child.process.returncode, child.errors) == (0, "")
    assert took < BOUND


def test_a_script_that_ends_while_a_tool_is_stuck(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("stuck"))
    with running(WITHOUT_CLOSE, llm.base_url) as child:
        child.expect("inside")
        took = child.end(child.go_on())
    assert (child.process.returncode, child.errors) == (0, "")
    assert took < BOUND


def test_a_script_that_ends_while_many_turns_hang(llm: ScriptedLlm) -> None:
    gate = threading.Event()
    llm.answer("m", lambda request: text("too late").held_by(gate))
    script = """
        rt = make(max_concurrent_turns=20)
        for _ in range(30):
            rt.wake(rt.spawn(rt.root, AgentDef("top")).handle, "Go.")
        sys.stdin.readline()
    """
    with running(script, llm.base_url) as child:
        llm.wait_asked("m", 8)
        took = child.end(child.go_on())
    assert (child.process.returncode, child.errors) == (0, "")
    assert took < BOUND


def test_a_script_that_ends_while_parked(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("charge"))
    script = """
        rt = make(AgentDef("b", tools=[charge]))
        say(rt.run_turn(rt.spawn(rt.root, "b").handle, "Go.").status)
        sys.stdin.readline()
    """
    with running(script, llm.base_url) as child:
        child.expect("pending")
        took = child.end(child.go_on())
    assert (child.process.returncode, child.errors) == (0, "")
    assert took < BOUND


@pytest.mark.parametrize("force", [True, False])
def test_closing_the_root_leaves_no_thread_and_no_socket(llm: ScriptedLlm, force: bool) -> None:
    tasks = [call("task", {"agent": "kid", "prompt": "go"})] * 3
    llm.say("boss", tool_calls(*tasks), text("done"))
    llm.answer("kid", lambda request: text("did it"))
    llm.say("m", text("one"), tool_call("charge"), text("late").held_by(threading.Event()))
    script = f"""
        rt = make(
            AgentDef("boss", model="boss", team=["kid"]),
            AgentDef("kid", model="kid"),
            AgentDef("pay", tools=[charge]),
        )
        assert rt.run_turn(rt.spawn(rt.root, "boss").handle, "Go.").text == "done"
        assert rt.run_turn(rt.spawn(rt.root, "a").handle, "Go.").text == "one"
        assert rt.run_turn(rt.spawn(rt.root, "pay").handle, "Go.").status == "pending"
        hanging = rt.spawn(rt.root, "a").handle
        future = rt.future_result(hanging)
        rt.wake(hanging, "Hang.")
        say("hangs")
        sys.stdin.readline()
        rt.close(rt.root, force={force})
        links = []
        for number in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink("/proc/self/fd/" + number))
            except OSError:
                pass  # the directory's own descriptor
        sockets = [link for link in links if link.startswith("socket:")]
        say(f"sockets {{len(sockets)}}")
        say(f"threads {{[one.name for one in threading.enumerate()]}}")
        say(future.result(1).status)
    """
    with running(script, llm.base_url) as child:
        child.expect("hangs")
        llm.wait_asked("m", 3)
        child.go_on()
        child.expect("sockets 0")
        child.expect("threads ['MainThread']")
        child.expect("interrupted")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")
    llm.wait_connections(0)
