"""A store fails once, at each of its changing calls: who is told, and how it goes on here.

In the same process: its runtime drops the run and takes it up again, with the tools of before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.durable import firm
from tests.durable.ailing import AilingStore, persist
from tests.durable.test_crash_at_every_write import LABELS, TABLE, Point
from toolnexus.stores import SqliteStore
from toolnexus.testing import ScriptedLlm

LEASE_MS = 60


def go(
    llm: ScriptedLlm, directory: Path, fails_at: int, when: str
) -> tuple[list[str], dict[str, Any]]:
    """Do everything; return what was told of the failure, and what is left in the store."""
    order = firm.Order()
    kept = SqliteStore(directory / "runs.db", synchronous="normal")
    store = AilingStore(kept, order, fails_at, when)
    rt = firm.runtime(llm.base_url, str(directory), store, order, lease_ms=LEASE_MS)  # type: ignore[arg-type]
    try:
        told = persist(rt)
    finally:
        order.free()
        rt.close(force=True)
    assert store.has_failed
    return told, firm.left(str(directory))


@pytest.mark.parametrize("point", TABLE, ids=str)
def test_a_write_fails(
    llm: ScriptedLlm, tmp_path: Path, whole: dict[str, Any], point: Point
) -> None:
    firm.play(llm)
    told, left = go(llm, tmp_path, point.number, point.when)
    assert left == whole
    firm.again(str(tmp_path))  # what was done twice was done with one key
    what = {"before": "no room", "after": "nobody knows"}[point.when]
    if LABELS[point.number - 1] != "abandon":  # then the lease has to run out
        assert any(what in one for one in told)
