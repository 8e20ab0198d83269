"""What importing costs, and what the package never touches."""

from __future__ import annotations

import ast
import configparser
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolnexus

PACKAGE = Path(toolnexus.__file__).parent
PROJECT = PACKAGE.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has after `statement`."""
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
        cwd=PROJECT,
    )
    return set(json.loads(done.stdout))


def test_import_toolnexus_loads_nothing_heavy() -> None:
    loaded = loaded_by("import toolnexus")
    own = {name for name in loaded if name.partition(".")[0] == "toolnexus"}

    assert own == {"toolnexus"}
    heavy = {"asyncio", "requests", "urllib3", "attr", "attrs", "sqlite3", "pickle", "ssl"}
    assert not loaded & (heavy | {"concurrent.futures", "http.client", "inspect", "pytest"})


def test_the_names_cost_little_more_than_requests_and_attrs() -> None:
    statement = "from toolnexus import AgentRuntime, AgentDef, LlmClient, tool"
    floor = loaded_by("import requests, attrs, concurrent.futures")
    added = {name.partition(".")[0] for name in loaded_by(statement) - floor}

    assert added - sys.stdlib_module_names == {"toolnexus"}
    assert not added & {"asyncio", "unittest", "sqlite3", "multiprocessing", "xml", "pydoc"}
    assert "toolnexus.testing" not in loaded_by(statement)


def test_the_values_load_no_http() -> None:
    loaded = loaded_by("from toolnexus import Answer, Request, Budget, ToolResult, TaskResult")

    assert not loaded & {"requests", "urllib3", "ssl", "sqlite3"}


def test_a_database_is_loaded_with_the_store_that_needs_it() -> None:
    drivers = {"sqlite3", "psycopg", "psycopg_pool"}
    names = "from toolnexus.stores import RunStore, open_store"

    assert not loaded_by("import toolnexus.stores") & {*drivers, "attr"}
    assert not loaded_by(names) & drivers
    assert loaded_by(f"{names}; open_store('memory://')") & drivers == {"sqlite3"}
    made = f"{names}; open_store('postgresql:///db')"
    assert loaded_by(made) & drivers == drivers - {"sqlite3"}


def test_the_pytest_plugin_loads_nothing_of_ours() -> None:
    loaded = loaded_by("import toolnexus.testing.plugin")
    own = {name for name in loaded if name.partition(".")[0] == "toolnexus"}

    assert own == {"toolnexus", "toolnexus.testing", "toolnexus.testing.plugin"}
    assert "requests" not in loaded


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_event_loop_and_no_pickle(path: Path) -> None:
    forbidden = {"asyncio", "pickle", "shelve", "marshal", "dill", "anyio", "trio", "httpx"}

    assert not {name.partition(".")[0] for name in imported(path)} & forbidden
    kinds = {type(node) for node in ast.walk(ast.parse(path.read_text()))}
    assert not kinds & {ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith}


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                yield f"{owner}{child.name}", child


def test_a_handles_state_has_two_writers() -> None:
    writers = []
    for path in SOURCES:
        for name, function in functions(ast.parse(path.read_text())):
            for node in ast.walk(function):
                is_write = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                if is_write and node.attr == "_state":
                    writers.append(name)
    everything = "\n".join(path.read_text() for path in SOURCES)

    # The last two do not move a handle: they read from a store where it is.
    read = ["Shells._know", "_refill"]
    assert sorted(writers) == ["Core.move_locked", "Handle.__init__", *read]
    assert not re.search(r"""setattr\([^)]*['"]_state['"]""", everything)


# -- what is shipped ---------------------------------------------------------------------------


def settings() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    assert parser.read(PROJECT / "setup.cfg")
    return parser


def requirements(text: str) -> dict[str, str]:
    """Return package -> oldest version of lines such as `requests>=2.32.3`."""
    found = {}
    for line in text.strip().splitlines():
        matched = re.fullmatch(
            r"([\w-]+)(?:\[\w+\])?>=(\d+(?:\.\d+)*)(,<[\d.]+)?( *;.*)?", line
        )
        assert matched, f"{line!r} names no oldest version"
        found[matched[1].lower()] = matched[2]
    return found


def test_the_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").exists()
    assert settings()["options.package_data"]["toolnexus"].strip() == "py.typed"


def test_the_templates_are_shipped() -> None:
    shipped = settings()["options.package_data"]
    for path in PACKAGE.rglob("*.html"):
        package = next(one for one in path.parents if (one / "__init__.py").exists())
        pattern = shipped[".".join(package.relative_to(PROJECT).parts)].strip()
        assert path in package.glob(pattern)


def test_every_package_is_found_by_setuptools() -> None:
    for path in SOURCES:
        assert (path.parent / "__init__.py").exists(), path


def test_dependencies_name_their_oldest_version() -> None:
    from importlib.metadata import version

    needed = requirements(settings()["options"]["install_requires"])

    assert set(needed) == {"requests", "attrs"}
    for package, oldest in needed.items():
        assert as_numbers(oldest) <= as_numbers(version(package))
    for extra in settings()["options.extras_require"].values():
        requirements(extra)


def as_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def test_the_version_is_said_once() -> None:
    assert settings()["metadata"]["version"] == "attr: toolnexus.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+", toolnexus.__version__)
