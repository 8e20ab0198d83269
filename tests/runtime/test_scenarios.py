"""Whole scenarios, with exactly the moves that each handle makes."""

from __future__ import annotations

import threading

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge, moves
from tests.runtime.support import (
    Make,
    Pay,
    Probe,
    approve,
    chain_ids,
    chain_of,
    run_turn,
    start,
    within,
)
from toolnexus import AgentDef, Answer, Budget, Request, State
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    text,
    tool_call,
    tool_calls,
)

PARKED_AND_RESUMED = ["idle", "running", "suspended", "idle", "running", "idle"]


def task(agent: str, prompt: str) -> Reply:
    return tool_call("task", {"agent": agent, "prompt": prompt})


def two_tasks() -> Reply:
    return tool_calls(
        call("task", {"agent": "look", "prompt": "left"}),
        call("task", {"agent": "look", "prompt": "right"}),
    )


def test_fan_out_of_two_children_in_one_turn(llm: ScriptedLlm, make_runtime: Make) -> None:
    both_asked = threading.Barrier(2)

    def look(request: RecordedRequest) -> Reply:
        if request.prompt in ("left", "right") and not request.tool_results:
            both_asked.wait(LIMIT)
            return tool_call("peek")
        return text(f"saw {request.prompt}")

    llm.answer("look", look)
    llm.say("lead", two_tasks(), text("both seen"))
    rt = make_runtime(
        AgentDef("lead", "leads", "", "lead", team=["look"]),
        AgentDef("look", "looks", "", "look", tools=[Probe("peek")]),
    )
    lead, result = start(rt, "lead")

    assert (result.status, result.text) == ("done", "both seen")
    assert moves(rt.trace(), lead.id) == ["idle", "running", "idle"]
    for child in ("root/lead.1/look.1", "root/lead.1/look.2"):
        assert moves(rt.trace(), child) == ["idle", "running", "idle", "closed"]
    assert lead.usage_total == 80
    assert lead.usage_tree == 240
    assert result.total_tokens == 240
    assert rt.root.usage_tree == 240
    assert lead.turns_total == 2
    assert sorted(llm.requests[-1].tool_results.values()) == ["saw left", "saw right"]
    assert list(llm.requests[-1].tool_results.values()) == ["saw left", "saw right"]
    assert lead.children == ()
    llm.assert_done()


