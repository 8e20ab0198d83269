"""Going on with a parked run: pure functions from one checkpoint to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs

from toolnexus.answering import is_refused, require_fit, sealed, without
from toolnexus.checkpoint import (
    CallState,
    Checkpoint,
    last_reply,
    result_told,
    results_by_call,
    tool_message,
)
from toolnexus.client.states import superseded_call
from toolnexus.client.turn import Turn
from toolnexus.clock import Clock
from toolnexus.codec import canonical
from toolnexus.errors import (
    AlreadyAnswered,
    ConfigError,
    NothingSuspended,
    UnknownRequest,
)
from toolnexus.forms import secret_fields
from toolnexus.messages import ANSWERED, Message
from toolnexus.suspension import RELAYED, Answer, Request, check_answer
from toolnexus.toolspec import Tool
from toolnexus.vault import Vault
from toolnexus.wire.calls import called, sound_call

T = TypeVar("T")

_NOTHING_OPEN: Final = "the last assistant message of the history has no open call"

DROPPED: Final = {"superseded": True}
"""What is kept of a request that nobody may answer any more."""


def accept(
    checkpoint: Checkpoint,
    answer: Answer,
    tools: Mapping[str, Tool],
    clock: Clock,
    vault: Vault,
) -> Checkpoint:
    """Return `checkpoint` with `answer` given to the calls that wait for it.

    An answer that was accepted before changes nothing, so that a second delivery executes
    nothing.

    Args:
        checkpoint: A parked run's.
        answer: To one of its open requests.
        tools: The run's, by name.
        clock: Says whether it comes too late.
        vault: Where its secret fields go.

    Raises:
        ConfigError: It is no `Answer`.
        NothingSuspended: No request is open.
        UnknownRequest: No open request has the answer's id.
        AlreadyAnswered: The request was answered, differently.
        RequestExpired: It came too late and is no decline.
        InvalidAnswer: It does not fit.
    """
    check_answer(answer)
    if was_answered(checkpoint.messages, answer):
        return checkpoint
    indexes = [
        index
        for index, call in enumerate(checkpoint.calls)
        if call.status == "open" and call.request is not None and call.request.id == answer.id
    ]
    if not indexes:
        waiting = len(checkpoint.requests)
        raise UnknownRequest(answer.id, waiting) if waiting else NothingSuspended(answer.id)
    calls = list(checkpoint.calls)
    for index in indexes:
        require_fit(calls[index], answer, clock, tools.get(calls[index].name))
    request = calls[indexes[0]].request
    assert request is not None  # noqa: S101 - checked above
    answer = sealed(request, answer, vault)
    for index in indexes:
        calls[index] = attrs.evolve(calls[index], answer=answer)
    return attrs.evolve(
        checkpoint, calls=tuple(calls), messages=_noted(checkpoint.messages, request, answer)
    )


def read_checkpoint(given: object) -> Checkpoint:
    """Return a checkpoint that a client can go on from, given as such or as its `to_dict`.

    Raises:
        ConfigError: It is neither, or is of a runtime's handle.
        WireFormatError: It was written by a newer release, or is malformed.
    """
    if not isinstance(given, (Checkpoint, Mapping)):
        raise ConfigError(
            "resume takes a Checkpoint, such as RunResult.checkpoint, or its to_dict(), "
            f"not {type(given).__name__}"
        )
    checkpoint = given if isinstance(given, Checkpoint) else Checkpoint.from_dict(given)
    if any(call.child is not None for call in checkpoint.calls):
        raise ConfigError("this checkpoint is of a runtime's handle: AgentRuntime.resume")
    return checkpoint


def tools_to_go_on_with(checkpoint: Checkpoint, tools: T | None) -> T | tuple[()]:
    """Return the tools; none where none were given and none are needed.

    Raises:
        ConfigError: None were given, and a call waits: its answer would be used up in vain.
    """
    if tools is not None:
        return tools
    waiting = [call.name for call in checkpoint.calls if call.status != "done"]
    if waiting:
        raise ConfigError(
            f"give the tools of the run, for the call of {waiting[0]!r} is open "
            "(tools=[] says that they are gone)"
        )
    return ()


def begun(checkpoint: Checkpoint, tools: Mapping[str, Tool]) -> Checkpoint | None:
    """Return what to keep while an answered call is executed; None where nothing can be.

    Whoever finds it later cannot know whether the call was executed: `Turn.restore` tells the
    model so. What was said to the tool is not kept. A relayed result, and a decline that the
    tool is not told, execute nothing, so these need no record: the same answer may come again.
    """
    calls = tuple(_begun(call, tools) for call in checkpoint.calls)
    return None if calls == checkpoint.calls else attrs.evolve(checkpoint, calls=calls)


def _begun(call: CallState, tools: Mapping[str, Tool]) -> CallState:
    tool = tools.get(call.name)
    relays = getattr(tool, "relays", False) is True
    if call.answer is None or relays or (tool is not None and is_refused(call, tool)):
        return call
    return attrs.evolve(call, status="started", attempt=call.attempt + 1, answer=None)


def was_answered(messages: Sequence[Message], answer: Answer) -> bool:
    """Say whether this very answer was accepted in this transcript.

    Raises:
        AlreadyAnswered: Another answer to the same request was; its data is not recorded.
    """
    for message in reversed(messages):
        recorded = message.get(ANSWERED)
        said = recorded.get(answer.id) if isinstance(recorded, Mapping) else None
        if isinstance(said, Mapping) and said != DROPPED:
            secret = said.get("secret")
            if said == _note_of(answer, secret if isinstance(secret, list) else ()):
                return True
            raise AlreadyAnswered(Answer(answer.id, ok=said.get("ok") is True))
    return False


def _note_of(answer: Answer, secret: Collection[str]) -> dict[str, Any]:
    """Return what is kept of an answer: enough to know it again, and no data of it.

    What a person said may be meant for the tool alone. Of a secret there is not even a digest:
    short ones can be guessed from that.
    """
    data = canonical(without(answer.data, secret))
    note = {"ok": answer.ok, "digest": hashlib.sha256(data.encode()).hexdigest()}
    return {**note, "secret": sorted(secret)} if secret else note


def superseded(checkpoint: Checkpoint) -> list[Message]:
    """Return the transcript with every open call settled: the user said something else.

    It remembers the ids of their requests: a later question has another one, so that a late
    answer does not fit it.
    """
    messages = list(checkpoint.messages)
    if checkpoint.requests:
        dropped = {request.id: dict(DROPPED) for request in checkpoint.requests}
        messages[-1] = {**messages[-1], ANSWERED: {**dropped, **messages[-1].get(ANSWERED, {})}}
    # Restored, for what was in flight in a process that is no more may have taken effect.
    calls = Turn.restore(checkpoint).calls
    return [*messages, *map(tool_message, map(superseded_call, calls))]


def rebuilt(history: Sequence[Message], pending: Request) -> Checkpoint:
    """Return where a halted run stands, from its messages alone.

    The state in the messages is used where they carry it. A host that kept plain messages has
    lost which call asked what. `pending` was the first open request in call order, so it is
    the first open call's, or that of the calls it lists where it is a relayed one; each other
    open call is executed anew and asks for itself: one answer never approves two questions.

    Raises:
        ConfigError: The history is empty, or none of its last calls is open.
        WireFormatError: The state that the messages carry cannot be read.
    """
    if not isinstance(pending, Request):
        raise ConfigError(f"pending must be the halted run's Request, not {pending!r}")
    if not history:
        raise ConfigError("the history of a halted run cannot be empty")
    given: object = history
    if not isinstance(given, Sequence) or not all(isinstance(one, Mapping) for one in given):
        raise ConfigError("the history of a halted run must be its messages, each a dict")
    exact = Checkpoint.from_messages(history)
    if exact is not None:
        return exact
    last = last_reply(history)
    if last is None:
        raise ConfigError(_NOTHING_OPEN)
    end = last + 1
    done = results_by_call(history[end:])
    asked = [sound_call(call, str(call.get("id"))) for call in called(history[last])]
    open_ids = [one.get("id") for one in asked if one.get("id") not in done]
    waiting = _waiting_on(pending, open_ids)
    calls = tuple(_rebuilt_call(call, done, waiting, pending) for call in asked)
    if all(call.status == "done" for call in calls):
        raise ConfigError(_NOTHING_OPEN)
    return Checkpoint(
        run=pending.id, base=last, messages=tuple(history[:end]), calls=calls, turns=1
    )


def _waiting_on(pending: Request, open_ids: Sequence[Any]) -> set[Any]:
    """Return the ids of the open calls that `pending` is the question of."""
    listed = (pending.data or {}).get("calls") if pending.kind == RELAYED else None
    if isinstance(listed, list):
        return {one.get("id") for one in listed if isinstance(one, Mapping)} & set(open_ids)
    return set(open_ids[:1])


def _rebuilt_call(
    call: Mapping[str, Any],
    done: Mapping[Any, Message],
    waiting: Container[Any],
    pending: Request,
) -> CallState:
    function = call.get("function") or {}
    state = CallState(
        str(call.get("id")),
        str(function.get("name")),
        str(function.get("arguments") or ""),
    )
    if call.get("id") in waiting:
        # Not as executed before: whether a hook or the tool asked is not known, so the hooks
        # look again before the tool is given the answer.
        state = attrs.evolve(state, status="open", request=pending)
    result = done.get(call.get("id"))
    if result is None:
        return state
    return attrs.evolve(state, status="done", request=None, result=result_told(result))


def _noted(
    messages: Sequence[Message], request: Request, answer: Answer
) -> tuple[Message, ...]:
    *before, halted = messages
    note = _note_of(answer, secret_fields(request))
    recorded = {**halted.get(ANSWERED, {}), answer.id: note}
    return (*before, {**halted, ANSWERED: recorded})
