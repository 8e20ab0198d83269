"""What the crash tests run: a boss with two agents, two questions and an inline answer.

    boss    asks clerk to confirm, then logs x while worker pays
    clerk   has somebody beside it who answers its one question inline
    worker  logs a and b side by side, then pays 1 and 2, for each of which a person is asked

In the process that dies, what goes on side by side is held in one order (`Order`), so that
every write has its place; in those that go on after it nothing is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tests.conftest import LIMIT
from tests.durable.mortal import Later, MortalStore
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Handle,
    Request,
    State,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.clock import RealClock, Signal
from toolnexus.runtime.archive import Archive
from toolnexus.stores import PostgresStore, RunStore, SqliteStore
from toolnexus.stores.sql.store import SqlStore
from toolnexus.testing import Reply, ScriptedLlm, call, text, tool_call, tool_calls
from toolnexus.testing.recorded import RecordedRequest

BOSS = "root/boss.1"
PROMPT = "Do it all."

# -- the models --------------------------------------------------------------------------------

LINES: Mapping[str, tuple[Reply, ...]] = {
    "boss": (
        tool_call("task", {"agent": "clerk", "prompt": "confirm"}, "confirming"),
        tool_calls(
            call("log", {"what": "x"}, "log-x"),
            call("task", {"agent": "worker", "prompt": "pay"}, "paying"),
        ),
        text("all done"),
    ),
    "clerk": (tool_call("confirm", {}, "confirm-1"), text("confirmed")),
    "worker": (
        tool_calls(call("log", {"what": "a"}, "log-a"), call("log", {"what": "b"}, "log-b")),
        tool_calls(call("pay", {"amount": 1}, "pay-1"), call("pay", {"amount": 2}, "pay-2")),
        text("paid"),
    ),
}


def play(llm: ScriptedLlm) -> None:
    """Let the models say their lines: which one is due is told by the transcript."""
    for model, lines in LINES.items():
        llm.answer(model, lambda asked, lines=lines: lines[replies_in(asked)])  # type: ignore[misc]


def replies_in(asked: RecordedRequest) -> int:
    """Return how often the model that is asked has spoken already."""
    return sum(one["role"] == "assistant" for one in asked.messages)


# -- the agents --------------------------------------------------------------------------------


class Order:
    """Holds what goes on side by side in one order."""

    def __init__(self, *, is_free: bool = False, work_seconds: float = 0) -> None:
        """Begin.

        Args:
            is_free: Whether to hold nothing.
            work_seconds: How long a tool takes, before what it does and after that.
        """
        self.work_seconds = work_seconds
        self._marks: set[str] = set()
        self._asked: dict[str, list[str]] = {}
        self._is_free = is_free
        self._changed = threading.Condition()

    def mark(self, *marks: str) -> None:
        with self._changed:
            self._marks.update(marks)
            self._changed.notify_all()

    def free(self) -> None:
        """Hold nothing any more."""
        with self._changed:
            self._is_free = True
            self._changed.notify_all()

    def wait(self, mark: str) -> None:
        def may_go() -> bool:
            return self._is_free or mark in self._marks

        with self._changed:
            assert self._changed.wait_for(may_go, LIMIT), mark

    def see(self, name: str, args: tuple[Any, ...]) -> None:
        """Mark what a store has written."""
        if name != "write" or self._is_free:
            return
        for handle in (one for change in args[1] for one in change.handles):
            for message in handle.messages.values():
                if message["role"] == "tool":
                    self.mark(f"wrote result of {message['tool_call_id']}")
                elif message.get("tool_calls"):
                    self._asked[handle.id] = [call["id"] for call in message["tool_calls"]]
            for index, row in handle.calls.items():
                if row is not None:
                    self.mark(f"wrote {self._asked[handle.id][index]} {row['status']}")


class InOrder:
    """Hooks that let the second of two calls into its tool once the first one is in its own."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def before_tool(self, called: Any, args: Any, ctx: ToolContext) -> None:
        first = {"log-b": "log-a", "pay-2": "pay-1", "paying": "log-x"}.get(called.id)
        if first is not None:
            self._order.wait(f"in {first}")


