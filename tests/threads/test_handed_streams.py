"""A conversation's stream that is handed on: whose thread reads it is whom it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.runtime.support import Probe, in_thread, within
from toolnexus import (
    CancelToken,
    ConfigError,
    Event,
    LlmClient,
    RealClock,
    ToolContext,
    ToolResult,
)
from toolnexus.clock import Signal
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls


class Reading:
    """A thread that reads a stream up to its first event, then does as it is told."""

    def __init__(self, stream: Iterator[Event]) -> None:
        self.has_begun, self.work = threading.Event(), threading.Event()
        self.tasks: list[Callable[[], Any]] = []
        self.given = in_thread(self._run, stream)
        assert self.has_begun.wait(LIMIT)

    def _run(self, stream: Iterator[Event]) -> list[Any]:
        next(stream)
        self.has_begun.set()
        assert self.work.wait(LIMIT)
        return [task() for task in self.tasks]

    def go_on(self, *tasks: Callable[[], Any]) -> list[Any]:
        """Let the thread do this and end; return what came of it."""
        self.tasks += tasks
        self.work.set()
        return self.given.result(LIMIT)


def refused(client: LlmClient) -> bool:
    """Say whether an ask on this thread is told that it would wait for itself."""
    stop = CancelToken()
    guard = threading.Timer(LIMIT / 2, stop.cancel)
    guard.start()
    try:
        client.ask("me again", id="u1", cancel=stop)
    except ConfigError as error:
        return "'u1'" in str(error)
    finally:
        guard.cancel()
        guard.join(LIMIT)
    return False


class Watched(RealClock):
    """A clock that tells when a thread has come to wait."""

    def __init__(self) -> None:
        self.has_waiter = threading.Event()

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        self.has_waiter.set()
        return super().wait(signal, timeout)


@pytest.mark.parametrize("first_ends", [True, False])
def test_a_handed_stream_refuses_its_new_reader_and_lets_its_old_one_wait(
    llm: ScriptedLlm, make_client: MakeClient, first_ends: bool
) -> None:
    clock = Watched()
    client = make_client(clock=clock)
    llm.say("m", text("hello"), text("to the next"))
    stream = client.stream("go", id="u1")
    first = Reading(stream)
    if first_ends:
        first.go_on()
    second = Reading(stream)
    asking = (
        in_thread(client.ask, "and me?", id="u1")
        if first_ends
        else in_thread(lambda: first.go_on(lambda: client.ask("and me?", id="u1"))[0])
    )
    assert clock.has_waiter.wait(LIMIT)
    assert (asking.done(), len(llm.requests)) == (False, 1)
    was_refused, events = second.go_on(lambda: refused(client), lambda: list(stream))

    assert was_refused
    assert events[-1].kind == "done"
    assert asking.result(LIMIT).text == "to the next"
    said = [one["content"] for one in client.conversation_store.get("u1")]
    assert said == ["go", "hello", "and me?", "to the next"]


def test_a_reader_is_refused_until_the_run_has_ended(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client = make_client()
    llm.answer("m", lambda request: text("hello"))
    stream = client.stream("go", id="u1")
    assert not within(refused, client), "nothing has begun"
    told = within(lambda: [(event.kind, refused(client)) for event in stream])

    assert set(told) == {("text", True), ("usage", False), ("done", False)}


def test_whoever_closes_a_handed_stream_frees_the_conversation(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    clock = Watched()
    client = make_client(clock=clock)
    llm.say("m", text("hello"), text("mine"), text("mine, too"))
    stream = client.stream("go", id="u1")
    first = Reading(stream)
    asking = in_thread(client.ask, "and me?", id="u1")
    assert clock.has_waiter.wait(LIMIT)
    within(stream.close)

    assert asking.result(LIMIT).text == "mine"
    (result,) = first.go_on(lambda: client.ask("and here?", id="u1"))
    assert result.text == "mine, too"


@pytest.mark.parametrize("place", ["before_llm", "after_llm", "before_tool", "after_tool"])
def test_hooks_of_a_handed_stream_are_refused_on_the_thread_that_they_run_on(
    llm: ScriptedLlm, make_client: MakeClient, place: str
) -> None:
    told: list[tuple[str, bool]] = []

    def hook(*given: Any) -> None:
        told.append((threading.current_thread().name, refused(made[0])))

    made: list[LlmClient] = []
    client = make_client(hooks=type("Asking", (), {place: staticmethod(hook)})())
    made.append(client)
    llm.say("m", tool_call("pay", content="I pay"), text("done"))
    tools = [Probe("pay")]
    stream = client.stream("go", id="u1", tools=tools)
    first = Reading(stream)
    second = Reading(stream)
    first.go_on()
    (events,) = second.go_on(lambda: list(stream))

    assert events[-1].kind == "done"
    assert told
    assert {was_refused for _, was_refused in told} == {True}


def test_tools_of_a_handed_stream_are_refused_on_whatever_thread_they_run(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client, told, together = make_client(), list[bool](), threading.Barrier(2)

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        together.wait(LIMIT)  # two calls at once: one of them is on a worker
        told.append(refused(client))
        return ToolResult.ok()

    llm.say("m", tool_calls(call("look"), call("look"), content="I look"), text("done"))
    stream = client.stream("go", id="u1", tools=[Probe("look", work)])
    first = Reading(stream)
    (events,) = Reading(stream).go_on(lambda: list(stream))
    first.go_on()

    assert (events[-1].kind, told) == ("done", [True, True])
