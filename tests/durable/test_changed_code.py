"""The code has changed while a run was parked, or lay where its process had left it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import LIMIT
from tests.durable import firm
from tests.durable.conftest import Stage
from tests.durable.mortal import Later
from tests.durable.test_crash_at_every_write import LABELS
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    ConfigError,
    Grant,
    Request,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.stores import MemoryStore, SqliteStore
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]

PAID: list[object] = []


@tool
def pay(amount: int, ctx: ToolContext) -> ToolResult:
    """Pay.

    Args:
        amount: Whole dollars.
    """
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", f"Pay {amount}?"))
    PAID.append(amount)
    return ToolResult.ok(f"paid {amount}")


PAYER = AgentDef("payer", tools=[pay])
BOSS = AgentDef("boss", team=["payer"])


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    PAID.clear()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def park(make_runtime: Make, store: MemoryStore, name: str) -> Answer:
    """Leave a run that asks to pay 5; return the yes to it."""
    rt = make_runtime(PAYER, BOSS, store=store)
    parked = rt.run_turn(rt.spawn(rt.root, name).handle, "pay 5")
    assert parked.pending is not None
    rt.close(force=True)
    return Answer(parked.pending.id, ok=True)


def test_an_agent_that_is_gone_is_named_and_nothing_is_lost(
    make_runtime: Make, llm: ScriptedLlm, store: MemoryStore
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}), text("done"))
    yes = park(make_runtime, store, "payer")
    other = make_runtime(AgentDef("other"), store=store)
    for verb in (
        lambda: other.resume(yes),
        lambda: other.handle("root/payer.1"),
    ):
        with pytest.raises(ConfigError, match=r"'payer' of root/payer\.1 .* other"):
            verb()
    (pending,) = other.pending()
    assert (pending.agent, pending.request.id) == ("payer", yes.id)
    assert [one.id for one in other.list()] == ["root/payer.1"]
    assert other.recover() == ()

    back = make_runtime(PAYER, store=store)
    back.resume(yes)
    assert back.wait_on(back.handle("root/payer.1"), LIMIT).text == "done"
    assert PAID == [5]


def test_an_agent_below_that_is_gone_is_named_too(
    make_runtime: Make, llm: ScriptedLlm, store: MemoryStore
) -> None:
    pays = tool_call("task", {"agent": "payer", "prompt": "pay 5"})
    llm.say("m", pays, tool_call("pay", {"amount": 5}), text("paid"), text("done"))
    yes = park(make_runtime, store, "boss")
    other = make_runtime(AgentDef("boss"), store=store)
    with pytest.raises(ConfigError, match=r"'payer' of root/boss\.1/payer\.1"):
        other.resume(yes)
    back = make_runtime(PAYER, BOSS, store=store)
    back.resume(yes)
    assert back.wait_on(back.handle("root/boss.1"), LIMIT).text == "done"
    assert PAID == [5]


def test_the_call_of_a_tool_that_is_gone_is_told_so(
    make_runtime: Make, llm: ScriptedLlm, store: MemoryStore
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}), text("never mind"))
    yes = park(make_runtime, store, "payer")
    rt = make_runtime(AgentDef("payer"), store=store)
    rt.resume(yes)
    handle = rt.handle("root/payer.1")
    assert rt.wait_on(handle, LIMIT).text == "never mind"
    (result,) = [one["content"] for one in rt.transcript(handle) if one["role"] == "tool"]
    assert result == "Unknown tool: pay (no longer available)"


def test_arguments_that_no_longer_fit_are_told(
    make_runtime: Make, llm: ScriptedLlm, store: MemoryStore
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}), text("never mind"))
    yes = park(make_runtime, store, "payer")

    @tool(name="pay")
    def pay_in(amount: str, currency: str, ctx: ToolContext) -> str:
        """Pay.

        Args:
            amount: With a point.
            currency: Three letters.
        """
        raise AssertionError("the arguments do not fit")

    rt = make_runtime(AgentDef("payer", tools=[pay_in]), store=store)
    rt.resume(yes)
    handle = rt.handle("root/payer.1")
    assert rt.wait_on(handle, LIMIT).text == "never mind"
    (result,) = [one["content"] for one in rt.transcript(handle) if one["role"] == "tool"]
    assert "currency" in str(result)
    assert PAID == []


@pytest.mark.parametrize("label", ["worker.2 running: result log-a, call 0 plain", "claim"])
def test_a_run_is_not_recovered_without_its_agents(
    stage: Stage, tmp_path: Path, label: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What its process has left stays as it is until the agents are back."""
    number = LABELS.index(label) + 1
    assert stage.live(tmp_path, dies_at=number, when="after")
    store = SqliteStore(tmp_path / "runs.db", clock=Later(1))
    before = firm.left(str(tmp_path))
    options = {"base_url": stage.llm.base_url, "api_key": "k", "store": store}
    with AgentRuntime(registry=[AgentDef("boss"), AgentDef("clerk")], **options) as rt:
        assert rt.recover() == ()
        assert "agent 'worker' of root/boss.1/worker.2 is not in the registry" in caplog.text
    assert firm.left(str(tmp_path)) == before
    store.close()
    left = stage.go_on(tmp_path, later=2)
    assert left[0] == "recover"
    assert left[-1] == "close"


