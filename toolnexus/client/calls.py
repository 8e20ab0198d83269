"""The tool calls of one assistant message: executed side by side, recorded in call order."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toolnexus.client.execution import Execution, execute_call
from toolnexus.errors import Cancelled
from toolnexus.suspension import Answer, Request, format_time
from toolnexus.toolspec import ToolResult, failure_text
from toolnexus.workers import Job

if TYPE_CHECKING:
    from toolnexus.client.loop import Kit
    from toolnexus.client.turn import Turn

logger = logging.getLogger(__name__)


class CallStalled(BaseException):
    """Unwinds a delegating call that keeps its place; no `except Exception` may stop it."""


def run_calls(turn: Turn, kit: Kit) -> None:
    """Execute what is due: calls not begun, and open ones whose answer has come.

    Afterwards each of them is done or open. Open ones have been offered to the nearest
    interpreter, in call order.
    """
    due = kit.host.due_calls(turn, kit.tools)
    _side_by_side([_bind(_run_call, turn, index, kit) for index in due], kit)
    for index in due:
        call = turn.calls[index]
        if call.status == "open" and call.child is None and call.answer is None:
            kit.cancel.raise_if_cancelled()
            _interpret(turn, index, kit)


def _bind(work: Callable[..., None], *args: Any) -> Callable[[], None]:
    return lambda: work(*args)


def _side_by_side(works: list[Callable[[], None]], kit: Kit) -> None:
    """Run all; the first here, the others on workers, or here if no worker has begun."""
    if not works:
        return
    jobs = []
    for work in works[1:]:
        job = Job(_bind(contextvars.copy_context().run, work))
        jobs.append(job)
        kit.pool.submit(job)
    try:
        works[0]()
        for job in jobs:
            job.run_if_unclaimed()
        for job in jobs:
            job.finish(kit.clock)
    except BaseException as error:
        # The thread is being ended: what has not begun never will.
        kit.cancel.cancel("interrupted")
        begun = [job for job in jobs if not job.claim()]
        if not isinstance(error, KeyboardInterrupt):
            for job in begun:
                job.wait(kit.clock)
        raise


def _run_call(turn: Turn, index: int, kit: Kit) -> None:
    if kit.cancel.is_cancelled:
        return  # not started: the settled transcript says so
    call = turn.start(index)
    try:
        done = execute_call(turn, index, call, kit)
    except CallStalled:
        turn.stall(index)
        return
    except Cancelled:
        return  # in flight when the run was stopped: the settled transcript says so
    except Exception as error:
        logger.exception("call %s of tool %s failed", call.id, call.name)
        done = Execution(ToolResult.error(f"the call failed: {failure_text(error)}"))
    request = done.result.request
    if request is None:
        turn.finish(index, done.result)
        return
    if turn.calls[index].child is None:
        request = kit.host.surface(request)
    turn.open(index, request, format_time(kit.clock.now()), done.gate)


def _interpret(turn: Turn, index: int, kit: Kit) -> None:
    """Offer an open call's question to `wait_for`, and go on with what that says.

    A question of the tool's own is answered once: a second one is left unresolved. A hook's
    question is another matter than the tool's, so both may be asked.
    """
    while True:
        call = turn.calls[index]
        request = call.request
        if call.status != "open" or request is None:
            return
        interpreter = kit.host.ask_inline(request)
        if interpreter is None:
            return
        answer = _ask_inline(interpreter, request)
        kit.host.answered_inline(request, answer)
        kit.cancel.raise_if_cancelled()
        turn.answer(index, answer)
        _run_call(turn, index, kit)
        again = turn.calls[index]
        if again.status == "open" and call.gate is None and again.request is not None:
            _give_up(turn, index, kit)
            turn.finish(index, ToolResult.error(f"unresolved: {again.request.prompt}"))


def give_up_open_calls(turn: Turn, kit: Kit) -> None:
    """Tell the tools of a run that is over that their open calls will not be answered."""
    for index, call in enumerate(turn.calls):
        if call.status in ("open", "started"):
            _give_up(turn, index, kit)


def _give_up(turn: Turn, index: int, kit: Kit) -> None:
    """Tell a tool that holds something for an open call that nobody will answer it."""
    give_up = getattr(kit.tools.get(turn.calls[index].name), "give_up", None)
    if callable(give_up):
        give_up(turn.key_of(index))


def _ask_inline(interpreter: Callable[[Request], object], request: Request) -> Answer:
    """Return what the interpreter said; anything but an answer to this request is a no."""
    try:
        answer = interpreter(request)
    except Exception as error:
        logger.exception("wait_for failed; the request is declined")
        return Answer(request.id, ok=False, reason=f"wait_for failed: {type(error).__name__}")
    if answer is None:
        return Answer(request.id, ok=False, reason="cancelled")
    if not isinstance(answer, Answer) or answer.id != request.id:
        logger.warning("wait_for gave no Answer to the request it was asked; declined")
        return Answer(request.id, ok=False, reason="wait_for answered something else")
    return answer
