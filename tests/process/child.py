"""Child interpreters: a script of the test's, with a time limit on everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.conftest import LIMIT

ROOT = Path(__file__).parents[2]

BOUND = 3.0
"""The issue says a second; three on a machine that is busy with something else."""

PRELUDE = """
import os, sys, threading
from toolnexus import AgentDef, AgentRuntime, Answer, Budget, Request, State, ToolContext
from toolnexus import ToolResult, tool

def say(word):
    sys.stdout.write(word + chr(10))
    sys.stdout.flush()

@tool
def charge(ctx: ToolContext) -> ToolResult:
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", "Charge?"))
    return ToolResult.ok("charged")

@tool
def stuck() -> str:
    say("inside")
    threading.Event().wait(600)
    return "never"

def make(*agents, **options):
    return AgentRuntime(
        base_url=sys.argv[1], api_key="k", default_model="m", retries=0,
        registry=[AgentDef("a"), *agents], **options,
    )
"""


class Child:
    """A running script; its lines come one by one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stdin is not None
        self.stdout, self.stdin = process.stdout, process.stdin
        self.errors = ""

    def expect(self, word: str) -> None:
        """Block until the script says `word` as its next line."""
        line = self.stdout.readline().strip()
        if line != word:
            kill(self.process)
            _, errors = self.process.communicate(timeout=LIMIT)
            raise AssertionError(f"{line!r} where {word!r} was due\n{errors}")

    def go_on(self) -> float:
        """Let the script read a line; return when that was."""
        self.stdin.write("\n")
        self.stdin.flush()
        return time.monotonic()

    def press_ctrl_c(self) -> float:
        """Send what a terminal sends, once the main thread is blocked; return when that was.

        Python notices a signal between two bytecodes, or when it ends a blocking call. One that
        comes after the last bytecode and before the call blocks is noticed only when that
        returns by itself: no person is so quick, but a test is.
        """
        wait_blocked(self.process.pid)
        os.kill(self.process.pid, signal.SIGINT)
        return time.monotonic()

    def end(self, since: float | None = None) -> float:
        """Wait for the end of the script; return how long it took since then."""
        try:
            _, self.errors = self.process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            kill(self.process)
            _, errors = self.process.communicate()
            raise AssertionError(f"the script hangs\n{errors}") from None
        return time.monotonic() - (since or 0)


def wait_blocked(pid: int) -> None:
    """Wait until the main thread of a process has slept through two looks at it."""
    status = Path(f"/proc/{pid}/task/{pid}/status")
    until = time.monotonic() + LIMIT
    before: list[str] = []
    while time.monotonic() < until:
        lines = status.read_text().splitlines()
        now = [one for one in lines if one.startswith(("State", "voluntary_ctxt"))]
        if now == before and "S (sleeping)" in now[0]:
            return
        before = now
        threading.Event().wait(0.05)
    raise AssertionError("the main thread never blocks")


@contextmanager
def running(script: str, *args: str) -> Iterator[Child]:
    """Start a script after the prelude in an interpreter of its own."""
    code = PRELUDE + textwrap.dedent(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    watchdog = _Watchdog(process)
    try:
        yield Child(process)
    finally:
        watchdog.stop()
        kill(process)
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    """End the script and what it forked."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class _Watchdog:
    """Kills a script that outlives its limit, so that no read of its output blocks for ever."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._over = threading.Event()
        self._process = process
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        if not self._over.wait(3 * LIMIT):
            kill(self._process)

    def stop(self) -> None:
        self._over.set()
        self._thread.join(LIMIT)
