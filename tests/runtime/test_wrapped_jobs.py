"""`wrap_job`: the host's hook around what the runtime's own threads do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Pay, Probe, run_turn, start
from toolnexus import AgentDef, Answer, ConfigError, ToolContext, ToolResult
from toolnexus.testing import ScriptedLlm, VirtualClock, call, text, tool_call, tool_calls

inside: ContextVar[tuple[str, ...]] = ContextVar("inside", default=())
"""The threads whose jobs this code is in, from outside in."""


def note(job: Callable[[], None]) -> None:
    token = inside.set((*inside.get(), threading.current_thread().name))
    try:
        job()
    finally:
        inside.reset(token)


def seen(name: str = "look") -> tuple[Probe, list[tuple[str, ...]]]:
    """Return a tool that notes in whose jobs it is."""
    found: list[tuple[str, ...]] = []

    def look(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        found.append(inside.get())
        return ToolResult.ok("looked")

    return Probe(name, look), found


def test_a_turn_and_its_tool_are_jobs_of_a_worker(llm: ScriptedLlm, make_runtime: Make) -> None:
    tool, found = seen()
    llm.say("m", tool_call("look"), text("done"))
    rt = make_runtime(AgentDef("looker", tools=[tool]), wrap_job=note)
    handle = rt.spawn(rt.root, "looker").handle
    future = rt.future_result(handle)
    rt.wake(handle, "go")
    assert future.result(LIMIT).status == "done"
    # The turn, and in it the tool.
    assert found == [("toolnexus-1", "toolnexus-1")]


def test_what_runs_on_the_callers_thread_has_what_the_caller_has(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    tool, found = seen()
    llm.say("m", tool_call("look"), text("done"))
    rt = make_runtime(AgentDef("looker", tools=[tool]), wrap_job=note)
    handle = rt.spawn(rt.root, "looker").handle
    assert rt.run_turn(handle, "go").status == "done"
    assert found == [()]


def test_parallel_calls_of_a_callers_turn_are_jobs_where_workers_help(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    both = threading.Barrier(2)
    found: dict[Any, tuple[str, ...]] = {}

    def meet(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        both.wait(LIMIT)
        found[args["n"]] = inside.get()
        return ToolResult.ok("met")

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tool = Probe("meet", meet)
    tool.input_schema = schema  # type: ignore[misc]
    llm.say("m", tool_calls(call("meet", {"n": 1}), call("meet", {"n": 2})), text("done"))
    rt = make_runtime(AgentDef("meeter", tools=[tool]), wrap_job=note)
    handle = rt.spawn(rt.root, "meeter").handle
    assert rt.run_turn(handle, "go").status == "done"
    assert found == {1: (), 2: ("toolnexus-1",)}


def test_what_an_answer_sets_going_elsewhere_is_a_job(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    found: list[tuple[str, ...]] = []
    pay = Pay()
    ask = pay.work

    def look(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        found.append(inside.get())
        return ask(args, ctx)

    pay.work = look
    llm.say("m", tool_call("pay"), text("done"))
    rt = make_runtime(AgentDef("payer", tools=[pay]), wrap_job=note)
    handle = rt.spawn(rt.root, "payer").handle
    parked = rt.run_turn(handle, "go")
    assert parked.pending is not None
    future = rt.future_resume(Answer(parked.pending.id, ok=True))
    called: list[tuple[str, ...]] = []
    future.add_done_callback(lambda _: called.append(inside.get()))
    future.result(LIMIT)
    first, second = found
    assert first == ()
    assert set(second) == {"toolnexus-1"}
    # A callback that was registered in time is called by the job, else by who registers it.
    assert called in ([("toolnexus-1",)], [()])


def test_what_expires_by_itself_is_a_job(llm: ScriptedLlm, make_runtime: Make) -> None:
    found: list[tuple[str, ...]] = []
    clock = VirtualClock()

    def ask(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        found.append(inside.get())
        ctx.ask("approval", "Sure?", expires_in=timedelta(seconds=5), on_decline="return")
        return ToolResult.ok("asked")

    llm.say("m", tool_call("ask"), text("done"))
    rt = make_runtime(
        AgentDef("asker", tools=[Probe("ask", ask, handles_decline=True)]),
        wrap_job=note,
        clock=clock,
        expire_requests=True,
    )
    handle = rt.spawn(rt.root, "asker").handle
    assert rt.run_turn(handle, "go").status == "pending"
    future = rt.future_result(handle)
    clock.wait_parked(1)
    clock.advance(5)
    assert future.result(LIMIT).status == "done"
    assert found[0] == ()
    assert set(found[1]) == {"toolnexus-deadline"}


def test_a_turn_that_is_recovered_is_a_job(
    llm: ScriptedLlm, make_runtime: Make, tmp_path: Path
) -> None:
    tool, found = seen()
    looker = AgentDef("looker", tools=[tool])
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    llm.say("m", text("lost").held_by(threading.Event()), tool_call("look"), text("done"))
    first = make_runtime(looker, store=store, shutdown_ms=0)
    handle_id = first.spawn(first.root, "looker").handle.id
    first.wake(first.handle(handle_id), "go")
    llm.wait_asked("m")
    first.close()
    second = make_runtime(looker, store=store, wrap_job=note)
    assert second.recover() == (handle_id,)
    assert second.wait_on(second.handle(handle_id), timeout=LIMIT).status == "done"
    assert [set(one) for one in found] == [{"toolnexus-1"}]


def test_a_job_sees_the_context_variables_of_who_woke_it_and_those_of_the_hook(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    found: list[tuple[str, bool]] = []

    def look(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        found.append((tenant.get(), bool(inside.get())))
        return ToolResult.ok("looked")

    llm.say("m", tool_call("look"), text("done"))
    rt = make_runtime(AgentDef("looker", tools=[Probe("look", look)]), wrap_job=note)
    handle = rt.spawn(rt.root, "looker").handle
    future = rt.future_result(handle)
    tenant.set("ann")
    rt.wake(handle, "go")
    future.result(LIMIT)
    assert found == [("ann", True)]


def before(job: Callable[[], None]) -> None:
    raise OSError("the hook breaks")


def after(job: Callable[[], None]) -> None:
    job()
    raise OSError("the hook breaks")


def never(job: Callable[[], None]) -> None:
    pass


def ends_its_thread(job: Callable[[], None]) -> None:
    raise SystemExit(1)


def twice(job: Callable[[], None]) -> None:
    job()
    job()


@pytest.mark.parametrize("hook", [before, after, never, ends_its_thread, twice])
def test_a_hook_that_fails_loses_no_run(
    llm: ScriptedLlm,
    make_runtime: Make,
    caplog: pytest.LogCaptureFixture,
    hook: Callable[[Callable[[], None]], None],
) -> None:
    tool, found = seen()
    llm.say("m", tool_call("look"), text("done"))
    rt = make_runtime(AgentDef("looker", tools=[tool]), wrap_job=hook)
    handle = rt.spawn(rt.root, "looker").handle
    future = rt.future_result(handle)
    rt.wake(handle, "go")
    assert future.result(LIMIT).status == "done"
    assert found == [()]
    assert "wrap_job" in caplog.text


def test_the_hook_does_not_see_what_a_job_raises(llm: ScriptedLlm, make_runtime: Make) -> None:
    caught: list[BaseException] = []

    def catch(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            caught.append(error)
            raise

    def leave(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        raise SystemExit(3)

    llm.say("m", tool_call("leave"))
    rt = make_runtime(AgentDef("leaver", tools=[Probe("leave", leave)]), wrap_job=catch)
    _, result = start(rt, "leaver")
    assert result.status == "error"
    assert "SystemExit" in result.text
    assert not caught


def test_no_lock_is_held_around_a_job(llm: ScriptedLlm, make_runtime: Make) -> None:
    looked: list[int] = []

    def look(job: Callable[[], None]) -> None:
        def list_handles() -> None:
            looked.append(len(rt.list()))

        for step in (list_handles, job, list_handles):
            if step is job:
                step()
                continue
            other = threading.Thread(target=step)
            other.start()
            other.join(LIMIT)
            assert not other.is_alive()

    llm.say("m", tool_call("pay"), text("done"))
    rt = make_runtime(AgentDef("payer", tools=[Pay()]), wrap_job=look)
    handle = rt.spawn(rt.root, "payer").handle
    parked = run_turn(rt, handle)
    assert parked.pending is not None
    rt.future_resume(Answer(parked.pending.id, ok=True)).result(LIMIT)
    assert set(looked) == {1}


def test_a_hook_that_cannot_be_called_is_refused(make_runtime: Make) -> None:
    with pytest.raises(ConfigError, match="wrap_job must be callable"):
        make_runtime(wrap_job="close_old_connections")
