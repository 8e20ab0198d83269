"""Fixtures that every test may use, and what every test must leave behind: nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from toolnexus import AgentRuntime, LlmClient
from toolnexus.testing import ScriptedLlm

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


@pytest.fixture
def llm() -> Iterator[ScriptedLlm]:
    with ScriptedLlm() as server:
        yield server


@pytest.fixture
def make_runtime(llm: ScriptedLlm) -> Iterator[Callable[..., AgentRuntime]]:
    """Make runtimes that ask the scripted model; they are closed at the end."""
    made: list[AgentRuntime] = []

    def make(*registry: Any, **options: Any) -> AgentRuntime:
        options.setdefault("base_url", llm.base_url)
        options.setdefault("api_key", "test-key")
        options.setdefault("default_model", "m")
        options.setdefault("retries", 0)
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
