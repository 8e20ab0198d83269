"""Tools that misbehave in ways of their own, and the agents and hooks around them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Pay, Probe, approve, run_turn, start, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Handle,
    LlmClient,
    Request,
    State,
    ToolContext,
    ToolResult,
    agent,
)
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    text,
    tool_call,
    tool_calls,
)


class Mute(Exception):
    """An exception that fails when it is asked for its message."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


class MoodySchema(Probe):
    """A tool whose schema cannot be read when it is about to be executed."""

    def __init__(self, error: Exception) -> None:
        self.is_moody = False
        self._error = error
        super().__init__("moody")

    @property  # type: ignore[override]
    def input_schema(self) -> dict[str, Any]:
        if self.is_moody:
            self.is_moody = False
            raise self._error
        return {"type": "object", "properties": {}}


@pytest.mark.parametrize("error", [RuntimeError("no schema"), KeyError("x"), Mute()])
def test_a_schema_that_cannot_be_read_is_the_calls_error(
    llm: ScriptedLlm, make_runtime: Make, error: Exception
) -> None:
    tool, mail = MoodySchema(error), Probe("mail")

    def answer(request: RecordedRequest) -> Reply:
        if request.messages[-1]["role"] == "tool":
            return text("seen")
        tool.is_moody = True
        return tool_calls(call("moody", {}, "c1"), call("mail", {}, "c2"))

    llm.answer("m", answer)
    rt = make_runtime(AgentDef("a", tools=[tool, mail]))
    handle, result = start(rt, "a")
    assert (result.status, result.text) == ("done", "seen")
    results = llm.requests[-1].tool_results
    assert results["c1"].startswith("the call failed: ")
    assert results["c2"] == "mail done"
    assert tool.runs == []
    assert within(rt.retry, handle) == result
    assert len(llm.requests) == 2


