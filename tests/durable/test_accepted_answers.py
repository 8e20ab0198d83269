"""An answer that was accepted is carried out, whatever befalls the process that accepted it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.durable import firm
from tests.durable.conftest import Stage
from tests.durable.hooked import HookedStore, fails
from tests.durable.mortal import Later
from tests.durable.test_crash_at_every_write import LABELS
from toolnexus import AlreadyAnswered, Answer, StoreError
from toolnexus.clock import RealClock
from toolnexus.stores import RunStore, SqliteStore

CLAIM = LABELS.index("claim") + 1
GIVEN_BACK = LABELS.index("claim", CLAIM) - 1
AFTER_THE_CLAIM = range(CLAIM, GIVEN_BACK)


def accepted(store: RunStore) -> str:
    """Return the request that the process had the answer to before it died."""
    found = store.requests("default", state="answered", kind="approval")
    (request_id,) = [one.id for one in found]
    return request_id


@pytest.mark.parametrize("number", AFTER_THE_CLAIM)
def test_the_same_answer_goes_on_where_the_process_died(
    stage: Stage, whole: dict[str, Any], tmp_path: Path, number: int
) -> None:
    """Nobody calls `recover`: the answer comes once more, as a webhook's does."""
    assert stage.live(tmp_path, dies_at=number, when="after")
    store = SqliteStore(tmp_path / "runs.db", clock=Later(1))
    request_id = accepted(store)
    with firm.runtime(stage.llm.base_url, str(tmp_path), store) as rt:
        with pytest.raises(AlreadyAnswered):
            rt.resume(Answer(request_id, ok=False))
        rt.resume(Answer(request_id, ok=True))
        assert [name for name, _ in firm.effects_of(str(tmp_path))].count("pay-1") == 1
        (open_one,) = rt.pending()
        assert open_one.request.prompt == "Pay 2?"
        rt.resume(Answer(request_id, ok=True))  # there is nothing left to do
        rt.resume(Answer(open_one.request.id, ok=True))
        handle = rt.handle(firm.BOSS)
        assert rt.wait_on(handle, LIMIT).text == "all done"
        rt.close(handle)
    assert firm.left(str(tmp_path)) == whole
    store.close()


def test_the_same_answer_waits_for_the_lease_of_the_process_that_died(
    stage: Stage, tmp_path: Path
) -> None:
    died = LABELS.index("take root/boss.1", CLAIM) + 1
    assert stage.live(tmp_path, dies_at=died, when="after", lease_ms=700)
    store = SqliteStore(tmp_path / "runs.db")
    clock = RealClock()
    began = clock.monotonic()
    with firm.runtime(stage.llm.base_url, str(tmp_path), store) as rt:
        rt.resume(Answer(accepted(store), ok=True))
        assert clock.monotonic() - began < LIMIT
        assert [name for name, _ in firm.effects_of(str(tmp_path))].count("pay-1") == 1
        assert [one.request.prompt for one in rt.pending()] == ["Pay 2?"]
    store.close()


def test_a_turn_that_parks_before_it_is_given_its_answer_does_not_ask_anew(
    stage: Stage, whole: dict[str, Any], tmp_path: Path
) -> None:
    """As threads may have it; `inline` runs the turn at once, before the letter is read."""
    died = LABELS.index("worker.2 running: result pay-1, call 0 done") + 1
    assert stage.live(tmp_path, dies_at=died, when="after")
    first = SqliteStore(tmp_path / "runs.db", clock=Later(1))
    unsure = HookedStore(first)
    with firm.runtime(stage.llm.base_url, str(tmp_path), unsure) as rt:
        (open_one,) = rt.pending()
        unsure.after["claim"] = fails
        with pytest.raises(StoreError, match="nobody knows"):
            rt.resume(Answer(open_one.request.id, ok=True))
    first.close()
    store = SqliteStore(tmp_path / "runs.db", clock=Later(1))
    with firm.runtime(stage.llm.base_url, str(tmp_path), store, inline=True) as rt:
        assert rt.recover() == (firm.BOSS,)
        handle = rt.handle(firm.BOSS)
        assert handle is not None
        assert rt.wait_on(handle, LIMIT).text == "all done"
        rt.close(handle)
    assert firm.left(str(tmp_path)) == whole
    store.close()


def test_an_answer_to_another_question_takes_the_first_one_along(
    stage: Stage, whole: dict[str, Any], tmp_path: Path
) -> None:
    assert stage.live(tmp_path, dies_at=CLAIM, when="after")
    store = SqliteStore(tmp_path / "runs.db", clock=Later(1))
    with firm.runtime(stage.llm.base_url, str(tmp_path), store) as rt:
        (open_one,) = rt.pending()
        rt.resume(Answer(open_one.request.id, ok=True))
        handle = rt.handle(firm.BOSS)
        assert rt.wait_on(handle, LIMIT).text == "all done"
        rt.close(handle)
    assert firm.left(str(tmp_path)) == whole
    assert firm.again(str(tmp_path)) == []
    store.close()
