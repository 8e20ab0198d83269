"""Time: what expires, when that is looked at, and the four words for what was not answered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.runtime.support import Make, Probe, chain_of, start, told, within
from toolnexus import (
    AgentDef,
    Answer,
    Budget,
    ConfigError,
    Request,
    RequestExpired,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.testing import (
    RecordedRequest,
    ScriptedLlm,
    VirtualClock,
    call,
    text,
    tool_call,
    tool_calls,
)

MINUTE = 60.0


class Charging:
    """Asks with a time limit, and remembers what it charged."""

    def __init__(self) -> None:
        self.charged: list[str] = []

        @tool
        def charge(ctx: ToolContext) -> str:
            ctx.ask("approval", "Charge?", expires_in=MINUTE)
            self.charged.append(ctx.call_id)
            return "charged"

        self.tool = charge


def test_nothing_expires_by_default(llm: ScriptedLlm, make_runtime: Make) -> None:
    clock = VirtualClock()
    llm.say("m", tool_call("t"), text("end"))
    probe = Probe("t", lambda _, ctx: ToolResult.ok(ctx.ask("question", "?").data))
    rt = make_runtime(AgentDef("a", tools=[probe]), clock=clock, expire_requests=True)
    start(rt, "a")
    clock.advance(10 * 365 * 24 * 3600)
    assert rt.expire_due() == ()
    (one,) = rt.pending()
    assert one.request.expires_at is None
    within(rt.resume, Answer(one.request.id, True, "late"))
    assert told(llm) == "late"


def said_last(request: RecordedRequest) -> str:
    return str(request.messages[-1]["content"])


@pytest.mark.parametrize("depth", [1, 4])
def test_expire_due_settles_what_is_overdue_and_the_run_goes_on(
    llm: ScriptedLlm, make_runtime: Make, depth: int
) -> None:
    clock, charging = VirtualClock(), Charging()
    for level in range(1, depth):
        task = tool_call("task", {"agent": f"d{level + 1}", "prompt": "go"})
        llm.say(f"d{level}", task, text("end"))
    llm.say(f"d{depth}", tool_call("charge"), text("end"))
    agents = chain_of(depth, [charging.tool])
    rt = make_runtime(*agents, clock=clock, budget=Budget(max_depth=6))
    handle, _ = start(rt, "d1")
    (one,) = rt.pending()
    clock.advance(MINUTE - 1)
    assert rt.expire_due() == ()
    clock.advance(1)
    assert within(rt.expire_due) == (one.request.id,)
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert charging.charged == []
    leaf = [r for r in llm.requests if r.body["model"] == f"d{depth}"][-1]
    assert list(leaf.tool_results.values()) == ["declined/expired: Charge? (expired)"]
    assert rt.expire_due() == ()
    (record,) = rt.audit()
    assert (record.outcome, record.how, record.effective) == ("expired", "expiry", None)
    with pytest.raises(RequestExpired):
        rt.resume(Answer(one.request.id, ok=True))
    within(rt.resume, Answer(one.request.id, ok=False))  # as is the case


def test_a_timer_does_it_where_that_is_asked_for(llm: ScriptedLlm, make_runtime: Make) -> None:
    clock, charging = VirtualClock(), Charging()
    rt = make_runtime(AgentDef("a", tools=[charging.tool]), clock=clock, expire_requests=True)
    handles = []
    llm.answer("m", lambda one: tool_call("charge") if said_last(one) == "go" else text("end"))
    for _ in range(2):
        handles.append(start(rt, "a")[0])
        if len(handles) == 1:
            clock.advance(MINUTE / 2)
    futures = [rt.future_result(handle) for handle in handles]
    clock.wait_parked(1)
    clock.advance(MINUTE / 2)
    assert futures[0].result(LIMIT).text == "end"
    clock.wait_parked(1)
    assert not futures[1].done()
    clock.advance(MINUTE / 2)
    assert futures[1].result(LIMIT).text == "end"
    assert charging.charged == []


def test_an_answer_in_time_that_is_carried_out_too_late_is_not_carried_out(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    clock, charging = VirtualClock(), Charging()
    llm.say("m", tool_call("charge"), text("end"))
    llm.say("other", tool_call("hold"), text("end"))

    def hold(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        # Meanwhile the answer of the other agent waits for a place below the root.
        (one,) = rt.pending()
        rt.future_resume(Answer(one.request.id, ok=True), principal="ann")
        clock.advance(MINUTE)
        return ToolResult.ok("held")

    rt = make_runtime(
        AgentDef("a", tools=[charging.tool]),
        AgentDef("b", model="other", tools=[Probe("hold", hold)]),
        clock=clock,
        budget=Budget(max_concurrent=1),
    )
    handle, result = start(rt, "a")
    assert result.status == "pending"
    assert start(rt, "b")[1].text == "end"
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert charging.charged == []
    shown = [r for one in llm.requests for r in one.tool_results.values()]
    assert "declined/expired: Charge? (expired)" in shown
    assert (rt.audit()[0].outcome, rt.audit()[0].principal) == ("expired", "ann")


def test_inline_an_answer_that_takes_too_long_has_expired(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    clock, charging = VirtualClock(), Charging()

    def slow(request: Request) -> Answer:
        clock.advance(MINUTE)
        return Answer(request.id, ok=True)

    llm.say("m", tool_call("charge"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[charging.tool], wait_for=slow), clock=clock)
    start(rt, "a")
    assert charging.charged == []
    assert told(llm) == "declined/expired: Charge? (expired)"


def test_an_earlier_answer_of_the_call_does_not_expire_afterwards(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    clock = VirtualClock()

    @tool
    def book(ctx: ToolContext) -> str:
        room = ctx.ask("question", "Which room?", expires_in=MINUTE).data
        return f"{room} for {ctx.ask('question', 'Who?').data}"

    llm.say("m", tool_call("book"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[book]), clock=clock)
    start(rt, "a")
    within(rt.resume, Answer(rt.pending()[0].request.id, True, "blue"))
    clock.advance(2 * MINUTE)
    within(rt.resume, Answer(rt.pending()[0].request.id, True, "Ann"))
    assert told(llm) == "blue for Ann"


def test_a_client_looks_at_the_time_too(
    llm: ScriptedLlm,
    make_client: MakeClient,
) -> None:
    clock, charging = VirtualClock(), Charging()
    client = make_client(clock=clock)
    llm.say("m", tool_call("charge"), text("end"))
    parked = client.run("go", tools=[charging.tool])
    assert parked.checkpoint is not None
    assert parked.pending is not None
    clock.advance(MINUTE)
    with pytest.raises(RequestExpired):
        client.resume(
            parked.checkpoint, Answer(parked.pending.id, ok=True), tools=[charging.tool]
        )
    assert charging.charged == []


def test_four_words_for_four_ends(llm: ScriptedLlm, make_runtime: Make) -> None:
    clock = VirtualClock()
    ask = Probe(
        "t", lambda args, ctx: ToolResult.ok(ctx.ask("approval", "?", expires_in=MINUTE).data)
    )
    rt = make_runtime(AgentDef("a", tools=[ask]), clock=clock)
    handles = {}
    llm.answer("m", lambda one: tool_call("t") if said_last(one) == "go" else text("end"))
    for word in ("answered", "declined", "cancelled", "superseded", "expired"):
        handles[word] = start(rt, "a")[0]
    ids = {word: one.request.id for word, one in zip(handles, rt.pending(), strict=True)}
    within(rt.resume, Answer(ids["answered"], ok=True))
    within(rt.resume, Answer(ids["declined"], ok=False))
    rt.interrupt(handles["cancelled"])
    assert rt.supersede(handles["superseded"], "never mind").ok
    clock.advance(MINUTE)
    within(rt.expire_due)
    assert {one.request_id: one.outcome for one in rt.audit()} == {
        request_id: word for word, request_id in ids.items()
    }


def test_pending_can_be_asked_by_age_kind_and_tree(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    clock = VirtualClock()
    rt = make_runtime(
        AgentDef("a", tools=[Probe("q", lambda _, ctx: ctx.ask("question", "?"))]),
        AgentDef("b", model="b", tools=[Probe("q", lambda _, ctx: ctx.ask("approval", "?"))]),
        clock=clock,
    )
    llm.say("m", tool_calls(call("q"), call("q")))
    llm.say("b", tool_call("q"))
    old, _ = start(rt, "a")
    clock.advance(MINUTE)
    new, _ = start(rt, "b")
    clock.advance(1)
    assert len(rt.pending()) == 3
    assert [one.agent for one in rt.pending(kind="approval")] == ["b"]
    assert [one.agent for one in rt.pending(older_than=30)] == ["a", "a"]
    assert [one.agent for one in rt.pending(older_than=timedelta(0))] == ["a", "a", "b"]
    assert [one.agent for one in rt.pending(under=new)] == ["b"]
    assert len(rt.pending(under=rt.root)) == 3
    assert rt.pending(kind="approval", under=old) == ()
    assert rt.pending(older_than=1e12) == ()
    with pytest.raises(ConfigError, match="older_than must be seconds or a timedelta"):
        rt.pending(older_than="a day")  # type: ignore[arg-type]
