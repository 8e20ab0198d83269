"""What the commands do that delete old runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from toolnexus.clock import RealClock
from toolnexus.runtime.runtime import AgentRuntime

AGE_HELP: Final = (
    "Delete what nobody has touched for so long: a number and s, m, h, d or w, such as 30d."
    " Runs that wait for an answer are kept."
)

_AGE: Final = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LONGEST: Final = timedelta(days=36_500)


def age(text: str) -> timedelta:
    """Return the span of time that a text such as `30d` stands for.

    A bare number is refused. Whoever gives it may mean days, and nothing brings back what is
    deleted.

    Raises:
        ValueError: It is none; says what is right.
    """
    found = _AGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a number and s, m, h, d or w, such as 30d")
    span = timedelta(**{_UNITS[found[2]]: int(found[1])})
    if span > _LONGEST:
        raise ValueError(f"{text!r} is longer than a hundred years")
    return span


def prune(rt: AgentRuntime, older_than: timedelta, say: Callable[[str], object]) -> None:
    """Delete runs that nobody has touched for so long, and say how many agents they were.

    Runs that wait for an answer are kept.

    Raises:
        StoreError: The store does not work.
    """
    before = RealClock().now() - older_than
    count = rt.prune(older_than=before, keep_suspended=True)
    agents = "1 agent" if count == 1 else f"{count} agents"
    say(f"{agents} deleted that nobody has touched since {before:%Y-%m-%d %H:%M:%S} UTC")
