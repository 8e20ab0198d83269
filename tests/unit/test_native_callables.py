"""What can be made a tool beside a plain function, and what is refused."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from toolnexus.errors import ToolSchemaError
from toolnexus.tools.native import tool
from toolnexus.toolspec import ToolContext, ToolResult

CTX = ToolContext()


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


class Desk:
    """A place with state."""

    def __init__(self, city: str) -> None:
        self.city = city

    @tool
    def where(self, n: int = 1) -> str:
        """Say where."""
        return self.city * n

    @tool
    @staticmethod
    def inner(n: int) -> int:
        return n

    @staticmethod
    @tool
    def outer(n: int) -> int:
        return n

    @classmethod
    def shared(cls, n: int) -> str:
        return cls.__name__ * n

    free = tool(add)


def test_a_method_is_a_tool_of_its_instance() -> None:
    desk = Desk("Ulm")
    assert desk.where.execute({"n": 2}, CTX).output == "UlmUlm"
    assert desk.where(n=1) == "Ulm"
    assert Desk("Bern").where.execute({}, CTX).output == "Bern"
    assert Desk.where.name == "where"
    assert list(Desk.where.input_schema["properties"]) == ["n"]
    assert "instance" in Desk.where.execute({}, CTX).output


def test_static_methods_bound_methods_and_attributes_are_tools() -> None:
    desk = Desk("Ulm")
    for each in (Desk.inner, desk.inner, Desk.outer, desk.outer):
        assert each.execute({"n": 3}, CTX).output == "3"
    assert tool(Desk.shared).execute({"n": 1}, CTX).output == "Desk"
    assert desk.free.execute({"a": 1}, CTX).output == "3"
    assert desk.free is Desk.free


def test_partials_wrappers_and_callable_objects_are_tools() -> None:
    @functools.wraps(add)
    def wrapper(*args: Any, **kwargs: Any) -> int:
        return add(*args, **kwargs) + 100

    class Adder:
        def __call__(self, a: int) -> int:
            """Add one."""
            return a + 1

    assert tool(wrapper).execute({"a": 1}, CTX).output == "103"
    partial = tool(functools.partial(add, b=5), name="add5")
    assert partial.execute({"a": 1}, CTX).output == "6"
    assert partial.description == "Add two numbers."
    added = tool(Adder(), name="adder")
    assert added.execute({"a": 1}, CTX).output == "2"
    assert added.description == "Add one."


async def coroutine(a: int) -> int:
    return a


def generator(a: int) -> Iterator[int]:
    yield a


def positional(a: int, /) -> int:
    return a


def variadic(*a: int) -> None: ...


def keywords(**a: int) -> None: ...


class AsyncCall:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (coroutine, "async"),
        (AsyncCall(), "async"),
        (generator, "generator"),
        (positional, "positional-only"),
        (variadic, "list"),
        (keywords, "input_schema"),
        (functools.partial(add), "name"),
        (lambda: 1, "name"),
        (Desk, "function"),
        (5, "function"),
        (classmethod(lambda cls: 1), "classmethod"),
        (lambda cls: 1, "class method"),
        (tool(add), "already"),
    ],
)
def test_what_no_model_can_call_is_refused_with_a_reason(fn: Any, why: str) -> None:
    with pytest.raises(ToolSchemaError, match=why):
        tool(fn)


def test_the_caller_may_run_an_event_loop() -> None:
    async def main() -> ToolResult:
        return tool(add).execute({"a": 1}, CTX)

    assert asyncio.run(main()).output == "3"
