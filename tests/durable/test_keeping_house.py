"""What is old is deleted, and nothing that anybody waits for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.durable.mortal import Later
from tests.durable.test_one_process_after_another import PAYER
from toolnexus import AgentRuntime, ConfigError, Grant, State
from toolnexus.stores import SqliteStore
from toolnexus.testing import ScriptedLlm, VirtualClock, text, tool_call

Make = Callable[..., AgentRuntime]

DAY = timedelta(days=1)
NOW = datetime.now(timezone.utc)


@pytest.mark.parametrize("age", [86_400, 86_400.0, DAY, NOW])
def test_runs_that_nobody_has_touched_for_long_are_deleted(
    make_runtime: Make, llm: ScriptedLlm, tmp_path: Path, age: Any
) -> None:
    llm.say("m", text("done"), tool_call("pay", {"amount": 5}), text("new"))
    path = tmp_path / "runs.db"
    old = make_runtime(PAYER, store=SqliteStore(path, clock=Later(-48)))
    done, parked, fresh = (old.spawn(old.root, "payer").handle for _ in range(3))
    assert old.run_turn(done, "go").text == "done"
    assert old.run_turn(parked, "go").status == "pending"
    rt = make_runtime(PAYER, store=SqliteStore(path))
    assert rt.run_turn(rt.handle(fresh.id), "go").text == "new"

    assert rt.prune(older_than=age) == 1
    assert [one.id for one in rt.list()] == [parked.id, fresh.id]
    assert rt.prune(older_than=age, keep_suspended=False) == 1
    assert rt.pending() == ()
    assert [one.id for one in rt.list()] == [fresh.id]


IMPOSSIBLE = [-1, -DAY, datetime(2026, 1, 1), 1e12, timedelta.max, "30d", None]  # noqa: DTZ001


@pytest.mark.parametrize("age", IMPOSSIBLE)
def test_an_age_that_is_none_deletes_nothing(make_runtime: Make, age: Any) -> None:
    rt = make_runtime(PAYER, store="memory://")
    rt.spawn(rt.root, "payer")
    with pytest.raises(ConfigError, match="older_than"):
        rt.prune(older_than=age)
    assert len(rt.list()) == 1


def test_grants_go_once_they_have_ended_for_long(make_runtime: Make, tmp_path: Path) -> None:
    clock = VirtualClock(NOW)
    store = SqliteStore(tmp_path / "runs.db")
    rt = make_runtime(PAYER, store=store, clock=clock)
    for name, expires_at in (("ended", NOW + DAY), ("lasting", NOW + 9 * DAY), ("ever", None)):
        rt.grant(Grant(name, {}, "root", expires_at))
    clock.advance(2 * 86_400)
    rt.prune(older_than=1.5 * DAY)
    assert len(store.grants("default")) == 3
    rt.prune(older_than=DAY)
    assert [one["tool"] for one in store.grants("default").values()] == ["lasting", "ever"]


@pytest.mark.parametrize("is_parked", [True, False])
def test_a_run_that_was_pruned_is_closed_to_all(
    make_runtime: Make, llm: ScriptedLlm, tmp_path: Path, is_parked: bool
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}) if is_parked else text("done"))
    url = f"sqlite:///{tmp_path}/runs.db"
    one, two = make_runtime(PAYER, store=url), make_runtime(PAYER, store=url)
    first = one.spawn(one.root, "payer").handle
    one.run_turn(first, "go")
    second = two.handle(first.id)
    told = "closed" if is_parked else "done"
    assert one.prune(older_than=0, keep_suspended=False) == 1
    for rt, handle in ((one, first), (two, second)):
        assert rt.wait_on(handle, LIMIT).status == told
        assert handle.state is State.CLOSED
        assert rt.handle(first.id) is None
