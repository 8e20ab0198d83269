"""The loop: ask the model, run its calls, until it is done, parked or over a limit."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import attrs

from toolnexus.approvals import ApprovalPolicy, gate_of
from toolnexus.cancel import CancelToken
from toolnexus.client.asking import Model, RequestRefused, Terms
from toolnexus.client.calls import results_known, run_calls
from toolnexus.client.hooks import HookChain
from toolnexus.client.limits import OutputLimits
from toolnexus.client.metrics import Meter
from toolnexus.client.tracing import NO_SPAN, Span
from toolnexus.clock import Clock
from toolnexus.codec import JsonValue
from toolnexus.events import Event, TextDelta, ToolCallStarted
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import Tool, ToolResult
from toolnexus.vault import Vault
from toolnexus.wire.base import ModelReply, ModelRequest
from toolnexus.workers import WorkerPool

if TYPE_CHECKING:
    from toolnexus.client.options import WaitFor
    from toolnexus.client.turn import Turn

T = TypeVar("T")

CUT_OFF = "not executed: the reply was cut off by the length limit, so its arguments may be too"


@attrs.frozen
class Finished:
    """The model gave its final text."""

    text: str


@attrs.frozen
class Parked:
    """Every call is done or waits for an answer, and at least one waits."""


@attrs.frozen
class OverLimit:
    """A limit does not allow the next model call; `limit` is its name."""

    limit: str


@attrs.frozen
class Stalled:
    """A delegated call cannot go on for want of a provider or of budget; a retry can."""


Outcome: TypeAlias = Finished | Parked | OverLimit | Stalled


class Host(Protocol):
    """What the loop asks of whoever runs it: a bare client, or a handle of a runtime."""

    @property
    def handle_id(self) -> str | None:
        """The handle's id; None outside a runtime."""

    def due_calls(self, turn: Turn, tools: Mapping[str, Tool]) -> list[int]:
        """Return the positions of the calls to execute now, which will go on side by side."""

    def wants_text(self) -> bool:
        """Say whether anybody wants the next reply's text as it comes."""

    def limit_before_request(self, turn: Turn) -> str | None:
        """Name the limit that forbids one more model call; None where it may go ahead."""

    def count_reply(self, reply: ModelReply) -> None:
        """Add a reply's usage to the books."""

    def reserve_call(self, turn: Turn, index: int) -> str | None:
        """Book the call at `index`, or name the limit that forbids it."""

    def surface(self, request: Request) -> Request:
        """Return a tool's request as the outside will know it, its id unique."""

    def is_granted(self, tool: str, args: Mapping[str, JsonValue]) -> bool:
        """Say whether a person has let such calls be executed once and for all."""

    def note_expired(self, request: Request) -> None:
        """Note that an answer was there in time, and its execution was not."""

    def note_stopped(self, request: Request) -> None:
        """Note that a gate has stopped a call that a person had approved."""

    def ask_inline(self, request: Request) -> WaitFor | None:
        """Return who decides `request` now, having noted that; None where nobody does.

        Raises:
            Cancelled: The run was stopped.
        """

    def answered_inline(self, turn: Turn, index: int, request: Request, answer: Answer) -> None:
        """Give the call at `index` what was decided of its request, and note that.

        Raises:
            Cancelled: The run was stopped meanwhile; the answer counts for nothing.
        """

    def entering(self, turn: Turn, index: int) -> None:
        """Note that the call at `index` is about to be in its tool.

        Called on the thread that will execute the tool. One that runs a child is never told of:
        it can be reattached to.

        Raises:
            StoreError: It could not be noted; the tool is not executed, and the run ends.
        """

    def kept(self, turn: Turn, *, is_followed: bool = False) -> None:
        """Note how far the turn has come.

        Called when a reply is in, and when a call has ended, parked, stalled or done a step of
        `ctx.once`: on the thread that did it, on several at a time, before anything follows.

        Args:
            turn: The turn.
            is_followed: Whether there is something to be noted at once: a call that enters its
                tool, or that the run halts or ends. It may then be noted together with that.

        Raises:
            StoreError: It could not be noted; the run ends.
        """

    def delegate_for(self, turn: Turn, index: int) -> Callable[[Any, str], ToolResult] | None:
        """Return how the call at `index` runs another agent; None outside a runtime."""


