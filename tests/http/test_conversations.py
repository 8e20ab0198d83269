"""Conversations: remembered by id, one run at a time, and left alone by a run that fails."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.runtime.support import Probe
from toolnexus import (
    Answer,
    Cancelled,
    CancelToken,
    ConfigError,
    Done,
    LlmClient,
    LlmError,
    MemoryConversationStore,
    RunResult,
    RunTimeoutError,
    StoreError,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import (
    ScriptedLlm,
    VirtualClock,
    status,
    text,
    tool_call,
)

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])


class Store:
    """The two methods a store must have, and what was asked of it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.kept: dict[str, list[dict[str, Any]]] = {}

    def get(self, conversation_id: str) -> list[dict[str, Any]]:
        self.log.append(f"get:{conversation_id}")
        return copy.deepcopy(self.kept.get(conversation_id, []))

    def save(self, conversation_id: str, messages: Any) -> None:
        self.log.append(f"save:{conversation_id}")
        self.kept[conversation_id] = copy.deepcopy(list(messages))


def said(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in messages]


# -- memory ---------------------------------------------------------------------------------


@STYLES
def test_an_ask_with_an_id_gets_runs_and_saves(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    store = Store()
    llm.say("m", text("hello Ann"), text("Ann"))
    client = make_client(conversation_store=store, style=style)
    client.ask("I am Ann.", id="u1")
    assert store.log == ["get:u1", "save:u1"]
    result = client.ask("Who am I?", id="u1")

    assert store.log == ["get:u1", "save:u1"] * 2
    assert [one["role"] for one in llm.requests[1].messages] == ["user", "assistant", "user"]
    assert said(store.kept["u1"]) == [
        ("user", "I am Ann."),
        ("assistant", "hello Ann"),
        ("user", "Who am I?"),
        ("assistant", "Ann"),
    ]
    assert result.messages == store.kept["u1"]
    assert client.conversation_store is store


def test_an_ask_without_an_id_remembers_nothing(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    store = Store()
    llm.say("m", text("a"), text("b"))
    client = make_client(conversation_store=store)
    client.ask("one")
    client.ask("two")

    assert store.log == []
    assert [len(request.messages) for request in llm.requests] == [1, 1]


def test_conversations_know_nothing_of_each_other(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("a"), text("b"), text("c"))
    client = make_client(system_prompt="Be kind.")
    client.ask("one", id="u1")
    client.ask("two", id="u2")
    client.ask("three", id="u1")

    assert said(llm.requests[1].messages) == [("system", "Be kind."), ("user", "two")]
    assert said(llm.requests[2].messages) == [
        ("system", "Be kind."),
        ("user", "one"),
        ("assistant", "a"),
        ("user", "three"),
    ]
    assert isinstance(client.conversation_store, MemoryConversationStore)


def test_a_stream_with_an_id_remembers_too(llm: ScriptedLlm, make_client: MakeClient) -> None:
    store = Store()
    llm.say("m", text("a"), text("b"))
    client = make_client(conversation_store=store)
    client.ask("one", id="u1")
    *_, done = client.stream("two", id="u1")
    assert isinstance(done, Done)
    assert isinstance(done.result, RunResult)

    assert (done.kind, store.log) == ("done", ["get:u1", "save:u1"] * 2)
    assert [one["content"] for one in llm.requests[1].messages] == ["one", "a", "two"]
    assert done.result.messages == store.kept["u1"]


def test_text_is_told_as_it_comes_and_the_result_is_whole(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    pieces: list[str] = []
    llm.say("m", text("hello there"))
    result = make_client().ask("hi", id="u1", on_text=pieces.append)

    assert "".join(pieces) == result.text == "hello there"


# -- a run that raises ----------------------------------------------------------------------


class Ended(BaseException):
    """Ends a thread."""


@contextmanager
def provider_is_down(llm: ScriptedLlm, make: MakeClient, store: Store) -> Iterator[LlmClient]:
    llm.say("m", tool_call("work"), status(500))
    client = make(conversation_store=store)
    with pytest.raises(LlmError):
        client.ask("two", id="u1", tools=[Probe("work")])
    yield client


@contextmanager
def a_tool_ends_the_thread(
    llm: ScriptedLlm, make: MakeClient, store: Store
) -> Iterator[LlmClient]:
    def end(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        raise Ended

    llm.say("m", tool_call("work"))
    client = make(conversation_store=store)
    with pytest.raises(Ended):
        client.ask("two", id="u1", tools=[Probe("work", end)])
    yield client


@contextmanager
def it_is_cancelled(llm: ScriptedLlm, make: MakeClient, store: Store) -> Iterator[LlmClient]:
    stop = CancelToken()

    def cancel(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        stop.cancel("enough")
        return ToolResult.ok()

    llm.say("m", tool_call("work"))
    client = make(conversation_store=store)
    with pytest.raises(Cancelled, match="enough"):
        client.ask("two", id="u1", tools=[Probe("work", cancel)], cancel=stop)
    yield client


@contextmanager
def it_is_late(llm: ScriptedLlm, make: MakeClient, store: Store) -> Iterator[LlmClient]:
    clock = VirtualClock()

    def dawdle(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        clock.advance(2)
        return ToolResult.ok()

    llm.say("m", tool_call("work"))
    client = make(conversation_store=store, clock=clock, timeout_ms=1000)
    with pytest.raises(RunTimeoutError):
        client.ask("two", id="u1", tools=[Probe("work", dawdle)])
    yield client


@contextmanager
def its_stream_is_closed(
    llm: ScriptedLlm, make: MakeClient, store: Store
) -> Iterator[LlmClient]:
    llm.say("m", tool_call("work", content="I look."))
    client = make(conversation_store=store)
    events: Any = client.stream("two", id="u1", tools=[Probe("work")])
    assert next(events).kind == "text"
    events.close()
    yield client


@contextmanager
def its_listener_fails(llm: ScriptedLlm, make: MakeClient, store: Store) -> Iterator[LlmClient]:
    llm.say("m", text("hello"))
    client = make(conversation_store=store)
    with pytest.raises(ZeroDivisionError):
        client.ask("two", id="u1", on_text=lambda piece: 1 / 0)
    yield client


@pytest.mark.parametrize(
    "fail",
    [
        provider_is_down,
        a_tool_ends_the_thread,
        it_is_cancelled,
        it_is_late,
        its_stream_is_closed,
        its_listener_fails,
    ],
)
def test_a_run_that_raises_saves_nothing_and_lets_the_next_go_on(
    llm: ScriptedLlm, make_client: MakeClient, fail: Callable[..., Any]
) -> None:
    store = Store()
    store.kept["u1"] = before = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "a"},
    ]
    with fail(llm, make_client, store) as client:
        assert store.log == ["get:u1"]
        assert store.kept == {"u1": before}
        llm.say("m", text("b"))
        client.ask("three", id="u1")

    assert said(llm.requests[-1].messages) == [
        ("user", "one"),
        ("assistant", "a"),
        ("user", "three"),
    ]
    llm.assert_done()


def test_a_result_that_cannot_be_saved_is_in_the_error(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Full(Store):
        def save(self, conversation_id: str, messages: Any) -> None:
            raise StoreError("disk full")

    llm.say("m", text("the answer"))
    with pytest.raises(StoreError, match="disk full") as caught:
        make_client(conversation_store=Full()).ask("go", id="u1")
    assert caught.value.result is not None
    assert caught.value.result.text == "the answer"


def test_a_store_that_cannot_read_sends_nothing(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Broken(Store):
        def get(self, conversation_id: str) -> list[dict[str, Any]]:
            raise StoreError("unreadable")

    with pytest.raises(StoreError, match="unreadable") as caught:
        make_client(conversation_store=Broken()).ask("go", id="u1")
    assert (caught.value.result, llm.requests) == (None, [])


@pytest.mark.parametrize("bad", ["", 7, b"u1"])
def test_an_id_that_is_none_is_refused(
    llm: ScriptedLlm, make_client: MakeClient, bad: Any
) -> None:
    client = make_client()
    with pytest.raises(ConfigError, match="id"):
        client.ask("go", id=bad)
    with pytest.raises(ConfigError, match="id"):
        client.ask_with_answer([], bad, Answer("r", True))
    with pytest.raises(ConfigError, match="not both"):
        client.stream("go", id="u1", history=[{"role": "user", "content": "x"}])
    assert llm.requests == []
