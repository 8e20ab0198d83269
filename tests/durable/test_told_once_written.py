"""Nobody is told of what is not written yet: it might never be, and cannot be answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late

import pytest

from tests.conftest import LIMIT
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Request,
    StoreError,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.stores import MemoryStore
from toolnexus.stores.records import RunChange
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]


@tool
def pay(ctx: ToolContext) -> ToolResult:
    """Pay."""
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", "Pay?"))
    return ToolResult.ok("paid")


class Slow(MemoryStore):
    """A store in which the write of a question takes its time, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asking, self.may_go = threading.Event(), threading.Event()
        self.fails = False

    def write(self, runtime: str, changes: Sequence[RunChange]) -> tuple[str, ...]:
        if any(change.opened for change in changes):
            self.is_asking.set()
            assert self.may_go.wait(LIMIT)
            if self.fails:
                raise StoreError("no room")
        return super().write(runtime, changes)


@pytest.mark.parametrize("how", ["wait_on", "stream"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_question_is_told_once_it_is_written(
    make_runtime: Make, llm: ScriptedLlm, how: str, fails: bool
) -> None:
    llm.say("m", tool_call("pay"), text("done"))
    store = Slow()
    store.fails = fails
    rt = make_runtime(AgentDef("a", tools=[pay]), store=store)
    handle = rt.spawn(rt.root, "a").handle
    rt.wake(handle, "pay")
    assert store.is_asking.wait(LIMIT)

    def look() -> object:
        if how == "wait_on":
            return rt.wait_on(handle, LIMIT)
        return [*rt.stream(handle)][-1].result

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        with pytest.raises(Late):
            looking.result(0.2)
        store.may_go.set()
        result = looking.result(LIMIT)
    if fails:
        assert result.status == "error"
        assert "no room" in result.text
        return
    assert result.status == "pending"
    rt.resume(Answer(result.pending.id, ok=True))
    assert rt.wait_on(handle, LIMIT).text == "done"
