"""What the commands do that delete old runs: what they take, what they delete and say."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from tests.runtime.support import Make, Pay
from toolnexus import AgentDef, StoreError
from toolnexus.contrib.pruning import age, prune
from toolnexus.testing import ScriptedLlm, text, tool_call

NOW = timedelta(0)


@pytest.mark.parametrize(
    ("given", "span"),
    [
        ("0s", NOW),
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_an_age_is_a_number_and_a_unit(given: str, span: timedelta) -> None:
    assert age(given) == span


@pytest.mark.parametrize("given", ["", "30", "d", "-1d", "1.5d", "30 d", "30D", "٣d", "1d2h"])
def test_an_age_without_a_unit_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{given!r} is not a number and s, m")):
        age(given)


@pytest.mark.parametrize("given", ["36501d", "999999w"])
def test_an_age_has_a_limit(given: str) -> None:
    with pytest.raises(ValueError, match="longer than a hundred years"):
        age(given)


def test_what_is_old_is_deleted_and_what_waits_is_kept(
    make_runtime: Make, llm: ScriptedLlm, tmp_path: Path
) -> None:
    llm.say("m", text("done"), text("done"), tool_call("pay"))
    rt = make_runtime(AgentDef("a", tools=[Pay()]), store=f"sqlite:///{tmp_path}/runs.db")
    for status in ("done", "done", "pending"):
        assert rt.run_turn(rt.spawn(rt.root, "a").handle, "go").status == status
    said: list[str] = []
    for older_than in (timedelta(hours=1), NOW, NOW):
        prune(rt, older_than, said.append)
    assert [line.partition(" that ")[0] for line in said] == [
        "0 agents deleted",
        "2 agents deleted",
        "0 agents deleted",
    ]
    assert re.fullmatch(r".* touched since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said[0])
    assert [view.id for view in rt.list()] == ["root/a.3"]


def test_a_store_that_does_not_work_is_told(make_runtime: Make, tmp_path: Path) -> None:
    rt = make_runtime(AgentDef("a"), store=f"sqlite:///{tmp_path}")  # a directory
    with pytest.raises(StoreError):
        prune(rt, NOW, print)
