"""`inline`: everything happens on the thread that sets it going, before the verb returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.runtime.support import Make, Pay, Probe
from toolnexus import AgentDef, AgentRuntime, Answer, Budget, InboxItem, ToolContext, ToolResult
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, call, text, tool_call
from toolnexus.testing import tool_calls as calls_of


@pytest.fixture(autouse=True)
def no_workers() -> Iterator[None]:
    """Look for workers, which live on for a while without a job."""
    before = set(threading.enumerate())
    yield
    started = {one.name for one in set(threading.enumerate()) - before}
    assert not {name for name in started if name.startswith("toolnexus")}


def here(found: list[threading.Thread]) -> Probe:
    def look(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        found.append(threading.current_thread())
        return ToolResult.ok("looked")

    return Probe("look", look)


def test_wake_returns_when_the_turn_is_over(llm: ScriptedLlm, make_runtime: Make) -> None:
    found: list[threading.Thread] = []
    llm.say("m", calls_of(call("look"), call("look"), call("look")), text("done"))
    rt = make_runtime(AgentDef("looker", tools=[here(found)]), inline=True)
    handle = rt.spawn(rt.root, "looker").handle
    assert rt.wake(handle, "go").ok
    assert handle.last_result is not None
    assert (handle.last_result.status, handle.last_result.text) == ("done", "done")
    assert set(found) == {threading.current_thread()}
    assert len(found) == 3


def test_parallel_calls_run_in_call_order(llm: ScriptedLlm, make_runtime: Make) -> None:
    order: list[Any] = []

    def look(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        order.append(ctx.call_id)
        return ToolResult.ok("looked")

    llm.say("m", calls_of(call("look", id="a"), call("look", id="b")), text("done"))
    rt = make_runtime(AgentDef("looker", tools=[Probe("look", look)]), inline=True)
    rt.wake(rt.spawn(rt.root, "looker").handle, "go")
    assert order == ["a", "b"]


def test_future_resume_is_done_when_it_returns(llm: ScriptedLlm, make_runtime: Make) -> None:
    pay = Pay()
    llm.say("m", tool_call("pay"), text("done"))
    rt = make_runtime(AgentDef("payer", tools=[pay]), inline=True)
    handle = rt.spawn(rt.root, "payer").handle
    rt.wake(handle, "go")
    (asked,) = rt.pending()
    future = rt.future_resume(Answer(asked.request.id, ok=True))
    assert future.done()
    assert len(pay.paid) == 1
    assert rt.wait_on(handle).status == "done"


def test_a_limit_makes_no_other_thread_do_the_work(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    found: list[threading.Thread] = []
    llm.say("m", tool_call("look"), text("done"))
    rt = make_runtime(AgentDef("looker", tools=[here(found)]), inline=True)
    handle = rt.spawn(rt.root, "looker").handle
    assert rt.run_turn(handle, "go", timeout=0).status == "done"
    assert found == [threading.current_thread()]


def delegating(request: RecordedRequest) -> Reply:
    """Let each level delegate to the next one below, and tell what came of it."""
    if request.tool_results:
        return text("end")
    level = int(request.model[1:])
    return calls_of(
        *[call("task", {"agent": f"d{level + 1}", "prompt": f"go {n}"}) for n in range(2)]
    )


@pytest.mark.parametrize("store", [None, "memory://"])
@pytest.mark.parametrize("max_concurrent", [1, 8])
def test_a_tree_asks_and_is_answered_on_one_thread(
    llm: ScriptedLlm, make_runtime: Make, max_concurrent: int, store: str | None
) -> None:
    pay = Pay()
    last = 3
    agents = [AgentDef(f"d{n}", model=f"d{n}", team=[f"d{n + 1}"]) for n in range(1, last)]
    agents.append(AgentDef(f"d{last}", model=f"d{last}", tools=[pay]))
    for level in range(1, last):
        llm.answer(f"d{level}", delegating)
    llm.answer(
        f"d{last}", lambda asked: text("paid") if asked.tool_results else tool_call("pay")
    )
    limits = Budget(max_concurrent=max_concurrent)
    rt = make_runtime(*agents, inline=True, budget=limits, store=store)
    top = rt.spawn(rt.root, "d1").handle
    rt.wake(top, "go")
    assert len(rt.pending()) == 4
    while rt.pending():
        rt.future_resume(Answer(rt.pending()[0].request.id, ok=True))
    assert top.last_result is not None
    assert top.last_result.status == "done"
    assert len(pay.paid) == 4


def test_chains_deeper_than_one_thread_nests_stay_here(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    found: list[threading.Thread] = []
    depth = 18
    agents = [AgentDef(f"d{n}", model=f"d{n}", team=[f"d{n + 1}"]) for n in range(1, depth)]
    for level in range(1, depth):
        task = tool_call("task", {"agent": f"d{level + 1}", "prompt": "go"})
        llm.say(f"d{level}", task, text("end"))
    llm.say(f"d{depth}", tool_call("look"), text("end"))
    agents.append(AgentDef(f"d{depth}", model=f"d{depth}", tools=[here(found)]))
    rt = make_runtime(*agents, inline=True, budget=Budget(max_depth=depth))
    top = rt.spawn(rt.root, "d1").handle
    rt.wake(top, "go")
    assert top.last_result is not None
    assert top.last_result.status == "done"
    assert found == [threading.current_thread()]


def test_a_stream_has_its_events(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", text("streamed"))
    rt = make_runtime(AgentDef("speaker"), inline=True)
    handle = rt.spawn(rt.root, "speaker").handle
    events = list(rt.stream(handle, "go"))
    assert events[0].kind == "text"
    assert events[-1].kind == "done"


def test_a_tool_that_wakes_another_agent_has_its_result_at_once(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt: AgentRuntime

    def wake(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        other = rt.spawn(rt.root, "other").handle
        rt.wake(other, "go")
        assert other.last_result is not None
        return ToolResult.ok(other.last_result.text)

    llm.say("m", tool_call("wake"), text("done"))
    llm.say("o", text("woken"))
    rt = make_runtime(
        AgentDef("waker", tools=[Probe("wake", wake)]),
        AgentDef("other", model="o"),
        inline=True,
    )
    rt.wake(rt.spawn(rt.root, "waker").handle, "go")
    assert list(llm.requests[-1].tool_results.values()) == ["woken"]


def test_what_comes_meanwhile_makes_a_turn_follow(llm: ScriptedLlm, make_runtime: Make) -> None:
    post: list[Callable[[], object]] = []

    def mail(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        post[0]()
        return ToolResult.ok("posted")

    llm.say("m", tool_call("mail"), text("first"), text("second"))
    rt = make_runtime(AgentDef("reader", tools=[Probe("mail", mail)]), inline=True)
    handle = rt.spawn(rt.root, "reader").handle
    post.append(
        lambda: (rt.post(handle, InboxItem("ann", "message", "hello")), rt.wake(handle))
    )
    rt.wake(handle, "go")
    assert handle.last_result is not None
    assert handle.last_result.text == "second"


def test_ctrl_c_in_a_turn_reaches_who_woke_it(llm: ScriptedLlm, make_runtime: Make) -> None:
    def press(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        raise KeyboardInterrupt

    llm.say("m", tool_call("press"))
    rt = make_runtime(AgentDef("presser", tools=[Probe("press", press)]), inline=True)
    handle = rt.spawn(rt.root, "presser").handle
    with pytest.raises(KeyboardInterrupt):
        rt.wake(handle, "go")
    assert handle.last_result is not None
    assert handle.last_result.status == "interrupted"
    rt.close(force=True)


def test_the_hook_is_for_other_threads(llm: ScriptedLlm, make_runtime: Make) -> None:
    called: list[str] = []

    def hook(job: Callable[[], None]) -> None:
        called.append("called")
        job()

    llm.say("m", text("done"))
    rt = make_runtime(AgentDef("speaker"), inline=True, wrap_job=hook)
    rt.wake(rt.spawn(rt.root, "speaker").handle, "go")
    assert not called
