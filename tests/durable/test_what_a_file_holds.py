"""What stands in the file of a store, byte by byte: no secret, and nothing twice."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.durable import firm
from toolnexus import AgentDef, AgentRuntime, Answer, Request, ToolContext, ToolResult, tool
from toolnexus.codec import JsonValue
from toolnexus.stores import MemoryStore
from toolnexus.stores.records import RunChange
from toolnexus.testing import ScriptedLlm, text, tool_call

Make = Callable[..., AgentRuntime]

CANARY = "correct-horse-battery-staple"
FORM = {
    "type": "object",
    "properties": {"user": {"type": "string"}, "password": {"type": "string", "secret": True}},
    "required": ["user", "password"],
}


# -- secrets -----------------------------------------------------------------------------------


def bytes_of(directory: Path) -> bytes:
    """Return everything that stands in the file and those beside it, freed pages included."""
    files = sorted(directory.glob("runs.db*"))
    assert files
    return b"".join(one.read_bytes() for one in files)


@pytest.mark.parametrize("asks", ["returned", "ctx.ask"])
def test_a_secret_is_nowhere_in_the_file(
    make_runtime: Make, llm: ScriptedLlm, tmp_path: Path, asks: str
) -> None:
    heard: list[object] = []
    seen: list[bytes] = []

    def log_in(answer: Answer, ctx: ToolContext) -> str:
        heard.append((answer.data["user"], answer.secret("password")))
        seen.append(bytes_of(tmp_path))
        ctx.once("hash", lambda: f"kept with {answer.secret('password')}")
        seen.append(bytes_of(tmp_path))
        ctx.ask("approval", "Go on as ann?")
        return f"ann's password is {answer.secret('password')}"

    @tool
    def login(ctx: ToolContext) -> Any:
        """Log in."""
        if asks == "ctx.ask":
            return log_in(ctx.ask("input", "Who are you?", schema=FORM), ctx)
        if ctx.answer is None:
            return ToolResult.pending(Request("input", "Who are you?", data={"schema": FORM}))
        return log_in(ctx.answer, ctx)

    llm.say("m", tool_call("login"), text("welcome"))
    rt = make_runtime(AgentDef("a", tools=[login]), store=f"sqlite:///{tmp_path}/runs.db")
    handle = rt.spawn(rt.root, "a").handle
    rt.run_turn(handle, "log in")
    while pending := rt.pending():
        assert CANARY.encode() not in bytes_of(tmp_path)
        request = pending[0].request
        data = {"user": "ann", "password": CANARY} if request.kind == "input" else None
        rt.resume(Answer(request.id, ok=True, data=data))
    assert rt.wait_on(handle, LIMIT).text == "welcome"
    assert heard[-1] == ("ann", CANARY)
    rt.close(handle)
    rt.close(force=True)
    seen.append(bytes_of(tmp_path))
    assert any(b"ann" in one for one in seen)
    assert not any(CANARY.encode() in one for one in seen)


# -- size --------------------------------------------------------------------------------------

LONG = "all work and no play makes Jack a dull boy; " * 7  # about 300 bytes


def grow(make_runtime: Make, directory: Path, turns: int) -> tuple[int, int]:
    """Let one agent take so many turns; return the file's size and its messages'."""

    @tool
    def look(place: str) -> str:
        """Look.

        Args:
            place: Where.
        """
        return f"{place}: {LONG}"

    def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
        if body["messages"][-1]["role"] == "tool":
            return {"text": f"I see. {LONG}"}
        arguments = {"place": LONG}
        return {"tool_calls": [{"name": "look", "arguments": arguments}]}

    directory.mkdir()
    path = directory / "runs.db"
    agent = AgentDef("a", tools=[look])
    rt = make_runtime(
        agent, store=f"sqlite:///{path}?synchronous=normal", generate=model, base_url="http://x"
    )
    handle = rt.spawn(rt.root, "a").handle
    for number in range(turns):
        assert rt.run_turn(handle, f"{number}: {LONG}").status == "done"
    told = sum(len(json.dumps(one)) for one in rt.transcript(handle))
    assert len(rt.transcript(handle)) == 4 * turns
    rt.close(force=True)
    connection = sqlite3.connect(path)
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    connection.close()
    return pages * size, told


def test_a_file_grows_with_its_messages_and_with_nothing_else(
    make_runtime: Make, tmp_path: Path
) -> None:
    empty, _ = grow(make_runtime, tmp_path / "empty", 1)
    once, told = grow(make_runtime, tmp_path / "once", 50)
    twice, told_twice = grow(make_runtime, tmp_path / "twice", 100)
    assert (once - empty) / told <= 1.5
    assert (twice - empty) / told_twice <= 1.5
    assert (twice - once) / (told_twice - told) <= 1.5


class Noting(MemoryStore):
    """A store that notes where messages, and calls that are like before, were written."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[tuple[str, int]] = []
        self.rows: dict[tuple[str, int], JsonValue] = {}

    def write(self, runtime: str, changes: Sequence[RunChange]) -> tuple[str, ...]:
        for one in (one for change in changes for one in change.handles):
            self.places += [(one.id, place) for place in one.messages]
            for place, row in one.calls.items():
                assert row is None or self.rows.get((one.id, place)) != row
                self.rows[one.id, place] = row
        return super().write(runtime, changes)


def test_no_message_is_written_twice(llm: ScriptedLlm, tmp_path: Path) -> None:
    firm.play(llm)
    store = Noting()
    with firm.runtime(llm.base_url, str(tmp_path), store) as rt:
        firm.do_all(rt, [])
    written = Counter(store.places)
    assert set(written.values()) == {1}
    assert len(written) == 7 + 4 + 8
