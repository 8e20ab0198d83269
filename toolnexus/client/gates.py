"""Gates: who looks at a call before it is executed, and may stop it or ask a person."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs

from toolnexus import codec
from toolnexus.answering import argument_faults, asks_approval
from toolnexus.approvals import (
    APPROVAL_GATE,
    ProposedCall,
    approval_request,
    default_prompt,
    digest_of,
    edited_args,
    gate_of,
    verdict_of,
    wants_approval,
)
from toolnexus.checkpoint import Asker, CallState
from toolnexus.client.turn import Execution
from toolnexus.codec import JsonValue
from toolnexus.messages import ToolCall
from toolnexus.schema import misfit_text, parse_arguments
from toolnexus.toolspec import Tool, ToolContext, ToolResult

if TYPE_CHECKING:
    from toolnexus.client.loop import Kit
    from toolnexus.client.turn import Turn

logger = logging.getLogger(__name__)

Args: TypeAlias = dict[str, JsonValue]


def take_approval(
    turn: Turn, index: int, call: CallState, args: Args
) -> tuple[CallState, Args]:
    """Return the call and its arguments as a person has approved them, if one has."""
    if not asks_approval(call) or call.answer is None or call.request is None:
        return call, args
    edited = edited_args(call.answer.data)
    shown = str((call.request.data or {}).get("digest"))
    if edited is None or digest_of(call.name, edited) == shown:
        turn.approve(index, shown, None)
        return attrs.evolve(call, approved=shown), args
    digest = digest_of(call.name, edited)
    turn.approve(index, digest, codec.dumps(edited))
    # The hooks look at what a person has changed as at what a model has said.
    by = attrs.evolve(call.by, passed=(APPROVAL_GATE,))
    return attrs.evolve(call, approved=digest, by=by), edited


def pass_gates(
    as_asked: ToolCall, tool: Tool, args: Args, context: ToolContext, call: CallState, kit: Kit
) -> tuple[Args, Execution | None]:
    """Run the gates that have not let the call pass yet: the before-hooks, then the approval.

    All of them before its first execution; once a question of one is answered, those that
    have not let it pass, by name, for the list may be another one by now; none on a retry that
    the tool asked for, unless its tool has an approval by now that nothing let the call pass.

    Returns:
        The arguments to execute with, and what a gate put in the execution's place, if any did.
    """
    if call.attempt > 0 and call.by.gate is None:
        return args, _newly_gated(tool, args, context, call, kit)
    if not _has_gates(tool, kit):
        return args, None
    # The dialogue is the tool's: a gate that asks returns its question.
    context = attrs.evolve(context, dialogue=None)
    passed = list(call.by.passed)
    if call.by.gate is not None and not passed:  # as the first form had it
        passed = list(kit.hooks.gate_names[: call.by.gate + 1])
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
                args = _readable(verdict)
        except Exception as error:
            # A gate that fails stays shut.
            logger.exception("before_tool hook failed; the call is not executed")
            text = f"not executed: a before_tool hook failed ({type(error).__name__})"
            return args, Execution(ToolResult.error(text))
        if isinstance(verdict, ToolResult):
            return args, _stopped(verdict, position, passed)
    result = _approval(tool, args, context, call, kit)
    if result is None:
        return args, None
    hooks = [name for name in passed if name != APPROVAL_GATE]
    return args, _stopped(result, len(kit.hooks.before_tool), [*hooks, APPROVAL_GATE])


def _newly_gated(
    tool: Tool, args: Args, context: ToolContext, call: CallState, kit: Kit
) -> Execution | None:
    """Return what stands against a call that goes on though it never passed its tool's gate.

    It began before the tool had one. To ask now would take the place of what it has asked.
    """
    if gate_of(tool) is None or call.approved is not None:
        return None
    context = attrs.evolve(context, dialogue=None)
    result = _approval(tool, args, context, call, kit)
    if result is None or result.request is None:
        return None if result is None else Execution(result)
    text = f"not executed further: {tool.name} needs an approval by now; call it again"
    return Execution(ToolResult.error(text))


def let_pass(turn: Turn, index: int, tool: Tool, args: Args) -> None:
    """Note that a call has passed the gate of its tool, so that it may go on later."""
    if gate_of(tool) is not None and turn.calls[index].approved is None:
        turn.approve(index, digest_of(tool.name, args), None)


def _has_gates(tool: Tool, kit: Kit) -> bool:
    has_own = gate_of(tool) is not None
    return has_own or bool(kit.hooks.before_tool) or kit.approval_policy is not None


def _readable(given: Mapping[str, JsonValue]) -> Args:
    """Return arguments of a hook's own; they are kept as text, and read for each execution.

    Raises:
        ValueError: They could not be read.
    """
    codec.check_json(given, "arguments from before_tool")
    args = parse_arguments(codec.dumps(dict(given)), {})
    if isinstance(args, str):
        raise ValueError(args)  # noqa: TRY004 - it is a text that says why there are none
    return args


def _stopped(result: ToolResult, position: int, passed: list[str]) -> Execution:
    if result.request is None:
        return Execution(result)
    return Execution(result, Asker(position, tuple(passed)))


def _approval(
    tool: Tool, args: Args, context: ToolContext, call: CallState, kit: Kit
) -> ToolResult | None:
    """Return what stands against the call: a refusal, or the question; None where nothing."""
    prompt = wants_approval(tool, args, context)
    if prompt is None and kit.approval_policy is None:
        return None
    proposed = ProposedCall(
        tool=tool.name,
        arguments=codec.copy(args),
        handle_id=kit.host.handle_id,
        agent=kit.agent,
        needs_approval=prompt is not None,
    )
    verdict = verdict_of(kit.approval_policy, proposed)
    if verdict == "deny":
        return ToolResult.error(f"denied: the host's policy does not allow {tool.name} here")
    # An approval is for these arguments and no others.
    if verdict == "allow" or call.approved == digest_of(tool.name, args):
        return None
    problems = argument_faults(tool, args)
    if problems:
        return ToolResult.error(misfit_text(problems, tool.input_schema))
    if kit.host.is_granted(tool.name, args):
        return None
    prompt = prompt or default_prompt(tool.name, args)
    return ToolResult.pending(approval_request(tool.name, args, prompt))