@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("how", ["ask", "pending"])
def test_a_call_that_began_before_its_tool_had_a_gate_is_not_carried_out(
    make_runtime: Make, llm: ScriptedLlm, store: MemoryStore, how: str, ok: bool
) -> None:
    """Whatever was said to another question is no approval."""

    def asking(ctx: ToolContext) -> object:
        """Pay."""
        if how == "ask":
            ctx.ask("question", "To whom?")
        elif ctx.answer is None:
            return ToolResult.pending(Request("question", "To whom?"))
        return "never paid by this release"

    def paying() -> str:
        """Pay."""
        PAID.append("ann")
        return "paid"

    llm.say("m", tool_call("pay", id="1"), tool_call("pay", id="2"), text("done"))
    first = make_runtime(AgentDef("a", tools=[tool(name="pay")(asking)]), store=store)
    parked = first.run_turn(first.spawn(first.root, "a").handle, "go")
    assert parked.pending is not None
    first.close(force=True)

    gated = tool(name="pay", needs_approval="Pay?")(paying)
    second = make_runtime(AgentDef("a", tools=[gated]), store=store)
    handle = second.handle("root/a.1")
    second.resume(Answer(parked.pending.id, ok=ok))
    result = second.wait_on(handle, LIMIT)
    assert PAID == []
    told = llm.requests[1].messages[-1]["content"]
    if ok or how == "ask":
        assert "pay needs an approval by now" in told
    assert result.pending.prompt == "Pay?"  # of the second call
    second.resume(Answer(result.pending.id, ok=True))
    assert second.wait_on(handle, LIMIT).text == "done"
    assert PAID == ["ann"]


def test_a_call_in_flight_is_not_run_again_past_a_gate_that_is_new(
    make_runtime: Make, llm: ScriptedLlm, store: MemoryStore
) -> None:
    inside, go = threading.Event(), threading.Event()

    @tool(name="pay", retry_safe=True)
    def stay() -> str:
        """Pay."""
        inside.set()
        assert go.wait(LIMIT)
        return "never mind"

    @tool(name="pay", retry_safe=True, needs_approval="Pay?")
    def paying() -> str:
        """Pay."""
        PAID.append("ann")
        return "paid"

    llm.say("m", tool_call("pay", id="1"), tool_call("pay", id="2"))
    first = make_runtime(AgentDef("a", tools=[stay]), store=store)
    first.wake(first.spawn(first.root, "a").handle, "go")
    assert inside.wait(LIMIT)
    first.close(force=True)
    go.set()
    second = make_runtime(AgentDef("a", tools=[paying]), store=store)
    assert second.recover() == ("root/a.1",)
    assert second.wait_on(second.handle("root/a.1"), LIMIT).pending.prompt == "Pay?"
    assert PAID == []
    assert "pay needs an approval by now" in llm.requests[1].messages[-1]["content"]


def test_a_call_that_a_grant_has_let_pass_goes_on_when_that_has_ended(
    make_runtime: Make, llm: ScriptedLlm, store: MemoryStore
) -> None:
    @tool(needs_approval="Pay?")
    def pay_whom(ctx: ToolContext) -> str:
        """Pay."""
        PAID.append(ctx.ask("question", "To whom?").data)
        return "paid"

    llm.say("m", tool_call("pay_whom"), text("done"))
    first = make_runtime(AgentDef("a", tools=[pay_whom]), store=store)
    grant = first.grant(Grant("pay_whom", {}, "root"))
    parked = first.run_turn(first.spawn(first.root, "a").handle, "go")
    assert parked.pending is not None
    assert parked.pending.prompt == "To whom?"
    first.revoke(grant)
    first.close(force=True)
    second = make_runtime(AgentDef("a", tools=[pay_whom]), store=store)
    second.resume(Answer(parked.pending.id, ok=True, data="ann"))
    assert second.wait_on(second.handle("root/a.1"), LIMIT).text == "done"
    assert PAID == ["ann"]
