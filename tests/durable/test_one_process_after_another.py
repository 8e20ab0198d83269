"""What one runtime has parked, another one goes on with: they share nothing but a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import LIMIT
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    NothingSuspended,
    Request,
    State,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]

PAID: list[int] = []


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    PAID.clear()


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


PAYER = AgentDef("payer", does="pays", tools=[pay])
BOSS = AgentDef("boss", team=["payer"])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


def test_a_parked_run_goes_on_in_another_runtime(
    make_runtime: Make, llm: ScriptedLlm, url: str
) -> None:
    llm.say("m", tool_call("pay", {"amount": 5}), text("done"))
    first = make_runtime(PAYER, store=url)
    handle = first.spawn(first.root, "payer").handle
    parked = first.run_turn(handle, "pay 5")
    assert parked.status == "pending"
    first.close()

    second = make_runtime(PAYER, store=url)
    (pending,) = second.pending()
    assert pending.request.id == parked.pending.id
    assert pending.path == ("root", "payer.1")
    assert (pending.tool, pending.arguments) == ("pay", {"amount": 5})
    (view,) = second.list()
    assert view.id == "root/payer.1"
    assert view.state is State.SUSPENDED
    assert view.pending == parked.pending

    second.resume(Answer(pending.request.id, ok=True))

    assert PAID == [5]
    again = second.handle("root/payer.1")
    assert again.state is State.IDLE
    result = second.wait_on(again, LIMIT)
    assert (result.text, result.status) == ("done", "done")
    assert [message["role"] for message in second.transcript(again)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert second.pending() == ()


def test_an_answer_to_nothing_tells_where_it_was_looked_for(
    make_runtime: Make, url: str
) -> None:
    rt = make_runtime(PAYER, store=url, name="shop")
    with pytest.raises(NothingSuspended, match=r"fits no request.* named 'shop'"):
        rt.resume(Answer("r1", ok=True))
