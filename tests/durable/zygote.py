"""A process that forks others for a test: each is fresh, and none has to start Python anew.

    python -m tests.durable.zygote

reads jobs, one JSON line each, and runs each in a process of its own: a module, a function of
it and its arguments. It tells the process's end, and what the function returned, in a line.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 30

# Imported before the first fork, and no more than that: nothing here starts a thread.
_SHARED = (
    *("requests", "sqlite3", "toolnexus.runtime.runtime", "toolnexus.transport"),
    *("toolnexus.stores.sqlite", "toolnexus.wire.openai", "toolnexus.tools.native"),
)


@attrs.frozen
class Ended:
    """What became of a process.

    Attributes:
        code: Its exit code; negative for a signal.
        told: What its function returned; None where it did not.
    """

    code: int
    told: Any


class Zygote:
    """The test's end of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self,
        module: str,
        function: str,
        *,
        killed_after: float | None = None,
        stopped: tuple[float, float] | None = None,
        **arguments: Any,
    ) -> Ended:
        """Run a function in a process of its own, to its end.

        Args:
            module: Where the function is.
            function: Its name.
            killed_after: Seconds after which the process is killed; None for never.
            stopped: After how many seconds the process is stopped, and for how many.
            arguments: What the function is given.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        job: dict[str, Any] = {"module": module, "function": function, "arguments": arguments}
        job |= {"killed_after": killed_after, "stopped": stopped}
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, "the zygote has ended"
        return Ended(**json.loads(line))

    def call(self, module: str, function: str, **arguments: Any) -> Any:
        """Like `run`, for what has to come to its end; return what it returned."""
        ended = self.run(module, function, **arguments)
        assert ended.code == 0, f"exit code {ended.code}\n{ended.told}"
        return ended.told


@contextlib.contextmanager
def zygote() -> Iterator[Zygote]:
    """Start one."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.durable.zygote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield Zygote(process)
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        for module in (*_SHARED, job["module"]):
            importlib.import_module(module)
        sys.stdout.write(json.dumps(_fork(job)) + "\n")
        sys.stdout.flush()


def _fork(job: dict[str, Any]) -> dict[str, Any]:
    told, telling = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(told)
        _be_child(job, telling)
    os.close(telling)
    if job["stopped"] is not None:
        after, seconds = job["stopped"]
        if not _ends(told, after):
            os.kill(pid, signal.SIGSTOP)
            _ends(told, seconds)
            os.kill(pid, signal.SIGCONT)
    if job["killed_after"] is not None and not _ends(told, job["killed_after"]):
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(told) as reading:
        text = reading.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "told": json.loads(text) if text else None}


def _ends(told: int, seconds: float) -> bool:
    """Wait for the end of a process, or for some seconds; say whether it has ended."""
    return bool(select.select([told], [], [], seconds)[0])


def _be_child(job: dict[str, Any], telling: int) -> None:
    signal.alarm(LIMIT_SECONDS + 5)  # it ends whatever becomes of its parent
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    code, text = 1, "null"
    try:
        function = getattr(importlib.import_module(job["module"]), job["function"])
        text, code = json.dumps(function(**job["arguments"])), 0
    except BaseException:
        text = json.dumps(traceback.format_exc())
    finally:
        with os.fdopen(telling, "w") as writing:
            writing.write(text)
        os._exit(code)


if __name__ == "__main__":
    main()
