"""What the tests of the runtime share: tools made of functions, and waits with a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from tests.conftest import LIMIT
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Handle,
    Request,
    TaskResult,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import ScriptedLlm

Make = Callable[..., AgentRuntime]
T = TypeVar("T")

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


class Probe:
    """A tool made of a function; it remembers every execution."""

    description = "Does what the test says"
    source = "custom"
    input_schema = SCHEMA

    def __init__(
        self,
        name: str,
        work: Callable[[dict[str, Any], ToolContext], ToolResult] | None = None,
        *,
        handles_decline: bool = False,
    ) -> None:
        self.name = name
        self.work = work or (lambda args, ctx: ToolResult.ok(f"{name} done"))
        self.handles_decline = handles_decline
        self.runs: list[tuple[dict[str, Any], ToolContext]] = []

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        self.runs.append((args, ctx))
        return self.work(args, ctx)


class Pay(Probe):
    """Asks before each payment and remembers what was paid on which answer."""

    def __init__(self, name: str = "pay", request_id: str | None = None) -> None:
        self.paid: list[tuple[Any, str]] = []
        self._id: dict[str, Any] = {} if request_id is None else {"id": request_id}
        super().__init__(name, self._pay)

    def _pay(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        amount = args.get("amount")
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", f"Pay {amount}?", **self._id))
        self.paid.append((amount, ctx.answer.id))
        return ToolResult.ok(f"paid {amount}")


def run_turn(rt: AgentRuntime, handle: Handle, prompt: str | None = "go") -> TaskResult:
    """Wake `handle` and return its next result."""
    future = rt.future_result(handle)
    ack = rt.wake(handle, prompt)
    assert ack.ok, ack.error
    return future.result(LIMIT)


def start(rt: AgentRuntime, name: str, prompt: str = "go") -> tuple[Handle, TaskResult]:
    """Spawn an agent below the root and run its first turn."""
    handle = rt.spawn(rt.root, name).handle
    return handle, run_turn(rt, handle, prompt)


def within(work: Callable[..., T], *args: Any, **named: Any) -> T:
    """Return `work(...)`, done on a thread of its own; fail where it takes too long."""
    return in_thread(work, *args, **named).result(LIMIT)


def in_thread(work: Callable[..., T], *args: Any, **named: Any) -> Future[T]:
    """Begin `work(...)` on a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args, **named))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def approve(rt: AgentRuntime, request: Request | None, **more: Any) -> None:
    """Say yes to `request`."""
    assert request is not None
    within(rt.resume, Answer(request.id, ok=True, **more))


def answer_all(rt: AgentRuntime, handle: Handle, *said: Any) -> TaskResult:
    """Answer the one open request, time after time; an `Answer` is sent under its id."""
    for data in said:
        (one,) = rt.pending()
        if isinstance(data, Answer):
            answer = Answer(one.request.id, data.ok, data.data, data.reason)
        else:
            answer = Answer(one.request.id, ok=True, data=data)
        within(rt.resume, answer)
    return rt.wait_on(handle, LIMIT)


def told(llm: ScriptedLlm) -> str:
    """Return the one tool result that the model was shown last."""
    (result,) = llm.requests[-1].tool_results.values()
    return str(result)


def chain_of(depth: int, leaf_tools: Iterable[Any]) -> list[AgentDef]:
    """Return agents d1 to d<depth>, each with the next as its team; each is its own model."""
    agents = []
    for level in range(1, depth + 1):
        is_leaf = level == depth
        agents.append(
            AgentDef(
                f"d{level}",
                f"level {level}",
                "",
                f"d{level}",
                tools=leaf_tools if is_leaf else (),
                team=() if is_leaf else [f"d{level + 1}"],
            )
        )
    return agents


def chain_ids(depth: int) -> list[str]:
    """Return the handle ids of a chain whose first agent is the root's first child."""
    ids = ["root"]
    for level in range(1, depth + 1):
        ids.append(f"{ids[-1]}/d{level}.1")
    return ids[1:]
