"""What a translation is made of: the request's own rules, and OpenAI's reply, without HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs
import pytest

from toolnexus import ConfigError, Hooks, ToolContext, ToolResult
from toolnexus.client.hooks import HookChain
from toolnexus.client.options import ClientOptions
from toolnexus.client.prometheus import Counters
from toolnexus.client.translation import TranslateRequest, Translator
from toolnexus.testing import VirtualClock
from toolnexus.transport import Transport
from toolnexus.wire.base import ModelRequest

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


class Clap:
    """A tool that must not be executed."""

    name, description, source = "clap", "Clap", "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {"type": "object", "properties": {}}

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        raise AssertionError("a translation executes nothing")


class Model:
    """A model in this process: it keeps what it was asked, and says what it is told to."""

    def __init__(self, **says: Any) -> None:
        self.says: dict[str, Any] = says or {"text": "hi"}
        self.asked: list[Any] = []

    def __call__(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        return self.says

    def translate(self, *given: Any, **named: Any) -> dict[str, Any]:
        request = TranslateRequest(*given, **named)
        return translator(self).translate(request)


def translator(generate: Model, **options: Any) -> Translator:
    given = {"model": "m", "clock": VirtualClock(), **options}
    whole = ClientOptions(generate=generate, **given)
    return Translator(whole, Transport(), HookChain(whole.hooks), Counters())


def call(name: Any = "add", arguments: Any = '{"a":1}', **more: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, **more}


# -- the reply ------------------------------------------------------------------------------


def test_created_is_a_whole_number_of_the_clocks_seconds() -> None:
    clock = VirtualClock()
    clock.advance(90.75)
    reply = translator(Model(), clock=clock).translate(TranslateRequest(HELLO))

    assert reply["created"] == 1_767_225_690
    assert type(reply["created"]) is int


def test_two_replies_have_different_ids() -> None:
    model = Model()

    assert model.translate(HELLO)["id"] != model.translate(HELLO)["id"]


def test_calls_come_back_with_their_arguments_as_json_text() -> None:
    reply = Model(tool_calls=[call(arguments={"a": 1}, id="c1")]).translate(HELLO, tools=[ADD])
    choice = reply["choices"][0]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "add", "arguments": '{"a":1}'},
            }
        ],
    }


@pytest.mark.parametrize("none", ["", "  ", None])
def test_no_arguments_come_back_as_an_empty_object(none: str | None) -> None:
    reply = Model(tool_calls=[call(arguments=none)]).translate(HELLO, tools=[ADD])

    (back,) = reply["choices"][0]["message"]["tool_calls"]
    assert back["function"]["arguments"] == "{}"


@pytest.mark.parametrize("said", ["stop", "length", "content_filter", None])
def test_with_calls_the_finish_reason_is_tool_calls_whatever_was_said(said: str | None) -> None:
    model = Model(tool_calls=[call()], finish_reason=said)
    reply = model.translate(HELLO, tools=[ADD])

    assert reply["choices"][0]["finish_reason"] == "tool_calls"


def test_what_is_ours_in_a_message_never_leaves() -> None:
    part = {"type": "text", "text": "hi", "annotations": [{"url": "x"}]}
    message = {"role": "assistant", "content": [part], "reasoning_content": "hm"}
    reply = Model(choices=[{"message": message, "finish_reason": "stop"}]).translate(HELLO)

    # `_blocks` and `_origin` are in the message that a run would store.
    assert reply["choices"][0]["message"] == {
        "role": "assistant",
        "content": "hi",
        "reasoning_content": "hm",
    }


def test_what_is_ours_in_the_messages_is_never_sent() -> None:
    model = Model()
    model.translate(
        [
            *HELLO,
            {
                "role": "assistant",
                "content": None,
                "_origin": "anthropic api.anthropic.com claude",
                "_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}],
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": call(arguments="{}")}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "no", "_is_error": True},
        ]
    )

    assert [sorted(message) for message in model.asked[0]["messages"]] == [
        ["content", "role"],
        ["content", "role", "tool_calls"],
        ["content", "role", "tool_call_id"],
    ]


# -- what is asked --------------------------------------------------------------------------


def test_the_messages_are_all_that_is_said() -> None:
    model = Model()
    translator(model, system_prompt="Be brief.").translate(TranslateRequest(HELLO))

    assert model.asked[0] == {"model": "m", "messages": HELLO}


def test_the_requests_model_goes_before_the_clients() -> None:
    model = Model()

    assert model.translate(HELLO, "other")["model"] == "other"
    assert model.asked[0]["model"] == "other"


def test_without_any_model_nothing_is_asked() -> None:
    model = Model()
    with pytest.raises(ConfigError, match="no model"):
        translator(model, model="").translate(TranslateRequest(HELLO))

    assert model.asked == []


def test_anything_but_a_translate_request_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes a TranslateRequest, not dict"):
        translator(Model()).translate({"messages": HELLO})  # type: ignore[arg-type]  # misuse


def test_tools_may_be_ours_and_none_is_executed() -> None:
    model = Model(tool_calls=[call("clap", "{}")])
    reply = model.translate(HELLO, tools=[Clap()])

    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    "parameters",
    [{}, {"parameters": None}, {"parameters": {}}, {"parameters": {"type": "object"}}],
)
def test_a_function_without_parameters_takes_none(parameters: dict[str, Any]) -> None:
    model = Model()
    model.translate(
        HELLO, tools=[{"type": "function", "function": {"name": "f", **parameters}}]
    )

    assert model.asked[0]["tools"][0]["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("any", "required"),
        (
            {"type": "function", "function": {"name": "add"}},
            {"type": "function", "function": {"name": "add"}},
        ),
    ],
)
def test_openai_is_told_the_tool_choice_in_its_words(given: Any, sent: Any) -> None:
    model = Model()
    model.translate(HELLO, tools=[ADD], tool_choice=given)

    assert model.asked[0]["tool_choice"] == sent


def test_without_tools_there_is_no_tool_choice_and_nothing_about_calls() -> None:
    model = Model()
    model.translate(HELLO, tool_choice="required", params={"parallel_tool_calls": False})

    assert model.asked[0] == {"model": "m", "messages": HELLO}


def test_a_hook_that_takes_the_tools_away_takes_the_choice_away() -> None:
    class Unarmed(Hooks):
        def before_llm(self, request: ModelRequest) -> ModelRequest:
            return attrs.evolve(request, tools=())

    model = Model()
    request = TranslateRequest(
        HELLO, tools=[ADD], tool_choice="required", params={"parallel_tool_calls": False}
    )
    translator(model, hooks=Unarmed()).translate(request)

    assert model.asked[0] == {"model": "m", "messages": HELLO}


def test_params_go_into_the_body_as_openai_has_them() -> None:
    model = Model()
    params = {
        "temperature": 1.5,
        "stop": "END",
        "max_tokens": 9,
        "seed": 1,
        "response_format": {"type": "json_object"},
        "user": "u",
    }
    model.translate(HELLO, params=params)

    assert model.asked[0] == {"model": "m", "messages": HELLO, **params}


def test_params_that_say_nothing_are_not_sent() -> None:
    model = Model()
    params = {"stream": False, "stream_options": None, "n": 1, "stop": None, "max_tokens": None}
    model.translate(HELLO, params=params)

    assert model.asked[0] == {"model": "m", "messages": HELLO}


def test_the_clients_max_tokens_holds_where_the_request_has_no_limit() -> None:
    model = Model()
    asked = translator(model, max_tokens=50)
    asked.translate(TranslateRequest(HELLO))
    asked.translate(TranslateRequest(HELLO, params={"max_tokens": 9}))
    asked.translate(TranslateRequest(HELLO, params={"max_completion_tokens": 9}))

    limits = ("max_tokens", "max_completion_tokens")
    assert [{k: body[k] for k in limits if k in body} for body in model.asked] == [
        {"max_tokens": 50},
        {"max_tokens": 9},
        {"max_completion_tokens": 9},
    ]


def test_a_request_is_not_changed_by_what_is_done_with_it() -> None:
    class Scribble(Hooks):
        def before_llm(self, request: ModelRequest) -> None:
            request.messages[0]["content"] = "scribbled"

    def scribble(body: Any) -> dict[str, Any]:
        body["messages"][0]["content"] += "!"
        body["tools"][0]["function"]["parameters"].clear()
        body["stop"].append("X")
        return {"text": "hi"}

    request = TranslateRequest(HELLO, tools=[ADD], params={"stop": ["END"]})
    before = repr(attrs.asdict(request))
    options = ClientOptions(generate=scribble, model="m", hooks=Scribble())
    asked = Translator(options, Transport(), HookChain(options.hooks), Counters())
    asked.translate(request)

    assert repr(attrs.asdict(request)) == before


def test_a_request_is_not_changed_with_what_it_was_made_of() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    tools = [ADD]
    params = {"stop": ["END"]}
    request = TranslateRequest(messages, tools=tools, params=params)
    messages[0]["content"] = "b"
    tools.clear()
    params["stop"].append("X")

    assert request.messages == ({"role": "user", "content": [{"type": "text", "text": "a"}]},)
    assert [tool.name for tool in request.tools] == ["add"]
    assert request.params == {"stop": ["END"]}


def test_mappings_of_any_kind_will_do() -> None:
    model = Model()
    model.translate(
        [MappingProxyType(HELLO[0])],
        tools=[MappingProxyType(ADD)],
        params=MappingProxyType({"seed": 1}),
    )

    assert model.asked[0]["messages"] == HELLO
    assert model.asked[0]["seed"] == 1


def test_its_repr_shows_nothing_that_was_said() -> None:
    request = TranslateRequest(
        [{"role": "user", "content": "my secret"}], params={"user": "my secret"}
    )

    assert "my secret" not in repr(request)


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"messages": []}, "at least one"),
        ({"messages": "Hello"}, "messages must be a list, not str"),
        ({"messages": HELLO[0]}, "messages must be a list, not dict"),
        ({"messages": None}, "messages must be a list, not NoneType"),
        ({"messages": ["Hello"]}, "messages takes messages such as"),
        ({"messages": [{"role": "user", "content": [5]}]}, "may be a list of such parts"),
        ({"model": 5}, "model must be a str"),
        ({"tools": ADD}, "tools must be a list, not dict"),
        ({"tools": 5}, "tools must be a list, not int"),
        ({"tools": [{"type": "web_search"}]}, "not a mapping of type 'web_search'"),
        ({"tools": [{"name": "add", "input_schema": {}}]}, "not a mapping of type None"),
        ({"tools": [{"type": "function", "function": {}}]}, "a function's name is 1 to 64"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "not 'a b'"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "parameters must be a JSON Schema object",
        ),
        ({"tools": [print]}, "is not a tool"),
        ({"tools": [ADD, ADD]}, "two tools are named 'add'"),
        ({"tools": [Clap()], "toolkit": [Clap()]}, "two tools are named 'clap'"),
        ({"toolkit": [ADD]}, "is not a tool"),
        ({"toolkit": "add"}, "toolkit must be a list, not str"),
        ({"tool_choice": "maybe"}, "tool_choice must be one of auto, none, required"),
        ({"tool_choice": ["auto"]}, "tool_choice must be one of"),
        ({"tool_choice": {"type": "auto"}}, "tool_choice must be one of"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice must be one of"),
        ({"params": ["stop"]}, "params must be a mapping, not list"),
        ({"params": {"messages": []}}, "messages is a field of its own"),
        ({"params": {"model": "m"}}, "model is a field of its own"),
        ({"params": {"tools": []}}, "tools is a field of its own"),
        ({"params": {"tool_choice": None}}, "tool_choice is a field of its own"),
        ({"params": {"functions": []}}, "give tools in place of functions"),
        ({"params": {"stream": True}}, "does not support streaming"),
        ({"params": {"n": 2}}, "n must be 1"),
    ],
)
def test_a_malformed_request_is_refused_before_it_is_one(
    given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        TranslateRequest(**{"messages": HELLO, **given})
