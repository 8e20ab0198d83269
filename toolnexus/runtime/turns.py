"""Turns: doing the work of a run, with the loop of the client and the books of the tree."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import attrs

from toolnexus.client.hooks import HookChain
from toolnexus.client.limits import OutputLimits
from toolnexus.client.loop import (
    Finished,
    Kit,
    Outcome,
    OverLimit,
    Parked,
    Stalled,
    drive,
    run_loop,
)
from toolnexus.client.preparing import index_tools, model_for, opening
from toolnexus.client.tracing import end_run, error_type_of, guarded, run_attributes
from toolnexus.client.turn import Turn
from toolnexus.deadlines import Deadlines
from toolnexus.errors import Cancelled, ConfigError, LlmError, StoreError, ToolnexusError
from toolnexus.events import UsageUpdate
from toolnexus.gate import FifoGate
from toolnexus.runtime import ledger
from toolnexus.runtime.closing import Closing
from toolnexus.runtime.core import Core
from toolnexus.runtime.definition import AgentDef
from toolnexus.runtime.delegation import Delegation
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.host import TurnHost
from toolnexus.runtime.inbox import compose
from toolnexus.runtime.run import INTERRUPTED, End, Run, current_run
from toolnexus.runtime.settling import Settling
from toolnexus.runtime.task import TaskTool
from toolnexus.threads import OwnThread, wrapped
from toolnexus.toolspec import Tool
from toolnexus.transport import Transport

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
        self.gate = FifoGate(options.max_concurrent_turns, core.clock)
        places = max(options.max_concurrent_turns, 10)
        self.transport = Transport(options.session, places)
        self._model = model_for(options, self.transport, self.gate)
        self._tracing = guarded(options.tracing)
        self.limits = OutputLimits(options)
        self.deadlines = Deadlines(core.clock, options.wrap_job)
        # Shared without a lock: two threads may build the same gear, and either will do.
        self._gear: WeakKeyDictionary[AgentDef, _Gear] = WeakKeyDictionary()

    def execute(self, run: Run) -> None:
        """Do the work of a claimed run, then of the ancestors that its end sets going.

        Raises:
            BaseException: A KeyboardInterrupt or the like, once the run is settled.
        """
        following: Run | None = run
        while following is not None:
            following = following.context.run(wrapped, partial(self._once, following))

    def _once(self, run: Run) -> Run | None:
        """Work on `run` until it is settled; return what it set going, claimed, or None."""
        outer = current_run.get()
        token = current_run.set(run)
        self._start_span(run)
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

    def _start_span(self, run: Run) -> None:
        if self._core.options.tracing is None:
            return
        handle = run.handle
        name = handle.definition.name
        attributes = run_attributes(self._core.model_of(handle), name, handle.id)
        span = self._tracing.start(name, attributes)
        with self._core.lock:
            is_over = run.is_over
            run.span = span
        if is_over:
            end_run(span, "interrupted")

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
                if (
                    end.status == "pending"
                    and run.turn is not None
                    and self._delegation.due_locked(run)
                ):
                    return False, None
                self._settling.settle_locked(run, end, effects)
                if goes_on and not _waits_below(run.handle.parent, outer):
                    # The cascade stays on this thread. Other runs are the workers'.
                    following = effects.take_run(run.handle.parent)
        except BaseException:
            # A callback ended this thread; what it set going must not end with it.
            if following is not None and following.claim():
                OwnThread(following.execute, "toolnexus-turn", core.options.wrap_job).start()
            raise
        # A callback may have waited for it, and so have executed it.
        return True, following if following is not None and following.claim() else None

    def _leave_stale_locked(self, run: Run, effects: Effects) -> None:
        """Note that the thread of a run that was settled without it is back."""
        handle = run.handle
        if run.is_stale and run.tree is handle._tree:
            run.is_stale = False
            handle._stale_runs -= 1
            # With that the run may be at rest.
            effects.touch(run.tree)
            effects.add(logger.info, "%s: what a stopped turn still did is dropped", handle.id)
        self._core.tell_watchers_locked(handle, effects)

    def _work(self, run: Run) -> End:
        try:
            kit = self._kit(run)
            if run.turn is None:
                run.turn = self._open(run, kit)
            run.cancel.on_cancel(lambda: self._stop_children(run), is_urgent=True)
            with self._until_deadline(run):
                outcome = drive(run_loop(run.turn, kit), partial(self._core.feeds.tell, run))
        except Cancelled:
            return self._stopped_end(run)
        except LlmError as error:
            return End("error", str(error), stalls=True, error_type=error_type_of(error))
        except StoreError as error:
            if run.tree is not None and self._core.keeper is not None:
                # Also where it was no write: the turn goes on from what is written.
                self._core.keeper.losing.give_up([run.tree], error)
            return End("error", str(error), stalls=True, error_type=error_type_of(error))
        except Exception as error:
            if not isinstance(error, ToolnexusError):
                logger.exception("%s: the turn failed", run.handle.id)
            text = str(error) or type(error).__name__
            return End("error", text, stalls=True, error_type=error_type_of(error))
        if isinstance(outcome, Finished):
            self._core.feeds.tell(run, UsageUpdate(run.turn.usage))
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
            reason = run.cancel.late_reason
            return End("error", reason, stalls=True, error_type="RunTimeoutError")
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
        run.model = self._model_of(handle)
        return Kit(
            model=self._model,
            model_name=run.model,
            max_tokens=options.max_tokens,
            system=gear.system,
            tools=gear.tools,
            hooks=gear.hooks,
            limits=self.limits,
            meter=core.meter_of(handle),
            pool=core.pool,
            clock=core.clock,
            cancel=run.cancel,
            max_turns=max_turns,
            host=TurnHost(core, self._delegation, run),
            vault=core.vault,
            approval_policy=options.approval_policy
            if definition.approval_policy is None
            else definition.approval_policy,
            agent=definition.name,
            span=run.span,
        )

    def _build_gear(self, definition: AgentDef) -> _Gear:
        core, options = self._core, self._core.options
        tools = index_tools(definition.tools)
        if definition.team:
            known = {**core.registry, **definition.members}
            team = {name: known[name].does for name in definition.team}
            task = TaskTool(team)
            tools[task.name] = task
        souls = (options.system_prompt, definition.soul, options.skills_prompt)
        return _Gear(
            tools,
            HookChain(core.options.hooks if definition.hooks is None else definition.hooks),
            "\n\n".join(part for part in souls if part),
        )

    def _model_of(self, handle: Handle) -> str:
        name = self._core.model_of(handle)
        if not name:
            raise ConfigError(
                f"agent {handle.definition.name!r} has no model: give AgentDef(model=...) "
                "or RuntimeOptions(default_model=...)"
            )
        return name


def _waits_below(parent: Handle | None, outer: Run | None) -> bool:
    """Whether `parent` could wait for a tool further down the stack of this thread."""
    if parent is None or outer is None or outer.is_over:
        return False
    return parent in ledger.chain(outer.handle)
