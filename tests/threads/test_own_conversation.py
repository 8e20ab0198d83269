"""Whoever holds a conversation is told so where it would have to wait for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.runtime.support import Pay, Probe, in_thread, within
from toolnexus import (
    Answer,
    CancelToken,
    ConfigError,
    FileConversationStore,
    LlmClient,
    Request,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls


def asking_itself(client: LlmClient, given: list[str]) -> Callable[..., ToolResult]:
    together = threading.Barrier(2)

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        together.wait(LIMIT)  # two calls at once: one of them is on a worker
        result = client.ask("me again", id=args["id"])
        given.append(result.text)
        return ToolResult.ok(result.text)

    return work


def test_a_tool_that_asks_in_the_conversation_it_works_for_is_told_so(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client = make_client()
    given: list[str] = []
    inner = Probe("inner", asking_itself(client, given))
    inner.input_schema = {"type": "object", "properties": {"id": {"type": "string"}}}
    llm.say("m", tool_calls(call("inner", {"id": "u1"}, "a"), call("inner", {"id": "u1"}, "b")))
    llm.say("m", text("done"))
    assert within(client.ask, "go", id="u1", tools=[inner]).text == "done"

    assert given == []
    for told in llm.requests[-1].tool_results.values():
        assert "'u1'" in told
        assert "another id" in told


def test_a_tool_may_ask_in_another_conversation(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client = make_client()
    inner = Probe("inner", lambda args, ctx: ToolResult.ok(client.ask("aside", id="u2").text))
    llm.say("m", tool_call("inner"), text("from aside"), text("done"))
    result = within(client.ask, "go", id="u1", tools=[inner])

    assert result.text == "done"
    assert list(llm.requests[-1].tool_results.values()) == ["from aside"]
    asked, replied = client.conversation_store.get("u2")
    assert (asked["content"], replied["content"]) == ("aside", "from aside")


@pytest.mark.parametrize("way", ["through another conversation", "through another client"])
def test_a_tool_is_told_so_on_a_detour_too(
    llm: ScriptedLlm, make_client: MakeClient, tmp_path: Path, way: str
) -> None:
    store = FileConversationStore(tmp_path, fsync=False)
    clients = [make_client(conversation_store=store) for _ in "12"]
    one, two = clients if way == "through another client" else clients[:1] * 2
    stop = CancelToken()

    def again(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        return ToolResult.ok(two.ask("me again", id="u1", cancel=stop).text)

    def aside(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        tools = [Probe("again", again)]
        return ToolResult.ok(one.ask("aside", id="u2", tools=tools, cancel=stop).text)

    if way == "through another client":
        llm.say("m", tool_call("again"), text("done"))
    else:
        llm.say("m", tool_call("aside"), tool_call("again"), text("no luck"), text("done"))
    tools = [Probe("again", again), Probe("aside", aside)]
    running = in_thread(one.ask, "go", id="u1", tools=tools)
    try:
        assert running.result(LIMIT / 2).text == "done"
    finally:
        stop.cancel()
    told = [result for request in llm.requests for result in request.tool_results.values()]
    assert any("another id" in one for one in told)


class Within:
    """Asks in its own conversation from every place that is not a tool."""

    def __init__(self) -> None:
        self.client: LlmClient | None = None
        self.stop = CancelToken()
        self.raised: list[str] = []

    def ask(self) -> None:
        assert self.client is not None
        try:
            self.client.ask("me again", id="u1", cancel=self.stop)
        except Exception as error:
            self.raised.append(type(error).__name__)

    def wait_for(self, request: Request) -> Answer:
        self.ask()
        return Answer(request.id, True)


class AskingHook:
    def __init__(self, own: Within, name: str) -> None:
        setattr(self, name, lambda *args: own.ask())


@pytest.mark.parametrize(
    "place", ["wait_for", "on_text", "before_llm", "after_llm", "before_tool", "after_tool"]
)
def test_nothing_else_of_a_run_waits_for_the_run_either(
    llm: ScriptedLlm, make_client: MakeClient, place: str
) -> None:
    own = Within()
    options: dict[str, Any] = {"wait_for": lambda request: Answer(request.id, True)}
    if place == "wait_for":
        options["wait_for"] = own.wait_for
    elif place != "on_text":
        options["hooks"] = AskingHook(own, place)
    own.client = client = make_client(**options)
    llm.say("m", tool_call("pay", {"amount": 1}), text("done"))
    listen = (lambda piece: own.ask()) if place == "on_text" else None
    running = in_thread(client.ask, "go", id="u1", tools=[Pay()], on_text=listen)
    try:
        assert running.result(LIMIT / 2).text == "done"
    finally:
        own.stop.cancel()
    assert set(own.raised) == {"ConfigError"}


def test_who_holds_a_stream_is_told_instead_of_waiting_for_itself(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("hello"), text("again"))
    client, stop = make_client(), CancelToken()

    def work() -> None:
        for _ in client.stream("go", id="u1"):
            client.ask("me again", id="u1", cancel=stop)

    running = in_thread(work)
    try:
        with pytest.raises(ConfigError, match="u1"):
            running.result(LIMIT / 2)
    finally:
        stop.cancel()