@attrs.frozen(kw_only=True)
class Kit:
    """What a run works with.

    Attributes:
        model: Who is asked.
        model_name: The model's name.
        max_tokens: Longest reply in tokens; None leaves it to the provider.
        system: The system prompt; "" for none.
        tools: By name, in the order the model sees them.
        hooks: The host's hooks.
        limits: What results are cut down to.
        meter: Where metric events go.
        pool: Whose workers help with parallel calls.
        clock: Where time is read.
        cancel: Ends the run, also in mid-request.
        max_turns: LLM calls in one turn.
        host: Who runs the loop.
        vault: Where secret fields of answers are.
        approval_policy: Decides on each call before it is executed; None leaves it to the tool.
        agent: The agent's name; None outside a runtime.
        span: The run's span; those of its model calls and tools are below it.
        conversation: Key of the conversation that the run holds; None for none.
    """

    model: Model
    model_name: str
    max_tokens: int | None
    system: str
    tools: Mapping[str, Tool]
    hooks: HookChain
    limits: OutputLimits
    meter: Meter
    pool: WorkerPool
    clock: Clock
    cancel: CancelToken
    max_turns: int
    host: Host
    vault: Vault
    approval_policy: ApprovalPolicy | None = None
    agent: str | None = None
    span: Span = NO_SPAN
    conversation: object = None


def run_loop(turn: Turn, kit: Kit) -> Generator[Event, None, Outcome]:
    """Go on with `turn` from where it is, until it is done, parked, stalled or over a limit.

    A generator of what happens, whose return value is the outcome; closing it stops the run at
    once. Text is told where the host wants it, in pieces as it comes.

    Raises:
        Cancelled: The token was thrown or its deadline has passed.
        LlmError: The model could not be asked; the turn is as it was before that request.
        StoreError: The host could not note what was done.
    """
    while True:
        kit.cancel.raise_if_cancelled()
        if turn.calls:
            halted = yield from _run_calls_to_rest(turn, kit)
            if halted is not None:
                return halted
        final = turn.final_text()
        if final is not None:
            return Finished(final)
        if turn.turns >= kit.max_turns:
            return OverLimit("maxTurns")
        limit = kit.host.limit_before_request(turn)
        if limit is not None:
            return OverLimit(limit)
        try:
            reply = yield from _ask(turn, kit)
        except RequestRefused as refused:
            return OverLimit(refused.limit)
        if not reply.calls:
            return Finished(reply.text)
        for call in reply.calls:
            yield ToolCallStarted(call)
        yield from results_known(turn)


def _run_calls_to_rest(turn: Turn, kit: Kit) -> Generator[Event, None, Outcome | None]:
    """Execute the calls of the last reply; return what halts the run, if anything does."""
    yield from run_calls(turn, kit)
    kit.cancel.raise_if_cancelled()
    left = {call.status for call in turn.calls} - {"done"}
    if "started" in left:
        raise AssertionError("a call was left in flight")
    if left:
        return Parked() if "open" in left else Stalled()
    turn.close_calls()
    return None


def drive(steps: Generator[Event, None, T], emit: Callable[[Event], object] | None = None) -> T:
    """Run a generator to its end and return its value, its events handed to `emit`."""
    try:
        while True:
            event = next(steps)
            if emit is not None:
                emit(event)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        steps.close()


def _ask(turn: Turn, kit: Kit) -> Generator[Event, None, ModelReply]:
    request = _request(turn, kit)
    terms = Terms(
        meter=kit.meter,
        cancel=kit.cancel,
        allow=lambda: kit.host.limit_before_request(turn),
        span=kit.span,
    )
    streams = kit.host.wants_text()
    if streams:
        reply = yield from kit.model.stream(request, terms)
    else:
        reply = kit.model.ask(request, terms)
    # Before the hooks: whatever they do, the reply was paid for and is not lost. In one step,
    # so that nobody sees the one without the other.
    with turn.lock:
        kit.host.count_reply(reply)
        turn.add_reply(reply)
        if reply.truncated:
            for index in range(len(reply.calls)):
                turn.finish(index, ToolResult.error(CUT_OFF))
    kit.host.kept(turn, is_followed=_is_followed(reply, kit))
    kit.hooks.tell_reply(request, reply)
    if reply.text and not streams:
        # For a stream that has joined meanwhile.
        yield TextDelta(reply.text)
    return reply


def _is_followed(reply: ModelReply, kit: Kit) -> bool:
    """Whether the next thing is that a call enters its tool, or that the run ends.

    Not where code of others is in between, which may take its time.
    """
    hooks = kit.hooks
    if reply.truncated or hooks.after_llm or hooks.before_tool or kit.approval_policy:
        return False
    for call in reply.calls:
        tool = kit.tools.get(call.name)
        if tool is not None and gate_of(tool) is not None:
            return False
    return True


def _request(turn: Turn, kit: Kit) -> ModelRequest:
    """Return the next request, as the before-hooks leave it."""
    request = ModelRequest(
        model=kit.model_name,
        messages=tuple(turn.messages),
        tools=tuple(kit.tools.values()),
        system=kit.system,
        origin=kit.model.origin(kit.model_name),
        max_tokens=kit.max_tokens,
    )
    request = kit.hooks.request_to_send(request)
    if request.model != kit.model_name:
        request = attrs.evolve(request, origin=kit.model.origin(request.model))
    return request
