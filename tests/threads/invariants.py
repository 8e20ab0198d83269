"""What holds in every interleaving; the tests of the machine and of the threads ask it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from toolnexus.runtime.state import EDGES

_MOVES = {(before.value, after.value) for (before, _), after in EDGES.items()}
_STATES = {state for move in _MOVES for state in move}


def check_path(trace: Iterable[str]) -> None:
    """Every handle's moves are rows of the table, each from where the last one led."""
    now: dict[str, str] = {}
    for line in trace:
        who, _, text = line.partition(": ")
        before, arrow, after = text.partition(" (")[0].partition("→")
        if not arrow or before not in _STATES:
            continue
        assert now.get(who, "idle") == before, f"{line!r} does not follow {now.get(who)}"
        assert (before, after) in _MOVES, line
        now[who] = after


def check_transcript(messages: Sequence[dict[str, Any]]) -> None:
    """Each tool call has exactly one result, right after it."""
    awaited: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert awaited, f"a result nobody waits for: {message}"
            assert message["tool_call_id"] == awaited.pop(0)
            continue
        assert not awaited, f"no result for {awaited}"
        awaited = [one["id"] for one in message.get("tool_calls") or ()]
    assert not awaited, f"no result for {awaited}"
