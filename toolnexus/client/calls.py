"""The tool calls of one assistant message: executed side by side, recorded in call order."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus import codec
from toolnexus.checkpoint import CallState
from toolnexus.client.metrics import MetricEvent
from toolnexus.codec import JsonValue
from toolnexus.errors import Cancelled, WireFormatError
from toolnexus.messages import ToolCall
from toolnexus.schema import faults, misfit_text, parse_arguments
from toolnexus.suspension import Answer, Request, format_time
from toolnexus.toolspec import Tool, ToolContext, ToolResult, failure_text, handles_decline
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
        result = _decide(turn, index, call, kit)
    except CallStalled:
        turn.stall(index)
        return
    except Cancelled:
        return  # in flight when the run was stopped: the settled transcript says so
    except Exception as error:
        logger.exception("call %s of tool %s failed", call.id, call.name)
        result = ToolResult.error(f"the call failed: {type(error).__name__}: {error}")
    request = result.request
    if request is None:
        turn.finish(index, result)
        return
    if turn.calls[index].child is None:
        request = kit.host.surface(request)
    turn.open(index, request, format_time(kit.clock.now()))


def _interpret(turn: Turn, index: int, kit: Kit) -> None:
    """Offer an open call's question to `wait_for`; its answer is executed here, once."""
    call = turn.calls[index]
    request = call.request
    assert request is not None  # noqa: S101 - an open call has one
    interpreter = kit.host.ask_inline(request)
    if interpreter is None:
        return
    answer = _ask_inline(interpreter, request)
    kit.host.answered_inline(request, answer)
    kit.cancel.raise_if_cancelled()
    turn.answer(index, answer)
    call = turn.start(index)
    result = _decide(turn, index, call, kit)
    again = result.request
    if again is not None:
        result = ToolResult.error(f"unresolved: {again.prompt}")
    turn.finish(index, result)


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


def _decide(turn: Turn, index: int, call: CallState, kit: Kit) -> ToolResult:
    """Return the result of one execution of `call`, or of the reason not to execute it."""
    tool = kit.tools.get(call.name)
    if tool is None:
        gone = "" if call.attempt == 0 else " (no longer available)"
        return ToolResult.error(f"Unknown tool: {call.name}{gone}")
    if call.attempt == 0:
        refused = kit.host.reserve_call()
        if refused is not None:
            return ToolResult.error(f"not executed: budget exhausted ({refused})")
    elif call.answer is not None and not call.answer.ok and not handles_decline(tool):
        return _declined(call)
    args = parse_arguments(call.arguments, tool.input_schema)
    if isinstance(args, str):
        return ToolResult.error(args)
    if not getattr(tool, "checks_arguments", False):
        problems = faults(args, tool.input_schema)
        if problems:
            return ToolResult.error(misfit_text(problems, tool.input_schema))
    return _execute(turn, index, call, tool, args, kit)


def _declined(call: CallState) -> ToolResult:
    """Return what the model reads when a person said no; nothing was executed."""
    answer, request = call.answer, call.request
    assert answer is not None and request is not None  # noqa: S101, PT018 - an answered call
    text = f"declined/expired: {request.prompt}"
    said = [answer.reason] if answer.reason else []
    if isinstance(answer.data, Mapping) and isinstance(answer.data.get("message"), str):
        said.append(answer.data["message"])
    if said:
        text += f" ({': '.join(said)})"
    return ToolResult(text, is_error=True)


def _execute(
    turn: Turn, index: int, call: CallState, tool: Tool, args: dict[str, JsonValue], kit: Kit
) -> ToolResult:
    as_asked = ToolCall(call.id, call.name, call.arguments)
    context = _context(turn, index, call, kit)
    began = kit.clock.monotonic()
    result: ToolResult | None = None
    if call.attempt == 0 and kit.hooks.before_tool:
        verdict = _before_tool(as_asked, args, context, kit)
        if isinstance(verdict, ToolResult):
            result = verdict
        elif verdict is not args:
            args = verdict
            turn.rewrite(index, codec.dumps(args))
    if result is None:
        result = _call_tool(tool, args, context)
    final = result
    kit.meter.emit(
        lambda: MetricEvent(
            kind="tool",
            ms=(kit.clock.monotonic() - began) * 1000,
            tool=call.name,
            source=tool.source,
            is_error=final.is_error,
            pending=final.request is not None,
            error=final.output if final.is_error else None,
        )
    )
    if result.request is None:
        for after in kit.hooks.after_tool:
            result = _after_tool(after, as_asked, args, result)
    return result


def _context(turn: Turn, index: int, call: CallState, kit: Kit) -> ToolContext:
    deadline = None
    if kit.cancel.deadline is not None:
        left = kit.cancel.deadline - kit.clock.monotonic()
        deadline = kit.clock.now() + timedelta(seconds=left)
    return ToolContext(
        answer=call.answer,
        cancel=kit.cancel,
        call_id=call.id,
        attempt=call.attempt + 1,
        idempotency_key=f"{turn.run}-{turn.turns}-{index}",
        handle_id=kit.host.handle_id,
        deadline=deadline,
        delegate=kit.host.delegate_for(turn, index),
    )


def _call_tool(tool: Tool, args: dict[str, JsonValue], context: ToolContext) -> ToolResult:
    try:
        result = tool.execute(args, context)
    except Exception as error:
        if isinstance(error, Cancelled) and context.cancel.is_cancelled:
            raise
        logger.exception("tool %s failed", tool.name)
        return ToolResult.error(failure_text(error))
    if isinstance(result, str):
        return ToolResult.ok(result)
    if not isinstance(result, ToolResult):
        return ToolResult.error(
            f"tool {tool.name} gave {type(result).__name__} where a ToolResult was due; "
            "it may have taken effect"
        )
    return _storable(tool, result)


def _storable(tool: Tool, result: ToolResult) -> ToolResult:
    """Return `result` without metadata that could not be stored."""
    if result.metadata and result.request is None:
        try:
            codec.check_json(result.metadata, "metadata")
        except WireFormatError:
            logger.warning("tool %s: metadata that is not JSON was dropped", tool.name)
            return attrs.evolve(result, metadata=None)
    return result


def _before_tool(
    call: ToolCall, args: dict[str, JsonValue], context: ToolContext, kit: Kit
) -> dict[str, JsonValue] | ToolResult:
    """Run the before-hooks; a gate that fails stays shut."""
    for before in kit.hooks.before_tool:
        try:
            verdict = before(call, args, context)
            if verdict is not None and not isinstance(verdict, ToolResult):
                args = dict(verdict)
                codec.check_json(args, "arguments from before_tool")
        except Exception as error:
            logger.exception("before_tool hook failed; the call is not executed")
            return ToolResult.error(
                f"not executed: a before_tool hook failed ({type(error).__name__})"
            )
        if isinstance(verdict, ToolResult):
            return verdict
    return args


def _after_tool(
    after: Callable[..., ToolResult | None],
    call: ToolCall,
    args: Mapping[str, JsonValue],
    result: ToolResult,
) -> ToolResult:
    try:
        changed = after(call, args, result)
    except Exception as error:
        logger.exception("after_tool hook failed; the output is withheld")
        return ToolResult.error(
            f"the tool ran, but an after_tool hook failed ({type(error).__name__}); "
            "its output is withheld"
        )
    return changed if isinstance(changed, ToolResult) else result
