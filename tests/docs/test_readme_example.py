"""The README's examples, as a reader would take them: each into a file of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks_of

KEYS = ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")


BLOCKS = list(blocks_of(ROOT / "README.md"))


@pytest.fixture(params=BLOCKS, ids=["agent", "scripted", "client"])
def any_example(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return written(request.param, tmp_path)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return written(BLOCKS[0], tmp_path)


def written(block: Block, directory: Path) -> Path:
    file = directory / "example.py"
    file.write_text(block.source, "utf-8")
    return file


def run(*command: object, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in without}
    environment["PYTHONPATH"] = environment["MYPYPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_it_is_clean_under_strict_mypy(any_example: Path) -> None:
    checked = run("-m", "mypy", "--strict", "--follow-imports=silent", any_example)
    assert checked.returncode == 0, checked.stdout


def test_without_a_key_it_says_so_and_ends(example: Path) -> None:
    ended = run(example, without=KEYS)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("error - No API key")
    assert ended.stdout.count("\n") == 1
    assert ended.stderr == ""


def test_it_is_about_twenty_lines_long(example: Path) -> None:
    lines = [line for line in example.read_text("utf-8").splitlines() if line.strip()]
    assert len(lines) <= 22
