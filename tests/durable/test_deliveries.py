"""What a queue delivers more than once is done once: the run keeps what it was asked."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import LIMIT
from tests.durable.staying import Staying
from tests.runtime.support import Make
from toolnexus import AgentDef, AgentRuntime, InboxItem
from toolnexus.stores import MemoryStore
from toolnexus.testing import ScriptedLlm, status, text, tool_call

DELIVERIES = 8


def see_through(rt: AgentRuntime, run_id: str) -> str:
    """Do what a task of a queue does."""
    handle = rt.handle(run_id)
    assert handle is not None
    rt.wake(handle)
    return rt.wait_on(handle, LIMIT).status


def given(rt: AgentRuntime) -> str:
    """Do what the view does that sends the task."""
    handle = rt.spawn(rt.root, "a").handle
    assert rt.post(handle, InboxItem("shop", "order", "Go."), sender=rt.root).ok
    return handle.id


@pytest.mark.parametrize("round_", range(5))
def test_deliveries_at_once_ask_the_model_once(
    make_runtime: Make, llm: ScriptedLlm, round_: int
) -> None:
    del round_
    store, start = MemoryStore(), threading.Barrier(DELIVERIES)
    runtimes = [make_runtime(AgentDef("a"), store=store) for _ in range(2)]
    run_id = given(runtimes[0])
    llm.say("m", text("done"))

    def deliver(number: int) -> str:
        start.wait(LIMIT)
        return see_through(runtimes[number % 2], run_id)

    with ThreadPoolExecutor(DELIVERIES) as threads:
        assert set(threads.map(deliver, range(DELIVERIES))) == {"done"}
    assert len(llm.requests) == 1
    assert see_through(runtimes[1], run_id) == "done"
    llm.assert_done()


def test_a_turn_that_had_no_reply_is_begun_again_by_the_next_delivery(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    rt = make_runtime(AgentDef("a"), store=MemoryStore())
    run_id = given(rt)
    llm.say("m", status(503), text("done"))
    assert see_through(rt, run_id) == "error"
    assert see_through(rt, run_id) == "done"
    assert see_through(rt, run_id) == "done"
    assert llm.requests[0].messages == llm.requests[1].messages
    assert len(llm.requests) == 2


def test_a_task_is_delivered_again_while_the_lease_of_its_dead_worker_lasts(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    stay = Staying(retry_safe=True)
    llm.say("m", tool_call("stay"), text("done"))
    store, agent = MemoryStore(), AgentDef("a", tools=[stay.tool])
    first, second = (make_runtime(agent, store=store, lease_ms=700) for _ in range(2))
    handle = first.spawn(first.root, "a").handle
    first.post(handle, InboxItem("shop", "order", "Hello?"))
    first.wake(handle)
    assert stay.inside.wait(LIMIT)
    first._durable._beating.close(LIMIT)  # its process is dead: nobody renews the lease

    second.recover()
    again = second.handle(handle.id)
    assert not second.wake(again).ok
    while (result := second.wait_on(again, timeout=0.1)).status == "timeout":
        second.recover()
    assert result.text == "done"
    stay.go.set()
