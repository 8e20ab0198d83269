"""Long texts, cut down to what a model is shown: head and tail kept, the middle named."""

from __future__ import annotations

import unicodedata
from typing import Final

from toolnexus.errors import ConfigError

LEAST_CHARS: Final = 200
"""The smallest limit there is: the line about what is left out needs half of it."""

_SEQUENCE_CHARS: Final = 32
"""How far a cut moves for the sake of one character and the marks that combine with it."""


def shorten(text: str, limit: int, reference: str | None) -> str:
    """Return `text` in at most `limit` characters.

    A text within the limit is returned as it is. Of a longer one the head and the tail are
    kept, cut at the ends of lines where one is near, and a line between them says how much is
    missing. No cut falls into a surrogate pair, or between a letter and its marks.

    Args:
        text: Any text.
        limit: Characters (code points), `LEAST_CHARS` or more.
        reference: Where the whole text is kept; None where it is not. One too long for the
            limit is not shown.

    Raises:
        ConfigError: The limit is below `LEAST_CHARS`.
    """
    if limit < LEAST_CHARS:
        raise ConfigError(f"a limit must be at least {LEAST_CHARS} characters, not {limit!r}")
    if len(text) <= limit:
        return text
    # Written with the largest number it can name, so that the true one is no longer.
    room = limit - len(_notice(len(text), reference)) - 2
    if room < 0:
        return shorten(text, limit, None)
    head = text[: _head_end(text, room - room // 2)]
    tail = text[_tail_start(text, len(text) - room // 2) :]
    notice = _notice(len(text) - len(head) - len(tail), reference)
    line_end = "" if head.endswith("\n") or not head else "\n"
    return f"{head}{line_end}{notice}\n{tail}"


def limit_for(per_result: int, per_turn: int, calls: int) -> int:
    """Return how many characters each result of one assistant message may have.

    Every call of the message gets the same share, whichever ends first, so the same results
    are always shortened in the same way.

    Args:
        per_result: The cap of one result, in characters.
        per_turn: The cap of all results of the message together.
        calls: How many calls the message has.

    Returns:
        Never less than `LEAST_CHARS`: that many calls may together exceed `per_turn`.
    """
    return max(LEAST_CHARS, min(per_result, per_turn // max(calls, 1)))


def _notice(count: int, reference: str | None) -> str:
    kept = "" if reference is None else f'; the whole text is kept as output "{reference}"'
    return f"[... {count:,} characters left out{kept} ...]"


def _head_end(text: str, most: int) -> int:
    """Return where a head of at most `most` characters ends: after a line, if one ends near."""
    line_end = text.rfind("\n", most - most // 4, most)
    if line_end >= 0:
        return line_end + 1
    for index in range(most, max(most - _SEQUENCE_CHARS, 0), -1):
        if not _combines(text, index):
            return index
    return most - 1 if _splits_pair(text, most) else most


def _tail_start(text: str, least: int) -> int:
    """Return where a tail that begins at `least` or later begins: a line, if one is near."""
    line_end = text.find("\n", least - 1, least + (len(text) - least) // 4)
    if line_end >= 0:
        return line_end + 1
    for index in range(least, min(least + _SEQUENCE_CHARS, len(text))):
        if not _combines(text, index):
            return index
    return least + 1 if _splits_pair(text, least) else least


def _combines(text: str, index: int) -> bool:
    """Say whether the characters before and at `index` are drawn as one."""
    if not 0 < index < len(text):
        return False
    joiner, after = "\u200d", text[index]
    return (
        joiner in (text[index - 1], after)
        or unicodedata.category(after).startswith("M")
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # the skin tones of emoji
        or _splits_pair(text, index)
    )


def _splits_pair(text: str, index: int) -> bool:
    if not 0 < index < len(text):
        return False
    return "\ud800" <= text[index - 1] <= "\udbff" and "\udc00" <= text[index] <= "\udfff"
