"""Calls that were in flight when their process ended: they may or may not have taken effect."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import attrs
import pytest

from tests.keeping import KeepingHost, asks_for, fresh, kit_for, lost_in, recovered, run
from toolnexus import (
    Answer,
    CallState,
    Checkpoint,
    ConfigError,
    Request,
    Tool,
    ToolContext,
    ToolResult,
    relay_tool,
    tool,
)
from toolnexus.client.loop import Finished, Parked
from toolnexus.client.states import settle_call, superseded_call
from toolnexus.client.turn import Turn
from toolnexus.testing import VirtualClock
from toolnexus.toolspec import require_tool
from toolnexus.unknown import policy_of

LOST = "the process ended while the call was in flight: it may or may not have taken effect"
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}


class Pay:
    """A tool of a class; it remembers what it was executed with."""

    description, source = "Pay", "custom"
    input_schema: ClassVar[Any] = {
        "type": "object",
        "properties": {"amount": {"type": "integer"}},
    }

    def __init__(self, name: str = "pay", **attributes: Any) -> None:
        self.name = name
        self.runs: list[tuple[dict[str, Any], ToolContext]] = []
        for key, value in attributes.items():
            setattr(self, key, value)

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        self.runs.append((args, ctx))
        return self.work(args, ctx)

    def work(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        return ToolResult.ok(f"paid {args['amount']}")


def told(turn: Turn) -> list[str]:
    return [str(one["content"]) for one in turn.messages if one["role"] == "tool"]


def finish(turn: Turn, *tools: Tool, host: KeepingHost | None = None, **options: Any) -> object:
    with kit_for(
        host or KeepingHost(), lambda body: {"text": "done"}, *tools, **options
    ) as kit:
        return run(turn, kit)


def lost(pay: Pay, **options: Any) -> Checkpoint:
    saved = lost_in(KeepingHost(), asks_for(("pay", {"amount": 5})), pay, **options)
    assert [call.status for call in saved.calls] == ["started"]
    return saved


# -- what tools may want ------------------------------------------------------------------


def test_an_error_unless_the_tool_says_otherwise() -> None:
    pay = Pay()
    turn, decided = recovered(lost(pay), pay)

    assert decided == {0: "error"}
    assert finish(turn, pay) == Finished("done")
    assert told(turn) == [f"{LOST}; verify that before trying again"]
    assert turn.messages[2]["_is_error"] is True
    assert len(pay.runs) == 1


def test_a_tool_that_is_safe_runs_again_with_the_same_key() -> None:
    pay = Pay(retry_safe=True)
    turn, decided = recovered(lost(pay), pay)

    assert decided == {0: "retry"}
    assert finish(turn, pay) == Finished("done")
    assert told(turn) == ["paid 5"]
    (_, first), (args, second) = pay.runs
    assert (args, first.attempt, second.attempt) == ({"amount": 5}, 1, 2)
    assert first.idempotency_key == second.idempotency_key


def parked_on_unknown(pay: Pay, **options: Any) -> tuple[Turn, Request]:
    turn, decided = recovered(lost(pay, **options), pay)
    assert decided == {0: "ask"}
    assert finish(turn, pay) == Parked()
    turn = Turn.restore(Checkpoint.from_dict(turn.stored().to_dict()), keeps_in_flight=True)
    (call,) = turn.calls
    assert call.request is not None
    return turn, call.request


def test_a_person_is_asked_whether_it_runs_again() -> None:
    pay = Pay(on_unknown="ask")
    turn, request = parked_on_unknown(pay)

    assert request.kind == "unknown_outcome"
    assert request.prompt == f"pay(amount=5): {LOST}. Run it again?"
    assert request.data == {"tool": "pay", "args": {"amount": 5}, "path": ["root", "a.1"]}
    assert turn.calls[0].asked_at is not None
    assert len(pay.runs) == 1, "never by itself"

    turn.answer(0, Answer(request.id, ok=True))
    assert finish(turn, pay) == Finished("done")
    assert told(turn) == ["paid 5"]
    (_, first), (_, second) = pay.runs
    assert (first.attempt, second.attempt, second.answer) == (1, 2, None)
    assert first.idempotency_key == second.idempotency_key


NOES = [
    (Answer("q", ok=False), "; a person decided not to run it again"),
    (
        Answer("q", ok=False, data={"message": "it is on the statement"}),
        "; a person decided not to run it again (it is on the statement)",
    ),
    (Answer("q", ok=False, reason="no"), "; a person decided not to run it again (no)"),
    (
        Answer("q", ok=False, reason="expired"),
        "; nobody decided to run it again (expired)",
    ),
]


@pytest.mark.parametrize(("said", "text"), NOES)
@pytest.mark.parametrize("handles_decline", [False, True])
def test_a_no_runs_nothing(said: Answer, text: str, handles_decline: bool) -> None:
    pay = Pay(on_unknown="ask", handles_decline=handles_decline)
    turn, request = parked_on_unknown(pay)
    turn.answer(0, attrs.evolve(said, id=request.id))

    assert finish(turn, pay) == Finished("done")
    assert told(turn) == [LOST + text]
    assert len(pay.runs) == 1


def test_it_is_lost_again_and_asked_again() -> None:
    pay = Pay(on_unknown="ask")
    turn, first = parked_on_unknown(pay)
    turn.answer(0, Answer(first.id, ok=True))
    host = KeepingHost()
    finish(turn, pay, host=host)
    assert host.steps[0] == "entering 0"
    (call,) = host.stored[0].calls
    assert (call.status, call.attempt, call.by.before) == ("started", 2, None)

    turn, decided = recovered(host.stored[0], pay)
    assert decided == {0: "ask"}
    (call,) = turn.calls
    assert call.request is not None
    assert call.request.id != first.id


def test_a_yes_is_kept_until_the_tool_is_entered() -> None:
    pay = Pay(on_unknown="ask")
    turn, request = parked_on_unknown(pay)
    turn.answer(0, Answer(request.id, ok=True))
    asked = turn.stored_calls()
    turn.start(0)
    turn.again(0)
    assert turn.stored_calls() == asked

    turn, decided = recovered(turn.stored(), pay)
    assert (decided, tuple(turn.calls)) == ({}, asked)
    assert finish(turn, pay) == Finished("done")
    assert told(turn) == ["paid 5"]


@pytest.mark.parametrize("policy", [{"retry_safe": True}, {"on_unknown": "ask"}])
def test_it_runs_with_the_answer_that_it_had(policy: dict[str, Any]) -> None:
    class Asks(Pay):
        def work(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            if ctx.answer is None:
                return ToolResult.pending(Request("question", "Which account?"))
            return ToolResult.ok(f"paid from {ctx.answer.data}")

    pay = Asks(**policy)
    host = KeepingHost(lambda request: Answer(request.id, True, "blue"))
    saved = lost_in(host, asks_for(("pay", {"amount": 5})), pay)
    assert told_after(saved, pay) == ["paid from blue"]
    assert [ctx.attempt for _, ctx in pay.runs] == [1, 2, 3]


@pytest.mark.parametrize("policy", [{"retry_safe": True}, {"on_unknown": "ask"}])
def test_it_has_what_it_asked_and_did(policy: dict[str, Any]) -> None:
    did: list[str] = []

    class Asks(Pay):
        def work(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            account = ctx.ask("question", "Which account?").data
            ctx.once("open", lambda: did.append(account))
            sure = ctx.ask("question", "Sure?").data
            return ToolResult.ok(f"paid from {account}, {sure}")

    asked: list[str] = []

    def wait_for(request: Request) -> Answer:
        asked.append(request.prompt)
        return Answer(request.id, True, "blue" if "account" in request.prompt else "yes")

    pay = Asks(**policy)
    saved = lost_in(KeepingHost(wait_for), asks_for(("pay", {"amount": 5})), pay)
    assert told_after(saved, pay) == ["paid from blue, yes"]
    assert (asked, did) == (["Which account?", "Sure?"], ["blue"])


@pytest.mark.parametrize("policy", [{"retry_safe": True}, {"on_unknown": "ask"}])
def test_what_was_approved_is_not_approved_again(policy: dict[str, Any]) -> None:
    looks: list[int] = []

    class Doubles:
        def before_tool(self, call: Any, args: dict[str, Any], ctx: ToolContext) -> Any:
            looks.append(args["amount"])
            return {"amount": args["amount"] * 2}

    pay = Pay(needs_approval=True, **policy)
    host = KeepingHost(lambda request: Answer(request.id, True))
    saved = lost_in(host, asks_for(("pay", {"amount": 5})), pay, hooks=Doubles())
    assert told_after(saved, pay, hooks=Doubles()) == ["paid 10"]
    assert looks == [5], "the gates have let it pass"
    assert [ctx.answer for _, ctx in pay.runs] == [None, None]


@pytest.mark.parametrize("policy", [{"retry_safe": True}, {"on_unknown": "ask"}])
def test_it_runs_again_with_what_a_person_made_of_it(policy: dict[str, Any]) -> None:
    pay = Pay(needs_approval=True, **policy)
    host = KeepingHost(lambda request: Answer(request.id, True, {"args": {"amount": 3}}))
    saved = lost_in(host, asks_for(("pay", {"amount": 5})), pay)
    (text,) = told_after(saved, pay)
    assert text == 'paid 3\n\n[a person changed the arguments; it ran with {"amount":3}]'


def told_after(saved: Checkpoint, pay: Pay, **options: Any) -> list[str]:
    """Return the results after a recovery, where a person lets calls run again."""
    turn, _ = recovered(saved, pay)
    (call,) = turn.calls
    if call.request is not None and call.request.kind == "unknown_outcome":
        turn.answer(0, Answer(call.request.id, ok=True))
    assert finish(turn, pay, **options) == Finished("done")
    return told(turn)


# -- what keeps a call from running again -----------------------------------------------------

POLICIES: list[dict[str, Any]] = [{}, {"retry_safe": True}, {"on_unknown": "ask"}]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_tool_that_is_gone(policy: dict[str, Any]) -> None:
    turn, decided = recovered(lost(Pay(**policy)))

    assert decided == {0: "error"}
    assert finish(turn) == Finished("done")
    assert told(turn) == [f"Unknown tool: pay (no longer available); {LOST}"]


def test_a_tool_that_goes_while_a_person_is_asked() -> None:
    turn, request = parked_on_unknown(Pay(on_unknown="ask"))
    turn.answer(0, Answer(request.id, ok=True))
    assert finish(turn) == Finished("done")
    assert told(turn) == [f"Unknown tool: pay (no longer available); {LOST}"]


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_arguments_that_no_longer_fit(policy: dict[str, Any]) -> None:
    saved = lost(Pay(**policy))
    pay = Pay(**policy)
    pay.input_schema = {"type": "object", "properties": {"amount": {"type": "string"}}}  # type: ignore[misc]
    turn, decided = recovered(saved, pay)

    assert decided == {0: "error"}
    finish(turn, pay)
    (text,) = told(turn)
    assert text.startswith(f"{LOST}; it cannot run again: its arguments no longer fit (")
    assert pay.runs == []


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_tool_that_cannot_say_whether_they_fit(policy: dict[str, Any]) -> None:
    class Broken(Pay):
        def argument_faults(self, args: dict[str, Any]) -> list[str]:
            raise RuntimeError("no")

    turn, decided = recovered(lost(Pay(**policy)), Broken(**policy))
    assert decided == {0: "error"}
    assert "could not be checked" in str(turn.calls[0].result)


@pytest.mark.parametrize("policy", POLICIES[1:])
@pytest.mark.parametrize("asks_itself", [True, False])
def test_a_yes_that_has_expired_is_not_carried_out(
    policy: dict[str, Any], asks_itself: bool
) -> None:
    clock = VirtualClock()
    until = clock.now() + timedelta(seconds=60)

    class Asks(Pay):
        def work(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            if ctx.answer is None:
                return ToolResult.pending(Request("approval", "Pay?", expires_at=until))
            return ToolResult.ok("paid")

    pay = Asks(**policy)
    host = KeepingHost(lambda request: Answer(request.id, True))
    saved = lost_in(host, asks_for(("pay", {"amount": 5})), pay, clock=clock)
    turn, decided = recovered(saved, pay, clock=clock)
    assert list(decided.values()) != ["error"]
    request = turn.calls[0].request
    assert request is not None
    assert request.expires_at == until

    clock.advance(60)
    turn, decided = recovered(saved, pay, clock=clock)
    assert decided == {0: "error"}
    finish(turn, pay, clock=clock)
    assert told(turn) == [f"{LOST}; it is not run again, for what allowed it has expired"]


# -- what a policy may be ------------------------------------------------------------------


def test_both_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="would ask nobody"):
        tool(retry_safe=True, on_unknown="ask")(lambda: None)
    with pytest.raises(ConfigError, match=r"tool 'pay': .*would ask nobody"):
        require_tool(Pay(retry_safe=True, on_unknown="ask"))


@pytest.mark.parametrize(
    "wrong", [{"retry_safe": 1}, {"on_unknown": "retry"}, {"on_unknown": []}]
)
def test_a_wrong_policy_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        tool(**wrong)(lambda: None)


class Unreadable(Pay):
    @property
    def retry_safe(self) -> bool:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        (Pay(), "error"),
        (Pay(retry_safe=1), "error"),
        (Pay(retry_safe=True), "retry"),
        (Pay(on_unknown="ask"), "ask"),
        (Pay(on_unknown="other"), "error"),
        (Unreadable(), "error"),
        (tool(lambda: None, name="f"), "error"),
        (tool(lambda: None, name="f", retry_safe=True), "retry"),
        (tool(lambda: None, name="f", on_unknown="ask"), "ask"),
        (relay_tool("f", "F", OBJECT), "retry"),
    ],
)
def test_the_policy_is_read_off_the_tool(given: Tool, policy: str) -> None:
    assert policy_of(require_tool(given)) == policy


def test_a_method_keeps_its_policy() -> None:
    class Desk:
        @tool(retry_safe=True)
        def look(self) -> str:
            """Look."""
            return "seen"

    assert policy_of(Desk().look) == "retry"


# -- the rest of the turn ------------------------------------------------------------------


def test_only_what_was_in_flight_is_decided_on() -> None:
    saved = Checkpoint(
        "r",
        0,
        ({"role": "user", "content": "go"}, {"role": "assistant", "content": None}),
        (
            CallState("c0", "pay", "{}", "done", 1, result=ToolResult.ok("paid")),
            CallState("c1", "pay", "{}"),
            CallState("c2", "pay", "{}", "open", 1, request=Request("q", "?", id="q2")),
            CallState("c3", "task", "{}", "started", 1, child="root/a.1/b.1"),
            CallState("c4", "task", "{}", "stalled", 1, child="root/a.1/b.2"),
            CallState("c5", "pay", "{}", "started", 1),
        ),
        1,
    )
    turn, decided = recovered(saved, Pay())

    assert decided == {3: "reattach", 5: "error"}
    assert tuple(turn.calls[:3]) == saved.calls[:3]
    assert turn.calls[4] == saved.calls[4]
    assert turn.calls[3] == attrs.evolve(saved.calls[3], status="ready")


def test_without_recovery_they_are_settled_as_before() -> None:
    (call,) = Turn.restore(lost(Pay(retry_safe=True))).calls
    assert call.result == ToolResult.error(LOST)


def test_a_question_about_a_lost_call_is_never_settled_as_not_executed() -> None:
    turn, _ = parked_on_unknown(Pay(on_unknown="ask"))
    (call,) = turn.calls
    for settled in (settle_call(call, "interrupted"), superseded_call(call)):
        assert settled.result == ToolResult.error(LOST)
        assert (settled.by.before, settled.request) == (None, None)


def test_questions_that_were_open_are_offered_once_more() -> None:
    pay = Pay(on_unknown="ask")
    other = Pay("other", work=lambda args, ctx: ToolResult.ok(f"told {ctx.answer.data}"))
    asked: list[str] = []

    def wait_for(request: Request) -> Answer:
        asked.append(request.prompt)
        return Answer(request.id, True, "it")

    saved = Checkpoint(
        "r",
        0,
        ({"role": "user", "content": "go"}, {"role": "assistant", "content": None}),
        (
            CallState("c0", "other", "{}", "open", 1, request=Request("q", "Which?", id="q")),
            CallState("c1", "pay", '{"amount":5}', "started", 1),
        ),
        1,
    )
    turn, _ = recovered(saved, pay, other)
    assert finish(turn, pay, other, host=KeepingHost(wait_for)) == Finished("done")

    # Without executing it first: that was done by the process that is gone.
    assert asked == ["Which?", f"pay(amount=5): {LOST}. Run it again?"]
    assert (len(other.runs), other.runs[0][1].attempt) == (1, 2)
    assert told(turn) == ["told it", "paid 5"]


def test_without_one_they_stay_open_and_are_told() -> None:
    saved = Checkpoint(
        "r",
        0,
        ({"role": "user", "content": "go"}, {"role": "assistant", "content": None}),
        (CallState("c0", "pay", "{}", "open", 1, request=Request("q", "Which?", id="q")),),
        1,
    )
    pay = Pay()
    turn, _ = recovered(saved, pay)
    assert finish(turn, pay) == Parked()
    assert (tuple(turn.calls), pay.runs) == (saved.calls, [])


def test_relayed_calls_that_were_left_alone_wait_together() -> None:
    find = relay_tool("find", "Find", OBJECT)
    host = KeepingHost()
    with kit_for(host, asks_for(("find", {"q": 1}), ("find", {"q": 2})), find) as kit:
        run(fresh(), kit)
    left = next(one for one in host.stored if [c.status for c in one.calls] == ["open"] * 2)
    assert len({call.request.id for call in left.calls if call.request}) == 2

    turn, _ = recovered(left, find)
    assert finish(turn, find) == Parked()
    first, second = (call.request for call in turn.calls)
    assert first is not None
    assert first == second
    assert [one["id"] for one in (first.data or {})["calls"]] == [c.id for c in left.calls]
