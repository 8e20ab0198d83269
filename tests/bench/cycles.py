"""Row (g): spawn, run, close, a hundred thousand times; resident memory must stay flat."""

from __future__ import annotations

import gc
import io
import multiprocessing
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import requests
import urllib3
from requests.adapters import BaseAdapter

from tests.bench.measure import Row
from tests.bench.memory import rss_bytes
from tests.bench.turns import ADDER, one_turn, runtime_of

_REPLY = (
    b'{"choices":[{"message":{"role":"assistant","content":"All done."},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":30,"completion_tokens":10}}'
)
_HEADERS = {"Content-Type": "application/json"}


class InProcess(BaseAdapter):
    """Answers without a network."""

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        response = requests.Response()
        response.status_code = 200
        response.headers.update(_HEADERS)
        response.request = request
        response.url = request.url or ""
        response.raw = urllib3.HTTPResponse(
            io.BytesIO(_REPLY), headers=_HEADERS, status=200, preload_content=False
        )
        return response

    def close(self) -> None:
        """Nothing is open."""


def _cycle(marks: tuple[int, ...], pipe: Connection) -> None:
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", InProcess())
    with runtime_of("http://in-process.invalid/v1", ADDER, session=session) as runtime:
        work = one_turn(runtime, "adder")
        done, sizes = 0, []
        for mark in marks:
            for _ in range(mark - done):
                work()
            done = mark
            gc.collect()
            sizes.append(rss_bytes())
        pipe.send(sizes)


def rows(*, quick: bool) -> list[Row]:
    """Measure (g) in a process of its own."""
    marks = (5_000, 7_500, 10_000) if quick else (10_000, 50_000, 100_000)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_cycle, args=(marks, theirs), daemon=True)
    process.start()
    sizes = ours.recv()
    process.join(30)
    shown = ", ".join(
        f"{size / 2**20:.1f} MB at {mark:,}" for mark, size in zip(marks, sizes, strict=True)
    )
    what = f"{marks[-1]:,} spawn-run-close cycles, resident memory"
    against = f"after {marks[0]:,}"
    return [Row("g", what, against, sizes[-1] / sizes[0], None, 1.02, None, shown)]
