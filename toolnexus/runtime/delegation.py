"""Delegation: a call of one handle's turn that runs another agent as its child."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from toolnexus.checkpoint import Asker, CallState
from toolnexus.client.calls import CallStalled
from toolnexus.errors import Cancelled
from toolnexus.messages import Status
from toolnexus.results import TaskResult
from toolnexus.runtime.core import Core
from toolnexus.runtime.definition import AgentDef
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.run import End, Run
from toolnexus.runtime.state import State
from toolnexus.runtime.waiting import Waiting
from toolnexus.toolspec import ToolResult

if TYPE_CHECKING:
    from toolnexus.client.turn import Turn
    from toolnexus.runtime.closing import Closing
    from toolnexus.runtime.spawning import Spawning


class Delegation:
    """Spawns, wakes, waits for and closes the child of a delegating call."""

    def __init__(
        self, core: Core, waiting: Waiting, spawning: Spawning, closing: Closing
    ) -> None:
        self._core = core
        self._waiting = waiting
        self._spawning = spawning
        self._closing = closing

    def delegate(
        self, run: Run, turn: Turn, index: int, target: AgentDef | str, prompt: str
    ) -> ToolResult:
        """Return what `target` makes of `prompt`, or its open request.

        The first execution of the call spawns the child; every later one reattaches to it.

        Raises:
            CallStalled: The child failed for want of a provider or of budget in a replay; the
                call keeps its place and a retry goes on.
            Cancelled: The run was interrupted.
        """
        run.cancel.raise_if_cancelled()
        call = turn.calls[index]
        if call.child is None:
            spawned = self._spawning.spawn(
                run.handle,
                target,
                number=call.number,
                # In one step, so that no child is there that nobody reattaches to.
                attach=lambda child: turn.attach(index, child.id),
            )
            if not spawned.ok:
                return ToolResult.error(f"task refused: {spawned.error}")
            child = spawned.handle
            result = self._first_turn(run, child, prompt)
        else:
            found = self._reattach(run, call.child, prompt)
            if found is None:
                return ToolResult.error(f"[closed] agent {call.child} is gone")
            child, result = found
            if self._core.is_stalled(child) and child.state is not State.CLOSED:
                raise CallStalled
        if result.status == "pending" and result.pending is not None:
            turn.note_asked_below(index, result.pending)
            return ToolResult.pending(result.pending)
        self._closing.close(child, reason="task done")
        return _tool_result(child, result)

    def carry_locked(self, turn: Turn) -> None:
        """Show, for each halted task call, the request its child waits on now."""
        for index, call in enumerate(turn.calls):
            if call.status == "open" and call.child is not None:
                child = self._core.handles.get(call.child)
                request = None if child is None else self._core.pending_of_locked(child)
                if request is not None and call.asked_at is not None:
                    turn.open(index, request, call.asked_at, Asker(past=call.by.past))

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

    def stalled_end(self, run: Run) -> End:
        """Return how a turn ends whose task calls wait for a retry of their child."""
        with self._core.lock:
            for call in self._core.calls_locked(run.handle):
                child = self._core.handles.get(call.child or "")
                if child is not None and child.last_result is not None:
                    last = child.last_result
                    status: Status = "incomplete" if last.status == "incomplete" else "error"
                    text = f"{last.text} (in {child.id}; retry goes on from there)"
                    return End(status, text, last.limit, stalls=True)
        return End("error", "a delegated task stopped; retry goes on", stalls=True)

    def _first_turn(self, run: Run, child: Handle, prompt: str) -> TaskResult:
        core = self._core
        with core.deciding() as effects:
            if run.is_over or run.is_stopping:
                effects.add(self._closing.close, child)
                raise Cancelled("interrupted")
            if child._state is not State.IDLE or child._run is not None or child._is_closing:
                return TaskResult("the new agent is not idle", is_error=True, status="error")
            future = core.new_future_locked(child)
            self._spawning.first_turn_locked(child, prompt, effects)
        return self._await(run, child, future)

    def _reattach(
        self, run: Run, child_id: str, prompt: str
    ) -> tuple[Handle, TaskResult] | None:
        core = self._core
        future: Future[TaskResult] | None = None
        with core.deciding() as effects:
            if run.is_over or run.is_stopping:
                raise Cancelled("interrupted")
            child = core.find_locked(child_id)
            if child is None:
                return None
            state = child._state.value
            text = f"task replay → REATTACH to {child_id} (state {state})"
            core.note_locked(run.handle, text, effects)
            if run.is_retry and core.is_stalled(child) and child._run is None:
                future = core.new_future_locked(child)
                self._spawning.retry_locked(child, effects, is_awaited=True)
            elif child._run is not None:
                future = core.new_future_locked(child)
            elif _was_never_woken(child):
                # The process ended between the spawn and the wake.
                future = core.new_future_locked(child)
                self._spawning.first_turn_locked(child, prompt, effects)
            last = child.last_result
        if future is not None:
            return child, self._await(run, child, future)
        if last is None:
            return child, TaskResult("the agent was never woken", is_error=True, status="error")
        return child, last

    def _await(self, run: Run, child: Handle, future: Future[TaskResult]) -> TaskResult:
        result = self._waiting.wait(child, future, cancel=run.cancel)
        if result is None or run.cancel.is_cancelled:
            # The interrupt reaches the child by itself.
            raise Cancelled("interrupted")
        return result


def _was_never_woken(child: Handle) -> bool:
    is_idle = child._state is State.IDLE and not child._is_closing
    return is_idle and child.last_result is None and child._failed is None


def _tool_result(child: Handle, result: TaskResult) -> ToolResult:
    """Return what the parent's model reads of a child's result."""
    is_done = result.status == "done"
    return ToolResult(
        result.text if is_done else f"[{result.status}] {result.text}",
        is_error=not is_done,
        metadata={
            "agent": child.definition.name,
            "handle": child.id,
            "turns": result.turns,
            "totalTokens": result.total_tokens,
        },
    )
