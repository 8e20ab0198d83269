"""One execution of one tool call: the gates before it, the tool, what is made of its result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import attrs

from toolnexus import codec
from toolnexus.checkpoint import CallState
from toolnexus.client.tracing import NO_SPAN, call_attributes, end_call, end_failed
from toolnexus.codec import JsonValue
from toolnexus.errors import Cancelled, WireFormatError
from toolnexus.messages import ToolCall
from toolnexus.parts.media import without_base64
from toolnexus.schema import faults, misfit_text, parse_arguments
from toolnexus.suspension import Answer
from toolnexus.toolspec import Tool, ToolContext, ToolResult, failure_text, handles_decline

if TYPE_CHECKING:
    from toolnexus.client.loop import Kit
    from toolnexus.client.turn import Turn

logger = logging.getLogger(__name__)

conversations_in_use: Final[ContextVar[frozenset[object]]] = ContextVar(
    "toolnexus_conversations", default=frozenset()
)
"""Conversations whose runs this thread's tool works for: it must not wait for them."""


@attrs.frozen
class Execution:
    """What an execution gave.

    Attributes:
        result: Final, or the question that the call suspends on.
        gate: Position of the hook that asked the question; None where the tool did.
        passed: Names of the hooks that have let the call pass, and of the one that asked.
    """

    result: ToolResult
    gate: int | None = None
    passed: tuple[str, ...] = ()


def execute_call(turn: Turn, index: int, call: CallState, kit: Kit) -> Execution:
    """Execute `call`, or say why not.

    Args:
        turn: The turn it belongs to; keeps the arguments that a hook rewrites.
        index: Its position there.
        call: As it was before this execution, its accepted answer included.
        kit: What the run works with.
    """
    tool = kit.tools.get(call.name)
    if tool is None:
        gone = "" if call.attempt == 0 else " (no longer available)"
        return Execution(ToolResult.error(f"Unknown tool: {call.name}{gone}"))
    if _is_refused(call, tool):
        return Execution(_declined(call))
    if call.attempt == 0 and call.gate is None:
        refused = kit.host.reserve_call()
        if refused is not None:
            return Execution(ToolResult.error(f"not executed: budget exhausted ({refused})"))
    args = parse_arguments(call.arguments, tool.input_schema)
    if isinstance(args, str):
        return Execution(ToolResult.error(args))
    if kit.conversation is None:
        return _misfit(tool, args) or _run(turn, index, call, tool, args, kit)
    held = conversations_in_use.get()
    token = conversations_in_use.set(held | {kit.conversation})
    try:
        return _misfit(tool, args) or _run(turn, index, call, tool, args, kit)
    finally:
        conversations_in_use.reset(token)


def _is_refused(call: CallState, tool: Tool) -> bool:
    """Whether a person said no; a tool may ask to hear its own no, never a hook's."""
    if call.answer is None or call.answer.ok:
        return False
    return call.gate is not None or not handles_decline(tool)


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


def _misfit(tool: Tool, args: dict[str, JsonValue]) -> Execution | None:
    """Return the error for arguments that do not fit; None where they do."""
    if getattr(tool, "checks_arguments", False):
        return None
    problems = faults(args, tool.input_schema)
    if not problems:
        return None
    return Execution(ToolResult.error(misfit_text(problems, tool.input_schema)))


def _run(
    turn: Turn, index: int, call: CallState, tool: Tool, args: dict[str, JsonValue], kit: Kit
) -> Execution:
    as_asked = ToolCall(call.id, call.name, call.arguments)
    context = _context(turn, index, call, kit)
    began = kit.clock.monotonic()
    passed, stopped = _pass_gates(as_asked, args, context, call, kit)
    if passed is not args:
        args = passed
        turn.rewrite(index, codec.dumps(args))
    # The hooks may have taken their time.
    kit.cancel.raise_if_cancelled()
    done = stopped or _misfit(tool, args) or _execute(tool, as_asked, args, context, kit)
    result = done.result
    kit.meter.emit(
        "tool",
        (kit.clock.monotonic() - began) * 1000,
        tool=call.name,
        source=tool.source,
        is_error=result.is_error,
        pending=result.request is not None,
        error=without_base64(result.output) if result.is_error else None,
    )
    if result.request is not None:
        return done
    for after in kit.hooks.after_tool:
        result = _after_tool(after, as_asked, args, result)
    return Execution(result)


