"""Gated tools: a person is asked before they run, and what is approved is what runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Probe, answer_all, chain_of, start, told, within
from toolnexus import (
    AgentDef,
    AlreadyAnswered,
    Answer,
    Budget,
    InvalidAnswer,
    ProposedCall,
    Request,
    ToolCall,
    ToolContext,
    ToolResult,
    ToolSchemaError,
    tool,
)
from toolnexus.approvals import digest_of
from toolnexus.testing import ScriptedLlm, call, status, text, tool_call, tool_calls

CALL = {"amount": 50, "customer": "ann"}


class Refunds:
    """A refund tool behind a gate, and what it has refunded."""

    def __init__(self, gate: Any = True) -> None:
        self.done: list[tuple[int, str]] = []

        @tool(needs_approval=gate)
        def refund(amount: int, customer: str = "nobody") -> str:
            """Refund a customer.

            Args:
                amount: Whole dollars.
                customer: Who.
            """
            self.done.append((amount, customer))
            return f"refunded {amount}"

        self.tool = refund


def asked_of(rt: Any) -> Request:
    (one,) = rt.pending()
    request: Request = one.request
    return request


GATES = [
    (True, 'Run refund(amount=50, customer="ann")?'),
    ("Refund {amount} to {customer}?", "Refund 50 to ann?"),
    (lambda args, ctx: True, 'Run refund(amount=50, customer="ann")?'),
    (lambda args, ctx: f"Really {args['amount']}?", "Really 50?"),
    (lambda args, ctx: 1 / 0, 'Run refund(amount=50, customer="ann")?'),
    (lambda args, ctx: None, 'Run refund(amount=50, customer="ann")?'),
    (lambda args, ctx: "", 'Run refund(amount=50, customer="ann")?'),
    (lambda args, ctx: 1, 'Run refund(amount=50, customer="ann")?'),
    (lambda args, ctx: 0, 'Run refund(amount=50, customer="ann")?'),
    (lambda args, ctx: args["amount"] > 100, None),
    (False, None),
]


@pytest.mark.parametrize(("gate", "prompt"), GATES)
def test_the_gate_says_whether_and_what_is_asked(
    llm: ScriptedLlm, make_runtime: Make, gate: Any, prompt: str | None
) -> None:
    refunds = Refunds(gate)
    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    handle, result = start(rt, "a")
    if prompt is None:
        assert (result.text, refunds.done) == ("end", [(50, "ann")])
        return
    assert refunds.done == []
    request = asked_of(rt)
    assert (request.kind, request.prompt) == ("approval", prompt)
    data = dict(request.data or {})
    assert data.pop("path") == ["root", "a.1"]
    assert data == {"tool": "refund", "args": CALL, "digest": digest_of("refund", CALL)}
    assert answer_all(rt, handle, None).text == "end"
    assert refunds.done == [(50, "ann")]
    assert told(llm) == "refunded 50"


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("ok", [False, True])
def test_a_gate_holds_at_every_depth(
    llm: ScriptedLlm, make_runtime: Make, depth: int, inline: bool, ok: bool
) -> None:
    refunds = Refunds()
    for level in range(1, depth):
        task = tool_call("task", {"agent": f"d{level + 1}", "prompt": "go"})
        llm.say(f"d{level}", task, text("end"))
    llm.say(f"d{depth}", tool_call("refund", CALL), text("end"))
    decide = (lambda request: Answer(request.id, ok)) if inline else None
    rt = make_runtime(
        *chain_of(depth, [refunds.tool]), wait_for=decide, budget=Budget(max_depth=6)
    )
    handle, result = start(rt, "d1")
    if not inline:
        assert refunds.done == []
        result = answer_all(rt, handle, Answer("x", ok))
    assert result.text == "end"
    assert refunds.done == ([(50, "ann")] if ok else [])


WORDS: list[Any] = ["y", "yes", None, 1, True, "True", [True], {"ok": True}]


@pytest.mark.parametrize("said", WORDS)
def test_an_approver_that_gives_no_answer_executes_nothing(
    llm: ScriptedLlm, make_runtime: Make, said: Any
) -> None:
    refunds = Refunds()
    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool], wait_for=lambda request: said))
    start(rt, "a")
    assert refunds.done == []
    assert told(llm).startswith("declined/expired: Run refund")


def test_an_approver_that_raises_executes_nothing(llm: ScriptedLlm, make_runtime: Make) -> None:
    refunds = Refunds()

    def approver(request: Request) -> Answer:
        raise RuntimeError("hunter2")

    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool], wait_for=approver))
    start(rt, "a")
    assert refunds.done == []
    assert "wait_for failed: RuntimeError" in told(llm)
    assert "hunter2" not in told(llm)


# -- edits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", [False, True])
def test_a_person_may_change_the_arguments_and_the_model_is_told(
    llm: ScriptedLlm, make_runtime: Make, inline: bool
) -> None:
    refunds = Refunds()
    edited = {"amount": 5, "customer": "ann"}
    llm.say("m", tool_call("refund", CALL), text("end"))
    decide = (lambda one: Answer(one.id, True, {"args": edited})) if inline else None
    rt = make_runtime(AgentDef("a", tools=[refunds.tool], wait_for=decide))
    handle, result = start(rt, "a")
    if not inline:
        result = answer_all(rt, handle, {"args": edited})
    assert result.text == "end"
    assert refunds.done == [(5, "ann")]
    note = '[a person changed the arguments; it ran with {"amount":5,"customer":"ann"}]'
    assert told(llm) == f"refunded 5\n\n{note}"
    (record,) = rt.audit()
    assert (dict(record.arguments), record.effective) == (CALL, edited)
    assert record.was_changed
    (asked,) = [m for m in rt.transcript(handle) if m.get("tool_calls")]
    assert '"amount":50' in str(asked).replace(" ", "")


def test_the_same_arguments_are_no_change(llm: ScriptedLlm, make_runtime: Make) -> None:
    refunds = Refunds()
    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, {"args": {"customer": "ann", "amount": 50}})
    assert told(llm) == "refunded 50"
    assert not rt.audit()[0].was_changed


BAD = [
    ({"args": {"amount": "many"}}, "amount"),
    ({"args": {}}, "amount is missing"),
    ({"args": {"amount": 5, "who": "eve"}}, "who"),
    ({"args": [5]}, "must be an object"),
    ({"amount": 5}, "to change the arguments give"),
    ("five", "to change the arguments give"),
    ({"digest": "sha256:other"}, "what was shown has sha256:"),
]


@pytest.mark.parametrize(("data", "fault"), BAD)
def test_an_edit_that_does_not_fit_is_refused_and_the_request_stays_open(
    llm: ScriptedLlm, make_runtime: Make, data: Any, fault: str
) -> None:
    refunds = Refunds()
    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    handle, _ = start(rt, "a")
    request = asked_of(rt)
    with pytest.raises(InvalidAnswer, match=fault):
        rt.resume(Answer(request.id, True, data))
    assert asked_of(rt) == request
    assert refunds.done == []
    answer_all(rt, handle, {"digest": (request.data or {})["digest"]})
    assert refunds.done == [(50, "ann")]


@pytest.mark.parametrize("data", [None, False, 0, 0.0, "", [], {}])
def test_a_yes_with_any_falsy_data_changes_nothing(
    llm: ScriptedLlm, make_runtime: Make, data: Any
) -> None:
    refunds = Refunds()
    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, data)
    assert refunds.done == [(50, "ann")]


def test_a_decline_may_carry_a_message_for_the_model(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    refunds = Refunds("Refund {amount}?")
    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, Answer("x", False, {"message": "ask Bob"}, "declined"))
    assert told(llm) == "declined/expired: Refund 50? (declined: ask Bob)"
    assert refunds.done == []


def test_arguments_that_do_not_fit_are_refused_before_a_person_is_asked(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    refunds = Refunds()
    llm.say("m", tool_call("refund", {"amount": "many"}), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    _, result = start(rt, "a")
    assert result.text == "end"
    assert "do not fit the tool's schema" in told(llm)


def test_one_answer_approves_one_call(llm: ScriptedLlm, make_runtime: Make) -> None:
    refunds = Refunds("Refund {amount}?")
    twice = tool_calls(call("refund", {"amount": 1}), call("refund", {"amount": 1_000_000}))
    llm.say("m", twice, text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    handle, _ = start(rt, "a")
    small, large = rt.pending()
    within(rt.resume, Answer(small.request.id, ok=True))
    assert refunds.done == [(1, "nobody")]
    assert [one.request.id for one in rt.pending()] == [large.request.id]
    with pytest.raises(AlreadyAnswered):
        rt.resume(Answer(small.request.id, ok=True, data={"args": {"amount": 9}}))
    within(rt.resume, Answer(large.request.id, ok=False))
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert refunds.done == [(1, "nobody")]


# -- the gate and what is around it -----------------------------------------------------------


class Rewrites:
    """A hook that puts a fee on top; it counts how often it looks."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def before_tool(self, call: Any, args: Any, ctx: ToolContext) -> Any:
        self.seen.append(args["amount"])
        if args["amount"] > 60:
            return ToolResult.error("denied: too much")
        return {**args, "customer": "ann"}


