"""Blocking verbs in foreign code: future callbacks, and tools on the only worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    Handle,
    State,
    TaskResult,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    VirtualClock,
    text,
    tool_call,
)

Make = Callable[..., AgentRuntime]

WORKERS = pytest.mark.parametrize("workers", [1, 2])
ONE_AT_A_TIME = Budget(max_concurrent=1)


def echo(request: RecordedRequest) -> Reply:
    return text(f"echo {request.prompt}")


def charge_then_done(request: RecordedRequest) -> Reply:
    asks = request.messages[-1]["role"] != "tool"
    return tool_call("charge_card") if asks else text("charged")


class Callback:
    """A future's callback that does something; the test waits for what came of it."""

    def __init__(self, work: Callable[[TaskResult], Any]) -> None:
        self._work = work
        self._gave: Future[Any] = Future()

    def __call__(self, future: Future[TaskResult]) -> None:
        try:
            self._gave.set_result(self._work(future.result()))
        except BaseException as error:
            self._gave.set_exception(error)

    def result(self) -> Any:
        return self._gave.result(LIMIT)


class Does:
    """A tool that does what the test says."""

    description = "Does what the test says"
    source = "custom"
    input_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {}}

    def __init__(self, name: str, work: Callable[[ToolContext], object]) -> None:
        self.name = name
        self._work = work

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        return ToolResult.ok(str(self._work(ctx)))


@WORKERS
def test_a_callback_waits_for_the_sibling_that_is_queued_behind(
    llm: ScriptedLlm, make_runtime: Make, workers: int
) -> None:
    hold = threading.Event()
    llm.say("m", text("first").held_by(hold))
    llm.answer("m", echo)
    rt = make_runtime(AgentDef("a"), max_workers=workers, budget=ONE_AT_A_TIME)
    first, second = (rt.spawn(rt.root, "a").handle for _ in range(2))
    callback = Callback(lambda result: rt.wait_on(second).text)
    rt.future_result(first).add_done_callback(callback)
    rt.wake(first, "1")
    llm.wait_asked("m")
    rt.wake(second, "2")
    hold.set()
    assert callback.result() == "echo 2"


@pytest.mark.parametrize("timeout", [None, LIMIT])
@WORKERS
def test_a_callback_runs_a_turn_that_queues_behind_a_sibling(
    llm: ScriptedLlm, make_runtime: Make, workers: int, timeout: float | None
) -> None:
    hold = threading.Event()
    llm.say("m", text("first").held_by(hold))
    llm.answer("m", echo)
    rt = make_runtime(AgentDef("a"), max_workers=workers, budget=ONE_AT_A_TIME)
    first, second, third = (rt.spawn(rt.root, "a").handle for _ in range(3))
    behind = rt.future_result(second)
    callback = Callback(lambda result: rt.run_turn(third, "3", timeout).text)
    rt.future_result(first).add_done_callback(callback)
    rt.wake(first, "1")
    llm.wait_asked("m")
    rt.wake(second, "2")
    hold.set()
    assert callback.result() == "echo 3"
    assert behind.result(LIMIT).text == "echo 2"


@WORKERS
def test_a_callback_answers_the_question_it_is_told_of(
    llm: ScriptedLlm, make_runtime: Make, workers: int
) -> None:
    charge = Charge()
    llm.answer("m", charge_then_done)
    rt = make_runtime(AgentDef("pay", tools=[charge]), max_workers=workers)
    handle = rt.spawn(rt.root, "pay").handle

    def answer(result: TaskResult) -> tuple[State, str]:
        assert result.pending is not None
        rt.resume(Answer(result.pending.id, ok=True))
        return handle.state, rt.wait_on(handle).text

    callback = Callback(answer)
    rt.future_result(handle).add_done_callback(callback)
    rt.wake(handle, "go")
    assert callback.result() == (State.IDLE, "charged")
    assert len(charge.charged) == 1


