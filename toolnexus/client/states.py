"""States: what a call is once it is begun, run again, or settled. Functions of it alone."""

from __future__ import annotations

from typing import Final

import attrs

from toolnexus.checkpoint import THE_TOOL, Asker, CallState, Exchange
from toolnexus.toolspec import ToolResult

THE_PROCESS_ENDED: Final = "the process ended"
NOT_STARTED: Final = "not executed: {reason}"
UNKNOWN_OUTCOME: Final = (
    "{reason} while the call was in flight: it may or may not have taken effect"
)
ANSWERED: Final = "not executed: {reason} after the question was answered: {prompt}"
UNANSWERED: Final = "not executed: {reason} before the question was answered: {prompt}"
CHILD_UNANSWERED: Final = "{reason} before the agent's question was answered: {prompt}"
SUPERSEDED: Final = "not executed: the user sent a new message"

LOST: Final = UNKNOWN_OUTCOME.format(reason=THE_PROCESS_ENDED)
"""What is known of a call that was in flight when its process ended, whatever came of it
since."""


def begun_call(call: CallState) -> CallState:
    """Return `call` as it is begun, with its accepted answer."""
    # Spelled out: `evolve` looks at every field, for each call.
    return CallState(
        call.id,
        call.name,
        call.arguments,
        "started",
        call.attempt + 1,
        call.request,
        call.asked_at,
        call.answer,
        child=call.child,
        by=call.by,
        once=call.once,
        approved=call.approved,
        proposed=call.proposed,
        number=call.number,
    )


def due_again(lost: CallState) -> CallState:
    """Return a call that was in flight as it is executed once more.

    The gates have let it pass, and are not asked again: a hook that changes the arguments would
    change them twice.
    """
    if lost.by.gate is not None:
        return attrs.evolve(
            lost, status="ready", request=None, asked_at=None, answer=None, by=THE_TOOL
        )
    return attrs.evolve(lost, status="ready" if lost.answer is None else "open")


def reattaching_call(call: CallState) -> CallState:
    """Return a begun call that has a child as it goes on to find that again.

    Its gates have let it pass, and what it asked before has its answers, for good: an answer
    that was in time then is not too late now.
    """
    if call.by.place is None or call.request is None or call.answer is None:
        return attrs.evolve(due_again(call), status="ready")
    past = (*call.by.past, Exchange(call.request, call.answer))
    return attrs.evolve(
        call, status="ready", request=None, asked_at=None, answer=None, by=Asker(past=past)
    )


def settle_call(call: CallState, reason: str) -> CallState:
    """Return `call` with a result; one that has none is told what is known of it."""
    if call.result is not None:
        return call
    if call.by.before is not None:
        text = LOST
    elif call.status == "ready" and call.child is None:
        text = NOT_STARTED.format(reason=reason)
    elif call.status == "open" and call.request is not None:
        form = UNANSWERED if call.child is None else CHILD_UNANSWERED
        if call.answer is not None:
            form = ANSWERED
        text = form.format(reason=reason, prompt=call.request.prompt)
    else:
        text = UNKNOWN_OUTCOME.format(reason=reason)
    return _ended(call, text)


def superseded_call(call: CallState) -> CallState:
    """Return `call` with a result; an open one was never decided, for the user went on."""
    if call.result is not None:
        return call
    return _ended(call, SUPERSEDED if call.by.before is None else LOST)


def _ended(call: CallState, text: str) -> CallState:
    return attrs.evolve(
        call,
        status="done",
        request=None,
        answer=None,
        result=ToolResult.error(text),
        by=THE_TOOL,
    )
