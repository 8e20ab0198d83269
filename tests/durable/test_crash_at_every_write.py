"""A process dies before, and after, each of its writes; what another one makes of it is listed.

Wherever it dies: the final text, the transcripts, the ids, the usage and the audit are those of
a run that never died, and what has taken effect has done so under one key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.durable import firm
from tests.durable.conftest import Stage
from tests.postgres import Postgres

POINTS = """
= spawn, wake, Pay 1?, Pay 2?, close
start_run
= wake, Pay 1?, Pay 2?, close
take root/boss.1
boss.1 running
= recover, Pay 1?, Pay 2?, close
boss.1 running: user, calls confirming                                  ! boss's reply 1
boss.1 running: call 0 ready child; clerk.1 idle
clerk.1 running
boss.1 running; clerk.1 running: user, calls confirm-1, call 0 started  ! clerk's reply 1
clerk.1 suspended: call 0 open
clerk.1 running: call 0 answered; asks                                  ! decide
clerk.1 running: call 0 started
clerk.1 running: result confirm-1, call 0 done                          ! confirm
boss.1 running; clerk.1 idle: assistant, call 0 plain                   ! clerk's reply 2
boss.1 running; clerk.1 closed
boss.1 running: result confirming, call 0 done child
boss.1 running: calls log-x+paying, call 0 plain                        ! boss's reply 2
boss.1 running: call 0 started, call 1 ready
boss.1 running: call 1 ready child; worker.2 idle
worker.2 running
boss.1 running; worker.2 running: user, calls log-a+log-b               ! worker's reply 1
boss.1 running; worker.2 running: call 0 started
boss.1 running; worker.2 running: call 1 started
boss.1 running: result log-x, call 0 plain                              ! log-x
worker.2 running: result log-a, call 0 plain                            ! log-a
worker.2 running: result log-b, call 1 plain                            ! log-b
boss.1 running; worker.2 running: calls pay-1+pay-2                     ! worker's reply 2
boss.1 running; worker.2 running: call 0 started
boss.1 running; worker.2 running: call 1 started
worker.2 running: call 0 open
worker.2 suspended: call 1 open; asks; asks
boss.1 suspended: call 1 open child; given back
= Pay 1?, Pay 2?, close
claim
= recover, Pay 2?, close
take root/boss.1
boss.1 suspended; worker.2 running: call 0 started; answer taken
worker.2 running: result pay-1, call 0 done                             ! pay-1
boss.1 running; worker.2 suspended
boss.1 suspended: call 1 open child; given back
= Pay 2?, close
claim
= recover, close
take root/boss.1
boss.1 suspended; worker.2 running: call 1 started; answer taken
worker.2 running: result pay-2, call 1 done                             ! pay-2
boss.1 suspended; worker.2 running: assistant, call 0 plain, call 1 plain ! worker's reply 3
boss.1 running; worker.2 idle
boss.1 running: call 1 ready child
boss.1 running; worker.2 closed
boss.1 running: result paying, call 1 done child
boss.1 running: assistant, call 1 plain                                 ! boss's reply 3
boss.1 idle; given back
= close
take root/boss.1
boss.1 closed; given back
= nothing
abandon
"""
"""Every changing call of a run that does not die, in order.

Behind `=`: what is left to be done, by who goes on, where the process dies between the call
above and the one below. Behind `!`: what is done a second time, with the same key, where it
dies just before that call; after it nothing is. A model is asked again only where its reply was
not written.
"""


@attrs.frozen
class Point:
    """A moment of death.

    Attributes:
        number: Of the changing call.
        when: `before` or `after` that.
        left: What others have to do then.
        twice: What is done twice then.
    """

    number: int
    when: str
    left: list[str]
    twice: list[str]

    def __str__(self) -> str:
        return f"{self.when}-{self.number}"


def read_table() -> tuple[list[str], list[Point]]:
    """Return the labels, and two points for each."""
    labels: list[str] = []
    points: list[Point] = []
    left: list[str] = []
    for line in POINTS.strip().splitlines():
        if line.startswith("="):
            left = parts(line[1:], "nothing")
            if points:
                points[-1] = attrs.evolve(points[-1], left=left)
            continue
        label, _, twice = line.partition("!")
        labels.append(label.strip())
        points.append(Point(len(labels), "before", left, parts(twice, "")))
        points.append(Point(len(labels), "after", left, []))
    return labels, points


def parts(text: str, nothing: str) -> list[str]:
    text = text.strip()
    return [] if text == nothing else text.split(", ")


LABELS, TABLE = read_table()


def test_every_write_is_listed(stage: Stage, tmp_path: Path) -> None:
    assert not stage.live(tmp_path)
    assert firm.calls_of(str(tmp_path)) == LABELS
    assert firm.again(str(tmp_path)) == []
    left = firm.left(str(tmp_path))
    assert [one["state"] for one in left["handles"].values()] == ["closed"] * 3
    assert left["effects"] == [
        *("confirm", "decide", "log-a", "log-b", "log-x", "pay-1", "pay-2"),
    ]


def die_and_go_on(
    stage: Stage, directory: Path, point: Point, conninfo: str | None = None
) -> dict[str, Any]:
    """Let a process die at a point and another one go on; return what is left in the store."""
    seen = len(stage.llm.requests)
    dies = {"dies_at": point.number, "when": point.when}
    assert stage.live(directory, conninfo=conninfo, **dies)
    assert firm.calls_of(str(directory)) == LABELS[: point.number]
    assert stage.go_on(directory, conninfo=conninfo) == point.left
    assert [*firm.again(str(directory)), *stage.asked_twice(seen)] == point.twice
    return firm.left(str(directory), conninfo)


@pytest.mark.parametrize("point", TABLE, ids=str)
def test_a_process_dies(
    stage: Stage, whole: dict[str, Any], tmp_path: Path, point: Point
) -> None:
    assert die_and_go_on(stage, tmp_path, point) == whole


@pytest.mark.parametrize("point", TABLE[5::12], ids=str)
def test_a_process_dies_over_postgres(
    stage: Stage, whole: dict[str, Any], tmp_path: Path, point: Point, postgres: Postgres
) -> None:
    conninfo = postgres.schema(f"point_{point.number}_{point.when}")
    assert die_and_go_on(stage, tmp_path, point, conninfo) == whole


@pytest.mark.slow
@pytest.mark.parametrize("point", TABLE, ids=str)
def test_a_process_dies_over_postgres_at_each_write(
    stage: Stage, whole: dict[str, Any], tmp_path: Path, point: Point, postgres: Postgres
) -> None:
    conninfo = postgres.schema(f"each_{point.number}_{point.when}")
    assert die_and_go_on(stage, tmp_path, point, conninfo) == whole
