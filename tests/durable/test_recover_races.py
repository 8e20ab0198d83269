"""Threads of one process recover, answer and ask for the same run at the same moment."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.durable import firm
from tests.durable.conftest import Stage
from tests.durable.mortal import Later
from tests.durable.test_crash_at_every_write import LABELS
from tests.threads.racing import race
from toolnexus import AgentRuntime, Answer, State
from toolnexus.stores import SqliteStore

MOMENTS = (
    "boss.1 running",
    "clerk.1 running: call 0 answered; asks",
    "worker.2 running: result log-a, call 0 plain",
    "worker.2 running: call 0 open",
    "boss.1 suspended: call 1 open child; given back",
    "claim",
    "boss.1 suspended; worker.2 running: call 0 started; answer taken",
    "worker.2 running: result pay-1, call 0 done",
    "boss.1 running; worker.2 suspended",
)
ROUNDS = 3


@pytest.fixture(scope="module")
def crashed(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories as a process has left them that died at some moment."""
    made: dict[str, Path] = {}
    for label in MOMENTS:
        made[label] = tmp_path_factory.mktemp("moment")
        assert stage.live(made[label], dies_at=LABELS.index(label) + 1, when="after")
    return made


def answer_all(rt: AgentRuntime) -> None:
    for one in rt.pending():
        rt.resume(Answer(one.request.id, ok=True))


def look(rt: AgentRuntime) -> None:
    handle = rt.handle(firm.BOSS)
    assert handle is not None
    assert rt.wait_on(handle, LIMIT).status in ("pending", "done")


@pytest.mark.parametrize("label", MOMENTS)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_threads_race_for_a_run(
    stage: Stage,
    whole: dict[str, Any],
    crashed: dict[str, Path],
    tmp_path: Path,
    label: str,
    number: int,
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(crashed[label], directory)
    store = SqliteStore(directory / "runs.db", synchronous="normal", clock=Later(1))
    with firm.runtime(stage.llm.base_url, str(directory), store) as rt:
        works = [rt.recover, lambda: answer_all(rt), lambda: look(rt)] * 3
        given = race(*works)
        assert not [one for one in given if isinstance(one, Exception)]
        handle = rt.handle(firm.BOSS)
        assert handle is not None
        while handle.state is not State.CLOSED:
            answer_all(rt)
            if rt.wait_on(handle, LIMIT).status == "done":
                rt.close(handle)
    assert firm.left(str(directory)) == whole
    firm.again(str(directory))
    store.close()
