"""Vault: what people entered that nobody but the asking tool may see."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from toolnexus.codec import JsonValue

MASK: Final = "***"
_LEAST_CHARS: Final = 4
_LEAST_DIGITS: Final = 3
"""The shortest secrets that are looked for in texts: to look for `ok` would garble them."""

_LONG: Final = 5

_KEPT: Final = 4_096


class Vault:
    """Secret fields of answers, by request id; in the memory of this process and nowhere else.

    Bounded: the oldest go first, and what is gone is asked again. Thread-safe.

    Attributes:
        sealing: Held by who puts an answer's secrets here before it is known whether that
            answer counts, and by who gives a tool its answer.
    """

    def __init__(self) -> None:
        self.after_fork()
        self._entries: OrderedDict[str, Mapping[str, JsonValue]] = OrderedDict()

    def after_fork(self) -> None:
        """Take a lock that no thread of the parent process holds."""
        self._lock = threading.Lock()
        self.sealing = threading.RLock()

    def put(self, request_id: str, secrets: Mapping[str, JsonValue]) -> None:
        """Keep the secrets of an answer; also an answer that has none, so that it is known."""
        with self._lock:
            self._entries[request_id] = dict(secrets)
            if len(self._entries) > _KEPT:
                self._entries.popitem(last=False)

    def get(self, request_id: str) -> Mapping[str, JsonValue] | None:
        """Return the secrets of an answer; None where this process does not have them."""
        with self._lock:
            return self._entries.get(request_id)

    def restore(self, before: Mapping[str, Mapping[str, JsonValue] | None]) -> None:
        """Have what `get` has returned for some answers."""
        for request_id, secrets in before.items():
            if secrets is None:
                self.drop([request_id])
            else:
                self.put(request_id, secrets)

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget answers whose call is over."""
        with self._lock:
            for one in request_ids:
                self._entries.pop(one, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()

    def __repr__(self) -> str:
        return "<Vault>"


def masker(secrets: Iterable[Mapping[str, JsonValue]]) -> Callable[[Any], Any] | None:
    """Return what puts `***` for secrets in JSON values; None where there are no secrets."""
    found = {text for one in secrets for text in _texts(list(one.values()))}
    texts = sorted({form for text in found for form in _written(text)}, key=len, reverse=True)
    if not texts:
        return None

    # A short one, such as a card's code, is looked for as a word of its own: within others it
    # would garble what has nothing to do with it.
    pattern = re.compile("|".join(map(_pattern_of, texts)))

    def mask(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(MASK, value)
        if isinstance(value, Mapping):
            return {mask(key): mask(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [mask(item) for item in value]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return MASK if is_number and str(value) in texts else value

    return mask


def _pattern_of(text: str) -> str:
    quoted = re.escape(text)
    return quoted if len(text) >= _LONG else rf"(?<!\w){quoted}(?!\w)"


def _written(text: str) -> set[str]:
    """Return how a text looks in JSON, in JSON within JSON, and in Python's messages."""
    plain, ascii_only = json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]
    nested = (json.dumps(one, ensure_ascii=False)[1:-1] for one in (plain, ascii_only))
    return {text, plain, ascii_only, *nested, repr(text)[1:-1], ascii(text)[1:-1]}


def _texts(value: JsonValue) -> list[str]:
    """Return the texts and numbers in a secret that are long enough to be told apart."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(item)]
    if value is None or isinstance(value, bool):
        return []
    text = str(value)
    least = _LEAST_DIGITS if text.isdecimal() else _LEAST_CHARS
    return [text] if len(text) >= least else []
