"""`python -m tests.bench [--quick] [letters]`: the whole table, measured in one run."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable

import requests
import urllib3

from tests.bench import (
    cycles,
    durable,
    imports,
    parked,
    stored,
    streams,
    transcript,
    trees,
    turns,
)
from tests.bench.measure import Row, render
from tests.bench.server import BenchServer


def main() -> int:
    """Measure, print the table, and return 0: a bench judges nothing but its own working."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and cycles")
    parser.add_argument(
        "groups", nargs="?", default="abcdefghijklmn", help="which rows, as letters"
    )
    given = parser.parse_args()
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        # A proxy of this machine would be the floor's burden, not ours.
        del os.environ[name]
    with BenchServer() as server:
        groups: dict[str, Callable[[], list[Row]]] = {
            "ab": lambda: turns.rows(server, quick=given.quick),
            "c": lambda: trees.fan_rows(server, quick=given.quick),
            "d": lambda: parked.rows(server, quick=given.quick),
            "e": lambda: trees.cascade_rows(server, quick=given.quick),
            "f": lambda: transcript.rows(server, quick=given.quick),
            "g": lambda: cycles.rows(quick=given.quick),
            "h": lambda: imports.rows(quick=given.quick),
            "i": lambda: streams.rows(server, quick=given.quick),
            "jk": lambda: durable.rows(server, quick=given.quick),
            "lm": lambda: stored.rows(server, quick=given.quick),
            "n": lambda: stored.size_rows(server, quick=given.quick),
        }
        rows: list[Row] = []
        for letters, measure in groups.items():
            if set(letters) & set(given.groups):
                print(f"measuring {letters} ...", file=sys.stderr, flush=True)
                rows += measure()
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"requests {requests.__version__}, urllib3 {urllib3.__version__}\n"
    )
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
