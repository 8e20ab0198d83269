"""Rows (l), (m) and (n): a store with very many parked runs, and the room that runs take.

One run is parked, and its rows are copied: a population is made in seconds. Each measurement
has a process of its own, so that what it loads and holds is nobody else's.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sqlite3
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.bench.durable import STEPPER, STEPS, directory
from tests.bench.floor import PROMPT
from tests.bench.measure import Row, Sample, alternate, ratio, row_of, sample
from tests.bench.memory import rss_bytes
from tests.bench.server import BenchServer
from tests.bench.turns import ASKER, runtime_of
from toolnexus import AgentRuntime, Answer, State
from toolnexus.stores import SqliteStore

FEW = 10
MANY = 100_000
LIMIT_MS = 50
LIMIT_MB = 30
LIMIT_SHARE = 1.5
_VERBS = ("`pending(under=)`", "`inspect`", "`resume`")
_TABLES = ("run", "handle", "message", "call", "request", "wait")


def populate(url: str, path: Path, count: int) -> list[tuple[str, str]]:
    """Make a store of `count` parked runs; return their ids, each with that of its request."""
    store = SqliteStore(path)
    with closing(store), runtime_of(url, ASKER, store=store) as runtime:
        handle = runtime.spawn(runtime.root, "asker").handle
        assert handle is not None
        parked = runtime.run_turn(handle, PROMPT)
        assert parked.pending is not None
        first, request_id = handle.id, parked.pending.id
    stem = first.rpartition(".")[0]
    ids = [
        (f"{stem}.{n}", f"{request_id}-{n}" if n > 1 else request_id)
        for n in range(1, count + 1)
    ]
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("UPDATE toolnexus_runtime SET runs = ?", (count,))
    for table in _TABLES:
        _copy(connection, f"toolnexus_{table}", ids)
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return ids


def _copy(connection: sqlite3.Connection, table: str, ids: list[tuple[str, str]]) -> None:
    """Copy the rows of the first run for all others, each under its own numbers and ids."""
    cursor = connection.execute(f"SELECT * FROM {table}")
    columns = [one[0] for one in cursor.description]
    rows = cursor.fetchall()
    keys = {"id", "number", "run", "handle", "request"} & set(columns)
    marks = ", ".join("?" * len(columns))
    (first_run, first_request), *others = ids

    def copied(row: tuple[Any, ...], number: int, run: str, request: str) -> list[Any]:
        return [
            number
            if column in keys
            else value.replace(first_run, run).replace(first_request, request)
            if isinstance(value, str)
            else value
            for column, value in zip(columns, row, strict=True)
        ]

    connection.executemany(
        f"INSERT INTO {table} VALUES ({marks})",
        (copied(row, n, *one) for row in rows for n, one in enumerate(others, 2)),
    )


def _first_use(
    url: str, path: Path, verb: str, run_id: str, request_id: str, pipe: Connection
) -> None:
    """Open the store and use it once; send seconds, and bytes of resident memory."""
    # What a process of any size has loaded: a turn has run, on no store.
    with runtime_of(url, ASKER) as runtime:
        handle = runtime.spawn(runtime.root, "asker").handle
        assert handle is not None
        parked = runtime.run_turn(handle, PROMPT)
        assert parked.pending is not None
        runtime.resume(Answer(parked.pending.id, ok=True))
    gc.collect()
    before, began = rss_bytes(), perf_counter()
    runtime = runtime_of(url, ASKER, store=SqliteStore(path))
    if verb == "`pending(under=)`":
        assert len(runtime.pending(under=run_id)) == 1
    elif verb == "`inspect`":
        view = runtime.inspect(run_id)
        assert view is not None
        assert view.state is State.SUSPENDED
    else:
        runtime.resume(Answer(request_id, ok=True))
    took, grown = perf_counter() - began, rss_bytes() - before
    pipe.send((took, grown))
    runtime.close(force=True)


def _resume_on_demand(
    url: str, path: Path, ids: list[tuple[str, str]], pipe: Connection
) -> None:
    """At each request resume some of the parked runs, one by one."""
    store = SqliteStore(path, synchronous="normal")
    with runtime_of(url, ASKER, store=store) as runtime:
        pipe.send("ready")
        with suppress(EOFError):
            while (times := pipe.recv()) is not None:
                pipe.send(_resumed(runtime, ids, times))
    store.close()


def _resumed(
    runtime: AgentRuntime, ids: list[tuple[str, str]], times: int
) -> tuple[float, float]:
    walls, cpus = [], []
    for _ in range(times):
        # From the middle: neither the first nor the last of any index.
        answer = Answer(ids.pop(len(ids) // 2)[1], ok=True)
        found = sample(lambda answer=answer: runtime.resume(answer))
        walls.append(found.wall)
        cpus.append(found.cpu)
        handle = runtime.spawn(runtime.root, "asker").handle
        assert handle is not None
        parked = runtime.run_turn(handle, PROMPT)
        assert parked.pending is not None
        ids.append((handle.id, parked.pending.id))
    return sum(walls) / times, sum(cpus) / times


class _Process:
    """A target in a process of its own."""

    def __init__(self, target: Any, *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(*args, theirs), daemon=True)
        self._process.start()

    def resume(self, times: int) -> Sample:
        self.pipe.send(times)
        return Sample(*self.pipe.recv())

    def join(self) -> None:
        self._process.join(30)


def rows(server: BenchServer, *, quick: bool) -> list[Row]:
    """Measure (l) and (m)."""
    url = server.url()
    with directory() as name:
        paths = {count: Path(name) / f"{count}.db" for count in (FEW, MANY)}
        ids = {count: populate(url, path, count) for count, path in paths.items()}
        out = _open_rows(url, paths[MANY], ids[MANY], rounds=3 if quick else 9)
        made = {
            count: _Process(_resume_on_demand, url, paths[count], ids[count]) for count in paths
        }
        for one in made.values():
            assert one.pipe.recv() == "ready"
        contenders = {str(n): (lambda one=one: one.resume(20)) for n, one in made.items()}
        for work in contenders.values():
            work()
        found = alternate(contenders, rounds=9 if quick else 41)
        for one in made.values():
            one.pipe.send(None)
            one.join()
    grown = ratio(found[str(MANY)], found[str(FEW)])
    what = f"resume one of {MANY:,} stored parked runs"
    out.append(row_of("m", what, f"one of {FEW}", grown, 1.2))
    return out


def _open_rows(url: str, path: Path, ids: list[tuple[str, str]], rounds: int) -> list[Row]:
    out = []
    for verb in _VERBS:
        seconds, sizes = [], []
        for _ in range(rounds):
            process = _Process(_first_use, url, path, verb, *ids.pop(len(ids) // 2))
            took, grown = process.pipe.recv()
            process.join()
            seconds.append(took)
            sizes.append(grown)
        took, grown = sorted(seconds)[rounds // 2], max(sizes)
        what = f"open a store of {MANY:,} parked runs, then {verb}"
        share = took * 1000 / LIMIT_MS
        out.append(Row("l", what, f"{LIMIT_MS} ms", share, None, 1.0, None))
        memory = grown / 2**20
        note = f"resident memory grows by {memory:.1f} MB"
        against = f"{LIMIT_MB} MB"
        out.append(
            Row("l", "the same, memory", against, memory / LIMIT_MB, None, 1.0, None, note)
        )
    return out


def _bytes_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.stat().st_size


def size_rows(server: BenchServer, *, quick: bool) -> list[Row]:
    """Measure (n): by how much the file grows for the messages of turns with many steps."""
    url = server.url(0, STEPS)
    with directory() as name:
        path = Path(name) / "size.db"
        store = SqliteStore(path)
        with closing(store), runtime_of(url, STEPPER, store=store) as runtime:
            sizes, told = [], 0
            for index in range(31 if quick else 101):
                handle = runtime.spawn(runtime.root, "stepper").handle
                assert handle is not None
                assert runtime.run_turn(handle, PROMPT).status == "done"
                if index == 0:
                    sizes.append(_bytes_of(path))
                    continue
                for message in runtime.transcript(handle):
                    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
                    told += len(text.encode())
            sizes.append(_bytes_of(path))
    count = 30 if quick else 100
    grown = sizes[1] - sizes[0]
    messages = count * (2 * STEPS + 2)
    note = (
        f"{messages:,} messages of {told // messages} bytes of JSON, {grown // messages} bytes "
        "of file: rows, indexes, free pages, heads of handles and runs"
    )
    what = "growth of the file, turns of twenty steps"
    return [Row("n", what, "JSON of the messages", grown / told, None, LIMIT_SHARE, None, note)]
