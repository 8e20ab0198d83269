"""Every Python block of the README and of docs/ does what its page says.

The blocks of one page run in order and share a namespace, like the cells of a notebook. They
are run as they stand but for the endpoint: the two providers' URLs lead to a `ScriptedLlm`.
What that says stands in a comment before the block, unseen by readers:

    <!-- says gpt-4o-mini: tool_call("add", {"a": 1, "b": 2}), text("It is 3.") -->

A `text` block that comes next after a Python block is what that prints. Where the blocks define
test functions, pytest runs the page as one file.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.pages import PAGES, ROOT, Block, blocks_of, name_of
from toolnexus import AgentRuntime, testing
from toolnexus.testing import ScriptedLlm

WITH_BLOCKS = [page for page in PAGES if "\n```python\n" in page.read_text("utf-8")]
WITH_TESTS = [page for page in WITH_BLOCKS if "\ndef test_" in page.read_text("utf-8")]

ENDPOINTS = ("https://api.openai.com/v1", "https://api.anthropic.com")
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")


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
    page: Path,
    module: ModuleType,
    llm: ScriptedLlm,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)  # what a block writes is gone with the test
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


@pytest.mark.parametrize("page", WITH_TESTS, ids=name_of)
def test_the_tests_of_a_page_pass(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ""
    for block in blocks_of(page):
        # Blank lines before it, so that a failure names the page's own line.
        source += "\n" * (block.line - 1 - source.count("\n")) + block.source
    test = tmp_path / "test_page.py"
    test.write_text(source, "utf-8")
    for key in (*KEYS, "OPENROUTER_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error"]
    plugin = ["-p", "toolnexus.testing.plugin", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, *plugin, "--rootdir", tmp_path, "-c", "/dev/null", test],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout
    assert f"{source.count('def test_')} passed" in run.stdout


def test_the_pages_with_code_are_found() -> None:
    names = {name_of(page) for page in WITH_BLOCKS}
    assert {"README.md", "docs/lifecycle.md", "docs/suspending.md"} <= names
    assert [name_of(page) for page in WITH_TESTS] == ["docs/testing.md"]


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
