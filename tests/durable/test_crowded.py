"""Processes work on one run side by side, and are killed and stopped while they do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.durable import firm
from tests.durable.conftest import Stage
from tests.durable.test_crash_at_every_write import LABELS
from tests.durable.zygote import LIMIT_SECONDS, Zygote, zygote
from tests.postgres import Postgres

PROCESSES = 3
ROUNDS = 4
"""How many processes of each place are killed or stopped, one after another."""

LEASE_MS = 100


@pytest.fixture(scope="module")
def zygotes() -> Iterator[list[Zygote]]:
    with ExitStack() as stack:
        yield [stack.enter_context(zygote()) for _ in range(PROCESSES)]


def crowd(
    stage: Stage,
    zygotes: list[Zygote],
    directory: Path,
    seed: int,
    conninfo: str | None = None,
) -> dict[str, Any]:
    """Let processes finish what one has begun; return what is left in the store."""
    begun = LABELS.index("boss.1 running") + 1
    assert stage.live(directory, conninfo=conninfo, dies_at=begun, when="after", lease_ms=1)
    where = {
        "base_url": stage.llm.base_url,
        "directory": str(directory),
        "conninfo": conninfo,
        "lease_ms": LEASE_MS,
        "work_seconds": 0.03,
    }

    def take_part(place: int) -> None:
        chosen = random.Random(f"{seed} {place}")
        for _ in range(ROUNDS):
            befalls: dict[str, Any] = {"killed_after": chosen.uniform(0, 0.3)}
            if chosen.random() < 0.5:
                befalls["stopped"] = (chosen.uniform(0, 0.1), 3 * LEASE_MS / 1000)
            zygotes[place].run("tests.durable.ailing", "take_part", **where, **befalls)
        zygotes[place].call("tests.durable.ailing", "take_part", **where)

    with ThreadPoolExecutor(PROCESSES) as pool:
        for one in [pool.submit(take_part, place) for place in range(PROCESSES)]:
            one.result(LIMIT_SECONDS)
    firm.again(str(directory))  # what was done twice was done with one key
    return firm.left(str(directory), conninfo)


@pytest.mark.parametrize("seed", range(2))
def test_a_crowd_finishes_a_run(
    stage: Stage, zygotes: list[Zygote], whole: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    assert crowd(stage, zygotes, tmp_path, seed) == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_many_crowds_finish_a_run(
    stage: Stage, zygotes: list[Zygote], whole: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    assert crowd(stage, zygotes, tmp_path, seed) == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150, 200))
def test_many_crowds_finish_a_run_in_postgres(
    stage: Stage,
    zygotes: list[Zygote],
    whole: dict[str, Any],
    tmp_path: Path,
    seed: int,
    postgres: Postgres,
) -> None:
    assert crowd(stage, zygotes, tmp_path, seed, postgres.schema(f"crowd_{seed}")) == whole
