"""A fork while turns are under way: what the child finds, and what it leaves to its parent."""

from __future__ import annotations

import threading

from tests.process.child import running
from tests.process.test_fork import FORK, echo
from toolnexus.testing import ScriptedLlm, text, tool_call

CHILDS_ASK = tool_call("task", {"agent": "pay", "prompt": "x"})


def test_a_turn_past_its_first_reply_keeps_its_steps_and_can_be_retried(
    llm: ScriptedLlm,
) -> None:
    gate = threading.Event()
    llm.say("m", tool_call("mail"), text("from the parent").held_by(gate), text("retried"))
    script = """
    mails = []

    @tool
    def mail() -> str:
        mails.append(os.getpid())
        return "sent"

    rt = make(AgentDef("clerk", tools=[mail]))
    clerk = rt.spawn(rt.root, "clerk").handle
    end = rt.future_result(clerk)
    rt.wake(clerk, "Send it.")
    sys.stdin.readline()

    def work():
        assert clerk.state is State.IDLE, clerk
        last = rt.wait_on(clerk, 5)
        assert (last.status, last.text) == ("interrupted", "forked"), last
        kept = [(m["role"], m.get("content")) for m in rt.transcript(clerk)]
        assert kept[0] == ("user", "Send it."), kept
        assert kept[-1] == ("tool", "sent"), kept
        assert rt.retry(clerk).text == "retried"
        assert len(mails) == 1, mails
        rt.close(rt.root)

    code = join(in_child(work))
    assert clerk.state is State.RUNNING
    say(f"ended with {code}")
    sys.stdin.readline()
    say(end.result(5).text)
    say(str(len(mails)))
    rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        llm.wait_asked("m", 2)
        child.go_on()
        child.expect("ended with 0")
        gate.set()
        child.go_on()
        child.expect("from the parent")
        child.expect("1")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")
    assert len(llm.requests) == 3


def test_a_parked_parent_of_a_running_child_is_the_parent_processes_to_go_on_with(
    llm: ScriptedLlm,
) -> None:
    gate = threading.Event()
    llm.say("lead", CHILDS_ASK, text("all done"))
    llm.say("pay", tool_call("charge"), text("charged").held_by(gate))
    script = """
    rt = make(
        AgentDef("lead", model="lead", team=["pay"]),
        AgentDef("pay", model="pay", tools=[charge]),
    )
    lead = rt.spawn(rt.root, "lead").handle
    parked = rt.run_turn(lead, "Go.")
    (pay,) = lead.children
    resumed = rt.future_resume(Answer(parked.pending.id, True))
    sys.stdin.readline()

    def work():
        assert pay.state is State.IDLE, pay
        assert lead.state is State.IDLE, lead  # what it waited for is the parent process's
        assert rt.pending() == ()
        assert not any("lead.1: idle→running (replay)" in line for line in rt.trace())
        rt.close(rt.root)
        assert lead.state is State.CLOSED
        assert [one.name for one in threading.enumerate()] == ["MainThread"]

    code = join(in_child(work))
    assert (lead.state, pay.state) == (State.SUSPENDED, State.RUNNING)
    say(f"ended with {code}")
    sys.stdin.readline()
    resumed.result(5)
    say(rt.wait_on(lead, 5).text)
    rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        llm.wait_asked("pay", 2)
        child.go_on()
        child.expect("ended with 0")
        assert len(llm.requests_of("lead")) == 1
        gate.set()
        child.go_on()
        child.expect("all done")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")
    assert (len(llm.requests_of("lead")), len(llm.requests_of("pay"))) == (2, 2)


