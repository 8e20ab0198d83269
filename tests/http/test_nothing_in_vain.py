"""Bad input to a resume is refused before the answer is used up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import MakeClient
from toolnexus import (
    Answer,
    ConfigError,
    Done,
    InvalidAnswer,
    Request,
    ToolContext,
    ToolResult,
    relay_tool,
    tool,
)
from toolnexus.testing import ScriptedLlm, text, tool_call


@tool
def refund(ctx: ToolContext) -> ToolResult:
    """Refund."""
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", "Refund?"))
    return ToolResult.ok("refunded")


LOCATE = relay_tool("locate", "Say where.", {"type": "object", "properties": {}})


def test_a_checkpoint_without_its_tools_is_refused(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("refund"), text("It is refunded."))
    client = make_client()
    parked = client.run("go", tools=[refund])
    assert parked.pending is not None
    assert parked.checkpoint is not None
    answer = Answer(parked.pending.id, ok=True)
    with pytest.raises(ConfigError, match="'refund' is open"):
        client.resume(parked.checkpoint, answer)

    result = client.resume(parked.checkpoint, answer, tools=[refund])
    assert result.text == "It is refunded."
    assert list(llm.requests[-1].tool_results.values()) == ["refunded"]


def test_a_conversation_without_its_tools_keeps_the_question(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("refund"), text("It is refunded."))
    client = make_client()
    pending = client.ask("go", id="u", tools=[refund]).pending
    assert pending is not None
    answer = Answer(pending.id, ok=True)
    with pytest.raises(ConfigError, match="'refund' is open"):
        client.conversation(id="u").answer(answer)

    with_tools = client.conversation(id="u", tools=[refund])
    assert with_tools.pending == pending
    assert with_tools.answer(answer).text == "It is refunded."


def test_tools_that_are_said_to_be_gone_are_gone(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("refund"), text("I cannot any more."))
    client = make_client()
    parked = client.run("go", tools=[refund])
    assert parked.pending is not None
    assert parked.checkpoint is not None
    client.resume(parked.checkpoint, Answer(parked.pending.id, ok=True), tools=[])

    (told,) = llm.requests[-1].tool_results.values()
    assert told == "Unknown tool: refund (no longer available)"


@pytest.mark.parametrize("wrong", [None, "{}", 5])
def test_what_is_no_checkpoint_is_named(make_client: MakeClient, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"takes a Checkpoint.*not {type(wrong).__name__}"):
        make_client().resume(wrong)


@pytest.mark.parametrize("data", ["Bern", ["Bern"], 5, True])
def test_results_of_a_relayed_call_are_an_object(
    llm: ScriptedLlm, make_client: MakeClient, data: Any
) -> None:
    llm.say("m", tool_call("locate"), text("You are in Bern."))
    client = make_client()
    pending = client.ask("where?", id="u", tools=[LOCATE]).pending
    assert pending is not None
    with pytest.raises(InvalidAnswer, match=r"data=\{.results"):
        client.ask_with_answer([LOCATE], "u", Answer(pending.id, True, data))

    answer = Answer(pending.id, True, {"output": "Bern"})
    assert client.ask_with_answer([LOCATE], "u", answer).text == "You are in Bern."
    assert list(llm.requests[-1].tool_results.values()) == ["Bern"]


def test_a_done_event_as_json_has_no_transcript(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("refund"))
    client = make_client(system_prompt="SECRET")
    *_, done = client.stream("go", tools=[refund])

    assert isinstance(done, Done)
    assert "SECRET" not in str(done.to_dict())
    assert done.to_dict()["result"]["pending"]["prompt"] == "Refund?"
