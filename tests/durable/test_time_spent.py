"""The time that a turn has taken counts, whoever goes on with it."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import LIMIT
from tests.durable.staying import Staying
from toolnexus import AgentDef, AgentRuntime, Budget, tool
from toolnexus.stores import MemoryStore
from toolnexus.testing import ScriptedLlm, VirtualClock, tool_call

Make = Callable[..., AgentRuntime]


def test_a_turn_that_is_recovered_has_no_more_time_than_before(
    make_runtime: Make, llm: ScriptedLlm
) -> None:
    clock, store = VirtualClock(), MemoryStore()
    stay = Staying(retry_safe=True)

    @tool
    def work() -> str:
        """Take two seconds."""
        clock.advance(2)
        return "worked"

    llm.say("m", tool_call("work"), tool_call("stay"))
    agent = AgentDef("a", tools=[work, stay.tool], budget=Budget(max_wall_ms=2_500))
    first = make_runtime(agent, store=store, clock=clock)
    first.wake(first.spawn(first.root, "a").handle, "go")
    assert stay.inside.wait(LIMIT)
    first.close(force=True)
    stay.go.set()

    llm.say("m", tool_call("work"))
    rt = make_runtime(agent, store=store, clock=clock)
    assert rt.recover() == ("root/a.1",)
    result = rt.wait_on(rt.handle("root/a.1"), LIMIT)
    assert (result.status, result.limit) == ("incomplete", "wallMs")
    llm.assert_done()
