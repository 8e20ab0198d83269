"""Snapshots: what has changed of a handle since it was written last.

Every function here is called with the runtime's lock held, and only looks. What it finds are
references: messages and calls are never changed, only replaced, so they can be written later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from toolnexus.checkpoint import CallState, Checkpoint, tool_message
from toolnexus.codec import JsonValue
from toolnexus.messages import Message
from toolnexus.runtime import ledger
from toolnexus.runtime.inbox import Posted, post_changes
from toolnexus.stores.records import HandleChange, Wait

if TYPE_CHECKING:
    from toolnexus.client.turn import Turn
    from toolnexus.runtime.handle import FailedTurn, Handle
    from toolnexus.runtime.run import Run

HEAD_FORM: Final = 1
"""The form of a head; a reader refuses a newer one."""


@attrs.frozen(eq=False)
class Marks:
    """What the store has of a handle.

    Attributes:
        stamp: What its head was made of; empty where it has none.
        source: The list that holds its messages, and may have grown since.
        count: How many of those are written.
        results: Calls whose results are written behind them, by position.
        calls: The unfinished message's calls as they are written.
        rows: Positions of those that are more than their message tells.
        posts: Its inbox, with the numbers.
        next_post: The number of the next post.
        waits: Which of its calls wait for which request.
    """

    stamp: tuple[object, ...] = ()
    source: Sequence[Message] = ()
    count: int = 0
    results: Mapping[int, CallState] = attrs.field(factory=dict)
    calls: tuple[CallState, ...] = ()
    rows: frozenset[int] = frozenset()
    posts: tuple[tuple[int, Posted], ...] = ()
    next_post: int = 0
    waits: tuple[tuple[CallState, Wait], ...] = ()


@attrs.frozen
class Snapshot:
    """What is to be written of a handle.

    Attributes:
        change: None where nothing is.
        marks: What the store has once that is written.
        waits: Calls that begin to wait.
        done: Calls that wait no more.
    """

    change: HandleChange | None
    marks: Marks
    waits: tuple[tuple[CallState, Wait], ...] = ()
    done: tuple[Wait, ...] = ()


def snapshot(handle: Handle, marks: Marks) -> Snapshot:
    """Return what has changed of `handle` since `marks`."""
    messages, calls, is_settled = _standing(handle)
    stamp = _stamp(handle)
    is_same = _is_same(stamp, marks.stamp)
    if is_same and _rests(handle, marks):
        return Snapshot(None, marks)  # there may be very many of these
    head = None if is_same else head_of(handle)
    keep, told, results = _message_changes(marks, messages, () if is_settled else calls)
    call_rows, rows = _call_changes(marks, messages, calls, is_settled=is_settled)
    posts, next_post = _posts(handle, marks)
    waits = _waits(handle, calls)
    changed_posts = post_changes(marks.posts, posts)
    new = Marks(stamp, messages, len(messages), results, calls, rows, posts, next_post, waits)
    change = None
    if head is not None or keep is not None or told or call_rows or changed_posts:
        change = HandleChange(
            id=handle.id,
            agent=handle.definition.name,
            state=handle._state.value,
            head=head,
            keep=keep,
            messages=told,
            calls=call_rows,
            posts=changed_posts,
        )
    before, now = {wait for _, wait in marks.waits}, {wait for _, wait in waits}
    return Snapshot(
        change,
        new,
        tuple(one for one in waits if one[1] not in before),
        tuple(wait for _, wait in marks.waits if wait not in now),
    )


def _rests(handle: Handle, marks: Marks) -> bool:
    """Whether a handle with the same head can have no other news either."""
    return (
        handle._run is None
        and handle._parked is None
        and not handle._inbox
        and not marks.posts
        and not marks.waits
        and marks.source is handle._transcript
        and marks.count == len(handle._transcript)
    )


def _standing(handle: Handle) -> tuple[Sequence[Message], tuple[CallState, ...], bool]:
    """Return the messages, the calls of the last one, and whether results stand behind it."""
    turn = turn_of(handle)
    if turn is not None:
        return turn.messages, turn.stored_calls(), False
    if handle._run is None and handle._parked is not None:
        return handle._parked.messages, handle._parked.calls, False
    failed = handle._failed
    if handle._run is None and failed is not None and failed.checkpoint is not None:
        return handle._transcript, failed.checkpoint.calls, True
    return handle._transcript, (), False


def turn_of(handle: Handle) -> Turn | None:
    """Return the turn under way once a reply has come: what was before that is done anew."""
    run = handle._run
    turn = None if run is None else run.turn
    return turn if turn is not None and turn.turns > 0 else None


def _is_ending(handle: Handle) -> bool:
    return handle._tree is not None and handle._tree.is_ending(handle)


def _stamp(handle: Handle) -> tuple[object, ...]:
    run = handle._run
    turn = None if run is None else run.turn
    return (
        handle._state,
        handle.budget,
        handle._spawned,
        handle.turns_total,
        handle.usage_total,
        handle.usage_tree,
        ledger.lasting_tool_calls(handle),
        handle._wall,
        handle.last_result,
        handle._failed,
        handle._parked,
        handle._wake_again,
        handle._ends,
        len(handle._children),
        len(handle._inbox),
        run,
        0 if turn is None else turn.turns,
        0 if turn is None else len(turn.messages),
        _is_ending(handle),
    )


def _is_same(stamp: tuple[object, ...], before: tuple[object, ...]) -> bool:
    """Compare by identity, but numbers: what is equal may be long."""
    if len(stamp) != len(before):
        return False
    return all(
        one is other or (isinstance(one, (int, float)) and one == other)
        for one, other in zip(stamp, before, strict=True)
    )


def head_of(handle: Handle) -> dict[str, JsonValue]:
    """Return the small object that tells everything of a handle but its messages and calls."""
    run, turn, failed = handle._run, turn_of(handle), handle._failed
    head: dict[str, JsonValue] = {
        "form": HEAD_FORM,
        "budget": handle.budget.to_dict(),
        "spawned": handle._spawned,
        "children": len(handle._children),
        "inbox": len(handle._inbox),
        "turns": handle.turns_total,
        "tokens": handle.usage_total,
        "treeTokens": handle.usage_tree,
        "toolCalls": ledger.lasting_tool_calls(handle),
        "wallMs": round(handle._wall_ms(handle._core.clock.monotonic())),
        "ends": handle._ends,
    }
    if handle._wake_again:
        head["wakeAgain"] = True
    if _is_ending(handle):
        head["isClosing"] = True
    if handle.last_result is not None:
        head["result"] = _result(handle)
    if run is not None:
        head["run"] = _run(run, turn)
    elif handle._parked is not None:
        head["turn"] = _turn(handle._parked, len(handle._parked.messages))
    elif failed is not None:
        head["failed"] = _failed(failed)
    return head


def _result(handle: Handle) -> dict[str, JsonValue]:
    """Return the last result, without the text of a final message, which is there already."""
    result = handle.last_result
    assert result is not None  # noqa: S101 - asked by the caller
    stored = result.to_dict()
    transcript = handle._transcript
    if result.status == "done" and transcript:
        if transcript[-1].get("content") == result.text:
            del stored["text"]
    elif result.status == "pending":
        # Which of several requests is the first may change; found out when somebody asks.
        stored = {key: stored[key] for key in ("status", "turns", "totalTokens")}
    return stored


def _run(run: Run, turn: Turn | None) -> dict[str, JsonValue]:
    stored: dict[str, JsonValue] = {}
    if run.is_retry:
        stored["isRetry"] = True
    if turn is not None:
        stored["turn"] = _turn(turn, len(turn.messages))
        return stored
    if run.prompt is not None:
        stored["prompt"] = run.prompt
    return stored


def _turn(turn: Turn | Checkpoint, length: int) -> dict[str, JsonValue]:
    return {
        "run": turn.run,
        "base": turn.base,
        "length": length,
        "turns": turn.turns,
        "usage": turn.usage.to_dict(),
        "toolCalls": turn.tool_calls,
    }


def _failed(failed: FailedTurn) -> dict[str, JsonValue]:
    stored: dict[str, JsonValue] = {}
    if failed.stalls:
        stored["stalls"] = True
    if failed.checkpoint is not None:
        stored["turn"] = _turn(failed.checkpoint, len(failed.checkpoint.messages))
    elif failed.prompt is not None:
        stored["prompt"] = failed.prompt
    return stored


# -- messages ---------------------------------------------------------------------------------


def _message_changes(
    marks: Marks, source: Sequence[Message], calls: Sequence[CallState]
) -> tuple[int | None, dict[int, Message], dict[int, CallState]]:
    """Return how many messages stay (None: all), new ones, and the results behind them."""
    results = {
        len(source) + index: call for index, call in enumerate(calls) if call.status == "done"
    }
    same = marks.count if marks.source is source else _shared(marks, source)
    known = marks.results
    keep: int | None = None
    if same < marks.count or any(
        position >= len(source) and position not in results for position in known
    ):
        keep, known = same, {}
    told = {
        position: source[position]
        for position in range(same, len(source))
        if position not in known or tool_message(known[position]) != source[position]
    }
    for position, call in results.items():
        if known.get(position) is not call:
            told[position] = tool_message(call)
    return keep, told, results


def _shared(marks: Marks, source: Sequence[Message]) -> int:
    for index in range(min(marks.count, len(source))):
        if marks.source[index] is not source[index] and marks.source[index] != source[index]:
            return index
    return min(marks.count, len(source))


# -- calls ------------------------------------------------------------------------------------


def asked_calls(message: Message) -> list[tuple[str, str, str]]:
    """Return id, name and arguments of the calls that an assistant message asks for."""
    calls: Any = message.get("tool_calls") or ()
    return [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in calls]


def _call_changes(
    marks: Marks,
    messages: Sequence[Message],
    calls: tuple[CallState, ...],
    *,
    is_settled: bool,
) -> tuple[dict[int, JsonValue | None], frozenset[int]]:
    if calls is marks.calls or (not calls and not marks.rows):
        return {}, marks.rows
    asked: list[tuple[str, str, str]] = []
    if calls:
        # Behind the message that asks there may be results already.
        asked = asked_calls(_asking(messages, calls, is_settled=is_settled))
    changed: dict[int, JsonValue | None] = {}
    rows = set(marks.rows)
    for index, call in enumerate(calls):
        # Equal is enough: one that runs a child is put together anew for each look at it.
        if index < len(marks.calls) and marks.calls[index] == call:
            continue
        row = call_row(call, asked[index], is_settled=is_settled)
        if row is not None:
            changed[index] = row
            rows.add(index)
        elif index in rows:
            changed[index] = None
            rows.discard(index)
    for index in [one for one in rows if one >= len(calls)]:
        changed[index] = None
        rows.discard(index)
    return changed, frozenset(rows)


def _asking(
    messages: Sequence[Message], calls: tuple[CallState, ...], *, is_settled: bool
) -> Message:
    return messages[len(messages) - 1 - (len(calls) if is_settled else 0)]


def call_row(
    call: CallState, asked: tuple[str, str, str], *, is_settled: bool
) -> dict[str, JsonValue] | None:
    """Return what is to be kept of a call besides its message and its result; None for nothing.

    Args:
        call: The call.
        asked: What its message says of it.
        is_settled: Whether a result stands in the transcript whatever the call's status.
    """
    row = call.to_dict()
    row.pop("result", None)
    if (call.id, call.name, call.arguments) == asked:
        del row["id"], row["name"], row["arguments"]
    bare = "done" if call.status == "done" else "ready"
    if not (is_settled and bare == "ready") and row == {
        "status": bare,
        "attempt": 1 if bare == "done" else 0,
    }:
        return None
    return row


def _waits(handle: Handle, calls: tuple[CallState, ...]) -> tuple[tuple[CallState, Wait], ...]:
    if handle._run is None and handle._parked is None:
        return ()
    book = handle._core.book
    return tuple(
        (call, Wait(call.request.id, handle.id, index))
        for index, call in enumerate(calls)
        if call.status == "open"
        and call.child is None
        and call.answer is None
        and call.request is not None
        and call.request.id in book
    )


# -- the inbox --------------------------------------------------------------------------------


def _posts(handle: Handle, marks: Marks) -> tuple[tuple[tuple[int, Posted], ...], int]:
    run = handle._run
    drained = run.drained if run is not None and turn_of(handle) is None else []
    if not drained and not handle._inbox and not marks.posts:
        return (), marks.next_post
    numbers = {id(posted): number for number, posted in marks.posts}
    following, posts = marks.next_post, []
    for posted in (*drained, *handle._inbox):
        number = numbers.get(id(posted))
        if number is None:
            number, following = following, following + 1
        posts.append((number, posted))
    return tuple(posts), following
