"""Turns: doing the work of a run, with the loop of the client and the books of the tree."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import attrs

from toolnexus.checkpoint import CallState
from toolnexus.client.client import index_tools, opening
from toolnexus.client.hooks import HookChain
from toolnexus.client.loop import Finished, Kit, Outcome, OverLimit, Parked, Stalled, run_loop
from toolnexus.client.metrics import Meter
from toolnexus.client.model import Model
from toolnexus.client.turn import Turn
from toolnexus.deadlines import Deadlines
from toolnexus.errors import Cancelled, ConfigError, LlmError, ToolnexusError
from toolnexus.runtime import ledger
from toolnexus.runtime.closing import Closing
from toolnexus.runtime.core import Core
from toolnexus.runtime.definition import AgentDef
from toolnexus.runtime.delegation import Delegation
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.gate import TurnGate
from toolnexus.runtime.handle import Handle, path_of
from toolnexus.runtime.inbox import compose
from toolnexus.runtime.run import INTERRUPTED, End, Run, current_run
from toolnexus.runtime.settling import Settling
from toolnexus.runtime.state import Cause
from toolnexus.runtime.task import TaskTool
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import Tool, ToolResult
from toolnexus.transport import Transport
from toolnexus.wire.base import ModelReply

if TYPE_CHECKING:
    from toolnexus.client.options import WaitFor

logger = logging.getLogger(__name__)


@attrs.frozen
class _Gear:
    """What every turn of one definition uses."""

    tools: dict[str, Tool]
    hooks: HookChain
    system: str


class Turns:
    """Executes runs. Thread-safe."""

    def __init__(
        self, core: Core, settling: Settling, closing: Closing, delegation: Delegation
    ) -> None:
        options = core.options
        self._core = core
        self._settling = settling
        self._closing = closing
        self._delegation = delegation
        self.gate = TurnGate(options.max_concurrent_turns, core.clock)
        places = max(options.max_concurrent_turns, 10)
        self.transport = Transport(options.session, places)
        self._model = Model(options, self.transport, self.gate)
        self.deadlines = Deadlines(core.clock)
        # Shared without a lock: two threads may build the same gear, and either will do.
        self._gear: WeakKeyDictionary[AgentDef, _Gear] = WeakKeyDictionary()

    def execute(self, run: Run) -> None:
        """Do the work of a claimed run, then of the ancestors that its end sets going.

        Raises:
            BaseException: A KeyboardInterrupt or the like, once the run is settled.
        """
        following: Run | None = run
        while following is not None:
            following = following.context.run(self._once, following)

    def _once(self, run: Run) -> Run | None:
        """Work on `run` until it is settled; return what it set going, claimed, or None."""
        outer = current_run.get()
        token = current_run.set(run)
        try:
            while True:
                end = self._work(run)
                is_settled, following = self._conclude(run, end, outer)
                if is_settled:
                    return following
        except BaseException as error:
            text = f"the turn's thread was ended by {type(error).__name__}"
            try:
                if isinstance(error, KeyboardInterrupt):
                    # Reaches the children too, whichever threads run them.
                    self._closing.interrupt(run.handle)
            finally:
                self._conclude(run, End("error", text, stalls=True), goes_on=False)
            raise
        finally:
            current_run.reset(token)

    def _conclude(
        self, run: Run, end: End, outer: Run | None = None, *, goes_on: bool = True
    ) -> tuple[bool, Run | None]:
        """Settle `run` unless it can go on or was settled by an interrupt.

        Args:
            run: What has come to an end, or to a question.
            end: How.
            outer: The run in whose tool this thread executes `run`; None where there is none.
            goes_on: Whether this thread may go on with the parent.

        Returns:
            Whether it is settled, and the parent's run, claimed, where this thread goes on
            with that.
        """
        core = self._core
        following: Run | None = None
        try:
            with core.deciding() as effects:
                if run.is_over:
                    self._leave_stale_locked(run, effects)
                    return True, None
                if end.status == "pending" and (run.is_stopping or run.handle._is_closing):
                    # Nobody could answer what it asks now.
                    end = self._stopped_end(run)
                # An answer or a child's end that came after the last pass over the calls.
                if end.status == "pending" and run.turn is not None and self.due_locked(run):
                    return False, None
                self._settling.settle_locked(run, end, effects)
                if goes_on and not _waits_below(run.handle.parent, outer):
                    # The cascade stays on this thread. Other runs are the workers'.
                    following = effects.take_run(run.handle.parent)
        except BaseException:
            # A callback ended this thread; what it set going must not end with it.
            if following is not None:
                threading.Thread(
                    target=following.execute, name="toolnexus-turn", daemon=True
                ).start()
            raise
        return True, following

    def _leave_stale_locked(self, run: Run, effects: Effects) -> None:
        """Note that the thread of a run that was settled without it is back."""
        handle = run.handle
        if run.is_stale:
            run.is_stale = False
            handle._stale_runs -= 1
            effects.add(logger.info, "%s: what a stopped turn still did is dropped", handle.id)
        self._core.tell_watchers_locked(handle, effects)

    def _work(self, run: Run) -> End:
        try:
            kit = self._kit(run)
            if run.turn is None:
                run.turn = self._open(run, kit)
            run.cancel.on_cancel(lambda: self._stop_children(run), is_urgent=True)
            with self._until_deadline(run):
                outcome = run_loop(run.turn, kit)
        except Cancelled:
            return self._stopped_end(run)
        except LlmError as error:
            return End("error", str(error), stalls=True)
        except Exception as error:
            if not isinstance(error, ToolnexusError):
                logger.exception("%s: the turn failed", run.handle.id)
            return End("error", str(error) or type(error).__name__, stalls=True)
        return self._end_of(run, outcome)

    def _stop_children(self, run: Run) -> None:
        """Stop what works for a run whose own tool threw its token, or ended its thread."""
        if not run.is_stopping:
            self._closing.interrupt_children(run.handle)

    @contextmanager
    def _until_deadline(self, run: Run) -> Iterator[None]:
        """Stop the turn and what works for it once `timeout_ms` has passed."""
        timeout = self._core.options.timeout_ms
        if timeout is None:
            yield
            return
        instant = run.began + timeout / 1000
        run.cancel.set_deadline(self._core.clock, instant, f"run timeout after {timeout}ms")
        forget = self.deadlines.call_at(instant, lambda: self._closing.time_out(run))
        try:
            yield
        finally:
            forget()

    @staticmethod
    def _stopped_end(run: Run) -> End:
        if run.cancel.is_late:
            return End("error", run.cancel.late_reason, stalls=True)
        return INTERRUPTED

    def _end_of(self, run: Run, outcome: Outcome) -> End:
        match outcome:
            case Finished(text):
                return End("done", text)
            case Parked():
                return End("pending")
            case OverLimit("maxTurns"):
                text = "hit maxTurns without a final answer"
                return End("incomplete", text, "maxTurns")
            case OverLimit(limit):
                return End("incomplete", ledger.spent_text(limit), limit, stalls=True)
            case Stalled():
                return self._delegation.stalled_end(run)

    def _open(self, run: Run, kit: Kit) -> Turn:
        """Return the working state of a fresh turn."""
        handle = run.handle
        text = compose(run.prompt, run.drained)
        history = handle._transcript
        messages = opening(self._core.options.style, kit.system, history, text)
        return Turn([*history, *messages], len(history), self._core.lock)

    def _kit(self, run: Run) -> Kit:
        core, handle = self._core, run.handle
        options, definition = core.options, run.handle.definition
        gear = self._gear.get(definition)
        if gear is None:
            gear = self._gear[definition] = self._build_gear(definition)
        max_turns = handle.budget.max_turns or options.max_turns
        return Kit(
            model=self._model,
            model_name=self._model_of(handle),
            max_tokens=options.max_tokens,
            system=gear.system,
            tools=gear.tools,
            hooks=gear.hooks,
            meter=Meter(definition.on_metric or options.on_metric, handle.id),
            pool=core.pool,
            clock=core.clock,
            cancel=run.cancel,
            max_turns=max_turns,
            host=_TurnHost(core, self, self._delegation, run),
        )

    def _build_gear(self, definition: AgentDef) -> _Gear:
        core = self._core
        tools = index_tools(definition.tools)
        if definition.team:
            known = {**core.registry, **definition.members}
            team = {name: known[name].does for name in definition.team}
            task = TaskTool(team)
            tools[task.name] = task
        souls = (core.options.system_prompt, definition.soul)
        return _Gear(
            tools,
            HookChain(core.options.hooks if definition.hooks is None else definition.hooks),
            "\n\n".join(part for part in souls if part),
        )

    def _model_of(self, handle: Handle) -> str:
        for one in ledger.chain(handle):
            if one.parent is not None and one.definition.model != "inherit":
                return one.definition.model
        name = self._core.options.default_model or self._core.options.model
        if not name:
            raise ConfigError(
                f"agent {handle.definition.name!r} has no model: give AgentDef(model=...) "
                "or RuntimeOptions(default_model=...)"
            )
        return name

    def due_locked(self, run: Run) -> list[int]:
        """Return the calls of `run` that can be executed now."""
        assert run.turn is not None  # noqa: S101 - the run has begun
        return [
            index
            for index, call in enumerate(run.turn.calls)
            if call.status == "ready"
            or (call.status == "open" and call.answer is not None)
            or (call.status in ("open", "stalled") and self._has_moved_on_locked(call))
        ]

    def _has_moved_on_locked(self, call: CallState) -> bool:
        """Whether the child of a halted task call no longer is where it halted the call."""
        if call.child is None:
            return False
        child = self._core.handles.get(call.child)
        if child is None:
            return True
        if call.status == "stalled":
            return child._run is not None or not self._core.is_stalled(child)
        return child._parked is None


def _waits_below(parent: Handle | None, outer: Run | None) -> bool:
    """Whether `parent` could wait for a tool further down the stack of this thread."""
    if outer is None or outer.is_over:
        return False
    return any(one is parent for one in ledger.chain(outer.handle))


def _spawns(call: CallState, tools: Mapping[str, Tool]) -> bool:
    """Whether the first execution of `call` will make a child."""
    delegates = getattr(tools.get(call.name), "delegates", None)
    return call.attempt == 0 and callable(delegates) and delegates(call.arguments) is True


class _TurnHost:
    """What the loop is told by the runtime about the handle whose turn it runs."""

    def __init__(self, core: Core, turns: Turns, delegation: Delegation, run: Run) -> None:
        self._core = core
        self._turns = turns
        self._delegation = delegation
        self._run = run
        self.handle_id = run.handle.id

    def due_calls(self, turn: Turn, tools: Mapping[str, Tool]) -> list[int]:
        with self._core.lock:
            self._delegation.carry_locked(turn)
            due = self._turns.due_locked(self._run)
        spawning = [index for index in due if _spawns(turn.calls[index], tools)]
        with self._core.lock:
            # In call order, so that ids do not depend on which thread is first.
            self._run.reserved = {
                index: self._core.next_number_locked(self._run.handle) for index in spawning
            }
        return due

    def limit_before_request(self, turn: Turn) -> str | None:  # noqa: ARG002
        with self._core.lock:
            spent = ledger.exhausted(self._run.handle, self._core.clock.monotonic())
            return None if spent is None else spent.limit

    def count_reply(self, reply: ModelReply) -> None:
        with self._core.lock:
            ledger.add_usage(self._run.handle, reply.usage)

    def reserve_call(self) -> str | None:
        with self._core.lock:
            return ledger.reserve_tool_call(self._run.handle)

    def surface(self, request: Request) -> Request:
        path = list(path_of(self._run.handle))
        return attrs.evolve(request, data={**(request.data or {}), "path": path})

    def ask_inline(self, request: Request) -> WaitFor | None:
        run, handle = self._run, self._run.handle
        wait_for, who = self._interpreter()
        if wait_for is None:
            return None
        with self._core.deciding() as effects:
            run.cancel.raise_if_cancelled()
            run.asking = request
            why = f'pending "{request.kind}": {request.prompt}'
            self._core.move_locked(handle, Cause.SUSPEND, why, effects)
            self._core.note_locked(handle, f"escalate → {who} answers", effects)
        return wait_for

    def _interpreter(self) -> tuple[WaitFor | None, str]:
        """Return the nearest `wait_for` of the ancestor chain, and whose it is."""
        for one in ledger.chain(self._run.handle):
            is_root = one.parent is None
            wait_for = self._core.options.wait_for if is_root else one.definition.wait_for
            if wait_for is not None:
                return wait_for, "self" if one is self._run.handle else one.id
        return None, ""

    def answered_inline(self, request: Request, answer: Answer) -> None:  # noqa: ARG002
        run, handle = self._run, self._run.handle
        with self._core.deciding() as effects:
            if run.is_over:
                raise Cancelled("interrupted")
            run.asking = None
            why = f"Answer ok={str(answer.ok).lower()}"
            self._core.move_locked(handle, Cause.ANSWER_INLINE, why, effects)

    def delegate_for(self, turn: Turn, index: int) -> Callable[[Any, str], ToolResult]:
        return lambda target, prompt: self._delegation.delegate(
            self._run, turn, index, target, prompt
        )
