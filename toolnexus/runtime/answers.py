"""Answers: accepting them, going on with the turn that waited, and the ancestors after it."""

from __future__ import annotations

import contextvars
from concurrent.futures import Future

from toolnexus.budget import Budget
from toolnexus.errors import ConfigError
from toolnexus.results import TaskResult
from toolnexus.runtime import ledger
from toolnexus.runtime.book import Accepted, OpenRequest
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.run import End, HelpingFuture, Run, current_run
from toolnexus.runtime.settling import Settling
from toolnexus.runtime.spawning import BUSY_STALE, Spawning
from toolnexus.runtime.state import Cause
from toolnexus.runtime.waiting import Waiting, finish_or_start
from toolnexus.suspension import Answer, check_answer, require_fit
from toolnexus.workers import Job


class Answers:
    """Takes answers in and sees the cascade through."""

    def __init__(
        self, core: Core, settling: Settling, spawning: Spawning, waiting: Waiting
    ) -> None:
        self._core = core
        self._settling = settling
        self._spawning = spawning
        self._waiting = waiting

    def resume(self, answer: Answer) -> None:
        """Accept `answer` and block until no ancestor can go on. See `AgentRuntime.resume`."""
        handle_id, run = self.accept(answer)
        self.see_through(handle_id, run)

    def future_resume(self, answer: Answer) -> HelpingFuture[None]:
        """Accept `answer` and see it through elsewhere. See `AgentRuntime.future_resume`."""
        handle_id, run = self.accept(answer)
        future = HelpingFuture[None]()
        future.set_running_or_notify_cancel()

        def see_through() -> None:
            try:
                self.see_through(handle_id, run)
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

    def accept(self, answer: Answer) -> tuple[str, Run | None]:
        """Record `answer` and start what it sets going.

        Returns:
            The id of the handle that asked, and the run that this call started, if any.

        Raises:
            ResumeError: The answer fits nothing; nothing has changed.
        """
        check_answer(answer)
        core = self._core
        with core.deciding() as effects:
            found = core.book.find(answer)
            if isinstance(found, Accepted):
                return found.handle_id, self._again_locked(found, effects)
            return found.handle.id, self._accept_locked(found, answer, effects)

    def retry(self, handle: Handle, budget: Budget | None) -> TaskResult:
        """Go on with the turn that failed, here or below. See `AgentRuntime.retry`."""
        core = self._core
        if budget is not None and not isinstance(budget, Budget):
            raise ConfigError(f"budget must be a Budget, not {budget!r}")
        with core.deciding() as effects:
            last = handle.last_result
            if last is None:
                raise ConfigError(f"{handle!r} has no turn to retry")
            if handle._stale_runs:
                return core.result_locked(handle, End("error", BUSY_STALE))
            if budget is not None:
                handle.budget = budget.over(handle.budget)
            run = self._spawning.retry_locked(handle, effects, is_awaited=True)
            if run is None:
                return last
        self.see_through(handle.id, run)
        result = handle.last_result
        assert result is not None  # noqa: S101 - the run has ended
        return result

    def _accept_locked(
        self, found: OpenRequest, answer: Answer, effects: Effects
    ) -> Run | None:
        core, handle = self._core, found.handle
        call = core.calls_locked(handle)[found.index]
        assert call.request is not None  # noqa: S101 - an open call has one
        require_fit(call.request, answer, core.clock)
        turns = _turns_of_locked(handle)
        ok = str(answer.ok).lower()
        core.note_locked(handle, f"resume with Answer(ok={ok}) at checkpoint", effects)
        running = handle._run
        if running is not None and running.turn is not None:
            # A replay for an earlier answer is under way; it looks again before it parks.
            running.turn.answer(found.index, answer)
            core.book.accept(answer, turns)
            return None
        halted = handle._parked
        assert halted is not None  # noqa: S101 - its request is open
        run = self._settling.replay_locked(handle, halted, effects, is_awaited=True)
        assert run.turn is not None  # noqa: S101 - a replay has its turn
        run.turn.answer(found.index, answer)
        core.book.accept(answer, turns)
        return run

    def _again_locked(self, accepted: Accepted, effects: Effects) -> Run | None:
        """A known answer executes nothing, but a turn that failed on its way goes on."""
        for one in self._line_locked(accepted.handle_id):
            failed = one._failed
            if failed is None or not failed.stalls or failed.checkpoint is None:
                continue
            if failed.checkpoint.run in accepted.runs:
                return self._spawning.retry_locked(one, effects, is_awaited=True)
        return None

    def see_through(self, handle_id: str, run: Run | None) -> None:
        """Execute what nobody has begun, and wait until no ancestor is at it any more.

        In a tool, as far as that does not wait for the tool itself.
        """
        if run is not None:
            if run.is_started and not _is_above_this_thread(run.handle) and run.claim():
                run.execute()
            else:
                self._waiting.give_to_workers(run)
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


def _turns_of_locked(handle: Handle) -> frozenset[str]:
    """Return the ids of the turns, parked or running, of `handle` and its ancestors."""
    found = set()
    for one in ledger.chain(handle):
        if one._parked is not None:
            found.add(one._parked.run)
        elif one._run is not None and one._run.turn is not None:
            found.add(one._run.turn.run)
    return frozenset(found)


def _is_above_this_thread(handle: Handle) -> bool:
    """Whether this thread is in a tool of that handle's turn, or of one below it."""
    mine = current_run.get()
    return mine is not None and not mine.is_over and handle in ledger.chain(mine.handle)


def _is_below_this_thread(handle_id: str) -> bool:
    """Whether this thread is in a tool of a turn above that handle: its place may be needed."""
    mine = current_run.get()
    return (
        mine is not None
        and not mine.is_over
        and f"{handle_id}/".startswith(f"{mine.handle.id}/")
    )
