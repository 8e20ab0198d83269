"""Row (d): very many parked handles, each population in a process of its own.

Own processes, so that a population's weight on the garbage collector falls on its own resume
and on nobody else's.
"""

from __future__ import annotations

import gc
import multiprocessing
import tracemalloc
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from tests.bench.floor import PROMPT
from tests.bench.measure import Row, Sample, alternate, ratio, row_of, sample
from tests.bench.memory import rss_bytes
from tests.bench.server import BenchServer
from tests.bench.turns import ASKER, runtime_of
from toolnexus import AgentRuntime, Answer, Handle, State

POPULATIONS = (10, 1_000, 10_000)
LIMIT_BYTES = 4_096
_WARM = 50


def _park(runtime: AgentRuntime) -> tuple[Handle, str]:
    handle = runtime.spawn(runtime.root, "asker").handle
    parked = runtime.run_turn(handle, PROMPT)
    assert parked.pending is not None, parked
    return handle, parked.pending.id


def _warm(runtime: AgentRuntime) -> None:
    """Fill what is bounded (trace, closed handles, answers), which is not a handle's cost."""
    for _ in range(_WARM):
        handle, request_id = _park(runtime)
        runtime.resume(Answer(request_id, ok=True))
        runtime.close(handle)


def _weigh(url: str, count: int, pipe: Connection, *, traced: bool) -> None:
    """Send the bytes that one parked handle takes, of Python's own count or of the process."""
    with runtime_of(url, ASKER) as runtime:
        _warm(runtime)
        if traced:
            tracemalloc.start()
        gc.collect()
        read = (lambda: tracemalloc.get_traced_memory()[0]) if traced else rss_bytes
        before = read()
        for _ in range(count):
            _park(runtime)
        gc.collect()
        after = read()
        trace = sum(map(_size_of_line, list(runtime.trace())[-3 * count :]))
        pipe.send(((after - before) / count, trace / count))


def _size_of_line(line: str) -> int:
    return line.__sizeof__()


def _resume_on_demand(url: str, count: int, pipe: Connection) -> None:
    """Hold `count` parked handles; at each request resume some, one by one."""
    with runtime_of(url, ASKER) as runtime:
        _warm(runtime)
        waiting = [_park(runtime) for _ in range(count)]
        gc.collect()
        pipe.send("ready")
        with suppress(EOFError):
            while (times := pipe.recv()) is not None:
                walls, cpus = [], []
                for _ in range(times):
                    # From the middle: neither the first nor the last of any table.
                    handle, request_id = waiting.pop(len(waiting) // 2)
                    answer = Answer(request_id, ok=True)
                    found = sample(lambda answer=answer: runtime.resume(answer))
                    walls.append(found.wall)
                    cpus.append(found.cpu)
                    assert handle.state is State.IDLE, handle
                    runtime.close(handle)
                    waiting.append(_park(runtime))
                pipe.send((sum(walls) / times, sum(cpus) / times))


class _Population:
    def __init__(self, url: str, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_resume_on_demand, args=(url, count, theirs), daemon=True
        )
        self._process.start()

    def ready(self) -> None:
        assert self._pipe.recv() == "ready"

    def resume(self, times: int) -> Sample:
        self._pipe.send(times)
        return Sample(*self._pipe.recv())

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join(30)


def _in_process(target: Any, *args: Any, **given: Any) -> Any:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*args, theirs), kwargs=given, daemon=True)
    process.start()
    found = ours.recv()
    process.join(30)
    return found


def rows(server: BenchServer, *, quick: bool) -> list[Row]:
    """Measure (d): the weight of a parked handle, and whether resuming one gets slower."""
    url = server.url()
    out = []
    for count in POPULATIONS:
        traced, line = _in_process(_weigh, url, count, traced=True)
        note = f"{traced:.0f} bytes, {line:.0f} of them trace lines"
        if count >= 1_000:
            resident, _ = _in_process(_weigh, url, count, traced=False)
            note += f"; resident {resident:.0f} bytes"
            traced = max(traced, resident)
        what = f"{count:,} parked handles, bytes each"
        share = traced / LIMIT_BYTES
        out.append(Row("d", what, "4 KB", share, None, 1.0, None, note))
    made = {count: _Population(url, count) for count in POPULATIONS}
    for one in made.values():
        one.ready()
    contenders = {str(n): (lambda one=one: one.resume(20)) for n, one in made.items()}
    for work in contenders.values():
        work()
    found = alternate(contenders, rounds=9 if quick else 41)
    for one in made.values():
        one.stop()
    first = found[str(POPULATIONS[0])]
    for count in POPULATIONS[1:]:
        grown = ratio(found[str(count)], first)
        what = f"resume one of {count:,} parked handles"
        out.append(row_of("d", what, f"one of {POPULATIONS[0]}", grown, 1.2))
    return out
