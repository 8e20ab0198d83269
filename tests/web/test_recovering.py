"""What the commands do that recover runs: what they wait for, and what they say."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, within
from toolnexus import AgentDef, StoreError
from toolnexus.contrib.recovering import SHOWN, _FewFailures, recover
from toolnexus.stores import MemoryStore
from toolnexus.stores.records import RunChange
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, VirtualClock, text


class Enough(Exception):
    """Ends what would go on for ever."""


def test_a_runtime_in_memory_has_nothing_to_recover(make_runtime: Make) -> None:
    said: list[str] = []
    recover(make_runtime(AgentDef("a")), None, said.append)
    assert said == ["nothing to recover in memory"]


def test_a_store_that_does_not_work_is_told_once(make_runtime: Make, tmp_path: Path) -> None:
    rt = make_runtime(AgentDef("a"), store=f"sqlite:///{tmp_path}")  # a directory
    with pytest.raises(StoreError):
        recover(rt, None, print)


def test_a_store_that_does_not_work_is_asked_again(make_runtime: Make, tmp_path: Path) -> None:
    rt = make_runtime(AgentDef("a"), store=f"sqlite:///{tmp_path}")
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            raise Enough

    with pytest.raises(Enough):
        recover(rt, 0.01, say)
    assert all(line.startswith("the store cannot be asked: ") for line in said)


# -- until what was taken over is at rest ------------------------------------------------------


class Left:
    """A run whose process has left a child of it in the middle of a turn.

    Attributes:
        rt: Goes on with it.
        child: The child's id.
        gate: Holds the model's reply then.
        said: What the command has said, each with whether the child was at work.
    """

    def __init__(self, llm: ScriptedLlm, make_runtime: Make, *, is_woken: bool) -> None:
        self.llm, self.gate = llm, threading.Event()
        self.said: list[tuple[str, bool]] = []
        store = MemoryStore()
        first = make_runtime(AgentDef("a"), AgentDef("b", model="b"), store=store)
        top = first.spawn(first.root, "a").handle
        if is_woken:
            llm.say("m", text("done"))
            assert first.run_turn(top, "go").status == "done"
        llm.say("b", text("lost").held_by(threading.Event()), text("ok").held_by(self.gate))
        self.child = first.spawn(top, "b").handle.id
        first.wake(first.handle(self.child), "go")
        llm.wait_asked("b")
        first.close(force=True)
        self.rt = make_runtime(AgentDef("a"), AgentDef("b", model="b"), store=store)

    def say(self, line: str) -> None:
        view = self.rt.inspect(self.child)
        assert view is not None
        self.said.append((line, view.is_busy))


@pytest.mark.parametrize(("is_woken", "comes_to"), [(False, "idle"), (True, "done")])
def test_the_command_waits_for_every_agent_of_a_run_and_for_no_other(
    make_runtime: Make, llm: ScriptedLlm, is_woken: bool, comes_to: str
) -> None:
    left = Left(llm, make_runtime, is_woken=is_woken)
    command = threading.Thread(target=recover, args=(left.rt, None, left.say), daemon=True)
    command.start()
    llm.wait_asked("b", 2)
    assert left.said == []
    left.gate.set()
    command.join(LIMIT)
    assert left.said == [(f"root/a.1: {comes_to}", False)]


def test_the_command_waits_no_longer_than_its_limit(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    left = Left(llm, make_runtime, is_woken=False)
    within(recover, left.rt, None, left.say, 0.05)
    assert left.said == [("root/a.1: still at work", True)]
    left.gate.set()


class Unsure(MemoryStore):
    """A store that fails once, in the write of a turn's end."""

    fails = False

    def write(self, runtime: str, changes: Sequence[RunChange]) -> tuple[str, ...]:
        if self.fails and any(one.state == "idle" for c in changes for one in c.handles):
            self.fails = False
            raise StoreError("out of order")
        return super().write(runtime, changes)


