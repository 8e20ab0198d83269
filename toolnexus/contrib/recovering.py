"""What the commands do that recover runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from toolnexus.clock import Clock, RealClock, Signal
from toolnexus.errors import StoreError
from toolnexus.runtime.housekeeping import kept_in, leased_elsewhere
from toolnexus.runtime.runtime import AgentRuntime
from toolnexus.runtime.state import State

EVERY_HELP: Final = "Look again and again, for ever; else until what was found is at rest."
LIMIT_HELP: Final = "Return after so long, even if what was found is still at work."

SHOWN: Final = 20
"""How many runs are told of one by one; a store may have very many."""

_FIRST_NAP: Final = 0.2
_LONGEST_NAP: Final = 2.0
"""How long the command waits, each time longer, before it looks again for what is at rest."""

_FORGET_SECONDS: Final = 3_600.0

_LOG: Final = logging.getLogger("toolnexus.runtime.recovering")


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
        say: Is told of each, of many only by their number; and where the first look finds
            nothing, until when the leases of other processes last.
        limit: Seconds after which it returns all the same; None for none. With `every` it does
            not count.

    Raises:
        StoreError: The store does not work, and there is no `every`.
    """
    with _FewFailures(say) as failures:
        if every is None:
            _see_through(rt, limit, say, failures)
        else:
            _look_for_ever(rt, every, say, failures)


def _look_for_ever(
    rt: AgentRuntime, every: float, say: Callable[[str], object], failures: _FewFailures
) -> None:
    clock, never = RealClock(), Signal()
    is_first = True
    while True:
        try:
            taken = rt.recover()
            with _Account(say) as account:
                for run_id in taken:
                    account.tell(run_id, "taken over")
            failures.sum_up()
            if is_first and not taken and not failures:
                _say_why_nothing(rt, say)
            is_first = False
        except StoreError as error:
            say(f"the store cannot be asked: {error}")  # perhaps next time
        clock.wait(never, every)


def _see_through(
    rt: AgentRuntime,
    limit: float | None,
    say: Callable[[str], object],
    failures: _FewFailures,
) -> None:
    clock, never = RealClock(), Signal()
    end = None if limit is None else clock.monotonic() + limit
    under_way, nap = [*rt.recover()], _FIRST_NAP
    if not under_way and not failures:
        _say_why_nothing(rt, say)
    with _Account(say) as account:
        while True:
            for run_id in tuple(under_way):
                if not any(one.is_busy for one in rt.list(run_id)):
                    under_way.remove(run_id)
                    account.tell(run_id, _standing(rt, run_id))
            left = nap if end is None else min(end - clock.monotonic(), nap)
            if not under_way or left <= 0:
                break
            clock.wait(never, left)
            nap = min(2 * nap, _LONGEST_NAP)
            # A run that could not be written is nobody's again, and would stay so.
            under_way += [one for one in rt.recover() if one not in under_way]
        for run_id in under_way:
            account.tell(run_id, "still at work")
    failures.sum_up()


def _say_why_nothing(rt: AgentRuntime, say: Callable[[str], object]) -> None:
    """Say that nothing is recovered, and what is left to another process, dead or not."""
    runs, until = leased_elsewhere(rt)
    if until is None:
        say(f"nothing to recover in {kept_in(rt)}")
    else:
        whose = "1 run has a lease" if runs == 1 else f"{runs} runs have leases"
        say(
            f"nothing taken over: {whose} of another process, the last one until"
            f" {until:%Y-%m-%d %H:%M:%S} UTC unless it is renewed"
        )


class _Account:
    """Tells of the first runs one by one, and in the end how many more there were."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._told = 0
        self._rest: Counter[str] = Counter()

    def tell(self, run_id: str, what: str) -> None:
        """Tell, or count, what a run has come to."""
        if self._told < SHOWN:
            self._told += 1
            self._say(f"{run_id}: {what}")
        else:
            self._rest[what] += 1

    def __enter__(self) -> _Account:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rest:
            each = ", ".join(f"{count} {what}" for what, count in self._rest.items())
            self._say(f"and {self._rest.total()} more: {each}")


class _FewFailures(logging.Filter):
    """Lets the log tell once an hour of each run that cannot be recovered, and of few of them.

    The command looks again and again, and each look fails for the same runs.
    """

    def __init__(self, say: Callable[[str], object], clock: Clock | None = None) -> None:
        super().__init__()
        self._say = say
        self._clock = clock or RealClock()
        self._forget()

    def _forget(self) -> None:
        self._known: set[str] = set()
        self._last = SHOWN  # how many were told last
        self._until = self._clock.monotonic() + _FORGET_SECONDS

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a line is to be written."""
        line = record.getMessage()
        is_new = line not in self._known
        self._known.add(line)
        return is_new and len(self._known) <= SHOWN

    def __bool__(self) -> bool:
        return bool(self._known)

    def sum_up(self) -> None:
        """Say how many there were, if the log has not told of all."""
        if len(self._known) > self._last:
            self._last = len(self._known)
            self._say(f"{self._last} runs could not be recovered; the log tells of {SHOWN}")
        if self._clock.monotonic() >= self._until:
            self._forget()

    def __enter__(self) -> _FewFailures:
        _LOG.addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        _LOG.removeFilter(self)


def _standing(rt: AgentRuntime, run_id: str) -> str:
    """Return what a run has come to: the status of its first agent, or that agent's state."""
    handle = rt.handle(run_id)
    if handle is None:
        return "gone"
    state = handle.state  # which makes the rest of it as fresh
    if state is State.SUSPENDED:
        return "pending"
    return state.value if handle.last_result is None else handle.last_result.status
