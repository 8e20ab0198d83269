"""Long results of tools: head and tail for everybody, the whole by reference, and no more."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.runtime.streams import one_handle, read
from tests.runtime.support import Make, Probe, approve, run_turn
from toolnexus import (
    Answer,
    ClientOptions,
    ConfigError,
    Hooks,
    MemoryConversationStore,
    MemoryOutputStore,
    OutputStore,
    Request,
    RuntimeOptions,
    ToolCall,
    ToolContext,
    ToolResult,
)
from toolnexus.shortening import LEAST_CHARS
from toolnexus.testing import ScriptedLlm, call, text, tool_calls

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])
WAYS = pytest.mark.parametrize("way", ["run", "stream", "turn", "streamed turn"])

LONG = "".join(f"line {number:05}\n" for number in range(2_000))
MIDDLE = "line 01000"
NOTICE = re.compile(
    r"\[\.\.\. ([\d,]+) characters left out"
    r'(?:; the whole text is kept as output "([^"]+)")? \.\.\.\]'
)


def reference_in(shown: str) -> str:
    """Return the reference in a text that was shortened."""
    found = NOTICE.search(shown)
    assert found, shown
    assert found[2], "there is no reference"
    return found[2]


def without_reference(shown: str) -> str:
    return shown.replace(reference_in(shown), "-" * 32)


def says(output: Any, name: str = "report") -> Probe:
    """Return a tool that says this."""
    return Probe(name, lambda args, ctx: ToolResult.ok(output))


def asks() -> Probe:
    """Return a tool that asks, and says much once it is answered."""

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "Sure?"))
        return ToolResult.ok(LONG)

    return Probe("asks", work)


def go(
    way: str,
    make_client: MakeClient,
    make_runtime: Make,
    *tools: Any,
    **options: Any,
) -> OutputStore:
    """Run one prompt this way; return where its long outputs are."""
    if way in ("run", "stream"):
        client = make_client(**options)
        if way == "run":
            client.run("go", tools=tools)
        else:
            list(client.stream("go", tools=tools))
        return client.output_store
    rt, handle = one_handle(make_runtime, *tools, **options)
    if way == "turn":
        run_turn(rt, handle)
    else:
        read(rt.stream(handle, "go"))
    return rt.output_store


class Kept(MemoryOutputStore):
    """Notes what was put into it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def put(self, text: str) -> str:
        self.texts.append(text)
        return super().put(text)


# -- what is shown, and where the rest is ------------------------------------------------------


@STYLES
@WAYS
def test_the_model_is_shown_head_and_tail_and_where_the_whole_is(
    llm: ScriptedLlm, make_client: MakeClient, make_runtime: Make, style: str, way: str
) -> None:
    llm.say("m", tool_calls(call("report", {}, "c1")), text("done"))
    options = {"style": style, "max_result_chars": 500}
    store = go(way, make_client, make_runtime, says(LONG), **options)
    shown = llm.requests[1].tool_results["c1"]

    assert len(shown) <= 500
    assert shown.startswith("line 00000\nline 00001\n")
    assert shown.endswith("line 01998\nline 01999\n")
    found = NOTICE.search(shown)
    assert found
    rest = len(shown) - len(found[0]) - len("\n")
    assert int(found[1].replace(",", "")) == len(LONG) - rest
    assert store.get(reference_in(shown)) == LONG
    llm.assert_done()


@STYLES
@WAYS
def test_a_result_within_the_limit_is_as_it_is_and_kept_nowhere_else(
    llm: ScriptedLlm, make_client: MakeClient, make_runtime: Make, style: str, way: str
) -> None:
    store = Kept()
    output = "x" * 299 + "é"
    llm.say("m", tool_calls(call("report", {}, "c1")), text("done"))
    options = {"style": style, "max_result_chars": 300, "output_store": store}
    used = go(way, make_client, make_runtime, says(output), **options)

    assert llm.requests[1].tool_results["c1"] == output
    assert used is store
    assert store.texts == []


def test_one_character_more_is_shortened(llm: ScriptedLlm, make_client: MakeClient) -> None:
    store = Kept()
    llm.say("m", tool_calls(call("report", {}, "c1")), text("done"))
    client = make_client(max_result_chars=300, output_store=store)
    client.run("go", tools=[says("x" * 301)])

    assert len(llm.requests[1].tool_results["c1"]) <= 300
    assert store.texts == ["x" * 301]


