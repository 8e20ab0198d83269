"""Streams of several agents: parents and children, parked chains, tools that stream."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from tests.runtime.streams import (
    Reader,
    assert_nobody_listens,
    one_handle,
    read,
    result_of,
    spoken,
    text_of,
    told,
    until,
)
from tests.runtime.support import Make, Probe, chain_ids, chain_of, in_thread, run_turn, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    AlreadyAnswered,
    Answer,
    Budget,
    ConfigError,
    Handle,
    NothingSuspended,
    Request,
    State,
    ToolContext,
    ToolResult,
    UnknownRequest,
)
from toolnexus.events import Event
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    text,
    tool_call,
    tool_calls,
)

BOSS = AgentDef("boss", "leads", "", "boss", team=["kid"])
KID = AgentDef("kid", "works", "", "kid")
KIDS = ("root/boss.1/kid.1", "root/boss.1/kid.2")


def task(*prompts: str, agent: str = "kid") -> Reply:
    """Return a reply that delegates each prompt."""
    return tool_calls(*(call("task", {"agent": agent, "prompt": one}) for one in prompts))


def of(events: Sequence[Event], handle_id: str) -> list[tuple[str, str]]:
    """Return the events of one handle, in short."""
    return told([event for event in events if event.handle_id == handle_id])


@pytest.mark.parametrize("tree", [False, True])
def test_a_childs_events_are_told_on_request_only(
    llm: ScriptedLlm, make_runtime: Make, tree: bool
) -> None:
    rt = make_runtime(BOSS, KID)
    boss = rt.spawn(rt.root, "boss").handle
    llm.say("boss", task("look"), text("all done"))
    llm.say("kid", text("kid done"))
    events = read(rt.stream(boss, "go", tree=tree))

    mine = of(events, boss.id)
    assert [pair for pair in mine if pair[0] != "text"] == [
        ("tool_call", "task"),
        ("tool_result", "kid done"),
        ("usage", "80"),
        ("done", "done"),
    ]
    assert text_of(events, boss.id) == "all done"
    below = [event for event in events if event.handle_id != boss.id]
    assert {event.handle_id for event in below} == ({KIDS[0]} if tree else set())
    if tree:
        assert text_of(below) == "kid done"
        assert [event.kind for event in below][-1] == "usage"
        # The child's end comes before what its parent makes of it.
        assert events.index(below[-1]) < [one.kind for one in events].index("tool_result")
    assert [one.body.get("stream") for one in llm.requests_of("kid")] == [tree or None]
    assert [one.body.get("stream") for one in llm.requests_of("boss")] == [True, True]


def test_a_stream_of_a_child_streams_nobody_else(llm: ScriptedLlm, make_runtime: Make) -> None:
    gate = threading.Event()
    rt = make_runtime(BOSS, KID)
    boss = rt.spawn(rt.root, "boss").handle
    llm.say("boss", task("look"), text("all done"))
    llm.say("kid", tool_call("gone").held_by(gate), text("kid done"))
    future = rt.future_result(boss)
    rt.wake(boss, "go")
    llm.wait_asked("kid")
    (kid,) = boss.children
    reader = Reader(rt.stream(kid))
    until(lambda: rt._core.feeds.listens(kid))
    gate.set()

    assert {event.handle_id for event in reader.finish()} == {kid.id}
    assert result_of(reader.events).text == "kid done"
    assert future.result(LIMIT).text == "all done"
    assert [one.body.get("stream") for one in llm.requests_of("kid")] == [None, True]
    assert [one.body.get("stream") for one in llm.requests_of("boss")] == [None, None]


def test_children_at_work_together_each_keep_their_order(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    gates = {name: [threading.Event() for _ in range(3)] for name in ("one", "two")}

    def speak(request: RecordedRequest) -> Reply:
        reply = spoken(*(f"{request.prompt}{number} " for number in range(3)))
        for number, gate in enumerate(gates[request.prompt]):
            reply = reply.paused_after(number, gate)
        return reply

    rt = make_runtime(BOSS, KID)
    boss = rt.spawn(rt.root, "boss").handle
    llm.say("boss", task("one", "two"), text("both"))
    llm.answer("kid", speak)
    reader = Reader(rt.stream(boss, "go", tree=True))
    so_far = ""
    for number in range(3):
        for name in gates:
            gates[name][number].set()
            so_far += f"{name}{number} "
            reader.wait_text(so_far)
    events = reader.finish()

    for name, kid in zip(gates, KIDS, strict=True):
        assert of(events, kid)[:3] == [("text", f"{name}{number} ") for number in range(3)]
        assert [kind for kind, _ in of(events, kid)[3:]] == ["usage"]
    results = [pair for pair in of(events, boss.id) if pair[0] == "tool_result"]
    assert [output for _, output in results] == ["one0 one1 one2 ", "two0 two1 two2 "]
    assert_nobody_listens(rt, boss)


# -- going on after a question --------------------------------------------------------------


def parked(
    llm: ScriptedLlm, make: Make, tool: Any, depth: int = 3
) -> tuple[AgentRuntime, list[Handle], Request]:
    """Return a chain of agents, all suspended on the question that the last one's tool asks."""
    agents = chain_of(depth, [tool])
    for level in range(1, depth):
        llm.say(f"d{level}", task("go", agent=f"d{level + 1}"), text(f"level {level}"))
    llm.say(f"d{depth}", tool_call(tool.name), text("leaf"))
    rt = make(*agents)
    top = rt.spawn(rt.root, "d1").handle
    events = read(rt.stream(top, "go"))
    result = result_of(events)
    assert told(events)[-2:] == [("pending", result.text), ("done", "pending")]
    handles = [rt.handle(one) for one in chain_ids(depth)]
    return rt, [one for one in handles if one is not None], result.pending


