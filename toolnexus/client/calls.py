"""The tool calls of one assistant message: executed side by side, recorded in call order."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from toolnexus.answering import asks_approval, require_fit, sealed
from toolnexus.checkpoint import Asker, CallState
from toolnexus.client.execution import execute_call
from toolnexus.client.relay import merge_relays
from toolnexus.client.turn import Execution
from toolnexus.codec import JsonValue
from toolnexus.errors import Cancelled, ConfigError, InvalidAnswer, RequestExpired, StoreError
from toolnexus.events import Event, Pending, ToolResultReady
from toolnexus.failures import failure_text
from toolnexus.forms import check_question, login_key
from toolnexus.messages import ToolCall
from toolnexus.suspension import Answer, Request, copy_of, format_time
from toolnexus.threads import wrapped
from toolnexus.toolspec import Tool, ToolResult
from toolnexus.workers import Job

if TYPE_CHECKING:
    from toolnexus.client.loop import Kit
    from toolnexus.client.turn import Turn

logger = logging.getLogger(__name__)

_TRIES: Final = 3
"""How often an inline interpreter may say what does not fit: it may be no person."""


_HAS_DELEGATED: Final = "a call that has delegated to an agent may ask nothing more"


class CallStalled(BaseException):
    """Unwinds a delegating call that keeps its place; no `except Exception` may stop it."""


def run_calls(turn: Turn, kit: Kit) -> Iterator[Event]:
    """Execute what is due: calls not begun, and open ones whose answer has come.

    Afterwards each of them is done or open. Open ones have been offered to the nearest
    interpreter, in call order. Yields what came of each, in call order, as early as that is
    known.
    """
    asked = {call.request.id for call in turn.calls if call.request is not None}
    due = kit.host.due_calls(turn, kit.tools)
    waiting = _to_offer_again(turn)
    # Not executed: the agent that they wait for has gone on to its next question.
    carried = [
        index
        for index, call in enumerate(turn.calls)
        if index not in due and call.request is not None and call.request.id not in asked
    ]
    told = 0
    works = [_bind(_run_call, turn, index, kit) for index in due]
    for ended, _ in enumerate(_side_by_side(works, kit)):
        if told == ended and turn.calls[due[told]].status == "done":
            yield _result_event(turn, due[told])
            told += 1
    _share_questions(turn, sorted([*due, *_unshared(turn, waiting)]), kit)
    yield from _settle_open(turn, sorted({*due[told:], *carried, *waiting}), kit)


def _to_offer_again(turn: Turn) -> list[int]:
    """Return the calls whose question nobody here was offered: another process asked it."""
    if not turn.offers_again:
        return []
    turn.offers_again = False
    return [
        index
        for index, call in enumerate(turn.calls)
        if call.status == "open" and call.answer is None and call.child is None
    ]


def _unshared(turn: Turn, waiting: Sequence[int]) -> list[int]:
    """Return those of `waiting` that their process left before they could wait together."""
    asked = ((index, turn.calls[index].request) for index in waiting)
    return [index for index, one in asked if one and "calls" not in (one.data or {})]


def _share_questions(turn: Turn, asked: Sequence[int], kit: Kit) -> None:
    """Let calls wait together where one answer is for all of them."""
    alone = list(turn.calls)
    merge_relays(turn, asked, kit.tools)
    _merge_logins(turn)
    if any(call is not other for call, other in zip(alone, turn.calls, strict=True)):
        kit.host.kept(turn)


def _merge_logins(turn: Turn) -> None:
    """Let the open calls that need a login to the same resource wait on one request."""
    first: dict[str, Request] = {}
    for index, call in enumerate(turn.calls):
        is_open = call.status == "open" and call.child is None and call.answer is None
        login = None if call.request is None else login_key(call.request)
        if not is_open or call.request is None or login is None:
            continue
        shared = first.setdefault(login, call.request)
        if shared is not call.request:
            turn.share([index], shared)


def results_known(turn: Turn) -> Iterator[Event]:
    """Yield what came of calls that have a result without being executed."""
    for index, call in enumerate(turn.calls):
        if call.status == "done":
            yield _result_event(turn, index)


def _settle_open(turn: Turn, indexes: Sequence[int], kit: Kit) -> Iterator[Event]:
    """Offer what is open to the nearest interpreter, and tell what came of it."""
    asked: set[str] = set()
    for index in indexes:
        call = turn.calls[index]
        if call.status == "open" and call.request is not None:
            if call.child is not None:
                yield from _tell_question(call, asked)
            elif call.answer is None:
                yield from _interpret(turn, index, kit, asked)
            else:
                # It shares the question of a call before it.
                kit.cancel.raise_if_cancelled()
                _run_call(turn, index, kit)
        if turn.calls[index].status == "done":
            yield _result_event(turn, index)


def _result_event(turn: Turn, index: int) -> Event:
    call = turn.calls[index]
    return ToolResultReady(_as_asked(call), call.result or ToolResult.error("no result"))


def _as_asked(call: CallState) -> ToolCall:
    return ToolCall(call.id, call.name, call.arguments)


def _bind(work: Callable[..., None], *args: Any) -> Callable[[], None]:
    return lambda: work(*args)


def _side_by_side(works: list[Callable[[], None]], kit: Kit) -> Iterator[None]:
    """Run all; the first here, the others on workers, or here if no worker has begun.

    Yields once for each, in order, when it is done.
    """
    if not works:
        return
    jobs = []
    for work in works[1:]:
        job = Job(_bind(contextvars.copy_context().run, work))
        jobs.append(job)
        kit.pool.submit(job)
    try:
        works[0]()
        yield
        ended = 0
        for job in jobs:
            job.run_if_unclaimed()
            while ended < len(jobs) and jobs[ended].is_done:
                jobs[ended].finish(kit.clock)
                ended += 1
                yield
        for job in jobs[ended:]:
            job.finish(kit.clock)
            yield
    except BaseException as error:
        # The thread is being ended, or nobody listens any more: what has not begun never will.
        kit.cancel.cancel("interrupted")
        begun = [job for job in jobs if not job.claim()]
        if not isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            for job in begun:
                job.wait(kit.clock)
        raise


def _run_call(turn: Turn, index: int, kit: Kit) -> None:
    if kit.cancel.is_cancelled:
        return  # not started: the settled transcript says so
    call = turn.start(index)
    try:
        done = wrapped(partial(execute_call, turn, index, call, kit))
    except CallStalled:
        turn.stall(index)
        kit.host.kept(turn)
        return
    except Cancelled:
        return  # in flight when the run was stopped: the settled transcript says so
    except StoreError:
        raise  # it is not the call that has failed: nothing more of the run could be kept
    except Exception as error:
        logger.exception("call %s of tool %s failed", call.id, call.name)
        done = Execution(ToolResult.error(f"the call failed: {failure_text(error)}"))
    if done.result.request is None:
        _finish(turn, index, kit.limits.fit(done.result, len(turn.calls)), kit)
    else:
        _park_call(turn, index, done.result.request, done.by, kit)
    halts = turn.calls[index].status == "open" and not any(map(_is_due, turn.calls))
    kit.host.kept(turn, is_followed=halts)


def _is_due(call: CallState) -> bool:
    return call.status in ("ready", "started") or (
        call.status == "open" and call.answer is not None
    )


def _park_call(turn: Turn, index: int, request: Request, by: Asker, kit: Kit) -> None:
    """Let a call wait for an answer, or end it where the question cannot be asked."""
    asked_at = format_time(kit.clock.now())
    call = turn.calls[index]
    if by.place is None and turn.is_asked_below(index, request):
        # What the tool has asked before it delegates has its answers.
        turn.open(index, request, asked_at, Asker(past=by.past))
        return
    problem = _problem_with(request) if call.child is None else _HAS_DELEGATED
    if problem is not None:
        logger.error("call %s of tool %s: %s", call.id, call.name, problem)
        _finish(turn, index, ToolResult.error(f"the question cannot be asked: {problem}"), kit)
        return
    turn.open(index, kit.host.surface(request), asked_at, by)


def _problem_with(request: Request) -> str | None:
    try:
        check_question(request)
    except ConfigError as error:
        return str(error)
    return None


def _finish(turn: Turn, index: int, result: ToolResult, kit: Kit) -> None:
    secrets = turn.secrets_of(index)
    turn.finish(index, result)
    if secrets:
        kit.vault.drop(secrets)


def _tell_question(call: CallState, asked: set[str]) -> Iterator[Event]:
    if call.request is not None and call.request.id not in asked:
        asked.add(call.request.id)
        yield Pending(_as_asked(call), copy_of(call.request))


def _interpret(turn: Turn, index: int, kit: Kit, asked: set[str]) -> Iterator[Event]:
    """Offer an open call's question to `wait_for`, and go on with what that says.

    A tool that returns a question is answered once: a second one is left unresolved. A gate's
    question is another matter than the tool's, and by `ctx.ask` a tool may ask several. A gate
    that asks for what it has asked for is left unresolved: a hook undoes what is changed.
    """
    shown: set[JsonValue] = set()
    while True:
        call = turn.calls[index]
        request = call.request
        if call.status != "open" or request is None:
            return
        yield from _tell_question(call, asked)
        kit.cancel.raise_if_cancelled()
        if turn.calls[index].answer is not None:
            return  # from outside, in the meantime: the next pass executes it
        interpreter = kit.host.ask_inline(request)
        if interpreter is None:
            return
        answer = sealed(request, _ask_inline(interpreter, call, request, kit), kit.vault)
        kit.host.answered_inline(turn, index, request, answer)
        kit.cancel.raise_if_cancelled()
        _run_call(turn, index, kit)
        _share_questions(turn, [index], kit)  # a gate's question may have come before its own
        again = turn.calls[index]
        is_second = _is_returned(call) and _is_returned(again)
        if asks_approval(call) and asks_approval(again) and again.request is not None:
            shown.add((request.data or {}).get("digest"))
            is_second = (again.request.data or {}).get("digest") in shown
        if again.status == "open" and is_second and again.request is not None:
            _give_up(turn, index, kit.tools)
            unresolved = ToolResult.error(f"unresolved: {again.request.prompt}")
            _finish(turn, index, kit.limits.fit(unresolved, len(turn.calls)), kit)
            kit.host.kept(turn)


def _is_returned(call: CallState) -> bool:
    """Whether the tool returned the question: it comes from nobody else."""
    return call.by.gate is None and call.by.place is None and call.by.before is None


def give_up_open_calls(
    turn: Turn, tools: Mapping[str, Tool], keep: Container[int] = ()
) -> None:
    """Tell the tools of a run that is over that their open calls will not be answered.

    Args:
        turn: The run's.
        tools: By name.
        keep: Positions of calls that were open before the run: whoever holds the checkpoint
            that it began from may still answer them.
    """
    for index, call in enumerate(turn.calls):
        if call.status in ("open", "started") and index not in keep:
            _give_up(turn, index, tools)


def _give_up(turn: Turn, index: int, tools: Mapping[str, Tool]) -> None:
    """Tell a tool that holds something for an open call that nobody will answer it."""
    give_up = getattr(tools.get(turn.calls[index].name), "give_up", None)
    if callable(give_up):
        try:
            give_up(turn.key_of(index))
        except Exception:
            logger.exception("a tool could not give an open call up")


def _ask_inline(
    interpreter: Callable[[Request], object], call: CallState, request: Request, kit: Kit
) -> Answer:
    """Return what the interpreter said; anything but a fitting answer to this is a no.

    One that does not fit is asked again, with the faults in the request's data.
    """
    faults: tuple[str, ...] = ()
    for _ in range(_TRIES):
        shown = copy_of(request) if not faults else _with_faults(request, faults)
        answer = _said(interpreter, shown)
        try:
            require_fit(call, answer, kit.clock, kit.tools.get(call.name))
        except RequestExpired:
            return Answer(request.id, ok=False, reason="expired")
        except InvalidAnswer as error:
            logger.warning("wait_for: %s", error)
            kit.cancel.raise_if_cancelled()
            faults = error.faults
        else:
            return answer
    return Answer(request.id, ok=False, reason=f"the answer does not fit: {faults[0]}")


def _with_faults(request: Request, faults: Sequence[str]) -> Request:
    return attrs.evolve(request, data={**(request.data or {}), "faults": list(faults)})


def _said(interpreter: Callable[[Request], object], request: Request) -> Answer:
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