def test_what_a_hook_made_of_the_arguments_is_what_is_shown_and_run(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    refunds, hook = Refunds("Refund {amount} to {customer}?"), Rewrites()
    llm.say("m", tool_call("refund", {"amount": 50, "customer": "eve"}), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool], hooks=hook))
    handle, _ = start(rt, "a")
    assert asked_of(rt).prompt == "Refund 50 to ann?"
    answer_all(rt, handle, None)
    assert refunds.done == [(50, "ann")]
    assert hook.seen == [50]


def test_the_hooks_look_at_what_a_person_has_changed(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    refunds, hook = Refunds(), Rewrites()
    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool], hooks=hook))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, {"args": {"amount": 70}})
    assert hook.seen == [50, 70]
    assert refunds.done == []
    assert told(llm).startswith("denied: too much")


def test_an_edit_that_a_hook_changes_is_asked_again(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    refunds, hook = Refunds(), Rewrites()
    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool], hooks=hook))
    handle, _ = start(rt, "a")
    first = asked_of(rt)
    within(rt.resume, Answer(first.id, True, {"args": {"amount": 5, "customer": "eve"}}))
    again = asked_of(rt)
    assert again.id != first.id
    assert (again.data or {})["args"] == {"amount": 5, "customer": "ann"}
    assert refunds.done == []
    answer_all(rt, handle, None)
    assert refunds.done == [(5, "ann")]
    edited, approved = rt.audit()
    assert edited.effective is None  # with those arguments it never ran
    assert approved.effective == {"amount": 5, "customer": "ann"}
    assert not approved.was_changed


