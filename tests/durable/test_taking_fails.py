"""A run is being taken, and something fails in the middle of that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.durable.hooked import HookedStore, fails
from tests.runtime.streams import until
from tests.runtime.support import within
from toolnexus import AgentDef, AgentRuntime, Budget, StoreError
from toolnexus.clock import RealClock
from toolnexus.stores import MemoryStore
from toolnexus.testing import ScriptedLlm, call, text, tool_calls

Make = Callable[..., AgentRuntime]

LONG_MS = 600_000


class Faulty(RealClock):
    """A clock that fails once, on one thread."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._left = 0

    def fail_at(self, count: int) -> None:
        self._thread, self._left = threading.get_ident(), count

    def has_failed(self) -> bool:
        was_due, self._thread = self._left > 0, None
        return not was_due

    def monotonic(self) -> float:
        if threading.get_ident() == self._thread and self._left > 0:
            self._left -= 1
            if self._left == 0:
                raise OSError("no time")
        return super().monotonic()


@pytest.mark.parametrize("count", range(1, 8))
def test_turns_that_cannot_all_go_on_take_up_no_place(
    make_runtime: Make, llm: ScriptedLlm, count: int
) -> None:
    """Neither do they lose anything: they go on when somebody takes the run again."""
    store, clock = MemoryStore(), Faulty()
    worker, other = AgentDef("worker", model="w"), AgentDef("other", model="o")
    boss = AgentDef("boss", team=["worker"])
    options: dict[str, Any] = {"store": store, "budget": Budget(max_concurrent=1)}
    tasks = [call("task", {"agent": "worker", "prompt": name}) for name in ("1", "2")]
    llm.say("m", tool_calls(*tasks), text("done"))
    for _ in range(2):
        llm.say("w", text("lost").held_by(threading.Event()))
    first = make_runtime(boss, worker, other, **options)
    assert first.wake(first.spawn(first.root, "boss").handle, "go").ok
    for number in (1, 2):
        llm.wait_asked("w", number)
    first.close(force=True)

    second = make_runtime(boss, worker, other, clock=clock, **options)
    llm.say("w", text("one"), text("two"))
    llm.say("o", text("mine"))
    clock.fail_at(count)
    second.recover()
    if clock.has_failed():
        handle = second.spawn(second.root, "other").handle
        assert within(second.run_turn, handle, "go").text == "mine"
        second.recover()
    assert second.wait_on(second.handle("root/boss.1"), LIMIT).text == "done"


def test_a_lease_that_was_given_in_a_call_that_failed_is_given_back(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    """Also where the process has no other run, and long before the lease runs out."""
    store = MemoryStore()
    unsure = HookedStore(store)
    llm.say("m", text("done"))
    first = make_runtime(AgentDef("a"), store=unsure, lease_ms=LONG_MS)
    handle = first.spawn(first.root, "a").handle
    unsure.after["take"] = fails
    with pytest.raises(StoreError, match="nobody knows"):
        first.run_turn(handle, "go")
    second = make_runtime(AgentDef("a"), store=store, lease_ms=LONG_MS)
    until(lambda: second.run_turn(second.handle("root/a.1"), "go").text == "done")
    llm.assert_done()
