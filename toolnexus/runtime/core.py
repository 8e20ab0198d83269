"""Core: the tree of handles under one lock, and every decision about their moves.

Methods whose names end in `_locked` are called with `lock` held and only decide; what follows
from a decision goes into `Effects` and is done once the lock is free.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from toolnexus.budget import Budget
from toolnexus.checkpoint import CallState, Checkpoint
from toolnexus.client.metrics import Meter, MetricEvent
from toolnexus.client.turn import Turn, settled_checkpoint
from toolnexus.clock import Signal
from toolnexus.errors import ConfigError
from toolnexus.messages import TaskResult, Usage
from toolnexus.runtime import ledger
from toolnexus.runtime.book import RequestBook
from toolnexus.runtime.definition import AgentDef, index_registry
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import FailedTurn, Handle, path_of
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.runtime.run import End, Run
from toolnexus.runtime.state import Cause, State, next_state
from toolnexus.suspension import Request
from toolnexus.workers import WorkerPool

_CLOSED_KEPT: Final = 1_000
"""Closed handles that stay readable by id."""


class Core:
    """The state of one runtime."""

    def __init__(self, options: RuntimeOptions) -> None:
        self.options = options
        self.clock = options.clock
        self.registry = index_registry(options.registry)
        self.pool = WorkerPool(options.max_workers)
        self.execute: Callable[[Run], None] = _not_wired
        # Guards all handle state of this runtime, and everything below. Held for decisions
        # only: no tool, hook, callback, log handler, HTTP request or wait under it.
        self.lock = threading.RLock()
        self.root = Handle(self, "root", AgentDef("root"), None, options.budget)
        self.handles: dict[str, Handle] = {"root": self.root}
        self.closed: OrderedDict[str, Handle] = OrderedDict()
        self.trace: deque[str] = deque(maxlen=options.trace_limit)
        self.book = RequestBook()

    @contextmanager
    def deciding(self) -> Iterator[Effects]:
        """Hold the lock for a decision, then do what follows from it."""
        effects = Effects()
        try:
            with self.lock:
                yield effects
        finally:
            effects.perform()

    def own(self, handle: object) -> Handle:
        """Return `handle` if it is one of this runtime's.

        Raises:
            ConfigError: It is not.
        """
        if not isinstance(handle, Handle):
            raise ConfigError(f"expected a Handle, not {handle!r}")
        if handle._core is not self:
            raise ConfigError(f"{handle!r} belongs to another runtime")
        return handle

    def find_locked(self, handle_id: str) -> Handle | None:
        """Return the handle with that id, live or among the last closed."""
        return self.handles.get(handle_id) or self.closed.get(handle_id)

    def after_fork(self) -> None:
        """Go on in a forked child: what ran belongs to the parent process and ends here."""
        self.lock = threading.RLock()
        self.pool.after_fork()
        with self.deciding() as effects:
            for handle in self.handles.values():
                handle._waiters = handle._watchers = handle._queue = None
                handle._stale_runs = 0
                handle._running_children = 0
                if handle._run is not None:
                    handle._run.is_started = False
                    self.settle_locked(handle._run, End("interrupted", "forked"), effects)

    # -- moves ------------------------------------------------------------------------------

    def note_locked(self, handle: Handle, text: str, effects: Effects) -> None:
        """Record a trace line about `handle`."""
        line = f"{handle.id}: {text}"
        self.trace.append(line)
        effects.log(line)

    def move_locked(self, handle: Handle, cause: Cause, why: str, effects: Effects) -> None:
        """Apply `cause`: the one place where a state changes."""
        before = handle._state
        handle._state = after = next_state(handle.id, before, cause)
        if before is State.RUNNING and handle._running_since is not None:
            handle._wall += self.clock.monotonic() - handle._running_since
            handle._running_since = None
        if after is State.RUNNING:
            handle._running_since = self.clock.monotonic()
        self.note_locked(handle, f"{before.value}→{after.value} ({why})", effects)

    # -- tree -------------------------------------------------------------------------------

    def add_child_locked(
        self, parent: Handle, definition: AgentDef, budget: Budget, effects: Effects
    ) -> Handle:
        """Make a child of `parent` in `idle`."""
        parent._spawned += 1
        child_id = f"{parent.id}/{definition.name}.{parent._spawned}"
        child = Handle(self, child_id, definition, parent, budget)
        if not isinstance(parent._children, dict):
            parent._children = {}
        parent._children[child_id] = child
        self.handles[child_id] = child
        tokens = "unlimited" if budget.max_tokens is None else budget.max_tokens
        self.note_locked(child, f"spawned (depth {child.depth}, tokens {tokens})", effects)
        return child

    def remove_locked(self, handle: Handle) -> None:
        """Take a closed handle out of the tree; it stays readable by id for a while."""
        parent = handle.parent
        if parent is not None and isinstance(parent._children, dict):
            parent._children.pop(handle.id, None)
        if self.handles.pop(handle.id, None) is None:
            return
        handle._parked = handle._failed = None
        self.closed[handle.id] = handle
        if len(self.closed) > _CLOSED_KEPT:
            self.closed.popitem(last=False)

    def subtree_locked(self, handle: Handle) -> list[Handle]:
        """Return the handle and everything live below it, parents before children."""
        found = [handle]
        for one in found:
            found.extend(one._children.values())
        return found

    def calls_locked(self, handle: Handle) -> tuple[CallState, ...]:
        """Return the unfinished message's calls, parked or in a run."""
        if handle._parked is not None:
            return handle._parked.calls
        if handle._run is not None and handle._run.turn is not None:
            return tuple(handle._run.turn.calls)
        return ()

    def pending_of_locked(self, handle: Handle) -> Request | None:
        """Return the first open request in call order, the handle's own or a child's."""
        if handle._run is not None and handle._run.asking is not None:
            return handle._run.asking
        for call in self.calls_locked(handle):
            if call.status != "open" or call.request is None:
                continue
            if call.child is not None:
                child = self.handles.get(call.child)
                request = None if child is None else self.pending_of_locked(child)
            else:
                request = call.request if call.request.id in self.book else None
            if request is not None:
                return request
        return None

    # -- admission --------------------------------------------------------------------------

    def new_future_locked(self, handle: Handle) -> Future[TaskResult]:
        """Return a future for the next result of `handle`.

        It runs from birth, so that a holder's `cancel` cannot cut it loose from the turn.
        """
        future: Future[TaskResult] = Future()
        future.set_running_or_notify_cancel()
        if handle._waiters is None:
            handle._waiters = []
        handle._waiters.append(future)
        return future

    def admit_locked(self, run: Run, effects: Effects) -> None:
        """Let `run` begin, or queue it for one of its parent's places, in order."""
        handle, parent = run.handle, run.handle.parent
        handle._run = run
        run.began = self.clock.monotonic()
        if parent is not None:
            limit = ledger.max_concurrent(parent)
            if parent._running_children >= limit:
                if parent._queue is None:
                    parent._queue = deque()
                parent._queue.append(run)
                self.note_locked(handle, f"wake QUEUED (parent concurrency {limit})", effects)
                return
        self._start_locked(run, effects)

    def _start_locked(self, run: Run, effects: Effects) -> bool:
        """Start a run that has a place; False where the budget refuses it."""
        handle = run.handle
        if run.cause is Cause.WAKE:
            spent = ledger.exhausted(handle, self.clock.monotonic())
            if spent is not None:
                self._refuse_locked(run, spent, effects)
                return False
            run.drained, handle._inbox = handle._inbox, []
        if handle.parent is not None:
            handle.parent._running_children += 1
        run.is_started = True
        why = "wake" if run.cause is Cause.WAKE else "replay"
        self.move_locked(handle, run.cause, why, effects)
        self.tell_watchers_locked(handle, effects)
        if run.submits:
            effects.add(self.pool.submit, run)
        return True

    def _refuse_locked(self, run: Run, spent: str, effects: Effects) -> None:
        handle = run.handle
        run.is_over = True
        handle._run = None
        handle._failed = FailedTurn(run.prompt, None, stalls=True)
        self.note_locked(handle, f"wake refused SETTLED incomplete (budget {spent})", effects)
        end = End("incomplete", _spent_text(spent), spent)
        self.publish_locked(handle, end, effects)

    def _release_place_locked(self, parent: Handle | None, effects: Effects) -> None:
        """Give a finished child's place to the next queued one that can use it."""
        if parent is None:
            return
        parent._running_children -= 1
        limit = ledger.max_concurrent(parent)
        while parent._queue and parent._running_children < limit:
            following = parent._queue.popleft()
            self.note_locked(following.handle, "DEQUEUED wake (slot freed)", effects)
            self._start_locked(following, effects)

    # -- settling ---------------------------------------------------------------------------

    def settle_locked(self, run: Run, end: End, effects: Effects) -> Run | None:
        """End `run`: the first to call this for it decides, later ones must not.

        Returns:
            The replay of the parent that this end sets going, already started or queued.
        """
        handle = run.handle
        run.is_over = True
        handle._run = None
        if end.status == "pending":
            self._park_locked(run, effects)
        else:
            self._leave_locked(run, end, effects)
        run.asking = None
        self.publish_locked(handle, end, effects)
        self._meter_locked(run, end, effects)
        if run.is_started:
            self._release_place_locked(handle.parent, effects)
        elif handle.parent is not None and handle.parent._queue is not None:
            handle.parent._queue.remove(run)
        self._wake_again_locked(run, end, effects)
        return self.continue_parent_locked(handle, effects)

    def _park_locked(self, run: Run, effects: Effects) -> None:
        handle = run.handle
        assert run.turn is not None  # noqa: S101 - a turn that parks has begun
        handle._parked = self.book.park(handle, run.turn.checkpoint())
        request = self.pending_of_locked(handle)
        kind, prompt = ("", "") if request is None else (request.kind, request.prompt)
        self.move_locked(handle, Cause.SUSPEND, f'pending "{kind}": {prompt}', effects)

    def _leave_locked(self, run: Run, end: End, effects: Effects) -> None:
        """Commit the transcript, or undo the turn, and go to `idle`."""
        handle, turn = run.handle, run.turn
        why = _why(end, handle, run)
        if turn is not None:
            self.book.withdraw(tuple(turn.calls))
        if end.status == "done" and turn is not None:
            handle._transcript = turn.messages
            handle._failed = None
        elif turn is None or turn.turns == 0:
            # Nothing was said yet: the turn leaves nothing behind, and a retry begins anew.
            handle._inbox[:0] = run.drained
            handle._failed = FailedTurn(run.prompt, None, end.stalls)
        else:
            reason = "interrupted" if end.status == "interrupted" else "the turn failed"
            handle._transcript = turn.settled_transcript(reason)
            handle._failed = FailedTurn(run.prompt, _resumable(turn, end), end.stalls)
        if handle._state is State.SUSPENDED:
            self.move_locked(handle, Cause.WITHDRAW, why, effects)
        elif handle._state is State.RUNNING:
            cause = Cause.INTERRUPT if end.status == "interrupted" else Cause.FINISH
            self.move_locked(handle, cause, why, effects)

    def publish_locked(self, handle: Handle, end: End, effects: Effects) -> None:
        """Make the result known to everybody who waits for it."""
        result = self.result_locked(handle, end)
        handle.last_result = result
        waiters, handle._waiters = handle._waiters, None
        for future in waiters or ():
            effects.settle(future, result)
        self.tell_watchers_locked(handle, effects)

    def watch_locked(self, handle: Handle, signal: Signal) -> None:
        """Set `signal` when a run of `handle` next starts or ends."""
        if handle._watchers is None:
            handle._watchers = []
        handle._watchers.append(signal)

    def tell_watchers_locked(self, handle: Handle, effects: Effects) -> None:
        """Wake everybody who watches `handle`."""
        watchers, handle._watchers = handle._watchers, None
        for signal in watchers or ():
            effects.add(signal.set)

    def result_locked(self, handle: Handle, end: End) -> TaskResult:
        """Return what `end` means to the outside."""
        request, path, text = None, None, end.text
        if end.status == "pending":
            request = self.pending_of_locked(handle)
            if request is not None:
                text = request.prompt
                where = (request.data or {}).get("path")
                path = tuple(where) if where else path_of(handle)
        return TaskResult(
            text,
            end.status not in ("done", "pending"),
            end.status,
            request,
            path,
            handle.turns_total,
            handle.usage_tree,
            end.limit,
        )

    def _meter_locked(self, run: Run, end: End, effects: Effects) -> None:
        handle, turn = run.handle, run.turn
        sink = handle.definition.on_metric or self.options.on_metric
        if sink is None:
            return
        event = MetricEvent(
            kind="run",
            ms=(self.clock.monotonic() - run.began) * 1000,
            status=end.status,
            usage=Usage() if turn is None else turn.usage,
            error=end.text if end.status == "error" else None,
            handle_id=handle.id,
        )
        effects.add(Meter(sink, handle.id).emit, lambda _: event)

    def _wake_again_locked(self, run: Run, end: End, effects: Effects) -> None:
        """Start the turn that a bare wake of a running handle asked for."""
        handle = run.handle
        again, handle._wake_again = handle._wake_again, False
        if again and end.status == "done" and handle._inbox and not handle._is_closing:
            self.admit_locked(Run(handle, Cause.WAKE, self.execute), effects)

    # -- cascade ----------------------------------------------------------------------------

    def continue_parent_locked(self, child: Handle, effects: Effects) -> Run | None:
        """Set the parent going if its halted `task` call waited for `child`.

        Decided in the same lock hold as the child's end, so no wake-up is lost however two
        children end.
        """
        parent = child.parent
        if parent is None or parent._run is not None or parent._is_closing:
            return None
        halted = parent._parked
        if halted is None and child.last_result is not None and not self.is_stalled(child):
            halted = parent._failed.checkpoint if parent._failed is not None else None
        if halted is None or not any(
            call.child == child.id and call.status != "done" for call in halted.calls
        ):
            return None
        return self.replay_locked(parent, halted, effects)

    def replay_locked(
        self,
        handle: Handle,
        halted: Checkpoint,
        effects: Effects,
        *,
        is_retry: bool = False,
        is_awaited: bool = False,
    ) -> Run:
        """Go on with a halted turn. The caller executes it if it has started.

        Args:
            handle: Suspended, or idle after a failed turn.
            halted: Where the turn stands.
            effects: Collects what follows.
            is_retry: Whether children that failed are retried as well.
            is_awaited: Whether the caller stays until a queued run gets its place.
        """
        if handle._parked is not None:
            why = "Answer accepted, checkpoint restored"
            self.move_locked(handle, Cause.ACCEPT, why, effects)
        prompt = handle._failed.prompt if handle._failed is not None else None
        handle._parked = handle._failed = None
        turn = Turn.restore(halted, self.lock)
        run = Run(
            handle,
            Cause.REPLAY,
            self.execute,
            prompt=prompt,
            turn=turn,
            is_retry=is_retry,
            submits=False,
        )
        self.admit_locked(run, effects)
        # A run that has to queue finds a caller who does not wait gone when its place comes.
        run.submits = not is_awaited
        return run

    @staticmethod
    def is_stalled(handle: Handle) -> bool:
        """Whether the last turn failed for want of a provider or of budget."""
        return handle._failed is not None and handle._failed.stalls


