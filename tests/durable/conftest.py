"""What tests of crashes share: the models of `firm`, and processes that are quick to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.durable import firm
from tests.durable.mortal import DIED
from tests.durable.zygote import Zygote, zygote
from toolnexus.testing import ScriptedLlm

FIRM = "tests.durable.firm"


@attrs.frozen
class Stage:
    """Where the firm is played."""

    llm: ScriptedLlm
    zygote: Zygote

    def live(self, directory: Path, **more: Any) -> bool:
        """Do everything in a process; say whether it died."""
        ended = self.zygote.run(FIRM, "live", **self._where(directory), **more)
        assert ended.code in (0, DIED), ended.told
        return ended.code == DIED

    def go_on(self, directory: Path, **more: Any) -> list[str]:
        """Do what is left in another process; return what its host has had to do."""
        deeds: list[str] = self.zygote.call(FIRM, "go_on", **self._where(directory), **more)
        return deeds

    def go_on_for(self, directory: Path, seconds: float, **more: Any) -> int:
        """Like `go_on`, in a process that is killed after some time; return its exit code."""
        where = self._where(directory)
        ended = self.zygote.run(FIRM, "go_on", killed_after=seconds, **where, **more)
        assert ended.told is None or ended.code == 0, ended.told
        return ended.code

    def asked_twice(self, since: int) -> list[str]:
        """Return the replies that a model has given more than once."""
        asked = [
            f"{one.model}'s reply {firm.replies_in(one) + 1}"
            for one in self.llm.requests[since:]
        ]
        return sorted({one for one in asked if asked.count(one) > 1})

    def _where(self, directory: Path) -> dict[str, str]:
        return {"base_url": self.llm.base_url, "directory": str(directory)}


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    with ScriptedLlm() as llm, zygote() as started:
        firm.play(llm)
        yield Stage(llm, started)


@pytest.fixture(scope="session")
def whole(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run that never dies leaves behind."""
    directory = tmp_path_factory.mktemp("whole")
    assert not stage.live(directory)
    return firm.left(str(directory))
