"""Stored: from what a store has of a handle back to the handle. The lock is held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs

from toolnexus.budget import Budget
from toolnexus.checkpoint import CallState, Checkpoint, result_told
from toolnexus.codec import JsonValue
from toolnexus.errors import StoreError
from toolnexus.messages import InboxItem, Message, Usage
from toolnexus.results import TaskResult
from toolnexus.runtime.handle import FailedTurn
from toolnexus.runtime.inbox import Posted
from toolnexus.runtime.snapshots import HEAD_FORM, Marks, asked_calls
from toolnexus.runtime.state import State
from toolnexus.stores.records import HandleRecord, StoredHandle
from toolnexus.wire.content import text_of

if TYPE_CHECKING:
    from toolnexus.parts.part import Content
    from toolnexus.runtime.handle import Handle

_COUNTS: Final = (
    "spawned",
    "children",
    "inbox",
    "turns",
    "tokens",
    "treeTokens",
    "toolCalls",
    "wallMs",
    "ends",
)
"""What of a head is a number."""


@attrs.frozen
class Halted:
    """A turn that was under way when it was written last.

    Attributes:
        checkpoint: Where it stood; None where no reply had come.
        prompt: What it was woken with; None once a reply had come, or for a bare wake.
        is_retry: Whether children that failed are retried as well.
        is_closing: Whether the handle was being closed: then that goes on, and no turn.
    """

    checkpoint: Checkpoint | None
    prompt: Content | None
    is_retry: bool
    is_closing: bool = False


def readable_head(record: HandleRecord) -> Mapping[str, JsonValue]:
    """Return the head of a record.

    Raises:
        StoreError: It cannot be read, or a newer release wrote it; names the handle.
    """
    head = record.head
    if record.fault is not None or not isinstance(head, Mapping):
        raise StoreError(f"the record of {record.id} cannot be read: {record.fault}")
    if head.get("form") != HEAD_FORM:
        raise StoreError(
            f"the record of {record.id} has form {head.get('form')!r}; this release reads "
            f"{HEAD_FORM}"
        )
    wrong = next((key for key in _COUNTS if type(head.get(key)) is not int), None)
    if wrong is not None:
        raise StoreError(
            f"the record of {record.id} cannot be read: its {wrong!r} is no number"
        )
    return head


def is_busy(head: Mapping[str, JsonValue]) -> bool:
    """Whether a turn was under way, or admitted and waiting for its place."""
    return "run" in head or "isClosing" in head


def refill(handle: Handle, stored: StoredHandle) -> tuple[Marks, Halted | None]:
    """Make `handle` what the store says.

    Returns:
        What the store has of it, and the turn that was under way, if one was.

    Raises:
        StoreError: A part of it is malformed; names the handle.
    """
    head = readable_head(stored.record)
    with reading(f"the record of {handle.id}"):
        return _refill(handle, stored, head)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Read what is JSON, and may lack a part all the same.

    Raises:
        StoreError: It does; says of what.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{what} cannot be read: {error!r}") from error


def _refill(
    handle: Handle, stored: StoredHandle, head: Mapping[str, Any]
) -> tuple[Marks, Halted | None]:
    run = head.get("run")
    turn = head.get("turn") if run is None else run.get("turn")
    failed = head.get("failed")
    told = stored.messages
    messages = _contiguous(told)
    checkpoint = None
    if turn is not None:
        checkpoint = _checkpoint(turn, messages, stored)
        messages = messages[: turn["length"]]
        handle._transcript = messages[: turn["base"]]
    else:
        handle._transcript = messages
    restore_counts(handle, head)
    handle._inbox = [posted_of(post) for post in stored.posts.values()]
    handle._parked = checkpoint if run is None else None
    handle._failed = None if failed is None else _failed(failed, messages, stored)
    handle.last_result = restored_result(head, handle._transcript)
    # A turn that was under way begins anew, from `idle`.
    handle._state = State.IDLE if run is not None else State(stored.record.state)
    calls = () if checkpoint is None else checkpoint.calls
    if handle._failed is not None and handle._failed.checkpoint is not None:
        calls = handle._failed.checkpoint.calls
    marks = Marks(
        stamp=(),
        source=messages,
        count=len(messages),
        results={
            len(messages) + index: call
            for index, call in enumerate(calls)
            if call.status == "done" and handle._failed is None
        },
        calls=calls,
        rows=frozenset(stored.calls),
        posts=tuple(zip(stored.posts, handle._inbox, strict=True)),
        next_post=max(stored.posts, default=-1) + 1,
    )
    if head.get("isClosing"):
        return marks, Halted(None, None, is_retry=False, is_closing=True)
    if run is None:
        return marks, None
    return marks, Halted(checkpoint, run.get("prompt"), run.get("isRetry", False))


def restore_counts(handle: Handle, head: Mapping[str, Any]) -> None:
    """Set what of a head is a number, or a limit."""
    handle.budget = Budget.from_dict(head["budget"])
    handle._spawned = head["spawned"]
    handle.turns_total = head["turns"]
    handle.usage_total = head["tokens"]
    handle.usage_tree = head["treeTokens"]
    handle._tool_calls = head["toolCalls"]
    handle._wall = head["wallMs"] / 1000
    handle._ends = head["ends"]
    handle._wake_again = head.get("wakeAgain", False)
    handle._is_closing = handle._was_told = False
    handle._queue = None
    handle._running_children = 0


def restored_result(
    head: Mapping[str, Any], transcript: Sequence[Message]
) -> TaskResult | None:
    """Return the last result; one that is pending without its request.

    Args:
        head: The handle's.
        transcript: What its completed turns have left.
    """
    stored = head.get("result")
    if stored is None:
        return None
    if "text" not in stored:
        is_done = stored["status"] == "done" and transcript
        text = text_of(transcript[-1].get("content")) if is_done else ""
        stored = {**stored, "text": text}
    return TaskResult.from_dict(stored)


def turn_in(head: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return where the turn stands that is under way or parked; nothing without a reply."""
    turn: Mapping[str, Any] = head.get("run", head).get("turn") or {}
    return turn