def test_the_limits_are_100_000_for_a_result_and_400_000_for_a_turn(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    for options in (ClientOptions(), RuntimeOptions()):
        assert (options.max_result_chars, options.max_turn_chars) == (100_000, 400_000)
        assert options.output_store is None
    client = make_client()
    assert isinstance(client.output_store, MemoryOutputStore)
    whole, more = says("x" * 100_000, "whole"), says("x" * 100_001, "more")
    llm.say("m", tool_calls(call("whole", {}, "c1"), call("more", {}, "c2")))
    llm.say("m", tool_calls(*(call("whole", {}, f"d{n}") for n in range(5))), text("done"))
    client.run("go", tools=[whole, more])
    shown = llm.requests[2].tool_results

    assert shown["c1"] == "x" * 100_000
    assert 99_900 < len(shown["c2"]) <= 100_000
    assert all(79_900 < len(shown[f"d{n}"]) <= 80_000 for n in range(5))


@pytest.mark.parametrize("name", ["max_result_chars", "max_turn_chars"])
@pytest.mark.parametrize("cls", [ClientOptions, RuntimeOptions])
@pytest.mark.parametrize("value", [LEAST_CHARS - 1, 0, -1, None, "500", True, 500.0])
def test_a_limit_that_is_none_is_refused(cls: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}.* from {LEAST_CHARS}"):
        cls(**{name: value})


@pytest.mark.parametrize("cls", [ClientOptions, RuntimeOptions])
def test_what_is_no_store_is_refused(cls: Any) -> None:
    with pytest.raises(ConfigError, match=r"output_store.* lacks put"):
        cls(output_store={})


# -- the share of each call --------------------------------------------------------------------


class Ordered(Probe):
    """A tool whose executions end in the order that is given."""

    def __init__(self, order: str) -> None:
        super().__init__("ordered", self._work)
        self._ended = {name: threading.Event() for name in order}
        self._before = dict(zip(order[1:], order, strict=False))

    def _work(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        before = self._before.get(args["name"])
        if before is not None and not self._ended[before].wait(LIMIT):
            return ToolResult.error(f"{before} did not end")
        self._ended[args["name"]].set()
        return ToolResult.ok(args["name"] + LONG[: args["chars"]])


@WAYS
def test_each_call_has_its_share_whichever_ends_first(
    llm: ScriptedLlm, make_client: MakeClient, make_runtime: Make, way: str
) -> None:
    sizes = {"a": 10, "b": 5000, "c": 700}
    calls = [
        call("ordered", {"name": name, "chars": chars}, name) for name, chars in sizes.items()
    ]
    seen = []
    for order in ("abc", "cba", "bac"):
        llm.say("m", tool_calls(*calls), text("done"))
        options = {"max_result_chars": 900, "max_turn_chars": 1500}
        go(way, make_client, make_runtime, Ordered(order), **options)
        shown = llm.requests[-1].tool_results
        assert shown["a"] == "a" + LONG[:10]
        assert max(len(shown["b"]), len(shown["c"])) <= 500
        seen.append([without_reference(shown[name]) for name in "bc"])

    assert seen[0] == seen[1] == seen[2]


def test_each_of_very_many_calls_has_the_least_there_is(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    calls = [call("report", {}, f"c{n}") for n in range(20)]
    llm.say("m", tool_calls(*calls), text("done"))
    make_client(max_turn_chars=1000).run("go", tools=[says(LONG)])
    sizes = [len(one) for one in llm.requests[1].tool_results.values()]

    assert len(sizes) == 20
    assert LEAST_CHARS - 20 < min(sizes) <= max(sizes) <= LEAST_CHARS


def test_a_call_that_parked_has_the_share_that_it_would_have_had(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_calls(call("report", {}, "c1"), call("asks", {}, "c2")), text("done"))
    tools = [says(LONG), asks()]
    client = make_client(max_turn_chars=1000)
    parked = client.run("go", tools=tools)
    assert parked.checkpoint is not None
    assert parked.pending is not None
    client.resume(parked.checkpoint, Answer(parked.pending.id, True), tools=tools)
    first, second = llm.requests[1].tool_results.values()

    assert without_reference(first) == without_reference(second)
    assert len(first) <= 500
    assert [client.output_store.get(reference_in(one)) for one in (first, second)] == [LONG] * 2


# -- before anything keeps it, after the hooks -------------------------------------------------


class Loud(Hooks):
    """Notes how long the results are that it sees, and makes of them what it is told to."""

    def __init__(self, makes: Callable[[ToolResult], ToolResult | None]) -> None:
        self.seen: list[int] = []
        self._makes = makes

    def after_tool(
        self, call: ToolCall, args: Mapping[str, Any], result: ToolResult
    ) -> ToolResult | None:
        self.seen.append(len(result.output))
        return self._makes(result)


@WAYS
def test_hooks_see_the_whole_and_what_they_make_of_it_is_what_is_shortened(
    llm: ScriptedLlm, make_client: MakeClient, make_runtime: Make, way: str
) -> None:
    inner = Loud(lambda result: ToolResult.ok(result.output.replace("line", "row")))
    outer, store = Loud(lambda result: None), Kept()
    llm.say("m", tool_calls(call("report", {}, "c1")), text("done"))
    options = {"hooks": [outer, inner], "max_result_chars": 500, "output_store": store}
    go(way, make_client, make_runtime, says(LONG), **options)
    rows = LONG.replace("line", "row")

    assert (inner.seen, outer.seen) == ([len(LONG)], [len(rows)])
    assert store.texts == [rows]
    assert llm.requests[1].tool_results["c1"].startswith("row 00000\n")


def test_what_a_hook_cuts_down_itself_is_kept_nowhere(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    store = Kept()
    llm.say("m", tool_calls(call("report", {}, "c1")), text("done"))
    hook = Loud(lambda result: ToolResult.ok("short"))
    make_client(hooks=hook, output_store=store).run("go", tools=[says("x" * 200_000)])

    assert llm.requests[1].tool_results == {"c1": "short"}
    assert store.texts == []


def test_what_a_hook_puts_in_a_tools_place_is_shortened_too(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Instead(Hooks):
        def before_tool(self, *_: Any) -> ToolResult:
            return ToolResult.ok(LONG)

    llm.say("m", tool_calls(call("report", {}, "c1")), text("done"))
    make_client(hooks=Instead(), max_result_chars=500).run("go", tools=[says("never")])

    assert len(llm.requests[1].tool_results["c1"]) <= 500


@STYLES
@pytest.mark.parametrize("streams", [False, True])
def test_a_clients_checkpoint_transcript_store_and_events_have_no_more_than_is_shown(
    llm: ScriptedLlm, make_client: MakeClient, style: str, streams: bool
) -> None:
    llm.say("m", tool_calls(call("report", {}, "c1")))
    llm.say("m", tool_calls(call("report", {}, "c2"), call("asks", {}, "c3")))
    conversations = MemoryConversationStore()
    client = make_client(style=style, max_result_chars=500, conversation_store=conversations)
    tools = [says(LONG), asks()]
    if streams:
        *events, done = client.stream("go", tools=tools, id="u1")
        assert done.kind == "done"
        result: Any = done.result
        outputs = [one.result.output for one in events if one.kind == "tool_result"]
        assert [len(one) <= 500 for one in outputs] == [True, True]
    else:
        result = client.ask("go", tools=tools, id="u1")

    assert result.status == "pending"
    kept = [
        json.dumps(one) for one in (result.to_dict(), result.messages, conversations.get("u1"))
    ]
    for one in kept:
        assert MIDDLE not in one
        assert one.count("line 01999") >= 2
    shown = [one["content"] for one in result.messages if one["role"] == "tool"]
    assert [client.output_store.get(reference_in(one)) for one in shown] == [LONG] * 2


@pytest.mark.parametrize("way", ["turn", "streamed turn"])
def test_a_parked_agent_keeps_no_more_than_is_shown(
    llm: ScriptedLlm, make_runtime: Make, way: str
) -> None:
    llm.say("m", tool_calls(call("report", {}, "c1"), call("asks", {}, "c2")), text("done"))
    rt, handle = one_handle(make_runtime, says(LONG), asks(), max_result_chars=500)
    if way == "turn":
        parked = run_turn(rt, handle)
    else:
        *events, done = read(rt.stream(handle, "go"))
        parked = done.result  # type: ignore[union-attr,assignment]
        outputs = [one.result.output for one in events if one.kind == "tool_result"]
        assert [len(one) <= 500 for one in outputs] == [True]
    assert handle._parked is not None
    kept = json.dumps(handle._parked.to_dict())
    assert MIDDLE not in kept
    assert "line 01999" in kept
    approve(rt, parked.pending)

    transcript = rt.transcript(handle)
    shown = [one["content"] for one in transcript if one["role"] == "tool"]
    assert list(llm.requests[1].tool_results.values()) == shown
    assert [rt.output_store.get(reference_in(one)) for one in shown] == [LONG] * 2
