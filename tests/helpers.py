"""Small things that tests of several rooms share."""

from __future__ import annotations

from typing import Any

from toolnexus import Answer, Request, ToolContext, ToolResult


class Charge:
    """A tool that asks for approval and counts what it did."""

    description = "Charge the card"
    source = "custom"

    def __init__(self, name: str = "charge_card", prompt: str = "Approve $500 charge?") -> None:
        self.name = name
        self.prompt = prompt
        self.input_schema: dict[str, Any] = {"type": "object", "properties": {}}
        self.charged: list[Answer] = []

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", self.prompt, data=args or None))
        self.charged.append(ctx.answer)
        return ToolResult.ok("charged")


def moves(trace: tuple[str, ...], handle_id: str) -> list[str]:
    """Return the states a handle went through, in order."""
    states: list[str] = []
    for line in trace:
        who, _, text = line.partition(": ")
        move = text.partition(" (")[0]
        if who == handle_id and "→" in move:
            before, _, after = move.partition("→")
            if before not in ("idle", "running", "suspended"):
                continue
            if not states:
                states.append(before)
            assert states[-1] == before, f"{line} after {states}"
            states.append(after)
    return states