def test_what_is_lost_in_between_is_taken_over_again(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    store, said = Unsure(), []
    llm.say("m", text("lost").held_by(threading.Event()), text("ok"), text("ok"))
    first = make_runtime(AgentDef("a"), store=store)
    first.wake(first.spawn(first.root, "a").handle, "go")
    llm.wait_asked("m")
    first.close(force=True)
    store.fails = True
    within(recover, make_runtime(AgentDef("a"), store=store), None, said.append)
    assert said == ["root/a.1: done"]
    assert not store.fails


# -- what another process has ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "whose"), [(1, "1 run has a lease"), (2, "2 runs have leases")]
)
def test_where_leases_last_it_is_said_until_when(
    make_runtime: Make, llm: ScriptedLlm, count: int, whose: str
) -> None:
    store = MemoryStore()
    gate = threading.Event()
    llm.answer("m", lambda request: text("ok").held_by(gate))
    first = make_runtime(AgentDef("a"), store=store)
    for _ in range(count):
        first.wake(first.spawn(first.root, "a").handle, "go")
    llm.wait_asked("m", count)
    said: list[str] = []
    recover(make_runtime(AgentDef("a"), store=store), None, said.append)
    gate.set()
    (line,) = said
    start, _, rest = line.partition(" until ")
    assert start == f"nothing taken over: {whose} of another process, the last one"
    form = "%Y-%m-%d %H:%M:%S UTC unless it is renewed"
    until = datetime.strptime(rest, form).replace(tzinfo=timezone.utc)
    left = until - datetime.now(timezone.utc)
    assert 15 < left.total_seconds() <= 30


def test_ones_own_leases_and_runs_at_rest_are_not_meant(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    gate = threading.Event()
    llm.say("m", text("ok"), text("ok").held_by(gate))
    rt = make_runtime(AgentDef("a"), store=MemoryStore())
    rt.run_turn(rt.spawn(rt.root, "a").handle, "go")
    rt.wake(rt.spawn(rt.root, "a").handle, "go")
    llm.wait_asked("m", 2)
    said: list[str] = []
    recover(rt, None, said.append)
    gate.set()
    (line,) = said
    assert line.startswith("nothing to recover in ")


# -- very many runs ----------------------------------------------------------------------------


MANY = SHOWN + 5


class Counted(MemoryStore):
    """A store that is asked for what was left no more than so many times."""

    looks = 3

    def abandoned(self, runtime: str) -> tuple[str, ...]:
        self.looks -= 1
        if self.looks < 0:
            raise Enough
        return super().abandoned(runtime)


@pytest.fixture
def many(make_runtime: Make, llm: ScriptedLlm) -> Counted:
    """Return a store in which many runs of agent `a` were left in the middle of a turn."""
    store, is_over = Counted(), threading.Event()

    def answer(_: RecordedRequest) -> Reply:
        return text("ok") if is_over.is_set() else text("lost").held_by(threading.Event())

    llm.answer("m", answer)
    first = make_runtime(AgentDef("a"), store=store)
    for _ in range(MANY):
        assert first.wake(first.spawn(first.root, "a").handle, "go").ok
    llm.wait_asked("m")
    first.close(force=True)
    is_over.set()
    return store


def test_of_many_runs_the_last_are_counted(many: Counted, make_runtime: Make) -> None:
    many.looks = 1_000
    said: list[str] = []
    within(recover, make_runtime(AgentDef("a"), store=many), None, said.append)
    assert len(said) == SHOWN + 1
    assert {line.partition(": ")[2] for line in said[:SHOWN]} == {"done"}
    assert said[SHOWN] == "and 5 more: 5 done"


def test_of_many_runs_that_cannot_be_recovered_the_log_tells_of_few_and_once(
    many: Counted, make_runtime: Make, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    rt = make_runtime(AgentDef("b"), store=many)  # nobody here knows `a`
    with pytest.raises(Enough):
        recover(rt, 0.01, said.append)
    assert len(caplog.records) == SHOWN
    assert len({record.getMessage() for record in caplog.records}) == SHOWN
    assert said == [f"{MANY} runs could not be recovered; the log tells of {SHOWN}"]
    assert logging.getLogger("toolnexus.runtime.recovering").filters == []


def test_a_run_that_still_cannot_be_recovered_is_told_again_after_an_hour() -> None:
    clock = VirtualClock()
    failures = _FewFailures(print, clock)
    seen = []
    for _ in range(3):
        record = logging.LogRecord("x", 40, "x", 1, "%s cannot be", ("root/a.1",), None)
        seen += [bool(failures.filter(record)), bool(failures.filter(record))]
        failures.sum_up()
        clock.advance(1_800)
    assert seen == [True, False, False, False, False, False]
    failures.sum_up()
    assert failures.filter(record)
