"""Handle: one spawned agent, its state, and the read-only views of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import attrs

from toolnexus.budget import Budget
from toolnexus.checkpoint import Checkpoint
from toolnexus.clock import Signal
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError, SpawnError
from toolnexus.messages import InboxItem, Message
from toolnexus.parts.part import Content
from toolnexus.results import TaskResult
from toolnexus.runtime import state
from toolnexus.runtime.definition import AgentDef
from toolnexus.runtime.inbox import Posted
from toolnexus.runtime.state import State
from toolnexus.suspension import Request, copy_of

if TYPE_CHECKING:
    from toolnexus.runtime.core import Core
    from toolnexus.runtime.feeds import EventLog
    from toolnexus.runtime.keeping import Keeper
    from toolnexus.runtime.run import Run
    from toolnexus.runtime.tree import Tree


@attrs.frozen
class FailedTurn:
    """What `retry` goes on with.

    Attributes:
        prompt: What the turn was woken with.
        checkpoint: Where it stopped; None where no model reply had come, so that nothing of it
            was kept.
        stalls: Whether it failed for want of a provider or of budget: then a parent that
            reattaches waits for the retry and does not take the failure for the result.
    """

    prompt: Content | None
    checkpoint: Checkpoint | None
    stalls: bool = False


class Handle:
    """One spawned agent. Made by `AgentRuntime.spawn`; a capability, not a registry key.

    Every attribute can be read from any thread. `state` is read without a lock; it is never
    torn. For a consistent picture of many handles take `AgentRuntime.list()`.

    Attributes:
        id: Deterministic and parent-scoped, such as `root/coordinator.1/explore.2`.
        definition: What it was spawned from.
        parent: The handle above; None for the root.
        depth: 0 for the root, 1 for its children.
        budget: The limits in force, after carving.
        turns_total: LLM calls of its own.
        usage_total: Tokens of its own LLM calls.
        usage_tree: Tokens of its own LLM calls and its descendants'.
        last_result: What its last turn gave; None before the first.
    """

    State: ClassVar[type[State]] = State

    __slots__ = (
        "__weakref__",
        "_children",
        "_core",
        "_ends",
        "_event_log",
        "_failed",
        "_inbox",
        "_is_closing",
        "_parked",
        "_queue",
        "_run",
        "_running_children",
        "_running_since",
        "_spawned",
        "_stale_runs",
        "_state",
        "_tool_calls",
        "_transcript",
        "_tree",
        "_waiters",
        "_wake_again",
        "_wall",
        "_was_told",
        "_watchers",
        "budget",
        "definition",
        "depth",
        "id",
        "last_result",
        "parent",
        "turns_total",
        "usage_total",
        "usage_tree",
    )

    def __init__(
        self,
        core: Core,
        handle_id: str,
        definition: AgentDef,
        parent: Handle | None,
        budget: Budget,
    ) -> None:
        self.id = handle_id
        self.definition = definition
        self.parent: Handle | None = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.budget = budget
        # -- guarded by the runtime's lock ------------------------------------------------
        self._core: Core = core
        # The run it belongs to, while that is this process's; None without a store.
        self._tree: Tree | None = None if parent is None else parent._tree
        # Results so far.
        self._ends = 0
        self._state = State.IDLE
        self._inbox: list[Posted] = []
        # Live children only; the empty dicts and lists are made when first needed, since a
        # runtime may hold very many parked handles.
        self._children: Mapping[str, Handle] = NO_CHILDREN
        self._spawned = 0
        self._transcript: list[Message] = []
        self._run: Run | None = None
        # Runs that were interrupted while foreign code had their thread; until they are gone
        # no other turn may start on top.
        self._stale_runs = 0
        self._parked: Checkpoint | None = None
        self._failed: FailedTurn | None = None
        self._waiters: list[Future[TaskResult]] | None = None
        # Set when a run starts or ends: whoever waits may then take a run over.
        self._watchers: list[Signal] | None = None
        self._wake_again = False
        self._is_closing = False
        # What its turn, replays included, has told, for streams that join late; None where it
        # is not streamed. Guarded by the lock of the runtime's feeds.
        self._event_log: EventLog | None = None
        # Whether on_close was called.
        self._was_told = False
        # Children whose turn waits for one of the max_concurrent places, in wake order.
        self._queue: deque[Run] | None = None
        self._running_children = 0
        self._tool_calls = 0
        self._wall = 0.0
        self._running_since: float | None = None
        self.turns_total = 0
        self.usage_total = 0
        self.usage_tree = 0
        self.last_result: TaskResult | None = None

    @property
    def state(self) -> state.State:
        """The state now; read without a lock, and from the store where runs are kept in one."""
        keeper = self._keeper()
        if keeper is not None and self.parent is not None:
            keeper.shells.refresh(self)
        return self._state

    @property
    def inbox(self) -> tuple[InboxItem, ...]:
        """What was posted and not yet consumed by a turn, oldest first."""
        keeper = self._keeper()
        is_closed = self._state is State.CLOSED  # its inbox is in no store any more
        if keeper is not None and self.parent is not None and not is_closed:
            return keeper.archive.inbox(self.id)
        return tuple(posted.item for posted in self._inbox)

    @property
    def children(self) -> tuple[Handle, ...]:
        """The live children, in the order of their numbers."""
        keeper = self._keeper()
        if keeper is not None:
            return keeper.shells.children_of(self)
        with self._core.lock:
            return tuple(self._in_order())

    @property
    def pending_request(self) -> Request | None:
        """The first open request in call order, its own or a child's; None where none is."""
        keeper = self._keeper()
        if keeper is not None and self.parent is not None:
            return keeper.archive.first_open(self.id)
        with self._core.lock:
            return shown(self._core.pending_of_locked(self))

    def __repr__(self) -> str:
        return f"<Handle {self.id} {self._state.value}>"

    def _keeper(self) -> Keeper | None:
        """Return who knows more of it than is here; None where this process has it all."""
        return None if self._tree is not None else self._core.keeper

    @property
    def _number(self) -> int:
        return 0 if self.parent is None else int(self.id.rpartition(".")[2])

    def unqueue(self, run: Run) -> None:
        """Take a child's run out of those that wait for a place. The lock is held."""
        if self._queue is not None and run in self._queue:
            self._queue.remove(run)

    def _in_order(self) -> list[Handle]:
        return sorted(self._children.values(), key=lambda child: child._number)

    def _wall_ms(self, now: float) -> float:
        running = 0.0 if self._running_since is None else now - self._running_since
        return (self._wall + running) * 1000


