"""The demo as a user runs it: in a process of its own."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import moves
from toolnexus.testing import ScriptedLlm, call, status, text, tool_call, tool_calls

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "docs" / "examples" / "approve_charge.py"
SECONDS = 30.0
"""Limit for a whole child interpreter on a busy machine."""

QUESTION = "Approve the $500 charge?"
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in KEYS}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **more}


def demo(said: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        input=said,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        env=environment(**variables),
        check=False,
    )


@contextmanager
def started(*arguments: str, stdin: int, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, str(DEMO), *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment(TERM="xterm"),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_until(fd: int, marker: str) -> str:
    """Return what comes from `fd` up to `marker`; "" as the marker reads to the end."""
    seen = b""
    while not (marker and marker.encode() in seen):
        assert select.select([fd], [], [], SECONDS)[0], f"silent after {seen!r}"
        try:
            piece = os.read(fd, 4096)
        except OSError:  # how a terminal says that its other end is closed
            break
        if not piece:
            break
        seen += piece
    return seen.decode()


def trace_of(output: str) -> tuple[str, ...]:
    section = output.partition("\nTrace\n")[2].partition("\n\n")[0]
    return tuple(line.strip() for line in section.splitlines())


def test_a_yes_charges_and_shows_all_of_it() -> None:
    done = demo("y\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r"^  coordinator\.1 +suspended ", done.stdout, re.MULTILINE)
    assert re.search(r"^    payments\.1 +suspended ", done.stdout, re.MULTILINE)
    assert "asked by root/coordinator.1/payments.1" in done.stdout
    assert 'in charge_card({"amount": 500})' in done.stdout
    assert f"{QUESTION} [y/n] y\n" in done.stdout
    assert "Result  Order 17: The card was charged 500 dollars." in done.stdout
    assert "160 tokens (120 in, 40 out) in 4 model calls" in done.stdout
    trace = trace_of(done.stdout)
    there_and_back = ["idle", "running", "suspended", "idle", "running", "idle"]
    assert moves(trace, "root/coordinator.1") == there_and_back
    assert moves(trace, "root/coordinator.1/payments.1") == [*there_and_back, "closed"]


def test_a_no_charges_nothing_and_is_no_failure() -> None:
    done = demo("n\n")
    assert done.returncode == 0, done.stderr
    assert "Result  Order 17: The charge was declined; nothing was charged." in done.stdout
    assert "card was charged" not in done.stdout


@pytest.mark.parametrize("said", ["", "perhaps\n"])
def test_the_end_of_the_input_declines_and_says_so(said: str) -> None:
    done = demo(said)
    assert done.returncode == 0, done.stderr
    assert "n  (no answer; the default is to decline)" in done.stdout
    assert "nothing was charged" in done.stdout


def test_no_standard_input_at_all_declines() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" "$1" <&-', sys.executable, str(DEMO)],
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the default is to decline" in done.stdout


def test_a_pipe_that_stays_silent_declines() -> None:
    with started("--wait", "0.1", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = read_until(process.stdout.fileno(), "")
        assert process.wait(SECONDS) == 0
    assert "the default is to decline" in output


def test_what_is_no_answer_is_asked_again() -> None:
    done = demo("maybe\r\n\nYES\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Please answer y or n.") == 2
    assert "The card was charged 500 dollars." in done.stdout


def test_there_is_no_colour_without_a_terminal() -> None:
    assert "\x1b" not in demo("y\n").stdout


def test_there_is_colour_on_a_terminal() -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    try:
        with started(stdin=theirs, stdout=theirs) as process:
            os.close(theirs)
            asked = read_until(ours, "[y/n] ")
            os.write(ours, b"y\n")
            rest = read_until(ours, "")
            assert process.wait(SECONDS) == 0
    finally:
        os.close(ours)
    assert "\x1b[1mAgents\x1b[0m" in asked
    assert "The card was charged 500 dollars." in rest


def test_a_terminal_that_has_only_ascii_is_enough() -> None:
    done = demo("y\n", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "idle?running (wake)" in done.stdout


def test_ctrl_c_at_the_question_ends_it() -> None:
    with started(stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout.fileno(), "[y/n] ")
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr.read().decode() == "\nstopped\n"


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_an_endpoint_of_ones_own_is_asked_in_its_style(llm: ScriptedLlm, style: str) -> None:
    llm.say(
        "demo-model",
        tool_call("task", {"agent": "payments", "prompt": "Charge 500 dollars."}),
        tool_call("charge_card", {"amount": 500}),
        text("Charged."),
        text("All settled."),
    )
    done = demo("y\n", "--base-url", llm.base_url, "--model", "demo-model", "--style", style)
    assert done.returncode == 0, done.stderr
    assert "Result  All settled." in done.stdout
    assert {request.style for request in llm.requests} == {style}
    assert list(llm.requests[2].tool_results.values()) == ["charged $500"]
    assert list(llm.requests[3].tool_results.values()) == ["Charged."]
    llm.assert_done()


def test_a_second_question_has_an_answer_of_its_own(llm: ScriptedLlm) -> None:
    llm.say(
        "demo-model",
        tool_call("task", {"agent": "payments", "prompt": "Charge 500, then 20."}),
        tool_call("charge_card", {"amount": 500}),
        tool_call("charge_card", {"amount": 20}),
        text("The first one only."),
        text("Half of it."),
    )
    done = demo("y\nn\n", "--base-url", llm.base_url, "--model", "demo-model")
    assert done.returncode == 0, done.stderr
    assert "Approve the $500 charge? [y/n] y" in done.stdout
    assert "Approve the $20 charge? [y/n] n" in done.stdout
    assert list(llm.requests[3].tool_results.values()) == [
        "charged $500",
        "declined/expired: Approve the $20 charge?",
    ]
    llm.assert_done()


def test_questions_of_one_reply_are_put_one_by_one(llm: ScriptedLlm) -> None:
    llm.say(
        "demo-model",
        tool_call("task", {"agent": "payments", "prompt": "Charge 500 and 20."}),
        tool_calls(call("charge_card", {"amount": 500}), call("charge_card", {"amount": 20})),
        text("Both."),
        text("All of it."),
    )
    done = demo("y\ny\n", "--base-url", llm.base_url, "--model", "demo-model")
    assert done.returncode == 0, done.stderr
    assert list(llm.requests[2].tool_results.values()) == ["charged $500", "charged $20"]
    llm.assert_done()


def test_a_model_that_cannot_be_asked_is_exit_status_1(llm: ScriptedLlm) -> None:
    llm.say("demo-model", status(401))
    done = demo("y\n", "--base-url", llm.base_url, "--model", "demo-model")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the run ended as error: LLM 401")
    assert "Result" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--base-url", "http://127.0.0.1:9/v1"], "--base-url needs --model"),
        (["--model", "m"], "--model needs --base-url, or OPENAI_API_KEY or ANTHROPIC_API_KEY"),
        (["--scripted", "--model", "m"], "--scripted goes with neither"),
        (["--wait", "-1"], "--wait takes seconds"),
        (["--style", "morse"], "invalid choice: 'morse'"),
    ],
)
def test_wrong_arguments_are_exit_status_2(arguments: list[str], says: str) -> None:
    done = demo("", *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_base_url_that_is_none_is_exit_status_1() -> None:
    done = demo("", "--base-url", "localhost", "--model", "m")
    assert done.returncode == 1
    assert done.stderr.startswith("error: base_url must begin with http:// or https://")