def _context(turn: Turn, index: int, call: CallState, kit: Kit) -> ToolContext:
    deadline = None
    if kit.cancel.deadline is not None:
        left = kit.cancel.deadline - kit.clock.monotonic()
        deadline = kit.clock.now() + timedelta(seconds=left)
    answer = _answer_for_tool(call)
    return ToolContext(
        answer=answer,
        request=None if answer is None else call.request,
        cancel=kit.cancel,
        call_id=call.id,
        attempt=call.attempt + 1,
        idempotency_key=turn.key_of(index),
        handle_id=kit.host.handle_id,
        deadline=deadline,
        delegate=kit.host.delegate_for(turn, index),
    )


def _answer_for_tool(call: CallState) -> Answer | None:
    """Return the answer to the tool's own question, as a copy: the record is not the tool's."""
    if call.answer is None or call.gate is not None:
        return None
    return attrs.evolve(call.answer)


def _pass_gates(
    as_asked: ToolCall,
    args: dict[str, JsonValue],
    context: ToolContext,
    call: CallState,
    kit: Kit,
) -> tuple[dict[str, JsonValue], Execution | None]:
    """Run the before-hooks that have not let the call pass yet.

    All of them before its first execution; once a question of one is answered, those that
    have not let it pass, by name, for the list may be another one by now; none on a retry that
    the tool asked for.

    Returns:
        The arguments to execute with, and what a hook put in the execution's place, if any did.
    """
    if call.attempt > 0 and call.gate is None:
        return args, None
    passed = list(call.passed)
    if call.gate is not None and not passed:  # as the first form had it
        passed = list(kit.hooks.gate_names[: call.gate + 1])
    known = list(passed)
    for position, before in enumerate(kit.hooks.before_tool):
        name = kit.hooks.gate_names[position]
        if name in known:
            known.remove(name)
            continue
        passed.append(name)
        try:
            # A copy: what is executed is what a hook returned, not what it scribbled on.
            verdict = before(as_asked, codec.copy(args), context)
            if verdict is not None and not isinstance(verdict, ToolResult):
                codec.check_json(verdict, "arguments from before_tool")
                args = codec.copy(dict(verdict))
        except Exception as error:
            # A gate that fails stays shut.
            logger.exception("before_tool hook failed; the call is not executed")
            text = f"not executed: a before_tool hook failed ({type(error).__name__})"
            return args, Execution(ToolResult.error(text))
        if isinstance(verdict, ToolResult):
            gate = position if verdict.request is not None else None
            return args, Execution(verdict, gate, () if gate is None else tuple(passed))
    return args, None


def _execute(
    tool: Tool, call: ToolCall, args: dict[str, JsonValue], context: ToolContext, kit: Kit
) -> Execution:
    if kit.span is NO_SPAN:
        return Execution(_call_tool(tool, args, context))
    span = kit.span.child("execute_tool", tool.name, call_attributes(call))
    try:
        with span.current():
            result = _call_tool(tool, args, context)
    except BaseException as error:
        end_failed(span, error)
        raise
    end_call(span, result)
    return Execution(result)


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
            is_object = isinstance(result.metadata, Mapping)
        except WireFormatError:
            is_object = False
        if not is_object:
            logger.warning("tool %s: metadata that is no JSON object was dropped", tool.name)
            return attrs.evolve(result, metadata=None)
    return result


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
