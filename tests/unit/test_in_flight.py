"""What a host is told of a run on its way: in flight is what is in its tool, and no more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.conftest import LIMIT
from tests.keeping import KeepingHost, asks_for, fresh, kit_for, run
from toolnexus import (
    Answer,
    CallState,
    Request,
    StoreError,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.client.loop import Finished, Parked
from toolnexus.client.turn import Turn
from toolnexus.errors import LeaseLost
from toolnexus.testing import VirtualClock


class Watch:
    """A hook that looks at what a store would have while it looks at a call."""

    def __init__(self, host: KeepingHost, turn: Turn) -> None:
        self.seen: list[CallState] = []
        self._host, self._turn = host, turn

    def before_tool(self, call: ToolCall, args: dict[str, Any], ctx: ToolContext) -> Any:
        self.seen += self._turn.stored_calls()
        self._host.steps.append("hook")
        return {**args, "seen": True}

    def after_tool(self, call: ToolCall, args: dict[str, Any], result: ToolResult) -> None:
        self.seen += self._turn.stored_calls()


def test_in_flight_is_what_is_in_its_tool() -> None:
    host, turn = KeepingHost(), fresh()
    watch = Watch(host, turn)
    inside: list[CallState] = []

    class Look:
        name, description, source = "look", "Look", "custom"
        input_schema: ClassVar[Any] = {"type": "object", "properties": {}}

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            inside.extend(turn.stored_calls())
            host.steps.append("tool")
            return ToolResult.ok("seen")

    with kit_for(host, asks_for(("look", {})), Look(), hooks=watch) as kit:
        assert run(turn, kit) == Finished("done")

    assert host.steps == ["kept", "hook", "entering 0", "tool", "kept", "kept"]
    gate, after = watch.seen
    assert gate == CallState(gate.id, "look", "{}")
    # With the arguments that it is executed with, for these are what may have taken effect.
    started = CallState(gate.id, "look", '{"seen":true}', "started", 1)
    assert inside == [started]
    assert after == started
    ready, entered, ended, final = (one.calls for one in host.stored)
    assert (ready, entered) == ((gate,), (started,))
    assert [(one.status, one.result) for one in ended] == [("done", ToolResult("seen"))]
    assert final == ()


def test_a_reply_and_what_it_cost_are_kept_together() -> None:
    host, turn = KeepingHost(), fresh()
    with kit_for(host, asks_for(("look", {})), tool(lambda: None, name="look")) as kit:
        run(turn, kit)

    assert [one.turns for one in host.stored] == [1, 1, 1, 2]
    assert host.stored[-1].messages == tuple(turn.messages)


def test_an_approved_call_has_its_answer_until_it_is_in_its_tool() -> None:
    host, turn = KeepingHost(), fresh()

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    with kit_for(host, asks_for(("pay", {"amount": 5})), pay) as kit:
        assert run(turn, kit) == Parked()
        (asks,) = host.calls
        assert (asks.status, asks.attempt, host.steps) == ("open", 0, ["kept", "kept"])
        assert asks.request is not None
        answer = Answer(asks.request.id, True, {"args": {"amount": 4}})
        turn.answer(0, answer)
        seen: list[CallState] = []

        def look(step: str, turn: Turn) -> bool:
            seen.extend(turn.stored_calls())
            return False

        host.fails = look
        (begun,) = turn.stored_calls()
        turn.start(0)
        turn.approve(0, "sha256:00", '{"amount":4}')
        assert turn.stored_calls() == (begun,)
        turn.open(0, asks.request, "", asks.by)
        turn.answer(0, answer)
        assert run(turn, kit) == Finished("done")

    assert begun.answer == answer
    assert (seen[0].status, seen[0].attempt, seen[0].answer) == ("started", 1, answer)
    assert (seen[0].arguments, seen[0].proposed) == ('{"amount":4}', '{"amount":5}')


def test_a_call_that_runs_a_child_is_never_in_flight() -> None:
    turn = fresh()

    def delegate(target: str, prompt: str) -> ToolResult:
        turn.attach(0, "root/a.1/b.1")
        host.kept(turn)
        return ToolResult.ok("it")

    class Ask:
        name, description, source = "ask", "Ask b", "custom"
        input_schema: ClassVar[Any] = {"type": "object", "properties": {}}

        def delegates(self, arguments: str) -> bool:
            return True

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            assert ctx.once("first", lambda: 7) == 7
            assert ctx.delegate is not None
            return ctx.delegate("b", "go")

    host = KeepingHost(delegate=delegate)
    with kit_for(host, asks_for(("ask", {})), Ask()) as kit:
        assert run(turn, kit) == Finished("done")

    assert host.steps == ["kept"] * 5
    _, step, child, _, _ = (one.calls for one in host.stored)
    assert [(one.status, one.attempt, one.once) for one in step] == [("ready", 0, {"first": 7})]
    assert [(one.status, one.child) for one in child] == [("ready", "root/a.1/b.1")]


@pytest.mark.parametrize("asks", ["gate", "tool"])
def test_a_call_with_a_child_goes_on_whatever_has_expired_since(asks: str) -> None:
    clock, turn = VirtualClock(), fresh()
    told: list[str] = []

    def delegate(target: str, prompt: str) -> ToolResult:
        turn.attach(0, "root/a.1/b.1")
        host.kept(turn)
        told.append(prompt)
        return ToolResult.ok("it")

    class Ask:
        name, description, source = "ask", "Ask b", "custom"
        input_schema: ClassVar[Any] = {"type": "object", "properties": {}}
        needs_approval = asks == "gate"

        def delegates(self, arguments: str) -> bool:
            return True

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            word = "go" if asks == "gate" else ctx.ask("question", "Word?", expires_in=60).data
            assert ctx.delegate is not None
            return ctx.delegate("b", word)

    host = KeepingHost(lambda request: Answer(request.id, True, {} if asks == "gate" else "go"))
    host._delegate = delegate
    with kit_for(host, asks_for(("ask", {})), Ask(), clock=clock) as kit:
        assert run(turn, kit) == Finished("done")
    saved = next(one for one in host.stored if one.calls and one.calls[0].child)
    (call,) = saved.calls
    assert (call.status, call.attempt, call.request, call.by.gate) == (
        "ready",
        1 if asks == "gate" else 2,
        None,
        None,
    )

    clock.advance(61)
    turn = Turn.restore(saved)
    again = KeepingHost(delegate=delegate)
    with kit_for(again, lambda body: {"text": "done"}, Ask(), clock=clock) as kit:
        assert run(turn, kit) == Finished("done")
    assert told == ["go", "go"]


def test_outside_a_runtime_it_is_in_flight_as_any_other() -> None:
    host, turn = KeepingHost(), fresh()

    class Ask:
        name, description, source = "ask", "Ask b", "custom"
        input_schema: ClassVar[Any] = {"type": "object", "properties": {}}

        def delegates(self, arguments: str) -> bool:
            return True

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            return ToolResult.ok("it")

    with kit_for(host, asks_for(("ask", {})), Ask()) as kit:
        run(turn, kit)
    assert host.steps == ["kept", "entering 0", "kept", "kept"]


# -- what cannot be kept ----------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_tool_whose_start_cannot_be_noted_is_not_executed(place: int) -> None:
    """By whichever thread: the first call runs on the run's own, the others on workers."""
    host, turn, ran = KeepingHost(), fresh(), []

    @tool
    def note(number: int) -> None:
        """Note it."""
        ran.append(number)

    host.fails = lambda step, turn: step == f"entering {place}"
    calls = [("note", {"number": number}) for number in range(3)]
    with (
        kit_for(host, asks_for(*calls), note) as kit,
        pytest.raises(StoreError, match=f"no room for entering {place}"),
    ):
        run(turn, kit)

    assert place not in ran
    assert turn.calls[place].result is None


