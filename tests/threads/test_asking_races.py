"""Answers, expiry, superseding, interrupts and closes, all at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import in_thread
from tests.threads.invariants import check_transcript
from tests.threads.racing import race
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Request,
    State,
    TaskResult,
    ToolContext,
    ToolnexusError,
    ToolResult,
    tool,
)
from toolnexus.testing import (
    RecordedRequest,
    ScriptedLlm,
    VirtualClock,
    call,
    text,
    tool_call,
    tool_calls,
)

Make = Callable[..., AgentRuntime]
ROUNDS = 40

pytestmark = pytest.mark.usefixtures("threads_change_often")


class Charging:
    """Asks with a time limit; counts by question what it charged."""

    def __init__(self) -> None:
        self.charged: list[str] = []

        @tool
        def charge(ctx: ToolContext) -> str:
            answer = ctx.ask("approval", "Charge?", expires_in=60)
            self.charged.append(answer.id)
            return "charged"

        self.tool = charge


def says(llm: ScriptedLlm, *calls: Any) -> None:
    def answer(request: RecordedRequest) -> Any:
        return tool_calls(*calls) if request.messages[-1]["content"] == "go" else text("end")

    llm.answer("m", answer)


def settled(rt: AgentRuntime, handle: Any) -> TaskResult:
    return in_thread(rt.wait_on, handle).result(LIMIT)


def test_of_an_answer_its_expiry_and_what_ends_the_question_one_happens(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    clock = VirtualClock()
    says(llm, call("charge"))
    charging = Charging()
    rt = make_runtime(AgentDef("a", tools=[charging.tool]), clock=clock)
    for number in range(ROUNDS):
        handle = rt.spawn(rt.root, "a").handle
        pending = rt.run_turn(handle, "go").pending
        assert pending is not None
        answer = Answer(pending.id, ok=True)
        if number % 2:
            clock.advance(60)
        rivals: list[Callable[[], Any]] = [
            partial(rt.resume, answer),
            rt.expire_due,
            partial(rt.supersede, handle, "never mind"),
            partial(rt.interrupt, handle),
        ]
        given = race(partial(rt.resume, answer), *rivals[: 2 + number % 3])
        assert all(
            not isinstance(one, Exception) or isinstance(one, ToolnexusError) for one in given
        )
        settled(rt, handle)
        was_answered = outcome_of(rt, pending.id) == "answered"
        charged = charging.charged.count(pending.id)
        # An interrupt may come between an answer and its execution.
        is_interrupted = number % 3 == 2 and charged == 0
        assert charged == (1 if was_answered and not is_interrupted else 0)
        check_transcript(rt.transcript(handle))
        rt.close(handle)
    assert rt.pending() == ()


def outcome_of(rt: AgentRuntime, request_id: str) -> Any:
    (record,) = [one for one in rt.audit() if one.request_id == request_id]
    return record.outcome


def test_a_login_answered_while_agents_come_and_go_is_given_to_all_who_wait(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    entered: list[str] = []
    lock = threading.Lock()

    class Crm:
        name, description, source = "crm", "d", "custom"
        input_schema: Any = {"type": "object", "properties": {}}  # noqa: RUF012 - never changed

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            if ctx.answer is None:
                return ToolResult.auth_required("https://x.example", resource="crm")
            with lock:
                entered.append(str(ctx.handle_id))
            return ToolResult.ok("in")

    says(llm, call("crm"), call("crm"))
    rt = make_runtime(AgentDef("a", tools=[Crm()]))
    for _ in range(ROUNDS // 2):
        entered.clear()
        handles = [rt.spawn(rt.root, "a").handle for _ in range(3)]
        for handle in handles[:2]:
            assert rt.run_turn(handle, "go").status == "pending"
        (one,) = rt.pending()
        answer = Answer(one.request.id, ok=True)
        race(
            partial(rt.resume, answer),
            partial(rt.interrupt, handles[0]),
            partial(rt.run_turn, handles[2], "go"),
        )
        # Whoever came after the answer asks anew.
        for again in rt.pending():
            rt.resume(Answer(again.request.id, ok=True))
        assert settled(rt, handles[1]).text == "end"
        assert settled(rt, handles[2]).text == "end"
        assert settled(rt, handles[0]).status in ("done", "interrupted")
        assert all(entered.count(handle.id) == 2 for handle in handles[1:])
        assert entered.count(handles[0].id) in (0, 1, 2)
        for handle in handles:
            rt.close(handle)
        assert rt.pending() == ()


def test_an_interrupt_against_a_turn_that_parks_leaves_nothing_open(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    says(llm, call("charge"), call("charge"))
    charging = Charging()
    at_the_door = threading.Barrier(3)

    @tool
    def charge(ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            at_the_door.wait(LIMIT)
        ctx.ask("approval", "Charge?")
        charging.charged.append(ctx.call_id)
        return "charged"

    rt = make_runtime(AgentDef("a", tools=[charge]))
    for _ in range(ROUNDS):
        handle = rt.spawn(rt.root, "a").handle
        run = in_thread(rt.run_turn, handle, "go")
        at_the_door.wait(LIMIT)
        rt.interrupt(handle)
        # Parked first, and then withdrawn; or stopped before it could park.
        assert run.result(LIMIT).status in ("interrupted", "pending")
        assert handle.state is State.IDLE
        assert rt.pending() == ()
        check_transcript(rt.transcript(handle))
        rt.close(handle)
    assert charging.charged == []


@pytest.mark.parametrize("workers", [1, 4])
def test_a_tool_may_answer_its_siblings_question(
    llm: ScriptedLlm, make_runtime: Make, workers: int
) -> None:
    """The sibling asked in an earlier turn of the same runtime, or asks beside it."""
    done: list[str] = []

    @tool
    def ask(ctx: ToolContext) -> str:
        ctx.ask("approval", "May I?")
        done.append("ask")
        return "did it"

    @tool
    def approve(ctx: ToolContext) -> str:
        """Give the answer as soon as the question is open."""
        for one in rt.pending():
            rt.resume(Answer(one.request.id, ok=True))
            done.append("approve")
        return "approved"

    llm.say("one", tool_call("ask"), text("end one"))
    llm.say("two", tool_call("approve"), text("end two"))
    llm.say(
        "m",
        tool_calls(
            call("task", {"agent": "one", "prompt": "go"}),
            call("task", {"agent": "two", "prompt": "go"}),
        ),
        text("end"),
    )
    rt = make_runtime(
        AgentDef("a", team=["one", "two"]),
        AgentDef("one", model="one", tools=[ask]),
        AgentDef("two", model="two", tools=[approve]),
        max_workers=workers,
    )
    handle = rt.spawn(rt.root, "a").handle
    result = in_thread(rt.run_turn, handle, "go").result(LIMIT)
    if result.status == "pending":  # the sibling was there before the question
        for one in rt.pending():
            in_thread(rt.resume, Answer(one.request.id, ok=True)).result(LIMIT)
        result = settled(rt, handle)
    assert result.text == "end"
    assert done.count("ask") == 1


@pytest.mark.in_memory
def test_a_future_resume_of_a_runtime_that_closes_ends(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    says(llm, call("charge"))
    for number in range(ROUNDS // 2):
        charging = Charging()
        rt = make_runtime(AgentDef("a", tools=[charging.tool]), max_workers=1 + number % 2)
        handle = rt.spawn(rt.root, "a").handle
        pending = rt.run_turn(handle, "go").pending
        assert pending is not None
        given = race(partial(rt.future_resume, Answer(pending.id, ok=True)), rt.close)
        future = given[0]
        if isinstance(future, Exception):
            assert isinstance(future, ToolnexusError)
            assert charging.charged == []
        else:
            assert future.result(LIMIT) is None
            assert len(charging.charged) <= 1
        assert handle.state is State.CLOSED


def test_superseding_against_an_answer_never_does_both(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    says(llm, call("charge"), call("charge"))
    charging = Charging()
    rt = make_runtime(AgentDef("a", tools=[charging.tool]))
    for _ in range(ROUNDS):
        handle = rt.spawn(rt.root, "a").handle
        rt.run_turn(handle, "go")
        answers = [Answer(one.request.id, ok=True) for one in rt.pending()]
        assert len(answers) == 2
        race(
            partial(rt.resume, answers),
            partial(rt.supersede, handle, "never mind"),
            partial(rt.resume, answers[::-1]),
        )
        settled(rt, handle)
        outcomes = {outcome_of(rt, answer.id) for answer in answers}
        # Both were accepted together, or both were dropped.
        assert outcomes in ({"answered"}, {"superseded"})
        charged = [charging.charged.count(answer.id) for answer in answers]
        assert charged == ([1, 1] if outcomes == {"answered"} else [0, 0])
        check_transcript(rt.transcript(handle))
        rt.close(handle)


def test_two_agents_that_park_for_one_login_at_one_moment_share_it(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    together = threading.Barrier(3)

    class Crm:
        name, description, source = "crm", "d", "custom"
        input_schema: Any = {"type": "object", "properties": {}}  # noqa: RUF012 - never changed

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            if ctx.answer is None:
                together.wait(LIMIT)
                return ToolResult.pending(
                    Request("authorization", "Log in.", data={"resource": "crm"})
                )
            return ToolResult.ok("in")

    says(llm, call("crm"))
    rt = make_runtime(AgentDef("a", tools=[Crm()]))
    for _ in range(ROUNDS):
        handles = [rt.spawn(rt.root, "a").handle for _ in range(3)]
        given = race(*(partial(rt.run_turn, one, "go") for one in handles))
        assert [one.status for one in given] == ["pending"] * 3
        (one,) = rt.pending()
        rt.resume(Answer(one.request.id, ok=True))
        assert [settled(rt, handle).text for handle in handles] == ["end"] * 3
        for handle in handles:
            rt.close(handle)
