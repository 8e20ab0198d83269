"""Streaming one handle's turn: what is told, when, and how the stream ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tests.conftest import LIMIT
from tests.runtime.streams import (
    Reader,
    assert_nobody_listens,
    one_handle,
    read,
    result_of,
    spoken,
    text_of,
    told,
    until,
)
from tests.runtime.support import Make, Pay, Probe, run_turn
from toolnexus import (
    AgentRuntime,
    Answer,
    Budget,
    ConfigError,
    Handle,
    Hooks,
    InboxItem,
    MetricEvent,
    Request,
    State,
    ToolContext,
    ToolResult,
)
from toolnexus.events import Done
from toolnexus.testing import ScriptedLlm, call, status, text, tool_call, tool_calls

ME = "root/a.1"


def test_events_come_with_the_handle_and_the_result_last(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime, Probe("look"))
    llm.say("m", tool_call("look", content="I look"), text("found"))
    events = read(rt.stream(handle, "go"))

    assert text_of(events) == "I lookfound"
    assert [pair for pair in told(events) if pair[0] != "text"] == [
        ("tool_call", "look"),
        ("tool_result", "look done"),
        ("usage", "80"),
        ("done", "done"),
    ]
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-3]) == ("text", "text")
    assert {event.handle_id for event in events} == {ME}
    assert_nobody_listens(rt, handle)


def test_text_comes_while_the_model_still_speaks(llm: ScriptedLlm, make_runtime: Make) -> None:
    rt, handle = one_handle(make_runtime)
    gates = [threading.Event() for _ in range(4)]
    reply = spoken("one ", "two ", "three ", "four")
    for number, gate in enumerate(gates):
        reply = reply.paused_after(number, gate)
    llm.say("m", reply)
    reader = Reader(rt.stream(handle, "go"))
    for gate, so_far in zip(gates, ("one ", "one two ", "one two three ", None), strict=True):
        gate.set()
        if so_far is not None:
            reader.wait_text(so_far)
            assert [event.kind for event in reader.events] == ["text"] * so_far.count(" ")

    assert result_of(reader.finish()).text == "one two three four"


class Watcher(Hooks):
    """Notes what hooks are told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.streamed: list[bool] = []

    def before_llm(self, request: Any) -> None:
        self.seen.append((request.messages, [tool.name for tool in request.tools]))

    def after_llm(self, request: Any, reply: Any) -> None:
        self.seen.append(attrs.evolve(reply, streamed=False))
        self.streamed.append(reply.streamed)

    def before_tool(self, called: Any, args: Any, context: Any) -> None:
        self.seen.append((called, args))

    def after_tool(self, called: Any, args: Any, result: Any) -> None:
        self.seen.append((called, args, result))


@pytest.mark.in_memory
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_a_streamed_turn_does_and_leaves_what_another_one_does(
    llm: ScriptedLlm, make_runtime: Make, style: str
) -> None:
    outcomes, streamed = [], []
    for streams in (False, True):
        llm.say(
            "m",
            tool_calls(call("look", {"at": 1}, "c1"), call("gone", {}, "c2"), content="I look"),
            text("found"),
        )
        metrics: list[MetricEvent] = []
        watcher = Watcher()
        rt, handle = one_handle(
            make_runtime, Probe("look"), style=style, hooks=watcher, on_metric=metrics.append
        )
        if streams:
            events = read(rt.stream(handle, "go"))
            result = result_of(events)
            assert text_of(events) == "I lookfound"
        else:
            result = run_turn(rt, handle)
        facts = [attrs.evolve(one, ms=0) for one in metrics]
        outcomes.append((result, rt.transcript(handle), watcher.seen, facts, rt.trace()))
        streamed.append(watcher.streamed)

    assert outcomes[0] == outcomes[1]
    assert streamed == [[False, False], [True, True]]
    flags = [request.body.get("stream") for request in llm.requests]
    assert flags[:2] in ([None, None], [False, False])
    assert flags[2:] == [True, True]


ENDS: dict[str, Any] = {
    "done": [text("hi")],
    "pending": [tool_calls(call("look"), call("pay", {"amount": 5}))],
    "incomplete": [tool_call("look"), tool_call("look")],
    "error": [tool_call("look"), status(500)],
}


