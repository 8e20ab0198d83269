"""One execution of one tool call: the gates before it, the tool, what is made of its result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs

from toolnexus import codec
from toolnexus.answering import is_expired, is_refused, unsealed
from toolnexus.checkpoint import THE_TOOL, Asker, CallState
from toolnexus.client.dialogue import Dialogue, Unwind
from toolnexus.client.gates import let_pass, pass_gates, take_approval
from toolnexus.client.recovering import gone_text, not_again_text
from toolnexus.client.tracing import NO_SPAN, call_attributes, end_call, end_failed
from toolnexus.client.turn import Execution
from toolnexus.codec import JsonValue
from toolnexus.errors import Cancelled, Declined, WireFormatError
from toolnexus.failures import failure_text, log_failure
from toolnexus.forms import masked
from toolnexus.messages import ToolCall
from toolnexus.parts.media import without_base64
from toolnexus.parts.part import Part, text_of_parts
from toolnexus.schema import faults, misfit_text, parse_arguments
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import (
    Tool,
    ToolContext,
    ToolResult,
    will_delegate,
)

if TYPE_CHECKING:
    from toolnexus.client.loop import Kit
    from toolnexus.client.turn import Turn

logger = logging.getLogger(__name__)

_SAID_IN_PARTS: Final = frozenset({"url", "file_url", "file_id", "filename"})
"""Where a part that is no text has words of the tool's."""

conversations_in_use: Final[ContextVar[frozenset[object]]] = ContextVar(
    "toolnexus_conversations", default=frozenset()
)
"""Conversations whose runs this thread's tool works for: it must not wait for them."""


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
        return Execution(ToolResult.error(gone_text(call)))
    call = _expired(call, kit)
    if call.answer is not None and call.request is not None and is_refused(call, tool):
        return Execution(ToolResult.error(_refusal(call, call.answer, call.request)))
    if call.by.before is not None:
        call = turn.again(index)
    if call.attempt == 0 and call.by.gate is None:
        refused = kit.host.reserve_call(turn, index)
        if refused is not None:
            return Execution(ToolResult.error(f"not executed: budget exhausted ({refused})"))
    args = parse_arguments(call.arguments, tool.input_schema)
    if isinstance(args, str):
        return Execution(ToolResult.error(args))
    call, args = take_approval(turn, index, call, args)
    if kit.conversation is None:
        return _misfit(tool, args) or _run(turn, index, call, tool, args, kit)
    held = conversations_in_use.get()
    token = conversations_in_use.set(held | {kit.conversation})
    try:
        return _misfit(tool, args) or _run(turn, index, call, tool, args, kit)
    finally:
        conversations_in_use.reset(token)


def _refusal(call: CallState, answer: Answer, request: Request) -> str:
    return answer.declined_text(request) if call.by.before is None else not_again_text(answer)


def _expired(call: CallState, kit: Kit) -> CallState:
    """Return `call` with a no in place of a yes that is carried out too late."""
    answer, request = call.answer, call.request
    if answer is None or request is None or not answer.ok:
        return call
    if not is_expired(request, kit.clock.now()):
        return call
    kit.host.note_expired(request)
    return attrs.evolve(call, answer=Answer(answer.id, ok=False, reason="expired"))


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
    passed, stopped = pass_gates(as_asked, tool, args, context, call, kit)
    if passed is not args:
        args = passed
        turn.rewrite(index, codec.dumps(args))
    if stopped is not None and call.approved is not None and call.request is not None:
        kit.host.note_stopped(call.request)
    # The hooks may have taken their time.
    kit.cancel.raise_if_cancelled()
    done = stopped or _misfit(tool, args)
    if done is None:
        let_pass(turn, index, tool, args)
        _enter(turn, index, tool, context, kit)
        done = _execute(tool, as_asked, args, context, kit)
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
    if stopped is None and turn.calls[index].proposed is not None:
        result = _with_note(result, args)
    return Execution(result)


def _enter(turn: Turn, index: int, tool: Tool, context: ToolContext, kit: Kit) -> None:
    """Note that the tool is executed from here on.

    Raises:
        StoreError: It could not be noted, so that the tool must not be executed.
    """
    # What runs a child has no effect of its own: it finds the child again.
    runs_child = context.delegate is not None
    if runs_child and will_delegate(tool, turn.calls[index].arguments):
        return
    turn.enter(index)
    kit.host.entering(turn, index)


def _with_note(result: ToolResult, args: Mapping[str, JsonValue]) -> ToolResult:
    """Return `result` with a word on the arguments that a person has changed."""
    note = f"[a person changed the arguments; it ran with {codec.dumps(args)}]"
    if result.parts:
        parts = (*result.parts, Part.text(note))
        return attrs.evolve(result, parts=parts, output=f"{result.output}\n{note}")
    return attrs.evolve(result, output=f"{result.output}\n\n{note}".strip())


