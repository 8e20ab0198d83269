"""Random replies, as a body and as the events that servers are known to make of it.

Shares no code with the library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeAlias

from hypothesis import strategies as st

from toolnexus import codec

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Json: TypeAlias = dict[str, Any]
Example: TypeAlias = tuple[Json, list[Json], bytes, list[int]]

YES_OR_NO = st.booleans()


@st.composite
def examples(draw: st.DrawFn, style: str) -> Example:
    """Draw a body, its events, their bytes, and where to cut these."""
    body, events = openai_example(draw) if style == "openai" else anthropic_example(draw)
    stream = "".join(written(draw, events, style))
    return body, events, stream.encode(), draw(st.lists(st.integers(0, 3_000), max_size=5))


def written(draw: Draw, events: list[Json], style: str) -> Iterator[str]:
    """Write events in one of the forms that the standard has for them."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    space = draw(st.sampled_from([" ", ""]))
    indent = draw(st.sampled_from([None, None, 1]))
    is_named = style == "anthropic" and draw(YES_OR_NO)
    for event in events:
        if draw(st.sampled_from([False] * 5 + [True])):
            yield f": keep-alive{end}{end}"
        if is_named:
            yield f"event:{space}{event['type']}{end}"
        for line in json.dumps(event, indent=indent).split("\n"):
            yield f"data:{space}{line}{end}"
        yield end
    if style == "openai" and draw(YES_OR_NO):
        yield f"data: [DONE]{end}{end}"


# -- what both renderers need ---------------------------------------------------------------

