"""A fork in the middle of a resume: each side has a tree that can go on."""

from __future__ import annotations

from tests.process.child import running
from tests.process.test_fork import FORK
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, text, tool_call

TREE = """
    inside, leave = threading.Event(), threading.Event()
    ran = []

    @tool
    def ask(ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "ok?"))
        ran.append(ctx.answer.id)
        inside.set()
        leave.wait(20)
        return ToolResult.ok("yes")

    rt = make(
        AgentDef("top", model="top", team=["mid"]),
        AgentDef("mid", model="mid", team=["low"]),
        AgentDef("low", model="low", tools=[ask]),
    )
    top = rt.spawn(rt.root, "top").handle
    parked = rt.run_turn(top, "go")
    mid = top.children[0]
    low = mid.children[0]
    resumed = rt.future_resume(Answer(parked.pending.id, True))
    assert inside.wait(20)
"""


def serve(llm: ScriptedLlm) -> None:
    """Each agent delegates, or asks, and then says that it is done."""

    def doing(name: str, call: Reply) -> None:
        def answer(request: RecordedRequest) -> Reply:
            is_again = request.prompt == "again"
            is_back = request.messages[-1]["role"] == "tool"
            return text(f"{name} done") if is_again or is_back else call

        llm.answer(name, answer)

    doing("top", tool_call("task", {"agent": "mid", "prompt": "go"}))
    doing("mid", tool_call("task", {"agent": "low", "prompt": "go"}))
    doing("low", tool_call("ask"))


def run(llm: ScriptedLlm, work: str) -> None:
    """Fork while the leaf replays; do `work` in the child, then let the parent finish."""
    serve(llm)
    script = (
        FORK
        + TREE
        + work
        + """
    pid = in_child(work)
    say(str(join(pid)))
    leave.set()
    resumed.result(20)
    say(rt.wait_on(top, 20).text)
    say(str(len(ran)))
    rt.close(rt.root)
    """
    )
    with running(script, llm.base_url) as child:
        child.expect("0")
        child.expect("top done")
        child.expect("1")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_in_the_child_nobody_runs_and_nobody_waits_for_ever(llm: ScriptedLlm) -> None:
    run(
        llm,
        """
    def work():
        for one in (top, mid, low):
            assert one.state is not State.RUNNING, (one.id, one.state)
            result = rt.wait_on(one, timeout=5)
            assert result.status != "timeout", (one.id, result)
        assert rt.pending() == (), rt.pending()
    """,
    )


def test_in_the_child_a_future_of_the_parent_can_resolve(llm: ScriptedLlm) -> None:
    run(
        llm,
        """
    def work():
        future = rt.future_result(top)
        rt.interrupt(top)
        if not future.done():
            assert rt.wake(top, "again").ok
        assert future.result(5).status in ("interrupted", "done")
    """,
    )


def test_in_the_child_the_top_agent_can_start_afresh(llm: ScriptedLlm) -> None:
    run(
        llm,
        """
    def work():
        rt.interrupt(top)
        result = rt.run_turn(top, "again", timeout=5)
        assert result.text == "top done", result
        assert ran == [parked.pending.id]
    """,
    )


def test_in_the_child_the_tree_can_be_closed(llm: ScriptedLlm) -> None:
    run(
        llm,
        """
    def work():
        rt.close(rt.root)
        assert {one.state for one in (rt.root, top, mid, low)} == {State.CLOSED}
        assert [one.name for one in threading.enumerate()] == ["MainThread"]
    """,
    )
