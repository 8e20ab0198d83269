"""What a run sends, in both styles, to the last key, and what it makes of the replies."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import attrs
import pytest

from tests.conftest import MakeClient
from toolnexus import LlmClient, RunResult, ToolContext, ToolResult, Usage, tool
from toolnexus.testing import ScriptedLlm, raw, text, tool_call
from toolnexus.wire.base import ModelRequest


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


def schema_of(parameters: dict[str, Any]) -> dict[str, Any]:
    return {key: parameters[key] for key in ADD_SCHEMA}


def test_an_openai_run_puts_exactly_this_on_the_wire(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("add", {"a": 1, "b": 2}, "c1"), text("It is 3."))
    result = make_client(system_prompt="Be brief.").run("1 + 2?", tools=[add])
    first, second = llm.requests

    assert first.path == "/v1/chat/completions"
    assert first.headers["authorization"] == "Bearer test-key"
    assert first.headers["content-type"] == "application/json"
    assert "x-api-key" not in first.headers
    assert list(first.body) == ["model", "messages", "tools", "tool_choice"]
    assert first.body["model"] == "m"
    assert first.body["tool_choice"] == "auto"
    assert first.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 2?"},
    ]
    (declared,) = first.body["tools"]
    assert declared["type"] == "function"
    assert declared["function"]["name"] == "add"
    assert declared["function"]["description"] == "Add two numbers."
    assert schema_of(declared["function"]["parameters"]) == ADD_SCHEMA
    assert second.body["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a":1,"b":2}'},
                }
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    assert (result.text, result.status, result.turns) == ("It is 3.", "done", 2)
    assert result.usage == Usage(60, 20, 80)
    assert result.tool_calls == 1
    assert result.messages[:4] == second.body["messages"]
    assert result.messages[4:] == [{"role": "assistant", "content": "It is 3."}]
    llm.assert_done()


def test_an_anthropic_run_puts_exactly_this_on_the_wire(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("add", {"a": 1, "b": 2}, "c1", content="Well"), text("It is 3."))
    client = make_client(style="anthropic", system_prompt="Be brief.")
    result = client.run("1 + 2?", tools=[add])
    first, second = llm.requests

    assert first.path == "/v1/messages"
    assert first.headers["x-api-key"] == "test-key"
    assert first.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in first.headers
    assert list(first.body) == ["model", "max_tokens", "system", "messages", "tools"]
    assert first.body["max_tokens"] == 4096
    assert first.body["system"] == "Be brief."
    assert first.body["messages"] == [{"role": "user", "content": "1 + 2?"}]
    (declared,) = first.body["tools"]
    assert list(declared) == ["name", "description", "input_schema"]
    assert schema_of(declared["input_schema"]) == ADD_SCHEMA
    assert second.body["system"] == "Be brief."
    assert second.body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Well"},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1, "b": 2}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "3"}],
        },
    ]
    assert (result.text, result.status, result.turns) == ("It is 3.", "done", 2)
    assert result.usage == Usage(60, 20, 80)
    llm.assert_done()


def test_an_anthropic_tool_failure_is_marked(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", tool_call("add", {"a": "x", "b": 2}, "c1"), text("Sorry."))
    make_client(style="anthropic").run("go", tools=[add])
    (block,) = llm.requests[1].messages[-1]["content"]

    assert block["is_error"] is True
    assert '"x"' in block["content"]


@pytest.mark.parametrize(
    ("style", "tail", "path"),
    [
        ("openai", "", "/v1/chat/completions"),
        ("openai", "/", "/v1/chat/completions"),
        ("anthropic", "", "/v1/messages"),
        ("anthropic", "/", "/v1/messages"),
    ],
)
def test_one_trailing_slash_does_not_matter(
    llm: ScriptedLlm, make_client: MakeClient, style: str, tail: str, path: str
) -> None:
    llm.say("m", text("hi"))
    make_client(style=style, base_url=llm.base_url + tail).run("hi")

    assert llm.requests[0].path == path


@pytest.mark.parametrize(
    ("style", "base", "path"),
    [
        ("anthropic", "", "/v1/messages"),
        ("anthropic", "/proxy", "/proxy/v1/messages"),
        ("anthropic", "/proxy/v1", "/proxy/v1/messages"),
        ("openai", "/proxy", "/proxy/chat/completions"),
        ("openai", "", "/chat/completions"),
    ],
)
def test_where_a_base_url_leads(
    llm: ScriptedLlm, make_client: MakeClient, style: str, base: str, path: str
) -> None:
    llm.say("m", text("hi"))
    root = llm.base_url.removesuffix("/v1")
    make_client(style=style, base_url=root + base).run("hi")

    assert llm.requests[0].path == path


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_without_tools_the_body_names_none(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", text("hi"))
    make_client(style=style).run("hi")

    assert not {"tools", "tool_choice", "system"} & set(llm.requests[0].body)


class NoTools:
    def before_llm(self, request: ModelRequest) -> ModelRequest:
        return attrs.evolve(request, tools=())


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_a_hook_that_takes_all_tools_away_leaves_no_empty_list(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", text("hi"))
    make_client(style=style, hooks=NoTools()).run("hi", tools=[add])

    assert not {"tools", "tool_choice"} & set(llm.requests[0].body)


def test_the_system_prompt_is_said_once_in_the_openai_style(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("one"), text("two"))
    client = make_client(system_prompt="Be brief.")
    first = client.run("hi")
    before = [dict(message) for message in first.messages]
    client.run("again", history=first.messages)

    assert [m["role"] for m in llm.requests[1].messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert first.messages == before


def test_the_system_prompt_travels_beside_every_anthropic_request(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("one"), text("two"))
    client = make_client(style="anthropic", system_prompt="Be brief.")
    first = client.run("hi")
    client.run("again", history=first.messages)

    assert [r.body["system"] for r in llm.requests] == ["Be brief.", "Be brief."]
    assert [m["role"] for m in first.messages] == ["user", "assistant"]


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_max_tokens_is_sent_where_it_is_given(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", text("hi"), text("hi"))
    make_client(style=style, max_tokens=77).run("hi")
    make_client(style=style).run("hi")

    assert llm.requests[0].body["max_tokens"] == 77
    assert llm.requests[1].body.get("max_tokens") == (4096 if style == "anthropic" else None)


def test_openai_usage_without_a_total_is_added_up(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    body: dict[str, Any] = {
        "choices": [{"message": {"role": "assistant", "content": "hi"}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5},
    }
    llm.say("m", raw(body), text("none", usage=None))
    client = make_client()

    assert client.run("hi").usage == Usage(7, 5, 12)
    assert client.run("hi").usage == Usage(0, 0, 0)


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_the_turn_cap_leaves_a_balanced_transcript(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", *(tool_call("add", {"a": n, "b": 1}) for n in range(3)), text("done"))
    client = make_client(style=style, max_turns=3)
    result = client.run("count", tools=[add])

    assert (result.status, result.limit, result.turns) == ("incomplete", "maxTurns", 3)
    assert result.text == "hit maxTurns without a final answer"
    assert result.tool_calls == 3
    assert [m["content"] for m in result.messages if m["role"] == "tool"] == ["1", "2", "3"]
    again = client.run("and now?", tools=[add], history=result.messages)
    assert again.text == "done"
    llm.assert_done()


def test_a_result_survives_json(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", tool_call("add", {"a": 1, "b": 2}), text("3"))
    result = make_client().run("go", tools=[add])

    assert RunResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_a_tool_learns_about_its_call(llm: ScriptedLlm, make_client: MakeClient) -> None:
    seen: list[ToolContext] = []

    class Look:
        name, description, source = "look", "Look", "custom"
        input_schema: ClassVar[dict[str, str]] = {"type": "object"}

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            seen.append(ctx)
            return ToolResult.ok("seen")

    llm.say("m", tool_call("look", {}, "c9"), tool_call("look", {}, "c9"), text("done"))
    make_client(timeout_ms=60_000).run("go", tools=[Look()])
    first, second = seen

    assert (first.call_id, first.attempt, first.answer, first.handle_id) == (
        "c9",
        1,
        None,
        None,
    )
    assert first.deadline is not None
    assert first.deadline.utcoffset() is not None
    assert first.idempotency_key != second.idempotency_key
    assert not first.cancel.is_cancelled


def test_closing_a_client_closes_its_connection(llm: ScriptedLlm) -> None:
    llm.say("m", text("hi"))
    with LlmClient(base_url=llm.base_url, api_key="k", model="m") as client:
        client.run("hi")
        assert llm.open_connections == 1
    llm.wait_connections(0)


def test_one_connection_serves_a_whole_run(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", *(tool_call("add", {"a": n, "b": 1}) for n in range(4)), text("done"))
    make_client().run("go", tools=[add])

    assert llm.open_connections == 1
