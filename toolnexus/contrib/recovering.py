"""What the commands do that recover runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from toolnexus.clock import RealClock, Signal
from toolnexus.errors import StoreError
from toolnexus.runtime.runtime import AgentRuntime
from toolnexus.runtime.state import State

EVERY_HELP: Final = "Look again and again, for ever; else until what was found is at rest."
LIMIT_HELP: Final = "Return after so long, even if what was found is still at work."

_POLL_SECONDS: Final = 0.2
"""How often the command looks whether what it has taken over is at rest."""


def recover(
    rt: AgentRuntime,
    every: float | None,
    say: Callable[[str], object],
    limit: float | None = None,
) -> None:
    """Take over runs whose process is dead, and see them through.

    Args:
        rt: Goes on with them.
        every: Seconds until the next look, for ever; None to return when the runs that were
            found are at rest: no agent of them has a turn under way, whoever's it is.
        say: Is told of each.
        limit: Seconds after which it returns all the same; None for none. With `every` it does
            not count.

    Raises:
        StoreError: The store does not work, and there is no `every`.
    """
    if every is None:
        _see_through(rt, limit, say)
        return
    clock, never = RealClock(), Signal()
    while True:
        try:
            for run_id in rt.recover():
                say(f"{run_id}: taken over")
        except StoreError as error:
            say(f"the store cannot be asked: {error}")  # perhaps next time
        clock.wait(never, every)


def _see_through(rt: AgentRuntime, limit: float | None, say: Callable[[str], object]) -> None:
    clock, never = RealClock(), Signal()
    end = None if limit is None else clock.monotonic() + limit
    under_way = [*rt.recover()]
    while True:
        for run_id in tuple(under_way):
            if not any(one.is_busy for one in rt.list(run_id)):
                under_way.remove(run_id)
                say(f"{run_id}: {_standing(rt, run_id)}")
        left = _POLL_SECONDS if end is None else min(end - clock.monotonic(), _POLL_SECONDS)
        if not under_way or left <= 0:
            break
        clock.wait(never, left)
        # A run that could not be written is nobody's again, and would stay so.
        under_way += [one for one in rt.recover() if one not in under_way]
    for run_id in under_way:
        say(f"{run_id}: still at work")


def _standing(rt: AgentRuntime, run_id: str) -> str:
    """Return what a run has come to: the status of its first agent, or that agent's state."""
    handle = rt.handle(run_id)
    if handle is None:
        return "gone"
    state = handle.state  # which makes the rest of it as fresh
    if state is State.SUSPENDED:
        return "pending"
    return state.value if handle.last_result is None else handle.last_result.status
