"""The books of a tree: what a handle may use, and what the chain above it has left.

Every function here is called with the runtime's lock held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from toolnexus.budget import (
    DEFAULT_MAX_CONCURRENT,
    DEFAULT_MAX_DEPTH,
    Budget,
)
from toolnexus.messages import Usage

if TYPE_CHECKING:
    from toolnexus.runtime.handle import Handle


def chain(handle: Handle) -> Iterator[Handle]:
    """Yield the handle, its parent, and so on to the root."""
    one: Handle | None = handle
    while one is not None:
        yield one
        one = one.parent


def turns_of(handle: Handle) -> frozenset[str]:
    """Return the ids of the turns, parked or running, of the handle and those above it."""
    found = set()
    for one in chain(handle):
        if one._parked is not None:
            found.add(one._parked.run)
        elif one._run is not None and one._run.turn is not None:
            found.add(one._run.turn.run)
    return frozenset(found)


def carve(budget: Budget, parent: Handle) -> Budget:
    """Return `budget` with tokens and tool calls cut down to what the chain has left."""
    tokens = _least(budget.max_tokens, *(_tokens_left(one) for one in chain(parent)))
    calls = _least(budget.max_tool_calls, *(_calls_left(one) for one in chain(parent)))
    if tokens == budget.max_tokens and calls == budget.max_tool_calls:
        return budget
    return attrs.evolve(budget, max_tokens=tokens, max_tool_calls=calls)


@attrs.frozen
class Spent:
    """A limit that is used up: `tokens`, `toolCalls` or `wallMs`, and how much was allowed."""

    limit: str
    allowed: int


def exhausted(handle: Handle, now: float) -> Spent | None:
    """Return the first limit of the chain that is used up."""
    for one in chain(handle):
        limits = one.budget
        if limits.max_tokens is not None and one.usage_tree >= limits.max_tokens:
            return Spent("tokens", limits.max_tokens)
        if limits.max_tool_calls is not None and one._tool_calls >= limits.max_tool_calls:
            return Spent("toolCalls", limits.max_tool_calls)
        if limits.max_wall_ms is not None and one._wall_ms(now) >= limits.max_wall_ms:
            return Spent("wallMs", limits.max_wall_ms)
    return None


def spent_text(limit: str) -> str:
    """Return what a result says that a spent limit stopped."""
    return f"budget exhausted ({limit}); partial work preserved"


def reserve_tool_call(handle: Handle) -> str | None:
    """Book one tool call along the chain, or name the limit that has no room for it."""
    if any(_calls_left(one) == 0 for one in chain(handle)):
        return "toolCalls"
    for one in chain(handle):
        one._tool_calls += 1
    return None


def lasting_tool_calls(handle: Handle) -> int:
    """Return how many calls are booked, but for those that a crash now would book once more."""
    count, below = handle._tool_calls, [handle]
    for one in below:
        if one._run is not None and one._run.turn is not None:
            count -= one._run.turn.booked_in_vain()
        below.extend(one._children.values())
    return count


def add_usage(handle: Handle, usage: Usage) -> None:
    """Book one model reply: the handle's own turn and tokens, and the tree's tokens."""
    handle.turns_total += 1
    handle.usage_total += usage.total_tokens
    for one in chain(handle):
        one.usage_tree += usage.total_tokens


def spawn_refusal(parent: Handle, now: float) -> str | None:
    """Return why `parent` may not have one more child; None where it may."""
    depths = [one.budget.max_depth for one in chain(parent) if one.budget.max_depth is not None]
    max_depth = min(depths, default=DEFAULT_MAX_DEPTH)
    if parent.depth + 1 > max_depth:
        return f"maxDepth {max_depth} exceeded"
    limit = parent.budget.max_children
    if limit is not None and len(parent._children) >= limit:
        return children_text(limit)
    spent = exhausted(parent, now)
    return None if spent is None else f"budget exhausted ({spent.limit}); incomplete"


def children_text(limit: int | None) -> str:
    """Say that a parent has as many children as it may have."""
    return f"maxChildren {limit} exceeded"


def max_concurrent(parent: Handle) -> int:
    """Return how many children of `parent` may run at once."""
    limit = parent.budget.max_concurrent
    return DEFAULT_MAX_CONCURRENT if limit is None else limit


def _tokens_left(handle: Handle) -> int | None:
    limit = handle.budget.max_tokens
    return None if limit is None else max(limit - handle.usage_tree, 0)


def _calls_left(handle: Handle) -> int | None:
    limit = handle.budget.max_tool_calls
    return None if limit is None else max(limit - handle._tool_calls, 0)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
