"""Conversations that change provider, and transcripts and replies that are out of order.

The scripted server refuses what the real ones refuse, so a run that ends `done` sent nothing
that a provider would not take.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.http.test_client_run import add
from toolnexus import ToolContext, ToolResult, tool
from toolnexus.testing import (
    RecordedRequest,
    ScriptedLlm,
    call,
    raw,
    text,
    tool_call,
    tool_calls,
)

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])
DETAILS = [{"type": "reasoning.encrypted", "data": "opaque", "index": 0}]


@tool
def note(text: str = "") -> str:
    """Note a text."""
    return f"noted {text}"


def blocks_of(request: RecordedRequest, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for message in request.messages:
        if isinstance(message["content"], list):
            found.extend(block for block in message["content"] if block["type"] == kind)
    return found


def test_a_conversation_goes_from_one_provider_to_another_and_back(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    gpt = make_client(model="gpt", system_prompt="Be brief.")
    claude = make_client(model="claude", style="anthropic", system_prompt="Be brief.")
    llm.say(
        "gpt",
        tool_call("note", {"text": "a"}).with_extra(reasoning_details=DETAILS),
        text("one").with_extra(reasoning_details=DETAILS),
        text("five"),
    )
    llm.say(
        "claude",
        tool_call("note", {"text": "b"}).with_thinking("deep").with_redacted_thinking("dark"),
        text("three").with_thinking("deeper"),
        text("seven"),
    )
    first = gpt.run("go", tools=[note])
    second = claude.run("and you?", tools=[note], history=first.messages)
    third = gpt.run("back to you", tools=[note], history=second.messages)
    claude.run("and you again", tools=[note], history=third.messages)
    gpt_asked, claude_asked = llm.requests_of("gpt"), llm.requests_of("claude")

    # Each origin gets its own parts back as they were, within the turn and later.
    for request in (gpt_asked[1], gpt_asked[2]):
        assert request.messages[2]["reasoning_details"] == DETAILS
    assert gpt_asked[2].messages[4]["reasoning_details"] == DETAILS
    assert [b["thinking"] for b in blocks_of(claude_asked[1], "thinking")] == ["deep"]
    assert [b["thinking"] for b in blocks_of(claude_asked[2], "thinking")] == ["deep", "deeper"]
    assert [b["data"] for b in blocks_of(claude_asked[2], "redacted_thinking")] == ["dark"]
    # And nobody gets anybody else's.
    assert "opaque" not in "".join(r.content.decode() for r in claude_asked)
    for word in ("deep", "dark", "_blocks", "_origin", "signature"):
        assert word not in "".join(r.content.decode() for r in gpt_asked)
    assert [r.system for r in llm.requests] == ["Be brief."] * 6
    llm.assert_done()


@pytest.mark.parametrize("change", ["model", "host"])
def test_a_thought_goes_back_to_its_own_model_and_host_only(
    llm: ScriptedLlm, make_client: MakeClient, change: str
) -> None:
    llm.say("claude", text("one").with_thinking("deep"))
    first = make_client(model="claude", style="anthropic").run("go")
    with ScriptedLlm() as elsewhere:
        server, model = (elsewhere, "claude") if change == "host" else (llm, "other")
        server.say(model, text("two"))
        client = make_client(model=model, style="anthropic", base_url=server.base_url)
        client.run("on", history=first.messages)

        assert blocks_of(server.requests[-1], "thinking") == []
        server.assert_done()


# -- replies that are out of order -------------------------------------------------------------


class Trace:
    """A tool that notes what it was really called with."""

    name, description, source = "trace", "Trace", "custom"

    def __init__(self) -> None:
        self.input_schema = {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
        }
        self.seen: list[dict[str, Any]] = []

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        self.seen.append(args)
        return ToolResult.ok(str(args["n"]))


@STYLES
@pytest.mark.parametrize(
    "arguments",
    [
        '{"n": 1',
        "",
        "null",
        "[1]",
        '"n"',
        "5",
        '{"n": NaN}',
        '{"n": "one"}',
        "{}",
        '{"n": 1.5}',
    ],
)
def test_arguments_that_do_not_fit_execute_nothing_and_are_answered(
    llm: ScriptedLlm, make_client: MakeClient, style: str, arguments: str
) -> None:
    trace = Trace()
    llm.say("m", tool_call("trace", arguments), text("sorry"))
    result = make_client(style=style).run("go", tools=[trace])

    assert (result.status, result.text) == ("done", "sorry")
    assert trace.seen == []
    assert result.messages[2]["_is_error"] is True
    llm.assert_done()


@STYLES
def test_an_unknown_tool_is_an_error_result_and_its_neighbour_runs(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    trace = Trace()
    llm.say("m", tool_calls(call("ghost"), call("trace", {"n": 1})), text("done"))
    result = make_client(style=style).run("go", tools=[trace])

    assert [m["content"] for m in result.messages[2:4]] == ["Unknown tool: ghost", "1"]
    assert trace.seen == [{"n": 1}]
    llm.assert_done()


@pytest.mark.parametrize("name", ["", "has space", "x" * 100, "a/b", "ünïcode", None])
def test_an_impossible_tool_name_does_not_break_the_conversation(
    llm: ScriptedLlm, make_client: MakeClient, name: Any
) -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": name}}],
    }
    llm.say("m", raw({"choices": [{"message": message}]}), text("done"))

    assert make_client().run("go", tools=[add]).text == "done"
    llm.assert_done()


@STYLES
def test_calls_cut_off_by_the_length_limit_are_not_executed(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    trace = Trace()
    llm.say(
        "m",
        tool_calls(call("trace", {"n": 1}), call("trace", {"n": 2}), finish="length"),
        text("shorter"),
    )
    result = make_client(style=style).run("go", tools=[trace])

    assert trace.seen == []
    assert result.text == "shorter"
    said = [m["content"] for m in result.messages if m["role"] == "tool"]
    assert len(said) == 2
    assert all(one.startswith("not executed: the reply was cut off") for one in said)
    llm.assert_done()


def test_a_text_cut_off_by_the_length_limit_is_still_the_answer(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("so far", finish="length"))

    assert make_client().run("go").text == "so far"


@STYLES
@pytest.mark.parametrize("ids", [("same", "same"), ("", ""), (None, 5), ("a b", "x" * 40)])
def test_call_ids_that_nobody_could_send_back_are_told_apart(
    make_client: MakeClient, llm: ScriptedLlm, style: str, ids: tuple[Any, Any]
) -> None:
    trace = Trace()
    if style == "openai":
        calls = [
            {"id": i, "type": "function", "function": {"name": "trace", "arguments": a}}
            for i, a in zip(ids, ('{"n":1}', '{"n":2}'), strict=True)
        ]
        body: Any = {"choices": [{"message": {"content": None, "tool_calls": calls}}]}
    else:
        uses = [
            {"type": "tool_use", "id": i, "name": "trace", "input": {"n": n}}
            for i, n in zip(ids, (1, 2), strict=True)
        ]
        body = {"type": "message", "content": uses, "stop_reason": "tool_use"}
    llm.say("m", raw(body), text("done"))
    result = make_client(style=style).run("go", tools=[trace])

    assert result.text == "done"
    assert sorted(args["n"] for args in trace.seen) == [1, 2]
    assert list(llm.requests[1].tool_results.values()) == ["1", "2"]
    llm.assert_done()


@STYLES
@pytest.mark.parametrize("content", ["", None, "  "])
def test_an_empty_answer_does_not_brick_the_conversation(
    llm: ScriptedLlm, make_client: MakeClient, style: str, content: str | None
) -> None:
    reply = {
        "openai": {"choices": [{"message": {"role": "assistant", "content": content}}]},
        "anthropic": {
            "type": "message",
            "content": [{"type": "text", "text": content}] if content else [],
            "stop_reason": "end_turn",
        },
    }[style]
    llm.say("m", raw(reply), text("better"))
    client = make_client(style=style)
    first = client.run("go")

    assert (first.status, first.text) == ("done", content or "")
    assert client.run("again", history=first.messages).text == "better"
    llm.assert_done()


@STYLES
@pytest.mark.parametrize("prompt", ["", "   "])
def test_an_empty_prompt_and_an_empty_tool_result_are_sent_as_something(
    llm: ScriptedLlm, make_client: MakeClient, style: str, prompt: str
) -> None:
    @tool
    def nothing() -> None:
        """Do nothing."""

    llm.say("m", tool_call("nothing"), text("done"))

    assert make_client(style=style).run(prompt, tools=[nothing]).text == "done"
    llm.assert_done()


@STYLES
def test_lone_surrogates_break_nothing_anywhere(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    trace = Trace()
    content: Any = "half \ud83d"
    reply = {
        "openai": '{"choices":[{"message":{"content":"half \\ud83d","tool_calls":[{"id":"c",'
        '"type":"function","function":{"name":"trace","arguments":"{\\"n\\":1,\\"x\\":'
        '\\"\\ud83d\\"}"}}]}}]}',
        "anthropic": '{"type":"message","stop_reason":"tool_use","content":[{"type":"text",'
        '"text":"half \\ud83d"},{"type":"tool_use","id":"c","name":"trace",'
        '"input":{"n":1,"x":"\\ud83d"}}]}',
    }[style]
    llm.say("m", raw(reply), text("done"))
    result = make_client(style=style, system_prompt="\udc00").run("go \ud800", tools=[trace])

    assert result.text == "done"
    assert result.messages[-3]["content"] == content
    assert trace.seen[0]["n"] == 1
    assert "go \ufffd" in llm.requests[1].content.decode()
    llm.assert_done()


# -- histories that are out of order -----------------------------------------------------------


def use(call_id: str, name: str = "trace") -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": '{"n":1}'},
    }


def asked(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [use(i) for i in ids]}


def answered(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": f"result of {call_id}"}


USER = {"role": "user", "content": "go"}


@STYLES
@pytest.mark.parametrize(
    ("history", "results"),
    [
        ([USER, asked("a"), USER], {"a": "no result was recorded"}),
        ([USER, asked("a", "b"), answered("b"), answered("a")], {"a": "", "b": ""}),
        ([USER, asked("a"), answered("a"), answered("a")], {"a": ""}),
        ([USER, asked("a"), answered("a"), answered("foreign")], {"a": ""}),
        ([USER, answered("orphan")], {}),
        ([USER, asked("a"), USER, answered("a")], {"a": ""}),
        ([asked("a"), answered("a")], {"a": ""}),
        ([USER, USER, {"role": "assistant", "content": ""}], {}),
        ([{"role": "assistant", "content": "I begin"}], {}),
        ([USER, {"role": "assistant", "content": None, "tool_calls": []}], {}),
    ],
    ids=range(10),
)
def test_a_history_out_of_order_is_completed_truthfully(
    llm: ScriptedLlm,
    make_client: MakeClient,
    style: str,
    history: list[dict[str, Any]],
    results: dict[str, str],
) -> None:
    llm.say("m", text("fine"))

    assert make_client(style=style).run("next", history=history).text == "fine"
    sent = llm.requests[0].tool_results
    assert list(sent) == list(results)
    for call_id, said in sent.items():
        assert said.startswith(results[call_id] or f"result of {call_id}")
    llm.assert_done()