def test_inline_escalation_to_the_parents_wait_for(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    asked: list[Request] = []

    def yes(request: Request) -> Answer:
        asked.append(request)
        return Answer(request.id, ok=True)

    charge = Charge()
    llm.say("lead", task("pay", "charge 500"), text("all paid"))
    llm.say("pay", tool_call("charge_card"), text("charged"))
    rt = make_runtime(
        AgentDef("lead", "leads", "", "lead", team=["pay"], wait_for=yes),
        AgentDef("pay", "pays", "", "pay", tools=[charge]),
    )
    lead, result = start(rt, "lead")

    child = "root/lead.1/pay.1"
    assert (result.status, result.text) == ("done", "all paid")
    assert moves(rt.trace(), lead.id) == ["idle", "running", "idle"]
    assert moves(rt.trace(), child) == [
        "idle",
        "running",
        "suspended",
        "running",
        "idle",
        "closed",
    ]
    assert f"{child}: escalate → root/lead.1 answers" in rt.trace()
    assert f"{child}: suspended→running (Answer ok=true)" in rt.trace()
    assert len(asked) == 1
    assert asked[0].data == {"path": ["root", "lead.1", "pay.1"]}
    assert [answer.id for answer in charge.charged] == [asked[0].id]
    llm.assert_done()


def test_own_wait_for_answers_before_the_parents(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("lead", task("pay", "charge 500"), text("all paid"))
    llm.say("pay", tool_call("charge_card"), text("charged"))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"], wait_for=lambda r: None),
        AgentDef(
            "pay",
            "",
            "",
            "pay",
            tools=[charge := Charge()],
            wait_for=lambda request: Answer(request.id, ok=True),
        ),
        wait_for=lambda request: None,
    )
    start(rt, "lead")
    assert "root/lead.1/pay.1: escalate → self answers" in rt.trace()
    assert len(charge.charged) == 1


def test_the_runtimes_wait_for_is_the_last_on_the_chain(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("charge_card"), text("charged"))
    charge = Charge()
    rt = make_runtime(AgentDef("pay", tools=[charge]), wait_for=lambda r: Answer(r.id, ok=True))
    _, result = start(rt, "pay")
    assert result.status == "done"
    assert "root/pay.1: escalate → root answers" in rt.trace()
    assert len(charge.charged) == 1


def test_durable_pending_two_levels_deep_and_resume(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    charge = Charge()
    llm.say("lead", task("pay", "charge 500"), text("all paid"))
    llm.say("pay", tool_call("charge_card"), text("charged"))
    rt = make_runtime(
        AgentDef("lead", "leads", "", "lead", team=["pay"]),
        AgentDef("pay", "pays", "", "pay", tools=[charge]),
    )
    lead, first = start(rt, "lead")
    child = "root/lead.1/pay.1"

    assert (first.status, first.is_error) == ("pending", False)
    assert first.text == "Approve $500 charge?"
    assert first.pending is not None
    assert first.pending.data == {"path": ["root", "lead.1", "pay.1"]}
    assert first.pending_path == ("root", "lead.1", "pay.1")
    assert first.total_tokens == 80
    assert lead.state is State.SUSPENDED
    leaf = rt.handle(child)
    assert leaf is not None
    assert leaf.state is State.SUSPENDED
    assert leaf.pending_request == lead.pending_request == first.pending

    approve(rt, first.pending)

    assert moves(rt.trace(), lead.id) == PARKED_AND_RESUMED
    assert moves(rt.trace(), child) == [*PARKED_AND_RESUMED, "closed"]
    last = rt.wait_on(lead, LIMIT)
    assert (last.status, last.text, last.turns, last.total_tokens) == (
        "done",
        "all paid",
        2,
        160,
    )
    assert len(charge.charged) == 1
    assert len(llm.requests) == 4
    llm.assert_done()


def test_the_trace_of_a_durable_pending_line_by_line(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", task("pay", "charge 500"), text("all paid"))
    llm.say("pay", tool_call("charge_card"), text("charged"))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"]),
        AgentDef("pay", "", "", "pay", tools=[Charge()]),
    )
    _, first = start(rt, "lead")
    approve(rt, first.pending)

    lead, pay = "root/lead.1", "root/lead.1/pay.1"
    asks = 'running→suspended (pending "approval": Approve $500 charge?)'
    restored = "suspended→idle (Answer accepted, checkpoint restored)"
    assert list(rt.trace()) == [
        f"{lead}: spawned (depth 1, tokens unlimited)",
        f"{lead}: idle→running (wake)",
        f"{pay}: spawned (depth 2, tokens unlimited)",
        f"{pay}: idle→running (wake)",
        f"{pay}: {asks}",
        f"{lead}: {asks}",
        f"{pay}: resume with Answer(ok=true) at checkpoint",
        f"{pay}: {restored}",
        f"{pay}: idle→running (replay)",
        f"{pay}: running→idle (done, turns=2, tokens=80)",
        f"{lead}: {restored}",
        f"{lead}: idle→running (replay)",
        f"{lead}: task replay → REATTACH to {pay} (state idle)",
        f"{pay}: idle→closed (task done)",
        f"{lead}: running→idle (done, turns=2, tokens=80)",
    ]


@pytest.mark.parametrize("workers", [1, 2, 32])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 6])
def test_any_depth_and_any_pool_give_the_same(
    llm: ScriptedLlm, make_runtime: Make, depth: int, workers: int
) -> None:
    """Fresh, and parked and resumed: the same moves, texts, counts."""
    ids = chain_ids(depth)
    for level in range(1, depth):
        llm.say(f"d{level}", task(f"d{level + 1}", f"to {level + 1}"), text(f"done {level}"))
        llm.say(f"d{level}", task(f"d{level + 1}", f"to {level + 1}"), text(f"done {level}"))
    leaf = f"d{depth}"
    llm.say(leaf, tool_call("work"), text("leaf done"), tool_call("charge_card"), text("leaf"))
    work, charge = Probe("work"), Charge()
    rt = make_runtime(
        *chain_of(depth, [work, charge]),
        max_workers=workers,
        budget=Budget(max_depth=depth),
    )
    top = rt.spawn(rt.root, "d1").handle

    fresh = run_turn(rt, top)
    assert (fresh.status, fresh.text) == ("done", "leaf done" if depth == 1 else "done 1")
    assert (fresh.turns, fresh.total_tokens) == (2, depth * 2 * 40)
    for one in ids:
        ends = ["idle"] if one == top.id else ["idle", "closed"]
        assert moves(rt.trace(), one) == ["idle", "running", *ends]

    parked = run_turn(rt, top)
    assert parked.status == "pending"
    assert len(rt.list()) == depth
    assert {view.state for view in rt.list()} == {State.SUSPENDED}
    approve(rt, parked.pending)
    last = rt.wait_on(top, LIMIT)
    assert (last.status, last.text) == ("done", "leaf" if depth == 1 else "done 1")
    assert (last.turns, last.total_tokens) == (4, depth * 4 * 40)
    assert moves(rt.trace(), top.id) == ["idle", "running", "idle", *PARKED_AND_RESUMED[1:]]
    second = [one.replace("/d2.1", "/d2.2") for one in ids[1:]]
    for one in second:
        assert moves(rt.trace(), one) == [*PARKED_AND_RESUMED, "closed"]
    assert (len(work.runs), len(charge.charged)) == (1, 1)
    assert len(llm.requests) == depth * 4
    llm.assert_done()


