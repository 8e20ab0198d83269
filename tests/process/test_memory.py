"""What a long life leaves behind: a bounded number of closed handles, and nothing else."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

from tests.conftest import LIMIT
from tests.helpers import Charge
from toolnexus import AgentDef, AgentRuntime, Answer, Handle
from toolnexus.client.turn import Turn
from toolnexus.runtime.run import Run
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]

CYCLES = 2_000
KEPT = 1_100
"""A thousand closed handles stay readable; some room for what is live."""


def live_objects() -> Counter[str]:
    gc.collect()
    kinds = (Handle, Run, Turn)
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in kinds)


def test_two_thousand_lives_leave_a_bounded_number_of_closed_handles(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.answer("m", lambda request: text("done"))
    rt = make_runtime(AgentDef("a"), trace_limit=100)
    before = live_objects()
    ids = []
    for _ in range(CYCLES):
        handle = rt.spawn(rt.root, "a").handle
        ids.append(handle.id)
        rt.future_result(handle)
        assert rt.run_turn(handle, "Go.").text == "done"
        rt.close(handle)
    del handle

    grown = live_objects() - before

    assert grown["Handle"] <= KEPT
    assert grown["Run"] <= 2
    assert grown["Turn"] <= 2
    assert rt.handle(ids[-1]) is not None
    assert rt.handle(ids[0]) is None
    assert len(rt.trace()) == 100
    assert rt.list() == ()


def test_answers_that_are_remembered_keep_no_closed_handle_alive(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.answer(
        "m",
        lambda request: (
            text("done") if request.messages[-1]["role"] == "tool" else tool_call("charge_card")
        ),
    )
    rt = make_runtime(AgentDef("pay", tools=[Charge()]), trace_limit=100)
    before = live_objects()
    for _ in range(KEPT + 400):
        handle = rt.spawn(rt.root, "pay").handle
        parked = rt.run_turn(handle, "Go.")
        assert parked.pending is not None
        rt.resume(Answer(parked.pending.id, True))
        rt.close(handle)
    del handle

    grown = live_objects() - before

    assert grown["Handle"] <= KEPT
    assert grown["Run"] <= 2
    assert grown["Turn"] <= 2


def test_waiting_again_and_again_for_one_turn_leaves_nothing_behind(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    gate = threading.Event()
    llm.say("m", text("done").held_by(gate))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    rt.wake(handle, "Go.")
    llm.wait_asked("m")

    def futures() -> int:
        gc.collect()
        return sum(issubclass(type(one), Future) for one in gc.get_objects())

    before = futures()
    for _ in range(200):
        assert rt.wait_on(handle, 0.0).status == "timeout"
    after = futures()
    gate.set()

    assert after - before <= 10
    assert rt.wait_on(handle, LIMIT).text == "done"
