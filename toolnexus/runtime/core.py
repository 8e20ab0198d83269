"""Core: the tree of handles under one lock, and every decision about their moves.

Methods whose names end in `_locked` are called with `lock` held and only decide; what follows
from a decision goes into `Effects` and is done once the lock is free.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final

from toolnexus.budget import Budget
from toolnexus.checkpoint import CallState, Checkpoint
from toolnexus.client.metrics import Meter
from toolnexus.client.prometheus import Counters
from toolnexus.clock import Signal
from toolnexus.errors import ConfigError
from toolnexus.grants import Grant
from toolnexus.results import TaskResult
from toolnexus.runtime import ledger
from toolnexus.runtime.audit import AuditLog, How, is_logged, write
from toolnexus.runtime.book import OpenRequest, Place, RequestBook
from toolnexus.runtime.definition import AgentDef, index_registry
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.feeds import Feeds
from toolnexus.runtime.handle import NO_CHILDREN, Handle, no_handle, path_of, shown
from toolnexus.runtime.logins import Logins
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.runtime.run import End, HelpingFuture, Run, execute_here
from toolnexus.runtime.state import Cause, State, next_state
from toolnexus.suspension import Answer, Outcome, Request
from toolnexus.vault import Vault
from toolnexus.workers import WorkerPool

if TYPE_CHECKING:
    from toolnexus.runtime.keeping import Keeper

_CLOSED_KEPT: Final = 1_000
"""Closed handles that stay readable by id."""


class Core:
    """The state of one runtime. `keeper` has its runs, where they are kept in a store."""

    def __init__(self, options: RuntimeOptions) -> None:
        self.options = options
        self.clock = options.clock
        self.registry = index_registry(options.registry)
        workers = 0 if options.inline else options.max_workers
        self.pool = WorkerPool(workers, wrap_job=options.wrap_job)
        self.execute: Callable[[Run], None] = _not_wired
        # Guards all handle state of this runtime, and everything below. Held for decisions
        # only: no tool, hook, callback, log handler, HTTP request or wait under it.
        self.lock = threading.RLock()
        self.root = Handle(self, "root", AgentDef("root"), None, options.budget)
        self.handles: dict[str, Handle] = {"root": self.root}
        self.closed: OrderedDict[str, Handle] = OrderedDict()
        self.trace: deque[str] = deque(maxlen=options.trace_limit)
        self.book = RequestBook()
        self.audit = AuditLog(options.audit_limit)
        self.grants: dict[str, Grant] = {}
        self.vault = Vault()
        self.logins = Logins(options.clock)
        self.announce: Callable[[list[OpenRequest]], object] = _not_wired
        self.keeper: Keeper | None = None
        self.counters = Counters()
        self.feeds = Feeds()

    def effects(self, *, is_written: bool = True) -> Effects:
        """Return where to collect what follows from a decision, or from a loss of runs."""
        submit = execute_here if self.options.inline else self.pool.submit
        return Effects(submit, self.keeper if is_written else None)

    @contextmanager
    def deciding(self) -> Iterator[Effects]:
        """Hold the lock for a decision, then do what follows from it."""
        effects = self.effects()
        try:
            with self.lock:
                yield effects
        except BaseException as error:
            effects.perform(error)
            raise
        effects.perform()

    def holding(
        self, handle: Handle, *, to_stop: str | None = None
    ) -> AbstractContextManager[None]:
        """Have the run of `handle` in this process meanwhile. See `Keeper.holding`."""
        if self.keeper is None:
            return nullcontext()
        return self.keeper.holding(handle, to_stop=to_stop)

    def own(self, handle: object) -> Handle:
        """Return `handle` if it is one of this runtime's.

        Raises:
            ConfigError: It is not.
        """
        if not isinstance(handle, Handle):
            raise no_handle(handle)
        if handle._core is self:
            return handle
        raise ConfigError(f"{handle!r} belongs to another runtime")

    def model_of(self, handle: Handle) -> str:
        """Return the model that `handle` asks; "" where nothing names one."""
        for one in ledger.chain(handle):
            if one.parent is not None and one.definition.model != "inherit":
                return one.definition.model
        return self.options.default_model or self.options.model

    def meter_of(self, handle: Handle) -> Meter:
        """Return where the metric events of `handle` go."""
        sink = handle.definition.on_metric or self.options.on_metric
        return Meter(self.counters.record, sink, handle_id=handle.id)

    def find_locked(self, handle_id: str) -> Handle | None:
        """Return the handle with that id, live or among the last closed."""
        return self.handles.get(handle_id) or self.closed.get(handle_id)

    # -- moves ------------------------------------------------------------------------------

    def note_locked(self, handle: Handle, text: str, effects: Effects) -> None:
        """Record a trace line about `handle`."""
        if handle._tree is not None:
            effects.touch(handle._tree)
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
        self,
        parent: Handle,
        definition: AgentDef,
        budget: Budget,
        effects: Effects,
        number: int | None = None,
    ) -> Handle:
        """Make a child of `parent` in `idle`."""
        number = self.next_number_locked(parent) if number is None else number
        name = f"{parent.id}/{definition.name}.{number}"
        child = Handle(self, name, definition, parent, budget)
        self.attach_locked(child)
        if child._tree is not None and self.keeper is not None:
            child._tree.add(child)
            self.keeper.shells.add_locked(child)
        self.note_spawn_locked(child, effects)
        return child

    @staticmethod
    def next_number_locked(parent: Handle) -> int:
        """Return the number of the parent's next child."""
        parent._spawned += 1
        return parent._spawned

    def note_spawn_locked(self, child: Handle, effects: Effects) -> None:
        """Record that `child` was made."""
        tokens = "unlimited" if child.budget.max_tokens is None else child.budget.max_tokens
        self.note_locked(child, f"spawned (depth {child.depth}, tokens {tokens})", effects)

    def attach_locked(self, handle: Handle) -> None:
        """Put a handle into the tree."""
        parent = handle.parent
        if parent is not None:
            if not isinstance(parent._children, dict):
                parent._children = {}
            parent._children[handle.id] = handle
        self.handles[handle.id] = handle

    def detach_locked(self, handle: Handle) -> None:
        """Take out of the tree what lives on in the store; its numbers stay."""
        parent = handle.parent
        if parent is not None and isinstance(parent._children, dict):
            parent._children.pop(handle.id, None)
        self.handles.pop(handle.id, None)
        handle._tree = handle._run = handle._parked = handle._failed = None
        handle._children = NO_CHILDREN
        handle._transcript, handle._inbox = [], []

    def remove_locked(self, handle: Handle) -> None:
        """Take a closed handle out of the tree; it stays readable by id for a while."""
        parent = handle.parent
        if parent is not None and isinstance(parent._children, dict):
            parent._children.pop(handle.id, None)
        if self.handles.pop(handle.id, None) is None:
            return
        handle._parked = handle._failed = handle._event_log = None
        self.keep_closed_locked(handle)

    def keep_closed_locked(self, handle: Handle) -> None:
        """Let a closed handle be readable by id for a while."""
        self.closed[handle.id] = handle
        if len(self.closed) > _CLOSED_KEPT:
            self.closed.popitem(last=False)

    @staticmethod
    def subtree_locked(handle: Handle) -> list[Handle]:
        """Return the handle and everything live below it, parents before children."""
        found = [handle]
        for one in found:
            found.extend(one._in_order())
        return found

    def calls_locked(self, handle: Handle) -> tuple[CallState, ...]:
        """Return the unfinished message's calls, parked or in a run."""
        if handle._parked is not None:
            return handle._parked.calls
        turn = None if handle._run is None else handle._run.turn
        return () if turn is None else tuple(turn.calls)

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

    # -- requests ---------------------------------------------------------------------------

    def park_locked(self, handle: Handle, checkpoint: Checkpoint, effects: Effects) -> None:
        """Keep a turn that waits, and open its requests."""
        handle._parked, opened = self.book.park(handle, checkpoint)
        options = self.options
        if opened and (options.on_suspend is not None or options.expire_requests):
            effects.tell(self.announce, opened)

    def call_locked(self, place: Place) -> CallState:
        """Return a call that waits."""
        return self.calls_locked(place.handle)[place.index]

    def askers_locked(self, found: OpenRequest) -> list[tuple[Handle, CallState]]:
        """Return who waits for an open request, each with its call."""
        return [(one.handle, self.call_locked(one)) for one in found.places]

    def withdraw_locked(
        self,
        handle: Handle,
        calls: Sequence[CallState],
        how: How,
        effects: Effects,
        principal: str | None = None,
    ) -> None:
        """Take back the requests of `calls`: no answer fits them any more."""
        outcome: Outcome = "superseded" if how == "supersede" else "cancelled"
        for request, call in self.book.withdraw(handle, calls, outcome):
            gone = Answer(request.id, ok=False, reason=outcome)
            self.settle_request_locked(request, gone, how, effects, principal, (handle, call))
        if handle._tree is not None:
            handle._tree.note_stopped_locked(calls, outcome, self.book)

    def settle_request_locked(
        self,
        request: Request,
        answer: Answer,
        how: How,
        effects: Effects,
        principal: str | None = None,
        asker: tuple[Handle, CallState] | None = None,
        shared_with: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Note in the audit what came of a request.

        Args:
            request: What was asked.
            answer: What was said, without secret fields.
            how: By what it is settled.
            effects: Collects what follows.
            principal: Who said it; None where nobody is known.
            asker: Whose call asked; None where the audit knows that already.
            shared_with: Handle and call of the others that waited.
        """
        now = self.clock.now()
        entry = self.audit.settled(request, answer, how, now, principal, asker, shared_with)
        if entry is None:
            return
        if is_logged():
            effects.add(write, entry.record())
        handle = self.handles.get(entry.handle_id)
        if handle is not None and handle._tree is not None:
            handle._tree.note_locked(request, entry.record().to_dict())
            effects.touch(handle._tree)

    # -- results, and who waits for them ----------------------------------------------------

    def new_future_locked(self, handle: Handle) -> HelpingFuture[TaskResult]:
        """Return a future for the next result of `handle`.

        It runs from birth, so that a holder's `cancel` cannot cut it loose from the turn.
        """
        future = HelpingFuture[TaskResult]()
        future.set_running_or_notify_cancel()
        if handle._waiters is None:
            handle._waiters = []
        handle._waiters.append(future)
        return future

    def publish_locked(self, handle: Handle, end: End, effects: Effects) -> None:
        """Make the result known to everybody who waits for it."""
        result = self.result_locked(handle, end)
        handle.last_result = result
        handle._ends += 1
        self.settle_waiters_locked(handle, result, effects)

    def settle_waiters_locked(
        self, handle: Handle, result: TaskResult, effects: Effects
    ) -> None:
        """Give `result` to whoever waits for `handle`, and end the streams of its turn."""
        waiters, handle._waiters = handle._waiters, None
        # A copy, for `drop_future` needs no lock.
        for future in tuple(waiters or ()):
            effects.settle(future, result)
        self.feeds.stop(handle)
        self.tell_watchers_locked(handle, effects)

    @staticmethod
    def forget_future_locked(handle: Handle, future: Future[TaskResult]) -> None:
        """Take back a future that `new_future_locked` gave."""
        if handle._waiters is not None and future in handle._waiters:
            handle._waiters.remove(future)

    @staticmethod
    def drop_future(handle: Handle, future: Future[TaskResult]) -> None:
        """Like `forget_future_locked`, for a finaliser, whose thread may hold any lock."""
        waiters = handle._waiters
        if waiters is not None:
            with suppress(ValueError):
                waiters.remove(future)

    def watch_locked(self, handle: Handle, signal: Signal) -> None:
        """Set `signal` when a run of `handle` next starts or ends."""
        if handle._watchers is None:
            handle._watchers = []
        handle._watchers.append(signal)

    def unwatch_locked(self, handle: Handle, signal: Signal) -> None:
        """Forget `signal`."""
        if handle._watchers is not None and signal in handle._watchers:
            handle._watchers.remove(signal)

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
            shown(request),
            path,
            handle.turns_total,
            handle.usage_tree,
            end.limit,
        )

    @staticmethod
    def is_stalled(handle: Handle) -> bool:
        """Whether the last turn failed for want of a provider or of budget."""
        return handle._failed is not None and handle._failed.stalls


def _not_wired(what: object) -> None:
    raise AssertionError(f"nobody sees to {what}")