@WORKERS
def test_a_callback_answers_while_a_sibling_has_taken_the_place(
    llm: ScriptedLlm, make_runtime: Make, workers: int
) -> None:
    """`resume` comes back when the turn has gone on, behind the sibling."""
    hold, charge = threading.Event(), Charge()
    llm.say("pay", tool_call("charge_card").held_by(hold), text("charged"))
    llm.answer("m", echo)
    rt = make_runtime(
        AgentDef("pay", model="pay", tools=[charge]),
        AgentDef("a"),
        max_workers=workers,
        budget=ONE_AT_A_TIME,
    )
    asker, sibling = (rt.spawn(rt.root, name).handle for name in ("pay", "a"))
    behind = rt.future_result(sibling)

    def answer(result: TaskResult) -> tuple[State, str | None]:
        assert result.pending is not None
        rt.resume(Answer(result.pending.id, ok=True))
        last = asker.last_result
        return asker.state, None if last is None else last.text

    callback = Callback(answer)
    rt.future_result(asker).add_done_callback(callback)
    rt.wake(asker, "go")
    llm.wait_asked("pay")
    rt.wake(sibling, "2")
    hold.set()
    assert callback.result() == (State.IDLE, "charged")
    assert behind.result(LIMIT).text == "echo 2"
    assert len(charge.charged) == 1


@WORKERS
def test_a_callback_of_the_parent_sees_the_whole_cascade_through(
    llm: ScriptedLlm, make_runtime: Make, workers: int
) -> None:
    charge = Charge()
    llm.say("lead", tool_call("task", {"agent": "pay", "prompt": "x"}), text("all"))
    llm.answer("pay", charge_then_done)
    rt = make_runtime(
        AgentDef("lead", model="lead", team=["pay"]),
        AgentDef("pay", model="pay", tools=[charge]),
        max_workers=workers,
    )
    lead = rt.spawn(rt.root, "lead").handle

    def answer(result: TaskResult) -> tuple[State, str | None]:
        assert result.pending is not None
        rt.resume(Answer(result.pending.id, ok=True))
        last = lead.last_result
        return lead.state, None if last is None else last.text

    callback = Callback(answer)
    rt.future_result(lead).add_done_callback(callback)
    rt.wake(lead, "go")
    assert callback.result() == (State.IDLE, "all")
    assert len(charge.charged) == 1


@pytest.mark.parametrize("verb", ["run_turn", "wait_on"])
def test_a_tool_on_the_only_worker_waits_with_a_limit(
    llm: ScriptedLlm, make_runtime: Make, verb: str
) -> None:
    found: list[Any] = []

    def delegate(ctx: ToolContext) -> str:
        rt, handle = found
        child: Handle = rt.spawn(handle, "a").handle
        if verb == "run_turn":
            return str(rt.run_turn(child, "x", timeout=LIMIT / 2).text)
        rt.wake(child, "x")
        return str(rt.wait_on(child, timeout=LIMIT / 2).text)

    llm.say("lead", tool_call("do", id="c1"), text("all"))
    llm.answer("m", echo)
    rt = make_runtime(
        AgentDef("lead", model="lead", tools=[Does("do", delegate)]),
        AgentDef("a", model="m"),
        max_workers=1,
    )
    lead = rt.spawn(rt.root, "lead").handle
    found += [rt, lead]
    end = rt.future_result(lead)
    rt.wake(lead, "go")
    assert end.result(LIMIT).text == "all"
    assert llm.requests_of("lead")[1].tool_results["c1"] == "echo x"


