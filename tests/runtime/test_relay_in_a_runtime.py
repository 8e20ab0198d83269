"""Relayed calls of agents: one request each message, answered through the runtime."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Pay, Probe, in_thread, start, within
from toolnexus import (
    AgentDef,
    AlreadyAnswered,
    Answer,
    NothingSuspended,
    PendingRequest,
    Request,
    State,
    TaskResult,
    UnknownRequest,
    relay_tool,
)
from toolnexus.testing import ScriptedLlm, call, status, text, tool_call, tool_calls

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}}
FIND = relay_tool("find", "Find something", SCHEMA)
TWO = tool_calls(call("find", {"q": "1"}, "c1"), call("find", {"q": "2"}, "c2"))


def asked(result: TaskResult) -> Request:
    assert result.status == "pending"
    assert result.pending is not None
    return result.pending


def ids(request: Request) -> list[Any]:
    assert request.data is not None
    calls = request.data["calls"]
    assert isinstance(calls, list)
    return [one["id"] for one in calls]


def answer_to(request: Request, **outputs: str) -> Answer:
    results = [{"id": key, "output": value} for key, value in outputs.items()]
    return Answer(request.id, True, {"results": results})


def test_the_relayed_calls_of_a_message_are_one_pending_request(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", TWO, text("done"))
    rt = make_runtime(AgentDef("a", tools=[FIND]))
    handle, parked = start(rt, "a")
    request = asked(parked)

    (pending,) = rt.pending()
    assert isinstance(pending, PendingRequest)
    assert pending.request == request == handle.pending_request
    assert (pending.tool, pending.call_id, pending.arguments) == ("find", "c1", {"q": "1"})
    assert pending.path == ("root", "a.1")
    assert request.kind == "tool_call"
    assert request.data == {
        "path": ["root", "a.1"],
        "calls": [
            {"id": "c1", "name": "find", "input": {"q": "1"}, "arguments": '{"q":"1"}'},
            {"id": "c2", "name": "find", "input": {"q": "2"}, "arguments": '{"q":"2"}'},
        ],
    }

    within(rt.resume, answer_to(request, c2="two", c1="one"))
    assert (handle.state, rt.pending()) == (State.IDLE, ())
    assert rt.wait_on(handle, LIMIT).text == "done"
    assert llm.requests[1].tool_results == {"c1": "one", "c2": "two"}
    assert len(llm.requests) == 2


@pytest.mark.parametrize("relay_first", [True, False])
def test_other_questions_of_the_message_are_requests_of_their_own(
    llm: ScriptedLlm, make_runtime: Make, relay_first: bool
) -> None:
    calls = (
        call("find", {"q": "1"}, "c1"),
        call("pay", {"amount": 2}, "c2"),
        call("look", {}, "c3"),
        call("find", {"q": "4"}, "c4"),
    )
    llm.say("m", tool_calls(*calls), text("done"))
    pay, look = Pay(), Probe("look")
    rt = make_runtime(AgentDef("a", tools=[FIND, pay, look]))
    handle, parked = start(rt, "a")
    relayed, payment = (one.request for one in rt.pending())
    assert asked(parked) == relayed
    assert ids(relayed) == ["c1", "c4"]

    answers = [answer_to(relayed, c1="one", c4="four"), Answer(payment.id, True)]
    first, second = answers if relay_first else reversed(answers)
    within(rt.resume, first)
    assert handle.state is State.SUSPENDED
    (left,) = rt.pending()
    assert left.request.id == second.id
    within(rt.resume, second)

    assert rt.wait_on(handle, LIMIT).text == "done"
    assert llm.requests[1].tool_results == {
        "c1": "one",
        "c2": "paid 2",
        "c3": "look done",
        "c4": "four",
    }
    assert (len(look.runs), pay.paid) == (1, [(2, payment.id)])


def test_a_delegated_agents_relayed_calls_surface_with_its_path(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("boss", tool_call("task", {"agent": "a", "prompt": "find"}), text("all done"))
    llm.say("a", TWO, text("found"))
    rt = make_runtime(
        AgentDef("boss", model="boss", team=["a"]), AgentDef("a", model="a", tools=[FIND])
    )
    boss, parked = start(rt, "boss")
    request = asked(parked)
    assert request.data is not None
    assert request.data["path"] == ["root", "boss.1", "a.1"]
    assert parked.pending_path == ("root", "boss.1", "a.1")
    assert ids(request) == ["c1", "c2"]
    assert [one.request for one in rt.pending()] == [request]

    within(rt.resume, answer_to(request, c1="one", c2="two"))
    assert rt.wait_on(boss, LIMIT).text == "all done"
    assert llm.requests_of("a")[1].tool_results == {"c1": "one", "c2": "two"}
    assert list(llm.requests_of("boss")[1].tool_results.values()) == ["found"]


def test_two_agents_that_relay_have_two_requests(llm: ScriptedLlm, make_runtime: Make) -> None:
    tasks = [call("task", {"agent": "a", "prompt": prompt}) for prompt in ("x", "y")]
    llm.say("boss", tool_calls(*tasks), text("all done"))
    llm.answer("a", lambda r: text("found") if r.tool_results else TWO)
    rt = make_runtime(
        AgentDef("boss", model="boss", team=["a"]), AgentDef("a", model="a", tools=[FIND])
    )
    boss, _ = start(rt, "boss")
    pending = rt.pending()
    assert {one.path[-1] for one in pending} == {"a.1", "a.2"}
    for one in pending:
        within(rt.resume, answer_to(one.request, c1="one", c2="two"))
    assert rt.wait_on(boss, LIMIT).text == "all done"
    told = [r.tool_results for r in llm.requests_of("a") if r.tool_results]
    assert told == [{"c1": "one", "c2": "two"}] * 2


def test_an_interrupt_withdraws_the_request_for_all_of_its_calls(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", TWO, text("hello"))
    rt = make_runtime(AgentDef("a", tools=[FIND]))
    handle, parked = start(rt, "a")
    request = asked(parked)
    rt.interrupt(handle)

    assert (handle.state, rt.pending()) == (State.IDLE, ())
    with pytest.raises(NothingSuspended):
        within(rt.resume, answer_to(request, c1="one", c2="two"))
    assert within(rt.run_turn, handle, "hi").text == "hello"
    for told in llm.requests[1].tool_results.values():
        assert told.startswith("not executed: interrupted")


def test_the_same_answer_again_changes_nothing_and_another_is_refused(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", TWO, text("done"))
    rt = make_runtime(AgentDef("a", tools=[FIND]))
    handle, parked = start(rt, "a")
    request = asked(parked)
    answer = answer_to(request, c1="one", c2="two")
    within(rt.resume, answer)
    within(rt.resume, answer)
    with pytest.raises(AlreadyAnswered):
        within(rt.resume, answer_to(request, c1="one", c2="forged"))
    assert rt.wait_on(handle, LIMIT).text == "done"
    assert len(llm.requests) == 2


def test_a_wrong_id_leaves_the_request_open(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", TWO, text("done"))
    rt = make_runtime(AgentDef("a", tools=[FIND]))
    _, parked = start(rt, "a")
    with pytest.raises(UnknownRequest):
        within(rt.resume, Answer("made-up", True, {"output": "x"}))
    assert [one.request for one in rt.pending()] == [asked(parked)]


def test_a_no_declines_each_relayed_call(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", TWO, text("a pity"))
    rt = make_runtime(AgentDef("a", tools=[FIND]))
    handle, parked = start(rt, "a")
    within(rt.resume, Answer(asked(parked).id, False, reason="no host"))
    assert rt.wait_on(handle, LIMIT).text == "a pity"
    assert llm.requests[1].tool_results == dict.fromkeys(
        ["c1", "c2"], "relay declined for find: no host"
    )


def test_the_nearest_interpreter_is_asked_once_for_all_of_them(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    seen: list[Request] = []

    def wait_for(request: Request) -> Answer:
        seen.append(request)
        return answer_to(request, c1="one", c2="two")

    llm.say("m", TWO, text("done"))
    rt = make_runtime(AgentDef("a", tools=[FIND], wait_for=wait_for))
    handle, result = start(rt, "a")
    assert (result.status, result.text, handle.state) == ("done", "done", State.IDLE)
    assert [ids(request) for request in seen] == [["c1", "c2"]]
    assert llm.requests[1].tool_results == {"c1": "one", "c2": "two"}


def test_a_provider_that_is_down_after_the_answer_does_not_ask_the_host_again(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", TWO, status(500), text("done"))
    rt = make_runtime(AgentDef("a", tools=[FIND]))
    handle, parked = start(rt, "a")
    answer = answer_to(asked(parked), c1="one", c2="two")
    within(rt.resume, answer)
    assert rt.wait_on(handle, LIMIT).status == "error"
    within(rt.resume, answer)

    assert rt.wait_on(handle, LIMIT).text == "done"
    assert rt.pending() == ()
    assert llm.requests[2].body == llm.requests[1].body
    assert llm.requests[2].tool_results == {"c1": "one", "c2": "two"}


def test_the_next_messages_calls_are_a_new_request(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", TWO, tool_call("find", {"q": "3"}, "c3"), text("done"))
    rt = make_runtime(AgentDef("a", tools=[FIND]))
    handle, parked = start(rt, "a")
    first = asked(parked)
    within(rt.resume, answer_to(first, c1="one", c2="two", c3="early"))
    (pending,) = rt.pending()
    assert pending.request.id != first.id
    assert ids(pending.request) == ["c3"]
    with pytest.raises(AlreadyAnswered):
        within(rt.resume, answer_to(first, c3="three"))
    within(rt.resume, answer_to(pending.request, c3="three"))
    assert rt.wait_on(handle, LIMIT).text == "done"
    assert llm.requests[2].tool_results == {"c1": "one", "c2": "two", "c3": "three"}


def test_a_closed_handles_request_is_gone(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", TWO)
    rt = make_runtime(AgentDef("a", tools=[FIND]))
    handle, parked = start(rt, "a")
    waiting = in_thread(rt.future_result(handle).result, LIMIT)
    rt.close(handle)
    assert waiting.result(LIMIT).status == "closed"
    with pytest.raises(NothingSuspended):
        within(rt.resume, answer_to(asked(parked), c1="one"))
    assert rt.pending() == ()
