"""What the parts of the suite share: how a store is made, and what is written to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import pytest

from toolnexus.clock import RealClock, Signal
from toolnexus.codec import JsonValue
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import (
    Claim,
    HandleChange,
    Held,
    Lease,
    NewRequest,
    RunChange,
    Taken,
    Wait,
)

RT: Final = "shop"
ONE: Final = "one"
TWO: Final = "two"
LONG_MS: Final = 600_000
LIMIT_SECONDS: Final = 30.0
"""How long anything may block before the test fails."""

FAR: Final = datetime(2100, 1, 1, tzinfo=timezone.utc)

_REAL: Final = RealClock()


class StoreSuite:
    """The base of all parts; see `toolnexus.testing.store_contract.StoreContract`."""

    can_be_shared = True
    """Whether another process that opens the store sees the same runs."""

    def make_store(self, directory: Path) -> RunStore:
        """Open the store of a directory, which is a new one for each test.

        Called again for the same directory, also in another process, it opens the same runs.
        """
        raise NotImplementedError("make_store(directory) has to return your store")

    def let_pass(self, milliseconds: int) -> None:
        """Let as much of the store's time pass. Here that is real time."""
        _REAL.wait(Signal(), milliseconds / 1000)

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[RunStore]:
        """Return the store of the test; it is closed at the end."""
        made = self.make_store(tmp_path)
        yield made
        made.close()

    @pytest.fixture
    def again(self, tmp_path: Path, store: RunStore) -> Iterator[RunStore]:
        """Return the test's store as another process has it."""
        del store  # made first
        made = self.make_store(tmp_path)
        yield made
        made.close()


# -- steps -------------------------------------------------------------------------------------


def start(store: RunStore, agent: str = "a", *, runtime: str = RT) -> str:
    """Make a run of nobody's; return its id."""
    run_id = store.start_run(runtime, "root", agent, {"made": True})
    assert run_id is not None
    return run_id


def take(store: RunStore, run_id: str, owner: str = ONE, *, lease_ms: int = LONG_MS) -> Lease:
    """Take a run, busy or not."""
    found = try_to_take(store, run_id, owner, lease_ms=lease_ms)
    assert isinstance(found, Lease), found
    return found


def try_to_take(
    store: RunStore,
    run_id: str,
    owner: str = ONE,
    *,
    lease_ms: int = LONG_MS,
    takes_busy: bool = True,
    runtime: str = RT,
) -> Lease | Held | None:
    """Take a run, or tell why not."""
    found = store.take(runtime, run_id, owner, lease_ms, takes_busy=takes_busy)
    return found.lease if isinstance(found, Taken) else found


def messages_of(store: RunStore, handle_id: str) -> dict[int, Any]:
    """Return the messages of a handle; none for an unknown id."""
    found = store.load_handle(RT, handle_id, {"messages"})
    return {} if found is None else dict(found.messages)


def begin(
    store: RunStore, agent: str = "a", owner: str = ONE, *, lease_ms: int = LONG_MS
) -> Lease:
    """Make a run and take it."""
    return take(store, start(store, agent), owner, lease_ms=lease_ms)


def write(store: RunStore, lease: Lease, **change: Any) -> tuple[str, ...]:
    """Write one step of one run."""
    return store.write(RT, [RunChange(lease=lease, **change)])


def at(
    handle_id: str, state: str = "running", *, agent: str = "a", **change: Any
) -> HandleChange:
    """Return what has changed of a handle."""
    return HandleChange(id=handle_id, agent=agent, state=state, **change)


def new(request_id: str, kind: str = "approval", **fields: Any) -> NewRequest:
    """Return a request that opens."""
    return NewRequest(id=request_id, kind=kind, body={"asks": request_id}, **fields)


def ask(store: RunStore, lease: Lease, request_id: str, call: int = 1, **fields: Any) -> Wait:
    """Open a request that a call of the run's first handle waits for."""
    wait = Wait(request_id, lease.run_id, call)
    write(store, lease, opened=(new(request_id, **fields),), waits=(wait,))
    return wait


def claim(request_id: str, answer: JsonValue = "yes") -> Claim:
    """Return an answer to a request."""
    return Claim(request_id=request_id, answer=answer)


def answer(store: RunStore, request_id: str, value: JsonValue = "yes") -> bool:
    """Answer a request; say whether it was open."""
    return store.claim(RT, [claim(request_id, value)])


# -- looks -------------------------------------------------------------------------------------


def ids(records: Iterator[Any] | Sequence[Any]) -> list[str]:
    """Return the ids of records."""
    return [record.id for record in records]


def state_of(store: RunStore, request_id: str) -> str | None:
    """Return the state of a request; None for an unknown one."""
    found = store.request(RT, request_id)
    return None if found is None else found.state


def head_of(store: RunStore, handle_id: str) -> JsonValue:
    """Return the head of a handle."""
    found = store.handle(RT, handle_id)
    assert found is not None
    return found.head


def answers_of(store: RunStore, run_id: str) -> Mapping[Wait, JsonValue]:
    """Return the answers that have come for a run."""
    return dict(store.mail(RT, run_id).answers)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that time brings about."""
    limit = _REAL.monotonic() + LIMIT_SECONDS
    while not is_so():
        assert _REAL.monotonic() < limit, "it never came"
        _REAL.wait(Signal(), 0.005)


def later(seconds: float) -> datetime:
    """Return a time from `FAR` on."""
    return FAR + timedelta(seconds=seconds)
