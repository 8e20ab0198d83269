"""AgentRuntime: the verbs."""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal

from toolnexus import process
from toolnexus.budget import Budget
from toolnexus.client.options import options_from
from toolnexus.errors import ConfigError
from toolnexus.events import Event
from toolnexus.messages import InboxItem
from toolnexus.parts.part import Content, Prompt
from toolnexus.results import TaskResult
from toolnexus.runtime.answers import several
from toolnexus.runtime.assembly import assemble
from toolnexus.runtime.definition import AgentDef
from toolnexus.runtime.durable import Durable
from toolnexus.runtime.handle import Ack, Handle, Spawn
from toolnexus.runtime.housekeeping import Housekeeping
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.runtime.reading import Reading
from toolnexus.runtime.spawning import is_ancestor
from toolnexus.runtime.state import State
from toolnexus.runtime.tree import CLOSE, INTERRUPT, HeldElsewhere, NotHeld, RuntimeClosed
from toolnexus.suspension import Answer
from toolnexus.wire.parts import prompt_content

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from toolnexus.runtime.options import RuntimeOptionFields


class _Root(enum.Enum):
    """The word for "the root" that no lookup that failed can give by accident."""

    ROOT = "root"


class AgentRuntime(Reading, Housekeeping):
    """A tree of agents: in the memory of one process, or in a store that processes share.

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
            StoreError: With `recover`, the store does not work.
        """
        self.options: RuntimeOptions = options_from(RuntimeOptions, options, given)
        parts = assemble(self.options)
        self._core = parts.core
        self._closing, self._spawning = parts.closing, parts.spawning
        self._turns, self._answers = parts.turns, parts.answers
        self._outcomes, self._streaming = parts.outcomes, parts.streaming
        self._durable, self._lifetime = parts.durable, parts.lifetime
        process.watch(self._lifetime)
        if self.options.recover:
            self.recover()

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
        parent = self._core.own(parent)
        try:
            with self._core.holding(parent):
                return self._spawning.spawn(parent, name, budget)
        except NotHeld as why:
            return Spawn(None, str(why))

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
        handle = self._core.own(handle)
        try:
            with self._core.holding(handle):
                return self._spawning.post(handle, item, sender)
        except RuntimeClosed as why:
            return Ack(ok=False, error=str(why))
        except HeldElsewhere:
            return self._stored.post(handle, item, is_trusted=is_ancestor(sender, handle))

    def wake(
        self, handle: Handle, prompt: Prompt | None = None, *, streams: bool = False
    ) -> Ack:
        """Start a turn. Never blocks.

        Args:
            handle: An idle agent.
            prompt: What it is asked, a text or a list of texts and `Part`; None where the inbox
                says it all.
            streams: Whether its replies are streamed, and what it tells is kept for whoever
                joins it by `stream(handle)`; also once it goes on after a question.

        Returns:
            Refused as `busy` where a turn is under way and a prompt is given: nothing is ever
            dropped in silence. A bare wake of a running agent makes a turn follow if the inbox
            is not empty by then.
        """
        content, handle = self._content(prompt), self._core.own(handle)
        try:
            with self._core.holding(handle), self._core.deciding() as effects:
                return self._spawning.wake_locked(handle, content, effects, streams=streams)[0]
        except NotHeld as why:
            return Ack(ok=False, error=str(why))

    def run_turn(
        self, handle: Handle, prompt: Prompt | None = None, timeout: float | None = None
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
        content, handle = self._content(prompt), self._core.own(handle)
        return self._outcomes.run_turn(handle, content, timeout)

    def stream(
        self,
        handle: Handle,
        prompt: Prompt | None = None,
        *,
        answer: Answer | None = None,
        principal: object = None,
        tree: bool = False,
    ) -> Generator[Event, None, None]:
        """Yield what an agent's turn does while it does it; the last event is `Done`.

        A generator, which starts with its first event. It is a view: dropping it neither stops
        nor slows the turn, and a slow reader gets longer pieces of text, nothing less.

        Args:
            handle: Whose turn: an idle agent that is woken with `prompt`, or one that waits
                for `answer`. With neither, the stream joins the turn that is under way: what
                its streams were told so far comes first. Where none is, the last result is all
                it tells; before an agent's first turn it waits for that.
            prompt: What the agent is asked.
            answer: Resumes with this; ends when `resume` would return.
            principal: As for `resume`.
            tree: Whether the turns of agents below it are told too.

        Yields:
            Events with `handle_id`. `Done.result` is what `run_turn` would return: failures
            are results here, a refused wake too.

        Raises:
            ResumeError: As `resume`, with `answer`, at the first event.
        """
        content, handle = self._content(prompt), self._core.own(handle)
        if content is not None and answer is not None:
            raise ConfigError("give stream a prompt or an answer, not both")
        if content is not None:
            return self._streaming.turn(handle, content, tree=tree)
        if answer is not None:
            return self._streaming.resumed(handle, answer, principal, tree=tree)
        return self._streaming.joined(handle, tree=tree)

    def future_result(self, handle: Handle) -> Future[TaskResult]:
        """Return a future for the agent's next result; register it before `wake`. Never blocks.

        The future cannot be cancelled; `interrupt` is how a turn is stopped. A closed handle's
        is resolved already.
        """
        return self._outcomes.future(self._core.own(handle))

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
        return self._outcomes.wait_on(self._core.own(handle), timeout)

    def interrupt(self, handle: Handle) -> None:
        """Stop what an agent does, in mid-request; it goes to `idle`, never away.

        What its running or halted `task` calls do is stopped too; a suspended agent's request
        is withdrawn along the chain that carries it. Waiters get `interrupted`; the inbox is as
        before the turn, unless tools have run. Returns within moments, also where a tool cannot
        be stopped (that is dropped); for a run of another process once that one has done it.
        """
        handle = self._core.own(handle)
        try:
            with self._core.holding(handle, to_stop=INTERRUPT):
                self._closing.interrupt(handle)
        except HeldElsewhere:
            self._stored.interrupt(handle)
        except RuntimeClosed:
            pass  # nothing of it is under way here

    def close(
        self,
        handle: Handle | Literal[_Root.ROOT] = _Root.ROOT,
        *,
        force: bool = False,
        reason: str | None = None,
    ) -> None:
        """End an agent and everything below it, leaves first. Idempotent. Blocks.

        Closing the root ends the runtime: its threads and sockets too. With a store that is
        all it ends: what is parked stays, and turns under way are left to `recover`.

        Args:
            handle: Whom to end; the root where none is given.
            force: Do not give running turns `shutdown_ms` to finish.
            reason: What `on_close` is told; `interrupted` if forced, else `closed`.
        """
        self._closing.require_sense(force, reason)
        handle = self.root if handle is _Root.ROOT else self._core.own(handle)
        if handle.parent is not None:
            self._close(handle, force=force, reason=reason)
            return
        try:
            if self._durable is None:
                self._closing.close(handle, force=force, reason=reason)
            else:
                self._durable.detach(handle, self._closing, force=force, reason=reason)
        finally:
            process.unwatch(self._lifetime)
            self._lifetime.end()

    def _close(self, handle: Handle, *, force: bool, reason: str | None) -> None:
        try:
            with self._core.holding(handle, to_stop=CLOSE):
                self._closing.close(handle, force=force, reason=reason)
        except HeldElsewhere:
            self._stored.close(handle, self._closing, force=force, reason=reason)
        except RuntimeClosed:
            pass  # it is the store's now

    def resume(self, answer: Answer | Iterable[Answer], *, principal: object = None) -> None:
        """Answer an open request and block until no ancestor of the asker can go on.

        The halted call is executed with the answer (a decline executes nothing), then its
        turn goes on, then each suspended ancestor's. The same answer again executes nothing.

        Args:
            answer: Its id is the request's. Of several, all are checked first: either every one
                is accepted or none is.
            principal: Who answers: what `authorize` is given; the audit keeps its `str`.

        Raises:
            UnknownRequest: No open request has that id; nothing has changed.
            NothingSuspended: No request is open at all.
            AlreadyAnswered: It was answered differently; carries the recorded answer.
            RequestExpired: It came too late and is no decline.
            InvalidAnswer: It does not fit the request's schema, or the tool; lists every fault.
            NotAuthorized: `authorize` did not say True.
            ConfigError: It is no `Answer`, or two different ones have one id; or nobody here
                knows the agent that asks.
            StoreError: The store does not work; the same answer given again goes on.
        """
        self._answers.resume(several(answer), principal)

    def future_resume(
        self, answer: Answer | Iterable[Answer], *, principal: object = None
    ) -> Future[None]:
        """Answer an open request without blocking; the future ends when `resume` would.

        What `resume` raises is raised here, at once: `authorize` is called on this thread.
        """
        return self._answers.future_resume(several(answer), principal)

    def expire_due(self) -> tuple[str, ...]:
        """Settle every open request whose `expires_at` has passed. Blocks as `resume` does.

        The model is told that its call has expired, and the run goes on. Returns the ids of the
        requests. An inline `wait_for` is not cut short: what it says too late is refused then.
        """
        return self._answers.expire_due()

    def supersede(self, handle: Handle, prompt: Prompt, *, principal: object = None) -> Ack:
        """Drop what an agent waits for and start a turn with `prompt`. Blocks for moments only.

        Open calls are settled as not executed, and what works for them is closed. Nothing is
        approved by implication. An agent that waits for nothing is woken, as by `wake`.

        Args:
            handle: A suspended or idle agent.
            prompt: What the user says instead.
            principal: Who says so, for the audit; nothing is approved, so nobody is asked.

        Returns:
            Refused where a turn is under way, or a budget does not allow another one; then
            nothing has changed.
        """
        content = self._content(prompt)
        if content is None:
            raise ConfigError("supersede takes what the user says instead, not None")
        by = None if principal is None else str(principal)
        handle = self._core.own(handle)
        try:
            with self._core.holding(handle):
                return self._spawning.supersede(handle, content, by)
        except NotHeld as why:
            return Ack(ok=False, error=str(why))

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

    def __enter__(self) -> AgentRuntime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(force=kind is not None)

    @property
    def _stored(self) -> Durable:
        assert self._durable is not None  # noqa: S101 - only with a store a run is elsewhere
        return self._durable

    def __repr__(self) -> str:
        if self._core.root.state is State.CLOSED:
            return "<AgentRuntime closed>"
        return f"<AgentRuntime {len(self._core.handles) - 1} handles>"

    def _content(self, prompt: Prompt | None) -> Content | None:
        if prompt is None:
            return None
        options = self.options
        return prompt_content(prompt, style=options.style, max_bytes=options.max_part_bytes)
