"""What processes do that share one store: each function is the whole of one of them.

    python -c "from tests.durable import crowd; crowd.main()" FUNCTION ARGUMENT...

They say `ready`, and begin once they read a line.
"""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.conftest import LIMIT
from tests.process.child import Child, running
from toolnexus import AgentDef, AgentRuntime, Answer, Request, ToolContext, ToolResult, tool

SCRIPT = "from tests.durable import crowd; crowd.main()"
THREADS = 8


def process(function: str, *arguments: object) -> Any:
    """Start a process that is one of the functions below; a context manager."""
    return running(SCRIPT, function, *map(str, arguments))


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    function, *arguments = sys.argv[1:]
    globals()[function](*arguments)


def wait_to_begin() -> None:
    say("ready")
    sys.stdin.readline()


def agents(effects: str) -> list[AgentDef]:
    """Return the agents of all; what their tools do is a line in the file `effects`."""

    def take_effect(name: str) -> None:
        file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{name}\n".encode())
        os.close(file)

    @tool
    def pay(number: int, ctx: ToolContext) -> ToolResult:
        """Pay.

        Args:
            number: Of the bill.
        """
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", f"Pay bill {number}?"))
        take_effect(f"pay {number}")
        return ToolResult.ok(f"paid {number}")

    @tool
    def halt(name: str) -> str:
        """Stay in the tool until a line is read.

        Args:
            name: What is done then.
        """
        say("inside")
        sys.stdin.readline()
        take_effect(name)
        return name

    @tool(retry_safe=True)
    def step(name: str) -> str:
        """Do something.

        Args:
            name: What.
        """
        take_effect(name)
        return name

    return [AgentDef("payer", tools=[pay]), AgentDef("walker", tools=[halt, step])]


@contextmanager
def runtime(base_url: str, store: str, effects: str, **options: Any) -> Any:
    made = AgentRuntime(
        base_url=base_url,
        api_key="k",
        default_model="m",
        retries=0,
        registry=agents(effects),
        store=store,
        **options,
    )
    try:
        yield made
    finally:
        made.close(force=True)


def in_threads(work: Any, count: int = THREADS) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return [one.result() for one in [pool.submit(work, n) for n in range(count)]]


# -- processes ---------------------------------------------------------------------------------


def resume_all(base_url: str, store: str, effects: str, seed: str) -> None:
    """Say yes to all that is open, eight times over, each time in another order."""
    with runtime(base_url, store, effects) as rt:
        ids = [one.request.id for one in rt.pending()]
        wait_to_begin()

        def resume_each(number: int) -> None:
            mine = random.Random(f"{seed} {number}").sample(ids, len(ids))
            for request_id in mine:
                rt.resume(Answer(request_id, ok=True))

        in_threads(resume_each)
        say("done")


def spawn_many(base_url: str, store: str, effects: str, parent: str, count: str) -> None:
    """Spawn below one parent from many threads; say the ids."""
    with runtime(base_url, store, effects) as rt:
        above = rt.handle(parent)
        assert above is not None
        wait_to_begin()

        def spawn_some(_: int) -> list[str]:
            return [rt.spawn(above, "payer").handle.id for _ in range(int(count))]

        say(" ".join(one for found in in_threads(spawn_some) for one in found))


def walk(base_url: str, store: str, effects: str, lease_ms: str) -> None:
    """Run one turn, and say what came of it."""
    with runtime(base_url, store, effects, lease_ms=int(lease_ms)) as rt:
        handle = rt.spawn(rt.root, "walker").handle
        wait_to_begin()
        result = rt.run_turn(handle, "walk")
        say(f"{result.status}: {result.text}")
        sys.stdin.readline()


__all__ = ["LIMIT", "Child", "process"]
