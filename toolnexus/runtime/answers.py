"""Answers: accepting them, going on with the turn that waited, and the ancestors after it."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import attrs

from toolnexus.answering import asks_approval, require_fit, sealed
from toolnexus.approvals import edited_args
from toolnexus.budget import Budget
from toolnexus.checkpoint import CallState
from toolnexus.errors import ConfigError, NotAuthorized
from toolnexus.grants import is_under
from toolnexus.results import TaskResult
from toolnexus.runtime import ledger
from toolnexus.runtime.audit import How
from toolnexus.runtime.begun import Begun
from toolnexus.runtime.book import Accepted, OpenRequest, Place
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import Handle, PendingRequest
from toolnexus.runtime.run import End, HelpingFuture, Run, current_run
from toolnexus.runtime.settling import Settling
from toolnexus.runtime.spawning import BUSY_STALE, Spawning
from toolnexus.runtime.state import Cause
from toolnexus.runtime.task import tool_of
from toolnexus.runtime.tree import NotHeld, held_result
from toolnexus.runtime.views import view_locked, view_of_place
from toolnexus.runtime.waiting import Waiting, finish_or_start
from toolnexus.suspension import Answer, check_answer
from toolnexus.threads import wrapped
from toolnexus.toolspec import Tool
from toolnexus.workers import Job

if TYPE_CHECKING:
    from toolnexus.runtime.continuing import StoredAnswers
    from toolnexus.runtime.options import Authorize

logger = logging.getLogger(__name__)


class Answers:
    """Takes answers in and sees the cascade through."""

    def __init__(
        self, core: Core, settling: Settling, spawning: Spawning, waiting: Waiting
    ) -> None:
        self._core = core
        # Accepts answers where the requests are in a store; None where they are in memory.
        self.stored: StoredAnswers | None = None
        self._settling = settling
        self._spawning = spawning
        self._waiting = waiting

    def resume(self, answers: Sequence[Answer], principal: object = None) -> None:
        """Accept answers and block until no ancestor can go on. See `AgentRuntime.resume`."""
        self.see_through(self.accept(answers, principal))

    def future_resume(
        self, answers: Sequence[Answer], principal: object = None
    ) -> HelpingFuture[None]:
        """Accept answers and see them through elsewhere. See `AgentRuntime.future_resume`."""
        begun = self.accept(answers, principal)
        future = HelpingFuture[None]()
        future.set_running_or_notify_cancel()

        def go_on() -> None:
            try:
                self.see_through(begun)
            except BaseException as error:
                future.set_exception(error)
                raise
            future.set_result(None)

        context = contextvars.copy_context()
        job = Job(lambda: context.run(wrapped, go_on))
        wrap_job = self._core.options.wrap_job
        future.help = lambda timeout: finish_or_start(job, timeout, wrap_job)
        if any(one.request_id is not None for one in begun):
            # It waits for another process, and would keep a worker from its work.
            finish_or_start(job, 0, wrap_job)
        elif not self._core.pool.submit(job):
            job.run_if_unclaimed()
        return future

    def expire_due(self) -> tuple[str, ...]:
        """Settle what has expired and see it through. See `AgentRuntime.expire_due`."""
        begun, ids = self.settle_due()
        self.see_through(begun)
        return ids

    def settle_due(self) -> tuple[list[Begun], tuple[str, ...]]:
        """Settle what has expired; return what that starts, and the requests."""
        core = self._core
        if self.stored is not None:
            return self.stored.expire_due()
        begun: list[Begun] = []
        expired: list[str] = []
        now = core.clock.now()
        with core.deciding() as effects:
            for request in core.book.take_overdue(now):
                late = Answer(request.id, ok=False, reason="expired")
                begun += self._take_locked(core.book.find(late), late, effects, "expiry")
                expired.append(request.id)
        return begun, tuple(expired)

    def retry(self, handle: Handle, budget: Budget | None) -> TaskResult:
        """Go on with the turn that failed, here or below. See `AgentRuntime.retry`."""
        if budget is not None and not isinstance(budget, Budget):
            raise ConfigError(f"budget must be a Budget, not {budget!r}")
        try:
            return self._retry(handle, budget)
        except NotHeld as why:
            return held_result(why)

    def _retry(self, handle: Handle, budget: Budget | None) -> TaskResult:
        core = self._core
        with core.holding(handle), core.deciding() as effects:
            last = handle.last_result
            if last is None:
                raise ConfigError(f"{handle!r} has no turn to retry")
            if handle._stale_runs:
                return core.result_locked(handle, End("error", BUSY_STALE))
            if budget is not None:
                handle.budget = budget.over(handle.budget)
            run = self._spawning.retry_locked(handle, effects, is_awaited=True)
            if run is None:
                is_open = core.pending_of_locked(handle) is not None
                return core.result_locked(handle, End("pending")) if is_open else last
        self.see_through([Begun(handle.id, run, tree=handle._tree)])
        result = handle.last_result
        assert result is not None  # noqa: S101 - the run has ended
        return result

    # -- accepting ----------------------------------------------------------------------------

    def accept(self, answers: Sequence[Answer], principal: object = None) -> list[Begun]:
        """Record answers, all of them or none, and start what they set going.

        Raises:
            ResumeError: One fits nothing, or may not be given by `principal`; nothing has
                changed.
        """
        for answer in answers:
            check_answer(answer)
        _refuse_contradictions(answers)
        if answers and principal is None and self._core.options.authorize is not None:
            # Before all else: not even what is known of a request is for everybody.
            why = "authorize is set; say who answers: principal=..."
            raise NotAuthorized(answers[0].id, why)
        by = None if principal is None else str(principal)
        if self.stored is not None:
            return self.stored.accept(answers, partial(self._may, principal), by)
        while True:
            checked = [self._check(answer, principal) for answer in answers]
            with self._core.deciding() as effects:
                # Once more, for all at once: what was open a moment ago may be answered by now,
                # and another agent may have begun to wait for the same login.
                found = [self._core.book.find(answer) for answer in answers]
                if any(map(_has_more_places, found, checked)):
                    continue
                begun: list[Begun] = []
                for one, answer in zip(found, answers, strict=True):
                    begun += self._take_locked(one, answer, effects, "resume", by)
                return begun

    def _may(
        self, principal: object, call: CallState, pending: PendingRequest, answer: Answer
    ) -> None:
        """Let the host decide on an answer to a stored request.

        Raises:
            NotAuthorized: It did not say True.
        """
        authorize = self._core.options.authorize
        if authorize is not None:
            _authorize(authorize, principal, _as_answered(pending, call, answer))

    def _check(self, answer: Answer, principal: object) -> int:
        """Refuse what does not fit, without the lock: a gate and a tool are foreign code.

        Returns:
            For how many calls it was looked at.

        Raises:
            ResumeError: It does not.
        """
        core, authorize = self._core, self._core.options.authorize
        with core.lock:
            # Nobody unnamed is told what was recorded, nor lets a failed turn be tried again.
            accepted = core.book.accepted(answer.id)
            waiting = [] if accepted is not None else self._waiting_locked(answer)
        if accepted is not None:
            if authorize is not None and accepted.pending is not None:
                _authorize(authorize, principal, accepted.pending)
            with core.lock:
                core.book.find(answer)
        for call, tool, pending in waiting:
            if authorize is not None:
                _authorize(authorize, principal, _as_answered(pending(), call, answer))
            require_fit(call, answer, core.clock, tool)
        return len(waiting)

    def _waiting_locked(
        self, answer: Answer
    ) -> list[tuple[CallState, Tool | None, Callable[[], PendingRequest]]]:
        """Return the calls that wait for `answer`, and how each is shown to the host."""
        core = self._core
        found = core.book.find(answer)
        if isinstance(found, Accepted):
            return []
        waiting: list[tuple[CallState, Tool | None, Callable[[], PendingRequest]]] = []
        for place in found.places:
            call = core.call_locked(place)
            tool = tool_of(place.handle.definition, call.name)
            waiting.append((call, tool, partial(view_of_place, core, found, place, call)))
        return waiting

    def _take_locked(
        self,
        found: OpenRequest | Accepted,
        answer: Answer,
        effects: Effects,
        how: How,
        principal: str | None = None,
    ) -> list[Begun]:
        if isinstance(found, Accepted):
            return self._again_locked(found, effects)
        core, request = self._core, found.request
        if request.id not in core.book:
            return []  # twice in one list
        kept, places = sealed(request, answer, core.vault), found.places
        turns = frozenset[str]().union(*(ledger.turns_of(one.handle) for one in places))
        pending = view_locked(core, found) if core.options.authorize is not None else None
        first, *others = core.askers_locked(found)
        shared = [(handle.id, call.id) for handle, call in others]
        begun = [self.give_locked(one, kept, effects) for one in places]
        core.book.accept(found, answer, kept, turns, pending)
        core.settle_request_locked(request, kept, how, effects, principal, first, shared)
        return begun

    def give_locked(self, place: Place, answer: Answer, effects: Effects) -> Begun:
        """Give an accepted answer to a call, and let its turn go on."""
        core, handle = self._core, place.handle
        ok = str(answer.ok).lower()
        core.note_locked(handle, f"resume with Answer(ok={ok}) at checkpoint", effects)
        running = handle._run
        if running is not None and running.turn is not None:
            # A replay for an earlier answer is under way; it looks again before it parks.
            running.turn.answer(place.index, answer)
            return Begun(handle.id, None, is_taken=True, tree=handle._tree)
        halted = handle._parked
        assert halted is not None  # noqa: S101 - its request is open
        run = self._settling.replay_locked(handle, halted, effects, is_awaited=True)
        assert run.turn is not None  # noqa: S101 - a replay has its turn
        run.turn.answer(place.index, answer)
        return Begun(handle.id, run, is_taken=True, tree=handle._tree)

    def _again_locked(self, accepted: Accepted, effects: Effects) -> list[Begun]:
        """A known answer executes nothing, but a turn that failed on its way goes on."""
        return [
            Begun(handle_id, self.retry_locked(handle_id, accepted.runs, effects))
            for handle_id in accepted.handle_ids
        ]

    def retry_locked(
        self, handle_id: str, turns: frozenset[str], effects: Effects
    ) -> Run | None:
        """Go on with the turn that failed on the way of a known answer, if one has."""
        for one in self._line_locked(handle_id):
            failed = one._failed
            if failed is None or not failed.stalls or failed.checkpoint is None:
                continue
            if failed.checkpoint.run in turns:
                return self._spawning.retry_locked(one, effects, is_awaited=True)
        return None

    # -- seeing the cascade through -----------------------------------------------------------

    def see_through(self, begun: Sequence[Begun]) -> None:
        """Execute what nobody has begun, and wait until no ancestor is at it any more.

        In a tool, as far as that does not wait for the tool itself.

        Raises:
            StoreError: A run could not be written, and goes on elsewhere or by `recover`.
        """
        keeper = self._core.keeper
        runs = [one.run for one in begun if one.run is not None]
        for other in runs[1:]:
            self._waiting.give_to_workers(other)
        for run in runs[:1]:
            if run.is_started and not _is_above_this_thread(run.handle) and run.claim():
                run.execute()
            else:
                self._waiting.give_to_workers(run)
        for one in begun:
            self._wait_for_line(one.handle_id)
            if one.request_id is not None and self.stored is not None:
                self.stored.wait_elsewhere(one.handle_id, one.request_id, one.turns)
        if keeper is not None:
            keeper.require_kept([one.tree for one in begun if one.tree is not None])

    def _wait_for_line(self, handle_id: str) -> None:
        if _is_below_this_thread(handle_id):
            return
        while (busy := self._replaying(handle_id)) is not None:
            self._waiting.wait(*busy)

    def _replaying(self, handle_id: str) -> tuple[Handle, Future[TaskResult]] | None:
        core = self._core
        with core.lock:
            for one in self._line_locked(handle_id):
                if _is_above_this_thread(one):
                    return None
                run = one._run
                if run is not None and (run.cause is Cause.REPLAY or run.is_retry):
                    return one, core.new_future_locked(one)
        return None

    def _line_locked(self, handle_id: str) -> list[Handle]:
        """Return the live handles of an id path, deepest first."""
        parts = handle_id.split("/")
        ids = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
        return [self._core.handles[one] for one in ids if one in self._core.handles]


def several(answer: object) -> tuple[Answer, ...]:
    """Return one answer, or several, as a tuple; what is neither is found out later."""
    if isinstance(answer, Iterable) and not isinstance(answer, (str, bytes, Mapping)):
        return tuple(answer)
    return (answer,)  # type: ignore[return-value]  # checked where it is accepted


def _as_answered(pending: PendingRequest, call: CallState, answer: Answer) -> PendingRequest:
    """Return the request with the arguments that the answer would let the call run with."""
    edited = edited_args(answer.data) if answer.ok and asks_approval(call) else None
    return pending if edited is None else attrs.evolve(pending, arguments=edited)


def _has_more_places(found: OpenRequest | Accepted, checked: int) -> bool:
    return isinstance(found, OpenRequest) and len(found.places) > checked


def _refuse_contradictions(answers: Sequence[Answer]) -> None:
    said: dict[str, Answer] = {}
    for answer in answers:
        if said.setdefault(answer.id, answer) != answer:
            raise ConfigError(f"two different answers to request {answer.id!r} in one resume")


def _authorize(authorize: Authorize, principal: object, pending: PendingRequest) -> None:
    """Let the host decide who may answer what; a gate that fails stays shut.

    Raises:
        NotAuthorized: It did not say exactly True.
    """
    request_id = pending.request.id
    try:
        verdict: object = authorize(principal, pending)
    except Exception as error:
        logger.exception("authorize failed; the answer is not accepted")
        raise NotAuthorized(request_id, f"authorize failed: {type(error).__name__}") from None
    if verdict is not True:
        raise NotAuthorized(request_id, "authorize did not say True of who answers")


def _is_above_this_thread(handle: Handle) -> bool:
    """Whether this thread is in a tool of that handle's turn, or of one below it."""
    mine = current_run.get()
    return mine is not None and not mine.is_over and handle in ledger.chain(mine.handle)


def _is_below_this_thread(handle_id: str) -> bool:
    """Whether this thread is in a tool of a turn above that handle: its place may be needed."""
    mine = current_run.get()
    return mine is not None and not mine.is_over and is_under(handle_id, mine.handle.id)