def test_an_approved_call_is_not_asked_again_when_the_request_is_sent_again(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    refunds = Refunds()
    llm.say("m", tool_call("refund", CALL), status(503), status(503), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]), retries=2, retry_base_ms=0)
    handle, _ = start(rt, "a")
    assert answer_all(rt, handle, None).text == "end"
    assert refunds.done == [(50, "ann")]
    assert len(rt.audit()) == 1


def test_an_approved_call_that_asks_for_itself_is_not_approved_twice(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    @tool(needs_approval=True)
    def ship(ctx: ToolContext) -> str:
        return f"shipped {ctx.ask('question', 'Where to?').data}"

    llm.say("m", tool_call("ship"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[ship]))
    handle, _ = start(rt, "a")
    assert asked_of(rt).kind == "approval"
    within(rt.resume, Answer(asked_of(rt).id, ok=True))
    assert asked_of(rt).prompt == "Where to?"
    answer_all(rt, handle, "Bern")
    assert told(llm) == "shipped Bern"


def test_an_approved_call_is_not_asked_again_when_the_provider_fails(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    refunds = Refunds()
    llm.say("m", tool_call("refund", CALL), status(503), status(503), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    handle, _ = start(rt, "a")
    assert answer_all(rt, handle, None).status == "error"
    assert within(rt.retry, handle).status == "error"
    assert within(rt.retry, handle).text == "end"
    assert refunds.done == [(50, "ann")]
    assert len(rt.audit()) == 1


def test_a_gated_delegation_is_asked_before_the_agent_is_made(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("boss", tool_call("task", {"agent": "b", "prompt": "go"}), text("end"))
    llm.say("m", text("b end"))
    boss = AgentDef("a", model="boss", team=["b"], approval_policy=lambda one: "ask")
    rt = make_runtime(boss, AgentDef("b", model="m"))
    handle, _ = start(rt, "a")
    assert handle.children == ()
    answer_all(rt, handle, None)
    assert told(llm) == "b end"


@pytest.mark.parametrize("where", ["hook", "gate", "policy"])
def test_a_gate_cannot_ask_as_a_tool_does(
    llm: ScriptedLlm, make_runtime: Make, where: str
) -> None:
    class Hook:
        def before_tool(self, call: Any, args: Any, ctx: ToolContext) -> None:
            if where == "hook":
                ctx.ask("approval", "?")

    def gate(args: Any, ctx: ToolContext) -> bool:
        if where == "gate":
            ctx.ask("approval", "?")
        return where == "policy"

    refunds = Refunds(gate)
    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool], hooks=Hook()))
    handle, result = start(rt, "a")
    assert refunds.done == []
    if where == "hook":
        assert told(llm) == "not executed: a before_tool hook failed (ConfigError)"
    else:
        assert result.status == "pending"
        answer_all(rt, handle, None)
        assert refunds.done == [(50, "ann")]


# -- the policy -------------------------------------------------------------------------------


def _raises(call: ProposedCall) -> Any:
    raise RuntimeError("no idea")


POLICIES: list[tuple[Callable[[ProposedCall], Any], str]] = [
    (lambda one: "allow", "runs"),
    (lambda one: "ask", "asks"),
    (lambda one: "deny", "denied"),
    (_raises, "asks"),
    (lambda one: None, "asks"),
    (lambda one: True, "asks"),
    (lambda one: "ALLOW", "asks"),
    (lambda one: "", "asks"),
    (lambda one: "ask" if one.needs_approval else "allow", "gate"),
]


@pytest.mark.parametrize("where", ["options", "agent"])
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize(("policy", "then"), POLICIES)
def test_the_policy_has_the_last_word_and_what_it_does_not_say_asks(
    llm: ScriptedLlm,
    make_runtime: Make,
    policy: Any,
    then: str,
    gate: bool,
    where: str,
) -> None:
    refunds = Refunds(gate)
    llm.say("m", tool_call("refund", CALL), text("end"))
    agent = {"approval_policy": policy} if where == "agent" else {}
    options = {"approval_policy": policy} if where == "options" else {}
    rt = make_runtime(AgentDef("a", tools=[refunds.tool], **agent), **options)
    handle, result = start(rt, "a")
    if then == "gate":
        then = "asks" if gate else "runs"
    if then == "asks":
        assert (result.status, refunds.done) == ("pending", [])
        result = answer_all(rt, handle, None)
    assert result.text == "end"
    assert refunds.done == ([] if then == "denied" else [(50, "ann")])
    if then == "denied":
        assert told(llm) == "denied: the host's policy does not allow refund here"


def test_the_policy_is_told_what_would_run(llm: ScriptedLlm, make_runtime: Make) -> None:
    seen: list[ProposedCall] = []

    def policy(one: ProposedCall) -> Any:
        seen.append(one)
        one.arguments["amount"] = 1_000_000
        return "allow"

    refunds = Refunds(True)
    llm.say("m", tool_call("refund", CALL), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]), approval_policy=policy)
    start(rt, "a")
    assert refunds.done == [(50, "ann")]
    (one,) = seen
    assert (one.tool, one.agent, one.handle_id) == ("refund", "a", "root/a.1")
    assert one.needs_approval


