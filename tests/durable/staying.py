"""A tool that keeps its first call until it is let go, so that a turn can be left in it."""

from __future__ import annotations

import threading
from typing import Any

from tests.conftest import LIMIT
from toolnexus import Tool, tool


class Staying:
    """Holds a tool `stay`.

    Attributes:
        tool: What is given to an agent; `stayed` is its result.
        inside: Set once it is called.
        go: Lets the first call go.
    """

    def __init__(self, **options: Any) -> None:
        self.inside, self.go = threading.Event(), threading.Event()

        @tool(name="stay", **options)
        def stay() -> str:
            """Stay the first time."""
            if not self.inside.is_set():
                self.inside.set()
                assert self.go.wait(LIMIT)
            return "stayed"

        self.tool: Tool = stay
