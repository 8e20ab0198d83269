"""terminal() at a real terminal: a script asks, somebody types, and only a yes executes."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.conftest import LIMIT
from tests.process.child import wait_blocked
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
if sys.argv[2] == "without rich":
    sys.modules["rich.console"] = None
from toolnexus import AgentDef, AgentRuntime, LlmClient, ToolContext, tool
from toolnexus.prompts import terminal

@tool(needs_approval="Refund {amount} to {customer}?")
def refund(amount: int, customer: str) -> str:
    return f"refunded {amount} to {customer}"

@tool
def unlock(ctx: ToolContext) -> str:
    code = {"type": "string", "secret": True}
    form = {"type": "object", "required": ["code"], "properties": {"code": code}}
    return f"{len(ctx.ask('input', 'The door?', schema=form).secret('code'))} characters"

@tool
def log_in(ctx: ToolContext) -> str:
    ctx.ask("authorization", "Log in.", url="http://127.0.0.1/login?a=1&b=2")
    return "logged in"

tools = [refund, unlock, log_in]
options = dict(base_url=sys.argv[1], api_key="k", retries=0, wait_for=terminal())
if sys.argv[3] == "client":
    result = LlmClient(model="m", **options).run("Go.", tools=tools)
else:
    clerks = [AgentDef(name, model=name, tools=tools) for name in ("m", "n")]
    boss = AgentDef("boss", model="boss", team=["m", "n"])
    with AgentRuntime(registry=[boss, *clerks], **options) as rt:
        first = rt.spawn(rt.root, sys.argv[3]).handle
        result = rt.run_turn(first, "Go.")
print("The end:", result.status)
"""

# So that Ctrl-C reaches the script: the terminal is that of its session.
AT_ITS_OWN = "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"


class Terminal:
    """A real terminal with a script at it, and somebody who reads and types."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, device: int) -> None:
        self.process = process
        self.device = device
        self._master = master
        self._read = 0
        self.shown = ""

    def expect(self, words: str) -> None:
        """Read on until these words have been shown."""
        until = time.monotonic() + LIMIT
        while words not in self.shown[self._read :]:
            ready, _, _ = select.select(
                [self._master], [], [], max(0, until - time.monotonic())
            )
            if not ready:
                raise AssertionError(f"{words!r} is not shown:\n{self.shown[self._read :]}")
            self.shown += os.read(self._master, 65536).decode(errors="replace")
        self._read = self.shown.index(words, self._read) + len(words)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.device)[3] & termios.ECHO)

    def end(self) -> int:
        """Wait for the script's end, read the rest, and return the exit code."""
        code = self.process.wait(LIMIT)
        while select.select([self._master], [], [], 0)[0]:
            self.shown += os.read(self._master, 65536).decode(errors="replace")
        return code


def started(
    llm: ScriptedLlm, *arguments: str, script: str = "", **streams: int | IO[bytes]
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    environment |= {
        "TERM": "xterm",
        "PYTHONUTF8": "1",
        "BROWSER": os.environ.get("BROWSER", ""),
    }
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [sys.executable, "-c", script + SCRIPT, llm.base_url, *arguments],
        env=environment,
        start_new_session=True,
        **streams,  # type: ignore[call-overload]
    )
    return process


@contextmanager
def at_a_terminal(llm: ScriptedLlm, *arguments: str) -> Iterator[Terminal]:
    master, device = pty.openpty()
    process = started(
        llm, *arguments, script=AT_ITS_OWN, stdin=device, stdout=device, stderr=device
    )
    try:
        yield Terminal(process, master, device)
    finally:
        process.kill()
        process.wait(LIMIT)
        os.close(master)
        os.close(device)


RICH = pytest.mark.parametrize("rich", ["with rich", "without rich"])
WHO = pytest.mark.parametrize("who", ["client", "m"])
MENU = "Run refund? [y]es / [n]o / [e]dit: "


def results(llm: ScriptedLlm, model: str = "m") -> list[str]:
    """Return what the model was told of its calls."""
    return list(llm.requests_of(model)[-1].tool_results.values())