def test_an_edit_that_the_policy_denies_is_not_run(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    refunds = Refunds(True)
    llm.say("m", tool_call("refund", CALL), text("end"))
    policy = lambda one: "ask" if one.arguments["amount"] < 100 else "deny"  # noqa: E731
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]), approval_policy=policy)
    handle, _ = start(rt, "a")
    answer_all(rt, handle, {"args": {"amount": 500}})
    assert refunds.done == []
    assert told(llm).startswith("denied: ")
    (record,) = rt.audit()
    assert (record.outcome, record.effective) == ("answered", None)


# -- what is shown ----------------------------------------------------------------------------


def test_what_a_model_wrote_cannot_pass_for_the_hosts_words(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    refunds = Refunds("Refund {amount} to {customer}?")
    evil = "ann?\n\nApproved by the bank.\x1b[2K\u202e" + "x" * 1_000
    llm.say("m", tool_call("refund", {"amount": 50, "customer": evil}), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    start(rt, "a")
    prompt = asked_of(rt).prompt
    assert prompt.startswith("Refund 50 to ann? Approved by the bank. [2K x")
    assert prompt.isprintable()
    assert len(prompt) < 300
    assert (asked_of(rt).data or {})["args"]["customer"] == evil


def test_braces_in_an_argument_are_no_template(llm: ScriptedLlm, make_runtime: Make) -> None:
    refunds = Refunds("Refund {amount} to {customer}?")
    llm.say("m", tool_call("refund", {"amount": 50, "customer": "{amount.__class__}"}))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    start(rt, "a")
    assert asked_of(rt).prompt == "Refund 50 to {amount.__class__}?"


@pytest.mark.parametrize(
    "template",
    ["{amount.__class__}", "{customer[0]}", "{who}", "{}", "{amount!r}", "{amount:5}", "{"],
)
def test_a_template_names_arguments_and_nothing_else(template: str) -> None:
    with pytest.raises(ToolSchemaError, match="needs_approval"):
        Refunds(f"Refund {template}?")


def test_a_gate_of_another_kind_is_refused() -> None:
    with pytest.raises(ToolSchemaError, match="needs_approval must be a bool"):
        Refunds(5)


def test_a_gate_that_cannot_be_read_asks(llm: ScriptedLlm, make_runtime: Make) -> None:
    class Broken(Probe):
        settings: Any = None

        @property
        def needs_approval(self) -> Any:
            return self.settings.gate  # AttributeError, as if there were no gate

    probe = Broken("t")
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe]))
    start(rt, "a")
    assert (asked_of(rt).prompt, probe.runs) == ("Run t()?", [])


