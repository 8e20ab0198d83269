"""What a process sees of runs that another one is at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from toolnexus import AgentDef, AgentRuntime, tool
from toolnexus.stores import MemoryStore
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]


class Between(MemoryStore):
    """Does something before a handle is loaded, once."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Callable[[], object] | None = None

    def load_handle(self, *args: Any) -> Any:
        first, self.first = self.first, None
        if first is not None:
            first()
        return super().load_handle(*args)


@pytest.mark.parametrize("look", ["wait_on", "last_result", "transcript"])
def test_the_next_turn_begins_in_the_middle_of_a_look(
    make_runtime: Make, llm: ScriptedLlm, look: str
) -> None:
    inside, go = threading.Event(), threading.Event()

    @tool
    def stay() -> str:
        """Stay."""
        inside.set()
        assert go.wait(LIMIT)
        return "stayed"

    llm.say("m", text("first"), tool_call("stay", content="let me think"), text("second"))
    store, agent = Between(), AgentDef("a", tools=[stay])
    one, two = (make_runtime(agent, store=store) for _ in range(2))
    handle = one.spawn(one.root, "a").handle
    assert one.run_turn(handle, "go").text == "first"

    def next_turn() -> None:
        assert one.wake(handle, "the next prompt").ok
        assert inside.wait(LIMIT)

    if look == "wait_on":
        seen = two.handle(handle.id)
        store.first = next_turn
        result = two.wait_on(seen, 0.5)
    else:
        store.first = next_turn
        seen = two.handle(handle.id)
        result = seen.last_result
    told = two.transcript(seen)
    go.set()
    assert inside.is_set()
    assert [one["content"] for one in told] == ["go", "first"]
    assert (result.status, result.text) == ("done", "first") or result.status == "timeout"
    llm.wait_asked("m", 3)
