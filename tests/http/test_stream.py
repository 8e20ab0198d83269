"""A streamed run: its events, their order, and that it is the run that does not stream."""

from __future__ import annotations

import threading
from typing import Any, get_args

import attrs
import pytest

from tests.conftest import LIMIT, MakeClient
from tests.http.raw_servers import Peer
from tests.http.streaming import (
    FIRST_WORD,
    HELLO,
    SECOND_WORD,
    STYLES,
    Watching,
    begin_stream,
    end_stream,
    kinds,
    result_in,
    send_chunk,
    sse,
    text_in,
)
from tests.http.test_client_run import add
from toolnexus import (
    Done,
    Event,
    Request,
    RunResult,
    TextDelta,
    ToolContext,
    ToolResult,
    Usage,
    UsageUpdate,
)
from toolnexus.events import KINDS
from toolnexus.testing import Reply, ScriptedLlm, call, text, tool_call, tool_calls

EMOJI = 'naïve 😀 "quoted"\\ \u2028 日本\n'
"""Text whose characters take one to four bytes, or an escape."""


class Approve:
    """A tool that asks one question with a fixed id."""

    name, description, source = "approve", "Ask", "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {"type": "object"}

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "Sure?", id="q1"))
        return ToolResult.ok("approved")


CALL = call("add", {"a": 1, "b": 2}, "c1")
SCRIPTS: dict[str, list[Reply]] = {
    "text": [text("hello")],
    "one letter": [text("x")],
    "no text": [text("")],
    "many bytes": [text(EMOJI)],
    "no usage": [text("hi", usage=None)],
    "a call": [tool_calls(CALL), text("3")],
    "a call after text": [tool_calls(CALL, content="Let me see."), text("3")],
    "parallel calls": [
        tool_calls(CALL, call("add", {"a": 3, "b": 4}, "c2"), call("add", {}, "c3")),
        text("3 and 7"),
    ],
    "two rounds": [
        tool_calls(CALL),
        tool_call("add", {"a": 5, "b": 6}, "c2", content="more"),
        text("11"),
    ],
    "malformed arguments": [tool_call("add", '{"a": 1, ', "c1"), text("sorry")],
    "arguments of many bytes": [tool_call("add", {"a": EMOJI, "b": 2}, "c1"), text("no")],
    "an unknown tool": [tool_call("subtract", {}, "c1"), text("sorry")],
    "thinking": [
        tool_calls(CALL).with_thinking("Hm, " + EMOJI).with_redacted_thinking("xyz"),
        text("3").with_thinking("ah"),
    ],
    "reasoning": [
        tool_calls(CALL).with_extra(reasoning_content="Hm, " + EMOJI),
        text("3").with_extra(reasoning="ah"),
    ],
    "cut off by length": [text("once upon a", finish="length")],
    "calls cut off by length": [
        tool_calls(CALL, call("add", '{"a": 5', "c2"), finish="length"),
        text("sorry"),
    ],
    "filtered": [text("I can", finish="content_filter")],
    "too many turns": [
        tool_call("add", {"a": n, "b": 1}, f"c{n}", content="go on") for n in range(3)
    ],
    "a question": [
        tool_calls(CALL, call("approve", {}, "c2"), call("approve", {}, "c3"), content="well")
    ],
}


def without_run(result: RunResult) -> RunResult:
    """Return the result without what is random in each run."""
    if result.checkpoint is None:
        return result
    calls = tuple(
        attrs.evolve(
            one,
            asked_at=None,
            request=one.request and attrs.evolve(one.request, id="q"),
        )
        for one in result.checkpoint.calls
    )
    checkpoint = attrs.evolve(result.checkpoint, run="", calls=calls)
    return attrs.evolve(result, messages=[], checkpoint=checkpoint, pending=calls[1].request)


@STYLES
@pytest.mark.parametrize("script", SCRIPTS)
def test_it_is_the_same_run(
    llm: ScriptedLlm, make_client: MakeClient, style: str, script: str
) -> None:
    plain, streamed = Watching(), Watching()
    options = {"style": style, "system_prompt": "Be brief.", "max_turns": 3}
    llm.say("m", *SCRIPTS[script], *SCRIPTS[script])
    result = make_client(**options, **plain.options).run("go", tools=[add, Approve()])
    client = make_client(**options, **streamed.options)
    events = list(client.stream("go", tools=[add, Approve()]))

    assert without_run(result_in(events)) == without_run(result)
    assert streamed.seen == plain.seen
    assert streamed.metrics == plain.metrics
    assert set(plain.streamed) == {False}
    assert set(streamed.streamed) == {True}
    asked, again = llm.requests[: len(SCRIPTS[script])], llm.requests[len(SCRIPTS[script]) :]
    for one, two in zip(asked, again, strict=True):
        added = {key: value for key, value in two.body.items() if key not in one.body}
        assert added.pop("stream") is True
        assert {**one.body, **added, "stream": True} == two.body
    llm.assert_done()


