"""Recovering: what becomes of the calls that were in flight when their process ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

import attrs

from toolnexus.answering import argument_faults, is_expired
from toolnexus.approvals import shown_call
from toolnexus.checkpoint import Asker, CallState
from toolnexus.client.states import LOST, due_again, reattaching_call
from toolnexus.client.turn import Turn
from toolnexus.clock import Clock
from toolnexus.codec import copy
from toolnexus.schema import parse_arguments
from toolnexus.suspension import Answer, Request, format_time, message_of
from toolnexus.toolspec import Tool, ToolResult
from toolnexus.unknown import UNKNOWN, policy_of

logger = logging.getLogger(__name__)

Verdict: TypeAlias = Literal["reattach", "retry", "ask", "error"]
"""It finds its child again; it runs again; a person is asked; its outcome stays unknown."""

_VERIFY: Final = f"{LOST}; verify that before trying again"


def recover_calls(
    turn: Turn,
    tools: Mapping[str, Tool],
    *,
    surface: Callable[[Request], Request],
    clock: Clock,
) -> dict[int, Verdict]:
    """Decide on each call that was in flight, as its tool wants it.

    None runs again unless its tool is `retry_safe` or a person says so, and none is given a
    result that it did not have. What was open already is offered once more to whoever decides
    inline.

    Args:
        turn: Restored with `keeps_in_flight`. Nobody else may have it yet.
        tools: By name, as the model has them now.
        surface: See `Host.surface`.
        clock: Says when a question is asked, and which answers are too old by now.

    Returns:
        What was decided, by the call's position.
    """
    decided: dict[int, Verdict] = {}
    # Without the lock, as these are questions to the tools.
    lost = {
        index: call.by.before or call
        for index, call in enumerate(turn.calls)
        if call.status == "started"
    }
    plans = {index: _plan(call, tools.get(call.name), clock) for index, call in lost.items()}
    with turn.lock:
        for index, call in lost.items():
            plan = plans[index]
            decided[index] = plan.verdict
            if plan.verdict == "ask":
                asked_at = format_time(clock.now())
                turn.open(index, surface(_question(call)), asked_at, Asker(before=call))
            elif plan.verdict == "error":
                turn.finish(index, ToolResult.error(plan.text))
            else:
                goes_on = due_again if plan.verdict == "retry" else reattaching_call
                turn.calls[index] = goes_on(call)
        turn.offers_again = True
    return decided


@attrs.frozen
class _Plan:
    """What is to become of a call; `text` is that of an error."""

    verdict: Verdict
    text: str = ""


def _plan(call: CallState, tool: Tool | None, clock: Clock) -> _Plan:
    if call.child is not None:
        return _Plan("reattach")
    if tool is None:
        return _Plan("error", gone_text(call, is_lost=True))
    policy = policy_of(tool)
    if policy == "error":
        return _Plan("error", _VERIFY)
    answer, request = call.answer, call.request
    if answer is not None and answer.ok and request and is_expired(request, clock.now()):
        return _Plan("error", f"{LOST}; it is not run again, for what allowed it has expired")
    misfit = _misfit(call, tool)
    if misfit is not None:
        return _Plan("error", f"{LOST}; it cannot run again: {misfit}")
    return _Plan(policy)


def _misfit(call: CallState, tool: Tool) -> str | None:
    """Return why the arguments do not fit the tool, which may be another one by now."""
    args = parse_arguments(call.arguments, {})
    if isinstance(args, str):
        return "its arguments cannot be read"
    try:
        problems = argument_faults(tool, args)
    except Exception:
        logger.exception("tool %s cannot say whether arguments fit", call.name)
        return "its arguments could not be checked"
    return f"its arguments no longer fit ({'; '.join(problems)})" if problems else None


def _question(call: CallState) -> Request:
    """Return the question whether a call is to run again."""
    args = parse_arguments(call.arguments, {})
    shown = args if isinstance(args, dict) else {}
    prompt = f"{shown_call(call.name, shown)}: {LOST}. Run it again?"
    data = {"tool": call.name, "args": copy(shown)}
    expires_at = None
    if call.answer is not None and call.answer.ok and call.request is not None:
        # A second yes cannot make the first one last longer.
        expires_at = call.request.expires_at
    return Request(UNKNOWN, prompt, data=data, expires_at=expires_at)


def not_again_text(answer: Answer) -> str:
    """Return what the model reads where a call that may have run is not run again."""
    who = "a person decided not to run it again"
    if answer.outcome != "declined":
        who = "nobody decided to run it again"
    said = [text for text in (answer.reason, message_of(answer.data)) if text]
    text = f"{LOST}; {who}"
    return f"{text} ({': '.join(said)})" if said else text


def gone_text(call: CallState, *, is_lost: bool = False) -> str:
    """Return what the model reads where the tool of its call is not there."""
    if is_lost or call.by.before is not None:
        return f"Unknown tool: {call.name} (no longer available); {LOST}"
    # One that has asked was there once.
    was_there = call.attempt > 0 or call.request is not None
    return f"Unknown tool: {call.name}{' (no longer available)' if was_there else ''}"
