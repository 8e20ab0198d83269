"""Tools in a streamed run: when each result is told, and what is asked before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.helpers import Charge
from tests.http.raw_servers import Background
from tests.http.streaming import (
    STYLES,
    Bomb,
    Waits,
    kinds,
    result_in,
    results,
    seen_before,
)
from toolnexus import (
    Answer,
    Hooks,
    Pending,
    Request,
    ToolContext,
    ToolResult,
    ToolResultReady,
    relay_tool,
)
from toolnexus.messages import ToolCall
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

InBackground = Callable[[Callable[[], Any]], Background]


# -- when --------------------------------------------------------------------------------------


@STYLES
def test_results_come_in_call_order_though_the_second_tool_ends_first(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    first = call("waits", {"for": "a", "says": "first"}, "c1")
    second = call("waits", {"sets": "a", "says": "second"}, "c2")
    llm.say("m", tool_calls(first, second), text("done"))
    events = list(make_client(style=style).stream("go", tools=[Waits()]))

    assert results(events) == [("c1", "first"), ("c2", "second")]
    assert kinds(events)[:4] == ["tool_call"] * 2 + ["tool_result"] * 2
    assert list(llm.requests[1].tool_results.items()) == results(events)


def test_an_early_result_is_told_before_a_slow_later_one_ends(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    waits = Waits()
    early, late = call("waits", {}, "c1"), call("waits", {"for": "a"}, "c2")
    llm.say("m", tool_calls(early, late), text("done"))
    stream = make_client().stream("go", tools=[waits])
    told = seen_before(stream, "tool_result")
    assert results(told) == [("c1", "waited")]
    waits.gates["a"].set()  # only now can the second tool end

    assert results(list(stream)) == [("c2", "waited")]


def test_early_results_are_told_at_once_also_where_no_worker_is_free(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    busy, waits = Waits(), Waits()
    llm.say(
        "m", tool_calls(call("waits", {"for": "a"}), call("waits", {"for": "b", "sets": "c"}))
    )
    client = make_client(max_workers=1)
    other = background(lambda: client.run("keep the only worker busy", tools=[busy]))
    assert busy.gates["c"].wait(LIMIT)
    calls = [
        call("waits", {}, "c1"),
        call("waits", {}, "c2"),
        call("waits", {"for": "a"}, "c3"),
    ]
    llm.say("m", tool_calls(*calls), text("done"), text("done"))
    stream = client.stream("go", tools=[waits])
    told = [*seen_before(stream, "tool_result"), *seen_before(stream, "tool_result")]
    assert results(told) == [("c1", "waited"), ("c2", "waited")]
    waits.gates["a"].set()
    assert results(list(stream)) == [("c3", "waited")]

    busy.gates["a"].set()
    busy.gates["b"].set()
    other.result()


@STYLES
def test_every_call_is_started_and_ended_once_whatever_comes_of_it(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    class Fails(Bomb):
        name = "fails"

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            raise ValueError("broken")

    calls = [
        call("bomb", {}, "c1"),
        call("fails", {}, "c2"),
        call("nobody", {}, "c3"),
        call("bomb", '{"n": ', "c4"),
    ]
    llm.say("m", tool_calls(*calls), text("done"))
    events = list(make_client(style=style).stream("go", tools=[Bomb(), Fails()]))
    told = [event for event in events if event.kind == "tool_result"]

    assert [event.call for event in events if event.kind == "tool_call"] == [
        event.call for event in told
    ]
    assert [event.call.id for event in told] == ["c1", "c2", "c3", "c4"]
    assert [event.result.is_error for event in told] == [False, True, True, True]
    assert told[1].result.output == "broken"
    assert told[2].result.output == "Unknown tool: nobody"


@STYLES
def test_calls_that_the_length_limit_cut_off_are_told_as_not_executed(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    bomb = Bomb()
    llm.say("m", tool_calls(call("bomb", {}, "c1"), call("bomb", '{"n', "c2"), finish="length"))
    llm.say("m", text("sorry"))
    events = list(make_client(style=style).stream("go", tools=[bomb]))

    assert kinds(events)[:4] == ["tool_call"] * 2 + ["tool_result"] * 2
    assert all(output.startswith("not executed") for _, output in results(events))
    assert bomb.exploded == 0


# -- questions ---------------------------------------------------------------------------------


@STYLES
def test_a_question_is_told_before_anybody_is_asked(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    order: list[str] = []

    def wait_for(request: Request) -> Answer:
        order.append(f"asked {request.prompt}")
        return Answer(request.id, True)

    charge = Charge()
    llm.say("m", tool_calls(call("charge_card", {}, "c1")), text("done"))
    for event in make_client(style=style, wait_for=wait_for).stream("go", tools=[charge]):
        if isinstance(event, Pending):
            assert event.call.id == "c1"
            assert event.request.prompt == "Approve $500 charge?"
        if isinstance(event, ToolResultReady):
            assert event.result == ToolResult.ok("charged")
        order.append(event.kind)

    assert order[:5] == [
        "tool_call",
        "pending",
        "asked Approve $500 charge?",
        "tool_result",
        "text",
    ]
    assert order[-2:] == ["usage", "done"]
    assert len(charge.charged) == 1


def test_each_question_is_told_before_its_answer_and_its_result(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    charges = [Charge("one", "One?"), Charge("two", "Two?")]
    llm.say("m", tool_calls(call("one"), call("bomb"), call("two")), text("done"))
    client = make_client(wait_for=lambda request: Answer(request.id, request.prompt == "One?"))
    events = list(client.stream("go", tools=[*charges, Bomb()]))

    assert kinds(events)[3:8] == [
        "pending",
        "tool_result",
        "tool_result",
        "pending",
        "tool_result",
    ]
    assert [output for _, output in results(events)] == [
        "charged",
        "boom",
        "declined/expired: Two?",
    ]


def test_a_hooks_question_and_the_tools_own_are_both_told(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Gate(Hooks):
        def before_tool(
            self, call: ToolCall, args: Mapping[str, Any], ctx: ToolContext
        ) -> ToolResult:
            return ToolResult.pending(Request("approval", "May it?"))

    asked: list[str] = []

    def wait_for(request: Request) -> Answer:
        asked.append(request.prompt)
        return Answer(request.id, True)

    llm.say("m", tool_call("charge_card"), text("done"))
    client = make_client(wait_for=wait_for, hooks=Gate())
    events = list(client.stream("go", tools=[Charge()]))

    assert asked == ["May it?", "Approve $500 charge?"]
    told = [event.request.prompt for event in events if isinstance(event, Pending)]
    assert told == asked
    assert results(events)[0][1] == "charged"


def test_a_second_question_on_an_answer_is_unresolved(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Insists(Bomb):
        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            return ToolResult.pending(Request("q", f"Sure {ctx.attempt}?"))

    llm.say("m", tool_call("bomb"), text("done"))
    client = make_client(wait_for=lambda request: Answer(request.id, True))
    events = list(client.stream("go", tools=[Insists()]))

    assert kinds(events) == ["tool_call", "pending", "tool_result", "text", "usage", "done"]
    assert results(events)[0][1] == "unresolved: Sure 2?"


@STYLES
def test_without_anybody_to_ask_the_stream_ends_with_the_parked_run(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    one, two = Charge("one", "One?"), Charge("two", "Two?")
    calls = [call("bomb", {}, "c1"), call("one", {}, "c2"), call("bomb", {}, "c3")]
    llm.say("m", tool_calls(*calls, call("two", {}, "c4"), content="Well."), text("done"))
    client = make_client(style=style)
    events = list(client.stream("go", tools=[one, two, Bomb()], id="u1"))
    result = result_in(events)

    assert kinds(events) == [
        "text",
        *["tool_call"] * 4,
        "tool_result",
        "pending",
        "tool_result",
        "pending",
        "done",
    ]
    told = [event.request for event in events if isinstance(event, Pending)]
    assert result.status == "pending"
    assert result.pending == told[0]
    assert (result.text, [request.prompt for request in told]) == ("One?", ["One?", "Two?"])
    assert client.conversation_store.get("u1") == result.messages
    assert result.checkpoint is not None
    first = client.resume(result.checkpoint, Answer(told[1].id, True), tools=[one, two, Bomb()])
    assert first.checkpoint is not None
    told_words: list[str] = []
    last = client.resume(
        first.checkpoint.to_dict(),
        Answer(told[0].id, True),
        tools=[one, two, Bomb()],
        on_text=told_words.append,
    )
    assert (last.status, "".join(told_words)) == ("done", "done")
    assert (len(one.charged), len(two.charged)) == (1, 1)


def test_relayed_calls_are_one_question(llm: ScriptedLlm, make_client: MakeClient) -> None:
    tools = [relay_tool(name, "Done elsewhere", {"type": "object"}) for name in ("up", "down")]
    calls = [call("up", {"n": 1}, "c1"), call("bomb", {}, "c2"), call("down", {}, "c3")]
    llm.say("m", tool_calls(*calls))
    events = list(make_client().stream("go", tools=[*tools, Bomb()]))

    assert kinds(events) == [*["tool_call"] * 3, "pending", "tool_result", "done"]
    (told,) = [event for event in events if isinstance(event, Pending)]
    assert told.call.id == "c1"
    assert told.request.data is not None
    assert [one["id"] for one in told.request.data["calls"]] == ["c1", "c3"]
    assert result_in(events).pending == told.request


def test_a_parked_conversation_refuses_a_stream_unless_it_supersedes(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    from toolnexus import ConversationParked

    llm.say("m", tool_call("charge_card"), text("hello"))
    charge, client = Charge(), make_client()
    list(client.stream("go", id="u1", tools=[charge]))
    with pytest.raises(ConversationParked):
        next(client.stream("never mind", id="u1", tools=[charge]))
    events = list(client.stream("never mind", id="u1", tools=[charge], supersede=True))

    assert result_in(events).text == "hello"
    assert charge.charged == []