def _not_wired(run: Run) -> None:
    raise AssertionError(f"nobody executes {run}")


def _spent_text(spent: str) -> str:
    return f"budget exhausted ({spent}); partial work preserved"


def _why(end: End, handle: Handle, run: Run) -> str:
    if end.status == "done":
        turns = 0 if run.turn is None else run.turn.turns
        tokens = 0 if run.turn is None else run.turn.usage.total_tokens
        return f"done, turns={turns}, tokens={tokens}"
    if end.status == "incomplete":
        return f"INCOMPLETE at {end.limit} {_limit_value(handle, end.limit)}".rstrip()
    if end.status == "interrupted":
        if handle._state is State.SUSPENDED and run.asking is not None:
            return f'interrupt cancelled pending "{run.asking.kind}"'
        return "interrupted; inbox intact"
    return f"error: {end.text}"


def _limit_value(handle: Handle, limit: str | None) -> str:
    names = {
        "maxTurns": "max_turns",
        "tokens": "max_tokens",
        "toolCalls": "max_tool_calls",
        "wallMs": "max_wall_ms",
    }
    for one in ledger.chain(handle):
        value = getattr(one.budget, names.get(limit or "", ""), None)
        if value is not None:
            return str(value)
    return ""


def _resumable(turn: Turn, end: End) -> Checkpoint:
    """Return where a retry goes on: finished calls stay finished, lost ones are settled."""
    if end.stalls:
        return turn.checkpoint()
    reason = "interrupted" if end.status == "interrupted" else "the turn failed"
    return settled_checkpoint(turn, reason)
