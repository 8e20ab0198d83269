"""Several runtimes share a store, and threads ask them for anything at any moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.runtime.streams import until
from tests.threads.racing import race
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    ConfigError,
    InboxItem,
    Request,
    ResumeError,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.stores import MemoryStore
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

Make = Callable[..., AgentRuntime]

STEPS = 300
WORKERS = 5
SEEDS = (*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60)))


class Shop:
    """Agents whose payments are counted."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def agents(self) -> tuple[AgentDef, ...]:
        @tool
        def pay(n: int, ctx: ToolContext) -> ToolResult:
            """Pay.

            Args:
                n: Which.
            """
            if ctx.answer is None:
                return ToolResult.pending(Request("approval", f"Pay {n}?"))
            self.paid.append(ctx.idempotency_key)
            return ToolResult.ok("paid")

        return AgentDef("a", tools=[pay], team=["b"]), AgentDef("b", tools=[pay])


def play(asked: Any) -> Any:
    if asked.tool_results:
        return text("done")
    if "delegate" in asked.prompt:
        return tool_call("task", {"agent": "b", "prompt": "go"})
    if "talk" in asked.prompt:
        return text("hello")
    return tool_calls(call("pay", {"n": 1}), call("pay", {"n": 2}))


def step(rt: AgentRuntime, run_id: str, chance: random.Random) -> None:
    """Ask for something; what cannot be is refused, and nothing else is raised."""
    handle = rt.handle(run_id)
    assert handle is not None
    asked = rt.pending(limit=5)
    answers = [Answer(one.request.id, ok=chance.random() < 0.8) for one in asked]
    verbs: list[Callable[[], object]] = [
        lambda: rt.wake(handle, chance.choice(["delegate", "talk", "pay"])),
        lambda: rt.wake(handle, "pay"),
        *[lambda: rt.resume(chance.choice(answers)) if answers else None] * 3,
        lambda: rt.future_resume(answers[:2]) if answers else None,
        lambda: rt.interrupt(handle),
        lambda: rt.post(handle, InboxItem("shop", "note", "talk")),
        rt.recover,
        lambda: rt.wait_on(handle, 0.02),
        lambda: (rt.list(), rt.audit()),
        lambda: rt.supersede(handle, "talk"),
        lambda: rt.retry(handle),
        lambda: rt.future_result(handle),
    ]
    try:
        chance.choice(verbs)()
    except ResumeError:
        pass  # somebody else was first
    except ConfigError as error:
        if "no turn to retry" not in str(error):
            raise


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_done_twice_and_nobody_is_left_waiting(
    make_runtime: Make, llm: ScriptedLlm, seed: int
) -> None:
    llm.answer("m", play)
    store, shop = MemoryStore(), Shop()
    runtimes = [make_runtime(*shop.agents(), store=store, max_workers=4) for _ in range(3)]
    first = runtimes[0]
    runs = [first.spawn(first.root, "a").handle.id for _ in range(3)]

    def work(number: int) -> None:
        chance = random.Random(100 * seed + number)
        for _ in range(STEPS):
            step(chance.choice(runtimes), chance.choice(runs), chance)

    assert race(*(partial(work, number) for number in range(WORKERS))) == [None] * WORKERS
    assert len(shop.paid) == len(set(shop.paid))
    keepers = [one._core.keeper for one in runtimes]
    until(lambda: not any(store.owned("default", one.owner) for one in keepers))
    left = store.abandoned("default")
    assert left == (), [store.mail("default", one) for one in left]
    for rt in runtimes:
        assert rt._core.root._running_children == 0