@pytest.mark.in_memory
@pytest.mark.parametrize("end", ENDS)
def test_the_last_event_holds_what_run_turn_would_return(
    llm: ScriptedLlm, make_runtime: Make, end: str
) -> None:
    results = []
    for way in ("run", "stream"):
        llm.say("m", *ENDS[end])
        tools = (Probe("look"), Pay(request_id="r1"))
        rt, handle = one_handle(make_runtime, *tools, budget=Budget(max_turns=2))
        if way == "run":
            results.append(rt.run_turn(handle, "go"))
            continue
        events = read(rt.stream(handle, "go"))
        results.append(result_of(events))
        assert sum(one.kind == "usage" for one in events) == (end == "done")
        assert_nobody_listens(rt, handle)

    assert results[0] == results[1]
    assert results[0].status == end


def _closed(rt: AgentRuntime, handle: Handle) -> tuple[Handle, str | None]:
    rt.close(handle)
    return handle, "again"


def _suspended(rt: AgentRuntime, handle: Handle) -> tuple[Handle, str | None]:
    rt.run_turn(handle, "go")
    return handle, "again"


def _root(rt: AgentRuntime, handle: Handle) -> tuple[Handle, str | None]:
    return rt.root, "go"


@pytest.mark.parametrize(
    ("arrange", "status_"),
    [
        (_closed, "closed"),
        (_suspended, "error"),
        (_root, "error"),
    ],
)
def test_a_refused_wake_is_a_result(
    llm: ScriptedLlm,
    make_runtime: Make,
    arrange: Callable[[AgentRuntime, Handle], tuple[Handle, str | None]],
    status_: str,
) -> None:
    llm.answer("m", lambda request: tool_call("pay"))
    rt, handle = one_handle(make_runtime, Pay())
    whom, prompt = arrange(rt, handle)
    asked = len(llm.requests)
    events = read(rt.stream(whom, prompt))

    assert events == [Done(rt.run_turn(whom, prompt), whom.id)]
    assert result_of(events).status == status_
    assert len(llm.requests) == asked
    assert_nobody_listens(rt, whom)


def test_a_wake_that_the_budget_refuses_is_incomplete(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime, budget=Budget(max_tokens=30))
    llm.say("m", text("hi"))
    rt.run_turn(handle, "go")
    (done,) = read(rt.stream(handle, "go"))

    assert done == Done(rt.run_turn(handle, "go"), ME)
    assert (result_of([done]).status, result_of([done]).limit) == ("incomplete", "tokens")
    assert_nobody_listens(rt, handle)


@pytest.mark.parametrize("end", ["done", "pending", "error", "closed"])
def test_a_stream_of_a_settled_agent_is_its_last_result(
    llm: ScriptedLlm, make_runtime: Make, end: str
) -> None:
    rt, handle = one_handle(make_runtime, Probe("look"), Pay())
    llm.say("m", *ENDS.get(end, []))
    if end != "closed":
        rt.run_turn(handle, "go")
    else:
        rt.close(handle)
    events = read(rt.stream(handle))

    assert events == [Done(rt.wait_on(handle), ME)]
    assert result_of(events).status == end
    assert_nobody_listens(rt, handle)


def test_a_stream_waits_for_the_first_turn_of_an_agent(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime)
    llm.say("m", text("read"))
    reader = Reader(rt.stream(handle))
    until(lambda: rt._core.feeds.listens(handle))
    rt.post(handle, InboxItem("bob", "mail", "hello"))
    rt.wake(handle)

    assert text_of(reader.finish()) == result_of(reader.events).text == "read"
    assert "hello" in llm.requests[0].prompt


def test_each_question_is_told_before_the_turn_parks(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime, Probe("look"), Pay())
    pays = (call("pay", {"amount": 1}), call("pay", {"amount": 2}))
    llm.say("m", tool_calls(call("look"), *pays))
    events = read(rt.stream(handle, "go"))

    assert told(events) == [
        ("tool_call", "look"),
        ("tool_call", "pay"),
        ("tool_call", "pay"),
        ("tool_result", "look done"),
        ("pending", "Pay 1?"),
        ("pending", "Pay 2?"),
        ("done", "pending"),
    ]
    requests = [one.request for one in events if one.kind == "pending"]
    assert [one.request for one in rt.pending()] == requests
    assert result_of(events).pending == requests[0]