def _context(turn: Turn, index: int, call: CallState, kit: Kit) -> ToolContext:
    deadline = None
    if kit.cancel.deadline is not None:
        left = kit.cancel.deadline - kit.clock.monotonic()
        deadline = kit.clock.now() + timedelta(seconds=left)
    answer = _answer_for_tool(call, kit)
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
        dialogue=Dialogue(turn, index, call, kit.vault, kit.clock, lambda: kit.host.kept(turn)),
    )


def _answer_for_tool(call: CallState, kit: Kit) -> Answer | None:
    """Return the answer to the tool's own question; None where it has to ask again."""
    if call.answer is None or call.request is None or call.by.gate is not None:
        return None
    if call.by.place is not None:
        # `ctx.ask` gives it, there: a tool that then looks at `ctx.answer` for the yes to a
        # question that it returns would take this for it.
        return None
    return unsealed(call.request, call.answer, kit.vault)


def _execute(
    tool: Tool, call: ToolCall, args: dict[str, JsonValue], context: ToolContext, kit: Kit
) -> Execution:
    result = _traced(tool, call, args, context, kit)
    dialogue = context.dialogue
    if result.request is None or dialogue is None:
        return Execution(result)
    if dialogue.place is None and not dialogue.past:
        return Execution(result, THE_TOOL)
    return Execution(result, Asker(place=dialogue.place, past=dialogue.past))


def _traced(
    tool: Tool, call: ToolCall, args: dict[str, JsonValue], context: ToolContext, kit: Kit
) -> ToolResult:
    if kit.span is NO_SPAN:
        return _call_tool(tool, args, context)
    span = kit.span.child("execute_tool", tool.name, call_attributes(call))
    try:
        with span.current():
            result = _call_tool(tool, args, context)
    except BaseException as error:
        end_failed(span, error)
        raise
    end_call(span, result)
    return result


def _call_tool(tool: Tool, args: dict[str, JsonValue], context: ToolContext) -> ToolResult:
    """Return what the tool gave, without the secrets that it was told.

    Raises:
        StoreError: A step of the tool could not be noted.
    """
    dialogue = context.dialogue
    if dialogue is None:
        return _result_of_tool(tool, args, context)
    try:
        result = _result_of_tool(tool, args, context)
    except Unwind as unwound:
        if unwound.dialogue is not dialogue:
            raise
        result = ToolResult("")  # the verdict stands in its place
    finally:
        dialogue.end()
    if dialogue.failure is not None:
        raise dialogue.failure
    if dialogue.verdict is not None:
        return dialogue.verdict
    return result if dialogue.mask is None else _masked(result, dialogue.mask)


def _result_of_tool(tool: Tool, args: dict[str, JsonValue], context: ToolContext) -> ToolResult:
    try:
        result = tool.execute(args, context)
    except Declined as declined:
        return ToolResult.error(str(declined))
    except Exception as error:
        if isinstance(error, Cancelled) and context.cancel.is_cancelled:
            raise
        log_failure(logger, tool.name, error, context)
        return ToolResult.error(failure_text(error))
    if isinstance(result, str):
        return ToolResult.ok(result)
    if not isinstance(result, ToolResult):
        return ToolResult.error(
            f"tool {tool.name} gave {type(result).__name__} where a ToolResult was due; "
            "it may have taken effect"
        )
    return _storable(tool, result)


def _masked(result: ToolResult, mask: Callable[[Any], Any]) -> ToolResult:
    """Return `result` without what a person entered for the tool alone."""
    request = result.request
    if request is not None:
        return ToolResult.pending(masked(request, mask))
    parts = tuple(_masked_part(part, mask) for part in result.parts)
    return attrs.evolve(
        result, parts=parts, output=mask(result.output), metadata=mask(result.metadata)
    )


def _masked_part(part: Part, mask: Callable[[Any], Any]) -> Part:
    """Return `part` without secrets in its text, name or address; its bytes stay."""
    if part.kind == "text":
        return Part.text(mask(text_of_parts((part,))))
    stored = part.to_dict()
    shown = _masked_outside_bytes(stored, mask)
    if shown == stored:
        return part
    try:
        return Part.from_dict(shown)
    except WireFormatError:
        return Part.text(f"[{part.kind} with a secret in its address: not shown]")


def _masked_outside_bytes(stored: JsonValue, mask: Callable[[Any], Any]) -> JsonValue:
    if isinstance(stored, Mapping):
        return {
            key: _masked_outside_bytes(item, mask)
            if isinstance(item, Mapping) or key in _SAID_IN_PARTS
            else item
            for key, item in stored.items()
        }
    return stored if not isinstance(stored, str) or stored.startswith("data:") else mask(stored)


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
