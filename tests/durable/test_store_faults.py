"""The store fails in the middle of a turn, for a while: all is told, kept, and done once."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import LIMIT
from tests.durable.faults import Down, Fault, FullDisk, Locked, Pragma, Restarted, mounted
from tests.postgres import Postgres, programs, server
from toolnexus import AgentDef, AgentRuntime, StoreError, ToolContext, tool
from toolnexus.clock import RealClock, Signal
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

Make = Callable[..., AgentRuntime]

BIG = "x" * 200_000


class Bench:
    """Two tools whose effects are counted; `strikes` is what befalls the store in one."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.keys: set[str] = set()
        self.strikes: Callable[[], object] = lambda: None

    def agent(self) -> AgentDef:
        @tool
        def note(what: str) -> str:
            """Note.

            Args:
                what: A word.
            """
            self.done.append(f"note {what}")
            return "noted"

        @tool
        def charge() -> str:
            """Charge; may not be done twice."""
            self.done.append("charge")
            self._strike()
            return BIG

        @tool(retry_safe=True)
        def look(ctx: ToolContext) -> str:
            """Look; may be done again."""
            self.done.append("look")
            self.keys.add(ctx.idempotency_key)
            self._strike()
            return BIG

        return AgentDef("a", tools=[note, charge, look])

    def _strike(self) -> None:
        strikes, self.strikes = self.strikes, lambda: None
        strikes()


@pytest.fixture(scope="module")
def own(postgres: Postgres) -> Iterator[Postgres]:
    """Start a server that tests may stop."""
    del postgres  # there is one, then
    found = programs()
    assert found is not None
    with server(found) as started:
        yield started


FAULTS = ("no pages", "full disk", "read only", "locked", "stopped", "crashed")


@pytest.fixture
def fault(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fault]:
    with ExitStack() as stack:
        made = make_fault(request, tmp_path, stack)
        yield made
        made.close()


def make_fault(request: pytest.FixtureRequest, directory: Path, stack: ExitStack) -> Fault:
    path = directory / "runs.db"
    match request.param:
        case "no pages":
            return Pragma(path, "PRAGMA max_page_count = 1", "full")
        case "read only":
            return Pragma(path, "PRAGMA query_only = 1", "readonly")
        case "locked":
            return Locked(path)
        case "full disk":
            return FullDisk(stack.enter_context(mounted(directory)))
    kind = Restarted if request.param.startswith("re") else Down
    how = signal.SIGINT if request.param.endswith("stopped") else signal.SIGQUIT
    return kind(request.getfixturevalue("own"), directory.name, how)


def recovered(rt: AgentRuntime) -> None:
    """Wait until the lease of the run is to be had, and go on with it."""
    clock = RealClock()
    limit = clock.monotonic() + LIMIT
    while True:
        # The pool of a server that was down takes its time to try again.
        with contextlib.suppress(StoreError):
            if rt.recover() == ("root/a.1",):
                return
        assert clock.monotonic() < limit
        clock.wait(Signal(), 0.02)


@pytest.mark.parametrize("fault", FAULTS, indirect=True)
@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize("name", ["charge", "look"])
def test_a_store_fails_in_a_tool(
    fault: Fault, make_runtime: Make, llm: ScriptedLlm, name: str, where: str
) -> None:
    llm.say("m", tool_calls(call("note", {"what": "x"})), tool_call(name), text("done"))
    bench = Bench()
    bench.strikes = fault.strike
    options = {"store": fault.store(), "lease_ms": 300, "max_result_chars": 10**6}
    rt = make_runtime(bench.agent(), **options)
    handle = rt.spawn(rt.root, "a").handle

    result = rt.run_turn(handle, "go")
    assert (result.status, result.is_error) == ("error", True)
    assert re.search(fault.says, result.text), result.text
    assert "recover() goes on from there" in result.text
    assert bench.done == ["note x", name]

    fault.lift()
    if where == "elsewhere":
        rt.close(force=True)
        rt = make_runtime(bench.agent(), **{**options, "store": fault.store()})
    recovered(rt)
    handle = rt.handle("root/a.1")
    result = rt.wait_on(handle, LIMIT)
    assert (result.text, result.status, result.turns) == ("done", "done", 3)
    again = ["look"] if name == "look" else []
    assert bench.done == ["note x", name, *again]
    assert len(bench.keys) == (name == "look")
    told = [one["content"] for one in rt.transcript(handle) if one["role"] == "tool"]
    assert told[0] == "noted"
    if name == "charge":
        assert "may or may not have taken effect" in told[1]
    else:
        assert told[1] == BIG
    assert len(llm.requests) == 3
    assert [one.id for one in rt.list()] == ["root/a.1"]


@pytest.mark.parametrize("fault", ["restopped", "recrashed"], indirect=True)
def test_a_server_is_back_at_once(fault: Fault, make_runtime: Make, llm: ScriptedLlm) -> None:
    llm.say("m", tool_calls(call("note", {"what": "x"})), tool_call("charge"), text("done"))
    bench = Bench()
    bench.strikes = fault.strike
    rt = make_runtime(bench.agent(), store=fault.store(), max_result_chars=10**6)
    result = rt.run_turn(rt.spawn(rt.root, "a").handle, "go")
    assert (result.text, result.status) == ("done", "done")
    assert bench.done == ["note x", "charge"]
    told = [one["content"] for one in rt.transcript(rt.handle("root/a.1"))]
    assert told[4] == BIG
