"""What a run asks of its store: no more calls than there are things to be kept apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.durable.mortal import MortalStore, label_of
from tests.durable.test_one_process_after_another import PAYER, Make
from toolnexus import AgentDef, Answer
from toolnexus.stores import SqliteStore
from toolnexus.testing import ScriptedLlm, text, tool_call


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, told: list[str]) -> Iterator[Any]:
    inner = SqliteStore(tmp_path / "runs.db")
    yield MortalStore(inner, told=lambda name, args: told.append(label_of(name, args)))
    inner.close()


BEGUN = ["start_run", "take root/payer.1", "payer.1 running"]


def test_a_step_is_written_with_what_follows_it_at_once(
    make_runtime: Make, llm: ScriptedLlm, store: Any, told: list[str]
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}, id="c"), text("done"))
    runtime = make_runtime(PAYER, store=store)
    handle = runtime.spawn(runtime.root, "payer").handle
    assert handle is not None
    parked = runtime.run_turn(handle, "Pay.")
    assert parked.pending is not None
    runtime.resume(Answer(parked.pending.id, ok=True))
    runtime.close(handle)

    assert told == [
        *BEGUN,
        "payer.1 running: user, calls c, call 0 started",
        "payer.1 suspended: call 0 open; asks; given back",
        "claim",
        "take root/payer.1",
        "payer.1 running: call 0 started; answer taken",
        "payer.1 running: result c, call 0 done",
        "payer.1 idle: assistant, call 0 plain; given back",
        "take root/payer.1",
        "payer.1 closed; given back",
    ]


class Looks:
    def after_llm(self, request: object, reply: object) -> None:
        """Take its time."""


def test_a_reply_is_written_before_a_hook_sees_it(
    make_runtime: Make, llm: ScriptedLlm, store: Any, told: list[str]
) -> None:
    llm.say("m", text("done"))
    agent = AgentDef("payer", hooks=Looks())
    runtime = make_runtime(agent, store=store)
    handle = runtime.spawn(runtime.root, "payer").handle
    assert handle is not None
    assert runtime.run_turn(handle, "Go.").text == "done"
    assert told == [*BEGUN, "payer.1 running: user, assistant", "payer.1 idle; given back"]
