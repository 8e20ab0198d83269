"""AgentRuntime: the verbs."""

from __future__ import annotations

import contextvars
import enum
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal

from toolnexus import codec, process
from toolnexus.budget import Budget
from toolnexus.client.client import options_from
from toolnexus.errors import ConfigError
from toolnexus.messages import InboxItem, Message
from toolnexus.results import TaskResult
from toolnexus.runtime.admission import Admission
from toolnexus.runtime.answers import Answers
from toolnexus.runtime.closing import Closing
from toolnexus.runtime.core import Core
from toolnexus.runtime.definition import AgentDef
from toolnexus.runtime.delegation import Delegation
from toolnexus.runtime.handle import Ack, Handle, HandleView, PendingRequest, Spawn, view_of
from toolnexus.runtime.lifetime import Lifetime
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.runtime.run import End, HelpingFuture
from toolnexus.runtime.settling import Settling
from toolnexus.runtime.spawning import Spawning
from toolnexus.runtime.state import State
from toolnexus.runtime.turns import Turns
from toolnexus.runtime.views import open_requests
from toolnexus.runtime.waiting import Waiting, finish_or_start, refuse_self_wait, seconds_of
from toolnexus.suspension import Answer
from toolnexus.workers import Job

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from toolnexus.runtime.options import RuntimeOptionFields


class _Root(enum.Enum):
    """The word for "the root" that no lookup that failed can give by accident."""

    ROOT = "root"