def test_a_lost_lease_comes_out_as_such() -> None:
    host, turn = KeepingHost(), fresh()

    def lost(step: str, turn: Turn) -> bool:
        if turn.calls and turn.calls[0].status == "done":
            raise LeaseLost(("root/a.1",))
        return False

    host.fails = lost
    with (
        kit_for(host, asks_for(("look", {})), tool(lambda: None, name="look")) as kit,
        pytest.raises(LeaseLost),
    ):
        run(turn, kit)
    assert turn.turns == 1


@pytest.mark.parametrize("fails_at", [1, 3])
def test_a_reply_or_a_result_that_cannot_be_kept_ends_the_run(fails_at: int) -> None:
    host, turn, ran = KeepingHost(), fresh(), []
    host.fails = lambda step, turn: len(host.steps) == fails_at
    look = tool(lambda: ran.append(1), name="look")
    with (
        kit_for(host, asks_for(("look", {})), look) as kit,
        pytest.raises(StoreError, match="no room for kept"),
    ):
        run(turn, kit)

    assert len(ran) == (fails_at > 1)
    assert len(host.steps) == fails_at


def swallow(kinds: Any) -> Callable[[ToolContext, list[str]], None]:
    def body(ctx: ToolContext, did: list[str]) -> None:
        try:
            ctx.once("step", lambda: did.append("step"))
        except kinds:
            did.append("caught")
            ctx.ask("question", "Go on?")
            did.append("went on")

    return body


