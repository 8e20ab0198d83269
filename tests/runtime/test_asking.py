"""`ctx.ask` and `ctx.once`: a tool asks as if it blocked, and goes on where it asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import SCHEMA, Make, Probe, answer_all, chain_of, start, told, within
from toolnexus import (
    AgentDef,
    Answer,
    Budget,
    ConfigError,
    Declined,
    InvalidAnswer,
    Request,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.testing import ScriptedLlm, VirtualClock, text, tool_call

FALSY: list[Any] = [None, False, 0, 0.0, "", [], {}]


KINDS = ["approval", "question", "input", "authorization", "of my own"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("depth", [1, 4])
def test_a_tool_asks_several_times_and_each_answer_reaches_its_question(
    llm: ScriptedLlm, make_runtime: Make, depth: int, inline: bool, kind: str
) -> None:
    said = {"name?": "Ann", "age?": 41, "sure?": None}
    heard: list[Any] = []

    def register(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        answers = [ctx.ask(kind, prompt).data for prompt in said]
        heard.append(answers)
        return ToolResult.ok(str(answers))

    def decide(request: Request) -> Answer:
        return Answer(request.id, ok=True, data=said[request.prompt])

    agents = chain_of(depth, [Probe("register", register)])
    for level in range(1, depth):
        task = tool_call("task", {"agent": f"d{level + 1}", "prompt": "go"})
        llm.say(f"d{level}", task, text("end"))
    llm.say(f"d{depth}", tool_call("register"), text("registered"))
    rt = make_runtime(*agents, wait_for=decide if inline else None, budget=Budget(max_depth=6))
    handle, result = start(rt, "d1")
    if not inline:
        assert result.status == "pending"
        for prompt in said:
            (one,) = rt.pending()
            assert (one.request.kind, one.request.prompt) == (kind, prompt)
            within(rt.resume, decide(one.request))
        result = rt.wait_on(handle, LIMIT)
    assert result.status == "done"
    assert heard == [["Ann", 41, None]]


@pytest.mark.parametrize("value", FALSY)
@pytest.mark.parametrize("inline", [False, True])
def test_every_falsy_value_is_an_answer(
    llm: ScriptedLlm, make_runtime: Make, value: Any, inline: bool
) -> None:
    heard: list[Any] = []

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        heard.append(ctx.ask("question", "what?").data)
        return ToolResult.ok("fine")

    llm.say("m", tool_call("t"), text("end"))
    wait_for = (lambda request: Answer(request.id, True, value)) if inline else None
    rt = make_runtime(AgentDef("a", tools=[Probe("t", work)], wait_for=wait_for))
    handle, result = start(rt, "a")
    if not inline:
        result = answer_all(rt, handle, value)
    assert result.text == "end"
    assert heard == [value]
    assert type(heard[0]) is type(value)


class Swallower:
    """Catches whatever it can, in every way there is."""

    description, source = "d", "custom"
    input_schema = SCHEMA
    name = "t"

    def __init__(self, catch: type[BaseException]) -> None:
        self.catch = catch
        self.done: list[str] = []

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        try:
            ctx.ask("approval", "Do it?")
        except self.catch:
            with suppress(BaseException):
                ctx.once("effect", lambda: self.done.append("by once"))
            with suppress(BaseException):
                ctx.ask("approval", "And this?")
            return ToolResult.ok("I went on")
        self.done.append("with a yes")
        return ToolResult.ok("done")


@pytest.mark.parametrize("catch", [Exception, BaseException])
@pytest.mark.parametrize("inline", [False, True])
def test_a_tool_that_catches_everything_parks_all_the_same(
    llm: ScriptedLlm, make_runtime: Make, catch: type[BaseException], inline: bool
) -> None:
    llm.say("m", tool_call("t"), text("end"))
    swallower = Swallower(catch)
    asked: list[str] = []

    def decide(request: Request) -> Answer:
        asked.append(request.prompt)
        return Answer(request.id, ok=True)

    rt = make_runtime(AgentDef("a", tools=[swallower], wait_for=decide if inline else None))
    handle, result = start(rt, "a")
    if not inline:
        assert swallower.done == []
        (one,) = rt.pending()
        asked.append(one.request.prompt)
        result = answer_all(rt, handle, None)
    assert asked == ["Do it?"]
    assert (result.text, told(llm), swallower.done) == ("end", "done", ["with a yes"])


SAID = [
    (Answer("x", ok=False), "declined", "declined/expired: Charge 5?"),
    (
        Answer("x", False, reason="cancelled"),
        "cancelled",
        "declined/expired: Charge 5? (cancelled)",
    ),
    (
        Answer("x", False, {"message": "too much"}, "declined"),
        "declined",
        "declined/expired: Charge 5? (declined: too much)",
    ),
]


@pytest.mark.parametrize(("said", "outcome", "read"), SAID)
def test_a_decline_is_raised_in_the_tool_and_uncaught_it_is_the_error_result(
    llm: ScriptedLlm, make_runtime: Make, said: Answer, outcome: str, read: str
) -> None:
    charged: list[int] = []
    caught: list[Declined] = []

    @tool
    def charge(ctx: ToolContext) -> str:
        try:
            ctx.ask("approval", "Charge 5?")
        except Declined as declined:
            caught.append(declined)
            raise
        charged.append(5)
        return "charged"

    llm.say("m", tool_call("charge"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[charge]))
    handle, _ = start(rt, "a")
    assert answer_all(rt, handle, said).text == "end"
    assert charged == []
    assert told(llm) == read
    assert caught[0].answer.outcome == outcome
    assert caught[0].request.prompt == "Charge 5?"
    (message,) = [m for m in rt.transcript(handle) if m["role"] == "tool"]
    assert message["_is_error"] is True


def test_a_tool_that_asks_for_it_gets_a_decline_as_an_answer(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    @tool
    def book(ctx: ToolContext) -> str:
        answer = ctx.ask("approval", "Book?", on_decline="return")
        return "booked" if answer.ok else f"given back: {answer.reason}"

    llm.say("m", tool_call("book"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[book]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, Answer("x", False, reason="too dear"))
    assert told(llm) == "given back: too dear"


Ask = Callable[[ToolContext, int], Any]
CHANGES: list[tuple[str, Ask]] = [
    ("prompt", lambda ctx, n: ctx.ask("question", f"at {n} o'clock?")),
    ("kind", lambda ctx, n: ctx.ask("question" if n == 1 else "approval", "which?")),
    (
        "schema",
        lambda ctx, n: ctx.ask("question", "n?", schema={"type": "integer", "maximum": n}),
    ),
    ("data", lambda ctx, n: ctx.ask("approval", "Pay?", data={"amount": n})),
    ("url", lambda ctx, n: ctx.ask("approval", "Pay?", url=f"https://a.test/{n}")),
]


@pytest.mark.parametrize(("what", "ask"), CHANGES)
@pytest.mark.parametrize("catch", [(), (BaseException,)])
def test_a_question_that_differs_on_the_retry_gets_no_answer(
    llm: ScriptedLlm, make_runtime: Make, what: str, ask: Ask, catch: Any
) -> None:
    went_on: list[Any] = []

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        try:
            went_on.append(ask(ctx, ctx.attempt).data)
        except catch:
            return ToolResult.ok("caught")
        return ToolResult.ok("went on")

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", work)]))
    handle, _ = start(rt, "a")
    assert answer_all(rt, handle, 1).text == "end"
    assert went_on == []
    assert "must ask the same questions in the same order" in told(llm)
    assert rt.pending() == ()


def test_what_no_approval_shows_may_change_on_the_retry(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        return ToolResult.ok(ctx.ask("question", "n?", data={"hint": ctx.attempt}).data)

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", work)]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, "7")
    assert told(llm) == "7"


def test_a_second_question_differs_and_the_first_answer_is_not_taken_for_it(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        order = ("a?", "b?") if ctx.attempt < 3 else ("b?", "a?")
        return ToolResult.ok(",".join(str(ctx.ask("question", one).data) for one in order))

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", work)]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, "A", "B")
    assert "question 1 of the tool was 'question' 'a?'" in told(llm)


def test_an_invalid_answer_leaves_the_request_open_and_lists_every_fault(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    form = {
        "type": "object",
        "properties": {
            "amount": {"type": "integer", "minimum": 1, "maximum": 5},
            "why": {"type": "string", "minLength": 3},
            "to": {"enum": ["ann", "bob"]},
        },
        "required": ["amount", "why"],
    }
    probe = Probe("t", lambda args, ctx: ToolResult.ok(ctx.ask("input", "?", schema=form).data))
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe]))
    handle, result = start(rt, "a")
    assert result.pending is not None
    assert rt.pending()[0].schema == form
    for wrong, faults in (
        ({"amount": 9, "to": "eve"}, 3),
        ({"amount": "x", "why": "because", "who": 1}, 2),
        ("x", 1),
        (None, 1),
    ):
        with pytest.raises(InvalidAnswer) as refused:
            rt.resume(Answer(result.pending.id, ok=True, data=wrong))
        assert len(refused.value.faults) == faults
        assert refused.value.request_id == result.pending.id
    assert len(probe.runs) == 1
    answer_all(rt, handle, {"amount": 3, "why": "because"})
    assert told(llm) == '{"amount":3,"why":"because"}'


def test_a_decline_fits_every_schema(llm: ScriptedLlm, make_runtime: Make) -> None:
    schema = {"type": "integer"}
    probe = Probe(
        "t", lambda args, ctx: ToolResult.ok(ctx.ask("input", "n?", schema=schema).data)
    )
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe]))
    handle, _ = start(rt, "a")
    assert answer_all(rt, handle, Answer("x", ok=False)).text == "end"


def test_inline_an_answer_that_does_not_fit_is_asked_again_with_its_faults(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    asked: list[Any] = []

    def decide(request: Request) -> Answer:
        asked.append((request.data or {}).get("faults"))
        return Answer(request.id, True, "x" if len(asked) == 1 else 5)

    schema = {"type": "integer"}
    probe = Probe("t", lambda _, ctx: ToolResult.ok(ctx.ask("input", "n?", schema=schema).data))
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe], wait_for=decide))
    start(rt, "a")
    assert told(llm) == "5"
    assert asked == [None, ['the answer is "x", but must fit {"type":"integer"}']]
    assert len(rt.audit()) == 1


def test_inline_an_answer_that_never_fits_is_a_no(llm: ScriptedLlm, make_runtime: Make) -> None:
    schema = {"type": "integer"}
    probe = Probe(
        "t", lambda args, ctx: ToolResult.ok(ctx.ask("input", "n?", schema=schema).data)
    )
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(
        AgentDef("a", tools=[probe], wait_for=lambda request: Answer(request.id, True, "x"))
    )
    start(rt, "a")
    assert told(llm).startswith("declined/expired: n? (the answer does not fit: ")


def test_a_returned_question_may_have_a_schema_too(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(
                Request("input", "n?", data={"schema": {"type": "integer"}})
            )
        return ToolResult.ok(ctx.answer.data)

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", work)]))
    handle, result = start(rt, "a")
    assert result.pending is not None
    with pytest.raises(InvalidAnswer):
        rt.resume(Answer(result.pending.id, True, "x"))
    answer_all(rt, handle, 5)
    assert told(llm) == "5"


@pytest.mark.parametrize("inline", [False, True])
def test_an_answer_to_ask_is_no_yes_to_a_question_that_the_tool_returns(
    llm: ScriptedLlm, make_runtime: Make, inline: bool
) -> None:
    charged: list[Any] = []

    def charge(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        whom = ctx.ask("question", "Whom?").data
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", f"Charge {whom}?"))
        charged.append(whom)
        return ToolResult.ok("charged")

    def decide(request: Request) -> Answer:
        return Answer(request.id, ok=request.kind == "question", data="ann")

    llm.say("m", tool_call("t"), text("end"))
    agent = AgentDef("a", tools=[Probe("t", charge)], wait_for=decide if inline else None)
    rt = make_runtime(agent)
    handle, result = start(rt, "a")
    if not inline:
        result = answer_all(rt, handle, "ann", Answer("x", ok=False))
    assert (result.text, charged) == ("end", [])
    assert told(llm) == "declined/expired: Charge ann?"


def test_a_returned_question_nobody_could_answer_is_an_error_result(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    nested = {"type": "object", "properties": {"a": {"type": "object"}}}
    probe = Probe(
        "t",
        lambda args, ctx: ToolResult.pending(Request("input", "?", data={"schema": nested})),
    )
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe]))
    _, result = start(rt, "a")
    assert result.text == "end"
    assert told(llm).startswith("the question cannot be asked: schema: field 'a'")


# -- misuse -----------------------------------------------------------------------------------


def test_outside_a_run_it_says_what_to_use() -> None:
    for use in (lambda: ToolContext().ask("a", "b"), lambda: ToolContext().once("k", int)):
        with pytest.raises(ConfigError, match="replay_tool"):
            use()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"kind": 5}, "Request.kind must be a str"),
    ({"prompt": None}, "Request.prompt must be a str"),
    ({"data": [1]}, "data must be a JSON object"),
    ({"data": {"x": object()}}, "not JSON"),
    ({"schema": {"type": "object", "properties": {"a": {"type": "tuple"}}}}, "one type of"),
    ({"schema": {"type": "string", "frob": 1}}, "may not have frob"),
    ({"expires_in": "soon"}, "expires_in must be seconds or a timedelta"),
    ({"expires_in": float("nan")}, "expires_in is no time"),
    ({"expires_in": 1e12}, "expires_in is no time"),
    ({"on_decline": "ignore"}, "on_decline must be"),
    (
        {
            "kind": "input",
            "schema": {"type": "object", "properties": {"apiKey": {"type": "string"}}},
        },
        "looks like a credential",
    ),
]


@pytest.mark.parametrize(("given", "read"), BAD)
def test_a_question_that_makes_no_sense_is_an_error_result_that_says_why(
    llm: ScriptedLlm, make_runtime: Make, given: dict[str, Any], read: str
) -> None:
    args: dict[str, Any] = {"kind": "question", "prompt": "?", **given}
    probe = Probe("t", lambda _, ctx: ToolResult.ok(ctx.ask(**args).data))
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe]))
    _, result = start(rt, "a")
    assert result.status == "done"
    assert read in told(llm)


def test_expires_in_takes_seconds_and_timedeltas(llm: ScriptedLlm, make_runtime: Make) -> None:
    clock = VirtualClock()
    for span in (60, 60.0, timedelta(minutes=1)):
        llm.say("m", tool_call("t"))
        probe = Probe("t", lambda _, ctx, span=span: ctx.ask("approval", "?", expires_in=span))
        rt = make_runtime(AgentDef("a", tools=[probe]), clock=clock)
        _, result = start(rt, "a")
        assert result.pending is not None
        assert result.pending.expires_at == clock.now() + timedelta(minutes=1)
