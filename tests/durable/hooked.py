"""A store with something to do before a call, or after: to fail, or to let others come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.durable.mortal import CHANGING, OTHERS, READING, forward_all
from toolnexus import StoreError
from toolnexus.stores import MemoryStore, RunStore
from toolnexus.stores.records import Claim


class HookedStore:
    """Forwards to a store.

    Attributes:
        store: Where it is done.
        before: What is done before the next call of a method, by its name.
        after: What is done after it.
    """

    def __init__(self, store: RunStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.before: dict[str, Callable[[], object]] = {}
        self.after: dict[str, Callable[[], object]] = {}

    def change(self, name: str, *args: Any, **more: Any) -> Any:
        self.before.pop(name, _nothing)()
        given = getattr(self.store, name)(*args, **more)
        self.after.pop(name, _nothing)()
        return given


forward_all(HookedStore, (*CHANGING, *READING, *OTHERS))


def fails() -> None:
    """Fail: before a call as a full disk does, after it as a connection that breaks."""
    raise StoreError("nobody knows")


def claim_only(store: Any, request_id: str, **answer: Any) -> None:
    """Have an answer accepted, and nobody go on with it: as where a process dies in between."""
    said = {"answer": answer, "how": "resume", "at": "2026-01-01T00:00:00Z", "turns": []}
    assert store.claim("default", [Claim(request_id=request_id, answer=said)])


def _nothing() -> None:
    pass