class AgentRuntime:
    """A tree of agents in one process.

    Every verb can be called from any thread, tools and callbacks included. Verbs raise only for
    misuse by the host; what goes wrong in an agent is a `TaskResult`. A context manager that
    closes the root at the end.
    """

    def __init__(
        self, options: RuntimeOptions | None = None, **given: Unpack[RuntimeOptionFields]
    ) -> None:
        """Make a runtime from options, or from the same names given as keywords.

        Starts no thread and opens no socket; both come with the first turn.

        Raises:
            ConfigError: An option has the wrong type or value, or the registry does not fit.
        """
        self.options: RuntimeOptions = options_from(RuntimeOptions, options, given)
        core = self._core = Core(self.options)
        admission = Admission(core)
        settling = Settling(core, admission)
        self._waiting = waiting = Waiting(core)
        self._closing = closing = Closing(core, settling)
        self._spawning = spawning = Spawning(core, admission, settling, closing)
        delegation = Delegation(core, waiting, spawning, closing)
        self._turns = Turns(core, settling, closing, delegation)
        core.execute = self._turns.execute
        self._answers = Answers(core, settling, spawning, waiting)
        self._lifetime = Lifetime(core, settling, closing, self._turns)
        process.watch(self._lifetime)

    @property
    def root(self) -> Handle:
        """The root: the parent of what the host spawns. It runs no turns itself."""
        return self._core.root

    def spawn(
        self, parent: Handle, name: str | AgentDef, budget: Budget | None = None
    ) -> Spawn:
        """Make a new agent, in `idle`.

        Args:
            parent: The handle above it.
            name: An agent of the registry, or a definition of your own.
            budget: Limits that go before the definition's; tokens and tool calls are cut down
                to what the parent has left.

        Returns:
            The handle, or the reason against it: an unknown agent, a closed parent, a limit.
        """
        if not isinstance(name, (str, AgentDef)):
            raise ConfigError(f"spawn takes an agent's name or AgentDef, not {name!r}")
        return self._spawning.spawn(self._core.own(parent), name, budget)

    def post(self, handle: Handle, item: InboxItem, sender: Handle | None = None) -> Ack:
        """Put something into an agent's inbox; its next turn reads it. Never blocks.

        Args:
            handle: Whose inbox.
            item: What; `item.sender` is only what the model is told.
            sender: The agent on whose behalf. If that is an ancestor, or the post is made by a
                tool of an ancestor's turn, the text is no untrusted data.

        Returns:
            Refused where the inbox is full (`inbox_cap`) or the handle is closed.
        """
        if sender is not None:
            self._core.own(sender)
        return self._spawning.post(self._core.own(handle), item, sender)

    def wake(self, handle: Handle, prompt: str | None = None) -> Ack:
        """Start a turn. Never blocks.

        Args:
            handle: An idle agent.
            prompt: What it is asked; None where the inbox says it all.

        Returns:
            Refused as `busy` where a turn is under way and a prompt is given: nothing is ever
            dropped in silence. A bare wake of a running agent makes a turn follow if the inbox
            is not empty by then.
        """
        _check_prompt(prompt)
        handle = self._core.own(handle)
        with self._core.deciding() as effects:
            return self._spawning.wake_locked(handle, prompt, effects)[0]

    def run_turn(
        self, handle: Handle, prompt: str | None = None, timeout: float | None = None
    ) -> TaskResult:
        """Wake an agent and wait for its result, without a race. Blocks.

        Without a timeout the turn runs on the calling thread.

        Args:
            handle: An idle agent.
            prompt: What it is asked; None where the inbox says it all.
            timeout: Seconds; on expiry the result's status is `timeout` and the turn goes on.

        Returns:
            The turn's result; an `error` result that says why where the wake was refused.
        """
        _check_prompt(prompt)
        handle, core = self._core.own(handle), self._core
        timeout = seconds_of(timeout)
        with core.deciding() as effects:
            future = core.new_future_locked(handle)
            ack, run = self._spawning.wake_locked(
                handle, prompt, effects, is_awaited=timeout is None
            )
            if run is None and not ack.ok:
                core.forget_future_locked(handle, future)
                status = "closed" if ack.error == "closed" else "error"
                end = (
                    End("closed", "closed")
                    if status == "closed"
                    else End("error", ack.error or "")
                )
                return core.result_locked(handle, end)
        return self._wait(handle, future, timeout)

    def future_result(self, handle: Handle) -> Future[TaskResult]:
        """Return a future for the agent's next result; register it before `wake`. Never blocks.

        The future cannot be cancelled; `interrupt` is how a turn is stopped. A closed handle's
        is resolved already.
        """
        handle, core = self._core.own(handle), self._core
        with core.deciding() as effects:
            future = core.new_future_locked(handle)
            future.help = lambda timeout: self._waiting.help(handle, future, timeout)
            if handle._state is State.CLOSED or (handle._is_closing and handle._run is None):
                # This one only: others that wait are told when the closing is done.
                core.forget_future_locked(handle, future)
                effects.settle(future, core.result_locked(handle, End("closed", "closed")))
        return future

    def wait_on(self, handle: Handle, timeout: float | None = None) -> TaskResult:
        """Return the last result of a settled agent, else wait for the next one. Blocks.

        Settled is: idle with a result and nothing queued, suspended on an open request, or
        closed. For an agent that was never woken this waits until somebody wakes it.

        Args:
            handle: Any agent of this runtime.
            timeout: Seconds; on expiry the result's status is `timeout` and the agent goes on.

        Raises:
            ConfigError: The caller is a tool of that very turn, or of one that it waits for.
        """
        handle, core = self._core.own(handle), self._core
        timeout = seconds_of(timeout)
        refuse_self_wait(core, handle)
        with core.lock:
            last = handle.last_result
            is_ending = handle._is_closing and handle._run is None
            if handle._state is State.CLOSED or is_ending:
                return last or core.result_locked(handle, End("closed", "closed"))
            if handle._parked is not None:
                # Which of several requests is the first may have changed. Where all have been
                # answered the turn is about to go on, which is worth waiting for.
                if core.pending_of_locked(handle) is not None:
                    return core.result_locked(handle, End("pending"))
            elif handle._run is None and last is not None:
                return last
            future = core.new_future_locked(handle)
        return self._wait(handle, future, timeout)

    def interrupt(self, handle: Handle) -> None:
        """Stop what an agent does, in mid-request; it goes to `idle`, never away.

        What its running or halted `task` calls do is stopped as well. On a suspended agent the
        request is withdrawn along the whole chain that carries it. Waiters get `interrupted`;
        the inbox is as it was before the turn, unless tools have run. Returns within moments,
        also where a tool cannot be stopped: what that still does is dropped.
        """
        self._closing.interrupt(self._core.own(handle))

    def close(
        self,
        handle: Handle | Literal[_Root.ROOT] = _Root.ROOT,
        *,
        force: bool = False,
        reason: str | None = None,
    ) -> None:
        """End an agent and everything below it, leaves first. Idempotent. Blocks.

        Closing the root ends the runtime: its threads and sockets too.

        Args:
            handle: Whom to end; the root where none is given.
            force: Do not give running turns `shutdown_ms` to finish.
            reason: What `on_close` is told; `interrupted` if forced, else `closed`.
        """
        handle = self.root if handle is _Root.ROOT else self._core.own(handle)
        try:
            self._closing.close(handle, force=force, reason=reason)
        finally:
            if handle.parent is None:
                process.unwatch(self._lifetime)
                self._lifetime.end()

    def resume(self, answer: Answer) -> None:
        """Answer an open request and block until no ancestor of the asker can go on.

        The halted call is executed with the answer (a decline executes nothing), then its
        turn goes on, then each suspended ancestor's. The same answer again executes nothing.

        Args:
            answer: Its id is the request's.

        Raises:
            UnknownRequest: No open request has that id; nothing has changed.
            NothingSuspended: No request is open at all.
            AlreadyAnswered: It was answered differently; carries the recorded answer.
            RequestExpired: It came too late and is no decline.
            ConfigError: It is no `Answer`.
        """
        self._answers.resume(answer)

    def future_resume(self, answer: Answer) -> Future[None]:
        """Answer an open request without blocking; the future ends when `resume` would.

        What `resume` raises is raised here.
        """
        handle_id, run = self._answers.accept(answer)
        future = HelpingFuture[None]()
        future.set_running_or_notify_cancel()

        def see_through() -> None:
            try:
                self._answers.see_through(handle_id, run)
            except BaseException as error:
                future.set_exception(error)
                raise
            future.set_result(None)

        context = contextvars.copy_context()
        job = Job(lambda: context.run(see_through))
        future.help = lambda timeout: finish_or_start(job, timeout)
        if not self._core.pool.submit(job):
            job.run_if_unclaimed()
        return future

    def retry(self, handle: Handle, budget: Budget | None = None) -> TaskResult:
        """Go on with a turn that failed, from its last good step. Blocks.

        For a provider that was down or a budget that was spent: no finished tool runs again,
        an accepted answer stays accepted. Where the failure lies in an agent further down, that
        one is retried first.

        Args:
            handle: Whose work is to be finished.
            budget: Limits that go before its present ones, where those were spent.

        Returns:
            The new result, or the last one where there is nothing to retry.

        Raises:
            ConfigError: The handle never had a turn.
        """
        return self._answers.retry(self._core.own(handle), budget)

    def inspect(self, handle: Handle | str) -> HandleView | None:
        """Return one handle as it is now, by handle or id; None where the id is unknown."""
        core = self._core
        with core.lock:
            if isinstance(handle, str):
                found = core.find_locked(handle)
                if found is None:
                    return None
            else:
                found = core.own(handle)
            return view_of(found, core.pending_of_locked(found))

    def handle(self, handle_id: str) -> Handle | None:
        """Return the handle with that id, live or among the last closed; None else."""
        with self._core.lock:
            return self._core.find_locked(handle_id)

    def pending(self) -> tuple[PendingRequest, ...]:
        """Return every open request: oldest first, those of one turn in call order."""
        return open_requests(self._core)

    def transcript(self, handle: Handle) -> tuple[Message, ...]:
        """Return what completed turns have left of the agent's conversation.

        While a turn is under way or parked this is as it was before that turn.
        """
        handle = self._core.own(handle)
        with self._core.lock:
            messages = tuple(handle._transcript)
        return tuple(codec.copy(message) for message in messages)

    def trace(self) -> tuple[str, ...]:
        """Return the last `trace_limit` moves and events, oldest first."""
        with self._core.lock:
            return tuple(self._core.trace)

    def trace_has(self, fragment: str) -> bool:
        """Say whether a kept trace line contains `fragment`."""
        return any(fragment in line for line in self.trace())

    def __enter__(self) -> AgentRuntime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(force=kind is not None)

    def __repr__(self) -> str:
        if self._core.root.state is State.CLOSED:
            return "<AgentRuntime closed>"
        return f"<AgentRuntime {len(self._core.handles) - 1} handles>"

    # -- helpers ------------------------------------------------------------------------------

    def _wait(
        self, handle: Handle, future: Future[TaskResult], timeout: float | None
    ) -> TaskResult:
        result = self._waiting.wait(handle, future, timeout=timeout)
        if result is not None:
            return result
        with self._core.lock:
            ms = round((timeout or 0) * 1000)
            text = f"wait timeout after {ms}ms (child still {handle._state.value})"
            return self._core.result_locked(handle, End("timeout", text))

    # last: shadows the builtin in this class body
    def list(self) -> tuple[HandleView, ...]:
        """Return the live handles below the root, parents before children, at one moment."""
        core = self._core
        with core.lock:
            below = core.subtree_locked(core.root)[1:]
            return tuple(view_of(one, core.pending_of_locked(one)) for one in below)


def _check_prompt(prompt: object) -> None:
    if prompt is not None and not isinstance(prompt, str):
        raise ConfigError(f"the prompt must be a str or None, not {type(prompt).__name__}")
