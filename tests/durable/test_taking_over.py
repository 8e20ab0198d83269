"""Which runs `recover` takes over, what becomes of calls in flight, and when it gives up."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.durable.mortal import DIED, Later
from tests.durable.staying import Staying
from tests.durable.zygote import Zygote, zygote
from tests.runtime.support import within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    InboxItem,
    State,
    Tool,
    ToolContext,
    tool,
)
from toolnexus.stores import MemoryStore, SqliteStore
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]


# -- in processes of their own -----------------------------------------------------------------


def tools(directory: str) -> list[Tool]:
    """Return tools that end the process as long as there is a file that says so.

    It says whether before or after the effect.
    """

    def take_effect(name: str, ctx: ToolContext) -> str:
        deadly = Path(directory) / "deadly"
        when = deadly.read_text() if deadly.exists() else ""
        if when == "before":
            os._exit(DIED)
        written(name, ctx)
        if when == "after":
            os._exit(DIED)
        return f"{name} done"

    def written(name: str, ctx: ToolContext) -> str:
        with (Path(directory) / "effects").open("a") as file:
            file.write(f"{name} {ctx.idempotency_key} {ctx.attempt}\n")
        return f"{name} {ctx.attempt}"

    @tool(retry_safe=True)
    def safe(ctx: ToolContext) -> str:
        """May be done again."""
        return take_effect("safe", ctx)

    @tool
    def plain(ctx: ToolContext) -> str:
        """May not."""
        return take_effect("plain", ctx)

    @tool(on_unknown="ask")
    def asks(ctx: ToolContext) -> str:
        """May, if a person says so."""
        return take_effect("asks", ctx)

    @tool
    def once(ctx: ToolContext) -> str:
        """Has a step that is kept."""
        step = ctx.once("step", lambda: take_effect("step", ctx))
        return step + " and " + take_effect("once", ctx)

    @tool(retry_safe=True)
    def steps(ctx: ToolContext) -> str:
        """Has a step that is kept, and may be done again."""
        step = ctx.once("step", lambda: written("step", ctx))
        return step + " and " + take_effect("steps", ctx)

    return [safe, plain, asks, once, steps]


def runtime(base_url: str, directory: str, later: int, **options: Any) -> AgentRuntime:
    store = SqliteStore(Path(directory) / "runs.db", clock=Later(later))
    return AgentRuntime(
        base_url=base_url,
        api_key="k",
        default_model="m",
        retries=0,
        registry=[AgentDef("a", tools=tools(directory))],
        store=store,
        **options,
    )


def begin(base_url: str, directory: str) -> None:
    rt = runtime(base_url, directory, 0)
    rt.run_turn(rt.spawn(rt.root, "a").handle, "go")


def recover(base_url: str, directory: str, later: int) -> list[str]:
    """Take over, and return status, text and results of the run."""
    rt = runtime(base_url, directory, later)
    assert rt.recover() == ("root/a.1",)
    return told(rt)


def told(rt: AgentRuntime) -> list[str]:
    handle = rt.handle("root/a.1")
    assert handle is not None
    result = rt.wait_on(handle, LIMIT)
    results = [one["content"] for one in rt.transcript(handle) if one["role"] == "tool"]
    return [result.status, result.text, *results]


# -- the tests ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> Any:
    with zygote() as started:
        yield started


class Deadly:
    """A directory in which a tool ends its process."""

    def __init__(self, llm: ScriptedLlm, made: Zygote, directory: Path, when: str) -> None:
        self.llm, self._zygote, self.directory = llm, made, directory
        self.set(when)

    def set(self, when: str) -> None:
        (self.directory / "deadly").write_text(when)

    def run(self, function: str, **more: Any) -> Any:
        where = {"base_url": self.llm.base_url, "directory": str(self.directory)}
        ended = self._zygote.run(__name__, function, **where, **more)
        assert ended.code in (0, DIED), ended.told
        return None if ended.code else ended.told

    def effects(self) -> list[list[str]]:
        path = self.directory / "effects"
        return [one.split() for one in path.read_text().splitlines()] if path.exists() else []

    def runtime(self, later: int, **options: Any) -> AgentRuntime:
        return runtime(self.llm.base_url, str(self.directory), later, **options)


OUTCOMES = {
    # The tool, and whether it had taken effect: what the model reads, and the effects.
    ("safe", "before"): ("safe done", ["safe"]),
    ("safe", "after"): ("safe done", ["safe", "safe"]),
    ("plain", "before"): ("the process ended while the call was in flight", []),
    ("plain", "after"): ("the process ended while the call was in flight", ["plain"]),
    ("once", "before"): ("the process ended while the call was in flight", []),
    ("once", "after"): ("the process ended while the call was in flight", ["step"]),
    ("steps", "before"): ("step 1 and steps done", ["step", "steps"]),
    ("steps", "after"): ("step 1 and steps done", ["step", "steps", "steps"]),
}


@pytest.mark.parametrize(("name", "when"), OUTCOMES)
def test_a_process_ends_in_a_tool(
    llm: ScriptedLlm, made: Zygote, tmp_path: Path, name: str, when: str
) -> None:
    llm.say("m", tool_call(name), text("done"))
    deadly = Deadly(llm, made, tmp_path, when)
    assert deadly.run("begin") is None
    deadly.set("")
    status, final, result = deadly.run("recover", later=1)
    assert (status, final) == ("done", "done")
    reads, effects = OUTCOMES[name, when]
    assert reads in result
    assert [one[0] for one in deadly.effects()] == effects
    assert len({one[1] for one in deadly.effects()}) <= 1
    llm.assert_done()


@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_person_decides_whether_it_runs_again(
    llm: ScriptedLlm, made: Zygote, tmp_path: Path, when: str, ok: bool
) -> None:
    llm.say("m", tool_call("asks"), text("done"))
    deadly = Deadly(llm, made, tmp_path, when)
    deadly.run("begin")
    deadly.set("")
    status, prompt = deadly.run("recover", later=1)
    assert status == "pending"
    assert "Run it again?" in prompt
    before = [one[0] for one in deadly.effects()]
    assert before == (["asks"] if when == "after" else [])
    with deadly.runtime(2) as rt:
        (question,) = rt.pending("unknown_outcome")
        rt.resume(Answer(question.request.id, ok=ok))
        status, final, result = told(rt)
    assert (status, final) == ("done", "done")
    assert ("asks done" if ok else "a person decided not to run it again") in result
    assert [one[0] for one in deadly.effects()] == [*before, *(["asks"] if ok else [])]
    assert len({one[1] for one in deadly.effects()}) <= 1


def test_a_run_that_ends_its_process_each_time_is_given_up(
    llm: ScriptedLlm, made: Zygote, tmp_path: Path
) -> None:
    llm.say("m", tool_call("safe"), text("done"))
    deadly = Deadly(llm, made, tmp_path, "before")
    deadly.run("begin")
    for later in range(1, 4):
        assert deadly.run("recover", later=later) is None
    status, final, _ = deadly.run("recover", later=4)
    assert status == "error"
    assert "its process ended in the middle of this turn 4 times" in final
    with deadly.runtime(5) as rt:
        assert rt.recover() == ()  # it is nobody's business any more
        handle = rt.handle("root/a.1")
        assert handle.state is State.IDLE
        deadly.set("")
        retried = rt.retry(handle)
        assert (retried.status, retried.text) == ("done", "done")
        assert told(rt)[2] == "safe done"
    assert [one[0] for one in deadly.effects()] == ["safe"]
    assert len(llm.requests) == 2


def test_a_run_that_comes_to_rest_has_all_its_recoveries_again(
    llm: ScriptedLlm, made: Zygote, tmp_path: Path
) -> None:
    llm.say("m", tool_call("safe"), text("done"))
    deadly = Deadly(llm, made, tmp_path, "before")
    deadly.run("begin")
    for later in (1, 2):
        deadly.run("recover", later=later)
    deadly.set("")
    assert deadly.run("recover", later=3)[0] == "done"
    store = SqliteStore(tmp_path / "runs.db", clock=Later(4))
    taken = store.take("default", "root/a.1", "me", 1, takes_busy=False)
    assert taken.lease.recoveries == 0
    store.close()


def test_recover_takes_nothing_that_is_alive(make_runtime: Make, llm: ScriptedLlm) -> None:
    stay = Staying(retry_safe=True)
    llm.say("m", tool_call("stay"), text("done"))
    shared = MemoryStore()
    mine = make_runtime(AgentDef("a", tools=[stay.tool]), store=shared)
    other = make_runtime(AgentDef("a", tools=[stay.tool]), store=shared)
    handle = mine.spawn(mine.root, "a").handle
    future = mine.future_result(handle)
    mine.wake(handle, "go")
    assert stay.inside.wait(LIMIT)
    assert other.recover() == mine.recover() == ()
    assert other.run_turn(other.handle(handle.id), "again").status == "error"
    stay.go.set()
    assert future.result(LIMIT).text == "done"
    assert len(llm.requests) == 2


def test_what_a_closed_runtime_leaves_is_taken_over_at_once(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    shared, inside, go = MemoryStore(), threading.Event(), threading.Event()

    @tool(retry_safe=True)
    def stay() -> str:
        """Stay the first time."""
        if not inside.is_set():
            inside.set()
            assert go.wait(LIMIT)
        return "stayed"

    llm.say("m", tool_call("stay"), text("done"))
    first = make_runtime(AgentDef("a", tools=[stay]), store=shared)
    handle = first.spawn(first.root, "a").handle
    future = first.future_result(handle)
    first.wake(handle, "go")
    assert inside.wait(LIMIT)
    first.close(force=True)
    assert future.result(LIMIT).status == "interrupted"

    # It was left on purpose, which is no recovery.
    second = make_runtime(AgentDef("a", tools=[stay]), store=shared, max_recoveries=0)
    assert second.recover() == ("root/a.1",)
    assert second.wait_on(second.handle("root/a.1"), LIMIT).text == "done"
    go.set()


# -- a turn that had not begun -----------------------------------------------------------------


def test_a_wake_that_waits_for_its_place_is_run(make_runtime: Make, llm: ScriptedLlm) -> None:
    shared = MemoryStore()
    llm.say("m", text("lost").held_by(threading.Event()), text("one"))
    llm.say("b", text("two"))
    agents = (AgentDef("a"), AgentDef("b", model="b"))
    first = make_runtime(*agents, store=shared, budget=Budget(max_concurrent=1))
    running, queued = (first.spawn(first.root, name).handle for name in ("a", "b"))
    assert first.wake(running, "go").ok
    llm.wait_asked("m")
    assert first.wake(queued, "go too").ok
    first.close(force=True)
    assert llm.requests_of("b") == []

    second = make_runtime(*agents, store=shared)
    assert second.recover() == (running.id, queued.id)
    assert second.wait_on(second.handle(running.id), LIMIT).text == "one"
    assert second.wait_on(second.handle(queued.id), LIMIT).text == "two"
    assert llm.requests_of("b")[0].prompt == "go too"
    llm.assert_done()


@pytest.mark.parametrize("is_asked", [False, True])
def test_an_inbox_is_as_it_was(make_runtime: Make, llm: ScriptedLlm, is_asked: bool) -> None:
    """Also where the model was asked with it and has not replied."""
    shared = MemoryStore()
    first = make_runtime(AgentDef("a"), store=shared)
    handle = first.spawn(first.root, "a").handle
    for number in range(2):
        assert first.post(handle, InboxItem("crm", "note", f"note {number}")).ok
    if is_asked:
        llm.say("m", text("lost").held_by(threading.Event()))
        assert first.wake(handle, "go").ok
        llm.wait_asked("m")
    first.close(force=True)

    llm.say("m", text("done"))
    second = make_runtime(AgentDef("a"), store=shared)
    handle = second.handle(handle.id)
    if is_asked:
        assert second.recover() == (handle.id,)
        assert second.wait_on(handle, LIMIT).text == "done"
    else:
        view = second.inspect(handle)
        assert view is not None
        assert view.inbox == 2
        assert second.run_turn(handle, "go").text == "done"
    said = llm.requests[-1].messages[-1]["content"]
    assert [said.count(f"note {number}") for number in range(2)] == [1, 1]
    view = second.inspect(handle)
    assert view is not None
    assert view.inbox == 0
    llm.assert_done()


# -- a turn that is to stop --------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["interrupt", "close", "force"])
@pytest.mark.parametrize("name", ["safe", "plain"])
def test_what_is_to_stop_is_not_begun_again_for_that(
    llm: ScriptedLlm, made: Zygote, tmp_path: Path, name: str, verb: str
) -> None:
    llm.say("m", tool_call(name))
    deadly = Deadly(llm, made, tmp_path, "before")
    deadly.run("begin")
    deadly.set("")
    with deadly.runtime(1) as rt:
        handle = rt.handle("root/a.1")
        assert handle is not None
        if verb == "interrupt":
            within(rt.interrupt, handle)
            assert handle.state is State.IDLE
        else:
            within(partial(rt.close, handle, force=verb == "force"))
            assert handle.state is State.CLOSED
        assert "may or may not have taken effect" in rt.transcript(handle)[-1]["content"]
    assert deadly.effects() == []
    assert len(llm.requests) == 1