def test_fan_out_of_fifty_with_one_worker(llm: ScriptedLlm, make_runtime: Make) -> None:
    calls = [call("task", {"agent": "look", "prompt": f"no {n}"}) for n in range(50)]
    llm.say("lead", tool_calls(*calls), text("seen"))
    llm.answer("look", lambda request: text(f"saw {request.prompt}"))
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["look"]),
        AgentDef("look", "", "", "look"),
        max_workers=1,
    )
    lead, result = start(rt, "lead")
    assert result.status == "done"
    assert list(llm.requests[-1].tool_results.values()) == [f"saw no {n}" for n in range(50)]
    assert lead.usage_tree == 52 * 40
    assert len(llm.requests) == 52
    assert rt.list()[1:] == ()


def test_a_parked_fan_out_with_one_worker(llm: ScriptedLlm, make_runtime: Make) -> None:
    """Twelve children, more than run at once, all ask; each is answered by its own answer."""
    count = 12
    calls = [call("task", {"agent": "pay", "prompt": f"{n}"}) for n in range(count)]
    llm.say("lead", tool_calls(*calls), text("all paid"))

    def pay(request: RecordedRequest) -> Reply:
        if request.tool_results:
            return text(*request.tool_results.values())
        return tool_call("pay", {"amount": int(request.prompt)})

    llm.answer("pay", pay)
    tool = Pay()
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"]),
        AgentDef("pay", "", "", "pay", tools=[tool]),
        max_workers=1,
    )
    lead, first = start(rt, "lead")
    assert first.status == "pending"
    open_requests = {one.arguments["amount"]: one.request for one in rt.pending()}
    assert sorted(open_requests) == list(range(count))
    for amount in sorted(open_requests, key=lambda n: (n % 3, -n)):
        assert lead.state is State.SUSPENDED
        within(rt.resume, Answer(open_requests[amount].id, ok=amount % 2 == 0))
    assert rt.wait_on(lead, LIMIT).text == "all paid"
    assert sorted(tool.paid) == sorted((n, open_requests[n].id) for n in range(0, count, 2))
    assert list(llm.requests[-1].tool_results.values()) == [
        f"paid {n}" if n % 2 == 0 else f"declined/expired: Pay {n}?" for n in range(count)
    ]
    assert len(llm.requests_of("lead")) == 2