def test_wait_for_is_called_after_its_question_was_told(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    was_read = threading.Event()

    def wait_for(request: Request) -> Answer:
        assert was_read.wait(LIMIT)
        return Answer(request.id, ok=True)

    rt, handle = one_handle(make_runtime, Pay(), wait_for=wait_for)
    llm.say("m", tool_call("pay", {"amount": 5}), text("paid"))
    reader = Reader(rt.stream(handle, "go"))
    reader.wait("pending")
    was_read.set()

    assert told(reader.finish())[:3] == [
        ("tool_call", "pay"),
        ("pending", "Pay 5?"),
        ("tool_result", "paid 5"),
    ]
    assert result_of(reader.events).status == "done"


def test_what_a_reader_does_to_a_question_stays_with_it(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    def ask(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is not None:
            assert ctx.request is not None
            return ToolResult.ok(f"paid {dict(ctx.request.data or {})['amount']}")
        return ToolResult.pending(Request("approval", "Pay?", data={"amount": 1}))

    rt, handle = one_handle(make_runtime, Probe("pay", ask))
    llm.say("m", tool_call("pay"), text("done"))
    for event in read(rt.stream(handle, "go")):
        if event.kind == "pending":
            event.request.data["amount"] = 1_000_000  # type: ignore[index]
    (pending,) = rt.pending()
    assert (pending.request.data or {})["amount"] == 1
    events = read(rt.stream(handle, answer=Answer(pending.request.id, ok=True)))

    assert told(events)[0] == ("tool_result", "paid 1")


def test_a_stream_that_nobody_starts_does_nothing(llm: ScriptedLlm, make_runtime: Make) -> None:
    rt, handle = one_handle(make_runtime)
    streams = [rt.stream(handle, "go"), rt.stream(handle, answer=Answer("r", ok=True))]
    for stream in streams:
        stream.close()

    assert (handle.state, llm.requests) == (State.IDLE, [])
    assert_nobody_listens(rt, handle)


def test_a_call_that_cannot_be_meant_is_refused_at_once(make_runtime: Make) -> None:
    rt, handle = one_handle(make_runtime)
    other, _ = one_handle(make_runtime)
    wrong: list[Callable[[], object]] = [
        lambda: rt.stream(handle, 7),  # type: ignore[arg-type]
        lambda: rt.stream("root/a.1", "go"),  # type: ignore[arg-type]
        lambda: other.stream(handle, "go"),
        lambda: rt.stream(handle, "go", answer=Answer("r", ok=True)),
    ]
    for make in wrong:
        with pytest.raises(ConfigError):
            make()


def test_a_stream_that_breaks_off_is_an_error_and_retry_goes_on(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    look = Probe("look")
    rt, handle = one_handle(make_runtime, look, retries=2, retry_base_ms=0)
    llm.say("m", tool_call("look"), spoken("a", "b").ended_after(1), text("whole"))
    events = read(rt.stream(handle, "go"))

    assert told(events) == [
        ("tool_call", "look"),
        ("tool_result", "look done"),
        ("text", "a"),
        ("done", "error"),
    ]
    assert "ended before the reply was whole" in result_of(events).text
    # The caller has seen a piece, so it was not sent again.
    assert len(llm.requests) == 2
    assert rt.retry(handle).text == "whole"
    assert len(look.runs) == 1


def test_a_stream_that_breaks_off_before_its_text_is_sent_again(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime, retries=2, retry_base_ms=0)
    llm.say("m", spoken("a").ended_after(0), status(503), text("whole"))
    events = read(rt.stream(handle, "go"))

    assert (text_of(events), result_of(events).status) == ("whole", "done")
    assert [request.body["stream"] for request in llm.requests] == [True] * 3


@pytest.mark.parametrize("kept", [4, 5, 6])
def test_a_call_of_a_stream_that_breaks_off_is_not_executed(
    llm: ScriptedLlm, make_runtime: Make, kept: int
) -> None:
    look = Probe("look")
    rt, handle = one_handle(make_runtime, look)
    llm.say("m", tool_call("look", {"at": 1}, content="I look").ended_after(kept))
    events = read(rt.stream(handle, "go"))

    assert [event.kind for event in events if event.kind != "text"] == ["done"]
    assert (text_of(events), result_of(events).status) == ("I look", "error")
    assert (look.runs, rt.transcript(handle)) == ([], ())


def test_only_a_turn_that_is_streamed_asks_for_a_stream(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime)
    llm.answer("m", lambda request: text("hi"))
    rt.run_turn(handle, "one")
    read(rt.stream(handle, "two"))
    rt.run_turn(handle, "three")

    assert [request.body.get("stream") for request in llm.requests] == [None, True, None]
    assert [message["content"] for message in rt.transcript(handle)] == [
        *("one", "hi", "two", "hi", "three", "hi")
    ]
