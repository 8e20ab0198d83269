"""Any history becomes a request that a strict provider takes, and is itself left alone.

The checks are written anew here, from the providers' rules, and share no code with the library.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from toolnexus.codec import encode
from toolnexus.wire import anthropic, openai
from toolnexus.wire.base import ModelRequest
from toolnexus.wire.view import complete

ORIGINS = ["anthropic h m", "openai h m", "openai other m"]
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")

texts = st.sampled_from(["", " ", "\n", "x", "hello \n", "\ud800", "é", "{}", "\u2003"])
junk: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, 1.5, True, "x", "", [], {}, [None], {"a": {}}, [[1]], {"type": "text"}]
)
ids = st.one_of(
    st.sampled_from(
        ["a", "b", "call_0", "call_1", "a_2", "x" * 50, "functions.f:0", "ü", " ", ""]
    ),
    junk,
)
arguments = st.one_of(
    st.sampled_from(
        ["{}", "", '{"a":1}', "{oops", "[]", "NaN", '{"a":NaN}', '{"a":1e999}', '"x"']
    ),
    junk,
)
parts = st.one_of(
    junk,
    st.builds(lambda t: {"type": "text", "text": t}, texts),
    st.builds(lambda t: {"type": "refusal", "refusal": t}, texts),
    st.builds(lambda u: {"type": "image_url", "image_url": u}, junk),
    st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}),
    st.builds(lambda i: {"type": "tool_result", "tool_use_id": i, "content": ""}, ids),
    st.builds(lambda i: {"type": "tool_use", "id": i, "name": "f", "input": {}}, ids),
)
contents = st.one_of(texts, junk, st.lists(parts, max_size=3))
names = st.one_of(st.sampled_from(["f", "a.b", "", "n" * 80]), junk)


sound_calls = st.builds(
    lambda i, a: {"id": i, "type": "function", "function": {"name": "f", "arguments": a}},
    st.sampled_from(["a", "b", "call_0", "x" * 50, "functions.f:0"]),
    st.sampled_from(["{}", '{"a":1}', "", "{oops", '{"a":NaN}', '{"a":1e999}']),
)


@st.composite
def odd_calls(draw: st.DrawFn) -> Any:
    call = {
        "id": draw(ids),
        "type": draw(st.sampled_from(["function", "function", "custom", None])),
        "function": draw(
            st.one_of(
                st.fixed_dictionaries(
                    {}, optional={"name": names, "arguments": arguments, "x": junk}
                ),
                st.fixed_dictionaries({"name": st.just("f"), "arguments": st.just("{}")}),
                junk,
            )
        ),
        "extra_content": draw(junk),
        "_ours": 1,
    }
    drop = draw(st.sets(st.sampled_from(sorted(call))))
    return {key: value for key, value in call.items() if key not in drop}


calls = st.one_of(sound_calls, odd_calls())
call_lists = st.one_of(
    st.lists(sound_calls, min_size=1, max_size=3),
    st.lists(st.one_of(calls, junk), max_size=4),
    junk,
)
blocks = st.one_of(
    st.just({"type": "thinking", "thinking": "hm", "signature": "s"}),
    st.just({"type": "redacted_thinking", "data": "d"}),
    st.builds(lambda t: {"type": "text", "text": t}, texts),
    st.builds(
        lambda i, a: {"type": "tool_use", "id": i, "name": "f", "input": a},
        ids,
        st.sampled_from([{}, {"a": 1}]),
    ),
)


@st.composite
def assistants(draw: st.DrawFn) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": draw(contents)}
    if draw(st.booleans()):
        message["tool_calls"] = draw(call_lists)
    message.update(
        draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "_origin": st.one_of(st.sampled_from(ORIGINS), junk),
                    "_blocks": st.one_of(st.lists(blocks, max_size=4), junk),
                    "reasoning_content": junk,
                    "function_call": st.one_of(st.just({"name": "f", "arguments": "{}"}), junk),
                    "tool_call_id": ids,
                },
            )
        )
    )
    return message


received = st.one_of(
    st.lists(st.one_of(blocks, junk), max_size=4).map(
        lambda content: anthropic.read_reply({"content": content}, ORIGINS[0]).message
    ),
    st.builds(
        lambda content, asked, more: (
            openai.read_reply(
                {"choices": [{"message": {"content": content, "tool_calls": asked, **more}}]},
                ORIGINS[1],
            ).message
        ),
        contents,
        st.lists(calls, max_size=3),
        st.sampled_from([{}, {"refusal": None}, {"reasoning_content": "hm"}]),
    ),
)
results = st.fixed_dictionaries(
    {"role": st.sampled_from(["tool", "tool", "tool", "function"]), "tool_call_id": ids},
    optional={"content": contents, "_is_error": st.booleans(), "name": names},
)
others = st.fixed_dictionaries(
    {"role": st.one_of(st.sampled_from(["user", "user", "system", "developer", "bot"]), junk)},
    optional={"content": contents, "_note": junk, "tool_calls": junk, "name": st.just("n")},
)


@st.composite
def turns(draw: st.DrawFn) -> list[Any]:
    """An assistant message and results that mostly belong to it."""
    message = draw(st.one_of(received, assistants()))
    asked = message.get("tool_calls")
    own = (
        [c["id"] for c in asked if isinstance(c, dict) and "id" in c]
        if isinstance(asked, list)
        else []
    )
    picked = draw(st.lists(st.sampled_from(own), max_size=5)) if own else []
    order = draw(st.sampled_from([own, own[::-1], picked]))
    answers = [{"role": "tool", "tool_call_id": i, "content": draw(contents)} for i in order]
    return [message, *answers]


histories = st.lists(
    st.one_of(turns(), st.lists(st.one_of(results, others, junk), max_size=2)), max_size=6
).map(lambda groups: [message for group in groups for message in group])


# ---------------------------------------------------------------- strict checks


def check_no_key_of_ours(value: Any) -> None:
    if isinstance(value, dict):
        assert not [key for key in value if key.startswith("_")]
        for item in value.values():
            check_no_key_of_ours(item)
    elif isinstance(value, list):
        for item in value:
            check_no_key_of_ours(item)


def check_not_empty(content: Any) -> None:
    assert content, content
    if isinstance(content, str):
        assert content.strip()
        return
    for part in content:
        assert isinstance(part, dict)
        if part.get("type") == "text":
            assert isinstance(part["text"], str)
            assert part["text"].strip()


def check_openai(body: dict[str, Any], origin: str, home_ids: set[str]) -> None:
    awaited: list[str] = []
    for message in body["messages"]:
        role = message["role"]
        if role == "tool":
            assert awaited, "orphan or duplicate result"
            assert message["tool_call_id"] == awaited.pop(0)
            check_not_empty(message["content"])
            continue
        assert not awaited, "call without result"
        assert role in ("system", "developer", "user", "assistant")
        assert role == "assistant" or "tool_calls" not in message
        assert "function_call" not in message
        if "tool_calls" in message:
            awaited = check_openai_calls(message["tool_calls"], home_ids)
        if message["content"] is not None or "tool_calls" not in message:
            check_not_empty(message["content"])
    assert not awaited, "call without result at the end"


def check_openai_calls(made: list[Any], home_ids: set[str]) -> list[str]:
    assert made
    for call in made:
        assert call["type"] == "function"
        assert NAME.fullmatch(call["function"]["name"])
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert len(call["id"]) <= 40 or call["id"] in home_ids
    found = [call["id"] for call in made]
    assert len(set(found)) == len(found)
    return found


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def check_anthropic(body: dict[str, Any]) -> None:
    messages = body["messages"]
    assert messages[0]["role"] == "user"
    assert "system" not in body or body["system"].strip()
    seen: set[str] = set()
    awaited: list[str] = []
    for index, message in enumerate(messages):
        assert message["role"] == ("user", "assistant")[index % 2], "roles must alternate"
        check_not_empty(message["content"])
        found = blocks_of(message)
        if message["role"] == "user":
            check_user(found, awaited)
            awaited = []
        else:
            awaited = check_assistant(found, seen)
    assert not awaited, "call without result at the end"
    last = blocks_of(messages[-1])[-1]
    if messages[-1]["role"] == "assistant" and last["type"] == "text":
        assert last["text"] == last["text"].rstrip()


def check_user(found: list[dict[str, Any]], awaited: list[str]) -> None:
    assert {b["type"] for b in found} <= {"text", "image", "document", "tool_result"}
    answered = [b for b in found if b["type"] == "tool_result"]
    assert [b["tool_use_id"] for b in answered] == awaited
    assert found[: len(answered)] == answered, "results come first"
    for block in answered:
        check_not_empty(block["content"])
        assert block.get("is_error", True) is True


def check_assistant(found: list[dict[str, Any]], seen: set[str]) -> list[str]:
    used = [b for b in found if b["type"] == "tool_use"]
    for block in used:
        assert NAME.fullmatch(block["name"])
        assert isinstance(block["input"], dict)
        assert ANTHROPIC_ID.fullmatch(block["id"])
        assert block["id"] not in seen
        seen.add(block["id"])
    assert found[-1]["type"] not in ("thinking", "redacted_thinking")
    return [b["id"] for b in used]


def home_ids_of(history: list[Any], origin: str) -> set[str]:
    at_home = [m for m in complete(history) if m.get("_origin") == origin]
    return {call["id"] for m in at_home for call in m.get("tool_calls") or ()}


@settings(deadline=None, max_examples=300)
@given(histories, st.sampled_from([*ORIGINS, ""]), st.sampled_from(["", "S", " "]))
def test_any_history_becomes_a_valid_request(
    history: list[Any], origin: str, system: str
) -> None:
    before = copy.deepcopy(history)
    request = ModelRequest(model="m", messages=history, origin=origin, system=system)
    for dialect in (openai, anthropic):
        body = dialect.request_body(request)
        text = encode(body)
        assert dialect.request_body(request) == body, "a pure function"
        check_no_key_of_ours(body)
        if dialect is openai:
            check_openai(json.loads(text), origin, home_ids_of(history, origin))
        else:
            check_anthropic(json.loads(text))
    assert history == before


@settings(deadline=None, max_examples=200)
@given(histories)
def test_a_view_is_its_own_view(history: list[Any]) -> None:
    view = complete(history)
    assert complete(view) == view


@settings(deadline=None, max_examples=200)
@given(st.lists(blocks, max_size=5))
def test_blocks_go_back_as_received(content: list[Any]) -> None:
    message = anthropic.read_reply({"content": content}, ORIGINS[0]).message
    user = {"role": "user", "content": "x"}
    request = ModelRequest(model="m", messages=[user, message, user], origin=ORIGINS[0])
    back = blocks_of(anthropic.request_body(request)["messages"][1])
    opaque = [b for b in content if "thinking" in b["type"]]
    assert [b for b in back if "thinking" in b["type"]] == opaque
