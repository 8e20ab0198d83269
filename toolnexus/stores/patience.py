"""Patience: how long a server of a database may be silent before a process gives it up."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final, TypeVar

from toolnexus.clock import RealClock

T = TypeVar("T")

SILENCE_SECONDS: Final = 75.0
"""How long a reply is waited for: by then the server should have given the statement up, for
which it has a minute. No statement of a store takes long, but one may wait."""

_OF_LIBPQ: Final[Mapping[str, int]] = {
    # Seconds, and for the last one milliseconds.
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}

_real: Final = RealClock()


class Silent(Exception):
    """Nothing has come for too long."""


def limits_beside(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, int]:
    """Return the limits of a connection that a conninfo says nothing about."""
    limits = {name: value for name, value in _OF_LIBPQ.items() if name not in given}
    if "PGCONNECT_TIMEOUT" in environment:
        limits.pop("connect_timeout", None)
    return limits


def has_limit_of_its_own(given: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Whether whoever wrote a conninfo has said how long a statement may take."""
    options = given.get("options") or environment.get("PGOPTIONS") or ""
    return "statement_timeout" in str(options)


def limited(waiting: Generator[T, Any, Any], seconds: float) -> Generator[T, Any, Any]:
    """Do what a driver's generator does, which is told now and then that nothing has come.

    Raises:
        Silent: That was all it was told for too long.
    """
    until = _real.monotonic() + seconds
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if ready:
                until = _real.monotonic() + seconds
            elif _real.monotonic() > until:
                raise Silent
            wanted = waiting.send(ready)
    except StopIteration as end:
        return end.value
