"""A store's own lock is held around a whole run, and nothing else passes for one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.http.test_conversations import Store
from tests.runtime.support import Pay, within
from toolnexus import Answer, Cancelled, CancelToken, LlmError
from toolnexus.clock import Clock
from toolnexus.testing import ScriptedLlm, VirtualClock, status, text, tool_call


class LockMethod(Store):
    """A store whose `lock` is a method for its owner's own use."""

    def lock(self) -> AbstractContextManager[object]:
        raise AssertionError("nobody asked for this lock")


class LockAttribute(Store):
    """A store that keeps a lock, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class LockValue(Store):
    """A store whose `lock` is no lock at all."""

    lock = "u1.lock"


class Holding(Store):
    """A store that keeps others out, and notes when."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Any] = []

    @contextmanager
    def hold_conversation(
        self, conversation_id: str, cancel: CancelToken, clock: Clock
    ) -> Iterator[None]:
        self.given.append((cancel, clock))
        cancel.raise_if_cancelled()
        self.log.append(f"hold:{conversation_id}")
        try:
            yield
        finally:
            self.log.append(f"free:{conversation_id}")


@pytest.mark.parametrize("kind", [LockMethod, LockAttribute, LockValue])
def test_a_store_may_have_a_lock_of_its_own(
    llm: ScriptedLlm, make_client: MakeClient, kind: type[Store]
) -> None:
    store = kind()
    client = make_client(conversation_store=store)
    llm.say("m", text("one"), text("two"), text("three"))
    within(client.ask, "a", id="u1")
    within(lambda: list(client.stream("b", id="u1")))
    client.conversation(id="u1").send("c")

    assert store.log == ["get:u1", "save:u1"] * 3
    said = [one["content"] for one in store.kept["u1"]]
    assert said == ["a", "one", "b", "two", "c", "three"]


def test_a_stores_hold_goes_around_get_and_save(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    store, clock, stop = Holding(), VirtualClock(), CancelToken()
    client = make_client(conversation_store=store, clock=clock)
    around = ["hold:u1", "get:u1", "save:u1", "free:u1"]
    llm.say("m", text("one"), text("two"))
    client.ask("a", id="u1", cancel=stop)
    assert store.log == around
    assert store.given == [(stop, clock)]
    stream = client.stream("b", id="u1")
    assert store.log == around
    list(stream)
    assert store.log == around * 2
    client.conversation(id="u1").reset()
    assert store.log == around * 3


def test_a_stores_hold_goes_around_all_that_is_saved_of_an_answer(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    store, pay = Holding(), Pay()
    client = make_client(conversation_store=store)
    llm.say("m", tool_call("pay", {"amount": 1}), status(500), text("paid"))
    parked = client.ask("pay", id="u1", tools=[pay])
    assert parked.pending is not None
    answer = Answer(parked.pending.id, True)
    for _ in range(2):
        store.log.clear()
        with contextlib.suppress(LlmError):
            client.ask_with_answer([pay], "u1", answer)
        assert store.log[:2] == ["hold:u1", "get:u1"]
        assert set(store.log[2:-1]) == {"save:u1"}
        assert store.log[-1] == "free:u1"

    assert store.kept["u1"][-1]["content"] == "paid"
    assert len(pay.paid) == 1


def test_a_store_is_let_go_after_a_run_that_failed_or_was_dropped(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    store = Holding()
    client = make_client(conversation_store=store)
    llm.say("m", status(500), text("never read"))
    with pytest.raises(LlmError):
        client.ask("a", id="u1")
    assert store.log == ["hold:u1", "get:u1", "free:u1"]
    stream = client.stream("b", id="u1")
    next(stream)
    stream.close()
    assert store.log == ["hold:u1", "get:u1", "free:u1"] * 2


def test_who_is_cancelled_while_the_store_is_held_neither_reads_nor_sends(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    store, stop = Holding(), CancelToken()
    stop.cancel("enough")
    with pytest.raises(Cancelled, match="enough"):
        make_client(conversation_store=store).ask("a", id="u1", cancel=stop)

    assert (store.log, llm.requests) == ([], [])