@pytest.mark.parametrize("level", [1, 2, 3])
def test_an_answer_is_streamed_at_each_level(
    llm: ScriptedLlm, make_runtime: Make, level: int
) -> None:
    rt, handles, request = parked(llm, make_runtime, Charge())
    handle = handles[level - 1]
    events = read(rt.stream(handle, answer=Answer(request.id, ok=True)))

    outputs = ["level 2", "leaf", "charged"]
    said = ["level 1", "level 2", "leaf"]
    assert {event.handle_id for event in events} == {handle.id}
    assert told(events)[0] == ("tool_result", outputs[level - 1])
    assert text_of(events) == said[level - 1]
    assert [kind for kind, _ in told(events)[-2:]] == ["usage", "done"]
    assert result_of(events).text == said[level - 1]
    # It ends when `resume` would: nobody above goes on any more.
    assert handles[0].state is State.IDLE
    assert rt.wait_on(handles[0]).text == "level 1"
    assert_nobody_listens(rt, *handles)


def test_a_cascade_is_told_from_the_leaf_up(llm: ScriptedLlm, make_runtime: Make) -> None:
    rt, handles, request = parked(llm, make_runtime, Charge())
    events = read(rt.stream(handles[0], answer=Answer(request.id, ok=True), tree=True))

    ids = chain_ids(3)
    usages = [event.handle_id for event in events if event.kind == "usage"]
    results = [event.handle_id for event in events if event.kind == "tool_result"]
    assert (usages, results) == (ids[::-1], ids[::-1])


def test_a_decline_is_streamed_too(llm: ScriptedLlm, make_runtime: Make) -> None:
    charge = Charge()
    rt, handles, request = parked(llm, make_runtime, charge, depth=1)
    events = read(rt.stream(handles[0], answer=Answer(request.id, ok=False)))

    assert told(events)[0] == ("tool_result", "declined/expired: Approve $500 charge?")
    assert (result_of(events).status, charge.charged) == ("done", [])


