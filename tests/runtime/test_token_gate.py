"""A token budget is looked at again once a request has its place: late ones are not sent."""

from __future__ import annotations

import threading

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, start
from toolnexus import AgentDef, Budget
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, call, text, tool_calls

CALL = 40
"""Tokens that a scripted reply costs."""


@pytest.mark.parametrize(("places", "children"), [(1, 20), (2, 50), (4, 50)])
def test_children_that_wait_for_a_place_do_not_overspend(
    llm: ScriptedLlm, make_runtime: Make, places: int, children: int
) -> None:
    """Beyond the limit go at most the calls that were on the wire when it was reached."""
    tasks = [call("task", {"agent": "c", "prompt": str(number)}) for number in range(children)]
    llm.say("p", tool_calls(*tasks), text("end"))
    llm.answer("c", lambda request: text("child"))
    rt = make_runtime(
        AgentDef(
            "p",
            model="p",
            team=["c"],
            budget=Budget(max_tokens=2 * CALL, max_concurrent=children),
        ),
        AgentDef("c", model="c"),
        max_concurrent_turns=places,
        max_workers=children,
    )
    parent, result = start(rt, "p")
    used = parent.usage_tree
    assert used == CALL * len(llm.requests)
    assert 2 * CALL <= used <= 2 * CALL + places * CALL
    assert (result.status, result.limit) == ("incomplete", "tokens")
    assert rt.pending() == ()


def test_a_call_that_waits_while_the_tokens_are_spent_is_not_sent(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    holding, second_waits = threading.Event(), threading.Event()

    class Watch:
        """Tells when both children are about to ask."""

        seen = 0

        def before_llm(self, request: object) -> None:
            with lock:
                self.seen += 1
                if self.seen == 2:
                    second_waits.set()

    def child(request: RecordedRequest) -> Reply:
        return text("child").held_by(holding)

    lock = threading.Lock()
    tasks = [call("task", {"agent": "c", "prompt": str(number)}) for number in range(2)]
    llm.say("p", tool_calls(*tasks))
    llm.answer("c", child)
    rt = make_runtime(
        AgentDef("p", model="p", team=["c"], budget=Budget(max_tokens=2 * CALL)),
        AgentDef("c", model="c", hooks=Watch()),
        max_concurrent_turns=1,
    )
    parent = rt.spawn(rt.root, "p").handle
    future = rt.future_result(parent)
    rt.wake(parent, "go")
    llm.wait_asked("c")
    assert second_waits.wait(LIMIT)
    holding.set()
    result = future.result(LIMIT)
    assert (result.status, result.limit) == ("incomplete", "tokens")
    assert len(llm.requests_of("c")) == 1
    assert parent.usage_tree == 2 * CALL


def test_a_place_that_a_refused_call_had_goes_to_the_next(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    tasks = [call("task", {"agent": "c", "prompt": str(number)}) for number in range(10)]
    llm.say("p", tool_calls(*tasks))
    llm.answer("c", lambda request: text("child"))
    llm.answer("free", lambda request: text("fine"))
    rt = make_runtime(
        AgentDef("p", model="p", team=["c"], budget=Budget(max_tokens=2 * CALL)),
        AgentDef("c", model="c"),
        AgentDef("free", model="free"),
        max_concurrent_turns=1,
    )
    assert start(rt, "p")[1].status == "incomplete"
    assert start(rt, "free")[1].text == "fine"