# After the first call of a pair is in its tool: until when it stays there. And the second.
STAYS: Mapping[str, str] = {
    "log-x": "wrote log-b started",
    "log-a": "wrote result of log-x",
    "log-b": "wrote result of log-a",
    "pay-1": "wrote pay-2 started",
    "pay-2": "wrote pay-1 open",
}


def agents(effects: Path, order: Order) -> list[AgentDef]:
    """Return the agents; what their tools do is a line in the file `effects`."""

    def take_effect(name: str, key: str) -> None:
        RealClock().wait(Signal(), order.work_seconds)
        line = f"{name} {key}\n".encode()
        file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line)
        os.close(file)
        RealClock().wait(Signal(), order.work_seconds)

    def stay(ctx: ToolContext) -> None:
        order.mark(f"in {ctx.call_id}")
        if ctx.call_id in STAYS:
            order.wait(STAYS[ctx.call_id])

    @tool(retry_safe=True)
    def log(what: str, ctx: ToolContext) -> str:
        """Log.

        Args:
            what: A letter.
        """
        stay(ctx)
        take_effect(f"log-{what}", ctx.idempotency_key)
        return f"logged {what}"

    @tool(retry_safe=True)
    def pay(amount: int, ctx: ToolContext) -> ToolResult:
        """Pay.

        Args:
            amount: Whole dollars.
        """
        if ctx.answer is None:
            stay(ctx)
            return ToolResult.pending(Request("approval", f"Pay {amount}?"))
        take_effect(f"pay-{amount}", ctx.idempotency_key)
        return ToolResult.ok(f"paid {amount}")

    @tool(retry_safe=True)
    def confirm(ctx: ToolContext) -> ToolResult:
        """Confirm."""
        if ctx.answer is None:
            return ToolResult.pending(Request("input", "Confirmed?"))
        take_effect("confirm", ctx.idempotency_key)
        return ToolResult.ok("yes")

    def decide(request: Request) -> Answer:
        take_effect("decide", request.prompt)
        return Answer(request.id, ok=True)

    hooks = InOrder(order)
    return [
        AgentDef("boss", model="boss", team=["clerk", "worker"], tools=[log], hooks=hooks),
        AgentDef("clerk", model="clerk", tools=[confirm], wait_for=decide),
        AgentDef("worker", model="worker", tools=[log, pay], hooks=hooks),
    ]


# -- what its host does ------------------------------------------------------------------------


def open_store(directory: str, conninfo: str | None, *, later: int = 0) -> SqlStore:
    """Return the store of a test: the file in its directory, or one in PostgreSQL.

    Args:
        directory: The test's.
        conninfo: Of the database; None for a file.
        later: How often the leases of before have run out.
    """
    if conninfo is None:
        path = Path(directory) / "runs.db"
        return SqliteStore(path, synchronous="normal", clock=Later(later))
    store = PostgresStore(conninfo)
    if later:
        expired = "UPDATE toolnexus_run SET expires = 0"
        store.database.write(lambda session: session.run(expired))
    return store


def runtime(
    base_url: str, directory: str, store: RunStore, order: Order | None = None, **options: Any
) -> AgentRuntime:
    return AgentRuntime(
        base_url=base_url,
        api_key="k",
        retries=0,
        registry=agents(Path(directory) / "effects", order or Order(is_free=True)),
        store=store,
        **options,
    )


def live(
    base_url: str,
    directory: str,
    conninfo: str | None = None,
    dies_at: int | None = None,
    when: str = "",
    **options: Any,
) -> None:
    """Do everything in this process, unless it dies; its changing calls are left in a file."""
    order = Order()
    with (Path(directory) / "calls").open("w", buffering=1) as calls:
        kept = open_store(directory, conninfo)
        store = MortalStore(kept, dies_at, when, log=calls, told=order.see)
        rt = runtime(base_url, directory, store, order, **options)
        do_all(rt, [])
        rt.close()
        kept.close()


