"""What is old is deleted, and nothing that anybody waits for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.durable.mortal import Later
from tests.durable.test_one_process_after_another import PAYER
from toolnexus import AgentRuntime, ConfigError, Grant
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


@pytest.mark.parametrize("age", [-1, -DAY, datetime(2026, 1, 1), "30d", None])  # noqa: DTZ001
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
