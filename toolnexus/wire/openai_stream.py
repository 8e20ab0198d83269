"""OpenAI's streamed replies: chunks become the body that comes where nothing is streamed.

The servers that copy OpenAI cut a reply in many ways. Where a delta does not say which call it
belongs to, it goes where it fits without a guess; what then does not fit together stays as the
model wrote it, so that the call gets an error result instead of being executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.wire.calls import arguments_text
from toolnexus.wire.content import text_of
from toolnexus.wire.pieces import (
    GrowingText,
    data_of,
    extend,
    grow,
    growing,
    in_order,
    index_of,
    settled,
)
from toolnexus.wire.replies import raise_if_error
from toolnexus.wire.sse import ServerSentEvent

_EVENTS: Final = ("message", "error")
_HEAD_KEYS: Final = ("id", "created", "model")


class OpenAiStream:
    """Assembles chunks; see `wire.base.StreamedReply`."""

    def __init__(self) -> None:
        self._head: dict[str, JsonValue] | None = None
        self._content = GrowingText()
        self._parts: list[Any] | None = None
        self._refusal = GrowingText()
        self._calls = _Calls()
        self._legacy: _Call | None = None
        self._more: dict[str, Any] = {}
        self._finish_reason = ""
        self._usage: JsonValue = None

    @property
    def is_complete(self) -> bool:
        """Whether a `finish_reason` came; `[DONE]` alone is no word of the model's."""
        return self._finish_reason != ""

    @property
    def text(self) -> str:
        """All text so far: the content, or the refusal where there is none."""
        return self._content.text() or self._refusal.text()

    def add(self, event: ServerSentEvent) -> str:
        """Take one event in and return the text it adds; "" for none.

        Raises:
            LlmError: It is an error of the provider's, or no JSON.
        """
        chunk = data_of(event, _EVENTS)
        if chunk is None:
            return ""
        if self._head is None:
            self._head = {key: chunk[key] for key in _HEAD_KEYS if key in chunk}
        # Some send it once, some in each chunk: the last one counts.
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices")
        text = ""
        if type(choices) is list:
            for choice in choices:
                if type(choice) is dict and not choice.get("index"):
                    text += self._add_choice(chunk, choice)
        return text

    def payload(self) -> dict[str, JsonValue]:
        """Return the body; it says the reply only where that is complete."""
        message: dict[str, JsonValue] = {"role": "assistant", **settled(self._more)}
        message["content"] = (
            self._content.text() if self._parts is None else settled(self._parts)
        )
        if self._refusal.tell():
            message["refusal"] = self._refusal.text()
        if self._calls.all:
            message["tool_calls"] = [call.unstreamed() for call in in_order(self._calls.all)]
        if self._legacy is not None:
            message["function_call"] = self._legacy.unstreamed()["function"]
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason or None}
        body = {**(self._head or {}), "object": "chat.completion", "choices": [choice]}
        return body if self._usage is None else {**body, "usage": self._usage}

    def _add_choice(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> str:
        if "error" in choice:
            raise_if_error(chunk, choice)
        delta, text = choice.get("delta"), ""
        if delta and type(delta) is dict:
            for key, value in delta.items():
                if key == "content" and type(value) is str and self._parts is None:
                    text += self._content.say(value)
                elif value is not None:
                    text += self._add_part_of_message(key, value)
        elif isinstance(choice.get("message"), dict):
            text = self._add_whole(choice["message"])
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            self._finish_reason = reason
            self._usage = choice.get("usage") or self._usage
            text += self._content.last_words() + self._refusal.last_words()
        return text

    def _add_part_of_message(self, key: str, value: JsonValue) -> str:
        if key == "content":
            return self._add_content(value)
        if key == "refusal" and isinstance(value, str):
            shown = self._refusal.say(value)
            return "" if self._content.tell() else shown
        if key == "tool_calls":
            self._calls.add(value)
        elif key == "function_call":
            self._legacy = self._legacy or _Call()
            self._legacy.add({"function": value})
        elif key != "role":
            grow(self._more, key, value)
        return ""

    def _add_content(self, content: JsonValue) -> str:
        text = text_of(content)
        if self._parts is None and isinstance(content, list):
            before = self._content.text()
            self._parts = [{"type": "text", "text": growing(before)}] if before else []
        if self._parts is not None:
            parts = content if isinstance(content, list) else [{"type": "text", "text": text}]
            extend(self._parts, parts)
        return self._content.say(text)

    def _add_whole(self, message: Mapping[str, JsonValue]) -> str:
        """Take a message that is no delta: where deltas came before, it tells them again."""
        text, told = "", self.text
        for key, value in message.items():
            if key == "tool_calls":
                self._calls.add_whole(value)
            elif key == "content" and told and text_of(value).startswith(told):
                text += self._add_content(text_of(value)[len(told) :])
            elif (key == "refusal" and told) or (key == "function_call" and self._legacy):
                continue
            elif value is not None and key not in self._more:
                text += self._add_part_of_message(key, value)
        return text


@attrs.define(eq=False)
class _Call:
    """One call in the making.

    Attributes:
        index: Where it stands, as its deltas say; None where they do not.
        is_whole: Whether its first delta had a name and all arguments.
        has_begun: Whether arguments came after its name.
    """

    index: int | None = None
    id: str = ""
    name: str = ""
    is_whole: bool = False
    has_begun: bool = False
    _arguments: GrowingText = attrs.field(factory=GrowingText)
    _object: JsonValue = None
    _function: dict[str, Any] = attrs.field(factory=dict)
    _more: dict[str, Any] = attrs.field(factory=dict)

    def add(self, delta: Mapping[str, JsonValue]) -> None:
        """Take in what a delta says."""
        for key, value in delta.items():
            if key == "id":
                self.id = self.id or _id_of(delta)
            elif key == "function":
                for name, part in value.items() if isinstance(value, Mapping) else ():
                    self._add_function(name, part)
            elif key not in ("index", "type"):
                _grow_unless_repeated(self._more, key, value)

    def _add_function(self, key: str, value: JsonValue) -> None:
        if key == "name":
            # Whole in every delta, or in pieces.
            if isinstance(value, str) and value != self.name:
                self.name += value
        elif key == "arguments":
            self._add_arguments(value)
        else:
            _grow_unless_repeated(self._function, key, value)

    def _add_arguments(self, value: JsonValue) -> None:
        if value is None or value == "":
            return
        if not isinstance(value, str):
            if value == self._object:
                return
            self._object = value
        self.has_begun = self.has_begun or self.name != ""
        self._arguments.write(arguments_text(value))

    def unstreamed(self) -> dict[str, JsonValue]:
        """Return the call as it is in a body that is not streamed."""
        function = {"name": self.name, "arguments": self._arguments.text()}
        call = {"type": "function", "function": {**settled(self._function), **function}}
        call.update(settled(self._more))
        return {"id": self.id, **call} if self.id else call


class _Calls:
    """The calls of one reply, in the order in which they began."""

    def __init__(self) -> None:
        self.all: list[_Call] = []
        self._latest: _Call | None = None
        self._at: dict[int, _Call] = {}
        self._by_id: dict[tuple[int | None, str], _Call] = {}

    def add(self, deltas: JsonValue) -> None:
        """Take in the `tool_calls` of a delta."""
        for delta in deltas if isinstance(deltas, list) else ():
            if isinstance(delta, Mapping):
                index = index_of(delta)
                call = self._belonging_to(index, delta)
                if call is None:
                    self._begin(index, delta)
                else:
                    call.add(delta)
                    self._remember(index, call)

    def add_whole(self, calls: JsonValue) -> None:
        """Take in the `tool_calls` of a whole message; deltas may have told them before."""
        is_first = not self.all
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping):
                call_id = _id_of(call)
                if is_first or (call_id and (None, call_id) not in self._by_id):
                    self._begin(None, call)

    def _begin(self, index: int | None, delta: Mapping[str, JsonValue]) -> None:
        call = _Call(index)
        call.add(delta)
        call.is_whole = _is_whole(delta)
        self.all.append(call)
        self._remember(index, call)

    def _remember(self, index: int | None, call: _Call) -> None:
        self._latest = call
        if index is not None:
            self._at[index] = call
        if call.id:
            self._by_id[index, call.id] = self._by_id[None, call.id] = call

    def _belonging_to(self, index: int | None, delta: Mapping[str, JsonValue]) -> _Call | None:
        """Return the call that `delta` goes on with; None where it begins one."""
        current = self._latest if index is None else self._at.get(index)
        if current is None:
            return None
        call_id = _id_of(delta)
        if call_id and current.id:
            # Two calls may share an index, and be told apart by their ids alone.
            return self._by_id.get((index, call_id))
        return None if _begins_another(current, index, delta) else current


def _begins_another(current: _Call, index: int | None, delta: Mapping[str, JsonValue]) -> bool:
    """Return whether a delta is a call of its own, where no two ids tell."""
    name = _name_of(delta)
    if not name:
        return False
    if current.is_whole and _is_whole(delta):
        return True
    return index is None and current.has_begun and name != current.name


def _id_of(delta: Mapping[str, JsonValue]) -> str:
    call_id = delta.get("id")
    return call_id if isinstance(call_id, str) and call_id.strip() else ""


def _name_of(delta: Mapping[str, JsonValue]) -> str:
    function = delta.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def _is_whole(delta: Mapping[str, JsonValue]) -> bool:
    """Return whether a delta has a name and all arguments."""
    if not _name_of(delta):
        return False
    arguments = delta["function"].get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = codec.loads(arguments)
        except ValueError:
            return False
    return isinstance(arguments, dict)


def _grow_unless_repeated(target: dict[str, Any], key: str, value: JsonValue) -> None:
    """Grow as `grow` does; what a call says again in every delta counts once."""
    held = target.get(key)
    is_as_long = isinstance(held, GrowingText) and held.tell() == len(str(value))
    if not is_as_long or settled(held) != value:
        grow(target, key, value)