@RICH
@WHO
def test_a_yes_executes_what_was_shown(llm: ScriptedLlm, rich: str, who: str) -> None:
    if rich == "with rich":
        pytest.importorskip("rich")
    llm.say("m", tool_call("refund", {"amount": 50, "customer": "Ann"}), text("Done."))
    with at_a_terminal(llm, rich, who) as person:
        person.expect("Refund 50 to Ann?")
        person.expect('"amount": 50,')
        person.expect(MENU)
        person.type("y\n")
        person.expect("The end: done")
        assert person.end() == 0

    assert results(llm) == ["refunded 50 to Ann"]
    assert ("╭─ approval" in person.shown) is (rich == "with rich")
    llm.assert_done()


@WHO
def test_a_no_executes_nothing_and_the_model_is_told_why(llm: ScriptedLlm, who: str) -> None:
    llm.say("m", tool_call("refund", {"amount": 50, "customer": "Ann"}), text("As you wish."))
    with at_a_terminal(llm, "with rich", who) as person:
        person.expect(MENU)
        person.type("n\n")
        person.expect("Reason (may be left empty): ")
        person.type("far too much\n")
        person.expect("The end: done")

    (result,) = results(llm)
    assert "refunded" not in result
    assert "far too much" in result
    llm.assert_done()


@WHO
def test_edited_arguments_are_executed_instead(llm: ScriptedLlm, who: str) -> None:
    llm.say("m", tool_call("refund", {"amount": 50, "customer": "Ann"}), text("Done."))
    with at_a_terminal(llm, "without rich", who) as person:
        person.expect(MENU)
        person.type("e\n")
        person.expect("New arguments as one line of JSON (empty: as they are): ")
        person.type('{"amount": 5, "customer": "Bob"}\n')
        person.expect('"amount": 5,')
        person.expect("Run refund with the new arguments? [y]es / [n]o / [e]dit: ")
        person.type("y\n")
        person.expect("The end: done")

    (result,) = results(llm)
    assert "refunded 5 to Bob" in result
    llm.assert_done()


def test_ctrl_d_executes_nothing(llm: ScriptedLlm) -> None:
    llm.say("m", tool_call("refund", {"amount": 50, "customer": "Ann"}), text("As you wish."))
    with at_a_terminal(llm, "with rich", "client") as person:
        person.expect(MENU)
        person.type("y\x04\x04")
        person.expect("The end: done")

    (result,) = results(llm)
    assert "cancelled" in result
    assert "refunded" not in result


def test_what_was_typed_before_a_question_does_not_answer_it(llm: ScriptedLlm) -> None:
    first, second = ({"amount": amount, "customer": "Ann"} for amount in (1, 1000))
    llm.say("m", tool_calls(call("refund", first), call("refund", second)), text("Done."))
    with at_a_terminal(llm, "with rich", "client") as person:
        person.expect(MENU)
        person.type("y\ny\n")
        person.expect("Refund 1000 to Ann?")
        person.expect(MENU)
        person.type("n\n")
        person.expect("Reason")
        person.type("\n")
        person.expect("The end: done")

    one, other = results(llm)
    assert one == "refunded 1 to Ann"
    assert "declined" in other


def test_agents_that_ask_at_once_are_answered_one_after_the_other(llm: ScriptedLlm) -> None:
    tasks = [call("task", {"agent": name, "prompt": "Go."}) for name in ("m", "n")]
    llm.say("boss", tool_calls(*tasks), text("Both are done."))
    for name, amount in (("m", 1), ("n", 2)):
        refund = tool_call("refund", {"amount": amount, "customer": name})
        llm.say(name, refund, text("Done."))
    with at_a_terminal(llm, "without rich", "boss") as person:
        person.expect(MENU)
        llm.wait_asked("m")
        llm.wait_asked("n")
        asked = person.shown
        first, second = ("m", "n") if "to m?" in asked else ("n", "m")
        assert f"to {second}?" not in asked
        assert f"Asked by root/boss.1/{first}." in asked
        person.type("y\n")
        person.expect(f"to {second}?")
        person.expect(MENU)
        person.type("n\n")
        person.expect("Reason")
        person.type("\n")
        person.expect("The end: done")

    assert results(llm, first) == [f"refunded {'1' if first == 'm' else '2'} to {first}"]
    assert "declined" in results(llm, second)[0]