@STYLES
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_events_tell_it_in_order(
    llm: ScriptedLlm, make_client: MakeClient, style: str, script: str
) -> None:
    watching = Watching()
    llm.say("m", *SCRIPTS[script])
    client = make_client(style=style, max_turns=3, **watching.options)
    events = list(client.stream("go", tools=[add, Approve()]))
    replies = [seen[1] for seen in watching.seen if seen[0] == "after_llm"]
    result = result_in(events)

    expected: list[str] = []
    for reply in replies:
        expected += ["text"] * bool(reply.text) + ["tool_call"] * len(reply.calls)
        if result.status == "pending":
            expected += ["tool_result", "pending", "pending"]
        else:
            expected += ["tool_result"] * len(reply.calls)
    expected += ["usage"] * (result.status == "done") + ["done"]
    assert kinds(events) == expected
    assert text_in(events) == "".join(reply.text for reply in replies)
    started = [event.call for event in events if event.kind == "tool_call"]
    assert started == [one for reply in replies for one in reply.calls]
    assert all(event.delta for event in events if event.kind == "text")
    assert all(event.handle_id is None for event in events)
    assert [event for event in events if event.kind == "usage"] == (
        [UsageUpdate(result.usage)] if result.status == "done" else []
    )


@STYLES
@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (7, 1), (64,), (100_000,)], ids=repr)
def test_any_split_of_the_bytes_gives_the_same(
    llm: ScriptedLlm, make_client: MakeClient, style: str, sizes: tuple[int, ...]
) -> None:
    replies = [
        tool_calls(
            call("add", {"a": 1, "b": 2, "c": EMOJI}, "c1"),
            call("add", {"a": 3, "b": 4}, "c2"),
            content=EMOJI,
        ).with_thinking(EMOJI),
        text(EMOJI * 3),
    ]
    llm.say("m", *replies, *(reply.in_pieces_of(*sizes) for reply in replies))
    client = make_client(style=style)
    whole = client.run("go", tools=[add])
    events = list(client.stream("go", tools=[add]))

    assert result_in(events) == whole
    assert text_in(events) == EMOJI * 4


def test_each_event_says_its_kind() -> None:
    assert tuple(one.kind for one in get_args(Event)) == KINDS
    assert (TextDelta("x").kind, TextDelta("x").delta) == ("text", "x")


# -- when --------------------------------------------------------------------------------------


@STYLES
def test_a_word_is_told_while_the_server_holds_the_next_one_back(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    first, second = threading.Event(), threading.Event()
    reply = text("hello").paused_after(FIRST_WORD[style], first)
    llm.say("m", reply.paused_after(SECOND_WORD[style], second))
    stream = make_client(style=style).stream("hi")

    assert next(stream) == TextDelta("hel")
    first.set()
    assert next(stream) == TextDelta("lo")
    second.set()
    usage, done = stream
    assert usage == UsageUpdate(Usage(30, 10, 40))
    assert isinstance(done, Done)
    assert done.result.text == "hello"


def test_a_word_of_a_compressed_stream_is_told_at_once(
    make_client: MakeClient, serve: Any
) -> None:
    import zlib

    told = threading.Event()

    def play(peer: Peer) -> None:
        peer.request()
        begin_stream(peer, "content-encoding: gzip")
        packer = zlib.compressobj(wbits=31)
        for number, event in enumerate(HELLO):
            packed = packer.compress(sse(event).encode()) + packer.flush(zlib.Z_SYNC_FLUSH)
            send_chunk(peer, packed)
            if number == 0:
                told.wait(LIMIT)
        send_chunk(peer, packer.compress(sse("[DONE]").encode()) + packer.flush())
        end_stream(peer)

    stream = make_client(base_url=serve(play).base_url).stream("hi")
    assert next(stream) == TextDelta("hel")
    assert not told.is_set()
    told.set()
    events = list(stream)
    assert text_in(events) == "lo"
    assert result_in(events).usage == Usage(30, 10, 40)


def test_the_call_is_told_before_it_is_executed(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    executed: list[int] = []

    class Note:
        name, description, source = "note", "Note", "custom"

        def __init__(self) -> None:
            self.input_schema: dict[str, Any] = {"type": "object"}

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            executed.append(args["n"])
            return ToolResult.ok("noted")

    calls = [call("note", {"n": n}) for n in range(3)]
    llm.say("m", tool_calls(*calls), text("done"))
    stream = make_client().stream("go", tools=[Note()])
    started = [next(stream).kind for _ in range(3)]

    assert started == ["tool_call"] * 3
    assert executed == []
    list(stream)
    assert sorted(executed) == [0, 1, 2]


# -- on_text -----------------------------------------------------------------------------------


@STYLES
@pytest.mark.parametrize("script", SCRIPTS)
def test_on_text_is_given_the_words_and_the_result_stays_what_it_is(
    llm: ScriptedLlm, make_client: MakeClient, style: str, script: str
) -> None:
    told: list[str] = []
    llm.say("m", *SCRIPTS[script] * 3)
    client = make_client(style=style, max_turns=3)
    plain = client.run("go", tools=[add, Approve()])
    events = list(client.stream("go", tools=[add, Approve()]))
    asked = client.ask("go", tools=[add, Approve()], on_text=told.append)

    assert without_run(asked) == without_run(plain)
    assert told == [event.delta for event in events if event.kind == "text"]
    assert all(r.body["stream"] is True for r in llm.requests[len(SCRIPTS[script]) :])


def test_ask_without_on_text_does_not_stream(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", text("hi"), text("hi"))
    client = make_client()
    client.ask("hi")
    client.ask("hi", id="u1")

    assert all("stream" not in request.body for request in llm.requests)


def test_on_text_is_told_each_word_as_it_comes(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    gate = threading.Event()
    told: list[str] = []

    def on_text(word: str) -> None:
        told.append(word)
        gate.set()  # only now does the server say the rest

    llm.say("m", text("hello").paused_after(FIRST_WORD["openai"], gate))

    assert make_client(timeout_ms=10_000).ask("hi", on_text=on_text).text == "hello"
    assert told == ["hel", "lo"]