def test_a_tools_limit_holds_and_the_child_goes_on(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    hold, clock = threading.Event(), VirtualClock()
    found: list[Any] = []

    def delegate(ctx: ToolContext) -> str:
        rt, handle = found
        child: Handle = rt.spawn(handle, "a").handle
        found.append(child)
        return str(rt.run_turn(child, "x", timeout=5).status)

    llm.say("lead", tool_call("do", id="c1"), text("all"))
    llm.say("m", text("late").held_by(hold))
    rt = make_runtime(
        AgentDef("lead", model="lead", tools=[Does("do", delegate)]),
        AgentDef("a", model="m"),
        max_workers=1,
        clock=clock,
    )
    lead = rt.spawn(rt.root, "lead").handle
    found += [rt, lead]
    end = rt.future_result(lead)
    rt.wake(lead, "go")
    llm.wait_asked("m")
    clock.wait_parked(1)
    clock.advance(5)
    assert end.result(LIMIT).text == "all"
    assert llm.requests_of("lead")[1].tool_results["c1"] == "timeout"
    child = found[2]
    late = rt.future_result(child)
    hold.set()
    assert late.result(LIMIT).text == "late"


def test_a_tool_on_the_only_worker_runs_a_turn_behind_a_sibling(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """The sibling has the only place, and no worker is free to do its turn."""
    found: list[Any] = []

    def delegate(ctx: ToolContext) -> str:
        rt, handle = found
        first, second = (rt.spawn(handle, "a").handle for _ in range(2))
        rt.wake(first, "1")
        return f"{rt.run_turn(second, '2').text}, {rt.wait_on(first).text}"

    llm.say("lead", tool_call("do", id="c1"), text("all"))
    llm.answer("m", echo)
    rt = make_runtime(
        AgentDef("lead", model="lead", tools=[Does("do", delegate)], budget=ONE_AT_A_TIME),
        AgentDef("a", model="m"),
        max_workers=1,
    )
    lead = rt.spawn(rt.root, "lead").handle
    found += [rt, lead]
    end = rt.future_result(lead)
    rt.wake(lead, "go")
    assert end.result(LIMIT).text == "all"
    assert llm.requests_of("lead")[1].tool_results["c1"] == "echo 2, echo 1"


def test_run_turn_comes_back_before_the_turn_that_was_queued_behind(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    first_hold, second_hold = threading.Event(), threading.Event()
    llm.say("one", text("first").held_by(first_hold))
    llm.say("two", text("second").held_by(second_hold))
    rt = make_runtime(
        AgentDef("a", model="one"), AgentDef("b", model="two"), budget=ONE_AT_A_TIME
    )
    first, second = (rt.spawn(rt.root, name).handle for name in "ab")
    ran = Future[TaskResult]()
    threading.Thread(
        target=lambda: ran.set_result(rt.run_turn(first, "go")), daemon=True
    ).start()
    llm.wait_asked("one")
    behind = rt.future_result(second)
    rt.wake(second, "go")
    first_hold.set()

    assert ran.result(LIMIT).text == "first"
    llm.wait_asked("two")
    assert not behind.done()
    second_hold.set()
    assert behind.result(LIMIT).text == "second"


def test_a_future_resume_on_the_only_worker_does_the_work_it_waits_behind(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """Its replay queues behind a sibling whose turn waits for just that worker."""
    llm.say("ask", tool_call("charge_card"), text("charged"))
    llm.answer("m", lambda request: text("said"))
    rt = make_runtime(
        AgentDef("ask", model="ask", tools=[Charge()]),
        AgentDef("a"),
        max_workers=1,
        budget=Budget(max_concurrent=1),
    )
    asker = rt.spawn(rt.root, "ask").handle
    parked = rt.run_turn(asker, "go")
    assert parked.pending is not None
    first, second = (rt.spawn(rt.root, "a").handle for _ in range(2))
    held = threading.Event()
    llm.say("m", text("first").held_by(held))
    rt.wake(first, "go")
    llm.wait_asked("m")
    rt.wake(second, "go")
    resumed = rt.future_resume(Answer(parked.pending.id, ok=True))
    held.set()
    resumed.result(LIMIT)
    assert rt.wait_on(asker, LIMIT).text == "charged"
    assert rt.wait_on(second, LIMIT).text == "said"
