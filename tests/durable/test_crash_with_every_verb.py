"""A process that uses every verb dies somewhere: what is left holds together, and can go on.

What is seen to is in `desk.check`: nothing is left under way, a handle is suspended where one
asks and nowhere else, every call has one result, every agent takes another turn and can be
closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durable import desk
from tests.durable.mortal import DIED
from tests.durable.zygote import Zygote, zygote
from toolnexus.testing import ScriptedLlm

DESK = "tests.durable.desk"
CALLS = 104
"""How many changing calls there are; some more or less, for threads write together or apart."""


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[ScriptedLlm, Zygote]]:
    with ScriptedLlm() as llm, zygote() as made:
        desk.play(llm)
        yield llm, made
        llm.assert_done()


def die_and_check(
    started: tuple[ScriptedLlm, Zygote], directory: Path, number: int, when: str
) -> None:
    llm, made = started
    where = {"base_url": llm.base_url, "directory": str(directory)}
    ended = made.run(DESK, "live", **where, dies_at=number, when=when)
    assert ended.code in (0, DIED), ended.told
    last = (directory / "calls").read_text().splitlines()[-1]
    assert made.call(DESK, "check", **where) == [], f"it died {when} {last!r}"


@pytest.mark.parametrize("number", range(2, CALLS, 5))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_dies(
    started: tuple[ScriptedLlm, Zygote], tmp_path: Path, number: int, when: str
) -> None:
    die_and_check(started, tmp_path, number, when)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, CALLS + 1))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_dies_at_each_write(
    started: tuple[ScriptedLlm, Zygote], tmp_path: Path, number: int, when: str
) -> None:
    die_and_check(started, tmp_path, number, when)
