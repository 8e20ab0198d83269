"""The agent of the example: it refunds customers, once a person has said yes."""

from __future__ import annotations

from typing import Any

from refunds.models import Refund
from toolnexus import AgentDef, PendingRequest, ToolContext, tool


@tool(needs_approval="Refund ${amount} to {customer}?", retry_safe=True)
def refund(amount: int, customer: str, ctx: ToolContext) -> str:
    """Refund a customer.

    Args:
        amount: Whole dollars.
        customer: Who gets them.
    """
    # Retry-safe: the key is the same however often a call is tried, so that it pays once.
    Refund.objects.get_or_create(
        key=ctx.idempotency_key, defaults={"customer": customer, "amount": amount}
    )
    return f"refunded ${amount} to {customer}"


AGENTS = [
    AgentDef(
        "desk",
        does="refunds customers",
        soul="You refund customers with the tool refund. Say in one line what came of it.",
        tools=[refund],
    )
]


def may_answer(user: Any, pending: PendingRequest) -> bool:
    """Say who may answer what: here whoever has the permission, as in the admin."""
    return bool(user.has_perm("toolnexus.change_openrequest"))
