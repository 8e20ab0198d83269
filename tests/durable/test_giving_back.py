"""A run that this process cannot go on with is there for whoever can, at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.durable.hooked import HookedStore, claim_only, fails
from tests.durable.staying import Staying
from tests.durable.test_one_process_after_another import PAYER, pay
from tests.runtime.support import within
from toolnexus import AgentDef, AgentRuntime, Answer, ConfigError, StoreError
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]

LONG_MS = 600_000
OTHERS = AgentDef("other", model="o")


@pytest.fixture
def store() -> HookedStore:
    return HookedStore()


@pytest.fixture
def make(make_runtime: Make, store: HookedStore) -> Make:
    def made(*agents: AgentDef, **options: Any) -> AgentRuntime:
        return make_runtime(*agents, store=store, lease_ms=LONG_MS, **options)

    return made


def parked(rt: AgentRuntime) -> Answer:
    """Park a run; return what answers it."""
    result = rt.run_turn(rt.spawn(rt.root, "payer").handle, "Pay.")
    assert result.pending is not None
    return Answer(result.pending.id, ok=True)


def test_a_write_fails_right_after_an_answer(
    make: Make, llm: ScriptedLlm, store: HookedStore
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}), text("done"))
    rt = make(PAYER)
    answer = parked(rt)
    store.before["write"] = fails
    with pytest.raises(StoreError, match="nobody knows"):
        within(rt.resume, answer)
    assert rt.recover() == ("root/payer.1",)
    assert rt.wait_on(rt.handle("root/payer.1"), LIMIT).text == "done"


@pytest.mark.parametrize("is_at_work", [False, True])
def test_an_answer_waits_for_a_process_that_knows_the_agent(
    make: Make, llm: ScriptedLlm, store: HookedStore, is_at_work: bool
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}), text("done"))
    llm.say("o", text("mine").held_by(go := threading.Event()))
    new, old = make(PAYER), make(OTHERS)
    answer = parked(new)
    if is_at_work:  # its leases are renewed
        old.wake(old.spawn(old.root, "other").handle, "go")
        llm.wait_asked("o")
    claim_only(store, answer.id, **answer.to_dict())
    assert old.recover() == ()
    assert new.recover() == ("root/payer.1",)
    assert new.wait_on(new.handle("root/payer.1"), LIMIT).text == "done"
    go.set()


def test_a_run_is_not_kept_for_want_of_a_sibling_s_agent(make: Make, llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}), text("done"))
    new, old = make(PAYER, OTHERS), make(PAYER)
    answer = parked(new)
    assert new.spawn(new.handle("root/payer.1"), "other").ok
    with pytest.raises(ConfigError, match="other"):
        old.resume(answer)
    within(new.resume, answer)
    assert new.wait_on(new.handle("root/payer.1"), LIMIT).text == "done"


def test_who_does_not_know_the_agent_has_recovered_nothing(
    make: Make, llm: ScriptedLlm
) -> None:
    stay = Staying(retry_safe=True)
    llm.say("m", tool_call("stay"), text("done"))
    agent = AgentDef("a", tools=[stay.tool, pay])
    first = make(agent)
    first.wake(first.spawn(first.root, "a").handle, "go")
    assert stay.inside.wait(LIMIT)
    first.close(force=True)
    stay.go.set()
    old, new = make(OTHERS), make(agent, max_recoveries=1)
    for _ in range(3):
        assert old.recover() == ()
    assert new.recover() == ("root/a.1",)
    assert new.wait_on(new.handle("root/a.1"), LIMIT).text == "done"
