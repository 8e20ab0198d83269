"""A runtime built before a fork works on both sides of it."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.process.child import running
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, text, tool_call

FORK = """
    def in_child(work):
        pid = os.fork()
        if pid == 0:
            import traceback
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        return pid

    def join(pid):
        # No alarm is inherited, and a fork may hang before its first line.
        for _ in range(500):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            threading.Event().wait(0.01)
        os.kill(pid, 6)  # faulthandler says where it was
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def echo(request: RecordedRequest) -> Reply:
    return text(f"echo {request.prompt}")


def test_a_runtime_that_was_not_used_before_the_fork(llm: ScriptedLlm) -> None:
    llm.answer("m", echo)
    script = """
    rt = make()
    handle = rt.spawn(rt.root, "a").handle

    def work():
        assert rt.run_turn(handle, "child").text == "echo child"
        assert rt.run_turn(handle, "timed", timeout=5).text == "echo timed"
        rt.close(rt.root)
        assert [one.name for one in threading.enumerate()] == ["MainThread"]

    pid = in_child(work)
    assert rt.run_turn(handle, "parent", timeout=5).text == "echo parent"
    say(str(join(pid)))
    rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        child.expect("0")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_a_runtime_with_a_parked_handle_a_live_connection_and_a_turn_in_flight(
    llm: ScriptedLlm,
) -> None:
    gate = threading.Event()
    llm.say("slow", text("in time").held_by(gate))
    llm.answer("m", echo)
    llm.answer(
        "pay",
        lambda request: (
            text("charged") if request.messages[-1]["role"] == "tool" else tool_call("charge")
        ),
    )
    script = """
    rt = make(
        AgentDef("slow", model="slow"),
        AgentDef("pay", model="pay", tools=[charge]),
        AgentDef("boss", team=["pay"]),
    )
    handle = rt.spawn(rt.root, "a").handle
    assert rt.run_turn(handle, "before").text == "echo before"
    pay = rt.spawn(rt.root, "pay").handle
    parked = rt.run_turn(pay, "Charge.")
    slow = rt.spawn(rt.root, "slow").handle
    future = rt.future_result(slow)
    rt.wake(slow, "Go.")
    sys.stdin.readline()

    def resume():
        rt.resume(Answer(parked.pending.id, True))
        assert rt.wait_on(pay).text == "charged"
        assert rt.run_turn(handle, "after").text == "echo after"
        assert rt.run_turn(handle, "timed", timeout=5).text == "echo timed"

    def work():
        # The turn in flight is the parent process's.
        assert slow.state is State.IDLE, slow
        assert rt.wait_on(slow).status == "interrupted"
        resume()
        rt.close(rt.root)

    pid = in_child(work)
    assert slow.state is State.RUNNING
    say(str(join(pid)))
    resume()
    sys.stdin.readline()
    say(future.result(5).text)
    rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        llm.wait_asked("slow")
        child.go_on()
        child.expect("0")
        gate.set()
        child.go_on()
        child.expect("in time")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")
    assert len(llm.requests_of("slow")) == 1


def test_preloaded_workers_serve_with_threads_of_their_own(llm: ScriptedLlm) -> None:
    llm.answer("m", echo)
    script = """
    from concurrent.futures import ThreadPoolExecutor

    rt = make()  # as gunicorn --preload does

    def serve():
        def request(number):
            handle = rt.spawn(rt.root, "a").handle
            result = rt.run_turn(handle, f"{os.getpid()}-{number}")
            rt.close(handle)
            return result.text == f"echo {os.getpid()}-{number}"

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(request, range(20)))
        assert rt.list() == ()
        rt.close(rt.root)

    say(str([join(pid) for pid in [in_child(serve) for _ in range(3)]]))
    serve()
    """
    with running(FORK + script, llm.base_url) as child:
        child.expect("[0, 0, 0]")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")
    assert len(llm.requests) == 80


