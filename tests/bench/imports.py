"""Row (h): what `import toolnexus` costs, in fresh interpreters, everything compiled before."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from tests.bench.measure import Row, Sample, alternate, ratio, row_of

_SHELL = """
import time
wall, cpu = time.perf_counter(), time.process_time()
{work}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""

BASE = "import requests, attrs"
USED = (
    "AgentDef, AgentRuntime, Answer, LlmClient, Request, State, ToolContext, ToolResult, tool"
)


def _start(work: str, bytecode: str) -> Sample:
    # An installed package has its bytecode; a checkout may not, and compiling is no import.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", _SHELL.format(work=work)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
    )
    return Sample(*map(float, done.stdout.split()))


def rows(*, quick: bool) -> list[Row]:
    """Measure (h), with names touched and not."""
    works = {
        "base": BASE,
        "bare": "import toolnexus",
        "used": f"from toolnexus import {USED}",
        "all": "from toolnexus import *",
    }
    with tempfile.TemporaryDirectory() as bytecode:
        for work in works.values():
            _start(work, bytecode)
        found = alternate(
            {name: (lambda work=work: _start(work, bytecode)) for name, work in works.items()},
            rounds=9 if quick else 31,
        )
    lines = [
        ("`import toolnexus`", "bare", 1.15),
        ("with the names that the first example uses", "used", 1.15),
        ("`from toolnexus import *`", "all", None),
    ]
    return [
        row_of("h", what, f"`{BASE}`", ratio(found[key], found["base"]), limit)
        for what, key, limit in lines
    ]
