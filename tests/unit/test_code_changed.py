"""Code that changed while a run was parked: it goes on, and what no longer fits is not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.keeping import KeepingHost, asks_for, fresh, kit_for, run
from toolnexus import Answer, Checkpoint, Request, Tool, ToolContext, ToolResult, tool
from toolnexus.client.loop import Finished, Parked
from toolnexus.client.turn import Turn

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def gated() -> Tool:
    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    return pay


def asking() -> Tool:
    @tool
    def pay(amount: int, ctx: ToolContext) -> str:
        """Pay."""
        ctx.ask("approval", "Pay?")
        ran.append(amount)
        return "paid"

    return pay


def returning() -> Tool:
    class Pay:
        name, description, source = "pay", "Pay", "custom"
        input_schema: ClassVar[Any] = {"type": "object"}

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            if ctx.answer is None:
                return ToolResult.pending(Request("approval", "Pay?"))
            ran.append(args)
            return ToolResult.ok("paid")

    return Pay()


class Changed:
    """The tool as it is later: its amounts are texts."""

    name, description, source = "pay", "Pay", "custom"
    input_schema: ClassVar[Any] = {
        "type": "object",
        "properties": {"amount": {"type": "string"}},
    }

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        ran.append(args)
        return ToolResult.ok("paid")


def changed() -> Tool:
    return Changed()


def changed_gated() -> Tool:
    pay = Changed()
    pay.needs_approval = True  # type: ignore[attr-defined]
    return pay


def changed_native() -> Tool:
    @tool
    def pay(amount: str) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    return pay


def changed_native_gated() -> Tool:
    @tool(needs_approval=True)
    def pay(account: str) -> str:
        """Pay."""
        ran.append(account)
        return "paid"

    return pay


def gone_on(before: Tool, *after: Tool, ok: bool = True) -> str:
    """Return the result of a call that parked under one tool and is answered under another."""
    with kit_for(KeepingHost(), asks_for(("pay", {"amount": 5})), before) as kit:
        turn = fresh()
        assert run(turn, kit) == Parked()
    turn = Turn.restore(Checkpoint.from_dict(turn.stored().to_dict()))
    request = turn.calls[0].request
    assert request is not None
    turn.answer(0, Answer(request.id, ok))
    with kit_for(KeepingHost(), lambda body: {"text": "done"}, *after) as kit:
        assert run(turn, kit) == Finished("done")
    assert turn.messages[2]["_is_error"] is True
    return str(turn.messages[2]["content"])


PARKED = [gated, asking, returning]
CHANGED = [changed, changed_gated, changed_native, changed_native_gated]


@pytest.mark.parametrize("make", PARKED)
@pytest.mark.parametrize("ok", [True, False])
def test_a_tool_that_is_gone_is_said_to_be(make: Callable[[], Tool], ok: bool) -> None:
    assert gone_on(make(), ok=ok) == "Unknown tool: pay (no longer available)"


def test_one_that_never_was_is_only_unknown() -> None:
    turn = fresh()
    with kit_for(KeepingHost(), asks_for(("ghost", {}))) as kit:
        assert run(turn, kit) == Finished("done")
    assert turn.messages[2]["content"] == "Unknown tool: ghost"


@pytest.mark.parametrize("make", PARKED)
@pytest.mark.parametrize("later", CHANGED)
def test_arguments_that_no_longer_fit_execute_nothing(
    make: Callable[[], Tool], later: Callable[[], Tool]
) -> None:
    text = gone_on(make(), later())
    assert text.startswith("The arguments do not fit the tool's schema; nothing was executed.")
    assert ran == []


def test_a_tool_that_is_gated_by_now_asks_where_it_has_not_run() -> None:
    host, turn = KeepingHost(), fresh()
    with kit_for(host, asks_for(("pay", {"amount": 5})), returning()) as kit:
        run(turn, kit)
    (ready,) = host.stored[0].calls
    assert ready.status == "ready"
    turn = Turn.restore(host.stored[0])
    with kit_for(host, lambda body: {"text": "done"}, gated()) as kit:
        assert run(turn, kit) == Parked()
    assert ran == []
