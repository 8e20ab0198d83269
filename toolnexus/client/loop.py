"""The loop: ask the model, run its calls, until it is done, parked or over a limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

from toolnexus import codec
from toolnexus.cancel import CancelToken
from toolnexus.client.calls import run_calls
from toolnexus.client.hooks import HookChain
from toolnexus.client.metrics import Meter
from toolnexus.client.model import Model, RequestRefused
from toolnexus.clock import Clock
from toolnexus.errors import ConfigError
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import Tool, ToolResult
from toolnexus.wire.base import ModelReply, ModelRequest
from toolnexus.workers import WorkerPool

if TYPE_CHECKING:
    from toolnexus.client.options import WaitFor
    from toolnexus.client.turn import Turn

logger = logging.getLogger(__name__)

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

    def limit_before_request(self, turn: Turn) -> str | None:
        """Name the limit that forbids one more model call; None where it may go ahead."""

    def count_reply(self, reply: ModelReply) -> None:
        """Add a reply's usage to the books."""

    def reserve_call(self) -> str | None:
        """Book one tool call, or name the limit that forbids it."""

    def surface(self, request: Request) -> Request:
        """Return a tool's request as the outside will know it, its id unique."""

    def ask_inline(self, request: Request) -> WaitFor | None:
        """Return who decides `request` now, having noted that; None where nobody does.

        Raises:
            Cancelled: The run was stopped.
        """

    def answered_inline(self, request: Request, answer: Answer) -> None:
        """Note what it was decided.

        Raises:
            Cancelled: The run was stopped meanwhile; the answer counts for nothing.
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
        meter: Where metric events go.
        pool: Whose workers help with parallel calls.
        clock: Where time is read.
        cancel: Ends the run, also in mid-request.
        max_turns: LLM calls in one turn.
        host: Who runs the loop.
    """

    model: Model
    model_name: str
    max_tokens: int | None
    system: str
    tools: Mapping[str, Tool]
    hooks: HookChain
    meter: Meter
    pool: WorkerPool
    clock: Clock
    cancel: CancelToken
    max_turns: int
    host: Host


def run_loop(turn: Turn, kit: Kit) -> Outcome:
    """Go on with `turn` from where it is, until it is done, parked, stalled or over a limit.

    Raises:
        Cancelled: The token was thrown or its deadline has passed.
        LlmError: The model could not be asked; the turn is as it was before that request.
    """
    while True:
        kit.cancel.raise_if_cancelled()
        if turn.calls:
            run_calls(turn, kit)
            kit.cancel.raise_if_cancelled()
            left = {call.status for call in turn.calls} - {"done"}
            if "started" in left:
                raise AssertionError("a call was left in flight")
            if left:
                return Parked() if "open" in left else Stalled()
            turn.close_calls()
        final = turn.final_text()
        if final is not None:
            return Finished(final)
        if turn.turns >= kit.max_turns:
            return OverLimit("maxTurns")
        limit = kit.host.limit_before_request(turn)
        if limit is not None:
            return OverLimit(limit)
        try:
            reply = _ask(turn, kit)
        except RequestRefused as refused:
            return OverLimit(refused.limit)
        if not reply.calls:
            return Finished(reply.text)


def _ask(turn: Turn, kit: Kit) -> ModelReply:
    request = _request(turn, kit)
    reply = kit.model.ask(
        request,
        meter=kit.meter,
        cancel=kit.cancel,
        allow=lambda: kit.host.limit_before_request(turn),
    )
    # Before the hooks: whatever they do, the reply was paid for and is not lost.
    kit.host.count_reply(reply)
    turn.add_reply(reply)
    if reply.truncated:
        for index in range(len(reply.calls)):
            turn.finish(index, ToolResult.error(CUT_OFF))
    for after in kit.hooks.after_llm:
        try:
            after(request, attrs.evolve(reply, message=codec.copy(reply.message)))
        except Exception:
            logger.exception("after_llm hook failed")
    return reply


def _request(turn: Turn, kit: Kit) -> ModelRequest:
    """Return the next request, as the before-hooks leave it."""
    request = ModelRequest(
        model=kit.model_name,
        messages=tuple(turn.messages),
        tools=tuple(kit.tools.values()),
        system=kit.system,
        max_tokens=kit.max_tokens,
    )
    if kit.hooks.before_llm:
        # What they change in place changes their copy, and no transcript.
        request = attrs.evolve(request, messages=codec.copy(request.messages))
    for before in kit.hooks.before_llm:
        changed = before(request)
        if changed is None:
            continue
        if not isinstance(changed, ModelRequest):
            raise ConfigError(f"before_llm gave {changed!r}; return a ModelRequest or None")
        request = changed
    return attrs.evolve(request, origin=kit.model.origin(request.model))
