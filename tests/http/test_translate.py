"""Translation over HTTP: what each provider is told, and OpenAI's reply out of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from toolnexus import ConfigError, ToolContext, ToolResult
from toolnexus.client.hooks import HookChain
from toolnexus.client.options import ClientOptions
from toolnexus.client.prometheus import Counters
from toolnexus.client.translation import TranslateRequest, Translator
from toolnexus.testing import (
    ScriptedLlm,
    VirtualClock,
    call,
    text,
    tool_call,
    tool_calls,
)
from toolnexus.transport import Transport

Make = Callable[..., Translator]

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]


def function(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return {
        "type": "function",
        "function": {"name": name, "description": f"Do {name}", "parameters": parameters},
    }


def asked(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def result(call_id: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


class Untouched:
    """A tool that must not be executed."""

    name, description, source = "untouched", "Stay as you are", "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {"type": "object", "properties": {}}

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        raise AssertionError("a translation executes nothing")


@pytest.fixture
def make(llm: ScriptedLlm) -> Iterator[Make]:
    """Make translators that ask the scripted model once; all is let go at the end."""
    made: list[Transport] = []

    def build(**given: Any) -> Translator:
        defaults = {"base_url": llm.base_url, "api_key": "test-key", "model": "m", "retries": 0}
        options = ClientOptions(**{**defaults, **given})
        made.append(Transport())
        return Translator(options, made[-1], HookChain(options.hooks), Counters())

    yield build
    for transport in made:
        transport.close()
    llm.assert_done()


# -- both wires -----------------------------------------------------------------------------


@STYLES
def test_a_text_comes_back_as_openais_completion(
    llm: ScriptedLlm, make: Make, style: str
) -> None:
    llm.say("m", text("Hi there"))
    reply = make(style=style, clock=VirtualClock()).translate(TranslateRequest(HELLO))

    assert reply.pop("id").startswith("chatcmpl-")
    assert reply == {
        "object": "chat.completion",
        "created": 1_767_225_600,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi there"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40},
    }


@STYLES
def test_calls_come_back_for_the_caller_to_execute(
    llm: ScriptedLlm, make: Make, style: str
) -> None:
    llm.say(
        "m",
        tool_calls(call("add", {"a": 1}, "c1"), call("untouched", {}, "c2"), content="Well:"),
    )
    reply = make(style=style).translate(
        TranslateRequest(HELLO, tools=[function("add")], toolkit=[Untouched()])
    )

    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert reply["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Well:",
        "tool_calls": [asked("c1", "add", '{"a":1}'), asked("c2", "untouched", "{}")],
    }
    assert llm.requests[0].tool_names == ["untouched", "add"]


@STYLES
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        ("refusal", "content_filter"),
        ("pause_turn", "stop"),
    ],
)
def test_finish_reasons_are_openais(
    llm: ScriptedLlm, make: Make, style: str, said: str, told: str
) -> None:
    llm.say("m", text("Hi", finish=said))
    reply = make(style=style).translate(TranslateRequest(HELLO))

    assert reply["choices"][0]["finish_reason"] == told


@STYLES
def test_calls_that_were_cut_off_are_told_as_calls(
    llm: ScriptedLlm, make: Make, style: str
) -> None:
    llm.say("m", tool_call("add", {"a": 1}, finish="length"))
    reply = make(style=style).translate(TranslateRequest(HELLO, tools=[function("add")]))

    assert reply["choices"][0]["finish_reason"] == "tool_calls"


@STYLES
def test_whole_reply_can_be_said_again(llm: ScriptedLlm, make: Make, style: str) -> None:
    llm.say("m", tool_calls(call("add", {"a": 1}), call("add", {"a": 2})), text("3"))
    translator, tools = make(style=style), [function("add")]
    first = translator.translate(TranslateRequest(HELLO, tools=tools))
    message = first["choices"][0]["message"]
    results = [result(one["id"], "ok") for one in message["tool_calls"]]
    translator.translate(TranslateRequest([*HELLO, message, *results], tools=tools))

    ids = [one["id"] for one in message["tool_calls"]]
    assert llm.requests[1].tool_results == dict.fromkeys(ids, "ok")


def test_thinking_does_not_leave(llm: ScriptedLlm, make: Make) -> None:
    llm.say("m", text("Hi").with_thinking("hm"))
    reply = make(style="anthropic").translate(TranslateRequest(HELLO))

    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "Hi"}


def test_what_an_openai_provider_adds_comes_along(llm: ScriptedLlm, make: Make) -> None:
    llm.say("m", text("Hi").with_extra(reasoning_content="hm", _blocks=["x"], _origin="y"))
    reply = make().translate(TranslateRequest(HELLO))

    assert reply["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hi",
        "reasoning_content": "hm",
    }


def test_a_reply_without_usage_has_zeros(llm: ScriptedLlm, make: Make) -> None:
    llm.say("m", text("Hi", usage=None))
    reply = make().translate(TranslateRequest(HELLO))

    assert reply["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


# -- where it is posted ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "base", "path"),
    [
        ("openai", "/v1", "/v1/chat/completions"),
        ("openai", "/v1/", "/v1/chat/completions"),
        ("openai", "", "/v1/chat/completions"),
        ("openai", "/api", "/api/v1/chat/completions"),
        ("openai", "/chat/eu", "/chat/eu/chat/completions"),
        ("anthropic", "/v1", "/v1/messages"),
        ("anthropic", "", "/v1/messages"),
    ],
)
def test_the_endpoint_follows_from_any_part_of_the_base(
    llm: ScriptedLlm, make: Make, style: str, base: str, path: str
) -> None:
    llm.say("m", text("Hi"))
    host = llm.base_url.removesuffix("/v1")
    make(style=style, base_url=host + base).translate(TranslateRequest(HELLO))

    assert llm.requests[0].path == path


@STYLES
def test_the_key_travels_as_the_provider_wants_it(
    llm: ScriptedLlm, make: Make, style: str
) -> None:
    llm.say("m", text("Hi"))
    make(style=style).translate(TranslateRequest(HELLO))

    header = {"openai": "authorization", "anthropic": "x-api-key"}[style]
    assert llm.requests[0].headers[header].endswith("test-key")


# -- Anthropic's words ----------------------------------------------------------------------


def test_anthropic_gets_system_apart_and_results_merged(llm: ScriptedLlm, make: Make) -> None:
    llm.say("m", text("3"))
    make(style="anthropic").translate(
        TranslateRequest(
            [
                {"role": "system", "content": "Be brief."},
                *HELLO,
                {"role": "developer", "content": "Use the tools."},
                {
                    "role": "assistant",
                    "content": "Well:",
                    "tool_calls": [asked("c1", "add", '{"a":1}'), asked("c2", "add", "")],
                },
                result("c1", "one"),
                result("c2", "two", _is_error=True),
            ],
            tools=[function("add")],
        )
    )

    assert llm.requests[0].body == {
        "model": "m",
        "max_tokens": 4096,
        "system": "Be brief.\n\nUse the tools.",
        "messages": [
            {"role": "user", "content": "Hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Well:"},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                    {"type": "tool_use", "id": "c2", "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "c2",
                        "content": "two",
                        "is_error": True,
                    },
                ],
            },
        ],
        "tools": [
            {
                "name": "add",
                "description": "Do add",
                "input_schema": function("add")["function"]["parameters"],
            }
        ],
    }


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, None),
        ("auto", None),
        ("required", {"type": "any"}),
        ("any", {"type": "any"}),
        ("none", {"type": "none"}),
        (
            {"type": "function", "function": {"name": "add"}},
            {"type": "tool", "name": "add"},
        ),
    ],
)
def test_anthropic_is_told_the_tool_choice_in_its_words(
    llm: ScriptedLlm, make: Make, given: Any, sent: Any
) -> None:
    llm.say("m", text("Hi"))
    request = TranslateRequest(HELLO, tools=[function("add")], tool_choice=given)
    make(style="anthropic").translate(request)

    assert llm.requests[0].body.get("tool_choice") == sent


@STYLES
def test_without_tools_there_is_no_tool_choice(
    llm: ScriptedLlm, make: Make, style: str
) -> None:
    llm.say("m", text("Hi"))
    make(style=style).translate(TranslateRequest(HELLO, tool_choice="required"))

    assert "tool_choice" not in llm.requests[0].body


@pytest.mark.parametrize(
    ("params", "sent"),
    [
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"max_completion_tokens": 9}, {"max_tokens": 9}),
        ({"max_tokens": 8, "max_completion_tokens": 9}, {"max_tokens": 9}),
        ({"stop": "END"}, {"stop_sequences": ["END"]}),
        ({"stop": ["A", "B"]}, {"stop_sequences": ["A", "B"]}),
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"temperature": 1.7}, {"temperature": 1}),
        ({"user": "u-1"}, {"metadata": {"user_id": "u-1"}}),
        ({"top_k": 5, "stop_sequences": ["A"]}, {"top_k": 5, "stop_sequences": ["A"]}),
        ({"seed": 1, "presence_penalty": 0.1, "logit_bias": {"1": 2}}, {}),
        ({"frequency_penalty": 0.1, "metadata": {"a": "b"}, "store": True}, {}),
        ({"reasoning_effort": "low", "service_tier": "auto", "verbosity": "low"}, {}),
        ({"n": 1, "stream": False, "logprobs": False, "parallel_tool_calls": True}, {}),
        ({"response_format": {"type": "text"}, "modalities": ["text"]}, {}),
    ],
)
def test_anthropic_is_told_what_it_has_words_for(
    llm: ScriptedLlm, make: Make, params: dict[str, Any], sent: dict[str, Any]
) -> None:
    llm.say("m", text("Hi"))
    make(style="anthropic").translate(TranslateRequest(HELLO, params=params))

    bare = {"model": "m", "max_tokens": 4096, "messages": HELLO}
    assert llm.requests[0].body == {**bare, **sent}


@pytest.mark.parametrize(
    "params",
    [
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
        {"top_logprobs": 3},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy"}},
        {"parallel_tool_calls": False},
        {"web_search_options": {}},
    ],
)
def test_a_promise_that_anthropic_cannot_keep_is_refused_unasked(
    llm: ScriptedLlm, make: Make, params: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=f"Anthropic has no {next(iter(params))}"):
        make(style="anthropic").translate(TranslateRequest(HELLO, params=params))

    assert llm.requests == []


def test_request_params_of_the_client_win(llm: ScriptedLlm, make: Make) -> None:
    llm.say("m", text("Hi"))
    make(request_params={"seed": 7}).translate(TranslateRequest(HELLO, params={"seed": 1}))

    assert llm.requests[0].body["seed"] == 7
