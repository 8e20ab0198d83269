"""A store that fails when a test wants it to, and a host that does not give up."""

from __future__ import annotations

import threading
from typing import Any

from tests.conftest import LIMIT
from tests.durable import firm
from tests.durable.mortal import forward_all
from toolnexus import AgentRuntime, Answer, State, StoreError
from toolnexus.clock import RealClock
from toolnexus.stores import RunStore


class AilingStore:
    """A store one of whose changing calls fails: before it is done, or after it.

    The second is what a database does whose connection breaks in a commit.

    Attributes:
        has_failed: Whether it has.
    """

    def __init__(
        self, store: RunStore, order: firm.Order, fails_at: int, when: str = ""
    ) -> None:
        self.store = store
        self.has_failed = False
        self._order = order
        self._fails_at, self._when = fails_at, when
        self._lock = threading.Lock()
        self._count = 0

    def change(self, name: str, *args: Any, **more: Any) -> Any:
        with self._lock:
            self._count += 1
            fails = self._count == self._fails_at
            if fails:
                self.has_failed = True
                self._order.free()
            if fails and self._when == "before":
                raise StoreError("no room")
            given = getattr(self.store, name)(*args, **more)
            if fails:
                raise StoreError("nobody knows")
        self._order.see(name, args)
        return given


forward_all(AilingStore)


def persist(rt: AgentRuntime) -> list[str]:
    """Do all that `firm.do_all` does, and try again what fails; return what was told then."""
    told: list[str] = []
    clock = RealClock()
    limit = clock.monotonic() + LIMIT
    while clock.monotonic() < limit:
        try:
            rt.recover()
            if _step(rt, told):
                return told
        except StoreError as error:
            told.append(str(error))
    raise AssertionError(told)


def _step(rt: AgentRuntime, told: list[str]) -> bool:
    handle = rt.handle(firm.BOSS) or rt.spawn(rt.root, "boss").handle
    if handle.state is State.CLOSED:
        return True
    view = rt.inspect(handle)
    assert view is not None
    if view.turns == 0 and view.state is State.IDLE:
        result = rt.run_turn(handle, firm.PROMPT)
    else:
        result = rt.wait_on(handle, 0.2)
    if result.pending is not None:
        rt.resume(Answer(result.pending.id, ok=True))
    elif result.status == "done":
        rt.close(handle)
    elif result.status != "timeout":
        assert result.is_error
        told.append(result.text)
    return False


def take_part(
    base_url: str, directory: str, conninfo: str | None, lease_ms: int, work_seconds: float
) -> list[str]:
    """Do what is left, side by side with other processes that do so; return what was told."""
    store = firm.open_store(directory, conninfo)
    order = firm.Order(is_free=True, work_seconds=work_seconds)
    options = {"lease_ms": lease_ms, "max_recoveries": 1_000}
    rt = firm.runtime(base_url, directory, store, order, **options)
    try:
        return persist(rt)
    finally:
        rt.close(force=True)
        store.close()