def transcript_of(head: Mapping[str, Any], told: Mapping[int, JsonValue]) -> list[Message]:
    """Return what the completed turns of a handle have left."""
    messages = _contiguous(told)
    turn = turn_in(head)
    return messages[: turn["base"]] if turn else messages


def _contiguous(told: Mapping[int, JsonValue]) -> list[Message]:
    """Return the messages up to the first gap: behind that there are results of calls."""
    messages: list[Message] = []
    for position, message in told.items():
        if position != len(messages):
            break
        messages.append(message)
    return messages


def _checkpoint(
    turn: Mapping[str, Any], messages: list[Message], stored: StoredHandle
) -> Checkpoint:
    length = turn["length"]
    if length > len(messages):
        raise StoreError(
            f"{stored.record.id} lacks message {len(messages)} of {length}; "
            "the record is damaged"
        )
    return Checkpoint(
        run=turn["run"],
        base=turn["base"],
        messages=tuple(messages[:length]),
        calls=_calls(length, stored),
        turns=turn["turns"],
        usage=Usage.from_dict(turn["usage"]),
        tool_calls=turn["toolCalls"],
    )


def _calls(length: int, stored: StoredHandle) -> tuple[CallState, ...]:
    """Return the calls of the last message; what it says of them is not written again."""
    last = stored.messages[length - 1] if length else {}
    if last.get("role") != "assistant":
        return ()
    return tuple(
        _call(asked, stored.calls.get(index) or {}, stored.messages.get(length + index))
        for index, asked in enumerate(asked_calls(last))
    )


def stored_call(
    record: HandleRecord, messages: Mapping[int, Any], index: int, row: Mapping[str, JsonValue]
) -> CallState:
    """Return one unfinished call of a handle.

    Raises:
        StoreError: It cannot be read; names the handle.
    """
    try:
        asked = asked_calls(messages[turn_in(readable_head(record))["length"] - 1])[index]
        return _call(asked, row, None)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise StoreError(f"the record of {record.id} cannot be read: {error!r}") from None


def _call(
    asked: tuple[str, str, str], row: Mapping[str, JsonValue], told: Message | None
) -> CallState:
    call_id, name, arguments = asked
    bare = {"status": "ready", "attempt": 0}
    if told is not None:
        bare = {"status": "done", "attempt": 1}
    call = CallState.from_dict(
        {"id": call_id, "name": name, "arguments": arguments, **bare, **row}
    )
    if call.status == "done" and told is not None:
        return attrs.evolve(call, result=result_told(told))
    return call


def _failed(
    failed: Mapping[str, Any], messages: list[Message], stored: StoredHandle
) -> FailedTurn:
    turn = failed.get("turn")
    checkpoint = None if turn is None else _checkpoint(turn, messages, stored)
    return FailedTurn(failed.get("prompt"), checkpoint, failed.get("stalls", False))


def posted_of(post: Mapping[str, Any]) -> Posted:
    """Return an item of a stored inbox."""
    item = {key: value for key, value in post.items() if key != "isTrusted"}
    return Posted(InboxItem.from_dict(item), post["isTrusted"])
