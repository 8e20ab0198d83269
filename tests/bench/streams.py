"""Row (i): ten thousand pieces of text, and what is kept of them."""

from __future__ import annotations

import gc
import json
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from tests.bench.floor import KEY, PROMPT, TIMEOUT, Floor
from tests.bench.measure import Row, compare, ratio, row_of
from tests.bench.memory import rss_bytes
from tests.bench.server import PIECES, BenchServer
from tests.bench.turns import runtime_of
from toolnexus import AgentDef, LlmClient

FLOOR = "`iter_content`, `split`, `json.loads`"
LIMIT = 1.5


class StreamFloor(Floor):
    """What reading the same bytes takes: `requests` and `json.loads`, nothing else."""

    def read(self) -> int:
        body = {**self.body([{"role": "user", "content": PROMPT}]), "stream": True}
        pieces, rest = 0, b""
        with self.session.post(self.url, json=body, timeout=TIMEOUT, stream=True) as response:
            response.raise_for_status()
            for data in response.iter_content(None):
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    if event != b"data: [DONE]":
                        json.loads(event[6:])
                        pieces += 1
        return pieces


def _drain(client: LlmClient) -> Callable[[], object]:
    def work() -> None:
        pieces = sum(event.kind == "text" for event in client.stream(PROMPT))
        assert pieces == PIECES, pieces

    return work


def _sizes(url: str, marks: tuple[int, ...], pipe: Connection) -> None:
    with LlmClient(base_url=url, api_key=KEY, model="stream") as client:
        work, done, sizes = _drain(client), 0, []
        for mark in marks:
            for _ in range(mark - done):
                work()
            done = mark
            gc.collect()
            sizes.append(rss_bytes())
        pipe.send(sizes)


def _memory_row(url: str, *, quick: bool) -> Row:
    marks = (5, 10, 20) if quick else (10, 50, 100)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_sizes, args=(url, marks, theirs), daemon=True)
    process.start()
    sizes = ours.recv()
    process.join(30)
    shown = ", ".join(
        f"{size / 2**20:.1f} MB after {mark}" for mark, size in zip(marks, sizes, strict=True)
    )
    what = f"{marks[-1]} streams of {PIECES:,} pieces, resident memory"
    return Row("i", what, f"after {marks[0]}", sizes[-1] / sizes[0], None, 1.02, None, shown)


_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def _chunk(*events: str) -> bytes:
    data = "".join(f"data: {event}\n\n" for event in events).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def _first_event_row(*, quick: bool) -> Row:
    """Measure how long after the first byte the first event is in the caller's hands."""
    rounds = 50 if quick else 500
    listener = socket.create_server(("127.0.0.1", 0))
    sent: list[float] = []
    seen: list[float] = []
    was_seen = threading.Event()
    delta = '{"choices":[{"index":0,"delta":{"content":"Hello"}}]}'
    last = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'

    def serve() -> None:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            for _ in range(rounds):
                connection.recv(65_536)
                sent.append(time.perf_counter())
                connection.sendall(_HEAD + _chunk(delta))
                was_seen.wait(TIMEOUT)
                was_seen.clear()
                connection.sendall(_chunk(last, "[DONE]") + b"0\r\n\r\n")

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    with listener, LlmClient(base_url=url, api_key=KEY, model="m") as client:
        for _ in range(rounds):
            for event in client.stream(PROMPT):
                if event.kind == "text":
                    seen.append(time.perf_counter())
                    was_seen.set()
        server.join(TIMEOUT)
    delays = [after - before for before, after in zip(sent, seen, strict=True)]
    worst = statistics.quantiles(delays, n=20)[-1]
    note = f"95 of 100 within {worst / 0.002:.2f} of it"
    what = "first event after the first byte"
    return Row("i", what, "2 ms", statistics.median(delays) / 0.002, None, 1, None, note)


def rows(server: BenchServer, *, quick: bool) -> list[Row]:
    """Measure (i)."""
    rounds, batch = (7, 1) if quick else (31, 1)
    out: list[Row] = []
    for delay, how in ((0, "an HTTP chunk for each"), (1, "in chunks of 16 KB")):
        url = server.url(fan_out=delay)
        floor = StreamFloor(url, "stream")
        agent = AgentDef("talker", model="stream")
        with (
            LlmClient(base_url=url, api_key=KEY, model="stream") as client,
            runtime_of(url, agent) as runtime,
        ):

            def turn() -> None:
                handle = runtime.spawn(runtime.root, "talker").handle
                for event in runtime.stream(handle, PROMPT):
                    last = event
                assert last.kind == "done"
                runtime.close(handle)

            found = compare(
                {"floor": floor.read, "client": _drain(client), "runtime": turn},
                rounds=rounds,
                batch=batch,
            )
        client_ratio = ratio(found["client"], found["floor"])
        what = f"`LlmClient.stream`, {PIECES:,} pieces, {how}"
        out.append(row_of("i", what, FLOOR, client_ratio, LIMIT))
        runtime_ratio = ratio(found["runtime"], found["floor"])
        what = f"`AgentRuntime.stream`, the same, {how}"
        out.append(row_of("i", what, FLOOR, runtime_ratio))
    out.append(_first_event_row(quick=quick))
    out.append(_memory_row(server.url(), quick=quick))
    return out