# -- secrets -----------------------------------------------------------------------------------

CANARY = "canary-4711"
SECRET = "code (is not shown): "


@RICH
@WHO
def test_a_secret_is_not_seen_while_it_is_typed(llm: ScriptedLlm, rich: str, who: str) -> None:
    llm.say("m", tool_call("unlock", {}), text("Open."))
    with at_a_terminal(llm, rich, who) as person:
        person.expect(SECRET)
        assert not person.echoes()
        person.type(f"{CANARY}\n")
        person.expect("The end: done")
        assert person.end() == 0
        assert person.echoes()

    assert results(llm) == [f"{len(CANARY)} characters"]
    assert CANARY not in person.shown
    assert CANARY not in json.dumps([request.body for request in llm.requests])


@pytest.mark.parametrize("who", ["client", "m", "boss"])
def test_the_terminal_echoes_again_after_ctrl_c(llm: ScriptedLlm, who: str) -> None:
    tasks = [call("task", {"agent": name, "prompt": "Go."}) for name in ("m", "n")]
    llm.say(
        "boss", tool_calls(*tasks)
    )  # one of them asks in a thread that Ctrl-C does not reach
    for name in ("m", "n"):
        llm.say(name, tool_call("unlock", {}))
    with at_a_terminal(llm, "with rich", who) as person:
        person.expect(SECRET)
        wait_blocked(person.process.pid)
        person.type("\x03")
        assert person.end() == -signal.SIGINT
        assert person.echoes()

    assert "KeyboardInterrupt" in person.shown


# -- links -------------------------------------------------------------------------------------


def test_a_link_is_opened_with_the_browser_of_the_person(
    llm: ScriptedLlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, opened = tmp_path / "browser.py", tmp_path / "opened"
    browser.write_text(
        textwrap.dedent(f"""
            import pathlib, sys
            pathlib.Path({str(opened)!r}).write_text(sys.argv[1])
        """)
    )
    monkeypatch.setenv("BROWSER", f"{sys.executable} {browser} %s")
    llm.say("m", tool_call("log_in", {}), text("In."))
    with at_a_terminal(llm, "with rich", "client") as person:
        person.expect("The link leads to 127.0.0.1. [o]pen / [d]one / [s]kip: ")
        assert not opened.exists()
        person.type("o\n")
        person.expect("[o]pen / [d]one / [s]kip: ")
        assert opened.read_text() == "http://127.0.0.1/login?a=1&b=2"
        person.type("d\n")
        person.expect("The end: done")

    assert results(llm) == ["logged in"]


# -- no terminal -------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["nothing", "only the input", "only the output"])
def test_without_a_terminal_nothing_is_read_and_nothing_executed(
    llm: ScriptedLlm, there: str
) -> None:
    again = {"amount": 7, "customer": "Bob"}
    calls = [call("refund", {"amount": 50, "customer": "Ann"}), call("refund", again)]
    llm.say("m", tool_calls(*calls), text("As you wish."))
    master, device = pty.openpty()
    os.write(master, b"y\ny\n")
    ours, theirs = os.pipe()
    os.write(theirs, b"y\ny\n")
    process = started(
        llm,
        "with rich",
        "client",
        stdin=device if there == "only the input" else ours,
        stdout=device if there == "only the output" else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, errors
        unread = device if there == "only the input" else ours
        assert os.read(unread, 100) in (b"y\ny\n", b"y\n")  # a terminal gives a line
    finally:
        process.kill()
        process.wait(LIMIT)
        for one in (master, device, ours, theirs):
            os.close(one)

    assert errors.decode().count("no terminal to ask at") == 1
    for result in results(llm):
        assert "no terminal to ask at" in result
        assert "refunded" not in result
    llm.assert_done()
