"""What the runtime hands out is a copy: changing it changes nothing behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Probe, approve, run_turn, start
from toolnexus import AgentDef, LlmClient, Request, ToolContext, ToolResult
from toolnexus.testing import ScriptedLlm, status, text, tool_call


def asking() -> Probe:
    def ask(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "ok?", data={"n": [1]}))
        return ToolResult.ok("yes")

    return Probe("ask", ask)


def contents(messages: Any) -> list[Any]:
    return [message["content"] for message in messages]


def test_an_edited_transcript_is_the_editors_own(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("t", {"x": 1}, "c1"), text("first"), text("second"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t")]))
    handle, _ = start(rt, "a", "a secret question")
    kept = rt.transcript(handle)
    before = repr(kept)
    for message in rt.transcript(handle):
        message["content"] = "edited"
        for one in message.get("tool_calls") or ():
            one["function"]["arguments"] = "{}"
            one["id"] = "edited"
    assert repr(rt.transcript(handle)) == repr(kept) == before
    run_turn(rt, handle, "next")
    assert "edited" not in llm.requests[-1].content.decode()
    assert contents(llm.requests[-1].messages)[0] == "a secret question"


def test_an_edited_transcript_of_an_earlier_turn_stays_out_of_a_parked_one(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", text("first"), tool_call("ask"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[asking()]))
    handle, _ = start(rt, "a")
    parked = run_turn(rt, handle)
    rt.transcript(handle)[0]["content"] = "edited"
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert "edited" not in llm.requests[-1].content.decode()


def test_an_edited_open_request_is_the_editors_own(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("ask", {"deep": {"x": [1]}}), text("end"))
    rt = make_runtime(AgentDef("a", tools=[asking()]))
    handle, parked = start(rt, "a")
    views: list[Callable[[], Any]] = [
        lambda: rt.pending()[0].request.data,
        lambda: (handle.pending_request or Request("", "")).data,
        lambda: (rt.list()[0].pending or Request("", "")).data,
    ]
    right = {"n": [1], "path": ["root", "a.1"]}
    for view in views:
        data = view()
        assert data == right
        data["path"][0] = None
        data["n"].append(object())
        rt.pending()[0].arguments["deep"]["x"].append(2)
    assert [view() for view in views] == [right] * len(views)
    assert rt.pending()[0].arguments == {"deep": {"x": [1]}}
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "end"


def test_arguments_that_a_tool_changes_are_its_own(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """The second execution sees what the model said, not what the first made of it."""
    seen: list[str] = []

    def ask(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        seen.append(repr(args))
        args["deep"]["x"].append("spoiled")
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "ok?", data=args))
        return ToolResult.ok("yes")

    llm.say("m", tool_call("ask", {"deep": {"x": [1]}}), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("ask", ask)]))
    handle, parked = start(rt, "a")
    assert rt.pending()[0].arguments == {"deep": {"x": [1]}}
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert seen == ["{'deep': {'x': [1]}}"] * 2


# -- hooks ------------------------------------------------------------------------------------


class Edit:
    """A before_llm hook that edits what it is shown and returns nothing."""

    def __init__(self, edit: Callable[[Any], object]) -> None:
        self.edit = edit
        self.errors: list[Exception] = []

    def before_llm(self, request: Any) -> None:
        # A view that cannot be edited is as good as a copy.
        try:
            self.edit(request.messages)
        except (TypeError, AttributeError) as error:
            self.errors.append(error)


def hint(messages: Any) -> None:
    messages[-1]["content"] += " [hint]"


def forget(messages: Any) -> None:
    if len(messages) > 4:
        del messages[:4]


def deep(messages: Any) -> None:
    for message in messages:
        for one in message.get("tool_calls") or ():
            one["function"]["arguments"] = '{"x": "[hint]"}'


@pytest.mark.parametrize("edit", [hint, forget, deep])
def test_a_before_llm_hook_edits_a_copy(
    llm: ScriptedLlm, make_runtime: Make, edit: Callable[[Any], object]
) -> None:
    llm.say("m", tool_call("t", {"x": 1}, "c1"), text("first"), text("second"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t")], hooks=Edit(edit)))
    handle, _ = start(rt, "a", "q1")
    run_turn(rt, handle, "q2")
    assert "[hint]" not in repr(rt.transcript(handle))
    assert contents(rt.transcript(handle)) == ["q1", None, "t done", "first", "q2", "second"]
    said = rt.transcript(handle)[1]["tool_calls"][0]["function"]["arguments"]
    assert said.replace(" ", "") == '{"x":1}'


def test_a_before_llm_hook_that_edits_does_not_pile_up_over_failures(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", status(500), text("end"))
    rt = make_runtime(AgentDef("a", hooks=Edit(hint)))
    handle, failed = start(rt, "a", "q1")
    assert failed.status == "error"
    assert rt.retry(handle).text == "end"
    assert contents(rt.transcript(handle)) == ["q1", "end"]


def test_the_parked_turn_is_safe_from_before_llm_as_well(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("ask"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[asking()], hooks=Edit(hint)))
    handle, parked = start(rt, "a", "q1")
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert contents(rt.transcript(handle)) == ["q1", None, "yes", "end"]


class Keep:
    """An after_llm hook that edits the reply."""

    def after_llm(self, request: Any, reply: Any) -> None:
        reply.message["content"] = "edited"


def test_an_after_llm_hook_edits_a_copy(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.answer("m", lambda request: text("said"))
    rt = make_runtime(AgentDef("a", hooks=Keep()))
    handle, result = start(rt, "a", "q1")
    assert (result.text, contents(rt.transcript(handle))) == ("said", ["q1", "said"])


# -- the bare client --------------------------------------------------------------------------


def test_a_checkpoint_gives_its_messages_away_as_copies(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("ask", {"x": 1}))
    with LlmClient(base_url=llm.base_url, api_key="k", model="m") as client:
        checkpoint = client.run("a", tools=[asking()]).checkpoint
    assert checkpoint is not None
    before = repr(checkpoint.to_dict())
    given: Any = checkpoint.to_dict()
    given["messages"][0]["content"] = "edited"
    given["messages"][-1]["tool_calls"][0]["function"]["arguments"] = "{}"
    assert repr(checkpoint.to_dict()) == before