def go_on(
    base_url: str, directory: str, conninfo: str | None = None, later: int = 1
) -> list[str]:
    """Go on in another process, when the lease of the one that died has run out.

    Returns:
        What the host has had to do.
    """
    store = open_store(directory, conninfo, later=later)
    rt = runtime(base_url, directory, store)
    deeds = ["recover"] if rt.recover() else []
    do_all(rt, deeds)
    rt.close()
    store.close()
    return deeds


def do_all(rt: AgentRuntime, deeds: list[str]) -> None:
    """Do what is still to be done, as a host that knows no more than the store does."""
    handle = rt.handle(BOSS)
    if handle is None:
        deeds.append("spawn")
        handle = rt.spawn(rt.root, "boss").handle
    while handle.state is not State.CLOSED:
        deeds.append(_one_step(rt, handle))
    assert rt.wait_on(handle, LIMIT).text == "all done"


def _one_step(rt: AgentRuntime, handle: Handle) -> str:
    view = rt.inspect(handle)
    assert view is not None
    if view.turns == 0 and view.state is State.IDLE:
        rt.run_turn(handle, PROMPT)
        return "wake"
    result = rt.wait_on(handle, LIMIT)
    if result.status == "pending":
        assert result.pending is not None
        rt.resume(Answer(result.pending.id, ok=True))
        return result.pending.prompt
    assert result.status == "done", result
    rt.close(handle)
    return "close"


# -- what is left of it ------------------------------------------------------------------------


def left(directory: str, conninfo: str | None = None) -> dict[str, Any]:
    """Return what a run has left in its store, but for what no two runs have in common."""
    store = open_store(directory, conninfo)
    try:
        rows = store.database.read(
            lambda session: session.rows("SELECT name FROM toolnexus_handle ORDER BY id")
        )
        return {
            "handles": {name: _handle_left(store, name) for (name,) in rows},
            "requests": sorted(
                (one.kind, one.state, one.waits) for one in store.requests("default")
            ),
            "audit": sorted(
                (one.kind, one.handle_id, one.tool, one.call_id, one.outcome, one.how)
                for one in Archive(store, "default", RealClock()).audit()
            ),
            "calls": dict(store.calls("default", BOSS)),
            "mail": store.mail("default", BOSS),
            "effects": sorted({name for name, _ in effects_of(directory)}),
        }
    finally:
        store.close()


def _handle_left(store: RunStore, name: str) -> dict[str, Any]:
    found = store.load_handle("default", name, ("messages",))
    assert found is not None
    record, head = found.record, cast("Any", found.record.head)
    counts = ("turns", "tokens", "treeTokens", "toolCalls", "spawned", "children", "inbox")
    told: list[Any] = [dict(cast("Any", one)) for one in found.messages.values()]
    for message in told:
        message.pop("_answered", None)  # the ids of questions
    return {
        "state": record.state,
        **{key: head[key] for key in counts},
        "result": head.get("result"),
        "keys": sorted(head),
        "messages": told,
    }


def effects_of(directory: str) -> list[tuple[str, str]]:
    """Return what tools have done, each with its call's key."""
    path = Path(directory) / "effects"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(name, key) for name, _, key in (line.partition(" ") for line in lines)]


def again(directory: str) -> list[str]:
    """Return what was done more than once; each time it has to be with the same key."""
    done = effects_of(directory)
    assert len(set(done)) == len({name for name, _ in done}), done
    return sorted({name for name, _ in done if len([1 for one, _ in done if one == name]) > 1})


def calls_of(directory: str) -> list[str]:
    """Return the changing calls of the process that did `live`."""
    return (Path(directory) / "calls").read_text().splitlines()
