"""What a process sees of runs that another one is at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import LIMIT
from tests.durable.hooked import HookedStore
from tests.durable.staying import Staying
from tests.durable.test_damaged_records import spoil
from toolnexus import AgentDef, AgentRuntime
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]


@pytest.mark.parametrize("look", ["wait_on", "last_result", "transcript"])
def test_the_next_turn_begins_in_the_middle_of_a_look(
    make_runtime: Make, llm: ScriptedLlm, look: str
) -> None:
    stay = Staying()
    llm.say("m", text("first"), tool_call("stay", content="let me think"), text("second"))
    store, agent = HookedStore(), AgentDef("a", tools=[stay.tool])
    one, two = (make_runtime(agent, store=store) for _ in range(2))
    handle = one.spawn(one.root, "a").handle
    assert one.run_turn(handle, "go").text == "first"

    def next_turn() -> None:
        assert one.wake(handle, "the next prompt").ok
        assert stay.inside.wait(LIMIT)

    if look == "wait_on":
        seen = two.handle(handle.id)
        store.before["load_handle"] = next_turn
        result = two.wait_on(seen, 0.5)
    else:
        store.before["load_handle"] = next_turn
        seen = two.handle(handle.id)
        result = seen.last_result
    told = two.transcript(seen)
    stay.go.set()
    assert stay.inside.is_set()
    assert [one["content"] for one in told] == ["go", "first"]
    assert (result.status, result.text) == ("done", "first") or result.status == "timeout"
    llm.wait_asked("m", 3)


def test_a_damaged_handle_hides_no_result_of_others(
    make_runtime: Make, llm: ScriptedLlm, tmp_path: Path
) -> None:
    path = tmp_path / "runs.db"
    for model in ("m", "o"):
        llm.say(model, text(model).held_by(go := threading.Event()))
    agents = AgentDef("a"), AgentDef("b", model="o")
    one, two = (make_runtime(*agents, store=f"sqlite:///{path}") for _ in range(2))
    first, second = (one.spawn(one.root, name).handle for name in ("a", "b"))
    for handle, model in ((first, "m"), (second, "o")):
        assert one.wake(handle, "go").ok
        llm.wait_asked(model)
    waiting = [two.future_result(two.handle(one.id)) for one in (first, second)]
    spoil(path, "UPDATE toolnexus_handle SET head = '!' || head WHERE name = ?", first.id)
    go.set()
    assert waiting[1].result(LIMIT).text == "o"
    assert not waiting[0].done()


def test_each_who_waits_is_told_of_the_next_result(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    llm.say("m", text("first"), text("second"))
    store = HookedStore()
    one, two = (make_runtime(AgentDef("a"), store=store) for _ in range(2))
    handle = one.spawn(one.root, "a").handle
    seen = two.handle(handle.id)
    looks, go = threading.Event(), threading.Event()

    def pause() -> None:
        looks.set()
        assert go.wait(LIMIT)

    before = two.future_result(seen)
    store.before["handle"] = pause  # the look for it
    assert looks.wait(LIMIT)
    assert one.run_turn(handle, "go").text == "first"
    after = two.future_result(seen)
    go.set()
    assert before.result(LIMIT).text == "first"
    again = two.future_result(seen)
    assert one.run_turn(handle, "again").text == "second"
    assert [one.result(LIMIT).text for one in (after, again)] == ["second", "second"]