NO_CHILDREN: Mapping[str, Handle] = MappingProxyType({})


@attrs.frozen
class HandleView:
    """A handle as it was at one moment.

    Attributes:
        id: The handle's id.
        state: Its state.
        agent: Its definition's name.
        depth: 0 for the root.
        turns: LLM calls of its own.
        total_tokens: Tokens of it and its descendants.
        inbox: Items in the inbox.
        pending: The first open request in call order; None where none is.
        children: Live children.
        is_busy: Whether a turn is under way, or waits for its place: `running`, or about to be.
    """

    id: str
    state: State
    agent: str
    depth: int
    turns: int
    total_tokens: int
    inbox: int
    pending: Request | None
    children: int
    is_busy: bool = False


@attrs.frozen(repr=False)
class PendingRequest:
    """An open request and where it comes from.

    Its `repr` shows ids and names, not what is asked: a prompt or a URL may hold a secret.

    Attributes:
        request: The question.
        path: Id path of the handle that asked, by segment.
        agent: Name of the agent that asked.
        tool: Name of the tool that asked.
        arguments: What the tool was called with.
        call_id: The model's id of the call.
        asked_at: When it asked; aware, UTC.
        shared_with: Ids of further handles that wait for the same login.
    """

    request: Request
    path: tuple[str, ...]
    agent: str
    tool: str
    arguments: dict[str, JsonValue]
    call_id: str
    asked_at: datetime
    shared_with: tuple[str, ...] = ()

    @property
    def handle_id(self) -> str:
        """Id of the handle that asked."""
        return "/".join(self.path)

    @property
    def schema(self) -> Mapping[str, JsonValue] | None:
        """What the answer's data must fit; None for anything."""
        return self.request.schema

    @property
    def run_id(self) -> str:
        """Id of the handle right below the root that the asker works for, or is."""
        return "/".join(self.path[:2])

    def __repr__(self) -> str:
        return (
            f"<PendingRequest {self.request.id} of {self.handle_id}:"
            f" {self.request.kind} by {self.tool}>"
        )


@attrs.frozen
class Ack:
    """Whether a post or a wake was taken.

    Attributes:
        ok: True where it was.
        error: Why not; None where it was.
    """

    ok: bool
    error: str | None = None


class Spawn:
    """What `AgentRuntime.spawn` gave: a handle, or the reason why there is none."""

    __slots__ = ("_handle", "error")

    def __init__(self, handle: Handle | None, error: str | None = None) -> None:
        self._handle = handle
        self.error = error

    @property
    def ok(self) -> bool:
        """Whether there is a handle."""
        return self._handle is not None

    @property
    def handle(self) -> Handle:
        """The new handle.

        Raises:
            SpawnError: The spawn was refused; the text is `error`.
        """
        if self._handle is None:
            raise SpawnError(self.error or "spawn refused")
        return self._handle

    def __repr__(self) -> str:
        return f"Spawn({self._handle!r}, error={self.error!r})"


def no_handle(given: object) -> ConfigError:
    """Return the error of who gives something else where a handle is due."""
    hint = (
        f"; rt.handle({given!r}) gives it, or None where no such run is known"
        if isinstance(given, str)
        else ""
    )
    return ConfigError(f"expected a Handle, not {given!r}{hint}")


def shown(request: Request | None) -> Request | None:
    """Return a copy for the host, who may do with its data what it likes."""
    return None if request is None else copy_of(request)


def path_of(handle: Handle) -> tuple[str, ...]:
    """Return the id path of `handle`, by segment."""
    return tuple(handle.id.split("/"))


def surfaced(request: Request, handle: Handle) -> Request:
    """Return a request of `handle` as the outside knows it: with the handle's path in it."""
    return attrs.evolve(request, data={**(request.data or {}), "path": list(path_of(handle))})


def view_of(handle: Handle, pending: Request | None) -> HandleView:
    """Return `handle` as it is now. The caller holds the lock."""
    return HandleView(
        id=handle.id,
        state=handle._state,
        agent=handle.definition.name,
        depth=handle.depth,
        turns=handle.turns_total,
        total_tokens=handle.usage_tree,
        inbox=len(handle._inbox),
        pending=shown(pending),
        children=len(handle._children),
        is_busy=handle._run is not None,
    )
