"""Streams that are stopped from elsewhere, that take turns, or that change threads."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.http.raw_servers import Background
from tests.http.streaming import (
    STYLES,
    Bomb,
    generator_of,
    held,
    kinds,
    result_in,
    seen_before,
    text_in,
    until_broken,
)
from toolnexus import (
    Cancelled,
    CancelToken,
    Event,
    FileConversationStore,
    RunTimeoutError,
    TextDelta,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import (
    ScriptedLlm,
    VirtualClock,
    call,
    status,
    text,
    tool_call,
    tool_calls,
)

InBackground = Callable[[Callable[[], Any]], Background]


# -- cancelling --------------------------------------------------------------------------------


@STYLES
def test_a_cancel_from_another_thread_ends_the_wait_for_the_next_word(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground, style: str
) -> None:
    token, told = CancelToken(), threading.Event()
    events: list[Event] = []

    def consume() -> None:
        for event in client.stream("hi", id="u1", cancel=token):
            events.append(event)
            told.set()

    llm.say("m", held(style))
    client = make_client(style=style, retries=3, retry_base_ms=0)
    run = background(consume)
    assert told.wait(LIMIT)
    token.cancel("enough")

    with pytest.raises(Cancelled, match=r"^enough$"):
        run.result()
    assert events == [TextDelta("hel")]
    assert client.conversation_store.get("u1") == []
    llm.wait_connections(0)
    assert len(llm.requests) == 1


@pytest.mark.parametrize("where", ["before headers", "after headers"])
def test_a_cancel_before_the_first_word(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground, where: str
) -> None:
    token, gate = CancelToken(), threading.Event()
    reply = text("never")
    llm.say(
        "m",
        reply.held_by(gate) if where == "before headers" else reply.held_after_headers(gate),
    )
    client = make_client(retries=3, retry_base_ms=0)
    run = background(lambda: list(client.stream("hi", cancel=token)))
    llm.wait_asked("m")
    token.cancel()

    with pytest.raises(Cancelled, match=r"^run cancelled$"):
        run.result()
    llm.wait_connections(0)


def test_a_cancel_in_a_retry_wait(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    token, clock = CancelToken(), VirtualClock()
    llm.say("m", text("lost").ended_after(0), text("never"))
    client = make_client(retries=3, clock=clock)
    run = background(lambda: list(client.stream("hi", cancel=token)))
    clock.wait_parked(1)
    token.cancel()

    with pytest.raises(Cancelled):
        run.result()
    assert len(llm.requests) == 1


def test_words_that_have_arrived_are_not_told_after_a_cancel(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    token = CancelToken()
    llm.say("m", text("hello").in_pieces_of(100_000))
    client = make_client()
    stream = client.stream("hi", id="u1", cancel=token)
    assert next(stream) == TextDelta("hel")
    token.cancel()

    with pytest.raises(Cancelled):
        next(stream)
    assert client.conversation_store.get("u1") == []


def test_a_cancelled_stream_has_a_checkpoint_to_go_on_from(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    token, bomb = CancelToken(), Bomb()
    llm.say("m", tool_call("bomb", {}, "c1"), held(), text("done"))
    client = make_client()
    stream = client.stream("go", tools=[bomb], cancel=token)
    seen_before(stream, "text")
    token.cancel()
    with pytest.raises(Cancelled) as caught:
        next(stream)

    assert caught.value.checkpoint is not None
    result = client.resume(caught.value.checkpoint, tools=[bomb])
    assert (result.text, bomb.exploded) == ("done", 1)


# -- deadlines ---------------------------------------------------------------------------------


def test_a_deadline_ends_a_stream_in_mid_text(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    clock, told = VirtualClock(), threading.Event()
    events: list[Event] = []

    def consume() -> None:
        for event in client.stream("hi", id="u1"):
            events.append(event)
            told.set()

    llm.say("m", held())
    client = make_client(timeout_ms=10_000, clock=clock, retries=3)
    run = background(consume)
    assert told.wait(LIMIT)
    clock.wait_parked(1)
    clock.advance(10.0)

    with pytest.raises(RunTimeoutError, match=r"^run timeout after 10000ms$") as caught:
        run.result()
    assert text_in(events) == caught.value.partial == "hel"
    assert client.conversation_store.get("u1") == []
    llm.wait_connections(0)
    assert len(llm.requests) == 1


def test_a_deadline_that_passes_while_the_consumer_dawdles_ends_the_stream(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    clock = VirtualClock()
    llm.say("m", held())
    stream = make_client(timeout_ms=10_000, clock=clock).stream("hi")
    assert next(stream) == TextDelta("hel")
    clock.wait_parked(1)
    clock.advance(10.0)
    llm.wait_connections(0)  # it does not take the consumer to end the request

    with pytest.raises(RunTimeoutError, match="run timeout after 10000ms"):
        next(stream)


def test_the_wait_before_the_next_attempt_counts_against_the_deadline(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    clock, failed = VirtualClock(), threading.Event()
    llm.say("m", status(429, headers={"retry-after": "30"}), text("too late"))
    client = make_client(
        retries=1, timeout_ms=10_000, clock=clock, on_error=lambda *_: failed.set()
    )
    run = background(lambda: list(client.stream("hi")))
    assert failed.wait(LIMIT)
    clock.wait_parked(1)
    clock.advance(10.0)

    with pytest.raises(RunTimeoutError, match="run timeout after 10000ms"):
        run.result()
    assert len(llm.requests) == 1


def test_a_deadline_of_0_asks_nothing(llm: ScriptedLlm, make_client: MakeClient) -> None:
    told, error = until_broken(make_client(timeout_ms=0).stream("hi"))

    assert told == []
    assert isinstance(error, RunTimeoutError)
    assert llm.requests == []


# -- threads -----------------------------------------------------------------------------------


def test_two_streams_of_one_thread_may_go_on_in_turns(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    gates = [threading.Event(), threading.Event()]
    for gate in gates:
        llm.say("m", text("hello").paused_after(2, gate))
    client = make_client()
    streams = [client.stream("a"), client.stream("b")]
    assert [next(stream) for stream in streams] == [TextDelta("hel")] * 2
    for gate in reversed(gates):
        gate.set()
    assert [next(stream) for stream in streams] == [TextDelta("lo")] * 2
    first, second = (result_in(list(stream)) for stream in streams)

    assert first.text == second.text == "hello"
    assert [message["content"] for message in first.messages] == ["a", "hello"]
    assert [message["content"] for message in second.messages] == ["b", "hello"]


def test_a_run_may_go_on_between_the_words_of_a_stream(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    gate = threading.Event()
    llm.say("m", text("hello").paused_after(2, gate), text("other"))
    client = make_client()
    stream = client.stream("hi")
    next(stream)
    assert client.run("other").text == "other"
    gate.set()

    assert text_in(stream) == "lo"


@pytest.mark.parametrize("in_files", [False, True])
def test_a_stream_may_go_on_in_another_thread(
    llm: ScriptedLlm,
    make_client: MakeClient,
    background: InBackground,
    tmp_path: Any,
    in_files: bool,
) -> None:
    gate, bomb = threading.Event(), Bomb()
    store = FileConversationStore(tmp_path) if in_files else None
    llm.say("m", tool_call("bomb"), text("hello").paused_after(2, gate), text("again"))
    client = make_client(conversation_store=store)
    stream = client.stream("go", id="u1", tools=[bomb])
    kinds_here = [next(stream).kind, next(stream).kind, next(stream).kind]
    assert kinds_here == ["tool_call", "tool_result", "text"]
    gate.set()
    events = background(lambda: list(stream)).result()

    assert kinds(events) == ["text", "usage", "done"]
    assert result_in(events).text == "hello"
    assert client.ask("more", id="u1").text == "again"


def test_a_stream_may_be_closed_by_another_thread(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    llm.say("m", held())
    stream = generator_of(make_client().stream("hi"))
    next(stream)
    background(stream.close).result()

    llm.wait_connections(0)
    assert list(stream) == []


def test_between_two_events_the_callers_context_is_its_own(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_calls(call("bomb"), call("bomb"), content="Now."), text("done"))
    before = dict(contextvars.copy_context())
    for _ in make_client().stream("go", id="u1", tools=[Bomb()]):
        assert dict(contextvars.copy_context()) == before
    assert dict(contextvars.copy_context()) == before


def test_a_tool_sees_the_context_of_whoever_asks_for_the_next_event(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    word = contextvars.ContextVar("word", default="unset")
    seen: list[str] = []

    class Look(Bomb):
        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            seen.append(word.get())
            return ToolResult.ok("seen")

    llm.say("m", tool_calls(call("bomb"), call("bomb")), text("done"))
    stream = make_client().stream("go", tools=[Look()])
    word.set("set")
    list(stream)

    assert seen == ["set", "set"]


def test_one_client_serves_many_streams_at_once(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    llm.answer("m", lambda request: text(request.prompt).in_pieces_of(7))
    client = make_client()

    def consume(name: int) -> None:
        for turn in range(5):
            stream = generator_of(client.stream(f"prompt {name} {turn}"))
            if turn % 2:
                next(stream)
                stream.close()
            else:
                assert text_in(stream) == f"prompt {name} {turn}"

    for one in [background(partial(consume, name)) for name in range(6)]:
        one.result()


def test_closing_the_client_does_not_hang_on_a_stream(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", held())
    client = make_client()
    stream = generator_of(client.stream("hi"))
    next(stream)
    client.close()
    with contextlib.closing(stream):
        pass

    llm.wait_connections(0)
