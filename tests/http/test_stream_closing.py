"""Streams that nobody listens to any more: the request ends, the conversation stays."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.http.raw_servers import Background
from tests.http.streaming import (
    STYLES,
    Bomb,
    Watching,
    generator_of,
    held,
    kinds,
    seen_before,
    text_in,
)
from toolnexus import (
    FileConversationStore,
    LlmClient,
    LlmError,
    TextDelta,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    status,
    text,
    tool_call,
    tool_calls,
)

InBackground = Callable[[Callable[[], Any]], Background]


class Slow:
    """A tool that works until it is told to stop, and notes how it ended."""

    name, description, source = "slow", "Work", "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {"type": "object"}
        self.begun, self.ended = threading.Event(), threading.Event()
        self.was_cancelled: bool | None = None

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        stopped = threading.Event()
        ctx.cancel.on_cancel(stopped.set)
        self.begun.set()
        self.was_cancelled = stopped.wait(LIMIT)
        self.ended.set()
        return ToolResult.ok("worked")


# -- closing -----------------------------------------------------------------------------------


@STYLES
def test_closing_in_mid_text_aborts_the_request(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", held(style), text("again"))
    client = make_client(style=style)
    stream = generator_of(client.stream("hi"))
    assert next(stream) == TextDelta("hel")
    stream.close()

    llm.wait_connections(0)
    assert list(stream) == []
    assert text_in(client.stream("hi")) == "again"


def test_dropping_the_last_reference_aborts_the_request(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", held())
    stream = make_client().stream("hi")
    next(stream)
    gone = weakref.ref(stream)
    gc.disable()  # the count of references must do
    try:
        del stream
        assert gone() is None
        llm.wait_connections(0)
    finally:
        gc.enable()


# The collector may finalise a socket before the generator that would have closed it.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_stream_in_a_cycle_is_aborted_by_the_garbage_collector(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", held())
    cycle: list[Any] = [make_client().stream("hi")]
    cycle.append(cycle)
    next(cycle[0])
    del cycle
    gc.collect()

    llm.wait_connections(0)


def test_an_exception_in_the_consumer_aborts_the_request(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", held())
    client = make_client()

    def consume() -> None:
        for event in client.stream("hi"):
            raise ZeroDivisionError(event.kind)

    with pytest.raises(ZeroDivisionError, match="text"):
        consume()
    llm.wait_connections(0)


def test_leaving_the_loop_aborts_the_request(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", held())
    for _ in make_client().stream("hi"):
        break

    llm.wait_connections(0)


@pytest.mark.parametrize("begun", [False, True])
def test_closing_before_the_first_event_leaves_nothing(
    llm: ScriptedLlm, make_client: MakeClient, begun: bool
) -> None:
    watching = Watching()
    stream = generator_of(make_client(**watching.options).stream("hi", id="u1"))
    if begun:
        llm.say("m", status(400))
        with pytest.raises(LlmError):
            next(stream)
    stream.close()

    assert list(stream) == []
    assert len(llm.requests) == begun


@STYLES
@pytest.mark.parametrize("events", range(11))
def test_a_stream_may_be_closed_after_any_event(
    llm: ScriptedLlm, make_client: MakeClient, style: str, events: int
) -> None:
    def answer(request: RecordedRequest) -> Reply:
        if request.prompt == "lost" and not request.tool_results:
            return tool_calls(call("bomb"), call("bomb"), content="Now.")
        return text("done")

    llm.answer("m", answer)
    bomb, client = Bomb(), make_client(style=style)
    client.ask("first", id="u1")
    before = client.conversation_store.get("u1")
    stream = generator_of(client.stream("lost", id="u1", tools=[bomb]))
    # Two words, two calls, two results, two words, the usage, the end.
    told = [next(stream).kind for _ in range(events)]
    stream.close()

    assert list(stream) == []
    assert (client.conversation_store.get("u1") == before) is ("usage" not in told)
    results = told.count("tool_result")
    assert bomb.exploded in {0: (0,), 1: (1, 2), 2: (2,)}[results]
    assert client.ask("second", id="u1", tools=[bomb]).status == "done"
    assert bomb.exploded in {0: (0,), 1: (1, 2), 2: (2,)}[results]


def test_closing_between_two_results_stops_what_is_under_way(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    slow, bomb = Slow(), Bomb()
    llm.say("m", tool_calls(call("bomb"), call("slow")), text("never"))
    stream = generator_of(make_client().stream("go", tools=[slow, bomb]))
    assert kinds(seen_before(stream, "tool_result")) == [
        "tool_call",
        "tool_call",
        "tool_result",
    ]
    assert slow.begun.wait(LIMIT)
    stream.close()

    assert slow.ended.wait(LIMIT)
    assert slow.was_cancelled is True
    assert len(llm.requests) == 1


def test_closing_between_the_calls_and_their_results_executes_nothing(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    bomb = Bomb()
    llm.say("m", tool_calls(call("bomb"), call("bomb")))
    stream = generator_of(make_client().stream("go", tools=[bomb]))
    assert [next(stream).kind for _ in range(2)] == ["tool_call"] * 2
    stream.close()

    assert bomb.exploded == 0


def test_what_no_worker_has_begun_when_a_stream_is_closed_never_will(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    slow, bomb = Slow(), Bomb()

    class Quick(Bomb):
        name = "quick"

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            assert slow.begun.wait(LIMIT)  # and so the only worker is taken
            return ToolResult.ok("quick")

    llm.say("m", tool_calls(call("quick"), call("slow"), call("bomb")))
    client = make_client(max_workers=1)
    stream = generator_of(client.stream("go", tools=[Quick(), slow, bomb]))
    seen_before(stream, "tool_result")
    stream.close()

    assert slow.ended.wait(LIMIT)
    client.close()
    assert bomb.exploded == 0


def test_no_thread_is_left(llm: ScriptedLlm) -> None:
    before = set(threading.enumerate())
    llm.say("m", held(), tool_calls(call("bomb"), call("slow")))
    slow = Slow()
    with LlmClient(
        base_url=llm.base_url, api_key="k", model="m", timeout_ms=600_000, retries=0
    ) as client:
        first = generator_of(client.stream("hi"))
        next(first)
        first.close()
        second = generator_of(client.stream("go", tools=[slow, Bomb()]))
        seen_before(second, "tool_result")
        assert slow.begun.wait(LIMIT)
        second.close()
        assert slow.ended.wait(LIMIT)
    llm.wait_connections(0)

    assert [t for t in set(threading.enumerate()) - before if "toolnexus" in t.name] == []


def test_a_closed_stream_is_counted_once_and_truly(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    watching = Watching()
    llm.say("m", held())
    stream = generator_of(make_client(**watching.options).stream("hi"))
    next(stream)
    stream.close()
    model, run = watching.metrics

    assert (model.kind, model.status) == ("llm", "error")
    assert (run.kind, run.status, run.error) == ("run", "interrupted", None)
    assert [seen[0] for seen in watching.seen] == ["before_llm"]


def test_an_on_text_that_raises_ends_the_run_with_that(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    told: list[str] = []

    def on_text(word: str) -> None:
        told.append(word)
        raise ZeroDivisionError(word)

    llm.say("m", held(), text("one"))
    client = make_client(retries=3)
    with pytest.raises(ZeroDivisionError, match="hel"):
        client.ask("hi", id="u1", on_text=on_text)

    llm.wait_connections(0)
    assert told == ["hel"]
    assert client.conversation_store.get("u1") == []
    assert client.ask("again", id="u1").text == "one"


@pytest.mark.parametrize("in_files", [False, True])
def test_the_next_ask_on_a_conversation_does_not_wait_for_a_closed_stream(
    llm: ScriptedLlm,
    make_client: MakeClient,
    background: InBackground,
    tmp_path: Any,
    in_files: bool,
) -> None:
    store = FileConversationStore(tmp_path) if in_files else None
    llm.say("m", text("one"), held(), text("two"))
    client = make_client(conversation_store=store)
    client.ask("first", id="u1")
    stream = generator_of(client.stream("lost", id="u1"))
    next(stream)
    run = background(lambda: client.ask("second", id="u1"))
    assert len(llm.requests) == 2  # it queues
    stream.close()

    assert run.result().text == "two"
    said = [message["content"] for message in llm.requests[-1].messages]
    assert said == ["first", "one", "second"]


def test_a_tool_that_holds_something_is_told_that_its_question_is_over(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    from toolnexus import Request

    class Holds(Bomb):
        given_up: list[str]

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            self.given_up = []
            return ToolResult.pending(Request("q", "Sure?"))

        def give_up(self, key: str) -> None:
            self.given_up.append(key)

    holds = Holds()
    llm.say("m", tool_call("bomb"))
    stream = generator_of(make_client().stream("go", tools=[holds]))
    assert seen_before(stream, "pending")
    assert holds.given_up == []
    stream.close()

    assert len(holds.given_up) == 1
