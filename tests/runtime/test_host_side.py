"""The host's side of asking: batches, who may answer, superseding, being told, the audit."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import moves
from tests.runtime.support import Make, Pay, chain_of, in_thread, start, told, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    AlreadyAnswered,
    Answer,
    Budget,
    ConfigError,
    InvalidAnswer,
    NotAuthorized,
    NothingSuspended,
    PendingRequest,
    Request,
    State,
    ToolContext,
    ToolResult,
    UnknownRequest,
    tool,
)
from toolnexus.testing import (
    RecordedRequest,
    ScriptedLlm,
    call,
    status,
    text,
    tool_call,
    tool_calls,
)


def pays(llm: ScriptedLlm, model: str = "m", calls: int = 1) -> None:
    """Let a model call `pay` once for each prompt `go`, and end else."""
    several = tool_calls(*(call("pay", {"amount": number}) for number in range(calls)))

    def answer(request: RecordedRequest) -> Any:
        return several if request.messages[-1]["content"] == "go" else text("end")

    llm.answer(model, answer)


def test_an_open_request_is_shown_by_its_ids_and_not_by_what_is_asked(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    @tool
    def log_in(token: str, ctx: ToolContext) -> ToolResult:
        """Log in."""
        where = f"https://example.org/{token}"
        asked = Request("authorization", f"Log in as {token}?", where, {"token": token})
        return ToolResult.pending(asked)

    llm.say("m", tool_call("log_in", {"token": "canary"}))
    rt = make_runtime(AgentDef("a", tools=[log_in]))
    start(rt, "a")
    (one,) = rt.pending()
    assert one.request.prompt == "Log in as canary?"
    shown = f"<PendingRequest {one.request.id} of root/a.1: authorization by log_in>"
    assert repr(one) == shown


# -- several answers --------------------------------------------------------------------------


def test_several_answers_are_accepted_together(llm: ScriptedLlm, make_runtime: Make) -> None:
    pays(llm, calls=3)
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay]))
    handles = [start(rt, "a")[0] for _ in range(3)]
    answers = [Answer(one.request.id, ok=True) for one in rt.pending()]
    assert len(answers) == 9
    before = len(llm.requests)
    within(rt.resume, answers)
    assert sorted(amount for amount, _ in pay.paid) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [rt.wait_on(handle, LIMIT).text for handle in handles] == ["end"] * 3
    # Each turn goes on once, and its model is asked once.
    assert len(llm.requests) == before + 3
    within(rt.resume, answers)
    assert len(pay.paid) == 9


def test_of_several_answers_either_all_are_accepted_or_none(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    pays(llm, calls=2)
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay]))
    handle, _ = start(rt, "a")
    first, second = (Answer(one.request.id, ok=True) for one in rt.pending())
    wrong: list[tuple[list[Any], type[Exception]]] = [
        ([first, Answer("nobody", ok=True)], UnknownRequest),
        ([first, "yes"], ConfigError),
        ([first, None], ConfigError),
        ([first, Answer(first.id, ok=False)], ConfigError),
    ]
    for answers, error in wrong:
        with pytest.raises(error):
            rt.resume(answers)
        assert len(rt.pending()) == 2
        assert pay.paid == []
    within(rt.resume, [first, first])
    assert len(pay.paid) == 1
    with pytest.raises(AlreadyAnswered):
        rt.resume([second, Answer(first.id, ok=False)])
    assert len(rt.pending()) == 1
    within(rt.resume, iter([first, second]))
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert len(pay.paid) == 2


def test_an_invalid_one_among_several_keeps_all_of_them_out(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    done: list[int] = []

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        done.append(amount)
        return "paid"

    pays(llm, calls=2)
    rt = make_runtime(AgentDef("a", tools=[pay]))
    start(rt, "a")
    first, second = rt.pending()
    edit = Answer(second.request.id, ok=True, data={"args": {"amount": "x"}})
    with pytest.raises(InvalidAnswer):
        rt.resume([Answer(first.request.id, ok=True), edit])
    assert done == []
    assert len(rt.pending()) == 2


def test_no_answers_change_nothing(llm: ScriptedLlm, make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"))
    rt.resume([])
    assert rt.future_resume([]).result(LIMIT) is None


def test_a_batch_spans_parents_and_children(llm: ScriptedLlm, make_runtime: Make) -> None:
    pay = Pay()
    pays(llm, "leaf")
    both = tool_calls(
        call("task", {"agent": "leaf", "prompt": "go"}), call("pay", {"amount": 7})
    )
    llm.say("m", both, text("end"))
    rt = make_runtime(
        AgentDef("a", tools=[pay], team=["leaf"]), AgentDef("leaf", model="leaf", tools=[pay])
    )
    handle, _ = start(rt, "a")
    within(rt.resume, [Answer(one.request.id, ok=True) for one in rt.pending()])
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert sorted(amount for amount, _ in pay.paid) == [0, 7]


# -- who may answer ---------------------------------------------------------------------------


VERDICTS: list[tuple[Any, bool]] = [
    (True, True),
    (False, False),
    (None, False),
    (1, False),
    ("yes", False),
    (RuntimeError("hunter2"), False),
]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("verdict", "is_let"), VERDICTS)
def test_only_true_lets_a_principal_answer(
    llm: ScriptedLlm, make_runtime: Make, verdict: Any, is_let: bool, background: bool
) -> None:
    seen: list[tuple[Any, PendingRequest]] = []

    def authorize(principal: Any, pending: PendingRequest) -> Any:
        seen.append((principal, pending))
        rt.list()  # the runtime's lock is free
        assert in_thread(rt.list).result(LIMIT)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    pays(llm)
    pay = Pay()
    rt: AgentRuntime = make_runtime(AgentDef("a", tools=[pay]), authorize=authorize)
    _, result = start(rt, "a")
    assert result.pending is not None
    answer = Answer(result.pending.id, ok=True)

    def resume() -> None:
        if background:
            rt.future_resume(answer, principal="ann").result(LIMIT)
        else:
            rt.resume(answer, principal="ann")

    if is_let:
        resume()
        assert len(pay.paid) == 1
        assert rt.audit()[0].principal == "ann"
    else:
        with pytest.raises(NotAuthorized) as refused:
            resume()
        assert "hunter2" not in str(refused.value)
        assert pay.paid == []
        assert len(rt.pending()) == 1
    ((principal, pending),) = seen
    assert (principal, pending.tool, pending.request.id) == ("ann", "pay", answer.id)


def test_where_there_is_a_gate_nobody_passes_unnamed(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    pays(llm)
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay]), authorize=lambda principal, pending: True)
    _, result = start(rt, "a")
    assert result.pending is not None
    with pytest.raises(NotAuthorized, match="say who answers: principal"):
        rt.resume(Answer(result.pending.id, ok=True))
    assert pay.paid == []
    rt.resume(Answer(result.pending.id, ok=True), principal="ann")
    for ok in (True, False):  # nor is told what somebody has said
        with pytest.raises(NotAuthorized, match="say who answers: principal"):
            rt.resume(Answer(result.pending.id, ok=ok))


def test_who_may_not_answer_is_not_told_what_another_has_said(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    pays(llm)
    rt = make_runtime(
        AgentDef("a", tools=[Pay()]), authorize=lambda principal, pending: principal == "ann"
    )
    _, result = start(rt, "a")
    assert result.pending is not None
    rt.resume(Answer(result.pending.id, ok=True, data="private"), principal="ann")
    for said in ("private", "a guess"):
        with pytest.raises(NotAuthorized, match="did not say True"):
            rt.resume(Answer(result.pending.id, ok=True, data=said), principal="bob")
    with pytest.raises(AlreadyAnswered):
        rt.resume(Answer(result.pending.id, ok=True, data="a guess"), principal="ann")


def test_who_may_answer_is_asked_of_what_would_run(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    done: list[int] = []

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        done.append(amount)
        return "paid"

    pays(llm)
    rt = make_runtime(
        AgentDef("a", tools=[pay]),
        authorize=lambda principal, pending: pending.arguments["amount"] < 50,
    )
    start(rt, "a")
    (one,) = rt.pending()
    more = Answer(one.request.id, True, {"args": {"amount": 900}})
    with pytest.raises(NotAuthorized):
        rt.resume(more, principal="intern")
    assert done == []
    within(
        rt.resume, Answer(one.request.id, True, {"args": {"amount": 40}}), principal="intern"
    )
    assert done == [40]


def test_who_may_not_answer_may_not_repeat_an_answer_either(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("pay"), status(400), text("end"))
    pay = Pay()
    rt = make_runtime(
        AgentDef("a", tools=[pay]), authorize=lambda principal, pending: principal == "boss"
    )
    handle, result = start(rt, "a")
    assert result.pending is not None
    yes = Answer(result.pending.id, ok=True)
    within(rt.resume, yes, principal="boss")
    assert rt.wait_on(handle, LIMIT).status == "error"
    for principal in ("intern", None):
        with pytest.raises(NotAuthorized):
            rt.resume(yes, principal=principal)
    assert len(llm.requests) == 2
    within(rt.resume, yes, principal="boss")
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert len(pay.paid) == 1


def test_without_a_gate_the_principal_is_kept(llm: ScriptedLlm, make_runtime: Make) -> None:
    class User:
        def __str__(self) -> str:
            return "user 7"

    pays(llm)
    rt = make_runtime(AgentDef("a", tools=[Pay()]))
    handle, result = start(rt, "a")
    assert result.pending is not None
    answer = Answer(result.pending.id, ok=True)
    events = list(rt.stream(handle, answer=answer, principal=User()))
    assert events[-1].kind == "done"
    (record,) = rt.audit()
    assert (record.principal, record.how, record.outcome) == ("user 7", "resume", "answered")


# -- superseding ------------------------------------------------------------------------------


def test_superseding_settles_what_is_open_and_starts_a_turn(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    pays(llm, calls=2)
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay]))
    handle, _ = start(rt, "a")
    first, second = rt.pending()
    within(rt.resume, Answer(first.request.id, ok=True))
    future = rt.future_result(handle)
    assert rt.supersede(handle, "never mind", principal="ann").ok
    assert future.result(LIMIT).text == "end"
    assert [amount for amount, _ in pay.paid] == [0]
    contents = [one["content"] for one in llm.requests[-1].messages]
    assert contents[-4:] == [
        None,
        "paid 0",
        "not executed: the user sent a new message",
        "never mind",
    ]
    with pytest.raises(NothingSuspended, match="was superseded; nothing is suspended now"):
        rt.resume(Answer(second.request.id, ok=True))
    (record,) = [one for one in rt.audit() if one.request_id == second.request.id]
    assert (record.outcome, record.principal) == ("superseded", "ann")
    assert rt.trace_has('suspended→idle (superseded pending "approval")')
    assert moves(rt.trace(), handle.id)[-3:] == ["idle", "running", "idle"]


def test_superseding_a_parent_closes_what_works_for_it(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    pay = Pay()
    llm.say("d1", tool_call("task", {"agent": "d2", "prompt": "go"}), text("fine"))
    llm.say("d2", tool_call("task", {"agent": "d3", "prompt": "go"}))
    llm.say("d3", tool_call("pay"))
    rt = make_runtime(*chain_of(3, [pay]))
    handle, _ = start(rt, "d1")
    (one,) = rt.pending()
    leaf = rt.handle(one.handle_id)
    assert leaf is not None
    future = rt.future_result(handle)
    assert rt.supersede(handle, "never mind").ok
    assert rt.pending() == ()
    assert future.result(LIMIT).text == "fine"
    assert within(rt.wait_on, leaf).status == "closed"
    assert handle.children == ()
    assert pay.paid == []
    assert rt.audit()[0].outcome == "superseded"


def test_superseding_a_child_gives_its_parent_what_comes_of_it(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    pay = Pay()
    llm.say("d1", tool_call("task", {"agent": "d2", "prompt": "go"}), text("end"))
    llm.say("d2", tool_call("pay"), text("did something else"))
    rt = make_runtime(*chain_of(2, [pay]))
    handle, _ = start(rt, "d1")
    child = handle.children[0]
    future = rt.future_result(handle)
    assert rt.supersede(child, "do something else").ok
    assert future.result(LIMIT).text == "end"
    assert told(llm) == "did something else"


def test_a_handle_that_waits_for_nothing_is_woken_and_a_busy_one_is_not_touched(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(request: RecordedRequest) -> Any:
        entered.set()
        leave.wait(LIMIT)
        return text("end")

    llm.answer("m", wait)
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    future = rt.future_result(handle)
    assert rt.supersede(handle, "hello").ok
    assert entered.wait(LIMIT)
    refused = rt.supersede(handle, "again")
    assert (refused.ok, refused.error) == (False, "busy (running)")
    leave.set()
    assert future.result(LIMIT).text == "end"
    with pytest.raises(ConfigError):
        rt.supersede(handle, None)  # type: ignore[arg-type]


def test_a_spent_budget_keeps_the_question(llm: ScriptedLlm, make_runtime: Make) -> None:
    pays(llm)
    rt = make_runtime(AgentDef("a", tools=[Pay()], budget=Budget(max_tokens=40)))
    handle, result = start(rt, "a")
    assert result.status == "pending"
    refused = rt.supersede(handle, "never mind")
    assert (refused.ok, refused.error) == (
        False,
        "budget exhausted (tokens); partial work preserved",
    )
    assert handle.state is State.SUSPENDED
    assert len(rt.pending()) == 1


# -- being told -------------------------------------------------------------------------------


def test_each_request_is_announced_once_it_is_parked(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    heard: list[PendingRequest] = []
    states: list[State] = []
    told_of = threading.Semaphore(0)

    def on_suspend(pending: PendingRequest) -> None:
        heard.append(pending)
        handle = rt.handle(pending.handle_id)
        assert handle is not None
        states.append(handle.state)
        assert in_thread(rt.pending).result(LIMIT)
        told_of.release()
        raise RuntimeError("nobody minds")

    pays(llm, calls=2)
    rt: AgentRuntime = make_runtime(AgentDef("a", tools=[Pay()]), on_suspend=on_suspend)
    handle, _ = start(rt, "a")
    first, second = rt.pending()
    for _ in range(2):
        assert told_of.acquire(timeout=LIMIT)
    assert [one.request.id for one in heard] == [first.request.id, second.request.id]
    assert set(states) == {State.SUSPENDED}
    within(rt.resume, Answer(first.request.id, ok=True))
    assert len(heard) == 2
    within(rt.resume, Answer(second.request.id, ok=True))
    assert rt.wait_on(handle, LIMIT).text == "end"


def test_who_is_told_may_answer_at_once(llm: ScriptedLlm, make_runtime: Make) -> None:
    def on_suspend(pending: PendingRequest) -> None:
        rt.resume(Answer(pending.request.id, ok=True))

    llm.say("d1", tool_call("task", {"agent": "d2", "prompt": "go"}), text("end"))
    pays(llm, "d2")
    pay = Pay()
    rt: AgentRuntime = make_runtime(*chain_of(2, [pay]), on_suspend=on_suspend, max_workers=1)
    handle = rt.spawn(rt.root, "d1").handle
    within(rt.run_turn, handle, "go")
    assert within(rt.wait_on, handle).text == "end"
    assert len(pay.paid) == 1


def test_inline_nobody_is_told(llm: ScriptedLlm, make_runtime: Make) -> None:
    heard: list[PendingRequest] = []
    pays(llm)
    rt = make_runtime(
        AgentDef("a", tools=[Pay()], wait_for=lambda one: Answer(one.id, ok=True)),
        on_suspend=heard.append,
    )
    assert start(rt, "a")[1].text == "end"
    assert heard == []


# -- the audit --------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", [False, True])
def test_the_audit_says_who_was_asked_what_and_what_came_of_it(
    llm: ScriptedLlm, make_runtime: Make, caplog: pytest.LogCaptureFixture, inline: bool
) -> None:
    pays(llm)
    decide = (lambda one: Answer(one.id, False, reason="declined")) if inline else None
    rt = make_runtime(AgentDef("a", tools=[Pay()], wait_for=decide))
    with caplog.at_level(logging.INFO, "toolnexus.audit"):
        handle, result = start(rt, "a")
        if not inline:
            (record,) = rt.audit()
            assert record.outcome is None
            assert record.settled_at is None
            assert result.pending is not None
            said = Answer(result.pending.id, False, reason="declined")
            rt.resume(said, principal="ann")
    (record,) = rt.audit()
    assert (record.kind, record.prompt) == ("approval", "Pay 0?")
    assert (record.handle_id, record.agent, record.tool) == (handle.id, "a", "pay")
    assert dict(record.arguments) == {"amount": 0}
    assert (record.outcome, record.reason) == ("declined", "declined")
    assert (record.how, record.principal) == (
        ("wait_for", None) if inline else ("resume", "ann")
    )
    assert record.effective is None
    assert record.settled_at is not None
    assert record.settled_at >= record.asked_at
    assert record.to_dict()["outcome"] == "declined"
    (line,) = [one.getMessage() for one in caplog.records if one.name == "toolnexus.audit"]
    assert line.startswith(f"{handle.id} approval 'Pay 0?' of pay")
    assert line.endswith(f"declined by {'wait_for' if inline else 'ann'}")


@pytest.mark.in_memory
def test_the_audit_keeps_what_is_open_and_a_bounded_number_of_what_is_not(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    pays(llm)
    rt = make_runtime(AgentDef("a", tools=[Pay()]), audit_limit=2)
    handles = [start(rt, "a")[0] for _ in range(5)]
    first, *others, last = rt.pending()
    for one in others:
        within(rt.resume, Answer(one.request.id, ok=True))
    ids = [one.request_id for one in rt.audit()]
    assert ids == [one.request.id for one in (first, *others[1:], last)]
    assert [one.request_id for one in rt.audit(under=handles[0])] == [first.request.id]
    assert [one.request_id for one in rt.audit(under=handles[0].id)] == [first.request.id]
    none = make_runtime(AgentDef("a", tools=[Pay()]), audit_limit=0)
    start(none, "a")
    assert none.audit() == ()


@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_what_is_withdrawn_is_cancelled(llm: ScriptedLlm, make_runtime: Make, how: str) -> None:
    pays(llm)
    rt = make_runtime(AgentDef("a", tools=[Pay()]))
    handle, _ = start(rt, "a")
    within(getattr(rt, how), handle)
    (record,) = rt.audit()
    assert (record.outcome, record.how) == ("cancelled", how)


def test_an_inline_question_that_is_interrupted_is_cancelled(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    asked, leave = threading.Event(), threading.Event()

    def decide(request: Any) -> Answer:
        asked.set()
        leave.wait(LIMIT)
        return Answer(request.id, ok=True)

    pays(llm)
    pay = Pay()
    rt = make_runtime(AgentDef("a", tools=[pay], wait_for=decide))
    handle = rt.spawn(rt.root, "a").handle
    run = in_thread(rt.run_turn, handle, "go")
    assert asked.wait(LIMIT)
    within(rt.interrupt, handle)
    leave.set()
    assert run.result(LIMIT).status == "interrupted"
    (record,) = rt.audit()
    assert (record.outcome, pay.paid) == ("cancelled", [])
