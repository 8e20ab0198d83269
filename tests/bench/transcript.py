"""Row (f): one more turn on a transcript of 2,000 messages."""

from __future__ import annotations

import json
from typing import Any

import requests

from tests.bench.floor import HEADERS, KEY, TIMEOUT, HttpClient
from tests.bench.measure import Row, Sample, alternate, ratio, row_of, sample
from tests.bench.server import BenchServer
from tests.bench.turns import ADDER, runtime_of
from toolnexus import LlmClient

MESSAGES = 2_000
_TEXT = "The quick brown fox jumps over the lazy dog, and nobody minds. " * 3


def long_history(count: int = MESSAGES) -> list[dict[str, Any]]:
    """Return a balanced transcript: question, call, result, answer, over and over."""
    out: list[dict[str, Any]] = []
    for index in range(count // 4):
        function = {"name": "add", "arguments": json.dumps({"a": index, "b": 2})}
        call = {"id": f"call_{index}", "type": "function", "function": function}
        out += [
            {"role": "user", "content": f"{index}: {_TEXT}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": str(index + 2)},
            {"role": "assistant", "content": _TEXT},
        ]
    return out


def rows(server: BenchServer, *, quick: bool) -> list[Row]:
    """Measure (f), whole and without the network."""
    url, history = server.url(), long_history()
    bare = HttpClient(url, "m")
    session = requests.Session()
    target = f"{url}/chat/completions"
    body: dict[str, Any] = {
        "model": "m",
        "messages": [*history, {"role": "user", "content": "?"}],
    }
    ready = json.dumps(body).encode()

    def by_hand() -> None:
        data = json.dumps(body).encode()
        response = session.post(target, data=data, headers=HEADERS, timeout=TIMEOUT)
        response.raise_for_status()
        response.json()

    with (
        LlmClient(base_url=url, api_key=KEY, model="m") as client,
        runtime_of(url, ADDER) as runtime,
    ):
        handle = runtime.spawn(runtime.root, "adder").handle

        def in_runtime() -> Sample:
            # The transcript that a thousand turns would have left, the same one each time.
            handle._transcript = history
            return sample(lambda: runtime.run_turn(handle, "?"))

        rounds = 15 if quick else 61
        works = {
            "hand": by_hand,
            "client": lambda: client.run("?", history=history),
            "network": lambda: bare.post(ready),
            "dumps": lambda: json.dumps(body),
        }
        for work in works.values():
            work()
        found = alternate(
            {
                **{name: (lambda work=work: sample(work)) for name, work in works.items()},
                "runtime": in_runtime,
            },
            rounds=rounds,
        )
    beside = {
        name: [
            Sample(max(one.wall - net.wall, 0), max(one.cpu - net.cpu, 0))
            for one, net in zip(found[name], found["network"], strict=True)
        ]
        for name in ("client", "runtime")
    }
    hand, dumps = "json.dumps, then session.post of the bytes", "one json.dumps of the body"
    base = found["hand"]
    return [
        row_of("f", "`LlmClient.run`, history of 2,000", hand, ratio(found["client"], base)),
        row_of("f", "`run_turn`, transcript of 2,000", hand, ratio(found["runtime"], base)),
        row_of(
            "f",
            "`LlmClient.run` besides the network",
            dumps,
            ratio(beside["client"], found["dumps"]),
        ),
        row_of(
            "f",
            "`run_turn` besides the network",
            dumps,
            ratio(beside["runtime"], found["dumps"]),
        ),
    ]
