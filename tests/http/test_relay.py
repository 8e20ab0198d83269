"""Relay tools: declared to the model here, executed by the host, all calls as one request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.runtime.support import Pay, Probe
from toolnexus import (
    Answer,
    LlmClient,
    RelayTool,
    Request,
    RunResult,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    relay_tool,
)
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"q": {"type": "string"}},
    "required": ["q"],
}


def find(name: str = "find") -> RelayTool:
    return relay_tool(name, "Find something", SCHEMA)


def asked(result: RunResult) -> Request:
    assert result.status == "pending"
    assert result.pending is not None
    return result.pending


def calls_of(request: Request) -> list[dict[str, Any]]:
    assert request.data is not None
    calls = request.data["calls"]
    assert isinstance(calls, list)
    return calls


def resumed(client: LlmClient, parked: RunResult, answer: Answer, *tools: Any) -> RunResult:
    """Go on as another process would."""
    assert parked.checkpoint is not None
    return client.resume(
        json.loads(json.dumps(parked.checkpoint.to_dict())), answer, tools=tools
    )


# -- what is asked --------------------------------------------------------------------------


@STYLES
def test_a_relayed_call_parks_the_run_on_one_request(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", tool_call("find", {"q": "x"}, "c1"))
    result = make_client(style=style).run("go", tools=[find()])

    request = asked(result)
    assert request.kind == "tool_call"
    assert "find" in request.prompt
    (described,) = calls_of(request)
    assert json.loads(described.pop("arguments")) == {"q": "x"}
    assert described == {"id": "c1", "name": "find", "input": {"q": "x"}}
    assert result.text == request.prompt
    (declared,) = llm.requests[0].tools
    declared = declared.get("function", declared)
    assert (declared["name"], declared["description"]) == ("find", "Find something")
    assert declared.get("parameters", declared.get("input_schema")) == SCHEMA


def test_the_arguments_are_the_text_that_the_model_wrote(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    written = '{ "q" : "\\u00e9",\n  "more": 1.0 }'
    llm.say("m", tool_call("find", written, "c1"))
    (described,) = calls_of(asked(make_client().run("go", tools=[find()])))
    assert described["arguments"] == written
    assert described["input"] == {"q": "é", "more": 1.0}


def test_no_arguments_are_an_empty_object(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", tool_call("now", "", "c1"))
    now = relay_tool("now", "The time", {"type": "object"})
    (described,) = calls_of(asked(make_client().run("go", tools=[now])))
    assert described == {"id": "c1", "name": "now", "input": {}, "arguments": ""}


@STYLES
def test_all_relayed_calls_of_a_message_are_one_request_in_call_order(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    calls = (
        call("find", {"q": "1"}, "c1"),
        call("look", {}, "c2"),
        call("fetch", {"q": "3"}, "c3"),
        call("pay", {"amount": 4}, "c4"),
        call("find", {"q": "5"}, "c5"),
    )
    llm.say("m", tool_calls(*calls))
    tools: list[Tool] = [Probe("look"), Pay(), find(), find("fetch")]
    result = make_client(style=style).run("go", tools=tools)

    request = asked(result)
    assert [(one["id"], one["name"]) for one in calls_of(request)] == [
        ("c1", "find"),
        ("c3", "fetch"),
        ("c5", "find"),
    ]
    assert "find" in request.prompt
    assert "fetch" in request.prompt
    assert result.checkpoint is not None
    assert [one.prompt for one in result.checkpoint.requests] == [request.prompt, "Pay 4?"]
    assert [one["content"] for one in result.messages if one["role"] == "tool"] == ["look done"]


def test_a_call_that_asks_before_the_relayed_ones_is_surfaced_first(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    calls = (
        call("pay", {"amount": 1}, "c1"),
        call("find", {"q": "2"}, "c2"),
        call("find", {"q": "3"}, "c3"),
    )
    llm.say("m", tool_calls(*calls))
    result = make_client().run("go", tools=[Pay(), find()])

    assert asked(result).prompt == "Pay 1?"
    assert result.checkpoint is not None
    _, relayed = result.checkpoint.requests
    assert [one["id"] for one in calls_of(relayed)] == ["c2", "c3"]


@pytest.mark.parametrize("bad", ['{"q": 1}', "{}", '{"q": ', "[]", '"x"'])
def test_arguments_that_do_not_fit_are_not_relayed(
    llm: ScriptedLlm, make_client: MakeClient, bad: str
) -> None:
    llm.say("m", tool_calls(call("find", bad, "c1"), call("find", {"q": "x"}, "c2")))
    llm.say("m", text("done"))
    client = make_client()
    parked = client.run("go", tools=[find()])
    request = asked(parked)
    assert [one["id"] for one in calls_of(request)] == ["c2"]

    resumed(client, parked, Answer(request.id, True, {"output": "found"}), find())
    told = llm.requests[1].tool_results
    assert told["c2"] == "found"
    assert told["c1"] != "found"
    assert "arguments" in told["c1"]


def test_only_arguments_that_do_not_fit_ask_nobody(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("find", {}), text("I see"))
    result = make_client().run("go", tools=[find()])
    assert (result.status, result.text) == ("done", "I see")


@pytest.mark.parametrize("streams", [False, True])
def test_wait_for_is_asked_once_for_all_of_them(
    llm: ScriptedLlm, make_client: MakeClient, streams: bool
) -> None:
    prompts: list[Request] = []

    def wait_for(request: Request) -> Answer:
        prompts.append(request)
        if request.kind != "tool_call":
            return Answer(request.id, True)
        results = [{"id": one["id"], "output": f"re {one['id']}"} for one in calls_of(request)]
        return Answer(request.id, True, {"results": results})

    calls = (
        call("find", {"q": "1"}, "c1"),
        call("pay", {"amount": 2}, "c2"),
        call("find", {"q": "3"}, "c3"),
    )
    llm.say("m", tool_calls(*calls), text("done"))
    client = make_client(wait_for=wait_for)
    tools: list[Tool] = [find(), Pay()]
    if streams:
        events = list(client.stream("go", tools=tools))
        pendings = [event.request for event in events if event.kind == "pending"]
        assert pendings == prompts
        results = [event.call.id for event in events if event.kind == "tool_result"]
        assert results == ["c1", "c2", "c3"]
    else:
        assert client.run("go", tools=tools).text == "done"

    assert [request.kind for request in prompts] == ["tool_call", "approval"]
    assert llm.requests[1].tool_results == {"c1": "re c1", "c2": "paid 2", "c3": "re c3"}


class Guard:
    """A hook that asks about the first call that it sees with each of the given ids."""

    def __init__(self, *ids: str) -> None:
        self.ids = ids

    def before_tool(
        self, call: ToolCall, args: Mapping[str, Any], ctx: ToolContext
    ) -> ToolResult | Mapping[str, Any] | None:
        if call.id in self.ids:
            return ToolResult.pending(Request("guard", f"Guard {call.id}?"))
        return {"q": f"{args['q']}!"}


def test_a_hook_sees_a_relayed_call_before_the_host_does(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("find", {"q": "x"}, "c1"))
    (described,) = calls_of(asked(make_client(hooks=Guard()).run("go", tools=[find()])))
    assert described["input"] == {"q": "x!"}
    assert json.loads(described["arguments"]) == {"q": "x!"}


def test_a_hooks_question_comes_before_the_relayed_call(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_calls(call("find", {"q": "1"}, "c1"), call("find", {"q": "2"}, "c2")))
    llm.say("m", text("done"))
    client = make_client(hooks=Guard("c1"))
    parked = client.run("go", tools=[find()])
    guard = asked(parked)
    assert guard.kind == "guard"
    relayed = resumed(client, parked, Answer(guard.id, True), find())

    assert [one["id"] for one in calls_of(asked(relayed))] == ["c1"]
    assert relayed.checkpoint is not None
    first, second = relayed.checkpoint.requests
    for request in (second, first):
        answer = Answer(request.id, True, {"output": calls_of(request)[0]["id"]})
        relayed = resumed(client, relayed, answer, find())
    assert llm.requests[1].tool_results == {"c1": "c1", "c2": "c2"}


def test_a_hooks_question_that_is_answered_inline_is_followed_by_the_relayed_call(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    seen: list[Request] = []

    def wait_for(request: Request) -> Answer:
        seen.append(request)
        return Answer(request.id, True, {"output": "found"})

    llm.say("m", tool_call("find", {"q": "1"}, "c1"), text("done"))
    make_client(hooks=Guard("c1"), wait_for=wait_for).run("go", tools=[find()])

    assert [request.kind for request in seen] == ["guard", "tool_call"]
    assert [one["id"] for one in calls_of(seen[1])] == ["c1"]
    assert llm.requests[1].tool_results == {"c1": "found"}


# -- what is answered -----------------------------------------------------------------------


def two_relayed(llm: ScriptedLlm, client: LlmClient) -> RunResult:
    llm.say("m", tool_calls(call("find", {"q": "1"}, "c1"), call("find", {"q": "2"}, "c2")))
    llm.say("m", text("done"))
    return client.run("go", tools=[find()])


@STYLES
@pytest.mark.parametrize("way", ["resume", "run_with_answer", "ask_with_answer"])
def test_results_come_back_by_id_in_any_order(
    llm: ScriptedLlm, make_client: MakeClient, style: str, way: str
) -> None:
    client = make_client(style=style)
    if way == "ask_with_answer":
        llm.say("m", tool_calls(call("find", {"q": "1"}, "c1"), call("find", {"q": "2"}, "c2")))
        llm.say("m", text("done"))
        parked = client.ask("go", id="u1", tools=[find()])
    else:
        parked = two_relayed(llm, client)
    results = [{"id": "c2", "output": "two"}, {"id": "c1", "output": "one", "isError": True}]
    request = asked(parked)
    answer = Answer(request.id, True, {"results": results})
    if way == "resume":
        result = resumed(client, parked, answer, find())
    elif way == "run_with_answer":
        result = client.run_with_answer([find()], parked.messages, request, answer)
    else:
        result = client.ask_with_answer([find()], "u1", answer)

    assert (result.status, result.text) == ("done", "done")
    assert llm.requests[1].tool_results == {"c1": "one", "c2": "two"}
    errors = [one.get("_is_error", False) for one in result.messages if one["role"] == "tool"]
    assert errors == [True, False]
    assert len(llm.requests) == 2


MISSING = "no result was supplied for the relayed call {}"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"results": [{"id": "c2", "output": "two"}]}, (MISSING.format("c1"), "two")),
        (
            {"results": [{"id": "c9", "output": "?"}]},
            (MISSING.format("c1"), MISSING.format("c2")),
        ),
        ({"results": []}, (MISSING.format("c1"), MISSING.format("c2"))),
        ({"output": "one"}, ("one", MISSING.format("c2"))),
        ({"output": "one", "isError": False}, ("one", MISSING.format("c2"))),
        ({"output": {"a": [1]}}, ('{"a":[1]}', MISSING.format("c2"))),
        ({}, (MISSING.format("c1"), MISSING.format("c2"))),
        (None, (MISSING.format("c1"), MISSING.format("c2"))),
        ({"results": ["one", None]}, (MISSING.format("c1"), MISSING.format("c2"))),
        (
            {"results": [{"id": "c1", "output": None}, {"id": "c2", "output": 2}]},
            ("", "2"),
        ),
        (
            {"results": [{"id": "c1", "output": "one"}, {"id": "c2"}]},
            ("one", MISSING.format("c2")),
        ),
    ],
    ids=lambda value: json.dumps(value) if not isinstance(value, tuple) else "",
)
def test_each_call_gets_its_own_result_or_is_told_that_there_is_none(
    llm: ScriptedLlm, make_client: MakeClient, data: Any, told: tuple[str, str]
) -> None:
    client = make_client()
    parked = two_relayed(llm, client)
    result = resumed(client, parked, Answer(asked(parked).id, True, data), find())

    assert result.status == "done"
    given = [one for one in result.messages if one["role"] == "tool"]
    assert tuple(one["content"] for one in given) == told
    for one in given:
        assert one.get("_is_error", False) is one["content"].startswith("no result")


def test_the_short_form_may_be_an_error(llm: ScriptedLlm, make_client: MakeClient) -> None:
    client = make_client()
    llm.say("m", tool_call("find", {"q": "1"}, "c1"), text("done"))
    parked = client.run("go", tools=[find()])
    data = {"output": "broken", "isError": True}
    result = resumed(client, parked, Answer(asked(parked).id, True, data), find())
    given = result.messages[2]
    assert (given["content"], given["_is_error"]) == ("broken", True)


@pytest.mark.parametrize(
    ("reason", "data", "told"),
    [
        ("host is gone", None, "host is gone"),
        (None, {"message": "not today"}, "not today"),
        (None, None, "no reason given"),
    ],
)
def test_a_no_declines_all_of_them(
    llm: ScriptedLlm, make_client: MakeClient, reason: str | None, data: Any, told: str
) -> None:
    client = make_client()
    parked = two_relayed(llm, client)
    answer = Answer(asked(parked).id, False, data, reason)
    result = resumed(client, parked, answer, find())
    given = [one for one in result.messages if one["role"] == "tool"]
    assert [one["content"] for one in given] == [f"relay declined for find: {told}"] * 2
    assert all(one["_is_error"] for one in given)


def test_a_no_tells_the_reason_that_was_given(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client = make_client()
    parked = two_relayed(llm, client)
    answer = Answer(asked(parked).id, False, {"message": "ask Ann"}, "declined")
    resumed(client, parked, answer, find())
    for told in llm.requests[1].tool_results.values():
        assert told.startswith("relay declined for find: declined")
        assert "ask Ann" in told