class Twice(Probe):
    """Asks twice before it does it."""

    def __init__(self) -> None:
        super().__init__("twice", self._ask)

    def _ask(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if len(self.runs) == 3:
            return ToolResult.ok("at last")
        return ToolResult.pending(Request("approval", f"question {len(self.runs)}"))


@pytest.mark.parametrize("level", [1, 2])
def test_the_next_question_is_told_and_parks_again(
    llm: ScriptedLlm, make_runtime: Make, level: int
) -> None:
    rt, handles, request = parked(llm, make_runtime, Twice(), depth=2)
    handle = handles[level - 1]
    events = read(rt.stream(handle, answer=Answer(request.id, ok=True)))

    assert result_of(events).pending == rt.pending()[0].request
    assert told(events) == [("pending", "question 2"), ("done", "pending")]
    again = Answer(result_of(events).pending.id, ok=True)
    assert result_of(read(rt.stream(handle, answer=again))).status == "done"


def test_the_same_answer_again_executes_nothing_and_tells_the_result(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    charge = Charge()
    rt, handles, request = parked(llm, make_runtime, charge, depth=2)
    answer = Answer(request.id, ok=True)
    first = read(rt.stream(handles[0], answer=answer))

    assert read(rt.stream(handles[0], answer=answer)) == first[-1:]
    assert len(charge.charged) == 1


def test_an_answer_that_fits_nothing_raises_and_changes_nothing(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handles, request = parked(llm, make_runtime, Charge(), depth=1)
    handle = handles[0]
    with pytest.raises(UnknownRequest):
        next(rt.stream(handle, answer=Answer("made up", ok=True)))
    with pytest.raises(ConfigError):
        next(rt.stream(handle, answer="yes"))  # type: ignore[arg-type]
    assert handle.state is State.SUSPENDED
    read(rt.stream(handle, answer=Answer(request.id, ok=True)))
    with pytest.raises(AlreadyAnswered):
        next(rt.stream(handle, answer=Answer(request.id, ok=False)))
    with pytest.raises(NothingSuspended):
        next(rt.stream(handle, answer=Answer("made up", ok=True)))

    assert_nobody_listens(rt, handle)


def test_the_result_is_that_of_the_resumed_turn_however_late_it_is_read(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handles, request = parked(llm, make_runtime, Charge(), depth=1)
    handle, gate = handles[0], threading.Event()
    llm.say("d1", text("another turn").held_by(gate))
    future = rt.future_result(handle)
    stream = rt.stream(handle, answer=Answer(request.id, ok=True))
    within(next, stream)
    assert future.result(LIMIT).text == "leaf"
    assert rt.wake(handle, "next").ok
    rest = read(stream)
    gate.set()

    assert (result_of(rest).status, result_of(rest).text) == ("done", "leaf")


def test_a_callback_on_the_only_worker_can_stream(llm: ScriptedLlm, make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a", tools=[Charge()]), KID, max_workers=1)
    kid = rt.spawn(rt.root, "kid").handle
    handle = rt.spawn(rt.root, "a").handle
    llm.say("m", tool_call("charge_card"), text("charged"))
    llm.say("kid", text("kid done"))
    request = run_turn(rt, handle).pending
    assert request is not None
    gave: Future[list[Event]] = Future()
    rt.future_resume(Answer(request.id, ok=True)).add_done_callback(
        lambda _: gave.set_result(list(rt.stream(kid, "go")))
    )

    assert result_of(gave.result(LIMIT / 2)).text == "kid done"


def test_a_prompt_for_a_running_turn_is_refused_and_disturbs_nothing(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt, handle = one_handle(make_runtime)
    gate = threading.Event()
    llm.say("m", spoken("a", "b").paused_after(1, gate))
    first = Reader(rt.stream(handle, "go"))
    first.wait("text")
    refused = read(rt.stream(handle, "go on"))
    gate.set()

    assert (result_of(refused).text, len(refused)) == ("busy (running)", 1)
    assert text_of(first.finish()) == "ab"


def test_closing_the_runtime_ends_every_stream(llm: ScriptedLlm, make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"), shutdown_ms=0)
    never = threading.Event()
    llm.answer("m", lambda request: spoken("a", "b").paused_after(1, never))
    handles = [rt.spawn(rt.root, "a").handle for _ in range(3)]
    readers = [Reader(rt.stream(handle, "go")) for handle in handles]
    for reader in readers:
        reader.wait("text")
    rt.close(rt.root)

    assert [result_of(one.finish()).status for one in readers] == ["interrupted"] * 3
    assert_nobody_listens(rt, *handles)
    assert result_of(read(rt.stream(handles[0], "more"))).status == "closed"


# -- places ---------------------------------------------------------------------------------


def test_streams_take_turns_where_one_request_may_be_on_the_wire(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt = make_runtime(BOSS, KID, max_concurrent_turns=1)
    llm.answer("kid", lambda request: spoken(*(f"{request.prompt}{n} " for n in range(5))))
    llm.answer("boss", lambda one: text("ok") if len(one.messages) > 1 else task("x", "y"))
    boss = rt.spawn(rt.root, "boss").handle
    kids = [rt.spawn(rt.root, "kid").handle for _ in range(4)]
    readers = [Reader(rt.stream(one, f"k{number}-")) for number, one in enumerate(kids)]
    readers.append(Reader(rt.stream(boss, "go", tree=True)))

    for number, reader in enumerate(readers[:-1]):
        assert text_of(reader.finish()) == "".join(f"k{number}-{n} " for n in range(5))
    whole = readers[-1].finish()
    assert [text_of(whole, kid) for kid in KIDS] == ["x0 x1 x2 x3 x4 ", "y0 y1 y2 y3 y4 "]


@pytest.mark.parametrize("end", ["done", "interrupted"])
def test_a_queued_wake_is_streamed_once_it_has_a_place(
    llm: ScriptedLlm, make_runtime: Make, end: str
) -> None:
    rt = make_runtime(AgentDef("top", budget=Budget(max_concurrent=1)), KID)
    top = rt.spawn(rt.root, "top").handle
    gate = threading.Event()
    llm.say("kid", text("first").held_by(gate), text("second"))
    first, second = (rt.spawn(top, "kid").handle for _ in range(2))
    rt.wake(first, "go")
    llm.wait_asked("kid")
    reader = Reader(rt.stream(second, "go"))
    until(lambda: rt.trace_has(f"{second.id}: wake QUEUED"))
    joined = Reader(rt.stream(second))
    if end == "interrupted":
        llm.say("kid")
        rt.interrupt(second)
        assert told(reader.finish()) == [("done", "interrupted")]
    gate.set()

    assert result_of(reader.finish()).status == end
    assert result_of(joined.finish()).status in (end, "error")
    assert rt.wait_on(first).text == "first"


def test_who_looks_at_a_turn_of_an_in_process_model_does_not_break_it() -> None:
    inside, gate = threading.Event(), threading.Event()

    def stay(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        inside.set()
        assert gate.wait(LIMIT)
        return ToolResult.ok("stayed")

    def generate(body: Mapping[str, Any]) -> dict[str, Any]:
        is_last = body["messages"][-1]["role"] == "tool"
        return {"text": "done"} if is_last else {"tool_calls": [{"name": "stay"}]}

    agent = AgentDef("a", tools=[Probe("stay", stay)])
    with AgentRuntime(registry=[agent], default_model="m", generate=generate) as rt:
        handle = rt.spawn(rt.root, "a").handle
        turn = in_thread(rt.run_turn, handle, "go")
        assert inside.wait(LIMIT)
        reader = Reader(rt.stream(handle))
        until(lambda: rt._core.feeds.listens(handle))
        gate.set()
        assert turn.result(LIMIT).text == "done"
        assert result_of(reader.finish()).text == "done"
