"""What holders of futures may do, and what it may not do to others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from toolnexus import AgentDef, AgentRuntime, Answer, InboxItem, State, TaskResult
from toolnexus.testing import ScriptedLlm, call, status, text, tool_call, tool_calls

Make = Callable[..., AgentRuntime]


@pytest.mark.parametrize("error", [ValueError, CancelledError, SystemExit])
def test_a_callback_that_raises_harms_no_other_waiter(
    llm: ScriptedLlm,
    make_runtime: Make,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm.say("m", text("one"), text("two"))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle

    def fail(_: Future[TaskResult]) -> None:
        raise error("a callback's own fault")

    with caplog.at_level(logging.CRITICAL):
        first, second = rt.future_result(handle), rt.future_result(handle)
        first.add_done_callback(fail)
        rt.wake(handle, "Go.")
        assert second.result(LIMIT).text == "one"
        assert first.result(LIMIT).text == "one"
    assert rt.run_turn(handle, "Again.").text == "two"


def test_a_log_filter_that_raises_harms_no_waiter(llm: ScriptedLlm, make_runtime: Make) -> None:
    def broken(record: logging.LogRecord) -> bool:
        if "→idle" in record.getMessage():
            raise ValueError("a filter's own fault")
        return False

    llm.say("m", text("one"))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    future = rt.future_result(handle)
    logger = logging.getLogger("toolnexus.trace")
    logger.addFilter(broken)
    logger.setLevel(logging.DEBUG)
    try:
        rt.wake(handle, "Go.")
        assert future.result(LIMIT).text == "one"
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeFilter(broken)


def test_a_future_cannot_be_cut_loose_from_its_turn(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    gate = threading.Event()
    llm.say("m", text("done").held_by(gate))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    future = rt.future_result(handle)
    assert not future.cancel()
    rt.wake(handle, "Go.")
    llm.wait_asked("m")
    assert not future.cancel()
    assert future.running()
    gate.set()
    assert future.result(LIMIT).text == "done"


def test_the_future_of_a_resume_cannot_be_cut_loose_either(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    gate = threading.Event()
    llm.say("m", tool_call("charge_card"), text("done").held_by(gate))
    rt = make_runtime(AgentDef("pay", tools=[Charge()]))
    handle = rt.spawn(rt.root, "pay").handle
    parked = rt.run_turn(handle, "Charge.")
    assert parked.pending is not None
    resumed = rt.future_resume(Answer(parked.pending.id, True))
    assert not resumed.cancel()
    gate.set()
    assert resumed.result(LIMIT) is None
    assert handle.state is State.IDLE


def test_a_callback_may_use_the_runtime(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", text("one"), text("two"))
    rt = make_runtime(AgentDef("a"), max_workers=1)
    handle = rt.spawn(rt.root, "a").handle
    second: Future[Future[TaskResult]] = Future()

    def go_on(_: Future[TaskResult]) -> None:
        second.set_result(rt.future_result(handle))
        assert rt.wake(handle, "Again.").ok

    rt.future_result(handle).add_done_callback(go_on)
    rt.wake(handle, "Go.")
    assert second.result(LIMIT).result(LIMIT).text == "two"


def test_a_bare_wake_of_a_running_agent_is_not_forgotten_when_its_turn_parks(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    gate = threading.Event()
    llm.say("m", tool_call("charge_card").held_by(gate), text("charged"), text("read it"))
    rt = make_runtime(AgentDef("pay", tools=[Charge()]))
    handle = rt.spawn(rt.root, "pay").handle
    future = rt.future_result(handle)
    rt.wake(handle, "Charge.")
    llm.wait_asked("m")
    rt.post(handle, InboxItem("host", "test", "a note"))
    assert rt.wake(handle).ok, "accepted, so a turn follows the present one"
    gate.set()
    parked = future.result(LIMIT)
    assert parked.pending is not None

    rt.resume(Answer(parked.pending.id, True))

    assert rt.wait_on(handle, LIMIT).text == "read it"
    assert handle.inbox == ()


def test_a_stalled_child_beside_a_parked_one_lets_resume_come_back(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    tasks = [call("task", {"agent": name, "prompt": "go"}) for name in ("one", "two")]
    llm.say("boss", tool_calls(*tasks), text("all done"))
    llm.say("one", tool_call("charge_card"), status(503), text("one done"))
    llm.say("two", tool_call("charge_card"), text("two done"))
    charge = Charge()
    rt = make_runtime(
        AgentDef("boss", model="boss", team=["one", "two"]),
        AgentDef("one", model="one", tools=[charge]),
        AgentDef("two", model="two", tools=[charge]),
    )
    boss = rt.spawn(rt.root, "boss").handle
    assert rt.run_turn(boss, "Go.").status == "pending"
    asked = {pending.agent: pending.request.id for pending in rt.pending()}

    # The provider is down when the first answer is taken; the other question is still open.
    came_back = _in_thread(lambda: rt.resume(Answer(asked["one"], True)))
    assert came_back, "resume hangs"

    assert _in_thread(lambda: rt.resume(Answer(asked["two"], True)))
    assert _in_thread(lambda: rt.retry(boss))
    assert boss.last_result is not None
    assert boss.last_result.text == "all done"
    assert len(charge.charged) == 2


def test_retry_leaves_a_parked_turn_alone(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", status(503), tool_call("charge_card"), text("charged"))
    charge = Charge()
    rt = make_runtime(AgentDef("pay", tools=[charge]))
    handle = rt.spawn(rt.root, "pay").handle
    assert rt.run_turn(handle, "Charge.").status == "error"
    parked = rt.retry(handle)
    assert parked.pending is not None

    assert rt.retry(handle) == parked, "there is nothing to retry"

    assert handle.state is State.SUSPENDED
    rt.resume(Answer(parked.pending.id, True))
    assert rt.wait_on(handle, LIMIT).text == "charged"
    assert len(charge.charged) == 1


def _in_thread(work: Callable[[], Any]) -> bool:
    """Run `work` on a thread of its own; say whether it came back in time."""
    thread = threading.Thread(target=work, name="caller", daemon=True)
    thread.start()
    thread.join(LIMIT / 2)
    return not thread.is_alive()


def test_the_future_of_a_resume_ends_with_the_runtime(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    gate = threading.Event()
    llm.say("m", tool_call("charge_card"))
    llm.say("busy", text("too late").held_by(gate))
    rt = make_runtime(
        AgentDef("pay", tools=[Charge()]), AgentDef("busy", model="busy"), max_workers=1
    )
    parked = rt.run_turn(rt.spawn(rt.root, "pay").handle, "Charge.")
    assert parked.pending is not None
    rt.wake(rt.spawn(rt.root, "busy").handle, "Take the only worker.")
    llm.wait_asked("busy")
    resumed = rt.future_resume(Answer(parked.pending.id, True))

    rt.close(rt.root, force=True)

    assert resumed.result(LIMIT) is None


def test_a_future_taken_while_a_handle_closes_drops_no_earlier_one(
    make_runtime: Callable[..., AgentRuntime],
) -> None:
    taken: list[Future[TaskResult]] = []
    rt = make_runtime(
        AgentDef("a", on_close=lambda handle, why: taken.append(rt.future_result(handle)))
    )
    handle = rt.spawn(rt.root, "a").handle
    earlier = rt.future_result(handle)
    rt.close(handle)
    assert [one.result(LIMIT).status for one in (earlier, *taken)] == ["closed", "closed"]
