"""The gates: children of one parent, and requests on the wire."""

from __future__ import annotations

import threading

from tests.conftest import LIMIT
from tests.helpers import moves
from tests.runtime.support import Make, start, within
from toolnexus import AgentDef, AgentRuntime, Budget, Handle, State
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, call, text, tool_calls

ONE = Budget(max_concurrent=1)


def fill(rt: AgentRuntime, count: int) -> list[Handle]:
    return [rt.spawn(rt.root, "w").handle for _ in range(count)]


def test_one_place_goes_from_child_to_child_in_the_order_of_the_wakes(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    hold = threading.Event()
    llm.say("m", text("first").held_by(hold))
    llm.answer("m", lambda request: text(f"did {request.prompt}"))
    rt = make_runtime(AgentDef("w"), budget=ONE)
    one, two, three, four = fill(rt, 4)
    futures = {handle.id: rt.future_result(handle) for handle in (one, two, three, four)}
    rt.wake(one, "1")
    llm.wait_asked("m")
    for handle, prompt in ((three, "3"), (four, "4"), (two, "2")):
        assert rt.wake(handle, prompt).ok
        assert handle.state is State.IDLE
        assert rt.trace()[-1] == f"{handle.id}: wake QUEUED (parent concurrency 1)"
    again = rt.wake(three, "more")
    assert not again.ok
    assert again.error is not None
    assert again.error.startswith("busy")
    hold.set()

    results = [futures[h.id].result(LIMIT).text for h in (one, two, three, four)]
    assert results == ["first", "did 2", "did 3", "did 4"]
    assert [request.prompt for request in llm.requests] == ["1", "3", "4", "2"]
    freed = [line for line in rt.trace() if "DEQUEUED" in line]
    assert freed == [f"{h.id}: DEQUEUED wake (slot freed)" for h in (three, four, two)]
    for handle in (one, two, three, four):
        assert moves(rt.trace(), handle.id) == ["idle", "running", "idle"]


def test_a_queued_child_that_is_closed_gives_its_place_away(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    hold = threading.Event()
    llm.say("m", text("first").held_by(hold), text("third"))
    rt = make_runtime(AgentDef("w"), budget=ONE)
    one, two, three = fill(rt, 3)
    futures = [rt.future_result(handle) for handle in (one, two, three)]
    for handle in (one, two, three):
        rt.wake(handle, "go")
    llm.wait_asked("m")
    within(rt.close, two)
    assert futures[1].result(LIMIT).status in ("closed", "interrupted")
    assert two.state is State.CLOSED
    hold.set()
    assert futures[2].result(LIMIT).text == "third"
    assert futures[0].result(LIMIT).text == "first"
    assert len(llm.requests) == 2


def test_a_queued_child_that_is_interrupted_gives_its_place_away(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    hold = threading.Event()
    llm.say("m", text("first").held_by(hold), text("third"))
    rt = make_runtime(AgentDef("w"), budget=ONE)
    one, two, three = fill(rt, 3)
    futures = [rt.future_result(handle) for handle in (one, two, three)]
    for handle in (one, two, three):
        rt.wake(handle, "go")
    llm.wait_asked("m")
    within(rt.interrupt, two)
    assert futures[1].result(LIMIT).status == "interrupted"
    assert two.state is State.IDLE
    hold.set()
    assert futures[2].result(LIMIT).text == "third"


def test_a_queued_child_that_the_budget_refuses_gives_its_place_away(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    hold = threading.Event()
    llm.say("m", text("first").held_by(hold), text("third"))
    rt = make_runtime(AgentDef("w"), budget=ONE)
    one = rt.spawn(rt.root, "w").handle
    two = rt.spawn(rt.root, "w", Budget(max_tokens=0)).handle
    three = rt.spawn(rt.root, "w").handle
    futures = [rt.future_result(handle) for handle in (one, two, three)]
    for handle in (one, two, three):
        rt.wake(handle, "go")
    llm.wait_asked("m")
    hold.set()
    assert futures[1].result(LIMIT).status == "incomplete"
    assert futures[2].result(LIMIT).text == "third"


def test_a_suspended_child_holds_no_place(llm: ScriptedLlm, make_runtime: Make) -> None:
    from tests.helpers import Charge
    from toolnexus.testing import tool_call

    llm.say("a", tool_call("charge_card"))
    llm.say("m", text("went on"))
    rt = make_runtime(
        AgentDef("asks", "", "", "a", tools=[Charge()]), AgentDef("w"), budget=ONE
    )
    parked, result = start(rt, "asks")
    assert result.status == "pending"
    assert start(rt, "w")[1].text == "went on"
    assert parked.state is State.SUSPENDED


class Traffic:
    """Counts how many requests the server has at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.most = 0

    def __enter__(self) -> Traffic:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.now -= 1


class Crowd:
    """A hook that tells when so many turns are about to send a request."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()
        self.is_complete = threading.Event()

    def before_llm(self, request: object) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.is_complete.set()


def test_one_request_at_a_time_and_no_deadlock(llm: ScriptedLlm, make_runtime: Make) -> None:
    traffic = Traffic()
    about_to_ask = Crowd(6)

    def lead(request: RecordedRequest) -> Reply:
        with traffic:
            if request.tool_results:
                return text("all seen")
            tasks = [{"agent": "look", "prompt": str(n)} for n in range(6)]
            return tool_calls(*(call("task", task) for task in tasks))

    def look(request: RecordedRequest) -> Reply:
        with traffic:
            assert about_to_ask.is_complete.wait(LIMIT)
            return text("seen")

    llm.answer("lead", lead)
    llm.answer("look", look)
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["look"]),
        AgentDef("look", "", "", "look", hooks=about_to_ask),
        max_concurrent_turns=1,
    )
    _, result = start(rt, "lead")
    assert result.text == "all seen"
    assert len(llm.requests) == 8
    assert traffic.most == 1


def test_the_turn_gate_is_passed_on_when_its_holder_is_interrupted(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    never = threading.Event()
    llm.say("a", text("never").held_by(never))
    llm.say("b", text("went on"))
    rt = make_runtime(
        AgentDef("a", "", "", "a"), AgentDef("b", "", "", "b"), max_concurrent_turns=1
    )
    holder, waiter = rt.spawn(rt.root, "a").handle, rt.spawn(rt.root, "b").handle
    held, waited = rt.future_result(holder), rt.future_result(waiter)
    rt.wake(holder, "go")
    llm.wait_asked("a")
    rt.wake(waiter, "go")
    assert waiter.state is State.RUNNING, "the gate holds the request, not the turn"
    within(rt.interrupt, holder)
    assert held.result(LIMIT).status == "interrupted"
    assert waited.result(LIMIT).text == "went on"


def test_a_turn_that_waits_at_the_gate_can_be_interrupted(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    hold = threading.Event()
    llm.say("a", text("first").held_by(hold), text("next"))
    rt = make_runtime(AgentDef("a", "", "", "a"), max_concurrent_turns=1)
    holder, waiter = rt.spawn(rt.root, "a").handle, rt.spawn(rt.root, "a").handle
    futures = [rt.future_result(holder), rt.future_result(waiter)]
    rt.wake(holder, "go")
    llm.wait_asked("a")
    rt.wake(waiter, "go")
    within(rt.interrupt, waiter)
    assert futures[1].result(LIMIT).status == "interrupted"
    hold.set()
    assert futures[0].result(LIMIT).text == "first"
    third, done = start(rt, "a")
    assert done.text == "next"
    assert third.state is State.IDLE
