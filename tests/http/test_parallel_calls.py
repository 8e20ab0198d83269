"""The calls of one message: side by side, recorded in call order, each on its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.http.test_client_run import add
from toolnexus import tool
from toolnexus.testing import ScriptedLlm, call, text, tool_calls

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])


@STYLES
def test_calls_run_side_by_side_and_results_stand_in_call_order(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    together = threading.Barrier(3)
    ended: list[int] = []
    ends: list[threading.Event] = [threading.Event() for _ in range(4)]
    ends[3].set()

    @tool
    def meet(n: int) -> str:
        """Wait for the others, then end in reverse order."""
        together.wait(LIMIT)
        assert ends[n + 1].wait(LIMIT)
        ended.append(n)
        ends[n].set()
        return f"met {n}"

    llm.say("m", tool_calls(*(call("meet", {"n": n}) for n in range(3))), text("done"))
    result = make_client(style=style).run("go", tools=[meet])

    assert ended == [2, 1, 0]
    said = [m["content"] for m in result.messages if m["role"] == "tool"]
    assert said == ["met 0", "met 1", "met 2"]


@pytest.mark.parametrize("max_workers", [1, 2, 32])
def test_fifty_calls_need_no_fifty_threads(
    llm: ScriptedLlm, make_client: Callable[..., Any], max_workers: int
) -> None:
    llm.say("m", tool_calls(*(call("add", {"a": n, "b": 0}) for n in range(50))), text("done"))
    result = make_client(max_workers=max_workers).run("go", tools=[add])

    assert [m["content"] for m in result.messages[2:52]] == [str(n) for n in range(50)]


def test_one_failing_call_spoils_no_other(llm: ScriptedLlm, make_client: MakeClient) -> None:
    @tool
    def fail(n: int) -> str:
        """Fail on odd numbers."""
        if n % 2:
            raise ValueError(f"odd: {n}")
        return str(n)

    llm.say("m", tool_calls(*(call("fail", {"n": n}) for n in range(4))), text("done"))
    result = make_client().run("go", tools=[fail])

    assert [m["content"] for m in result.messages[2:6]] == ["0", "odd: 1", "2", "odd: 3"]
