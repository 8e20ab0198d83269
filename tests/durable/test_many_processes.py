"""Processes that share a store: every call once, every id once, and nothing from the past."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from tests.conftest import LIMIT
from tests.durable import crowd
from toolnexus import AgentRuntime
from toolnexus.clock import RealClock, Signal
from toolnexus.testing import Reply, ScriptedLlm, text, tool_call
from toolnexus.testing.recorded import RecordedRequest

PROCESSES = 4
REQUESTS = 100


@attrs.frozen
class Place:
    """Where the processes of a test meet."""

    base_url: str
    store: str
    effects: str

    @property
    def arguments(self) -> tuple[str, str, str]:
        return attrs.astuple(self)  # type: ignore[return-value]

    def done(self) -> list[str]:
        path = Path(self.effects)
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def place(llm: ScriptedLlm, tmp_path: Path) -> Place:
    return Place(llm.base_url, f"sqlite:///{tmp_path}/runs.db", f"{tmp_path}/effects")


def pay_the_bill(asked: RecordedRequest) -> Reply:
    if asked.tool_results:
        return text(*asked.tool_results.values())
    return tool_call("pay", {"number": int(asked.prompt)})


def test_four_processes_with_eight_threads_resume_a_hundred_requests(
    llm: ScriptedLlm, place: Place
) -> None:
    llm.answer("m", pay_the_bill)
    with crowd.runtime(*place.arguments) as rt, ExitStack() as stack:
        handles = [rt.spawn(rt.root, "payer").handle for _ in range(REQUESTS)]
        for number, handle in enumerate(handles):
            assert rt.run_turn(handle, str(number)).status == "pending"
        children = [
            stack.enter_context(crowd.process("resume_all", *place.arguments, seed))
            for seed in range(PROCESSES)
        ]
        for child in children:
            child.expect("ready")
        for child in children:
            child.go_on()
        for child in children:
            child.expect("done")
        assert Counter(place.done()) == {f"pay {number}": 1 for number in range(REQUESTS)}
        results = [rt.wait_on(handle, LIMIT).text for handle in handles]
        assert results == [f"paid {number}" for number in range(REQUESTS)]
        assert rt.pending() == ()
        assert len(llm.requests) == 2 * REQUESTS


@pytest.mark.parametrize("parent", ["root", "root/payer.1"])
def test_four_processes_spawn_under_one_parent(place: Place, parent: str) -> None:
    each = 3
    with crowd.runtime(*place.arguments) as rt, ExitStack() as stack:
        if parent != "root":
            assert rt.spawn(rt.root, "payer").handle.id == parent
        arguments = (*place.arguments, parent, each)
        children = [
            stack.enter_context(crowd.process("spawn_many", *arguments))
            for _ in range(PROCESSES)
        ]
        for child in children:
            child.expect("ready")
        for child in children:
            child.go_on()
        ids = [one for child in children for one in child.stdout.readline().split()]
        total = PROCESSES * crowd.THREADS * each
        assert sorted(ids) == sorted(f"{parent}/payer.{n + 1}" for n in range(total))
        assert {one.id for one in rt.list()} - {"root/payer.1"} == set(ids) - {"root/payer.1"}


# -- a process that is stopped for longer than its lease ---------------------------------------

LEASE_MS = 200


def take_over(rt: AgentRuntime) -> None:
    """Wait until the lease of the process that is stopped has run out, and go on."""
    clock, limit = RealClock(), RealClock().monotonic() + LIMIT
    while rt.recover() != ("root/walker.1",):
        assert clock.monotonic() < limit
        clock.wait(Signal(), 0.02)


def test_a_process_that_was_stopped_in_a_tool_writes_nothing_any_more(
    llm: ScriptedLlm, place: Place
) -> None:
    llm.say("m", tool_call("halt", {"name": "late"}), text("done elsewhere"))
    with (
        crowd.runtime(*place.arguments) as rt,
        crowd.process("walk", *place.arguments, LEASE_MS) as child,
    ):
        child.expect("ready")
        child.go_on()
        child.expect("inside")
        os.kill(child.process.pid, signal.SIGSTOP)
        take_over(rt)
        handle = rt.handle("root/walker.1")
        assert rt.wait_on(handle, LIMIT).text == "done elsewhere"
        before = rt.transcript(handle)

        child.go_on()  # what it reads when it wakes up, so that its tool returns at once
        os.kill(child.process.pid, signal.SIGCONT)
        told = child.stdout.readline()
        assert told.startswith("error: ")
        assert "another process" in told or "lease" in told
        assert place.done() == ["late"]
        assert rt.transcript(handle) == before
        (result,) = [one["content"] for one in before if one["role"] == "tool"]
        assert "may or may not have taken effect" in result
        assert len(llm.requests) == 2
        child.go_on()
        child.end()


def test_a_reply_that_comes_to_a_process_too_late_is_thrown_away(
    llm: ScriptedLlm, place: Place
) -> None:
    gate = threading.Event()
    asks = tool_call("step", {"name": "x"})
    llm.say("m", asks.held_by(gate), asks, text("done elsewhere"))
    with (
        crowd.runtime(*place.arguments) as rt,
        crowd.process("walk", *place.arguments, LEASE_MS) as child,
    ):
        child.expect("ready")
        child.go_on()
        llm.wait_asked("m")
        os.kill(child.process.pid, signal.SIGSTOP)
        take_over(rt)
        handle = rt.handle("root/walker.1")
        assert rt.wait_on(handle, LIMIT).text == "done elsewhere"
        before = rt.transcript(handle)

        gate.set()
        os.kill(child.process.pid, signal.SIGCONT)
        assert child.stdout.readline().startswith("error: ")
        assert place.done() == ["x"]
        assert rt.transcript(handle) == before
        child.go_on()
        child.end()


def test_a_tool_that_takes_longer_than_the_lease_keeps_its_run(
    llm: ScriptedLlm, place: Place
) -> None:
    llm.say("m", tool_call("halt", {"name": "slow"}), text("done"))
    clock = RealClock()
    with (
        crowd.runtime(*place.arguments) as rt,
        crowd.process("walk", *place.arguments, LEASE_MS) as child,
    ):
        child.expect("ready")
        child.go_on()
        child.expect("inside")
        for _ in range(30):  # five leases
            assert rt.recover() == ()
            clock.wait(Signal(), LEASE_MS / 1000 / 6)
        child.go_on()
        child.expect("done: done")
        assert place.done() == ["slow"]
        child.go_on()
        child.end()
