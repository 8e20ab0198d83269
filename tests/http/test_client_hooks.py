"""Hooks: their order, what they may change, and gates that fail shut."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from tests.conftest import MakeClient
from tests.helpers import Charge
from toolnexus import Answer, Hooks, Request, ToolCall, ToolContext, ToolResult, tool
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls
from toolnexus.wire.base import ModelReply, ModelRequest


class Counter:
    """A tool that says what it was called with."""

    name, description, source = "count", "Count", "custom"

    def __init__(self) -> None:
        self.input_schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        self.seen: list[dict[str, Any]] = []

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        self.seen.append(args)
        return ToolResult.ok(f"counted {args.get('n')}", rows=1)


class Note(Hooks):
    """Hooks that only note that they were called."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def before_llm(self, request: ModelRequest) -> None:
        self.log.append(f"{self.name} before_llm")

    def after_llm(self, request: ModelRequest, reply: ModelReply) -> None:
        self.log.append(f"{self.name} after_llm {reply.finish_reason}")

    def before_tool(self, call: ToolCall, args: Mapping[str, Any], ctx: ToolContext) -> None:
        self.log.append(f"{self.name} before_tool {call.name} {dict(args)} #{ctx.attempt}")

    def after_tool(self, call: ToolCall, args: Mapping[str, Any], result: ToolResult) -> None:
        self.log.append(f"{self.name} after_tool {result.output}")


def tool_text(llm: ScriptedLlm) -> str:
    (result,) = llm.requests[-1].tool_results.values()
    return result