def test_a_policy_that_is_an_empty_list_of_rules_is_a_policy(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    class Rules(list[str]):
        def __call__(self, proposed: ProposedCall) -> str:
            return "allow" if proposed.tool in self else "deny"

    probe = Probe("t")
    rules: Any = Rules()
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe], approval_policy=rules))
    start(rt, "a")
    assert (told(llm)[:6], probe.runs) == ("denied", [])


@pytest.mark.parametrize("hidden", list("\u061c\u2060\ufeff\u00ad\U000e0041\x85"))
def test_a_gate_shows_nothing_that_cannot_be_seen(
    llm: ScriptedLlm, make_runtime: Make, hidden: str
) -> None:
    refunds = Refunds("Refund {amount} to {customer}?")
    evil = {"amount": 5, "customer": f"an{hidden}{hidden}n"}
    llm.say("m", tool_call("refund", evil), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool]))
    start(rt, "a")
    assert asked_of(rt).prompt == "Refund 5 to an n?"


def test_a_hook_that_undoes_an_edit_for_ever_ends_the_call(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    class ToAnn:
        def before_tool(self, call: ToolCall, args: Any, ctx: ToolContext) -> dict[str, Any]:
            return {**args, "customer": "ann"}

    asked: list[Any] = []

    def approver(request: Request) -> Answer:
        asked.append(dict(request.data or {})["args"])
        assert len(asked) < 10
        return Answer(request.id, ok=True, data={"args": {"amount": 5}})

    refunds = Refunds()
    llm.say("m", tool_call("refund", {"amount": 50}), text("end"))
    rt = make_runtime(AgentDef("a", tools=[refunds.tool], hooks=ToAnn(), wait_for=approver))
    handle = rt.spawn(rt.root, "a").handle
    assert within(rt.run_turn, handle, "go").text == "end"
    five = {"amount": 5, "customer": "ann"}
    assert (asked, refunds.done) == ([{**five, "amount": 50}, five], [])
    assert told(llm) == 'unresolved: Run refund(amount=5, customer="ann")?'
