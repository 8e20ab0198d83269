"""The balanced view of a transcript: what both dialects build a request from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from toolnexus.messages import Message
from toolnexus.wire.calls import called, sound_call, unique_ids

NO_RESULT: Final = "no result was recorded for this call; it may or may not have been executed"
"""The result of a call whose own is not in the transcript."""

_SPEAKERS: Final = ("user", "system", "developer")
_RESULTS: Final = ("tool", "function")


def complete(messages: Sequence[Message]) -> list[Message]:
    """Return the transcript with one result per tool call, directly after it, in call order.

    A result belongs to the last assistant message before it that made a call of its id: it is
    moved there, dropped where that call has one already, and dropped where there is no such
    call. A call without one gets `NO_RESULT`, marked `_is_error`. Calls with missing or
    repeated ids get ids of their own; equal ids take their results in order.

    In the view every message is a dict whose role is system, developer, user, assistant or
    tool; `tool_calls` is empty or a list of calls with text for `id`, `name` and `arguments`.
    What is no dict is dropped, a message of an unknown role is the user's, and the deprecated
    `function` role and `function_call` are read as a tool and its call. Contents stay.

    Linear in the number of messages. Stored messages are never altered; those that need no
    change are in the view themselves, so a caller must not alter them either.
    """
    if _is_complete(messages):
        return list(messages)
    return [message for entry in _matched(messages) for message in entry.emit()]


def _is_complete(messages: Sequence[Message]) -> bool:
    awaited: Iterator[str] = iter(())
    for message in messages:
        if not isinstance(message, dict):
            return False
        role = message.get("role")
        expected = next(awaited, None)
        if expected is not None or role == "tool":
            if expected is None or role != "tool" or message.get("tool_call_id") != expected:
                return False
        elif role == "assistant":
            ids = _sound_ids(message)
            if ids is None:
                return False
            awaited = iter(ids)
        elif role not in _SPEAKERS:
            return False
    return next(awaited, None) is None


def _sound_ids(message: Message) -> Sequence[str] | None:
    calls = message.get("tool_calls")
    if message.get("function_call"):
        return None
    if not calls:
        return ()
    if not isinstance(calls, list):
        return None
    ids = [call["id"] for call in calls if _is_sound(call)]
    return ids if len(set(ids)) == len(calls) else None


def _is_sound(call: object) -> bool:
    if not isinstance(call, dict) or call.get("type") != "function":
        return False
    call_id, function = call.get("id"), call.get("function")
    return (
        isinstance(call_id, str)
        and call_id.strip() != ""
        and isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str)
    )


@attrs.define
class _Entry:
    """A message of the view and the results that stand behind it."""

    message: Message
    ids: list[str] = attrs.field(factory=list)
    results: dict[str, Message] = attrs.field(factory=dict)

    def emit(self) -> Iterator[Message]:
        yield self.message
        for call_id in self.ids:
            yield self.results.get(call_id) or {
                "role": "tool",
                "tool_call_id": call_id,
                "content": NO_RESULT,
                "_is_error": True,
            }


def _matched(messages: Sequence[Any]) -> list[_Entry]:
    entries: list[_Entry] = []
    open_calls: dict[str, tuple[_Entry, Iterator[str]]] = {}
    for message in messages:
        if not isinstance(message, dict):
            continue
        role = message.get("role")
        if role in _RESULTS:
            _attach(message, open_calls)
        elif role == "assistant":
            entry, keys = _assistant(message)
            entries.append(entry)
            open_calls.update(_awaiting(entry, keys))
        else:
            entries.append(_Entry(_spoken(message)))
    return entries


def _attach(message: Message, open_calls: Mapping[str, tuple[_Entry, Iterator[str]]]) -> None:
    found = open_calls.get(_key(message.get("tool_call_id")))
    call_id = next(found[1], None) if found else None
    if found is None or call_id is None:
        return
    result = message
    if message["role"] != "tool" or message.get("tool_call_id") != call_id:
        result = {**message, "role": "tool", "tool_call_id": call_id}
    found[0].results[call_id] = result


def _awaiting(entry: _Entry, keys: Sequence[str]) -> dict[str, tuple[_Entry, Iterator[str]]]:
    by_key: dict[str, list[str]] = {}
    for key, call_id in zip(keys, entry.ids, strict=True):
        by_key.setdefault(key, []).append(call_id)
    return {key: (entry, iter(ids)) for key, ids in by_key.items()}


def _key(call_id: object) -> str:
    return "" if call_id is None else str(call_id)


def _spoken(message: Message) -> Message:
    if message.get("role") in _SPEAKERS:
        return message
    return {"role": "user", "content": message.get("content")}


def _assistant(message: Message) -> tuple[_Entry, list[str]]:
    """Return the entry, and under which id the transcript may hold each call's result."""
    sound = _sound_ids(message)
    if sound is not None:
        return _Entry(message, list(sound)), list(sound)
    calls = called(message)
    ids = unique_ids([call.get("id") for call in calls])
    rest = {key: value for key, value in message.items() if key != "function_call"}
    whole = {**rest, "tool_calls": [sound_call(*pair) for pair in zip(calls, ids, strict=True)]}
    return _Entry(whole, ids), [_key(call.get("id")) for call in calls]
