"""Message contents: text out of parts, placeholders for nothing, copies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

EMPTY: Final = "(empty)"
"""What a provider is sent where it refuses an empty text; never stored."""

_TEXT_TYPES: Final = ("text", "input_text", "output_text")


def is_blank(text: str) -> bool:
    """Return whether a provider would refuse `text` as empty."""
    return not text or text.isspace()


def json_text(value: object) -> str:
    """Return compact JSON text of any value; never raises.

    What JSON has no form for appears as its `str`, or as a note where even that fails.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (TypeError, ValueError, RecursionError):
        return f"({type(value).__name__} that is not JSON)"


def part_text(part: object) -> str | None:
    """Return the text of a content part; None for a part that is not text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type")
    if kind != "refusal" and kind not in _TEXT_TYPES:
        return None
    text = part.get("refusal" if kind == "refusal" else "text")
    return text if isinstance(text, str) else ""


def text_of(content: object) -> str:
    """Return the text of a message's content: its text parts joined, None as ""."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(part_text(part) or "" for part in content)
    return json_text(content)


def is_plain_part(part: object) -> bool:
    """Return whether a part, Anthropic's or OpenAI's, is a text and nothing else."""
    if not isinstance(part, Mapping) or part.get("type") != "text":
        return False
    more = set(part) - {"type", "text"}
    return isinstance(part.get("text"), str) and not any(
        says_something(part[key]) for key in more
    )


def says_something(value: object) -> bool:
    """Return whether an optional field of a reply is worth keeping: not null, `[]` or `{}`.

    OpenAI adds `refusal: null, annotations: []` to every message; an empty text stays, as some
    providers ask for `reasoning_content: ""` back.
    """
    return value is not None and value != [] and value != {}
