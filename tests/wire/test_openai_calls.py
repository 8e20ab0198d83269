"""Tool calls in OpenAI's chunks, as the servers that speak its dialect cut them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.wire.openai_chunks import HERE, chunk, read, taken
from toolnexus.wire import openai


def part(index: Any = None, call_id: Any = None, name: Any = None, args: Any = None) -> Any:
    """Return one entry of a delta's `tool_calls`; what is None is left out."""
    function = {"name": name, "arguments": args}
    function = {key: value for key, value in function.items() if value is not None}
    entry = {"index": index, "id": call_id, "function": function or None}
    return {key: value for key, value in entry.items() if value is not None}


A, B = ("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')
CALLS: dict[str, tuple[list[Any], list[tuple[str, str, str]]]] = {
    "id once": (
        [part(0, "a", "f", ""), part(0, args='{"x"'), part(0, args=":1}")],
        [A],
    ),
    "everything in every delta": (
        [part(0, "a", "f", '{"x"'), part(0, "a", "f", ":1}"), part(0, "a", "f", "")],
        [A],
    ),
    "id empty after the first": (
        [part(0, "a", "f", '{"x"'), part(0, "", "", ":1}")],
        [A],
    ),
    "two in turn": (
        [
            part(0, "a", "f"),
            part(0, args='{"x":1}'),
            part(1, "b", "g"),
            part(1, args='{"y":2}'),
        ],
        [A, B],
    ),
    "interleaved": (
        [
            *(part(0, "a", "f"), part(1, "b", "g"), part(0, args='{"x"'), part(1, args='{"y"')),
            *(part(0, args=":1}"), part(1, args=":2}")),
        ],
        [A, B],
    ),
    "the second index first": (
        [part(1, "b", "g", '{"y":2}'), part(0, "a", "f", '{"x":1}')],
        [A, B],
    ),
    "one index for both": (
        [part(0, "a", "f", '{"x"'), part(0, args=":1}"), part(0, "b", "g", '{"y":2}')],
        [A, B],
    ),
    "one index for both, interleaved by id": (
        [
            *(part(0, "a", "f", '{"x"'), part(0, "b", "g", '{"y"')),
            *(part(0, "a", args=":1}"), part(0, "b", args=":2}")),
        ],
        [A, B],
    ),
    "no index": (
        [part(None, "a", "f", '{"x"'), part(args=":1}"), part(None, "b", "g", '{"y":2}')],
        [A, B],
    ),
    "no index, interleaved by id": (
        [
            *(part(None, "a", "f", '{"x"'), part(None, "b", "g", '{"y"')),
            *(part(None, "a", args=":1}"), part(None, "b", args=":2}")),
        ],
        [A, B],
    ),
    "no index, and an id where the call changes": (
        [
            *(part(None, "a", "f", '{"x"'), part(None, "b", "g", '{"y":2}')),
            *(part(None, "a"), part(args=":1}")),
        ],
        [A, B],
    ),
    "no index, the id last": (
        [part(name="f"), part(args='{"x":1}'), part(None, "a")],
        [A],
    ),
    "no index and no id": (
        [part(name="f", args='{"x"'), part(args=":1}"), part(name="g", args='{"y":2}')],
        [("call_0", "f", '{"x":1}'), ("call_1", "g", '{"y":2}')],
    ),
    "no index and no id, the same tool, each whole": (
        [part(name="f", args='{"x":1}'), part(name="f", args='{"x":2}')],
        [("call_0", "f", '{"x":1}'), ("call_1", "f", '{"x":2}')],
    ),
    "no id and one index, each whole": (
        [part(0, "", "f", '{"x":1}'), part(0, "", "g", '{"y":2}')],
        [("call_0", "f", '{"x":1}'), ("call_1", "g", '{"y":2}')],
    ),
    "one id for two": (
        [part(0, "a", "f", '{"x":1}'), part(1, "a", "g", '{"y":2}')],
        [A, ("a_2", "g", '{"y":2}')],
    ),
    "arguments before the name": (
        [part(0, args='{"x"'), part(0, name="f"), part(0, args=":1}"), part(0, "a")],
        [A],
    ),
    "arguments before name and id, without an index": (
        [part(args='{"x"'), part(None, "a", "f", ":1}"), part(None, "b", "g", '{"y":2}')],
        [A, B],
    ),
    "a name in pieces": (
        [part(0, "a", "get_"), part(0, name="weather"), part(0, args="{}")],
        [("a", "get_weather", "{}")],
    ),
    "a name in pieces behind its arguments": (
        [part(None, "a", args="{}"), part(name="get_"), part(name="weather")],
        [("a", "get_weather", "{}")],
    ),
    "empty deltas": (
        [part(0), part(0, "a", "f"), part(0), part(0, args=""), part(0, args='{"x":1}'), {}],
        [A],
    ),
    "nulls": (
        [
            {"index": 0, "id": "a", "type": "function", "function": {"name": "f"}},
            {"index": 0, "id": None, "type": None, "function": {"name": None}},
            {"index": 0, "function": {"name": None, "arguments": None}},
            {"index": None, "id": None, "function": {"arguments": '{"x":1}'}},
            {"index": 0, "function": None},
        ],
        [A],
    ),
    "arguments as an object": ([part(0, "a", "f", {"x": 1})], [A]),
    "arguments as an object in every delta": (
        [part(0, "a", "f", {"x": 1}), part(0, "a", "f", {"x": 1}), part(0, args="")],
        [A],
    ),
    "arguments as a list": ([part(0, "a", "f", [1])], [("a", "f", "[1]")]),
    "no arguments": ([part(0, "a", "f")], [("a", "f", "")]),
    "an id that is not text": ([part(0, 5, ["f"], "{}")], [("call_0", "", "{}")]),
    "what is no call": ([None, 5, "x", [], part(0, *A)], [A]),
}


@pytest.mark.parametrize(("entries", "calls"), CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("each_alone", [True, False])
def test_calls(
    entries: list[Any], calls: list[tuple[str, str, str]], *, each_alone: bool
) -> None:
    lists = [[one] for one in entries] if each_alone else [entries]
    reply = read(*(chunk({"tool_calls": one}) for one in lists))
    assert [(call.id, call.name, call.arguments) for call in reply.calls] == calls


@pytest.mark.parametrize(
    "entries",
    [
        [part(0, "a", "f", '{"x":1}'), part(0, "a", "f", '{"x":1}')],
        [part(0, "a", "f", {"x": 1}), part(0, "a", "f", {"y": 2})],
        [part(0, "a", "f", "{}"), part(0, args='{"x":1}')],
        [part(0, "a", "f", {}), part(0, args='{"x":1}')],
    ],
)
def test_what_does_not_fit_together_is_not_guessed(entries: list[Any]) -> None:
    (call,) = read(*(chunk({"tool_calls": [one]}) for one in entries)).calls
    with pytest.raises(ValueError, match="Extra data"):
        json.loads(call.arguments)


def test_further_keys_of_calls_are_kept_and_not_repeated() -> None:
    thought = {"google": {"thought_signature": "s"}}
    entry = {**part(0, "a", "f", '{"x"'), "extra_content": thought, "note": "n", "tags": ["t"]}
    again = {**part(0, args=":1}"), "extra_content": None, "note": "n"}
    function = {"function": {"strict": True, "hint": "h"}, "index": 0}
    reply = read(*(chunk({"tool_calls": [one]}) for one in (entry, again, function)))
    (stored,) = reply.message["tool_calls"]
    assert stored.pop("function") == {
        "name": "f",
        "arguments": '{"x":1}',
        "strict": True,
        "hint": "h",
    }
    assert stored == {
        "id": "a",
        "type": "function",
        "extra_content": thought,
        "note": "n",
        "tags": ["t"],
    }
    assert reply.message["_origin"] == HERE


def test_a_function_call_of_the_old_kind() -> None:
    deltas = [{"name": "f", "arguments": ""}, {"arguments": '{"x"'}, {"arguments": ":1}"}]
    reply = read(*(chunk({"function_call": delta}) for delta in deltas))
    assert [(c.id, c.name, c.arguments) for c in reply.calls] == [("call_0", "f", '{"x":1}')]


WHOLE = {
    "role": "assistant",
    "content": "ab",
    "refusal": None,
    "reasoning": "r",
    "tool_calls": [{"id": i, "function": {"name": n, "arguments": t}} for i, n, t in (A, B)],
}


@pytest.mark.parametrize(
    ("before", "rest"),
    [
        ([], "ab"),
        ([{"content": "a"}], "b"),
        ([{"content": "ab", "reasoning": "r"}], ""),
        ([{"tool_calls": [part(0, *A)]}, {"tool_calls": [part(1, *B)]}], "ab"),
        ([{"content": "a", "tool_calls": [part(0, *A)]}], "b"),
    ],
)
@pytest.mark.parametrize("delta", [{}, {"delta": None}, {"delta": {}}])
def test_a_whole_message_tells_again_what_deltas_told(
    before: list[Any], rest: str, delta: dict[str, Any]
) -> None:
    last = {"choices": [{"message": WHOLE, "finish_reason": "tool_calls", **delta}]}
    stream, texts = taken(*map(chunk, before), last)
    assert texts[-1] == rest
    plain = openai.read_reply({"choices": [{**last["choices"][0]}]}, HERE)
    assert openai.read_reply(stream.payload(), HERE) == plain


def test_whole_messages_that_are_pieces_lose_nothing() -> None:
    stream, texts = taken(*({"choices": [{"message": {"content": t}}]} for t in ("ab", "cd")))
    assert texts == ["ab", "cd"]
    assert stream.text == "abcd"


def test_a_whole_message_with_a_refusal_or_an_old_call_again() -> None:
    message = {"refusal": "no", "function_call": {"name": "f", "arguments": "{}"}}
    whole = {"choices": [{"message": message, "finish_reason": "stop"}]}
    once, twice = taken(whole)[0], taken(chunk(message), whole)[0]
    assert once.payload() == twice.payload()
    assert once.text == twice.text == "no"


def test_calls_of_a_whole_message_are_never_one() -> None:
    calls = [{"function": {"name": "f", "arguments": text}} for text in ("{oops", "{}")]
    reply = read({"choices": [{"message": {"tool_calls": calls}}]})
    assert [call.arguments for call in reply.calls] == ["{oops", "{}"]
