"""The declared form: `agent(...)`, `run`, `answer` and `as_tool`, at any depth."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import Charge
from tests.runtime.support import Make, Pay, approve, start, within
from toolnexus import (
    Agent,
    AgentDef,
    Answer,
    ConfigError,
    LlmClient,
    State,
    agent,
)
from toolnexus.testing import ScriptedLlm, status, text, tool_call


def options(llm: ScriptedLlm) -> dict[str, Any]:
    return {"base_url": llm.base_url, "api_key": "k", "default_model": "m", "retries": 0}


def test_a_run_that_is_done_closes_what_it_opened(llm: ScriptedLlm) -> None:
    llm.say("m", text("hello"))
    run = within(agent("a").run, "hi", **options(llm))
    assert (run.status, run.text, run.pending) == ("done", "hello", None)
    assert run.result.total_tokens == 40
    assert run.handle.state is State.CLOSED
    assert run.runtime.root.state is State.CLOSED
    llm.wait_connections(0)


def test_a_run_that_fails_is_a_result_and_closes(llm: ScriptedLlm) -> None:
    llm.say("m", status(500))
    run = within(agent("a").run, "hi", **options(llm))
    assert run.status == "error"
    assert run.runtime.root.state is State.CLOSED
    llm.wait_connections(0)


@pytest.mark.parametrize("ok", [True, False])
def test_a_parked_run_is_answered(llm: ScriptedLlm, ok: bool) -> None:
    llm.say("m", tool_call("charge_card", id="c1"), text("settled"))
    charge = Charge()
    run = within(agent("a", tools=[charge]).run, "charge", **options(llm))
    assert run.status == "pending"
    assert run.pending is not None
    assert run.text == run.pending.prompt == "Approve $500 charge?"
    assert run.runtime.root.state is State.IDLE
    done = within(run.answer, ok, data={"message": "my word"}, reason=None)
    assert (done.status, done.text) == ("done", "settled")
    assert len(charge.charged) == (1 if ok else 0)
    said = "charged" if ok else "declined/expired: Approve $500 charge? (my word)"
    assert llm.requests[-1].tool_results == {"c1": said}
    assert done.runtime.root.state is State.CLOSED
    with pytest.raises(ConfigError, match="done"):
        done.answer(True)
    llm.assert_done()


def test_a_run_that_asks_twice_is_answered_twice(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("charge_card"), tool_call("charge_card"), text("settled"))
    charge = Charge()
    first = within(agent("a", tools=[charge]).run, "charge twice", **options(llm))
    second = within(first.answer, True)
    assert second.status == "pending"
    third = within(second.answer, True)
    assert third.text == "settled"
    assert len(charge.charged) == 2


def test_giving_up_a_parked_run(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("charge_card"))
    with within(agent("a", tools=[Charge()]).run, "charge", **options(llm)) as run:
        assert run.status == "pending"
    assert run.handle.state is State.CLOSED
    llm.wait_connections(0)


def nested(depth: int, tool: Any) -> Agent:
    """Return d1 whose team is d2 and so on; the last has the tool."""
    inner = agent(f"d{depth}", model=f"d{depth}", tools=[tool])
    for level in range(depth - 1, 0, -1):
        inner = agent(f"d{level}", model=f"d{level}", team=[inner])
    return inner


def test_a_team_of_teams_comes_along(llm: ScriptedLlm) -> None:
    top = nested(3, Charge())
    assert sorted(top.registry()) == ["d1", "d2", "d3"]
    assert top.definition.team == ("d2",)
    llm.say("d1", tool_call("task", {"agent": "d2", "prompt": "x"}), text("one"))
    llm.say("d2", tool_call("task", {"agent": "d3", "prompt": "x"}), text("two"))
    llm.say("d3", tool_call("charge_card"), text("three"))
    run = within(top.run, "go", **options(llm))
    assert run.status == "pending"
    assert run.result.pending_path == ("root", "d1.1", "d2.1", "d3.1")
    assert within(run.answer, True).text == "one"
    llm.assert_done()


def tools_of_tools(depth: int, tool: Any, llm: ScriptedLlm | None = None) -> Agent:
    """Return d1 whose tool is d2 and so on; the last has the tool."""
    inner = agent(f"d{depth}", model=f"d{depth}", tools=[tool])
    for level in range(depth - 1, 0, -1):
        own = {} if llm is None else options(llm)
        inner = agent(f"d{level}", model=f"d{level}", tools=[inner.as_tool(**own)])
    return inner


@pytest.mark.parametrize("workers", [1, 32])
@pytest.mark.parametrize("depth", [2, 3])
def test_an_agent_as_a_tool_suspends_its_caller(
    llm: ScriptedLlm, depth: int, workers: int
) -> None:
    for level in range(1, depth):
        llm.say(f"d{level}", tool_call(f"d{level + 1}", {"prompt": f"to {level + 1}"}))
        llm.say(f"d{level}", text(f"done {level}"))
    llm.say(f"d{depth}", tool_call("charge_card"), text("leaf done"))
    charge = Charge()
    top = tools_of_tools(depth, charge)
    run = within(top.run, "go", **options(llm), max_workers=workers)
    assert run.status == "pending"
    assert run.text == "Approve $500 charge?"
    path = ["root", *(f"d{level}.1" for level in range(1, depth + 1))]
    assert run.result.pending_path == tuple(path)
    assert llm.requests_of("d2")[0].prompt == "to 2"
    done = within(run.answer, True)
    assert (done.status, done.text) == ("done", "done 1")
    assert len(charge.charged) == 1
    assert len(llm.requests) == 2 * depth
    assert done.result.total_tokens == 80 * depth
    llm.assert_done()


def test_a_decline_reaches_the_agent_behind_the_tool(llm: ScriptedLlm) -> None:
    llm.say("d1", tool_call("d2", {"prompt": "x"}), text("told"))
    llm.say("d2", tool_call("charge_card", id="c1"), text("they said no"))
    charge = Charge()
    run = within(tools_of_tools(2, charge).run, "go", **options(llm))
    assert within(run.answer, False).text == "told"
    asked = "declined/expired: Approve $500 charge?"
    assert llm.requests_of("d2")[-1].tool_results == {"c1": asked}
    assert list(llm.requests_of("d1")[-1].tool_results.values()) == ["they said no"]
    assert charge.charged == []


def test_an_agent_as_a_tool_of_a_plain_definition(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("lead", tool_call("pay", {"prompt": "x"}), text("ok"))
    llm.say("pay", tool_call("pay", {"amount": 5}), text("paid"))
    tool = Pay()
    payer = agent("pay", does="pays", model="pay", tools=[tool])
    rt = make_runtime(AgentDef("lead", "", "", "lead", tools=[payer.as_tool()]))
    handle, parked = start(rt, "lead")
    assert parked.pending_path == ("root", "lead.1", "pay.1")
    assert "pays" in llm.requests[0].tools[0]["function"]["description"]
    approve(rt, parked.pending)
    assert rt.wait_on(handle).text == "ok"
    assert [amount for amount, _ in tool.paid] == [5]


@pytest.mark.parametrize("depth", [1, 2])
def test_an_agent_as_a_tool_of_a_bare_client_suspends_the_run(
    llm: ScriptedLlm, depth: int
) -> None:
    for level in range(1, depth):
        llm.say(f"d{level}", tool_call(f"d{level + 1}", {"prompt": "x"}))
    llm.say(f"d{depth}", tool_call("charge_card"))
    llm.say("m", tool_call("d1", {"prompt": "x"}))
    charge = Charge()
    top = tools_of_tools(depth, charge)
    tool = top.as_tool(**options(llm))
    with LlmClient(base_url=llm.base_url, api_key="k", model="m", retries=0) as client:
        result = within(client.run, "go", tools=[tool])
    assert result.status == "pending"
    assert result.pending is not None
    assert result.text == "Approve $500 charge?"
    assert result.checkpoint is not None
    assert charge.charged == []
    # There is no public way yet to give up what a bare client's call has parked.
    for run in tool._parked.values():
        run.close()


@pytest.mark.parametrize("ok", [True, False])
def test_a_bare_clients_wait_for_answers_the_agent_behind_the_tool(
    llm: ScriptedLlm, ok: bool
) -> None:
    llm.say("m", tool_call("d1", {"prompt": "x"}, "c1"), text("done"))
    llm.say("d1", tool_call("charge_card"), text("leaf done"))
    charge = Charge()
    tool = tools_of_tools(1, charge).as_tool(**options(llm))
    with LlmClient(
        base_url=llm.base_url,
        api_key="k",
        model="m",
        wait_for=lambda request: Answer(request.id, ok=ok),
    ) as client:
        result = within(client.run, "go", tools=[tool])
    assert result.text == "done"
    assert len(charge.charged) == (1 if ok else 0)
    assert llm.requests_of("m")[-1].tool_results == {"c1": "leaf done"}
    llm.assert_done()


def test_outside_a_runtime_an_agent_as_a_tool_needs_options(llm: ScriptedLlm) -> None:
    with (
        LlmClient(base_url=llm.base_url, api_key="k", model="m") as client,
        pytest.raises(ConfigError, match=r"'a' is an agent and needs a runtime: as_tool"),
    ):
        within(client.run, "go", tools=[agent("a").as_tool()])
    assert llm.requests == []


def test_two_members_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="'a'"):
        agent("lead", team=[agent("a"), agent("a")])
    inner = agent("mid", team=[agent("a")])
    with pytest.raises(ConfigError, match="'a'"):
        agent("lead", team=[inner, agent("a", does="another")]).registry()
    with pytest.raises(ConfigError, match="team"):
        agent("lead", team=["a"])  # type: ignore[list-item]


def test_one_agent_serves_many_runs(llm: ScriptedLlm) -> None:
    llm.answer("m", lambda request: text(f"saw {request.prompt}"))
    one = agent("a")
    runs = [within(one.run, str(n), **options(llm)) for n in range(3)]
    assert [run.text for run in runs] == ["saw 0", "saw 1", "saw 2"]
    assert all(len(request.messages) == 1 for request in llm.requests)
