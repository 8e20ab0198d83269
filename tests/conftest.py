"""Fixtures that every test may use, and what every test must leave behind: nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from toolnexus import AgentRuntime, LlmClient
from toolnexus.testing import ScriptedLlm

if TYPE_CHECKING:
    from tests.postgres import Postgres

IN_BOTH = ("tests/runtime/", "tests/threads/")
"""Where tests of a runtime hold for one in memory and for one whose runs are in a store."""

MakeClient = Callable[..., LlmClient]

LIMIT = 10.0
"""Seconds after which a blocking call in a test is a failure."""


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT)
        assert not thread.is_alive(), f"{thread.name} outlived its test"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Start a server; skipped where it is not installed, which in CI is a failure."""
    from tests.postgres import programs, server  # the only ones that need its driver

    found = programs()
    if found is None:
        problem = "the PostgreSQL server is not installed (Debian: postgresql)"
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    with server(found) as started:
        yield started


@pytest.fixture
def llm() -> Iterator[ScriptedLlm]:
    with ScriptedLlm() as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a runtime twice, unless they are marked as `in_memory`."""
    is_about_both = metafunc.definition.nodeid.startswith(IN_BOTH)
    is_marked = metafunc.definition.get_closest_marker("in_memory") is not None
    if "make_runtime" in metafunc.fixturenames and is_about_both and not is_marked:
        metafunc.parametrize("kept_in", ["memory", "sqlite"], indirect=True)


@pytest.fixture
def kept_in(request: pytest.FixtureRequest) -> str:
    """Where the runs of `make_runtime` are kept."""
    return str(getattr(request, "param", "memory"))


@pytest.fixture
def make_runtime(
    llm: ScriptedLlm, tmp_path: Path, kept_in: str
) -> Iterator[Callable[..., AgentRuntime]]:
    """Make runtimes that ask the scripted model; they are closed at the end."""
    made: list[AgentRuntime] = []

    def make(*registry: Any, **options: Any) -> AgentRuntime:
        options.setdefault("base_url", llm.base_url)
        options.setdefault("api_key", "test-key")
        options.setdefault("default_model", "m")
        options.setdefault("retries", 0)
        if kept_in == "sqlite":
            options.setdefault("store", f"sqlite:///{tmp_path}/runs.db?synchronous=normal")
        runtime = AgentRuntime(registry=registry, **options)
        made.append(runtime)
        return runtime

    yield make
    for runtime in made:
        runtime.close(runtime.root, force=True)


@pytest.fixture
def make_client(llm: ScriptedLlm) -> Iterator[MakeClient]:
    """Make clients that ask the scripted model once; they are closed at the end."""
    made: list[LlmClient] = []

    def make(**options: Any) -> LlmClient:
        defaults = {"base_url": llm.base_url, "api_key": "test-key", "model": "m", "retries": 0}
        made.append(LlmClient(**{**defaults, **options}))
        return made[-1]

    yield make
    for client in made:
        client.close()