texts = st.lists(
    st.sampled_from(
        ["a", "b ", "é", "😀", "\n", "\r", "\u2028", '"', "\\", "\ud83d", "data: "]
    ),
    max_size=8,
).map("".join)
values = st.recursive(
    st.sampled_from([None, True, 0, -1.5, 1e30, "", "x", "😀"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(st.sampled_from(["x", "y", "é😀"]), values, max_size=2)


def pieces_of(draw: Draw, text: str) -> list[str]:
    """Cut a text anywhere, even between the halves of a character; some pieces are empty."""
    units = text.encode("utf-16-le", "surrogatepass")
    places = draw(st.lists(st.integers(0, len(units) // 2), max_size=4))
    edges = [0, *sorted(places), len(units) // 2]
    cut = [units[2 * a : 2 * b] for a, b in pairwise(edges)]
    return [piece.decode("utf-16-le", "surrogatepass") for piece in cut]


def interleaved(draw: Draw, lists: list[list[Any]]) -> list[Any]:
    """Mix lists; each keeps its order."""
    waiting = [list(one) for one in lists if one]
    mixed = []
    while waiting:
        one = draw(st.sampled_from(waiting))
        mixed.append(one.pop(0))
        waiting = [left for left in waiting if left]
    return mixed


def in_turn(lists: list[list[Any]]) -> list[Any]:
    return [item for one in lists for item in one]


WORDS = [
    *("choices", "delta", "message", "content", "refusal", "tool_calls", "function_call"),
    *("function", "name", "arguments", "id", "index", "type", "finish_reason", "usage", "text"),
    *("reasoning_details", "summary", "thinking", "content_block", "partial_json", "citation"),
    *("input", "signature", "stop_reason", "role", "content_block_start", "text_delta"),
    *(
        "content_block_delta",
        "content_block_stop",
        "message_start",
        "message_delta",
        "tool_use",
    ),
    *("input_json_delta", "reasoning.text", "", "x", "\ud83d", "{}"),
]
junk = st.recursive(
    st.sampled_from([None, True, 0, 1, 1.5, *WORDS]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=12,
)
entries = st.lists(
    st.fixed_dictionaries({}, optional=dict.fromkeys(WORDS[:20], junk)), max_size=2
)
junk_events = st.one_of(
    st.dictionaries(st.sampled_from(WORDS), junk),
    entries.map(lambda deltas: {"choices": [{"delta": one} for one in deltas]}),
    entries.map(lambda calls: {"choices": [{"delta": {"tool_calls": calls}}]}),
    entries.map(lambda calls: {"choices": [{"message": {"tool_calls": calls}}]}),
    st.builds(
        lambda kind, index, inner: {"type": kind, "index": index, **inner},
        st.sampled_from(["content_block_start", "content_block_delta", "message_delta"]),
        st.sampled_from([0, 1, None, "x"]),
        st.fixed_dictionaries({"content_block": junk, "delta": junk, "usage": junk}),
    ),
)


# -- OpenAI ---------------------------------------------------------------------------------


def openai_example(draw: Draw) -> tuple[Json, list[Json]]:
    message = openai_message(draw)
    reason = draw(st.sampled_from(["stop", "tool_calls", "length", "content_filter", "odd"]))
    body: Json = {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
    if draw(YES_OR_NO):
        body["usage"] = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return body, openai_events(draw, body)


def openai_message(draw: Draw) -> Json:
    message: Json = {"role": "assistant", "content": draw(st.none() | texts)}
    for key, strategy in {
        "refusal": st.none() | texts,
        "reasoning_content": texts,
        "annotations": st.lists(objects, max_size=2),
        "reasoning_details": st.lists(texts, max_size=2).map(
            lambda said: [
                {"type": "reasoning.text", "text": text, "index": index}
                for index, text in enumerate(said)
            ]
        ),
        "odd": objects,
    }.items():
        if draw(st.sampled_from([False, False, True])):
            message[key] = draw(strategy)
    if message.get("refusal") and message["content"]:
        del message["refusal"]  # what was shown of it could not be taken back
    calls = [openai_call(draw, number) for number in range(draw(st.integers(0, 3)))]
    if calls:
        message["tool_calls"] = calls
    elif draw(st.sampled_from([False] * 4 + [True])):
        message["function_call"] = {"name": "f", "arguments": draw(objects.map(codec.dumps))}
    return message


def openai_call(draw: Draw, number: int) -> Json:
    arguments = draw(objects.map(codec.dumps) | st.sampled_from(["", "{oops", "[1]", '{"x":1']))
    name = draw(st.sampled_from(["f", "get_weather", "b2"]))
    call_id = draw(st.sampled_from([f"call_{number}", f"functions.f:{number}", "é" * number]))
    call: Json = {"type": "function", "function": {"name": name, "arguments": arguments}}
    call["id"] = call_id or "z"
    if draw(st.sampled_from([False, False, True])):
        call["extra_content"] = {"google": {"thought_signature": "s"}}
    return call


def openai_events(draw: Draw, body: Json) -> list[Json]:
    (choice,), usage = body["choices"], body.get("usage")
    earlier = draw(st.sampled_from(["left out", "null", "counted"]))
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    nothing = draw(st.sampled_from([None, ""]))

    def chunk(**fields: Any) -> Json:
        made = {**head, "choices": [{"index": 0, "finish_reason": nothing, **fields}]}
        if earlier == "null" or (earlier == "counted" and usage):
            made["usage"] = (
                None if earlier == "null" else {**(usage or {}), "completion_tokens": 1}
            )
        return made

    events = [chunk(delta=delta) for delta in openai_deltas(draw, choice["message"])]
    for place in draw(st.lists(st.integers(0, len(events)), max_size=3)):
        other = chunk(delta={"content": "another choice"}, index=1, finish_reason="length")
        noise = [chunk(delta={}), chunk(delta=None), {**head, "choices": []}, other]
        events.insert(place, draw(st.sampled_from(noise)))
    last: Json = {"delta": {}}
    if draw(st.sampled_from([False] * 3 + [True])):
        # Without deltas before, or once more after all of them.
        last = {"message": choice["message"]}
        events = events if draw(YES_OR_NO) and not is_ambiguous(choice["message"]) else []
    events.append(chunk(**{**last, "finish_reason": choice["finish_reason"]}))
    return [*events, *where_usage_goes(draw, events[-1], usage, head)]


def is_ambiguous(message: Json) -> bool:
    """Return whether a call could not be known again, for another has its id."""
    ids = [call["id"] for call in message.get("tool_calls", ())]
    return len(set(ids)) < len(ids)


def where_usage_goes(draw: Draw, last: Json, usage: Any, head: Json) -> list[Json]:
    place = draw(st.sampled_from(["chunk", "last", "choice"])) if usage else "nowhere"
    if place == "last":
        last["usage"] = usage
    elif place == "choice":
        last.pop("usage", None)
        last["choices"][0]["usage"] = usage
    return [{**head, "choices": [], "usage": usage}] if place == "chunk" else []


def openai_deltas(draw: Draw, message: Json) -> list[Json]:
    role = [{"role": message["role"], "content": None}] if draw(YES_OR_NO) else []
    tracks = [openai_call_deltas(draw, message.get("tool_calls", []))]
    for key, value in message.items():
        if key in ("content", "refusal", "reasoning_content"):
            whole = [None] if value is None else pieces_of(draw, value)
            tracks.append([{key: piece} for piece in whole])
        elif key == "annotations":
            tracks.append([{key: [one]} for one in value] or [{key: []}])
        elif key == "reasoning_details":
            tracks.append(
                [
                    {key: [{**one, "text": piece}]}
                    for one in value
                    for piece in pieces_of(draw, one["text"])
                ]
                or [{key: []}]
            )
        elif key == "function_call":
            pieces = [{"name": value["name"]}, *arguments_deltas(draw, value["arguments"])]
            tracks.append([{key: piece} for piece in pieces])
        elif key not in ("role", "tool_calls"):
            tracks.append([{key: value}])
    mixed = interleaved(draw, tracks)
    if draw(YES_OR_NO):
        mixed = [{"role": "assistant", "content": None, **delta} for delta in mixed]
    return [*role, *mixed]


def arguments_deltas(draw: Draw, arguments: str) -> list[Json]:
    return [{"arguments": piece} for piece in pieces_of(draw, arguments)]


def openai_call_deltas(draw: Draw, calls: list[Json]) -> list[Json]:
    ids = [call["id"] for call in calls]
    may_lack_index = len(set(ids)) == len(ids)
    index = draw(st.sampled_from(["given", "left out", "zero"])) if may_lack_index else "given"
    id_each_time = draw(YES_OR_NO)
    style = draw(st.sampled_from(["pieces", "whole", "object"]))
    tracks = []
    for number, call in enumerate(calls):
        deltas = call_entries(draw, call, style)
        if not id_each_time:
            for delta in deltas[1:]:
                delta["id"] = draw(st.sampled_from([None, ""]))
        for delta in deltas:
            if index != "left out":
                delta["index"] = number if index == "given" else 0
        tracks.append(deltas)
    if index == "given" and draw(YES_OR_NO):
        mixed = interleaved(draw, tracks)
    elif id_each_time and draw(YES_OR_NO):
        # Without a true index their order is the order in which they begin.
        mixed = in_turn([[track[0] for track in tracks]])
        mixed += interleaved(draw, [track[1:] for track in tracks])
    else:
        mixed = in_turn(tracks)
    return [{"tool_calls": [entry]} for entry in mixed]


def call_entries(draw: Draw, call: Json, style: str) -> list[Json]:
    """Return what the deltas say of one call, each with its id."""
    function = call["function"]
    base = {key: value for key, value in call.items() if key != "function"}
    if style != "pieces":
        arguments: Any = function["arguments"]
        if style == "object" and arguments.startswith("{") and arguments.endswith("}"):
            arguments = codec.loads(arguments)
        return [{**base, "function": {**function, "arguments": arguments}}]
    name_each_time = draw(YES_OR_NO)
    names = [function["name"]] if name_each_time else pieces_of(draw, function["name"])
    parts: list[Json] = [{"name": name} for name in names]
    parts += arguments_deltas(draw, function["arguments"])
    if name_each_time:
        parts = [{"name": function["name"], **part} for part in parts]
    parts.insert(draw(st.integers(0, len(parts))), {})
    first = {**base, "function": parts[0]}
    return [first, *({"id": call["id"], "function": part} for part in parts[1:])]


# -- Anthropic ------------------------------------------------------------------------------

blocks = st.one_of(
    st.builds(lambda t: {"type": "text", "text": t}, texts),
    st.builds(
        lambda t, c: {"type": "text", "text": t, "citations": c},
        texts,
        st.lists(objects, min_size=1, max_size=2),
    ),
    st.builds(
        lambda i, v: {"type": "tool_use", "id": i, "name": "f", "input": v},
        st.sampled_from(["toolu_1", "toolu_2", "", "é"]),
        objects | st.sampled_from(["{oops", [1, 2]]),
    ),
    st.builds(
        lambda v: {"type": "server_tool_use", "id": "s", "name": "w", "input": v}, objects
    ),
    st.builds(lambda t: {"type": "thinking", "thinking": t, "signature": "s"}, texts),
    st.just({"type": "redacted_thinking", "data": "d"}),
    st.builds(lambda v: {"type": "mystery", "content": v}, values),
)


def anthropic_example(draw: Draw) -> tuple[Json, list[Json]]:
    reason = draw(st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal", "odd"]))
    content = draw(st.lists(blocks, max_size=4))
    body: Json = {"id": "msg_1", "role": "assistant", "content": content, "stop_reason": reason}
    if draw(YES_OR_NO):
        body["usage"] = {"input_tokens": 7, "output_tokens": 3}
    return body, anthropic_events(draw, body)


def anthropic_events(draw: Draw, body: Json) -> list[Json]:
    opening = {**body, "content": [], "stop_reason": None}
    end: Json = {"type": "message_delta", "delta": {"stop_reason": body["stop_reason"]}}
    if "usage" in body:
        knows_input = draw(YES_OR_NO)
        opening["usage"] = {"input_tokens": 7 * knows_input, "output_tokens": 1}
        end["usage"] = {"input_tokens": None if knows_input else 7, "output_tokens": 3}
    tracks = [
        [{**event, "index": index} for event in anthropic_block(draw, block)]
        for index, block in enumerate(body["content"])
    ]
    if draw(YES_OR_NO):
        events = interleaved(draw, tracks)
    else:
        events = in_turn(tracks)
        if draw(YES_OR_NO):
            events = [{k: e[k] for k in e if k != "index"} for e in events]
    for place in draw(st.lists(st.integers(0, len(events)), max_size=2)):
        events.insert(place, draw(st.sampled_from([{"type": "ping"}, {"type": "news"}])))
    opened = {"type": "message_start", "message": opening}
    return [opened, *events, end, {"type": "message_stop"}]


def anthropic_block(draw: Draw, block: Json) -> list[Json]:
    begun, deltas = dict(block), []
    if block["type"] == "text":
        begun["text"] = ""
        deltas = [{"type": "text_delta", "text": t} for t in pieces_of(draw, block["text"])]
        if "citations" in block:
            begun["citations"] = draw(st.sampled_from([None, []]))
            deltas += [{"type": "citations_delta", "citation": c} for c in block["citations"]]
    elif block["type"] == "thinking":
        begun.update(thinking="", signature="")
        pieces = pieces_of(draw, block["thinking"])
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif "input" in block and (block["input"] == "{oops" or draw(YES_OR_NO)):
        begun["input"] = {}
        given = block["input"]
        text = given if isinstance(given, str) else json.dumps(given)
        text = draw(st.sampled_from(["", text])) if given == {} else text
        pieces = pieces_of(draw, text)
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    started = {"type": "content_block_start", "content_block": begun}
    stopped = [{"type": "content_block_stop"}] if draw(YES_OR_NO) else []
    return [started, *({"type": "content_block_delta", "delta": d} for d in deltas), *stopped]