@pytest.mark.parametrize("kinds", [Exception, BaseException, (), (StoreError, OSError)])
@pytest.mark.parametrize("place", [0, 1])
def test_a_tool_cannot_go_on_after_a_step_that_was_not_kept(kinds: Any, place: int) -> None:
    host, turn = KeepingHost(), fresh()
    did: list[str] = []
    body = swallow(kinds)

    @tool
    def work(ctx: ToolContext, number: int) -> str:
        """Work."""
        if number == place:
            body(ctx, did)
        return "worked"

    host.fails = lambda step, turn: any(one.once for one in turn.calls)
    calls = [("work", {"number": number}) for number in range(2)]
    with kit_for(host, asks_for(*calls), work) as kit, pytest.raises(StoreError):
        run(turn, kit)

    assert did == (["step", "caught"] if kinds is BaseException else ["step"])
    assert turn.calls[place].status == "started"


def test_a_step_in_a_thread_of_the_tools_own_ends_the_run_too() -> None:
    host, turn, ended = KeepingHost(), fresh(), []

    @tool
    def work(ctx: ToolContext) -> str:
        """Work."""

        def step() -> None:
            try:
                ctx.once("step", lambda: 1)
            except BaseException as error:
                ended.append(type(error).__name__)

        thread = threading.Thread(target=step)
        thread.start()
        thread.join(LIMIT)
        return "worked"

    host.fails = lambda step, turn: any(one.once for one in turn.calls)
    with kit_for(host, asks_for(("work", {})), work) as kit, pytest.raises(StoreError):
        run(turn, kit)
    assert ended == ["Unwind"]


def test_a_step_is_kept_before_the_tool_goes_on() -> None:
    host, turn, seen = KeepingHost(), fresh(), []

    @tool
    def work(ctx: ToolContext) -> str:
        """Work."""
        ctx.once("one", lambda: 1)
        seen.append(dict(host.calls[0].once))
        ctx.once("one", lambda: 2)
        return "worked"

    with kit_for(host, asks_for(("work", {})), work) as kit:
        assert run(turn, kit) == Finished("done")
    assert seen == [{"one": 1}]
    # What was kept before is not kept again.
    assert host.steps == ["kept", "entering 0", "kept", "kept", "kept"]


def test_a_store_error_of_the_tools_own_is_a_result() -> None:
    host, turn = KeepingHost(), fresh()

    @tool
    def work() -> str:
        """Work."""
        raise StoreError("the tool's own disk is full")

    with kit_for(host, asks_for(("work", {})), work) as kit:
        assert run(turn, kit) == Finished("done")
    assert "disk is full" in str(turn.messages[2]["content"])


def test_what_a_wait_for_answers_is_kept_when_its_call_is_done() -> None:
    host = KeepingHost(lambda request: Answer(request.id, True))
    turn = fresh()

    class Pay:
        name, description, source = "pay", "Pay", "custom"
        input_schema: ClassVar[Any] = {"type": "object", "properties": {}}

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            return ToolResult.pending(Request("approval", "Pay?"))

    with kit_for(host, asks_for(("pay", {})), Pay()) as kit:
        assert run(turn, kit) == Finished("done")
    # It asks a second time, and that is left unresolved.
    asked, again, unresolved = host.stored[2].calls, host.stored[4].calls, host.stored[5].calls
    assert [one[0].status for one in (asked, again, unresolved)] == ["open", "open", "done"]
