"""Rows (a) and (b): one run with two round trips, and parking plus resuming."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.bench.floor import KEY, PROMPT, Floor, HttpClient, Prepared, RawSocket, add, charge
from tests.bench.measure import Row, compare, ratio, row_of
from tests.bench.server import BenchServer
from toolnexus import AgentDef, AgentRuntime, Answer, LlmClient, tool

FLOOR = "two session.post(json=)"
TOOLS = 20


def runtime_of(url: str, *registry: AgentDef, **options: Any) -> AgentRuntime:
    """Return a runtime for the bench server."""
    given = {"base_url": url, "api_key": KEY, "default_model": "m", "registry": registry}
    return AgentRuntime(**{**given, **options})


def one_turn(runtime: AgentRuntime, name: str) -> Callable[[], object]:
    """Return the work of spawning, running and closing one agent."""

    def work() -> None:
        handle = runtime.spawn(runtime.root, name).handle
        result = runtime.run_turn(handle, PROMPT)
        assert result.status == "done", result
        runtime.close(handle)

    return work


def park_and_resume(runtime: AgentRuntime) -> Callable[[], object]:
    """Return the work of a run that asks, and of the answer to it."""

    def work() -> None:
        handle = runtime.spawn(runtime.root, "asker").handle
        parked = runtime.run_turn(handle, PROMPT)
        assert parked.pending is not None, parked
        runtime.resume(Answer(parked.pending.id, ok=True))
        assert handle.last_result is not None
        assert handle.last_result.status == "done", handle.last_result
        runtime.close(handle)

    return work


ADDER = AgentDef("adder", tools=[add], model="m")
ASKER = AgentDef("asker", tools=[charge], model="ask")


def many_tools() -> list[Any]:
    """Return twenty tools of five arguments, as a real agent has them."""

    def add(
        a: int, b: int, note: str = "", labels: list[str] | None = None, *, exact: bool = True
    ) -> str:
        """Add two whole numbers.

        Args:
            a: The first number.
            b: The second number, which is added to the first.
            note: What the sum is for.
            labels: Where the sum is filed.
            exact: Whether it must not be rounded.
        """
        return str(a + b)

    return [tool(add, name="add" if n == 0 else f"add_{n}") for n in range(TOOLS)]


def rows(server: BenchServer, *, quick: bool) -> list[Row]:
    """Measure (a) and (b)."""
    url = server.url()
    rounds, batch = (15, 10) if quick else (61, 20)
    floor, ask_floor = Floor(url, "m", add), Floor(url, "ask", charge)
    with ExitStack() as stack:
        client = stack.enter_context(LlmClient(base_url=url, api_key=KEY, model="m"))
        runtime = stack.enter_context(runtime_of(url, ADDER, ASKER))
        tools = [add]
        found = compare(
            {
                "floor": floor.turn,
                "client": lambda: client.run(PROMPT, tools=tools),
                "runtime": one_turn(runtime, "adder"),
                "prepared": Prepared(url, "m", add).turn,
                "http.client": HttpClient(url, "m", add).turn,
                "socket": RawSocket(url, "m", add).turn,
            },
            rounds=rounds,
            batch=batch,
        )
        many = many_tools()
        wide = compare(
            {
                "floor": Floor(url, "m", *many).turn,
                "client": lambda: client.run(PROMPT, tools=many),
            },
            rounds=rounds,
            batch=batch,
        )
        asked = compare(
            {"floor": ask_floor.turn, "runtime": park_and_resume(runtime)},
            rounds=rounds,
            batch=batch,
        )
    base = found["floor"]
    lines = [
        ("a", "`LlmClient.run`, two round trips, two tools", "client", 0.8),
        ("a", "`spawn`, `run_turn`, `close`, the same work", "runtime", 0.8),
        ("a", "by hand: prepared request through the adapter", "prepared", None),
        ("a", "by hand: `http.client`", "http.client", None),
        ("a", "bare socket, ready bytes: the server's share", "socket", None),
    ]
    out = [
        row_of(g, what, FLOOR, ratio(found[key], base), limit) for g, what, key, limit in lines
    ]
    declares = ratio(wide["client"], wide["floor"])
    what = f"`LlmClient.run`, {TOOLS} tools of five arguments declared"
    out.insert(2, row_of("a", what, FLOOR, declares, 0.8))
    parked = ratio(asked["runtime"], asked["floor"])
    out.append(row_of("b", "park, then `resume`, and `close`", FLOOR, parked, 0.9))
    return out
