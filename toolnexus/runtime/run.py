"""Run: one admitted turn of a handle, from its wake to its end."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from toolnexus.cancel import CancelToken, run_callbacks
from toolnexus.client.tracing import NO_SPAN, Span
from toolnexus.messages import Status
from toolnexus.runtime.state import Cause
from toolnexus.suspension import Request
from toolnexus.threads import OwnThread, WrapJob, wrapped

if TYPE_CHECKING:
    from toolnexus.client.turn import Turn
    from toolnexus.parts.part import Content
    from toolnexus.runtime.handle import Handle
    from toolnexus.runtime.inbox import Posted

logger = logging.getLogger(__name__)

current_run: Final[ContextVar[Run | None]] = ContextVar("toolnexus_run", default=None)
"""The run whose work this thread does, so that a tool that stops its own handle never waits
for itself."""


@attrs.frozen
class End:
    """How a run ended.

    Attributes:
        status: What its result will say.
        text: The final text, or what went wrong.
        limit: Which limit stopped it; None else.
        stalls: Whether it failed for want of a provider or of budget, so that a retry can
            finish the work and nobody above should take the failure for its result.
        error_type: The sort of failure, where that is known.
    """

    status: Status
    text: str = ""
    limit: str | None = None
    stalls: bool = False
    error_type: str | None = None


T = TypeVar("T")


class HelpingFuture(Future[T]):
    """A future whose `result`, called by a tool, does the work that nobody has begun.

    A tool may hold the last worker; without this it would wait for a worker to come free.
    """

    help: Callable[[float | None], object] | None = None

    def result(self, timeout: float | None = None) -> T:
        """Return the result; see `concurrent.futures.Future.result`."""
        if self.help is not None and not self.done() and current_run.get() is not None:
            self.help(timeout)
        return super().result(timeout)


INTERRUPTED: Final = End("interrupted", "interrupted")


class Run:
    """One admitted turn. Exactly one thread claims and executes it.

    A run is either started at its admission or queued for a place below its parent, and then
    started by whoever gives the place up. A thread that waits for the result and has promised
    to take the run over (`is_awaited`) is woken when it starts; otherwise a worker is told.
    Whoever breaks that promise hands the run to the workers first.

    Attributes:
        handle: Whose turn it is.
        cause: `WAKE` for a fresh turn, `REPLAY` for one that goes on.
        prompt: What it was woken with; None for a bare wake.
        turn: The working state; None until the executing thread has made it.
        is_retry: Whether it goes on with a turn that failed.
        is_awaited: Whether a waiting thread takes it over, so that no worker is told.
        cancel: Ends it.
        model: The model's name; "" before it has begun.
        context: The waker's context variables.
        began: Clock instant of its admission.
        drained: Inbox items taken by it.
        is_started: Whether it has left the queue for a place below its parent.
        is_stopping: Whether an interrupt has begun: it may start nothing more.
        is_over: Whether its result is settled; what its thread does after that counts no more.
        is_stale: Whether its thread was still busy when its result was settled.
        asking: The request an inline interpreter is deciding now.
    """

    __slots__ = (
        "_claim",
        "asking",
        "began",
        "cancel",
        "cause",
        "context",
        "drained",
        "handle",
        "is_awaited",
        "is_over",
        "is_retry",
        "is_stale",
        "is_started",
        "is_stopping",
        "model",
        "prompt",
        "span",
        "tree",
        "turn",
    )

    def __init__(
        self,
        handle: Handle,
        cause: Cause,
        *,
        prompt: Content | None = None,
        turn: Turn | None = None,
        is_retry: bool = False,
        is_awaited: bool = False,
    ) -> None:
        self.handle = handle
        # What it belongs to in this process; its handle may be in another one by its end.
        self.tree = handle._tree
        self.cause = cause
        self.prompt = prompt
        self.is_retry = is_retry
        self.cancel = CancelToken()
        self.span: Span = NO_SPAN
        self.model = ""
        self.context = contextvars.copy_context()
        # Never released: whoever takes it executes the run.
        self._claim = threading.Lock()
        # -- guarded by the runtime's lock ------------------------------------------------
        self.turn = turn
        self.began = 0.0
        self.drained: list[Posted] = []
        self.is_started = False
        self.is_over = False
        self.is_stale = False
        self.is_stopping = False
        self.asking: Request | None = None
        self.is_awaited = is_awaited

    def claim(self) -> bool:
        """Take the run; True for exactly one caller, who then must `execute` it."""
        return self._claim.acquire(blocking=False)

    def execute(self) -> None:
        """Do the work on this thread. The caller has claimed the run.

        Raises:
            BaseException: A KeyboardInterrupt or the like, once the run is settled.
        """
        self.handle._core.execute(self)

    def run_if_unclaimed(self) -> bool:
        """Execute on a worker unless another thread has begun."""
        if not self.claim():
            return False
        try:
            self.execute()
        except BaseException:
            logger.exception("%s: the turn ended its thread", self.handle.id)
        return True


def execute_here(run: Run) -> None:
    """Do the work of `run` on this thread, unless another one has begun."""
    if run.claim():
        run.execute()


def throw(token: CancelToken, reason: str, wrap_job: WrapJob | None = None) -> None:
    """Cancel, and leave callbacks of foreign code, which may be slow, to a thread of theirs."""
    callbacks = token.throw(reason)
    if callbacks:
        thread = OwnThread(_run_foreign, "toolnexus-cancel", wrap_job, (callbacks,))
        try:
            thread.start()
        except RuntimeError:  # the machine gives no more threads
            _run_foreign(callbacks)


def _run_foreign(callbacks: list[Callable[[], object]]) -> None:
    try:
        wrapped(partial(run_callbacks, callbacks))
    except BaseException:
        logger.exception("a cancel callback ended its thread")
