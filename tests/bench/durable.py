"""Rows (j) and (k): what it costs to keep a run, by its park and resume and by its steps."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.floor import FUNCTIONS, PROMPT, Floor, charge
from tests.bench.measure import Row, Sample, compare, ratio, row_of
from tests.bench.server import BenchServer
from tests.bench.turns import ASKER, park_and_resume, runtime_of
from toolnexus import AgentDef, AgentRuntime, Budget, tool
from toolnexus.stores import MemoryStore, SqliteStore

SYNCHRONOUS = ("normal", "full")
STEPS = 20
STEP_MS = 1.0
MEMORY = "the same in a `MemoryStore`"
BARE = "the same without a store"

_FOUND = "Customer 4711, order 2024-{}: shipped, invoice sent, not yet paid; no note. "


@tool
def look_up(query: str, limit: int) -> str:
    """Look up what is known of customers and their orders."""
    return "".join(_FOUND.format(number) for number in range(limit))


STEPPER = AgentDef(
    "stepper", tools=[look_up], model="steps", budget=Budget(max_turns=STEPS + 1)
)


def directory() -> tempfile.TemporaryDirectory[str]:
    """Return a directory on the disk of this repository, deleted at the end."""
    return tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parent)


def steps(runtime: AgentRuntime) -> Callable[[], object]:
    """Return the work of one turn of many steps, each a reply and its one call."""

    def work() -> None:
        handle = runtime.spawn(runtime.root, "stepper").handle
        result = runtime.run_turn(handle, PROMPT)
        assert result.status == "done", result
        assert result.turns == STEPS + 1, result
        runtime.close(handle)

    return work


class ByHand(Floor):
    """Park and resume by hand: a row for each message, a commit before anything follows."""

    def __init__(self, base_url: str, path: Path, synchronous: str) -> None:
        super().__init__(base_url, "ask", charge)
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(f"PRAGMA synchronous = {synchronous}")
        self.connection.execute("CREATE TABLE run (id INTEGER PRIMARY KEY, state TEXT)")
        self.connection.execute(
            "CREATE TABLE message (run INTEGER, place INTEGER, body TEXT,"
            " PRIMARY KEY (run, place))"
        )

    def keep(self, run: int, state: str, *messages: tuple[int, dict[str, Any]]) -> None:
        """Write where a run stands, and new messages."""
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        execute("UPDATE run SET state = ? WHERE id = ?", (state, run))
        for place, message in messages:
            row = (run, place, json.dumps(message))
            execute("INSERT INTO message (run, place, body) VALUES (?, ?, ?)", row)
        execute("COMMIT")

    def load(self, run: int) -> list[dict[str, Any]]:
        """Read the messages of a run."""
        statement = "SELECT body FROM message WHERE run = ? ORDER BY place"
        return [json.loads(body) for (body,) in self.connection.execute(statement, (run,))]

    def turn(self) -> str:
        """Begin, ask, park; then load, note the answer, call, note the result, ask, end."""
        run = self.connection.execute("INSERT INTO run (state) VALUES ('idle')").lastrowid
        assert run is not None
        user = {"role": "user", "content": PROMPT}
        self.keep(run, "running", (0, user))
        message = self.ask([user])
        self.keep(run, "parked", (1, message))
        messages = self.load(run)
        call = messages[-1]["tool_calls"][0]
        self.keep(run, "answered, in its tool")
        function = FUNCTIONS[call["function"]["name"]]
        output = function(**json.loads(call["function"]["arguments"]))
        result = {"role": "tool", "tool_call_id": call["id"], "content": output}
        self.keep(run, "running", (2, result))
        last = self.ask([*messages, result])
        self.keep(run, "done", (3, last))
        self.keep(run, "closed")
        return last["content"]


def rows(server: BenchServer, *, quick: bool) -> list[Row]:
    """Measure (j) and (k)."""
    with directory() as name, ExitStack() as stack:
        path = Path(name)

        def runtime(url: str, agent: AgentDef, synchronous: str | None) -> AgentRuntime:
            store: MemoryStore | SqliteStore | None = None
            if synchronous == "memory":
                store = MemoryStore()
            elif synchronous is not None:
                file = path / f"{agent.name}-{synchronous}.db"
                store = SqliteStore(file, synchronous=synchronous)  # type: ignore[arg-type]
                stack.callback(store.close)
            return stack.enter_context(runtime_of(url, agent, store=store))

        return [
            *_park_rows(server, path, runtime, quick=quick),
            *_step_rows(server, runtime, quick=quick),
        ]


_Maker = Callable[[str, AgentDef, "str | None"], AgentRuntime]


def _park_rows(server: BenchServer, path: Path, runtime: _Maker, *, quick: bool) -> list[Row]:
    url = server.url()
    works: dict[str, Callable[[], object]] = {
        "memory": park_and_resume(runtime(url, ASKER, None)),
        "store": park_and_resume(runtime(url, ASKER, "memory")),
    }
    for how in SYNCHRONOUS:
        works[how] = park_and_resume(runtime(url, ASKER, how))
        works[f"hand {how}"] = ByHand(url, path / f"hand-{how}.db", how).turn
    found = compare(works, rounds=15 if quick else 61, batch=10)
    what = "park, `resume`, `close`, SQLite, `synchronous={}`"
    out = []
    for how in SYNCHRONOUS:
        kept = ratio(found[how], found["store"])
        out.append(row_of("j", what.format(how), MEMORY, kept, 1.5))
    for how in SYNCHRONOUS:
        out.append(row_of("j", what.format(how), BARE, ratio(found[how], found["memory"])))
    by_hand = "by hand: `session.post(json=)`, `sqlite3`, `synchronous={}`"
    for how in SYNCHRONOUS:
        found_by_hand = ratio(found[f"hand {how}"], found["memory"])
        out.append(row_of("j", by_hand.format(how), BARE, found_by_hand))
    return out


def _step_rows(server: BenchServer, runtime: _Maker, *, quick: bool) -> list[Row]:
    url = server.url(0, STEPS)
    works: dict[str, Callable[[], object]] = {"memory": steps(runtime(url, STEPPER, None))}
    for how in SYNCHRONOUS:
        works[how] = steps(runtime(url, STEPPER, how))
    found = compare(works, rounds=15 if quick else 61, batch=1)
    floor = [Sample(STEP_MS / 1000, STEP_MS / 1000)] * len(found["memory"])
    out = []
    for how in SYNCHRONOUS:
        more = [
            Sample((one.wall - base.wall) / STEPS, (one.cpu - base.cpu) / STEPS)
            for one, base in zip(found[how], found["memory"], strict=True)
        ]
        what = f"a step (reply, intent, result) beyond memory, SQLite, `synchronous={how}`"
        out.append(row_of("k", what, f"{STEP_MS:g} ms", ratio(more, floor), 1.0))
    return out