def test_before_hooks_run_in_order_and_after_hooks_in_reverse(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    log: list[str] = []
    llm.say("m", tool_call("count", {"n": 1}), text("done"))
    make_client(hooks=[Note("a", log), Note("b", log)]).run("go", tools=[Counter()])

    assert log == [
        "a before_llm",
        "b before_llm",
        "b after_llm tool_calls",
        "a after_llm tool_calls",
        "a before_tool count {'n': 1} #1",
        "b before_tool count {'n': 1} #1",
        "b after_tool counted 1",
        "a after_tool counted 1",
        "a before_llm",
        "b before_llm",
        "b after_llm stop",
        "a after_llm stop",
    ]


def test_any_object_with_one_of_the_methods_will_do(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class OnlyAfter:
        seen: str = ""

        def after_llm(self, request: ModelRequest, reply: ModelReply) -> None:
            self.seen = reply.text

    hook = OnlyAfter()
    llm.say("m", text("hi"))
    make_client(hooks=hook).run("go")

    assert hook.seen == "hi"


def test_before_llm_changes_what_is_sent_and_not_what_is_stored(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Mask(Hooks):
        def before_llm(self, request: ModelRequest) -> ModelRequest:
            masked = [
                {**m, "content": str(m["content"]).replace("secret", "***")}
                for m in request.messages
            ]
            return attrs.evolve(request, messages=masked)

    llm.say("m", text("ok"))
    result = make_client(hooks=Mask()).run("my secret")

    assert llm.requests[0].prompt == "my ***"
    assert result.messages[0]["content"] == "my secret"


def test_a_before_llm_that_raises_ends_the_run_with_its_error(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Stop(Hooks):
        def before_llm(self, request: ModelRequest) -> None:
            raise PermissionError("not today")

    with pytest.raises(PermissionError, match="not today"):
        make_client(hooks=Stop()).run("go")
    assert llm.requests == []


def test_an_after_llm_that_raises_is_logged(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    class Bad(Hooks):
        def after_llm(self, request: ModelRequest, reply: ModelReply) -> None:
            raise ValueError("oops")

    llm.say("m", text("hi"))
    with caplog.at_level(logging.ERROR, "toolnexus"):
        assert make_client(hooks=Bad()).run("go").text == "hi"
    assert "after_llm hook failed" in caplog.text


class Before(Hooks):
    """Answers each call with `verdict`."""

    def __init__(self, verdict: Any) -> None:
        self.verdict = verdict
        self.calls = 0

    def before_tool(self, call: ToolCall, args: Mapping[str, Any], ctx: ToolContext) -> Any:
        self.calls += 1
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


def test_a_result_from_before_tool_stands_in_for_the_tool(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    counter, second, log = Counter(), Before(None), []
    llm.say("m", tool_call("count", {"n": 1}), text("done"))
    hooks = [Before(ToolResult.ok("from cache")), second, Note("n", log)]
    make_client(hooks=hooks).run("go", tools=[counter])

    assert counter.seen == []
    assert second.calls == 0
    assert tool_text(llm) == "from cache"
    assert "n after_tool from cache" in log


def test_arguments_from_before_tool_are_executed_and_seen_by_later_hooks(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    counter, log = Counter(), []
    llm.say("m", tool_call("count", {"n": 1}, "c1"), text("done"))
    make_client(hooks=[Before({"n": 99}), Note("n", log)]).run("go", tools=[counter])

    assert counter.seen == [{"n": 99}]
    assert "n before_tool count {'n': 99} #1" in log
    asked = llm.requests[1].messages[1]["tool_calls"][0]["function"]["arguments"]
    assert asked == '{"n":1}'  # the transcript keeps what the model wrote


@pytest.mark.parametrize(
    "verdict",
    [RuntimeError("boom"), "yes", 5, {"n": float("nan")}, {1: 2}, {"n": object()}],
    ids=repr,
)
def test_a_gate_that_fails_stays_shut(
    llm: ScriptedLlm,
    make_client: MakeClient,
    verdict: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    counter = Counter()
    llm.say("m", tool_call("count", {"n": 1}), text("done"))
    result = make_client(hooks=Before(verdict)).run("go", tools=[counter])

    assert result.status == "done"
    assert counter.seen == []
    assert tool_text(llm).startswith("not executed: a before_tool hook failed (")
    assert "boom" not in tool_text(llm)
    assert "before_tool hook failed" in caplog.text


def test_before_tool_may_ask_itself_and_the_answer_runs_the_tool(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    counter = Counter()
    gate = Before(ToolResult.pending(Request("approval", "Count?")))
    llm.say("m", tool_call("count", {"n": 1}), text("done"))
    client = make_client(hooks=gate, wait_for=lambda request: Answer(request.id, True))
    client.run("go", tools=[counter])

    assert counter.seen == [{"n": 1}]
    assert gate.calls == 1
    assert tool_text(llm) == "counted 1"


def test_a_decline_of_what_before_tool_asked_executes_nothing(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    counter = Counter()
    gate = Before(ToolResult.pending(Request("approval", "Count?")))
    llm.say("m", tool_call("count", {"n": 1}), text("done"))
    make_client(hooks=gate, wait_for=lambda request: None).run("go", tools=[counter])

    assert counter.seen == []
    assert tool_text(llm).startswith("declined/expired: Count?")


class After(Hooks):
    """Answers each final result with `verdict`."""

    def __init__(self, verdict: Any) -> None:
        self.verdict = verdict
        self.seen: list[ToolResult] = []

    def after_tool(self, call: ToolCall, args: Mapping[str, Any], result: ToolResult) -> Any:
        self.seen.append(result)
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


def test_after_tool_may_replace_the_result(llm: ScriptedLlm, make_client: MakeClient) -> None:
    first, second = After(ToolResult.error("redacted")), After(None)
    llm.say("m", tool_call("count", {"n": 1}), text("done"))
    make_client(hooks=[first, second]).run("go", tools=[Counter()])

    assert [r.output for r in second.seen] == ["counted 1"]
    assert second.seen[0].metadata == {"rows": 1}
    assert [r.output for r in first.seen] == ["counted 1"]
    assert tool_text(llm) == "redacted"


def test_an_after_tool_that_raises_withholds_the_output(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    counter = Counter()
    llm.say("m", tool_call("count", {"n": 1}), text("done"))
    result = make_client(hooks=After(RuntimeError("boom"))).run("go", tools=[counter])

    assert counter.seen == [{"n": 1}]
    assert tool_text(llm) == (
        "the tool ran, but an after_tool hook failed (RuntimeError); its output is withheld"
    )
    assert "counted" not in str(result.messages)
    assert "after_tool hook failed" in caplog.text


def test_after_tool_never_sees_a_suspension_and_sees_the_result_once(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    after = After(None)
    llm.say("m", tool_call("charge_card"), text("done"))
    client = make_client(hooks=after, wait_for=lambda request: Answer(request.id, True))
    client.run("go", tools=[Charge()])

    assert [r.output for r in after.seen] == ["charged"]


def test_a_parked_run_shows_after_tool_nothing(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    after = After(None)
    llm.say("m", tool_call("charge_card"))
    result = make_client(hooks=after).run("go", tools=[Charge()])

    assert result.status == "pending"
    assert after.seen == []


def test_refused_calls_reach_no_tool_hook(llm: ScriptedLlm, make_client: MakeClient) -> None:
    before, after = Before(None), After(None)
    llm.say(
        "m",
        tool_calls(call("ghost"), call("count", '{"n": '), call("count", {"n": "x"})),
        text("done"),
    )
    make_client(hooks=[before, after]).run("go", tools=[Counter()])

    assert before.calls == 0
    assert after.seen == []


def test_hooks_see_native_arguments_as_the_model_wrote_them(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    log: list[str] = []

    @tool
    def greet(name: str = "you") -> str:
        """Greet."""
        return f"hello {name}"

    llm.say("m", tool_call("greet"), text("done"))
    make_client(hooks=Note("n", log)).run("go", tools=[greet])

    assert "n before_tool greet {} #1" in log
    assert "n after_tool hello you" in log
