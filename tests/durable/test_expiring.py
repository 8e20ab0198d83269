"""What expires in a store: one by one, by a timer that neither spins nor dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.durable.test_damaged_records import spoil
from tests.runtime.streams import until
from toolnexus import AgentDef, AgentRuntime, PendingRequest, StoreError, ToolContext, tool
from toolnexus.stores import SqliteStore
from toolnexus.stores.records import Claim, RequestRecord
from toolnexus.testing import Reply, ScriptedLlm, VirtualClock, text, tool_call
from toolnexus.testing.recorded import RecordedRequest

Make = Callable[..., AgentRuntime]

MINUTE = 60.0


@tool
def charge(ctx: ToolContext) -> str:
    """Charge."""
    ctx.ask("approval", "Charge?", expires_in=MINUTE)
    raise AssertionError("nobody has said yes")


CLERK = AgentDef("a", tools=[charge])


def play(asked: RecordedRequest) -> Reply:
    return text("end") if asked.tool_results else tool_call("charge")


class Looked(SqliteStore):
    """A store that counts who looks for what is due, and fails when it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.looks = 0
        self.asked_when = 0
        self.is_down = False
        self.refused: set[str] = set()

    def next_expiry(self, runtime: str) -> Any:
        self._require_up()
        self.asked_when += 1
        return super().next_expiry(runtime)

    def requests(self, runtime: str, **wanted: Any) -> Iterator[RequestRecord]:
        if wanted.get("due") is not None:
            self.looks += 1
            self._require_up()
        return super().requests(runtime, **wanted)

    def claim(self, runtime: str, claims: Sequence[Claim]) -> bool:
        if self.refused & {one.request_id for one in claims}:
            raise StoreError("not this one")
        return super().claim(runtime, claims)

    def _require_up(self) -> None:
        if self.is_down:
            raise StoreError("out of order")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[Looked]:
    made = Looked(path)
    yield made
    made.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def make(make_runtime: Make, llm: ScriptedLlm, store: Looked, clock: VirtualClock) -> Make:
    llm.answer("m", play)
    return lambda **options: make_runtime(CLERK, store=store, clock=clock, **options)


def park(rt: AgentRuntime, count: int) -> list[str]:
    """Park runs; return what they ask."""
    for _ in range(count):
        assert rt.run_turn(rt.spawn(rt.root, "a").handle, "go").status == "pending"
    return [one.request.id for one in rt.pending()]


def test_the_timer_rests_where_a_request_that_is_due_cannot_be_read(
    make: Make, store: Looked, path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    rt = make(expire_requests=True)
    until(lambda: store.asked_when)  # as soon as there is a runtime
    damaged, _ = park(rt, 2)
    first, second = (rt.future_result(rt.handle(f"root/a.{n}")) for n in (1, 2))
    spoil(path, "UPDATE toolnexus_request SET body = '!' || body WHERE name = ?", damaged)
    clock.wait_parked(1)
    clock.advance(MINUTE)
    assert second.result(LIMIT).text == "end"
    clock.wait_parked(1)
    assert store.looks == 1
    clock.advance(0.5)
    clock.wait_parked(1)
    clock.advance(0.5)
    clock.wait_parked(1)
    assert store.looks == 2
    assert not first.done()
    assert caplog.text.count(f"request {damaged} has expired and is left open") == 1

    spoil(path, "UPDATE toolnexus_request SET body = substr(body, 2) WHERE name = ?", damaged)
    clock.advance(1)
    assert first.result(LIMIT).text == "end"


def test_the_timer_outlives_a_store_that_is_down(
    make: Make, store: Looked, clock: VirtualClock
) -> None:
    rt = make(expire_requests=True)
    park(rt, 1)
    future = rt.future_result(rt.handle("root/a.1"))
    clock.wait_parked(1)
    store.is_down = True
    clock.advance(MINUTE)
    clock.wait_parked(1)
    store.is_down = False
    clock.advance(1)
    assert future.result(LIMIT).text == "end"


def test_a_timer_that_could_not_be_set_is_set_later(
    make: Make, store: Looked, clock: VirtualClock
) -> None:
    told: list[PendingRequest] = []
    rt = make(expire_requests=True, on_suspend=told.append)
    store.is_down = True
    (request_id,) = park(rt, 1)
    assert [one.request.id for one in told] == [request_id]
    future = rt.future_result(rt.handle("root/a.1"))
    store.is_down = False
    clock.wait_parked(1)
    clock.advance(1)
    clock.wait_parked(1)
    clock.advance(MINUTE)
    assert future.result(LIMIT).text == "end"


def test_a_timer_waits_for_no_run_that_it_lets_go_on(
    make: Make, llm: ScriptedLlm, clock: VirtualClock
) -> None:
    gate = threading.Event()
    llm.answer("m", lambda one: play(one).held_by(gate) if one.tool_results else play(one))
    llm.answer("quick", play)
    rt = make(expire_requests=True)
    park(rt, 1)
    clock.advance(MINUTE / 2)
    quick = rt.spawn(rt.root, AgentDef("quick", model="quick", tools=[charge])).handle
    rt.run_turn(quick, "go")
    first, second = rt.future_result(rt.handle("root/a.1")), rt.future_result(quick)
    clock.advance(MINUTE / 2)
    llm.wait_asked("m", 2)
    clock.wait_parked(1)
    clock.advance(MINUTE / 2)
    assert second.result(LIMIT).text == "end"
    assert not first.done()
    gate.set()
    assert first.result(LIMIT).text == "end"


def test_one_that_cannot_be_settled_keeps_no_other(
    make: Make, store: Looked, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    rt = make()
    refused, *others = park(rt, 3)
    clock.advance(MINUTE)
    store.refused = {refused}
    assert list(rt.expire_due()) == others
    assert caplog.text.count(f"request {refused} has expired and is left open") == 1
    with pytest.raises(StoreError, match="not this one"):
        rt.expire_due()  # it was the only one
    store.refused = set()
    assert rt.expire_due() == (refused,)
    assert rt.wait_on(rt.handle("root/a.1"), LIMIT).text == "end"


def test_the_timer_knows_of_what_was_open_before(
    make: Make, store: Looked, clock: VirtualClock
) -> None:
    """Also where nobody asks this runtime for anything."""
    first = make()
    park(first, 1)
    first.close()
    rt = make(expire_requests=True)
    clock.wait_parked(1)
    clock.advance(MINUTE)
    until(lambda: rt.pending() == ())
    assert rt.wait_on(rt.handle("root/a.1"), LIMIT).text == "end"
    assert store.looks == 1
