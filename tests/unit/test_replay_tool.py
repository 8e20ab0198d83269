"""`replay_tool` takes a tool through all its questions, and tells what it did twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import LIMIT
from toolnexus import (
    Answer,
    ConfigError,
    InvalidAnswer,
    Request,
    RequestExpired,
    ToolContext,
    ToolResult,
    WireFormatError,
    tool,
)
from toolnexus.testing import Replay, VirtualClock, replay_tool

PASSWORD: dict[str, Any] = {
    "type": "object",
    "properties": {"password": {"type": "string", "secret": True}},
}


@pytest.fixture
def done() -> list[Any]:
    """Where the tools of a test note what they do."""
    return []


def prompts(replay: Replay) -> list[str]:
    return [question.prompt for question in replay.questions]


# -- what was done twice -----------------------------------------------------------------------


def test_what_stands_before_a_question_is_reported(done: list[Any]) -> None:
    @tool
    def order(item: str, ctx: ToolContext) -> str:
        done.append({"create": item})
        ctx.ask("approval", f"Charge for {item}?")
        done.append({"charge": item})
        return "ordered"

    replay = replay_tool(order, {"item": "tea"}, [True], effects=done)
    assert replay.result == ToolResult.ok("ordered")
    assert replay.repeated == ({"create": "tea"},)
    assert replay.effects == (
        ({"create": "tea"},),
        ({"create": "tea"}, {"charge": "tea"}),
    )
    assert prompts(replay) == ["Charge for tea?"]
    assert replay.attempts == 2


def test_a_question_that_is_returned_is_replayed_as_well(done: list[Any]) -> None:
    @tool
    def order(ctx: ToolContext) -> ToolResult:
        done.append("create")
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "Order?"))
        return ToolResult.ok(f"by {ctx.answer.data}")

    replay = replay_tool(order, {}, ["Ann"], effects=done)
    assert replay.repeated == ("create",)
    assert replay.result == ToolResult.ok("by Ann")


def test_a_step_that_is_done_once_is_not_reported(done: list[Any]) -> None:
    @tool
    def order(ctx: ToolContext) -> str:
        def create() -> int:
            done.append("create")
            return 7

        number = ctx.once("create", create)
        ctx.ask("approval", "Charge?")
        ctx.once("charge", lambda: done.append("charge"))
        ctx.ask("question", "How was it?")
        return f"order {number}"

    replay = replay_tool(order, {}, [True, "good"], effects=done)
    assert replay.repeated == ()
    assert replay.effects == (("create",), ("charge",), ())
    assert replay.result == ToolResult.ok("order 7")
    assert replay.attempts == 3


def test_a_service_that_knows_the_key_of_the_call_is_not_reported() -> None:
    orders: dict[str, str] = {}

    @tool
    def order(item: str, ctx: ToolContext) -> str:
        orders.setdefault(ctx.idempotency_key, item)
        ctx.ask("approval", "Sure?")
        return "ordered"

    replay = replay_tool(order, {"item": "tea"}, [True], effects=lambda: list(orders.values()))
    assert replay.repeated == ()
    assert replay.effects == (("tea",), ())


def test_a_step_between_two_questions_is_reported(done: list[Any]) -> None:
    @tool
    def book(ctx: ToolContext) -> str:
        day = ctx.ask("question", "Which day?").data
        done.append(["hold", day])
        ctx.ask("approval", "Book it?")
        done.append(["book", day])
        return "booked"

    replay = replay_tool(book, {}, ["Monday", True], effects=done)
    assert replay.repeated == (["hold", "Monday"],)
    hold, booking = ["hold", "Monday"], ["book", "Monday"]
    assert replay.effects == ((), (hold,), (hold, booking))


def test_an_effect_of_three_executions_is_reported_once_and_in_the_first_order(
    done: list[Any],
) -> None:
    @tool
    def book(ctx: ToolContext) -> str:
        done.extend(["b", "a", "b"])
        ctx.ask("question", "1?")
        ctx.ask("question", "2?")
        return "booked"

    assert replay_tool(book, {}, [1, 2], effects=done).repeated == ("b", "a")


def test_what_one_execution_does_twice_is_its_own_matter(done: list[Any]) -> None:
    @tool
    def ring(ctx: ToolContext) -> str:
        ctx.ask("approval", "Ring?")
        done.extend(["ring", "ring"])
        return "rung"

    replay = replay_tool(ring, {}, [True], effects=done)
    assert replay.effects == ((), ("ring", "ring"))
    assert replay.repeated == ()


def test_effects_of_before_are_none_of_the_tools(done: list[Any]) -> None:
    @tool
    def order() -> str:
        done.append("order")
        return "ordered"

    done.append("order")
    replay = replay_tool(order, {}, effects=done)
    assert replay.effects == (("order",),)
    assert replay.repeated == ()
    assert (replay.questions, replay.attempts) == ((), 1)


def test_effects_may_be_the_rows_of_a_table_in_an_order_of_its_own() -> None:
    rows = {"m"}

    @tool
    def insert(ctx: ToolContext) -> str:
        rows.add("z" if ctx.attempt == 1 else "a")
        ctx.ask("question", "More?")
        return "inserted"

    replay = replay_tool(insert, {}, [True], effects=lambda: sorted(rows))
    assert replay.effects == (("z",), ("a",))


def test_whoever_gives_no_effects_is_not_told_that_none_was_repeated() -> None:
    @tool
    def order(ctx: ToolContext) -> str:
        ctx.ask("approval", "Order?")
        return "ordered"

    replay = replay_tool(order, {}, [True])
    assert replay.effects == ()
    with pytest.raises(ConfigError, match="give it effects="):
        replay.repeated  # noqa: B018 - it raises
    assert replay.report() == (
        "order: 2 executions, 1 question\n1. asked approval 'Order?'\n2. gave 'ordered'"
    )


def test_a_report_tells_what_happened_in_which_order(done: list[Any]) -> None:
    @tool
    def order(ctx: ToolContext) -> str:
        done.append("create")
        ctx.ask("approval", "Order?")
        done.append("x" * 1000)
        raise ValueError("sold out")

    report = replay_tool(order, {}, [True], effects=done).report()
    first, second, third, last = report.splitlines()
    assert first == "order: 2 executions, 1 question"
    assert second == "1. did 'create'; asked approval 'Order?'"
    assert third.startswith("2. did 'create'; did 'xxx")
    assert third.endswith("xxx…; failed 'sold out'")
    assert len(third) < 250
    assert last == "repeated: 'create'"


def test_a_report_of_a_good_tool_says_so(done: list[Any]) -> None:
    @tool
    def look() -> str:
        return "seen"

    report = replay_tool(look, {}, effects=done).report()
    assert report == "look: 1 execution, 0 questions\n1. gave 'seen'\nrepeated: nothing"


# -- answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["yes", 0, 0.0, "", [], {}, {"ok": False}, [True]])
def test_a_value_is_said_with_a_yes(value: Any) -> None:
    heard: list[Answer] = []

    @tool
    def ask(ctx: ToolContext) -> str:
        heard.append(ctx.ask("question", "?"))
        return "heard"

    replay_tool(ask, {}, [value])
    assert [(one.ok, one.data) for one in heard] == [(True, value)]


def test_an_answer_is_given_as_it_is_but_for_its_id(done: list[Any]) -> None:
    @tool
    def pay(ctx: ToolContext) -> str:
        done.append(ctx.ask("question", "How much?", on_decline="return"))
        return "paid"

    said = Answer("any id", ok=False, data=5, reason="too dear")
    replay = replay_tool(pay, {}, [said])
    assert done == [Answer(replay.questions[0].id, ok=False, data=5, reason="too dear")]


@pytest.mark.parametrize(
    ("said", "ok"),
    [
        (lambda request: request.prompt == "Pay?", True),
        (lambda request: Answer(request.id, ok=False), False),
        (lambda request: {"by": request.kind}, True),
    ],
)
def test_a_function_answers_the_question_that_it_is_shown(
    said: Callable[[Request], Any], ok: bool
) -> None:
    @tool
    def pay(ctx: ToolContext) -> str:
        ctx.ask("approval", "Pay?")
        return "paid"

    assert replay_tool(pay, {}, [said]).result.is_error is not ok


def test_a_function_cannot_change_the_question_that_was_asked() -> None:
    @tool
    def pay(ctx: ToolContext) -> str:
        return f"{ctx.ask('question', 'Pay?', schema={'type': 'integer'}).data}"

    def meddle(request: Request) -> int:
        schema: Any = request.schema
        schema["type"] = "string"
        return 5

    assert replay_tool(pay, {}, [meddle]).result == ToolResult.ok("5")


def test_a_no_ends_the_tool_where_it_asked(done: list[Any]) -> None:
    @tool
    def pay(ctx: ToolContext) -> str:
        ctx.ask("approval", "Pay?")
        done.append("paid")
        return "paid"

    replay = replay_tool(pay, {}, [False], effects=done)
    assert replay.result == ToolResult.error("declined/expired: Pay?")
    assert replay.attempts == 2
    assert replay.effects == ((), ())


def test_a_no_to_a_returned_question_executes_nothing_more(done: list[Any]) -> None:
    @tool
    def pay(ctx: ToolContext) -> ToolResult:
        done.append("looked")
        return ToolResult.pending(Request("approval", "Pay?"))

    replay = replay_tool(pay, {}, [False], effects=done)
    assert replay.result.is_error
    assert (replay.attempts, replay.effects) == (1, (("looked",), ()))


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (0, "0 answers given, and question 1 is question 'Name?'"),
        (1, "1 answer given, and question 2 is input 'Age?'"),
    ],
)
def test_too_few_answers_name_the_question(given: int, missing: str) -> None:
    @tool
    def register(ctx: ToolContext) -> str:
        ctx.ask("question", "Name?")
        ctx.ask("input", "Age?")
        return "registered"

    with pytest.raises(AssertionError) as raised:
        replay_tool(register, {}, ["Ann"][:given])
    assert str(raised.value) == f"register: {missing}"


def test_too_many_answers_are_told_with_what_happened() -> None:
    @tool
    def register(ctx: ToolContext) -> str:
        ctx.ask("question", "Name?")
        raise ValueError("no such name")

    with pytest.raises(AssertionError) as raised:
        replay_tool(register, {}, ["Ann", 41, True])
    assert str(raised.value).startswith(
        "2 answers unused\nregister: 2 executions, 1 question\n"
    )
    assert "no such name" in str(raised.value)


@pytest.mark.parametrize("said", [None, lambda request: None])
def test_none_is_no_answer(said: object, done: list[Any]) -> None:
    @tool
    def pay(ctx: ToolContext) -> str:
        ctx.ask("approval", "Pay?")
        done.append("paid")
        return "paid"

    with pytest.raises(ConfigError, match="None is no answer to approval 'Pay\\?'"):
        replay_tool(pay, {}, [said])
    assert not done


def test_an_answer_that_does_not_fit_is_refused_as_anywhere(done: list[Any]) -> None:
    @tool
    def pay(ctx: ToolContext) -> str:
        done.append("executed")
        ctx.ask("question", "How much?", schema={"type": "integer", "maximum": 9})
        return "paid"

    with pytest.raises(InvalidAnswer, match="must fit"):
        replay_tool(pay, {}, [10])
    assert done == ["executed"]


# -- what is asked -----------------------------------------------------------------------------


def test_questions_that_differ_on_the_retry_are_an_error_result(done: list[Any]) -> None:
    @tool
    def pay(ctx: ToolContext) -> str:
        ctx.ask("approval", f"Pay on try {ctx.attempt}?")
        done.append("paid")
        return "paid"

    replay = replay_tool(pay, {}, [True], effects=done)
    assert replay.result.is_error
    assert "'Pay on try 1?' and is 'approval' 'Pay on try 2?'" in replay.result.output
    assert prompts(replay) == ["Pay on try 1?"]
    assert done == []


def test_a_gate_is_a_question_and_may_change_the_arguments(done: list[Any]) -> None:
    @tool(needs_approval="Refund {amount}?")
    def refund(amount: int, ctx: ToolContext) -> str:
        done.append(amount)
        ctx.ask("approval", "Really?")
        return "refunded"

    replay = replay_tool(refund, {"amount": 50}, [{"args": {"amount": 5}}, True], effects=done)
    assert prompts(replay) == ["Refund 50?", "Really?"]
    assert replay.result.output.startswith("refunded")
    assert '{"amount":5}' in replay.result.output
    assert replay.attempts == 2
    assert replay.effects == ((), (5,), (5,))
    assert replay.repeated == (5,)


def test_a_gate_that_is_declined_executes_nothing(done: list[Any]) -> None:
    @tool(needs_approval=True)
    def refund(amount: int) -> str:
        done.append(amount)
        return "refunded"

    replay = replay_tool(refund, {"amount": 50}, [False], effects=done)
    assert replay.result.is_error
    assert (replay.attempts, replay.effects, done) == (0, ((), ()), [])


def test_what_a_gate_does_each_time_it_is_passed_is_reported(done: list[Any]) -> None:
    def noted(args: dict[str, Any], ctx: ToolContext) -> bool:
        done.append("gate")
        return True

    @tool(needs_approval=noted)
    def refund() -> str:
        return "refunded"

    replay = replay_tool(refund, {}, [True], effects=done)
    assert replay.repeated == ("gate",)
    assert replay.attempts == 1


def test_the_gates_of_the_host_ask_too(done: list[Any]) -> None:
    class Careful:
        def before_tool(self, call: object, args: object, ctx: ToolContext) -> ToolResult:
            return ToolResult.pending(Request("approval", f"May {args} pass?"))

    @tool
    def refund(amount: int) -> str:
        done.append(amount)
        return "refunded"

    replay = replay_tool(
        refund,
        {"amount": 5},
        [True, True],
        effects=done,
        hooks=Careful(),
        approval_policy=lambda call: "ask",
    )
    assert prompts(replay) == ["May {'amount': 5} pass?", "Run refund(amount=5)?"]
    assert replay.effects == ((), (), (5,))
    assert replay.repeated == ()


def test_a_tool_that_is_no_function_keeps_what_it_says_of_itself(done: list[Any]) -> None:
    class Book:
        name, description, source = "book", "Book", "custom"
        input_schema: Mapping[str, Any] = {"type": "object", "properties": {}}
        handles_decline = True
        needs_approval = False

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            if ctx.answer is None:
                return ToolResult.pending(Request("approval", "Book?"))
            done.append(ctx.answer.ok)
            return ToolResult.ok("given back")

    replay = replay_tool(Book(), {}, [False], effects=done)
    assert replay.result == ToolResult.ok("given back")
    assert (replay.attempts, done) == (2, [False])


def test_a_question_can_come_to_its_end_on_a_virtual_clock(virtual_clock: VirtualClock) -> None:
    @tool
    def pay(ctx: ToolContext) -> str:
        ctx.ask("approval", "Pay?", expires_in=timedelta(minutes=1))
        return "paid"

    def after(seconds: float, *, ok: bool) -> Callable[[Request], bool]:
        def say(request: Request) -> bool:
            virtual_clock.advance(seconds)
            return ok

        return say

    in_time = replay_tool(pay, {}, [after(59, ok=True)], clock=virtual_clock)
    assert in_time.result == ToolResult.ok("paid")
    with pytest.raises(RequestExpired):
        replay_tool(pay, {}, [after(60, ok=True)], clock=virtual_clock)
    assert replay_tool(pay, {}, [after(60, ok=False)], clock=virtual_clock).result.is_error


# -- processes ---------------------------------------------------------------------------------


@tool
def sign_in(ctx: ToolContext) -> str:
    password = ctx.ask("input", "Log in.", schema=PASSWORD).secret("password")
    ctx.ask("approval", "Go on?")
    return f"in, by {len(str(password))} characters"


def test_the_process_that_was_told_a_secret_goes_on_to_the_end() -> None:
    replay = replay_tool(sign_in, {}, [{"password": "hunter22"}, True])
    assert replay.result == ToolResult.ok("in, by 8 characters")
    assert prompts(replay) == ["Log in.", "Go on?"]
    assert "hunter22" not in repr(replay) + replay.report()


def test_a_secret_is_asked_again_where_every_answer_comes_in_another_process() -> None:
    said = [{"password": "hunter22"}, True]
    with pytest.raises(AssertionError, match="question 3 is input 'Log in"):
        replay_tool(sign_in, {}, said, keeps_secrets=False)


def test_a_secret_that_is_asked_last_needs_no_process_to_live_on() -> None:
    @tool
    def sign_in_last(ctx: ToolContext) -> str:
        ctx.ask("approval", "Go on?")
        password = ctx.ask("input", "Log in.", schema=PASSWORD).secret("password")
        return f"in, by {len(str(password))} characters"

    replay = replay_tool(sign_in_last, {}, [True, {"password": "x" * 8}], keeps_secrets=False)
    assert replay.result == ToolResult.ok("in, by 8 characters")


def test_nothing_but_json_reaches_the_next_process(done: list[Any]) -> None:
    @tool
    def keep(ctx: ToolContext) -> str:
        pair = ctx.once("pair", lambda: [1, {"two": 2}])
        pair.append("mine alone")
        done.append((pair, ctx.idempotency_key))
        ctx.ask("question", "?")
        return "kept"

    replay_tool(keep, {}, [True])
    (first, key), (second, same_key) = done
    assert first == second
    assert first is not second
    assert key == same_key


def test_a_tool_may_ask_from_a_thread_of_its_own() -> None:
    @tool
    def ask(ctx: ToolContext) -> str:
        heard: list[Any] = []

        def wait() -> None:
            try:
                heard.append(ctx.ask("question", "?").data)
            except BaseException as error:
                heard.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(LIMIT)
        return str(heard)

    assert replay_tool(ask, {}, [7]).result == ToolResult.ok("[7]")


# -- what makes no sense -----------------------------------------------------------------------


def test_arguments_that_do_not_fit_are_the_models_error(done: list[Any]) -> None:
    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        done.append(amount)
        return "paid"

    replay = replay_tool(pay, {"amount": "much"}, effects=done)
    assert replay.result.is_error
    assert (replay.questions, replay.attempts, done) == ((), 0, [])


def test_a_plain_function_is_no_tool() -> None:
    def pay() -> str:
        return "paid"

    not_a_tool: Any = pay
    with pytest.raises(ConfigError, match="decorate the function"):
        replay_tool(not_a_tool, {})


@pytest.mark.parametrize("answers", ["yes", {"ok": True}, 5, None, b"yes"])
def test_answers_are_a_list(answers: Any) -> None:
    @tool
    def pay(ctx: ToolContext) -> str:
        ctx.ask("approval", "Pay?")
        return "paid"

    with pytest.raises(ConfigError, match="answers must be a list"):
        replay_tool(pay, {}, answers)


def test_arguments_are_json() -> None:
    @tool
    def pay(amount: int) -> str:
        return "paid"

    with pytest.raises(WireFormatError, match="arguments"):
        replay_tool(pay, {"amount": object()})
