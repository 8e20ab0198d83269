"""Fixtures for a client that talks to real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.http.raw_servers import Background, Handler, RawServer


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_PROXY".upper(), raising=False)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("OPENROUTER", "OPENAI", "ANTHROPIC"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)


@pytest.fixture
def serve() -> Iterator[Callable[..., RawServer]]:
    """Start servers whose connections a function of the test plays."""
    made: list[RawServer] = []

    def start(handle: Handler, **options: Any) -> RawServer:
        made.append(RawServer(handle, **options))
        return made[-1]

    yield start
    for server in made:
        server.close()


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], Any]], Background]]:
    """Run functions on threads of their own; all have ended when the test has."""
    made: list[Background] = []

    def start(work: Callable[[], Any]) -> Background:
        made.append(Background(work))
        return made[-1]

    yield start
    for one in made:
        one.join()
