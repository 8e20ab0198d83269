"""Processes are killed at random times, one after another, and the last comes to the end."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.durable import firm
from tests.durable.conftest import Stage
from tests.postgres import Postgres

KILLS = 3
"""How many processes of a round are killed; after one more the run would be given up."""

MOST_SECONDS = 0.08
"""How long each may live: about as long as it takes for everything."""


def survive(
    stage: Stage, directory: Path, seed: int, conninfo: str | None = None
) -> dict[str, Any]:
    """Kill some processes and let one live; return what is left in the store."""
    chosen = random.Random(seed)
    for kill in range(KILLS):
        seconds = chosen.uniform(0, MOST_SECONDS)
        code = stage.go_on_for(directory, seconds, conninfo=conninfo, later=kill)
        assert code in (0, -signal.SIGKILL)
    stage.go_on(directory, conninfo=conninfo, later=KILLS)
    firm.again(str(directory))  # what was done twice was done with one key
    return firm.left(str(directory), conninfo)


@pytest.mark.parametrize("seed", range(8))
def test_processes_are_killed(
    stage: Stage, whole: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    assert survive(stage, tmp_path, seed) == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_processes_are_killed(
    stage: Stage, whole: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    assert survive(stage, tmp_path, seed) == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300, 350))
def test_many_processes_are_killed_over_postgres(
    stage: Stage,
    whole: dict[str, Any],
    tmp_path: Path,
    seed: int,
    postgres: Postgres,
) -> None:
    conninfo = postgres.schema(f"killed_{seed}")
    assert survive(stage, tmp_path, seed, conninfo) == whole
