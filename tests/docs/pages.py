"""The pages as parts: their Python blocks, and the tables below a heading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

PART = re.compile(
    r"^<!-- says (?P<model>[\w.-]+): (?P<replies>.*?) -->$"
    r"|^```(?P<language>\w*)\n(?P<source>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@attrs.frozen
class Block:
    """One Python block and what stands around it."""

    line: int
    source: str
    script: list[tuple[str, str]]
    prints: str | None


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    parts = list(PART.finditer(text))
    script: list[tuple[str, str]] = []
    for index, part in enumerate(parts):
        if part["model"]:
            script.append((part["model"], part["replies"]))
        elif part["language"] == "python":
            following = parts[index + 1] if index + 1 < len(parts) else None
            prints = None
            if following is not None and following["language"] == "text":
                prints = following["source"]
            line = text.count("\n", 0, part.start()) + 2
            yield Block(line, part["source"], script, prints)
            script = []


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def rows_below(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    text = (DOCS / page).read_text("utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None, f"{page} has no table below {heading!r}"
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def code_of(cell: str) -> list[str]:
    return re.findall(r"`(\w+)", cell)
