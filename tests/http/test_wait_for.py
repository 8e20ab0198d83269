"""Questions in a bare client: answered inline by `wait_for`, or the run parks."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.helpers import Charge
from toolnexus import (
    Answer,
    Checkpoint,
    ConversationParked,
    Request,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.testing import ScriptedLlm, VirtualClock, call, text, tool_call, tool_calls

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])


class Ask:
    """A tool that asks `times` times before it is done, and notes each execution."""

    description, source = "Ask", "custom"

    def __init__(
        self, name: str = "ask", times: int = 1, handles_decline: bool = False
    ) -> None:
        self.name, self.times, self.handles_decline = name, times, handles_decline
        self.input_schema: dict[str, Any] = {"type": "object"}
        self.runs: list[tuple[dict[str, Any], ToolContext]] = []

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        self.runs.append((args, ctx))
        if len(self.runs) <= self.times:
            return ToolResult.pending(Request("q", f"{self.name} {len(self.runs)}?"))
        assert ctx.answer is not None
        return ToolResult.ok(f"ok={ctx.answer.ok} data={json.dumps(ctx.answer.data)}")


def only_result(llm: ScriptedLlm) -> str:
    (result,) = llm.requests[-1].tool_results.values()
    return result


@STYLES
@pytest.mark.parametrize("data", [None, 0, "", {}, [], "yes"], ids=repr)
def test_a_yes_runs_the_same_call_once_more_with_the_answer(
    llm: ScriptedLlm, make_client: MakeClient, style: str, data: Any
) -> None:
    ask, asked = Ask(), []

    def wait_for(request: Request) -> Answer:
        asked.append(request)
        return Answer(request.id, True, data)

    llm.say("m", tool_call("ask", {"x": 1}), text("done"))
    result = make_client(style=style, wait_for=wait_for).run("go", tools=[ask])

    assert result.status == "done"
    assert [request.prompt for request in asked] == ["ask 1?"]
    (first, one), (second, two) = ask.runs
    assert first == second == {"x": 1}
    assert (one.answer, one.attempt) == (None, 1)
    assert two.answer == Answer(asked[0].id, True, data)
    assert two.attempt == 2
    assert one.idempotency_key == two.idempotency_key != ""
    assert one.call_id == two.call_id
    assert only_result(llm) == f"ok=True data={json.dumps(data)}"
    assert len(llm.requests) == 2


@pytest.mark.parametrize(
    ("wait_for", "reason"),
    [
        (lambda r: Answer(r.id, False), ""),
        (lambda r: Answer(r.id, False, reason="declined"), " (declined)"),
        (lambda r: Answer(r.id, False, {"message": "too much"}, "no"), " (no: too much)"),
        (lambda r: Answer(r.id, False, {"message": "too much"}), " (too much)"),
        (lambda r: None, " (cancelled)"),
        (lambda r: 1 / 0, " (wait_for failed: ZeroDivisionError)"),
        (lambda r: Answer("another", True), " (wait_for answered something else)"),
        (lambda r: True, " (wait_for answered something else)"),
        (lambda r: "yes", " (wait_for answered something else)"),
        (lambda r: {"id": r.id, "ok": True}, " (wait_for answered something else)"),
    ],
)
def test_anything_but_a_yes_to_this_request_executes_nothing(
    llm: ScriptedLlm,
    make_client: MakeClient,
    wait_for: Any,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ask = Ask()
    llm.say("m", tool_call("ask"), text("as you wish"))
    with caplog.at_level(logging.CRITICAL):
        result = make_client(wait_for=wait_for).run("go", tools=[ask])

    assert (result.text, result.status) == ("as you wish", "done")
    assert len(ask.runs) == 1
    assert only_result(llm) == f"declined/expired: ask 1?{reason}"
    assert result.messages[2]["_is_error"] is True


def test_a_second_question_on_the_answer_is_unresolved(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    ask, asked = Ask(times=2), []

    def wait_for(request: Request) -> Answer:
        asked.append(request.prompt)
        return Answer(request.id, True)

    llm.say("m", tool_call("ask"), text("done"))
    make_client(wait_for=wait_for).run("go", tools=[ask])

    assert asked == ["ask 1?"]
    assert len(ask.runs) == 2
    assert only_result(llm) == "unresolved: ask 2?"


def test_a_tool_that_handles_a_decline_speaks_for_itself(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    ask = Ask(handles_decline=True)
    llm.say("m", tool_call("ask"), text("done"))
    make_client(wait_for=lambda r: Answer(r.id, False, 0)).run("go", tools=[ask])

    assert only_result(llm) == "ok=False data=0"


@STYLES
def test_questions_of_one_message_are_put_in_call_order(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    asked: list[str] = []
    last_ran = threading.Event()

    class First(Ask):
        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            assert last_ran.wait(LIMIT)  # the first call is the last to ask
            return super().execute(args, ctx)

    class Last(Ask):
        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            try:
                return super().execute(args, ctx)
            finally:
                last_ran.set()

    def wait_for(request: Request) -> Answer:
        asked.append(request.prompt)
        return Answer(request.id, request.prompt != "b 1?")

    llm.say("m", tool_calls(call("a"), call("b"), call("c")), text("done"))
    tools = [First("a"), Ask("b"), Last("c")]
    make_client(style=style, wait_for=wait_for).run("go", tools=tools)

    assert asked == ["a 1?", "b 1?", "c 1?"]
    assert list(llm.requests[1].tool_results.values()) == [
        "ok=True data=null",
        "declined/expired: b 1?",
        "ok=True data=null",
    ]


@STYLES
def test_without_wait_for_the_run_parks_exactly_there(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    charge, sent = Charge(), []

    @tool
    def send_mail(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return "sent"

    asked = tool_calls(
        call("send_mail", {"to": "ann"}, "c1"),
        call("charge_card", {"n": 1}, "c2"),
        call("charge_card", {"n": 2}, "c3"),
    )
    llm.say("m", asked)
    clock = VirtualClock()
    result = make_client(style=style, clock=clock).run("go", tools=[send_mail, charge])

    assert (result.status, result.text) == ("pending", "Approve $500 charge?")
    assert sent == ["ann"]
    assert result.pending is not None
    assert result.pending.data == {"n": 1}
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool"]
    assert result.messages[-1]["content"] == "sent"
    saved = result.checkpoint
    assert saved is not None
    assert Checkpoint.from_dict(json.loads(json.dumps(saved.to_dict()))) == saved
    assert saved.pending == result.pending
    assert [call_.status for call_ in saved.calls] == ["done", "open", "open"]
    assert [call_.id for call_ in saved.calls] == ["c1", "c2", "c3"]
    assert [call_.asked_at for call_ in saved.calls] == [
        None,
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z",
    ]
    assert len({request.id for request in saved.requests}) == 2
    assert len(llm.requests) == 1


def test_a_parked_transcript_can_be_continued_and_says_the_truth(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("charge_card", {}, "c1"), text("never mind then"))
    client = make_client()
    parked = client.run("go", tools=[Charge()])
    with pytest.raises(ConversationParked, match="Approve"):
        client.run("forget it", tools=[Charge()], history=parked.messages)
    client.run("forget it", tools=[Charge()], history=parked.messages, supersede=True)

    assert llm.requests[1].tool_results == {"c1": "not executed: the user sent a new message"}
    llm.assert_done()


def test_two_tools_that_use_one_request_id_get_two_requests(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Same(Ask):
        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            return ToolResult.pending(Request("q", "?", id="same"))

    llm.say("m", tool_calls(call("a"), call("b")))
    result = make_client().run("go", tools=[Same("a"), Same("b")])

    assert result.checkpoint is not None
    ids = [request.id for request in result.checkpoint.requests]
    assert len(set(ids)) == 2
