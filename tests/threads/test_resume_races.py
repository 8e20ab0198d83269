"""Answers from many threads at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge, moves
from tests.threads.invariants import check_path
from tests.threads.racing import race
from toolnexus import AgentDef, AgentRuntime, AlreadyAnswered, Answer, State
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, call, text, tool_calls

Make = Callable[..., AgentRuntime]
ROUNDS = 50
DURABLE = ["idle", "running", "suspended", "idle", "running", "idle"]


pytestmark = pytest.mark.usefixtures("threads_change_often")


def asking(*names: str, final: str = "done") -> Callable[[RecordedRequest], Reply]:
    """Call these tools once in each turn, then end it."""

    def answer(request: RecordedRequest) -> Reply:
        if request.messages[-1]["role"] == "tool":
            return text(final)
        return tool_calls(*map(call, names))

    return answer


def tasking(*agents: str) -> Callable[[RecordedRequest], Reply]:
    def answer(request: RecordedRequest) -> Reply:
        if request.messages[-1]["role"] == "tool":
            return text("all done")
        return tool_calls(*(call("task", {"agent": one, "prompt": "go"}) for one in agents))

    return answer


def test_twenty_threads_give_the_same_answer_and_the_tool_runs_once(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    charge = Charge()
    llm.answer("m", asking("charge_card"))
    rt = make_runtime(AgentDef("pay", tools=[charge]))

    for number in range(1, ROUNDS + 1):
        handle = rt.spawn(rt.root, "pay").handle
        parked = rt.run_turn(handle, "Charge.")
        assert parked.pending is not None
        answer = Answer(parked.pending.id, True)

        given = race(*[lambda a=answer: rt.resume(a)] * 20)

        assert given == [None] * 20
        assert len(charge.charged) == number
        assert handle.state is State.IDLE
        assert rt.wait_on(handle, LIMIT).status == "done"
        assert moves(rt.trace(), handle.id) == DURABLE
        rt.close(handle)
    assert len(llm.requests) == 2 * ROUNDS


def test_every_caller_of_the_same_answer_finds_the_whole_cascade_done(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    charge = Charge()
    llm.answer("pay", asking("charge_card"))
    llm.answer("middle", tasking("pay"))
    llm.answer("boss", tasking("middle"))
    rt = make_runtime(
        AgentDef("boss", model="boss", team=["middle"]),
        AgentDef("middle", model="middle", team=["pay"]),
        AgentDef("pay", model="pay", tools=[charge]),
    )
    for _ in range(ROUNDS // 5):
        boss = rt.spawn(rt.root, "boss").handle
        parked = rt.run_turn(boss, "Go.")
        assert parked.pending is not None
        answer = Answer(parked.pending.id, True)

        def resume(a: Answer = answer, b: Any = boss) -> Any:
            rt.resume(a)
            return b.last_result.status

        assert race(*[resume] * 8) == ["done"] * 8
        rt.close(boss)
    assert len(charge.charged) == ROUNDS // 5
    check_path(rt.trace())


def test_of_two_different_answers_one_counts_and_the_other_is_told_which(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    charge = Charge()
    llm.answer("m", asking("charge_card"))
    rt = make_runtime(AgentDef("pay", tools=[charge]))
    for _ in range(ROUNDS):
        charge.charged.clear()
        handle = rt.spawn(rt.root, "pay").handle
        parked = rt.run_turn(handle, "Charge.")
        assert parked.pending is not None
        answers = [Answer(parked.pending.id, True), Answer(parked.pending.id, False)]

        given = race(*(lambda a=one: rt.resume(a) for one in answers))

        (late,) = [one for one in given if one is not None]
        assert isinstance(late, AlreadyAnswered)
        winner = answers[given.index(None)]
        assert late.recorded == winner
        assert len(charge.charged) == (1 if winner.ok else 0)
        rt.close(handle)


@pytest.mark.parametrize("workers", [1, 32])
def test_two_answers_of_one_turn_from_two_threads(
    llm: ScriptedLlm, make_runtime: Make, workers: int
) -> None:
    first, second = Charge("first"), Charge("second")
    llm.answer("m", asking("first", "second"))
    rt = make_runtime(AgentDef("pay", tools=[first, second]), max_workers=workers)
    for number in range(1, ROUNDS + 1):
        handle = rt.spawn(rt.root, "pay").handle
        assert rt.run_turn(handle, "Charge both.").status == "pending"
        answers = [Answer(one.request.id, True) for one in rt.pending()]
        assert len(answers) == 2

        given = race(*(lambda a=one: rt.resume(a) for one in answers))

        assert given == [None, None]
        assert rt.wait_on(handle, LIMIT).status == "done"
        assert (len(first.charged), len(second.charged)) == (number, number)
        assert len(llm.requests) == 2 * number
        rt.close(handle)
    check_path(rt.trace())


@pytest.mark.parametrize("workers", [1, 2, 32])
def test_answers_to_two_leaves_of_one_parent_lose_no_wake_up(
    llm: ScriptedLlm, make_runtime: Make, workers: int
) -> None:
    charge = Charge()
    llm.answer("pay", asking("charge_card"))
    llm.answer("boss", tasking("pay", "pay"))
    rt = make_runtime(
        AgentDef("boss", model="boss", team=["pay"]),
        AgentDef("pay", model="pay", tools=[charge]),
        max_workers=workers,
    )
    for number in range(1, ROUNDS + 1):
        boss = rt.spawn(rt.root, "boss").handle
        assert rt.run_turn(boss, "Go.").status == "pending"
        answers = [Answer(one.request.id, True) for one in rt.pending()]
        assert len(answers) == 2

        given = race(*(lambda a=one: rt.resume(a) for one in answers))

        assert given == [None, None]
        # Whoever came back last found it done; nobody needs to wait for anything.
        assert boss.last_result is not None
        assert boss.last_result.status == "done"
        assert len(charge.charged) == 2 * number
        assert boss.children == ()
        rt.close(boss)
    assert len(llm.requests_of("boss")) == 2 * ROUNDS
    assert len(llm.requests_of("pay")) == 4 * ROUNDS
    check_path(rt.trace())


def test_three_asks_of_which_two_are_answered_by_thirty_callers(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    tools = [Charge(name) for name in ("one", "two", "three")]
    llm.answer("m", asking("one", "two", "three"))
    rt = make_runtime(AgentDef("pay", tools=tools))
    handle = rt.spawn(rt.root, "pay").handle
    assert rt.run_turn(handle, "Charge.").status == "pending"
    one, two, three = (Answer(one.request.id, True) for one in rt.pending())

    assert race(*(lambda a=a: rt.resume(a) for a in [one, two] * 10)) == [None] * 20

    assert [len(tool.charged) for tool in tools] == [1, 1, 0]
    assert handle.state is State.SUSPENDED
    rt.resume(three)
    assert [len(tool.charged) for tool in tools] == [1, 1, 1]
    assert handle.state is State.IDLE
    assert len(llm.requests) == 2
