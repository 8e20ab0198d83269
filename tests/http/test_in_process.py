"""A model that is a function: no key, no URL, no HTTP, for a client and for a whole runtime."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from toolnexus import (
    AgentRuntime,
    ConfigError,
    LlmClient,
    LlmError,
    MetricEvent,
    Usage,
    tool,
)

Says = Mapping[str, Any]
Body = Mapping[str, Any]
Make = Callable[..., LlmClient]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise AssertionError("an in-process model connects to nothing")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def make() -> Iterator[Make]:
    """Make clients around a function; they are closed at the end."""
    made: list[LlmClient] = []

    def build(generate: Callable[[Body], Any], **options: Any) -> LlmClient:
        made.append(LlmClient.in_process(model="m", generate=generate, **options))
        return made[-1]

    yield build
    for client in made:
        client.close()


class Script:
    """A model that says one thing after another, and keeps what it was asked."""

    def __init__(self, *says: Any) -> None:
        self.says = list(says)
        self.asked: list[Body] = []

    def __call__(self, body: Body) -> Any:
        self.asked.append(body)
        said = self.says.pop(0)
        if isinstance(said, BaseException):
            raise said
        return said


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


def asks(name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments, **more}]}


def ids_of(body: Body) -> list[list[str]]:
    return [
        [call["id"] for call in message["tool_calls"]]
        for message in body["messages"]
        if message.get("tool_calls")
    ]


def last(body: Body) -> Any:
    return body["messages"][-1]["content"]


# -- what it is -----------------------------------------------------------------------------


def test_the_client_has_sentinels_for_what_it_does_not_need(make: Make) -> None:
    options = make(Script()).options

    assert options.base_url == "http://in-process.invalid/v1"
    assert options.style == "openai"
    assert options.api_key
    assert options.retries == 0


@pytest.mark.parametrize("generate", [None, "gpt", 5])
def test_it_needs_a_function(make: Make, generate: Any) -> None:
    with pytest.raises(ConfigError, match="generate"):
        make(generate)


def test_it_does_not_come_without_a_function() -> None:
    with pytest.raises(TypeError, match="generate"):
        LlmClient.in_process(model="m")  # type: ignore[call-arg]  # misuse


def test_a_run_asks_the_function_in_openais_shape(make: Make) -> None:
    model = Script(asks("add", {"a": 1, "b": 2}), {"text": "It is 3."})
    result = make(model, system_prompt="Be brief.").run("1 + 2?", tools=[add])

    assert (result.text, result.status, result.turns) == ("It is 3.", "done", 2)
    first, second = model.asked
    assert list(first) == ["model", "messages", "tools", "tool_choice"]
    assert first["model"] == "m"
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 2?"},
    ]
    assert [one["function"]["name"] for one in first["tools"]] == ["add"]
    assert second["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_0",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a":1,"b":2}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "3"},
    ]


def test_without_tools_the_body_says_nothing_of_them(make: Make) -> None:
    model = Script({"text": "hi"})
    make(model, max_tokens=9).run("go")

    assert model.asked == [
        {"model": "m", "messages": [{"role": "user", "content": "go"}], "max_tokens": 9}
    ]


def test_request_params_and_body_transform_shape_the_body(make: Make) -> None:
    def shout(body: dict[str, Any]) -> None:
        body["messages"][0]["content"] = body["messages"][0]["content"].upper()

    model = Script({"text": "hi"})
    make(model, request_params={"temperature": 0}, body_transform=shout).run("go")

    assert model.asked == [
        {"model": "m", "messages": [{"role": "user", "content": "GO"}], "temperature": 0}
    ]


# -- what it may say ------------------------------------------------------------------------


def test_calls_without_an_id_are_numbered(make: Make) -> None:
    calls = [{"name": "add"}, {"name": "add", "id": "mine"}, {"name": "add", "id": None}]
    model = Script({"text": "Well:", "tool_calls": calls}, {"text": "done"})
    make(model).run("go", tools=[add])

    assert ids_of(model.asked[1]) == [["call_0", "mine", "call_2"]]


def test_calls_of_two_turns_may_have_the_same_numbers(make: Make) -> None:
    model = Script(
        asks("add", {"a": 1, "b": 1}), asks("add", {"a": 2, "b": 2}), {"text": "done"}
    )
    result = make(model).run("go", tools=[add])

    results = [m["content"] for m in result.messages if m["role"] == "tool"]
    assert (result.text, results) == ("done", ["2", "4"])


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"a": 1,  "b": 2}', '{"a": 1,  "b": 2}'),
        ({"a": 1, "b": 2}, '{"a":1,"b":2}'),
        (MappingProxyType({"a": 1, "b": 2}), '{"a":1,"b":2}'),
        (None, "{}"),
        ('{"a": ', '{"a": '),
    ],
)
def test_text_arguments_pass_through_and_others_become_text(
    make: Make, arguments: Any, sent: str
) -> None:
    model = Script(asks("add", arguments), {"text": "done"})
    result = make(model).run("go", tools=[add])

    (call,) = result.messages[1]["tool_calls"]
    assert call["function"]["arguments"] == sent


def test_calls_in_openais_own_shape_are_taken_too(make: Make) -> None:
    function = {"name": "add", "arguments": '{"a":1,"b":2}'}
    call = {"id": "c1", "type": "function", "function": function}
    model = Script({"tool_calls": [call]}, {"text": "done"})
    make(model).run("go", tools=[add])

    assert last(model.asked[1]) == "3"


def test_a_whole_reply_of_openai_is_taken_too(make: Make) -> None:
    reply = {
        "choices": [{"message": {"role": "assistant", "content": "hi"}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    result = make(Script(reply)).run("go")

    assert (result.text, result.usage) == ("hi", Usage(1, 2, 3))


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, Usage(3, 4, 7)),
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 9}, Usage(3, 4, 9)),
        ({"completion_tokens": 4}, Usage(0, 4, 4)),
        ({"prompt_tokens": -1, "completion_tokens": "many"}, Usage()),
        ({}, Usage()),
        (None, Usage()),
        (7, Usage()),
    ],
)
def test_the_total_of_the_usage_is_derived_where_it_is_missing(
    make: Make, usage: Any, counted: Usage
) -> None:
    assert make(Script({"text": "hi", "usage": usage})).run("go").usage == counted


@pytest.mark.parametrize("text", ["", None])
def test_a_reply_may_be_empty(make: Make, text: str | None) -> None:
    result = make(Script({"text": text})).run("go")

    assert (result.text, result.status) == ("", "done")


def test_calls_that_the_length_limit_cut_off_are_not_executed(make: Make) -> None:
    cut = {**asks("add", {"a": 1, "b": 2}), "finish_reason": "length"}
    model = Script(cut, {"text": "done"})
    make(model).run("go", tools=[add])

    assert last(model.asked[1]).startswith("not executed: the reply was cut off")


def test_what_it_said_may_be_changed_afterwards(make: Make) -> None:
    said = {
        "choices": [
            {"message": {"role": "assistant", "content": "hi", "thoughts": [{"of": "you"}]}}
        ]
    }
    result = make(Script(said)).run("go")
    said["choices"][0]["message"]["thoughts"][0]["of"] = "me"  # type: ignore[index]  # nested

    assert result.messages[1]["thoughts"] == [{"of": "you"}]


def test_what_it_does_with_the_body_changes_nothing(make: Make) -> None:
    def scribble(body: Any) -> Says:
        body["messages"].clear()
        body["tools"][0]["function"]["parameters"].clear()
        return {"text": "hi"}

    schema = dict(add.input_schema)
    result = make(scribble).run("go", tools=[add])

    assert result.messages[0] == {"role": "user", "content": "go"}
    assert add.input_schema == schema


# -- rubbish and failure --------------------------------------------------------------------


class Odd:
    """What JSON has no form for."""


RUBBISH: list[tuple[Any, str]] = [
    (None, "must return a mapping with text and tool_calls, not NoneType"),
    ("hi", "must return a mapping with text and tool_calls, not str"),
    ([], "must return a mapping with text and tool_calls, not list"),
    ({}, "neither text nor tool_calls among no keys"),
    ({"txt": "hi"}, "neither text nor tool_calls among txt"),
    ({"text": 5}, "text must be a str, not int"),
    ({"text": Odd()}, "not JSON"),
    ({"text": b"hi"}, "not JSON"),
    ({"text": "hi", "usage": {"prompt_tokens": float("nan")}}, "not JSON"),
    ({"tool_calls": 5}, "tool_calls must be a list, not int"),
    ({"tool_calls": {"name": "add"}}, "tool_calls must be a list, not dict"),
    ({"tool_calls": ["add"]}, "a tool call must be a mapping with a name, not 'add'"),
    ({"tool_calls": [{"function": None}]}, "a tool call must be a mapping with a name"),
    ({"tool_calls": [{"name": "add", "arguments": {1, 2}}]}, "not JSON"),
    ({"choices": []}, "no choices"),
    ({"choices": [{}]}, "no message"),
    ({"choices": [{"message": {}}], "error": {"message": "no"}}, "gave no reply"),
]


@pytest.mark.parametrize(("said", "complaint"), RUBBISH, ids=[text for _, text in RUBBISH])
def test_rubbish_is_an_error_that_says_what_is_wrong(
    make: Make, said: Any, complaint: str
) -> None:
    model = Script(said)
    with pytest.raises(LlmError, match=complaint) as caught:
        make(model).run("go", tools=[add])

    assert len(model.asked) == 1
    assert caught.value.status is None
    assert "LLM 200" not in str(caught.value)


def test_a_value_that_contains_itself_is_an_error(make: Make) -> None:
    said: dict[str, Any] = {"text": "hi"}
    said["usage"] = said
    with pytest.raises(LlmError, match="not JSON"):
        make(Script(said)).run("go")


def test_a_call_of_an_unknown_tool_is_the_models_to_mend(make: Make) -> None:
    model = Script(asks("nothing"), asks(None), {"text": "done"})  # type: ignore[arg-type]
    result = make(model).run("go", tools=[add])

    assert result.text == "done"
    assert "nothing" in last(model.asked[1])


@pytest.mark.parametrize("retries", [0, 3])
def test_a_failure_is_exactly_one_call(make: Make, retries: int) -> None:
    events: list[MetricEvent] = []
    failure = ValueError("no such weights")
    model = Script(failure)
    client = make(model, retries=retries, on_metric=events.append)
    with pytest.raises(LlmError, match="in-process model failed: no such weights") as caught:
        client.run("go")

    assert len(model.asked) == 1
    assert caught.value.__cause__ is failure
    assert not caught.value.retryable
    assert [(event.kind, event.status) for event in events] == [
        ("llm", "error"),
        ("run", "error"),
    ]


def test_a_run_goes_on_from_where_the_function_failed(make: Make) -> None:
    ran: list[int] = []

    @tool
    def note() -> str:
        """Take note."""
        ran.append(1)
        return "noted"

    model = Script(asks("note"), OSError("disk"), {"text": "done"})
    client = make(model)
    with pytest.raises(LlmError) as caught:
        client.run("go", tools=[note])
    assert caught.value.checkpoint is not None
    result = client.resume(caught.value.checkpoint, tools=[note])

    assert (result.text, ran) == ("done", [1])


def test_an_interrupt_out_of_the_function_is_not_swallowed(make: Make) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(Script(KeyboardInterrupt())).run("go")


def test_it_speaks_one_style_and_takes_no_other(make: Make) -> None:
    script = Script({"text": "never"})
    with pytest.raises(ConfigError, match="openai style"):
        make(script, style="anthropic")
    with pytest.raises(ConfigError, match="openai style"):
        AgentRuntime(generate=script, style="anthropic", default_model="m")

    assert make(script, style="openai").options.style == "openai"
    assert script.asked == []