def test_the_child_can_finish_a_parked_tree_itself(llm: ScriptedLlm) -> None:
    """Interrupted there, the leaf is retried and its parent goes on, in the child only."""
    gate = threading.Event()
    llm.say("lead", CHILDS_ASK, text("all done"))
    llm.say("pay", tool_call("charge"), text("lost").held_by(gate), text("charged"))
    script = """
    rt = make(
        AgentDef("lead", model="lead", team=["pay"]),
        AgentDef("pay", model="pay", tools=[charge]),
    )
    lead = rt.spawn(rt.root, "lead").handle
    parked = rt.run_turn(lead, "Go.")
    resumed = rt.future_resume(Answer(parked.pending.id, True))
    sys.stdin.readline()

    def work():
        result = rt.retry(lead)
        assert rt.wait_on(lead, 5).text == "all done", (result, rt.wait_on(lead, 5))
        rt.close(rt.root)

    say(f"ended with {join(in_child(work))}")
    rt.close(rt.root, force=True)
    """
    with running(FORK + script, llm.base_url) as child:
        llm.wait_asked("pay", 2)
        child.go_on()
        child.expect("ended with 0")
        child.end()
    gate.set()
    assert (child.process.returncode, child.errors) == (0, "")


def test_a_tree_that_another_thread_closes_works_in_the_child(llm: ScriptedLlm) -> None:
    """The other thread is in an `on_close`; half of the tree is closed by then."""
    llm.answer("m", echo)
    script = """
    inside, go_on = threading.Event(), threading.Event()
    mine = os.getpid()
    told = []

    def slow(handle, reason):
        told.append((os.getpid(), handle.id))
        if os.getpid() == mine:
            inside.set()
            assert go_on.wait(20)

    rt = make(AgentDef("top", on_close=slow), AgentDef("leaf"))
    other = rt.spawn(rt.root, "a").handle
    top = rt.spawn(rt.root, "top").handle
    leaf = rt.spawn(top, "leaf").handle
    closer = threading.Thread(target=rt.close, args=(top,))
    closer.start()
    assert inside.wait(20)

    def work():
        assert leaf.state is State.CLOSED
        assert rt.run_turn(other, "child", timeout=5).text == "echo child"
        rt.close(rt.root)
        assert {one.state for one in (rt.root, top, other)} == {State.CLOSED}

    say(f"ended with {join(in_child(work))}")
    assert top.state is State.IDLE
    go_on.set()
    closer.join(20)
    assert top.state is State.CLOSED
    assert rt.run_turn(other, "parent").text == "echo parent"
    rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        child.expect("ended with 0")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_deadlines_of_the_parent_are_not_the_childs(llm: ScriptedLlm) -> None:
    gate = threading.Event()
    llm.say("m", text("in time").held_by(gate))
    llm.say("never", text("never").held_by(threading.Event()))
    llm.answer("m", echo)
    script = """
    rt = make(AgentDef("b", model="never"), timeout_ms=4000)
    handle = rt.spawn(rt.root, "a").handle
    end = rt.future_result(handle)
    rt.wake(handle, "Go.")
    sys.stdin.readline()

    def names():
        return [one.name for one in threading.enumerate()]

    def work():
        assert names() == ["MainThread"], names()
        assert rt.wait_on(handle, 5).text == "forked"
        assert rt.run_turn(handle, "child").text == "echo child"
        held = rt.run_turn(rt.spawn(rt.root, "b").handle, "Go.")
        assert held.text == "run timeout after 4000ms", held
        rt.close(rt.root)
        assert names() == ["MainThread"], names()

    pid = in_child(work)
    say("forked")
    say(end.result(5).text)
    say(f"ended with {join(pid)}")
    rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        llm.wait_asked("m")
        child.go_on()
        child.expect("forked")
        gate.set()
        child.expect("in time")
        child.expect("ended with 0")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_a_tool_may_fork(llm: ScriptedLlm) -> None:
    """As a tool that uses `multiprocessing` does; the child has no other thread."""
    llm.say("m", tool_call("split", {}, "c1"), text("went on"))
    script = """
    @tool
    def split() -> str:
        def work():
            assert rt.list()[0].state is State.IDLE, rt.list()
        return f"child ended with {join(in_child(work))}"

    rt = make(AgentDef("forker", tools=[split]))
    handle = rt.spawn(rt.root, "forker").handle
    say(rt.run_turn(handle, "Go.").text)
    rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        child.expect("went on")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")
    assert llm.requests[-1].tool_results["c1"] == "child ended with 0"
