"""What ScriptedLlm refuses, because real providers do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from toolnexus.testing.replies import signature_of
from toolnexus.testing.strict import Refusal
from toolnexus.testing.strict_anthropic import ThoughtMemory, check_anthropic
from toolnexus.testing.strict_openai import check_openai

JSON = {"content-type": "application/json; charset=utf-8"}
OPENAI_HEADERS = {**JSON, "authorization": "Bearer k"}
ANTHROPIC_HEADERS = {**JSON, "x-api-key": "k", "anthropic-version": "2023-06-01"}
SCHEMA = {"type": "object", "properties": {}}
USER = {"role": "user", "content": "hi"}


def fn(call_id: Any = "c1", name: Any = "add", arguments: Any = "{}", **more: Any) -> Any:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **more}


def asks(*calls: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(call_id: Any = "c1", content: Any = "3", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def tool(name: Any = "add", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}, **more}


def openai(messages: Any = (USER,), **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


OPENAI_TAKEN = {
    "plain": openai(),
    "with tools": openai(tools=[tool(), tool("b")], tool_choice="auto"),
    "a named tool": openai(
        tools=[tool()], tool_choice={"type": "function", "function": {"name": "add"}}
    ),
    "balanced": openai([USER, asks(fn("a"), fn("b")), result("b"), result("a"), USER]),
    "the same id in a later message": openai(
        [USER, asks(fn()), result(), asks(fn()), result()]
    ),
    "malformed arguments, which are only text": openai(
        [USER, asks(fn(arguments="{")), result()]
    ),
    "an empty result": openai([USER, asks(fn()), result(content="")]),
    "parts": openai([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]),
    "foreign keys": openai([USER, asks(fn(), reasoning="hm", refusal=None), result()]),
    "a text beside the calls": openai([USER, asks(fn(), content="so"), result()]),
}

OPENAI_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"messages": [USER]}, "model"),
    "no messages": ({"model": "m"}, "messages: field required"),
    "empty messages": (openai([]), "at least one message"),
    "a message that is a string": (openai(["hi"]), "must be an object"),
    "unknown role": (openai([{"role": "robot", "content": "x"}]), "'robot' is not one of"),
    "no result": (openai([USER, asks(fn())]), "c1"),
    "a result too few": (openai([USER, asks(fn("a"), fn("b")), result("a")]), ": b"),
    "a user between": (openai([USER, asks(fn()), USER, result()]), "must be followed"),
    "orphan": (openai([USER, result()]), "must be a response"),
    "orphan among results": (openai([USER, asks(fn()), result(), result("x")]), "'x'"),
    "duplicate result": (openai([USER, asks(fn()), result(), result()]), "second result"),
    "a late second result": (
        openai([USER, asks(fn()), result(), USER, result()]),
        "must be a response",
    ),
    "empty tools": (openai(tools=[]), "too short"),
    "tools null": (openai(tools=None), "must be an array"),
    "tool_choice alone": (openai(tool_choice="auto"), "only allowed when 'tools'"),
    "unknown tool_choice": (openai(tools=[tool()], tool_choice="any"), "not one of"),
    "tool_choice of no tool": (
        openai(tools=[tool()], tool_choice={"type": "function", "function": {"name": "x"}}),
        "no tool is named 'x'",
    ),
    "tool name": (openai(tools=[tool("a.b")]), "does not match"),
    "tool name with a newline": (openai(tools=[tool("add\n")]), "does not match"),
    "long tool name": (openai(tools=[tool("a" * 65)]), "does not match"),
    "tool name twice": (openai(tools=[tool(), tool()]), "unique"),
    "tool schema": (
        openai(tools=[{"type": "function", "function": {"name": "a", "parameters": {}}}]),
        "schema",
    ),
    "tool with our key": (openai(tools=[tool(_source="x")]), "_source"),
    "an empty assistant": (openai([USER, {"role": "assistant"}]), "needs 'content'"),
    "an assistant with no words": (
        openai([USER, {"role": "assistant", "content": ""}]),
        "needs 'content'",
    ),
    "no calls": (openai([USER, asks()]), "too short"),
    "calls null": (
        openai([USER, {"role": "assistant", "content": "x", "tool_calls": None}]),
        "must be an array",
    ),
    "arguments an object": (openai([USER, asks(fn(arguments={})), result()]), "a string"),
    "no id": (openai([USER, asks(fn(None)), result()]), "id: is required"),
    "an empty id": (openai([USER, asks(fn("")), result()]), "id: is required"),
    "the same id twice": (openai([USER, asks(fn(), fn()), result()]), "duplicate id"),
    "a long id": (openai([USER, asks(fn("x" * 41)), result("x" * 41)]), "41 of at most 40"),
    "a call of a strange name": (openai([USER, asks(fn(name="a b")), result()]), "match"),
    "our key on a call": (openai([USER, asks(fn(_x=1)), result()]), "_x"),
    "our key on a message": (openai([USER, asks(fn(), _origin="x"), result()]), "_origin"),
    "our key on the request": (openai(_x=1), "_x"),
    "content null": (openai([{"role": "user", "content": None}]), "got null"),
    "system content null": (openai([{"role": "system", "content": None}]), "got null"),
    "result null": (openai([USER, asks(fn()), result(content=None)]), "got null"),
    "result a number": (openai([USER, asks(fn()), result(content=3)]), "array"),
    "result without id": (openai([USER, asks(fn()), result(None)]), "tool_call_id"),
    "calls of a user": (openai([{**USER, "tool_calls": [fn()]}]), "does not fit"),
}


@pytest.mark.parametrize("name", OPENAI_TAKEN)
def test_openai_takes(name: str) -> None:
    check_openai(OPENAI_HEADERS, OPENAI_TAKEN[name])


@pytest.mark.parametrize("name", OPENAI_REFUSED)
def test_openai_refuses(name: str) -> None:
    body, words = OPENAI_REFUSED[name]
    with pytest.raises(Refusal) as caught:
        check_openai(OPENAI_HEADERS, body)
    assert words in caught.value.message
    assert caught.value.status == 400


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic k", "k"])
def test_openai_wants_a_bearer(value: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_openai({**JSON, "authorization": value}, openai())
    assert caught.value.status == 401


def test_a_body_must_say_that_it_is_json() -> None:
    with pytest.raises(Refusal, match="content-type"):
        check_openai({"authorization": "Bearer k"}, openai())


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def model(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def words(text: Any = "hi") -> dict[str, Any]:
    return {"type": "text", "text": text}


def use(
    use_id: Any = "u1", given: Any = None, name: Any = "add", **more: Any
) -> dict[str, Any]:
    given = {} if given is None else given
    return {"type": "tool_use", "id": use_id, "name": name, "input": given, **more}


def got(use_id: Any = "u1", content: Any = "3", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": use_id, "content": content, **more}


def thought(text: str = "hm", signature: str | None = None) -> dict[str, Any]:
    signature = signature_of(text) if signature is None else signature
    return {"type": "thinking", "thinking": text, "signature": signature}


def anthropic(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": list(messages) or [USER], **more}


def custom(name: str = "add", **more: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": SCHEMA, **more}


ANTHROPIC_TAKEN = {
    "plain": anthropic(system="be kind"),
    "system blocks": anthropic(system=[words()]),
    "tools": anthropic(tools=[custom()], tool_choice={"type": "tool", "name": "add"}),
    "balanced": anthropic(
        USER, model(words(), use("a"), use("b")), user(got("b"), got("a"), words())
    ),
    "an empty result": anthropic(USER, model(use()), user(got(content=""))),
    "a failed result": anthropic(USER, model(use()), user(got(is_error=True))),
    "result blocks": anthropic(USER, model(use()), user(got(content=[words()]))),
    "thinking": anthropic(USER, model(thought(), use()), user(got())),
    "an old turn without its thinking": anthropic(
        USER, model(use("old")), user(got("old")), model(words()), USER
    ),
}

ANTHROPIC_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no max_tokens": ({"model": "m", "messages": [USER]}, "max_tokens"),
    "max_tokens true": (anthropic(max_tokens=True), "max_tokens"),
    "no messages": (anthropic(messages=[]), "at least one message"),
    "our key": (anthropic({**USER, "_origin": "x"}), "_origin"),
    "our key on the request": (anthropic(_x=1), "_x"),
    "a foreign key": (anthropic({**USER, "name": "x"}), "Extra inputs"),
    "a key on a block": (anthropic(USER, model(use(_x=1)), user(got())), "Extra inputs"),
    "two users": (anthropic(USER, USER), "alternate"),
    "assistant first": (anthropic(model(words()), USER), "first message"),
    "system role": (anthropic({"role": "system", "content": "x"}, USER), "top-level"),
    "tool role": (anthropic(USER, {"role": "tool", "content": "x"}), "neither"),
    "no result": (anthropic(USER, model(use())), "without `tool_result`"),
    "a text in place of a result": (anthropic(USER, model(use()), USER), "without"),
    "a result too few": (anthropic(USER, model(use("a"), use("b")), user(got("a"))), ": b."),
    "results after the text": (
        anthropic(USER, model(use()), user(words(), got())),
        "must come first",
    ),
    "orphan": (anthropic(user(got())), "unexpected `tool_use_id`"),
    "a late result": (
        anthropic(USER, model(use()), user(got()), model(words()), user(got())),
        "unexpected `tool_use_id`",
    ),
    "duplicate result": (anthropic(USER, model(use()), user(got(), got())), "single result"),
    "empty text": (anthropic({"role": "user", "content": ""}), "non-whitespace"),
    "blank text": (anthropic({"role": "user", "content": " \n"}), "non-whitespace"),
    "blank block": (anthropic(user(words(" "))), "non-whitespace"),
    "blank block of a result": (
        anthropic(USER, model(use()), user(got(content=[words("")]))),
        "non-whitespace",
    ),
    "empty content": (anthropic(user()), "non-empty content"),
    "null content": (anthropic({"role": "user", "content": None}), "non-empty content"),
    "an empty last assistant": (anthropic(USER, model()), "non-empty content"),
    "an error with no words": (
        anthropic(USER, model(use()), user(got(content="", is_error=True))),
        "is_error",
    ),
    "an id with a dot": (anthropic(USER, model(use("a.b")), user(got("a.b"))), "should match"),
    "an id used before": (
        anthropic(USER, model(use()), user(got()), model(use()), user(got())),
        "must be unique",
    ),
    "an id twice": (anthropic(USER, model(use(), use()), user(got())), "must be unique"),
    "input a string": (anthropic(USER, model(use(given="{}")), user(got())), "dictionary"),
    "input a list": (anthropic(USER, model(use(given=[])), user(got())), "dictionary"),
    "system empty": (anthropic(system=""), "non-empty"),
    "system no blocks": (anthropic(system=[]), "too short"),
    "system blank block": (anthropic(system=[words("")]), "non-whitespace"),
    "a block of nobody's": (anthropic(user({"type": "noise"})), "expected tags"),
    "a use by the user": (anthropic(user(use())), "expected tags"),
    "tool name": (anthropic(tools=[custom("a b")]), "does not match"),
    "tool name twice": (anthropic(tools=[custom(), custom()]), "unique"),
    "tool without schema": (anthropic(tools=[{"name": "add"}]), "schema"),
    "tool with our key": (anthropic(tools=[custom(_x=1)]), "_x"),
    "tool_choice alone": (anthropic(tool_choice={"type": "auto"}), "only be specified"),
    "tool_choice a word": (anthropic(tools=[custom()], tool_choice="auto"), "an object"),
    "altered thinking": (
        anthropic(USER, model(thought("ho", signature_of("hm")), words()), USER),
        "Invalid `signature`",
    ),
    "unsigned thinking": (
        anthropic(USER, model(thought("hm", ""), words()), USER),
        "signature",
    ),
    "thinking last": (anthropic(USER, model(words(), thought()), USER), "final block"),
}


@pytest.mark.parametrize("name", ANTHROPIC_TAKEN)
def test_anthropic_takes(name: str) -> None:
    check_anthropic(ANTHROPIC_HEADERS, ANTHROPIC_TAKEN[name], ThoughtMemory())


@pytest.mark.parametrize("name", ANTHROPIC_REFUSED)
def test_anthropic_refuses(name: str) -> None:
    body, fragment = ANTHROPIC_REFUSED[name]
    with pytest.raises(Refusal) as caught:
        check_anthropic(ANTHROPIC_HEADERS, body, ThoughtMemory())
    assert fragment in caught.value.message
    assert caught.value.status == 400


@pytest.mark.parametrize(("header", "code"), [("x-api-key", 401), ("anthropic-version", 400)])
def test_anthropic_wants_its_headers(header: str, code: int) -> None:
    headers: Mapping[str, str] = {k: v for k, v in ANTHROPIC_HEADERS.items() if k != header}
    with pytest.raises(Refusal, match=header) as caught:
        check_anthropic(headers, anthropic(), ThoughtMemory())
    assert caught.value.status == code


@pytest.fixture
def memory() -> ThoughtMemory:
    handed_out = ThoughtMemory()
    hidden = {"type": "redacted_thinking", "data": "d"}
    handed_out.remember("m", {"content": [thought("hm", "s1"), hidden, use()]})
    return handed_out


HIDDEN = {"type": "redacted_thinking", "data": "d"}


def test_thinking_sent_back_unchanged_is_taken(memory: ThoughtMemory) -> None:
    body = anthropic(USER, model(thought("hm", "s1"), HIDDEN, use()), user(got()))
    check_anthropic(ANTHROPIC_HEADERS, body, memory)


@pytest.mark.parametrize(
    ("blocks", "fragment"),
    [
        ([use()], "Expected `thinking`"),
        ([thought("hm", "s1"), use()], "cannot be modified"),
        ([HIDDEN, thought("hm", "s1"), use()], "cannot be modified"),
        ([thought("hm", "s1"), {**HIDDEN, "data": "e"}, use()], "cannot be modified"),
        ([thought("ho", "s1"), HIDDEN, use()], "Invalid `signature`"),
        ([words(), thought("hm", "s1"), HIDDEN, use()], "Expected `thinking`"),
    ],
)
def test_thinking_of_the_present_turn_must_come_back(
    memory: ThoughtMemory, blocks: list[Any], fragment: str
) -> None:
    body = anthropic(USER, model(*blocks), user(got()))
    with pytest.raises(Refusal) as caught:
        check_anthropic(ANTHROPIC_HEADERS, body, memory)
    assert fragment in caught.value.message


def test_thinking_may_be_dropped_once_the_turn_is_over(memory: ThoughtMemory) -> None:
    body = anthropic(USER, model(use()), user(got()), model(words()), USER)
    check_anthropic(ANTHROPIC_HEADERS, body, memory)


def test_thinking_may_be_dropped_for_another_model(memory: ThoughtMemory) -> None:
    body = anthropic(USER, model(use()), user(got()), model="other")
    check_anthropic(ANTHROPIC_HEADERS, body, memory)
