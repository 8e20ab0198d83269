"""Outcomes: starting turns and waiting for their results, as the host asks for it."""

from __future__ import annotations

from concurrent.futures import Future

from toolnexus.parts.part import Content
from toolnexus.results import TaskResult
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import Ack, Handle
from toolnexus.runtime.run import End, HelpingFuture
from toolnexus.runtime.spawning import Spawning
from toolnexus.runtime.state import State
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
        with core.deciding() as effects:
            future = core.new_future_locked(handle)
            ack, run = self._spawning.wake_locked(
                handle, prompt, effects, is_awaited=timeout is None
            )
            if run is None and not ack.ok:
                core.forget_future_locked(handle, future)
                return core.result_locked(handle, refused_end(ack))
        return self._wait(handle, future, timeout)

    def future(self, handle: Handle) -> HelpingFuture[TaskResult]:
        """Return a future for the next result. See `AgentRuntime.future_result`."""
        core = self._core
        with core.deciding() as effects:
            future = core.new_future_locked(handle)
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
        with core.lock:
            standing = self.standing_locked(handle)
            if standing is not None:
                return standing
            future = core.new_future_locked(handle)
        return self._wait(handle, future, timeout)

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
