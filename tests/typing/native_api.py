"""How `@tool` looks to a type checker. Checked, never run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import assert_type

from toolnexus.tools.native import NativeTool, tool
from toolnexus.toolspec import Tool, ToolContext, ToolResult


@tool
def charge(amount: int, ctx: ToolContext) -> ToolResult:
    """Charge the card."""
    return ToolResult.ok(f"{amount} {ctx.call_id}")


@tool(name="charge-2", description="Charge.", handles_decline=True, on_unknown="ask")
def charge_again(amount: int, note: str = "") -> str:
    return note * amount


@tool()
def plain() -> dict[str, int]:
    return {}


def lookup(key: str) -> int:
    return len(key)


def raw(args: dict[str, Any], ctx: ToolContext) -> str:
    return f"{args} {ctx.attempt}"


looked_up = tool(lookup, name="look-up", retry_safe=True)
given = tool(raw, name="raw", description="Raw.", input_schema={"type": "object"})


class Desk:
    @tool
    def refund(self, amount: int) -> str:
        """Refund."""
        return str(amount)

    @tool
    @staticmethod
    def rate(currency: str) -> float:
        """Look a rate up."""
        return float(len(currency))


assert_type(charge(5, ToolContext()), ToolResult)
assert_type(charge_again(5, note="x"), str)
assert_type(plain(), dict[str, int])
assert_type(looked_up("x"), int)
assert_type(given({}, ToolContext()), str)
assert_type(Desk().refund(5), str)
assert_type(Desk.rate("EUR"), float)
assert_type(charge.execute({}, ToolContext()), ToolResult)
decorate: Callable[[Callable[[int], str]], NativeTool[[int], str]] = tool(name="x")
tools: list[Tool] = [charge, charge_again, plain, looked_up, given, Desk().refund]
charge("5", ToolContext())  # type: ignore[arg-type]
charge_again(5, notes="x")  # type: ignore[call-arg]
Desk().refund("5")  # type: ignore[arg-type]
