"""Outcomes: starting turns and waiting for their results, as the host asks for it."""

from __future__ import annotations

from concurrent.futures import Future

from toolnexus.errors import StoreError
from toolnexus.parts.part import Content
from toolnexus.results import TaskResult
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import lost_result
from toolnexus.runtime.handle import Ack, Handle
from toolnexus.runtime.run import End, HelpingFuture
from toolnexus.runtime.spawning import Spawning
from toolnexus.runtime.state import State
from toolnexus.runtime.tree import NotHeld, Tree, held_result
from toolnexus.runtime.waiting import Waiting, refuse_self_wait, seconds_of


class Outcomes:
    """What `AgentRuntime` says of results. Every method is called without the lock."""

    def __init__(self, core: Core, spawning: Spawning, waiting: Waiting) -> None:
        self._core = core
        self._spawning = spawning
        self._waiting = waiting

    def run_turn(
        self, handle: Handle, prompt: Content | None, timeout: float | None
    ) -> TaskResult:
        """Wake an agent and wait for its result. See `AgentRuntime.run_turn`."""
        core = self._core
        timeout = seconds_of(timeout)
        try:
            with core.holding(handle), core.deciding() as effects:
                future = core.new_future_locked(handle)
                ack, run = self._spawning.wake_locked(
                    handle, prompt, effects, is_awaited=timeout is None
                )
                if run is None and not ack.ok:
                    core.forget_future_locked(handle, future)
                    return core.result_locked(handle, refused_end(ack))
        except NotHeld as why:
            return held_result(why)
        return self._wait(handle, future, timeout)

    def future(self, handle: Handle) -> HelpingFuture[TaskResult]:
        """Return a future for the next result. See `AgentRuntime.future_result`."""
        core = self._core
        self._look_up(handle)
        with core.deciding() as effects:
            future = core.new_future_locked(handle)
            left = self._left_locked(handle)
            if left is not None:
                core.forget_future_locked(handle, future)
                effects.settle(future, left)
                return future
            self.watch_locked(handle, future)
            effects.add(self.be_there)
            future.help = lambda timeout: self._waiting.help(handle, future, timeout)
            if handle._state is State.CLOSED or (handle._is_closing and handle._run is None):
                # This one only: others that wait are told when the closing is done.
                core.forget_future_locked(handle, future)
                effects.settle(future, core.result_locked(handle, End("closed", "closed")))
        return future

    def wait_on(self, handle: Handle, timeout: float | None) -> TaskResult:
        """Return the last result, or wait for the next. See `AgentRuntime.wait_on`."""
        core = self._core
        timeout = seconds_of(timeout)
        refuse_self_wait(core, handle)
        self._look_up(handle)
        found = self._written_or_next(handle)
        if isinstance(found, TaskResult):
            return found
        # Looked at once there is a future, so that no result comes in between.
        standing = self.standing_elsewhere(handle)
        if standing is not None:
            with core.lock:
                core.forget_future_locked(handle, found)
            return standing
        return self._wait(handle, found, timeout)

    def _written_or_next(self, handle: Handle) -> TaskResult | HelpingFuture[TaskResult]:
        """Return the result of a settled handle of this process, or a future for the next."""
        written: TaskResult | None = None
        while True:
            with self._core.lock:
                left = self._left_locked(handle)
                if left is not None:
                    return left
                standing, kept_in = self.standing_here_locked(handle), handle._tree
                future = self._core.new_future_locked(handle) if standing is None else None
                if future is not None:
                    self.watch_locked(handle, future)
            if future is not None:
                self.be_there()
                return future
            assert standing is not None  # noqa: S101 - there is no future
            if kept_in is None or standing == written:
                return standing
            # It may have been decided in this moment.
            lost = self.lost_in(kept_in)
            if lost is not None:
                return lost
            written = standing

    def standing_here_locked(self, handle: Handle) -> TaskResult | None:
        """Return the result of a settled handle of this process; None for another's too."""
        return self.standing_locked(handle) if self._is_here(handle) else None

    def lost_in(self, tree: Tree | None) -> TaskResult | None:
        """See that what was decided of a run is written; return what to say where it is not.

        A request that is told of can then be answered.
        """
        if tree is None or self._core.keeper is None:
            return None
        try:
            self._core.keeper.flush([tree])
        except StoreError as error:
            return lost_result(error)
        return None

    def standing_elsewhere(self, handle: Handle) -> TaskResult | None:
        """Return the result of a settled handle that this process does not have."""
        if self._is_here(handle) or self._core.keeper is None:
            return None
        return self._core.keeper.archive.standing(handle)

    def _look_up(self, handle: Handle) -> None:
        keeper = self._core.keeper
        if keeper is not None and handle.parent is not None and not keeper.is_detached:
            keeper.shells.refresh(handle)

    def _left_locked(self, handle: Handle) -> TaskResult | None:
        """Return what is known of a handle that a closed runtime has left; None for others."""
        keeper = self._core.keeper
        if keeper is None or handle.parent is None or not keeper.is_detached:
            return None
        return handle.last_result or self._core.result_locked(handle, End("closed", "closed"))

    def _is_here(self, handle: Handle) -> bool:
        return self._core.keeper is None or handle.parent is None or handle._tree is not None

    def watch_locked(self, handle: Handle, future: Future[TaskResult]) -> None:
        """Have the result told also where it comes in another process."""
        if self._core.keeper is not None:
            self._core.keeper.elsewhere.watch_locked(handle, future)

    def be_there(self) -> None:
        """Have somebody tell of it; called without the lock."""
        if self._core.keeper is not None:
            self._core.keeper.on_open()

    def standing_locked(self, handle: Handle) -> TaskResult | None:
        """Return the result of a settled handle; None where one is still to come."""
        core, last = self._core, handle.last_result
        is_ending = handle._is_closing and handle._run is None
        if handle._state is State.CLOSED or is_ending:
            return last or core.result_locked(handle, End("closed", "closed"))
        if handle._parked is not None:
            # Which of several requests is the first may have changed. Where all have been
            # answered the turn is about to go on, which is worth waiting for.
            if core.pending_of_locked(handle) is not None:
                return core.result_locked(handle, End("pending"))
        elif handle._run is None:
            return last
        return None

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


def refused_end(ack: Ack) -> End:
    """Return what a wake that was refused comes to."""
    return End("closed", "closed") if ack.error == "closed" else End("error", ack.error or "")
