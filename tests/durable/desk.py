"""A host that uses every verb; and what has to hold wherever its process died."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conftest import LIMIT
from tests.durable.mortal import Later, MortalStore
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    Grant,
    InboxItem,
    Request,
    State,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.stores import RunStore, SqliteStore
from toolnexus.testing import Reply, ScriptedLlm, call, text, tool_calls
from toolnexus.testing.recorded import RecordedRequest

WORDS = ("pay", "late", "look", "delegate", "login")


def play(llm: ScriptedLlm) -> None:
    llm.answer("m", _reply)


def _reply(asked: RecordedRequest) -> Reply:
    """Call what the last text names; say something once the results are there."""
    if asked.messages[-1]["role"] == "tool":
        return text("I see")
    count = sum(one["role"] == "assistant" for one in asked.messages)
    named = [word for word in asked.prompt.split() if word in WORDS]
    calls = [
        call("task", {"agent": "clerk", "prompt": "pay"}, f"{word}-{count}-{place}")
        if word == "delegate"
        else call(word, {}, f"{word}-{count}-{place}")
        for place, word in enumerate(named)
    ]
    return tool_calls(*calls) if calls else text("hello")


def agents(directory: str) -> list[AgentDef]:
    def take_effect(name: str, ctx: ToolContext) -> None:
        line = f"{name} {ctx.idempotency_key}\n".encode()
        file = os.open(Path(directory) / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line)
        os.close(file)

    @tool(retry_safe=True)
    def pay(ctx: ToolContext) -> ToolResult:
        """Pay."""
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "Pay?"))
        take_effect("pay", ctx)
        return ToolResult.ok("paid")

    @tool(retry_safe=True)
    def late(ctx: ToolContext) -> ToolResult:
        """Ask too late."""
        if ctx.answer is None:
            past = Later(-1).now()
            return ToolResult.pending(Request("approval", "Late?", expires_at=past))
        take_effect("late", ctx)
        return ToolResult.ok("paid late")

    @tool(retry_safe=True)
    def look(ctx: ToolContext) -> str:
        """Look."""
        take_effect("look", ctx)
        return "seen"

    @tool(retry_safe=True, needs_approval=True)
    def login(ctx: ToolContext) -> str:
        """Log in; a grant may let it."""
        take_effect("login", ctx)
        return "in"

    tools = [pay, late, look, login]
    boss = AgentDef("boss", team=["clerk"], tools=tools, budget=Budget(max_turns=1))
    return [boss, AgentDef("clerk", tools=tools)]


def runtime(base_url: str, directory: str, store: RunStore) -> AgentRuntime:
    return AgentRuntime(
        base_url=base_url,
        api_key="k",
        default_model="m",
        retries=0,
        registry=agents(directory),
        store=store,
    )


def live(base_url: str, directory: str, dies_at: int | None = None, when: str = "") -> None:
    """Use every verb."""
    with (Path(directory) / "calls").open("w", buffering=1) as calls:
        kept = SqliteStore(Path(directory) / "runs.db", synchronous="normal")
        rt = runtime(base_url, directory, MortalStore(kept, dies_at, when, log=calls))
        clerk = rt.spawn(rt.root, "clerk").handle
        for word in ("hello", "look"):
            assert rt.post(clerk, InboxItem("shop", "chat", word)).ok
        assert rt.run_turn(clerk).status == "done"
        assert rt.run_turn(clerk, "pay pay").status == "pending"
        rt.interrupt(clerk)
        assert rt.run_turn(clerk, "pay").status == "pending"
        assert rt.supersede(clerk, "look look").ok
        assert rt.wait_on(clerk, LIMIT).text == "I see"
        assert rt.run_turn(clerk, "late pay").status == "pending"
        rt.expire_due()
        (question,) = rt.pending()
        rt.resume(Answer(question.request.id, ok=False))
        assert rt.run_turn(clerk, "login login").status == "pending"
        rt.resume([Answer(one.request.id, ok=True) for one in rt.pending()])
        rt.grant(Grant("login", {}, "root"))
        assert rt.run_turn(clerk, "login").status == "done"
        boss = rt.spawn(rt.root, "boss").handle
        assert rt.run_turn(boss, "look").status == "incomplete"
        assert rt.retry(boss, Budget(max_turns=9)).status == "done"
        assert rt.run_turn(boss, "delegate delegate look").status == "pending"
        rt.interrupt(boss)
        assert rt.run_turn(boss, "delegate").status == "pending"
        rt.close(boss)
        rt.close()


def check(base_url: str, directory: str) -> list[str]:
    """Take over what the process has left, and look whether all of it holds together.

    Returns:
        What is wrong.
    """
    store = SqliteStore(Path(directory) / "runs.db", clock=Later(1))
    rt = runtime(base_url, directory, store)
    wrong: list[str] = []
    rt.recover()
    for view in rt.list():
        if view.depth == 1 and (view.turns or view.state is not State.IDLE):
            rt.wait_on(rt.handle(view.id), LIMIT)
    wrong += _held_together(rt, store)
    for _ in range(9):
        for one in rt.pending():
            rt.resume(Answer(one.request.id, ok=one.request.prompt != "Late?"))
    wrong += [f"still asks {one}" for one in rt.pending()]
    wrong += _held_together(rt, store)
    for view in rt.list():
        if view.depth == 1:
            result = rt.run_turn(rt.handle(view.id), "hello")
            if result.status != "done":
                wrong.append(f"{view.id} cannot go on: {result}")
            rt.close(rt.handle(view.id))
    wrong += [f"left open: {view}" for view in rt.list()]
    effects = Path(directory) / "effects"
    done = effects.read_text().splitlines() if effects.exists() else []
    wrong += [f"{line} {n} times" for line, n in Counter(done).items() if n > 2]
    rt.close()
    return wrong


def _held_together(rt: AgentRuntime, store: Any) -> list[str]:
    """Return what does not fit of the runs, none of which has anything under way."""
    wrong = [f"{run_id} was left" for run_id in store.abandoned("default")]
    asking = {one.handle_id for one in rt.pending()}
    for view in rt.list():
        if view.state is State.RUNNING:
            wrong.append(f"{view.id} runs")
        asks = any(f"{one}/".startswith(f"{view.id}/") for one in asking)
        if asks != (view.state is State.SUSPENDED):
            wrong.append(f"{view.id} is {view.state.value}, and asks: {asks}")
        open_calls: list[str] = []
        for message in rt.transcript(rt.handle(view.id)):
            if message["role"] == "tool":
                open_calls.remove(str(message["tool_call_id"]))
            else:
                wrong += [f"{view.id}: {one} has no result" for one in open_calls]
                open_calls = [one["id"] for one in message.get("tool_calls") or ()]  # type: ignore[union-attr,index,call-overload,misc]
    return wrong