def test_a_schema_that_cannot_be_read_after_an_inline_answer_is_the_calls_error(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    tool = MoodySchema(RuntimeError("no schema"))
    tool.work = lambda args, ctx: ToolResult.pending(Request("approval", "May I?"))

    def say_yes(request: Request) -> Answer:
        tool.is_moody = True
        return Answer(request.id, ok=True)

    llm.say("m", tool_call("moody", {}, "c1"), text("seen"))
    rt = make_runtime(AgentDef("a", tools=[tool], wait_for=say_yes))
    _, result = start(rt, "a")
    assert (result.status, result.text) == ("done", "seen")
    assert llm.requests[-1].tool_results == {"c1": "the call failed: no schema"}


def raises(error: BaseException) -> Callable[..., ToolResult]:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        raise error

    return work


def gives(value: Any) -> Callable[..., ToolResult]:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        result: ToolResult = value() if callable(value) else value
        return result

    return work


ODD: Mapping[str, Callable[..., ToolResult]] = {
    "a key error": raises(KeyError("x")),
    "a stop iteration": raises(StopIteration()),
    "a mute error": raises(Mute()),
    "an error group": raises(OSError(5)),
    "a recursion error": raises(RecursionError("too deep")),
    "nothing at all": gives(None),
    "a tuple": gives((1, 2)),
    "a class": gives(lambda: ToolResult),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_an_execution_gives_or_raises_is_a_result_for_that_call(
    llm: ScriptedLlm, make_runtime: Make, kind: str
) -> None:
    llm.say("m", tool_calls(call("odd", {}, "c1"), call("mail", {}, "c2")), text("seen"))
    odd, mail = Probe("odd", ODD[kind]), Probe("mail")
    rt = make_runtime(AgentDef("a", tools=[odd, mail]))
    handle, result = start(rt, "a")
    assert (result.status, result.text) == ("done", "seen")
    results = llm.requests[-1].tool_results
    assert results["c1"] != ""
    assert results["c2"] == "mail done"
    (message,) = [m for m in rt.transcript(handle) if m.get("tool_call_id") == "c1"]
    assert message["_is_error"] is True
    assert within(rt.retry, handle) == result
    assert (len(odd.runs), len(llm.requests)) == (1, 2)


def test_metadata_that_is_no_mapping_does_not_lose_the_output(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("odd", {}, "c1"), text("seen"))
    odd = Probe("odd", gives(lambda: ToolResult("x", metadata=[1])))  # type: ignore[arg-type]
    rt = make_runtime(AgentDef("a", tools=[odd]))
    assert start(rt, "a")[1].text == "seen"
    assert llm.requests[-1].tool_results == {"c1": "x"}


# -- a tool that ends its thread ---------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_parallel_tool_that_ends_its_thread_loses_no_result_of_the_others(
    llm: ScriptedLlm, make_runtime: Make, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    together = threading.Barrier(3)

    def leave(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        together.wait(LIMIT)
        raise SystemExit(1)

    def send(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        together.wait(LIMIT)
        return ToolResult.ok("sent")

    names = ["mail", "mail", "mail"]
    names[position] = "leave"
    calls = [call(name, {}, f"c{n}") for n, name in enumerate(names)]
    llm.say("m", tool_calls(*calls), text("went on"))
    leaver, mail = Probe("leave", leave), Probe("mail", send)
    rt = make_runtime(AgentDef("a", tools=[leaver, mail]), max_workers=4)
    handle, result = start(rt, "a")
    assert (result.status, result.is_error) == ("error", True)
    assert "SystemExit" in result.text
    assert handle.state is State.IDLE

    kept = [m for m in rt.transcript(handle) if m["role"] == "tool"]
    told = {m["tool_call_id"]: m["content"] for m in kept}
    assert [told[f"c{n}"] for n in range(3) if n != position] == ["sent", "sent"]
    assert "may or may not have taken effect" in told[f"c{position}"]
    assert within(rt.retry, handle).text == "went on"
    assert (len(leaver.runs), len(mail.runs)) == (1, 2)
    assert len(llm.requests) == 2


def test_run_turn_passes_on_what_ended_its_thread(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("leave"), text("next"))
    rt = make_runtime(AgentDef("a", tools=[Probe("leave", raises(SystemExit(3)))]))
    handle = rt.spawn(rt.root, "a").handle
    with pytest.raises(SystemExit):
        within(rt.run_turn, handle, "go")
    assert handle.state is State.IDLE
    assert rt.wait_on(handle, LIMIT).status == "error"
    assert within(rt.run_turn, handle, "again").text == "next"


# -- an agent as a tool that has lost its run --------------------------------------------------


def make_tool(llm: ScriptedLlm, pay: Pay) -> Any:
    desk = agent("desk", model="desk", tools=[pay])
    return desk.as_tool(base_url=llm.base_url, api_key="k", retries=0)


def test_an_agent_tool_in_another_process_does_not_begin_again(llm: ScriptedLlm) -> None:
    pay = Pay()
    tool = make_tool(llm, pay)
    context = ToolContext(
        answer=Answer("from-elsewhere", ok=True), attempt=2, idempotency_key="k-1"
    )
    result = within(tool.execute, {"prompt": "pay"}, context)
    assert result.is_error
    assert result.output == "the parked run of agent desk is not in this process"
    assert llm.requests == []
    assert pay.paid == []


def test_an_agent_tool_that_lost_its_run_does_not_begin_again(llm: ScriptedLlm) -> None:
    pay = Pay()
    llm.say("desk", tool_call("pay", {"amount": 1}))
    llm.say("m", tool_call("desk", {"prompt": "pay"}, "c1"), text("told"))
    tool = make_tool(llm, pay)

    def lose(request: Request) -> Answer:
        tool.close()
        return Answer(request.id, ok=True)

    with LlmClient(
        base_url=llm.base_url, api_key="k", model="m", retries=0, wait_for=lose
    ) as client:
        result = within(client.run, "go", tools=[tool])
    assert result.text == "told"
    assert "not in this process" in llm.requests[-1].tool_results["c1"]
    assert len(llm.requests_of("desk")) == 1
    assert pay.paid == []


# -- hooks that change the request -------------------------------------------------------------


class Reroute:
    """Sends every request to another model while it is on."""

    def __init__(self, model: str) -> None:
        self.model: str | None = model

    def before_llm(self, request: Any) -> Any:
        return None if self.model is None else attrs.evolve(request, model=self.model)


def test_what_only_a_provider_understands_goes_back_to_the_model_that_said_it(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("other", tool_call("mail").with_extra(reasoning_details=["t1"]), text("sent"))
    llm.say("m", text("fine"))
    reroute = Reroute("other")
    rt = make_runtime(AgentDef("a", tools=[Probe("mail")], hooks=reroute))
    handle, result = start(rt, "a")
    assert result.text == "sent"
    (said,) = [m for m in llm.requests[-1].messages if m.get("tool_calls")]
    assert said["reasoning_details"] == ["t1"]

    reroute.model = None
    assert run_turn(rt, handle).text == "fine"
    (said,) = [m for m in llm.requests_of("m")[-1].messages if m.get("tool_calls")]
    assert "reasoning_details" not in said


@pytest.mark.parametrize("wrong", [{"model": "x"}, "x", 1, True])
def test_a_before_llm_that_gives_another_type_says_what_is_due(
    llm: ScriptedLlm, make_runtime: Make, wrong: object
) -> None:
    class Wrong:
        def before_llm(self, request: object) -> object:
            return wrong

    rt = make_runtime(AgentDef("a", hooks=Wrong()))
    handle, result = start(rt, "a")
    assert (result.status, handle.state) == ("error", State.IDLE)
    assert result.text.endswith("return a ModelRequest or None")
    assert llm.requests == []


# -- a team that nobody knows ------------------------------------------------------------------


def test_a_definition_whose_team_is_unknown_is_refused_as_data(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("known"))
    spawned = rt.spawn(rt.root, AgentDef("boss", team=["known", "nobody"]))
    assert not spawned.ok
    assert spawned.error == 'agent "boss": its team names "nobody", unknown'
    assert rt.list() == ()
    assert rt.spawn(rt.root, AgentDef("boss", team=["known"])).ok


def test_a_member_whose_team_is_unknown_is_the_models_to_judge(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("task", {"agent": "helper", "prompt": "x"}, "c1"), text("alone"))
    rt: AgentRuntime = make_runtime()
    helper = AgentDef("helper", team=["nobody"])
    boss: Handle = rt.spawn(
        rt.root, AgentDef("boss", team=["helper"], members={"helper": helper})
    ).handle
    assert run_turn(rt, boss).text == "alone"
    assert '"nobody"' in llm.requests[-1].tool_results["c1"]
    assert boss.children == ()


def test_a_yes_still_pays_once_after_all_that(llm: ScriptedLlm, make_runtime: Make) -> None:
    """A tool that raises beside one that asks: the answer goes to the one that asked."""
    pay = Pay()
    llm.say("m", tool_calls(call("odd", {}, "c1"), call("pay", {"amount": 5}, "c2")))
    llm.say("m", text("paid"))
    rt = make_runtime(AgentDef("a", tools=[Probe("odd", raises(Mute())), pay]))
    handle, parked = start(rt, "a")
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "paid"
    assert [amount for amount, _ in pay.paid] == [5]
