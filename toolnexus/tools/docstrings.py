"""Docstrings in Google, NumPy and reST style: the first sentence, and what names mean."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

_SECTION: Final = re.compile(r"(?P<name>[A-Z][A-Za-z ]*):\s*")
_PARAMETER_SECTIONS: Final = {
    "args", "arguments", "parameters", "params", "other parameters", "keyword args",
    "keyword arguments", "attributes",
}  # fmt: skip
_OTHER_SECTIONS: Final = {
    "returns", "return", "raises", "yields", "yield", "example", "examples", "note", "notes",
    "warning", "warnings", "warns", "see also", "references", "source", "todo",
}  # fmt: skip
_UNDERLINE: Final = re.compile(r"-{3,}\s*")
_GOOGLE_ENTRY: Final = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\(.*?\))?\s*:\s*(?P<text>.*)")
_NUMPY_ENTRY: Final = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_REST_ENTRY: Final = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*?\s)?\*{0,2}(?P<name>\w+)\s*:"
    r"\s*(?P<text>.*)"
)
_REST_FIELD: Final = re.compile(r":\w+[^:]*:")


@attrs.frozen
class Documentation:
    """What a docstring says.

    Attributes:
        summary: The first line; the whole first paragraph where a sentence runs over it.
        parameters: Text of each documented name, as one line.
    """

    summary: str = ""
    parameters: Mapping[str, str] = attrs.field(factory=dict)


def read_docstring(text: str | None) -> Documentation:
    """Read a docstring; what is not understood is left out, nothing is an error."""
    if not text or not text.strip():
        return Documentation()
    lines = inspect.cleandoc(text).splitlines()
    parameters: dict[str, str] = {}
    for name, words in [*_google(lines), *_numpy(lines), *_rest(lines)]:
        if words.strip():
            parameters.setdefault(name, " ".join(words.split()))
    return Documentation(_summary(lines), parameters)


def _summary(lines: list[str]) -> str:
    paragraph: list[str] = []
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if not line.strip() or _starts_section(line, following):
            break
        paragraph.append(line.strip())
        if line.rstrip().endswith((".", "!", "?")):
            break
    return " ".join(paragraph)


def _starts_section(line: str, following: str) -> bool:
    return (
        _section_of(line) is not None
        or bool(_UNDERLINE.fullmatch(following))
        or bool(_REST_FIELD.match(line))
    )


def _section_of(line: str) -> str | None:
    """Return the lower-case name of the Google section that `line` opens."""
    match = _SECTION.fullmatch(line)
    name = match["name"].lower() if match else ""
    return name if name in _PARAMETER_SECTIONS | _OTHER_SECTIONS else None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _google(lines: list[str]) -> Iterator[tuple[str, str]]:
    inside, depth, name, words = False, 0, "", ""
    for line in [*lines, "End:"]:
        if line.strip() and _indent(line) == 0:
            if name:
                yield name, words
            inside, depth, name = _section_of(line) in _PARAMETER_SECTIONS, 0, ""
        elif inside and line.strip():
            depth = depth or _indent(line)
            entry = _GOOGLE_ENTRY.fullmatch(line.strip()) if _indent(line) <= depth else None
            if entry is None:
                words += f" {line.strip()}"
                continue
            if name:
                yield name, words
            name, words = entry["name"], entry["text"]


def _numpy(lines: list[str]) -> Iterator[tuple[str, str]]:
    inside, names, words = False, list[str](), ""
    for line, following in zip([*lines, "End"], [*lines[1:], "End", "---"], strict=False):
        if _UNDERLINE.fullmatch(following) or (line.strip() and _indent(line) == 0 and inside):
            yield from ((name, words) for name in names)
            names, words = [], ""
        if _UNDERLINE.fullmatch(following):
            inside = line.strip().lower() in _PARAMETER_SECTIONS
        elif inside and _indent(line) == 0 and not _UNDERLINE.fullmatch(line):
            entry = _NUMPY_ENTRY.fullmatch(line.strip())
            if entry:
                names = [name.strip(" *") for name in entry["names"].split(",")]
        elif inside:
            words += f" {line.strip()}"


def _rest(lines: list[str]) -> Iterator[tuple[str, str]]:
    name, words = "", ""
    for line in [*lines, ":end:"]:
        entry = _REST_ENTRY.fullmatch(line.strip())
        if entry or _REST_FIELD.match(line.strip()) or not line.strip():
            if name:
                yield name, words
            name, words = (entry["name"], entry["text"]) if entry else ("", "")
        elif name:
            words += f" {line.strip()}"