def test_no_lock_that_another_thread_holds_is_inherited(llm: ScriptedLlm) -> None:
    llm.answer("m", echo)
    script = """
    sys.setswitchinterval(1e-6)
    rt = make()
    over = threading.Event()

    def busy():
        while not over.is_set():
            handle = rt.spawn(rt.root, "a").handle
            rt.wake(handle, "busy")
            rt.interrupt(handle)
            rt.run_turn(handle, "busy")
            rt.close(handle)

    def work():
        handle = rt.spawn(rt.root, "a").handle
        result = rt.run_turn(handle, "child", timeout=5)
        assert result.text == "echo child", result

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    code = 0
    for _ in range(120):
        code = join(in_child(work))
        if code:
            break
    over.set()
    for thread in threads:
        thread.join(10)
    rt.close(rt.root, force=True)
    say(f"ended with {code}")
    """
    with running(FORK + script, llm.base_url) as child:
        child.expect("ended with 0")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_a_handle_that_another_thread_was_closing_can_be_closed_in_the_child(
    llm: ScriptedLlm,
) -> None:
    gate = threading.Event()
    llm.say("m", text("in time").held_by(gate))
    script = """
    rt = make(shutdown_ms=60_000)
    handle = rt.spawn(rt.root, "a").handle
    rt.wake(handle, "Go.")
    sys.stdin.readline()
    closer = threading.Thread(target=rt.close, args=(handle,))
    closer.start()
    while rt.spawn(handle, "a").ok:
        pass

    def work():
        rt.close(rt.root)
        assert handle.state is State.CLOSED

    say(f"ended with {join(in_child(work))}")
    sys.stdin.readline()
    closer.join()
    say(rt.wait_on(handle).text)
    rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        llm.wait_asked("m")
        child.go_on()
        child.expect("ended with 0")
        gate.set()
        child.go_on()
        child.expect("in time")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_a_turn_imports_nothing(llm: ScriptedLlm) -> None:
    """A thread that imports while another forks leaves the child with a lock nobody holds."""
    llm.say("m", tool_call("ask"), text("\ufffd \U0001f600 end"), text("streamed"))
    script = """
    from toolnexus import AgentDef, Answer, ToolContext, tool

    @tool(needs_approval=True)
    def ask(ctx: ToolContext) -> str:
        form = {"type": "object", "properties": {"when": {"type": "string", "format": "date"}}}
        return str(ctx.ask("input", "When?", schema=form, expires_in=60).data)

    rt = make()
    handle = rt.spawn(rt.root, AgentDef("asks", model="m", tools=[ask])).handle
    before = set(sys.modules)
    rt.run_turn(handle, "go \\ud83d\\ude00 \\ud83d")
    for data in (None, {"when": "2026-01-31"}):
        (one,) = rt.pending()
        rt.resume(Answer(one.request.id, ok=True, data=data))
    assert rt.wait_on(handle).status == "done", rt.wait_on(handle)
    assert list(rt.stream(handle, "and now?"))[-1].result.text == "streamed"
    say(" ".join(sorted(set(sys.modules) - before)) or "nothing")
    rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        child.expect("nothing")


def test_a_child_has_no_timer_before_it_uses_a_runtime(
    llm: ScriptedLlm, tmp_path: Path
) -> None:
    """It is the parent that settles what expires meanwhile; a store may not be asked yet."""
    llm.answer("m", lambda asked: text("end") if asked.tool_results else tool_call("ask"))
    script = f"""
    from toolnexus import AgentDef, ToolContext, tool

    @tool
    def ask(ctx: ToolContext) -> str:
        return str(ctx.ask("input", "When?", expires_in=1))

    agent = AgentDef("asks", model="m", tools=[ask])
    rts = [
        make(agent, store=f"sqlite:///{tmp_path}/{{n}}.db", expire_requests=True)
        for n in range(4)
    ]

    def work():
        assert [one.name for one in threading.enumerate()] == ["MainThread"]
        handles = [rt.spawn(rt.root, "asks").handle for rt in rts]
        ends = []
        for rt, handle in zip(rts, handles):
            assert rt.run_turn(handle, "go").status == "pending"
            ends.append(rt.future_result(handle))
        assert [end.result(10).status for end in ends] == ["done"] * len(rts)
        for rt in rts:
            rt.close()

    for rt in rts:
        rt.run_turn(rt.spawn(rt.root, "asks").handle, "go")
    say(" ".join(str(join(in_child(work))) for _ in range(3)))
    for rt in rts:
        rt.close(rt.root)
    """
    with running(FORK + script, llm.base_url) as child:
        child.expect("0 0 0")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")
