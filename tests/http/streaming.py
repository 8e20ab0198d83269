"""What tests of streams share: a look at the events, and servers that stream by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from types import GeneratorType
from typing import Any

import attrs
import pytest
import requests

from tests.conftest import LIMIT
from tests.http.raw_servers import Peer
from toolnexus import Event, Hooks, LlmError, MetricEvent, RunResult, ToolContext, ToolResult
from toolnexus.messages import ToolCall
from toolnexus.testing import Reply, ScriptedLlm, raw, text
from toolnexus.wire.base import ModelReply, ModelRequest

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])

FIRST_WORD = {"openai": 2, "anthropic": 3}
"""After how many events of a scripted text its first half is there."""

SECOND_WORD = {"openai": 3, "anthropic": 4}


OBJECT = {"type": "object"}


def generator_of(events: Iterator[Event]) -> Generator[Event, None, None]:
    """Return the events as the plain generator that they are."""
    assert isinstance(events, GeneratorType)
    return events


def kinds(events: Iterable[Event]) -> list[str]:
    """Return the kinds, runs of text as one."""
    found: list[str] = []
    for event in events:
        if event.kind != "text" or found[-1:] != ["text"]:
            found.append(event.kind)
    return found


def text_in(events: Iterable[Event]) -> str:
    """Return all text, joined."""
    return "".join(event.delta for event in events if event.kind == "text")


def result_in(events: list[Event]) -> RunResult:
    """Return the result in the last event."""
    done = events[-1]
    assert done.kind == "done"
    assert isinstance(done.result, RunResult)
    return done.result


def seen_before(stream: Iterator[Event], kind: str) -> list[Event]:
    """Return the events up to the first one of `kind`, that one included."""
    seen = []
    for event in stream:
        seen.append(event)
        if event.kind == kind:
            return seen
    raise AssertionError(f"no {kind} event in {seen}")


class Watching(Hooks):
    """Notes every hook with what it was given, and every metric event without its time."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.streamed: list[bool] = []
        self.metrics: list[MetricEvent] = []

    def before_llm(self, request: ModelRequest) -> None:
        tools = [tool.name for tool in request.tools]
        self.seen.append(("before_llm", request.model, list(request.messages), tools))

    def after_llm(self, request: ModelRequest, reply: ModelReply) -> None:
        self.streamed.append(reply.streamed)
        self.seen.append(("after_llm", attrs.evolve(reply, streamed=False)))

    def before_tool(
        self, call: ToolCall, args: Mapping[str, Any], ctx: ToolContext
    ) -> ToolResult | None:
        self.seen.append(("before_tool", call, dict(args), ctx.attempt, ctx.answer))
        return None

    def after_tool(
        self, call: ToolCall, args: Mapping[str, Any], result: ToolResult
    ) -> ToolResult | None:
        self.seen.append(("after_tool", call, dict(args), result))
        return None

    def on_metric(self, event: MetricEvent) -> None:
        self.metrics.append(attrs.evolve(event, ms=0))

    @property
    def options(self) -> dict[str, Any]:
        """The client options that listen."""
        return {"hooks": self, "on_metric": self.on_metric}


def sse(*data: object, end: str = "\n\n") -> str:
    """Return events; what is no text is JSON."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in data]
    return "".join(f"data: {one}{end}" for one in texts)


def scripted(body: str) -> Reply:
    """Return a reply whose stream is given, whatever the style."""
    return raw(body, headers={"content-type": "text/event-stream"})


def delta(text: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return one chunk of OpenAI's."""
    said = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": {**said, **more}, "finish_reason": finish}]}


USAGE: dict[str, Any] = {
    "choices": [],
    "usage": {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40},
}
HELLO = (delta("hel"), delta("lo"), delta(finish="stop"), USAGE)


def begin_stream(peer: Peer, *headers: str) -> None:
    """Send the head of a stream in chunks."""
    lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream", "transfer-encoding: chunked"]
    peer.send("\r\n".join([*lines, *headers, "", ""]).encode())


def send_chunk(peer: Peer, text: str | bytes) -> None:
    """Send one chunk."""
    data = text.encode() if isinstance(text, str) else text
    peer.send(b"%x\r\n%b\r\n" % (len(data), data))


def end_stream(peer: Peer) -> None:
    """Send the end of a stream in chunks."""
    peer.send(b"0\r\n\r\n")


def anthropic_error(kind: str, message: str = "fell over") -> str:
    """Return Anthropic's event for an error."""
    error = {"type": "error", "error": {"type": kind, "message": message}}
    return "event: error\n" + sse(error)


def until_broken(events: Iterator[Event]) -> tuple[list[Event], LlmError]:
    """Return what a stream told, and the error it ended with."""
    told: list[Event] = []
    with pytest.raises(LlmError) as caught:
        told.extend(events)
    return told, caught.value


def held(style: str = "openai") -> Reply:
    """Return a reply that is held after its first word."""
    return text("hello").paused_after(FIRST_WORD[style], threading.Event())


class Bomb:
    """A tool that counts its executions."""

    name, description, source = "bomb", "Explode", "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {"type": "object"}
        self.exploded = 0

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        self.exploded += 1
        return ToolResult.ok("boom")


def body_of(llm: ScriptedLlm, style: str, reply: Reply) -> str:
    """Return what a reply streams."""
    llm.say("probe", reply)
    body: dict[str, Any] = {
        "max_tokens": 9,
        "tools": [{"name": "bomb", "input_schema": OBJECT}],
    }
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    path = "messages"
    if style == "openai":
        declared = {"type": "function", "function": {"name": "bomb", "parameters": OBJECT}}
        body = {"tools": [declared], "stream_options": {"include_usage": True}}
        headers, path = {"authorization": "Bearer k"}, "chat/completions"
    body |= {"model": "probe", "messages": [{"role": "user", "content": "go"}], "stream": True}
    url = f"{llm.base_url}/{path}"
    return requests.post(url, headers=headers, json=body, timeout=LIMIT).content.decode()


class Waits:
    """A tool that ends when its argument's event is set, and sets another one."""

    name, description, source = "waits", "Wait", "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {"type": "object"}
        self.gates = {name: threading.Event() for name in "abcdef"}

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if "sets" in args:
            self.gates[args["sets"]].set()
        if "for" in args and not self.gates[args["for"]].wait(LIMIT):
            return ToolResult.error(f"{args['for']} was never set")
        return ToolResult.ok(args.get("says", "waited"))


def results(events: list[Event]) -> list[tuple[str, str]]:
    """Return each told result with the id of its call."""
    return [
        (event.call.id, event.result.output) for event in events if event.kind == "tool_result"
    ]
