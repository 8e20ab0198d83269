"""Where the key comes from, what is merged into the body in which order, wrong options."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tests.conftest import MakeClient
from tests.helpers import Charge
from toolnexus import ClientOptions, ConfigError, LlmClient, LlmError
from toolnexus.testing import ScriptedLlm, text
from toolnexus.wire.base import ModelRequest

OPENROUTER, OPENAI, ANTHROPIC = "OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"


def key_on_the_wire(llm: ScriptedLlm) -> str:
    headers = llm.requests[-1].headers
    return headers.get("x-api-key") or headers["authorization"].removeprefix("Bearer ")


@pytest.mark.parametrize(
    ("style", "option", "variables", "used"),
    [
        ("openai", "own", (OPENROUTER, OPENAI, ANTHROPIC), "own"),
        ("openai", None, (OPENROUTER, OPENAI, ANTHROPIC), OPENROUTER),
        ("openai", None, (OPENAI, ANTHROPIC), OPENAI),
        ("openai", None, (ANTHROPIC,), ANTHROPIC),
        ("openai", "", (ANTHROPIC,), ANTHROPIC),
        ("anthropic", "own", (OPENROUTER, OPENAI, ANTHROPIC), "own"),
        ("anthropic", None, (OPENROUTER, OPENAI, ANTHROPIC), OPENROUTER),
        ("anthropic", None, (OPENAI, ANTHROPIC), ANTHROPIC),
        ("anthropic", None, (OPENAI,), OPENAI),
    ],
)
def test_the_key_is_looked_up_in_this_order(
    llm: ScriptedLlm,
    make_client: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
    style: str,
    option: str | None,
    variables: tuple[str, ...],
    used: str,
) -> None:
    for variable in variables:
        monkeypatch.setenv(variable, variable)
    llm.say("m", text("hi"))
    make_client(style=style, api_key=option).run("hi")

    assert key_on_the_wire(llm) == used


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_no_key_anywhere_is_said_before_anything_is_sent(
    llm: ScriptedLlm, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    monkeypatch.setenv(OPENAI, "")
    with pytest.raises(ConfigError, match=r"^No API key: .*OPENROUTER_API_KEY") as caught:
        make_client(style=style, api_key=None).run("hi")

    assert OPENAI in str(caught.value)
    assert ANTHROPIC in str(caught.value)
    assert llm.requests == []


def test_white_space_around_a_key_is_no_part_of_it(
    llm: ScriptedLlm, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPENAI, "from-a-file\n")
    llm.say("m", text("hi"), text("hi"))
    make_client(api_key=None).run("hi")
    assert key_on_the_wire(llm) == "from-a-file"
    make_client(api_key=" spaced\r\n").run("hi")
    assert key_on_the_wire(llm) == "spaced"


@pytest.mark.parametrize("key", ["canary\u2026", "can\nary", "can\x00ary"])
def test_a_key_that_no_header_can_carry_is_a_config_error(
    llm: ScriptedLlm, make_client: MakeClient, key: str
) -> None:
    with pytest.raises(ConfigError, match="header") as caught:
        make_client(api_key=key, retries=5).run("hi")

    assert key not in f"{caught.value!r}"
    assert llm.requests == []


def test_own_headers_win_over_ours(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", text("hi"))
    make_client(headers={"authorization": "Bearer mine", "X-Title": "app"}).run("hi")
    headers = llm.requests[0].headers

    assert headers["authorization"] == "Bearer mine"
    assert headers["x-title"] == "app"


def test_a_key_in_the_headers_is_key_enough(
    llm: ScriptedLlm, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPENROUTER, "not-this")
    llm.say("m", text("hi"))
    make_client(api_key=None, headers={"Authorization": "Bearer mine"}).run("hi")

    assert key_on_the_wire(llm) == "mine"


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_request_params_win_and_the_loops_own_keys_are_left_alone(
    llm: ScriptedLlm, make_client: MakeClient, style: str, caplog: pytest.LogCaptureFixture
) -> None:
    llm.say("other", text("hi"))
    params = {"model": "other", "temperature": 0, "messages": [], "tools": [1], "stream": True}
    with caplog.at_level(logging.WARNING, "toolnexus"):
        make_client(style=style, request_params=params).run("hi")
    body = llm.requests[0].body

    assert (body["model"], body["temperature"]) == ("other", 0)
    assert [m["content"] for m in body["messages"]] == ["hi"]
    assert not {"tools", "stream"} & set(body)
    assert "messages, tools, stream ignored" in caplog.text


def test_params_are_merged_shallowly(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", text("hi"))
    make_client(max_tokens=5, request_params={"max_tokens": 9, "top": {"a": 1}}).run("hi")

    assert llm.requests[0].body["max_tokens"] == 9
    assert llm.requests[0].body["top"] == {"a": 1}


class Rename:
    def __init__(self, order: list[str]) -> None:
        self.order = order

    def before_llm(self, request: ModelRequest) -> ModelRequest:
        self.order.append("before_llm")
        return attrs.evolve(request, model="from-hook", max_tokens=1)


def test_the_body_is_made_by_hook_then_params_then_transform(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    order: list[str] = []
    seen: list[dict[str, Any]] = []

    def transform(body: dict[str, Any]) -> dict[str, Any]:
        order.append("transform")
        seen.append(dict(body))
        return {**body, "model": "from-transform"}

    llm.say("from-transform", text("hi"))
    make_client(
        hooks=Rename(order), request_params={"max_tokens": 2}, body_transform=transform
    ).run("hi")

    assert order == ["before_llm", "transform"]
    assert (seen[0]["model"], seen[0]["max_tokens"]) == ("from-hook", 2)
    assert llm.requests[0].body["max_tokens"] == 2


def test_a_transform_that_returns_none_may_have_edited_in_place(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    def transform(body: dict[str, Any]) -> None:
        body["messages"][0]["content"] = "edited"
        body["seed"] = 7

    llm.say("m", text("hi"))
    result = make_client(body_transform=transform).run("original")

    assert llm.requests[0].body["seed"] == 7
    assert llm.requests[0].prompt == "edited"
    assert result.messages[0]["content"] == "original"


def test_an_empty_body_from_a_transform_is_sent_as_it_is(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    with pytest.raises(LlmError, match="LLM 400"):
        make_client(body_transform=lambda body: {}).run("hi")

    assert llm.requests[0].content == b"{}"


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_a_body_transform_that_edits_in_place_changes_no_tool(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    tool = Charge()
    tool.input_schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}

    def strip(body: dict[str, Any]) -> None:
        one = body["tools"][0]
        (one.get("function", {}).get("parameters") or one.get("input_schema")).pop("properties")

    llm.say("m", text("hi"))
    make_client(style=style, body_transform=strip).run("hi", tools=[tool])
    assert "properties" in tool.input_schema
    (sent,) = llm.requests[-1].body["tools"]
    assert (sent.get("input_schema") or sent["function"]["parameters"]) == {"type": "object"}


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_parameters_that_are_not_json_are_a_config_error(
    llm: ScriptedLlm, make_client: MakeClient, value: Any
) -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        make_client(request_params={"temperature": value}).run("hi")

    assert llm.requests == []


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("base_url", "api.openai.com/v1", "http"),
        ("base_url", 5, "http"),
        ("style", "gemini", "openai, anthropic"),
        ("model", 5, "must be a str, not 5"),
        ("retries", -1, "whole number from 0, not -1"),
        ("retries", True, "whole number from 0, not True"),
        ("retries", "2", "whole number from 0, not '2'"),
        ("timeout_ms", 1.5, "whole number"),
        ("connect_timeout_ms", 0, "whole number from 1, not 0"),
        ("read_timeout_ms", 0, "whole number from 1, not 0"),
        ("headers", "X: y", "must be a mapping"),
        ("request_params", [1], "must be a "),
        ("on_error", 5, "must be callable, not 5"),
        ("wait_for", "yes", "must be callable, not 'yes'"),
        ("body_transform", {}, "must be callable"),
        ("on_metric", 1, "must be callable"),
        ("session", "requests", "session"),
        ("retryable_statuses", 429, "retryable_statuses"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_what_is_right(
    option: str, value: Any, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ClientOptions(**{option: value})

    assert option in str(caught.value)
    assert says in str(caught.value)


def test_options_are_given_once_and_by_known_names(llm: ScriptedLlm) -> None:
    with pytest.raises(ConfigError, match="not both"):
        LlmClient(ClientOptions(), model="m")
    with pytest.raises(ConfigError, match="modle"):
        LlmClient(modle="m")
    with pytest.raises(ConfigError, match="must be ClientOptions, not dict"):
        LlmClient({"model": "m"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="none of the"):
        LlmClient(hooks=object())


def test_no_base_url_is_a_config_error(make_client: MakeClient) -> None:
    with pytest.raises(ConfigError, match="no base_url"):
        make_client(base_url="").run("hi")


@pytest.mark.parametrize("prompt", [None, 5, b"hi", [5], []])
def test_a_prompt_is_text_or_parts(make_client: MakeClient, prompt: Any) -> None:
    with pytest.raises(ConfigError, match="prompt"):
        make_client().run(prompt)


def test_tools_are_tools_and_have_names_of_their_own(make_client: MakeClient) -> None:
    with pytest.raises(ConfigError, match="two tools are named 'pay'"):
        make_client().run("hi", tools=[Charge("pay"), Charge("pay")])
    with pytest.raises(ConfigError, match="is not a tool"):
        make_client().run("hi", tools=[len])  # type: ignore[list-item]


CALLS: dict[str, Callable[[LlmClient], object]] = {
    "run": lambda client: client.run("hi"),
    "ask": lambda client: client.ask("hi"),
    "ask in a conversation": lambda client: client.ask("hi", id="u1"),
    "stream": lambda client: client.stream("hi"),
    "stream in a conversation": lambda client: client.stream("hi", id="u1"),
    "send": lambda client: client.conversation().send("hi"),
    "stream of a conversation": lambda client: client.conversation().stream("hi"),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_model_is_said_at_the_call_and_not_at_the_first_event(
    llm: ScriptedLlm, make_client: MakeClient, name: str
) -> None:
    client = make_client(model="")
    with pytest.raises(ConfigError, match=r"^no model"):
        CALLS[name](client)

    assert llm.requests == []
    assert client.conversation_store.get("u1") == []
