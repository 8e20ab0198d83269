"""Every Python block of the README and of docs/ does what its page says.

The blocks of one page run in order and share a namespace, like the cells of a notebook. They
are run as they stand but for the endpoint: the two providers' URLs lead to a `ScriptedLlm`.
What that says stands in a comment before the block, unseen by readers:

    <!-- says gpt-4o-mini: tool_call("add", {"a": 1, "b": 2}), text("It is 3.") -->

A `text` block that comes next after a Python block is what that prints.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest

from toolnexus import AgentRuntime, testing
from toolnexus.testing import ScriptedLlm

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
WITH_BLOCKS = [page for page in PAGES if "\n```python\n" in page.read_text("utf-8")]

ENDPOINTS = ("https://api.openai.com/v1", "https://api.anthropic.com")
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")

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


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the namespace of a page; what is left open in it is closed."""
    page = ModuleType("documented_page")
    monkeypatch.setitem(sys.modules, page.__name__, page)
    yield page
    for value in vars(page).values():
        if isinstance(value, AgentRuntime):
            value.close(value.root, force=True)


def run_block(block: Block, page: Path, module: ModuleType, llm: ScriptedLlm) -> str:
    """Run a block and return what it printed."""
    for model, replies in block.script:
        llm.say(model, *eval(f"({replies},)", {name: getattr(testing, name) for name in SAYS}))
    source = block.source
    for endpoint in ENDPOINTS:
        source = source.replace(f'"{endpoint}"', repr(llm.base_url))
    # Blank lines before it, so that a traceback names the page's own line.
    code = compile("\n" * (block.line - 1) + source, str(page), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, vars(module))
    return printed.getvalue()


SAYS = ("call", "raw", "status", "text", "tool_call", "tool_calls")


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_the_blocks_of_a_page_run(
    page: Path, module: ModuleType, llm: ScriptedLlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in KEYS:
        monkeypatch.setenv(key, "a-key")
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    for block in blocks_of(page):
        printed = run_block(block, page, module, llm)
        if block.prints is not None:
            assert printed == block.prints, f"{name_of(page)}, line {block.line}"
        else:
            assert not printed, f"{name_of(page)}, line {block.line} prints what is not shown"
    llm.assert_done()


def test_the_pages_with_code_are_found() -> None:
    names = {name_of(page) for page in WITH_BLOCKS}
    assert {"README.md", "docs/lifecycle.md", "docs/suspending.md"} <= names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_fence_is_closed_and_names_its_language(page: Path) -> None:
    fences = re.findall(r"^ *```(.*)$", page.read_text("utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert set(fences[::2]) <= {"python", "text", "sh", "toml"}
    assert set(fences[1::2]) <= {""}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{target} in {name_of(page)}"
        if anchor:
            assert anchor in anchors_of(file), f"{target} in {name_of(page)}"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that a page's headings have, by GitHub's rule."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one).strip().lower().replace(" ", "-") for one in headings}


def test_a_block_whose_output_differs_is_told(
    tmp_path: Path, module: ModuleType, llm: ScriptedLlm
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- says m: text('hi') -->\n```python\nprint(6 * 7)\n```\n\n```text\n41\n```\n",
        "utf-8",
    )
    (block,) = blocks_of(page)
    assert block.line == 3
    assert block.script == [("m", "text('hi')")]
    assert block.prints == "41\n"
    printed: Any = run_block(block, page, module, llm)
    assert printed == "42\n"
