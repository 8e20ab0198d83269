"""The agent of the example: it refunds customers, once a person has said yes."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from flask import current_app

from toolnexus import AgentDef, ToolContext, tool


@tool(needs_approval="Refund ${amount} to {customer}?", retry_safe=True)
def refund(amount: int, customer: str, ctx: ToolContext) -> str:
    """Refund a customer.

    Args:
        amount: Whole dollars.
        customer: Who gets them.
    """
    # A worker of the runtime does this, in an application context and outside all requests.
    with closing(sqlite3.connect(current_app.config["REFUNDS"])) as db, db:
        # Retry-safe: the key is the same however often a call is tried, so that it pays once.
        db.execute("CREATE TABLE IF NOT EXISTS refunds (key PRIMARY KEY, customer, amount)")
        row = (ctx.idempotency_key, customer, amount)
        db.execute("INSERT OR IGNORE INTO refunds VALUES (?, ?, ?)", row)
    return f"refunded ${amount} to {customer}"


desk = AgentDef(
    "desk",
    does="refunds customers",
    soul="You refund customers with the tool refund. Say in one line what came of it.",
    tools=[refund],
)
