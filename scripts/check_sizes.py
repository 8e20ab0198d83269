"""Fail where a file of the package has grown over 400 lines, or a function over 60.

Usage: python scripts/check_sizes.py [DIRECTORY ...]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 400
FUNCTION_LINES = 60


def main(arguments: list[str]) -> int:
    """Check every Python file below the directories; the package where none is given."""
    package = Path(__file__).resolve().parent.parent / "toolnexus"
    roots = [Path(one) for one in arguments] or [package]
    files = sorted(path for root in roots for path in root.rglob("*.py"))
    if not files:
        print(f"no Python file below {', '.join(map(str, roots))}", file=sys.stderr)
        return 2
    problems = [problem for path in files for problem in problems_of(path)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def problems_of(path: Path) -> Iterator[str]:
    """Yield what is too long in one file."""
    source = path.read_text(encoding="utf-8")
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    lines = len(source.splitlines())
    if lines > FILE_LINES:
        yield f"{shown}: {lines} lines, more than {FILE_LINES}"
    for node in ast.walk(ast.parse(source, str(path))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                where = f"{shown}:{node.lineno}: {node.name}"
                yield f"{where} has {lines} lines, more than {FUNCTION_LINES}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
