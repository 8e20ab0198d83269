"""The state machine of a handle: one table, one pure function."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from toolnexus.errors import IllegalTransitionError


class State(enum.Enum):
    """Where a handle is in its life."""

    IDLE = "idle"
    RUNNING = "running"
    SUSPENDED = "suspended"
    CLOSED = "closed"


class Cause(enum.Enum):
    """Why a handle moves."""

    WAKE = "wake"
    REPLAY = "replay"
    FINISH = "finish"
    INTERRUPT = "interrupt"
    SUSPEND = "suspend"
    ANSWER_INLINE = "answer inline"
    ACCEPT = "accept an answer"
    WITHDRAW = "withdraw the request"
    CLOSE = "close"


EDGES: Final[Mapping[tuple[State, Cause], State]] = MappingProxyType(
    {
        (State.IDLE, Cause.WAKE): State.RUNNING,
        (State.IDLE, Cause.REPLAY): State.RUNNING,
        (State.RUNNING, Cause.FINISH): State.IDLE,
        (State.RUNNING, Cause.INTERRUPT): State.IDLE,
        (State.RUNNING, Cause.SUSPEND): State.SUSPENDED,
        (State.SUSPENDED, Cause.ANSWER_INLINE): State.RUNNING,
        (State.SUSPENDED, Cause.ACCEPT): State.IDLE,
        (State.SUSPENDED, Cause.WITHDRAW): State.IDLE,
        (State.IDLE, Cause.CLOSE): State.CLOSED,
        (State.RUNNING, Cause.CLOSE): State.CLOSED,
        (State.SUSPENDED, Cause.CLOSE): State.CLOSED,
    }
)
"""Every legal move, and no other."""


def next_state(handle_id: str, state: State, cause: Cause) -> State:
    """Return the state that `cause` leads to.

    Raises:
        IllegalTransitionError: `EDGES` has no such row.
    """
    try:
        return EDGES[state, cause]
    except KeyError:
        raise IllegalTransitionError(handle_id, state.value, cause.value) from None
