"""Any history, whatever was done to it, is taken by a strict server and stays as it was."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.machine.test_wire_view import assistants, histories
from tests.machine.test_wire_view import contents as odd_contents
from tests.wire.test_parts_on_the_wire import HEADERS, foreign, own
from toolnexus import ConfigError, LlmClient, Request, RunResult, ToolContext, ToolResult
from toolnexus.checkpoint import CallState, Checkpoint
from toolnexus.codec import encode
from toolnexus.parts.part import content_of
from toolnexus.suspension import Answer
from toolnexus.testing import Reply, ScriptedLlm, call, text, tool_call, tool_calls
from toolnexus.testing.strict import parse_body
from toolnexus.testing.strict_anthropic import ThoughtMemory, check_anthropic
from toolnexus.testing.strict_openai import check_openai
from toolnexus.wire.base import ModelRequest
from toolnexus.wire.styles import dialect_of

STYLES = ("openai", "anthropic")
OURS = {"_origin", "_blocks", "_is_error", "_parked", "_answered", "_note"}
ELSEWHERE = "anthropic nobody's m"
"""The origin of a request to somebody who said none of a history."""

# -- what may be in a history ------------------------------------------------------------------

answers = st.builds(
    lambda ok, data: Answer("q1", ok, data).to_dict(),
    st.booleans(),
    st.sampled_from([None, 0, "", {"results": [{"id": "a", "output": "x"}]}, ["x"]]),
)
own_keys = st.fixed_dictionaries(
    {},
    optional={
        "_answered": st.one_of(st.lists(answers, max_size=2), st.just("junk")),
        "_parked": st.sampled_from([{"schema": 1}, {"schema": 99}, "junk", {}, None]),
        "_blocks": st.sampled_from([[], [{"type": "text", "text": "x"}], "junk", None]),
        "_is_error": st.booleans(),
        "_note": st.just({"of": "the host"}),
    },
)
mixes = st.lists(st.one_of(own, foreign, st.text(max_size=5)), min_size=1, max_size=3).map(
    content_of
)


def with_keys(message: Any, keys: dict[str, Any]) -> Any:
    return {**message, **keys} if isinstance(message, dict) else message


spoken = st.one_of(
    st.builds(lambda content: {"role": "user", "content": content}, mixes),
    st.builds(lambda content: {"role": "tool", "tool_call_id": "a", "content": content}, mixes),
    st.builds(lambda content: {"role": "assistant", "content": content}, mixes),
    st.builds(lambda content: {"role": "system", "content": content}, odd_contents),
    assistants(),
)
histories_with_keys = st.builds(
    lambda many, more: [with_keys(one, keys) for one, keys in zip(many, more, strict=False)],
    st.one_of(histories, st.lists(spoken, max_size=6)),
    st.lists(own_keys, min_size=30, max_size=30),
)


def refuse_by(style: str, body: bytes) -> None:
    """Raise what a strict server of the style has against a body."""
    if style == "openai":
        check_openai(HEADERS, parse_body(body))
    else:
        check_anthropic(HEADERS, parse_body(body), ThoughtMemory())


@settings(deadline=None, max_examples=500, suppress_health_check=[HealthCheck.too_slow])
@given(histories_with_keys, st.sampled_from(["", "S", " "]), st.booleans())
def test_a_strict_server_takes_the_view_of_any_history(
    history: list[Any], system: str, streams: bool
) -> None:
    history = [*history, {"role": "user", "content": "and now?"}]
    before = copy.deepcopy(history)
    for style in STYLES:
        dialect = dialect_of(style)
        for origin in (ELSEWHERE, ""):
            request = ModelRequest(model="m", messages=history, origin=origin, system=system)
            body = dialect.request_body(request)
            if streams:
                body.update(dialect.STREAM_PARAMS)
            refuse_by(style, encode(body))
            assert OURS.isdisjoint(re.findall(r'"(_\w+)":', json.dumps(body["messages"])))
    assert history == before


@pytest.mark.parametrize("role", ["user", "assistant", "tool", "system"])
@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
        {"type": "tool_result", "tool_use_id": "t1", "content": "42"},
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
    ],
    ids=lambda block: block["type"],
)
def test_openai_is_sent_no_block_that_only_anthropic_has(
    role: str, block: dict[str, Any]
) -> None:
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": role, "tool_call_id": "a", "content": [{"type": "text", "text": "x"}, block]},
    ]
    body = dialect_of("openai").request_body(ModelRequest(model="m", messages=history))
    types = [
        part["type"]
        for message in body["messages"]
        for part in message["content"]
        if isinstance(part, dict)
    ]

    assert set(types) <= {"text"}


# -- over HTTP ---------------------------------------------------------------------------------


@pytest.fixture
def clients(llm: ScriptedLlm) -> Iterator[dict[str, LlmClient]]:
    """Clients of both styles, of a server that has something to say to anything."""
    made = {
        style: LlmClient(base_url=llm.base_url, api_key="k", model=style, style=style)
        for style in STYLES
    }
    for style in STYLES:
        llm.answer(style, lambda request: text("fine"))
    yield made
    for client in made.values():
        client.close()
    llm.assert_done()


Clients = dict[str, LlmClient]
ON_ONE_SERVER = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def go_on(client: LlmClient, history: list[Any], *, streams: bool) -> RunResult:
    """Say one more thing and return what comes of it."""
    if not streams:
        return client.run("and now?", history=history, supersede=True)
    *_, done = client.stream("and now?", history=history, supersede=True)
    assert done.kind == "done"
    assert isinstance(done.result, RunResult)
    return done.result


def is_object(message: Any) -> bool:
    """Say whether it is a message at all, and carries no state that cannot be read."""
    return isinstance(message, dict) and "_parked" not in message


@ON_ONE_SERVER
@given(
    histories_with_keys.map(lambda many: [one for one in many if is_object(one)]),
    st.sampled_from(STYLES),
    st.booleans(),
)
def test_a_run_goes_on_from_any_history(
    clients: Clients, history: list[Any], style: str, streams: bool
) -> None:
    before = copy.deepcopy(history)
    result = go_on(clients[style], history, streams=streams)

    assert (result.status, result.text) == ("done", "fine")
    assert history == before
    assert result.messages[: len(history)] == before
    assert [one["role"] for one in result.messages[len(history) :]] == ["user", "assistant"]


# -- transcripts of our own, mutilated ---------------------------------------------------------


class Asks:
    """Asks when it is told to; says what it was given else."""

    name, description, source = "look", "Look", "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {"type": "object"}

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if args.get("asks") and ctx.answer is None:
            return ToolResult.pending(Request("approval", "Sure?"))
        return ToolResult.ok(args.get("says", ""))


def script(tag: str) -> list[Reply]:
    """Return what is said in a long conversation whose calls have ids of its own."""
    return [
        tool_calls(call("look", {"says": "a"}, f"{tag}1"), call("look", {}, f"{tag}.look:0"))
        .with_thinking("hm")
        .with_redacted_thinking("xyz")
        .with_extra(reasoning_content="hm", _hidden=1),
        tool_call("look", {"says": " "}, tag * 40, content="again").with_thinking("oh"),
        text("done").with_extra(reasoning="so"),
        tool_calls(
            call("look", {"asks": True}, f"{tag}7"),
            call("look", {"says": "b"}, f"{tag}8"),
            call("look", {"asks": True}, f"{tag}9"),
        ).with_thinking("who knows"),
    ]


@pytest.fixture
def transcripts(llm: ScriptedLlm, clients: Clients) -> dict[str, list[Any]]:
    """Return a long transcript that ends parked, by the style in which it came about."""
    made: dict[str, list[Any]] = {}
    for style, client in clients.items():
        llm.say(style, *script(style[0]))
        first = client.run("go", tools=[Asks()])
        parked = client.run("go on", tools=[Asks()], history=first.messages, supersede=True)
        assert parked.status == "pending"
        made[style] = parked.messages
    return made


def mutilated(draw: st.DrawFn, transcript: list[Any]) -> list[Any]:
    """Return a copy to which a few things were done that hosts do to transcripts.

    What a model thought stays with what it said then: without it, nobody takes its last turn.
    """
    messages = copy.deepcopy(transcript)
    for _ in range(draw(st.integers(0, 5))):
        if not messages:
            break
        at = draw(st.integers(0, len(messages) - 1))
        other = draw(st.integers(0, len(messages) - 1))
        match draw(st.sampled_from(["drop", "twice", "swap", "blank", "edit", "cut", "bare"])):
            case "drop":
                del messages[at]
            case "twice":
                messages.insert(other, copy.deepcopy(messages[at]))
            case "swap":
                messages[at], messages[other] = messages[other], messages[at]
            case _ if "_blocks" in messages[at]:
                pass
            case "blank":
                messages[at]["content"] = draw(st.sampled_from(["", " \n", None, []]))
            case "edit":
                messages[at]["content"] = "edited"
            case "cut":
                del messages[at + 1 :]
            case _:
                messages[at] = {k: v for k, v in messages[at].items() if not k.startswith("_")}
    return messages


@settings(ON_ONE_SERVER, max_examples=200)
@given(st.data(), st.sampled_from(STYLES), st.sampled_from(STYLES), st.booleans())
def test_a_run_goes_on_from_a_transcript_whatever_was_done_to_it(
    llm: ScriptedLlm,
    clients: Clients,
    transcripts: dict[str, list[Any]],
    data: st.DataObject,
    whose: str,
    style: str,
    streams: bool,
) -> None:
    history = data.draw(st.composite(lambda draw: mutilated(draw, transcripts[whose]))())
    before = copy.deepcopy(history)
    result = go_on(clients[style], history, streams=streams)

    assert (result.status, result.text) == ("done", "fine")
    assert history == before
    assert llm.requests[-1].prompt.endswith("and now?")
    assert b"_parked" not in llm.requests[-1].content
    assert b"_answered" not in llm.requests[-1].content


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("streams", [False, True])
def test_a_parked_transcript_is_closed_truthfully_before_what_is_said_next(
    llm: ScriptedLlm,
    clients: Clients,
    transcripts: dict[str, list[Any]],
    style: str,
    streams: bool,
) -> None:
    history = transcripts[style]
    result = go_on(clients[style], history, streams=streams)
    told = list(llm.requests[-1].tool_results.values())

    assert told.count("not executed: the user sent a new message") == 2
    assert told.count("b") == 1
    assert "_parked" not in json.dumps(result.messages)
    assert "_parked" in json.dumps(history)


parked = st.builds(
    lambda statuses: Checkpoint(
        run="r",
        base=0,
        messages=(
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": f"c{n}",
                        "type": "function",
                        "function": {"name": "look", "arguments": "{}"},
                    }
                    for n in range(len(statuses))
                ],
            },
        ),
        calls=tuple(map(state_of, range(len(statuses)), statuses)),
        turns=1,
    ).to_messages(),
    st.lists(st.sampled_from(["ready", "started", "open", "done", "stalled"]), min_size=1),
)


def state_of(index: int, status: Any) -> CallState:
    return CallState(
        f"c{index}",
        "look",
        "{}",
        status=status,
        request=Request("approval", "Sure?", id=f"q{index}") if status == "open" else None,
        result=ToolResult.ok("done") if status == "done" else None,
    )


@ON_ONE_SERVER
@given(parked, st.sampled_from(STYLES), st.booleans(), st.integers(0, 3))
def test_a_run_goes_on_from_any_parked_transcript(
    clients: Clients, history: list[Any], style: str, streams: bool, lost: int
) -> None:
    # The state tells of the results, so it does not matter which of them a host has lost.
    results = [one for one in history if one["role"] == "tool"][: max(len(history) - lost, 0)]
    history = [*history[:2], *results]
    before = copy.deepcopy(history)
    result = go_on(clients[style], history, streams=streams)

    assert result.status == "done"
    assert history == before
    given_ids = [one["tool_call_id"] for one in result.messages if one["role"] == "tool"]
    assert given_ids == [one["id"] for one in result.messages[1]["tool_calls"]]


@pytest.mark.parametrize("junk", [None, 5, "hello", ["role"]])
@pytest.mark.parametrize("streams", [False, True])
def test_what_is_no_message_is_refused_before_anything_is_asked(
    llm: ScriptedLlm, clients: Clients, junk: Any, streams: bool
) -> None:
    history: list[Any] = [{"role": "user", "content": "go"}, junk]
    with pytest.raises(ConfigError, match="history"):
        go_on(clients["openai"], history, streams=streams)

    assert llm.requests == []


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("arguments", ["{oops", "[1]", '"x"', "7", "null", ""], ids=repr)
def test_malformed_arguments_cost_no_thought_of_the_turn(
    llm: ScriptedLlm, clients: Clients, style: str, streams: bool, arguments: str
) -> None:
    client = clients[style]
    llm.say(style, tool_call("look", arguments, "c1").with_thinking("hm"))
    if streams:
        list(client.stream("go", tools=[Asks()]))
    else:
        client.run("go", tools=[Asks()])

    assert len(llm.requests) == 2
