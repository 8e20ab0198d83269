"""Tool calls on the wire: ids, names and arguments that every provider takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from toolnexus.codec import dumps, loads, well_formed
from toolnexus.toolspec import NAME_CHARS, sanitize
from toolnexus.wire.content import json_text

ID_CHARS: Final = 40
"""The longest call id that OpenAI takes."""

MALFORMED_KEY: Final = "malformed_arguments"
"""Where arguments that are no JSON object stand in the object that is sent in their place."""

UNNAMED: Final = "unnamed"

_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{ID_CHARS}}}")
_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_CHARS}}}")
_DIGEST_CHARS: Final = 32


def is_portable_id(call_id: str) -> bool:
    """Return whether every provider takes `call_id`."""
    return _ID.fullmatch(call_id) is not None


def unique_ids(received: Sequence[object]) -> list[str]:
    """Return the ids of one message's calls, in order: text, not blank, each one once.

    A good id stays; the second `x` becomes `x_2`; a missing one or one that is not text becomes
    `call_<index>`. Lone surrogates are replaced here, for they cannot be sent back.
    """
    received = [well_formed(one) if isinstance(one, str) else one for one in received]
    named = {value for value in received if isinstance(value, str)}
    used: set[str] = set()
    counts: dict[str, int] = {}
    ids = []
    for index, value in enumerate(received):
        good = isinstance(value, str) and value.strip() != ""
        base = str(value) if good else f"call_{index}"
        made = base
        while made in used or (made in named and made != value):
            counts[base] = counts.get(base, 1) + 1
            suffix = f"_{counts[base]}"
            made = base[: ID_CHARS - len(suffix)] + suffix
        used.add(made)
        ids.append(made)
    return ids


class WireIds:
    """Portable ids, each given out once.

    What an id becomes depends on the calls before it alone, so a growing transcript keeps its
    prefix (prompt caches live on that).
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._counts: dict[str, int] = {}

    def assign(self, call_ids: Iterable[str]) -> dict[str, str]:
        """Return the wire id of each of one message's call ids."""
        return {call_id: self._assign_one(call_id) for call_id in call_ids}

    def _assign_one(self, call_id: str) -> str:
        made = call_id
        while made in self._used or not is_portable_id(made):
            count = self._counts[call_id] = self._counts.get(call_id, 0) + 1
            seed = f"{count}:{call_id}".encode("utf-8", "surrogatepass")
            made = f"call_{hashlib.sha256(seed).hexdigest()[:_DIGEST_CHARS]}"
        self._used.add(made)
        return made


def wire_name(name: str) -> str:
    """Return `name` as a tool name that every provider takes."""
    if _NAME.fullmatch(name):
        return name
    return sanitize(name)[:NAME_CHARS] or UNNAMED


def arguments_text(received: object) -> str:
    """Return a reply's arguments as the text to store: text stays, None is "", else JSON."""
    if isinstance(received, str):
        return received
    return "" if received is None else json_text(received)


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return stored arguments as an object; malformed ones inside `MALFORMED_KEY`.

    The model then reads its own text next to the error result that the call got.
    """
    parsed = _parsed(arguments)
    return _stand_in(arguments) if parsed is None else parsed


def portable_arguments(arguments: str) -> str:
    """Return stored arguments as text that parses to an object, unchanged where it does.

    OpenAI takes any text, but servers that speak its protocol parse it and fail.
    """
    if _parsed(arguments) is None:
        return dumps(_stand_in(arguments))
    return arguments


def _parsed(arguments: str) -> dict[str, Any] | None:
    try:
        value = loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _stand_in(arguments: str) -> dict[str, Any]:
    return {} if not arguments.strip() else {MALFORMED_KEY: arguments}


def called(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the calls of an assistant message as they stand there, or its `function_call`."""
    calls = message.get("tool_calls")
    found = (
        [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    )
    legacy = message.get("function_call")
    return [{"function": legacy}] if not found and isinstance(legacy, Mapping) else found


def sound_call(call: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    """Return `call` under `call_id` with every part that a call has; further keys are kept."""
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    name = function.get("name")
    named = {
        **function,
        "name": name if isinstance(name, str) else "",
        "arguments": arguments_text(function.get("arguments")),
    }
    return {**call, "id": call_id, "type": "function", "function": named}
