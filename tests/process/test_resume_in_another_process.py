"""One process parks a run, another goes on: only JSON, or a directory, is between them."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.process.child import running
from toolnexus import Checkpoint
from toolnexus.testing import ScriptedLlm, call, status, text, tool_call, tool_calls

CLIENT = """
    import json
    from toolnexus import FileConversationStore, LlmClient, LlmError, ToolnexusError

    url, directory, style = sys.argv[1:4]
    log = os.path.join(directory, "log")

    def note(word, ctx):
        with open(log, "a") as file:
            print(json.dumps([word, ctx.attempt, ctx.idempotency_key]), file=file)

    @tool
    def look(ctx: ToolContext) -> str:
        note("look", ctx)
        return "seen"

    @tool
    def pay(amount: int, ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", f"Pay {amount}?"))
        note(f"pay {amount}", ctx)
        if os.environ.get("DIES"):
            os._exit(70)
        return ToolResult.ok(f"paid {amount}")

    TOOLS = [look, pay]
    client = LlmClient(
        base_url=url, api_key="k", model="m", style=style, retries=0,
        conversation_store=FileConversationStore(directory, fsync=False),
    )
"""
PARK = """
    say(json.dumps(client.run("go", tools=TOOLS).checkpoint.to_dict()))
"""
RESUME = """
    saved, request_id = json.loads(sys.argv[4]), sys.argv[5]
    try:
        answer = Answer(request_id, ok=True) if request_id else None
        result = client.resume(saved, answer, tools=TOOLS)
        say(json.dumps(result.to_dict()))
    except LlmError as error:
        say(json.dumps({"failed": error.checkpoint.to_dict()}))
    except ToolnexusError as error:
        say(json.dumps({"refused": str(error)}))
"""
ASK = """
    result = client.ask("go", id="u1", tools=TOOLS)
    say(json.dumps(result.to_dict()))
"""
ANSWER = """
    try:
        result = client.ask_with_answer(TOOLS, "u1", Answer(sys.argv[4], ok=True))
        say(json.dumps(result.to_dict()))
    except ToolnexusError as error:
        say(json.dumps({"refused": type(error).__name__}))
"""

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])
ROUND = tool_calls(
    call("pay", {"amount": 1}, "c1"), call("look", {}, "c2"), call("pay", {"amount": 2}, "c3")
)


def said_by(script: str, *args: str) -> dict[str, Any]:
    """Run a script in an interpreter of its own; return the JSON that it says."""
    with running(CLIENT + script, *args) as child:
        line = child.stdout.readline()
        child.end()
    assert child.process.returncode == 0, child.errors
    said: dict[str, Any] = json.loads(line)
    return said


def executions(directory: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (directory / "log").read_text().splitlines()]


@STYLES
def test_a_parked_run_goes_on_in_other_processes(
    llm: ScriptedLlm, tmp_path: Path, style: str
) -> None:
    llm.say("m", ROUND, text("all paid"))
    where = (llm.base_url, str(tmp_path), style)
    saved = said_by(PARK, *where)
    one, two = Checkpoint.from_dict(saved).requests
    assert (one.prompt, two.prompt) == ("Pay 1?", "Pay 2?")

    halfway = said_by(RESUME, *where, json.dumps(saved), two.id)
    assert halfway["status"] == "pending"
    done = said_by(RESUME, *where, json.dumps(halfway["checkpoint"]), one.id)
    assert (done["status"], done["text"], done["turns"]) == ("done", "all paid", 2)
    assert [word for word, _, _ in executions(tmp_path)] == ["look", "pay 2", "pay 1"]
    assert llm.requests[1].tool_results == {"c1": "paid 1", "c2": "seen", "c3": "paid 2"}
    llm.assert_done()


def test_a_run_that_failed_in_one_process_goes_on_in_another(
    llm: ScriptedLlm, tmp_path: Path
) -> None:
    llm.say("m", tool_call("pay", {"amount": 1}, "c1"), status(500), text("paid"))
    where = (llm.base_url, str(tmp_path), "openai")
    saved = said_by(PARK, *where)
    (request,) = Checkpoint.from_dict(saved).requests
    left = said_by(RESUME, *where, json.dumps(saved), request.id)["failed"]
    done = said_by(RESUME, *where, json.dumps(left), "")

    assert (done["status"], done["text"]) == ("done", "paid")
    assert [word for word, _, _ in executions(tmp_path)] == ["pay 1"]


def test_a_checkpoint_of_a_newer_release_is_refused_and_nothing_is_done(
    llm: ScriptedLlm, tmp_path: Path
) -> None:
    llm.say("m", tool_call("pay", {"amount": 1}, "c1"))
    where = (llm.base_url, str(tmp_path), "openai")
    saved = said_by(PARK, *where)
    (request,) = Checkpoint.from_dict(saved).requests
    told = said_by(RESUME, *where, json.dumps({**saved, "schema": 99}), request.id)

    assert "newer toolnexus" in told["refused"]
    assert not (tmp_path / "log").exists()
    assert len(llm.requests) == 1


@STYLES
def test_a_conversation_is_answered_in_another_process(
    llm: ScriptedLlm, tmp_path: Path, style: str
) -> None:
    llm.say("m", tool_call("pay", {"amount": 1}, "c1"), text("paid"))
    where = (llm.base_url, str(tmp_path), style)
    request_id = said_by(ASK, *where)["pending"]["id"]
    assert said_by(ANSWER, *where, request_id)["text"] == "paid"

    again = said_by(ANSWER, *where, request_id)
    assert (again["status"], again["text"]) == ("done", "paid")
    assert said_by(ANSWER, *where, "made-up") == {"refused": "NothingSuspended"}
    assert [word for word, _, _ in executions(tmp_path)] == ["pay 1"]
    assert len(llm.requests) == 2


def test_a_call_that_a_process_died_in_is_not_executed_again(
    llm: ScriptedLlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.say("m", tool_call("pay", {"amount": 1}, "c1"), text("paid"))
    where = (llm.base_url, str(tmp_path), "openai")
    request_id = said_by(ASK, *where)["pending"]["id"]
    monkeypatch.setenv("DIES", "1")
    with running(CLIENT + ANSWER, *where, request_id) as child:
        child.end()
    assert child.process.returncode == 70
    monkeypatch.delenv("DIES")

    assert said_by(ANSWER, *where, request_id)["text"] == "paid"
    # Whether it took effect nobody knows, and the model is told so.
    assert [word for word, _, _ in executions(tmp_path)] == ["pay 1"]
    (told,) = llm.requests[-1].tool_results.values()
    assert "may or may not have taken effect" in told


@pytest.mark.skipif(os.name == "nt", reason="needs file locks")
def test_processes_that_answer_at_once_execute_the_call_once(
    llm: ScriptedLlm, tmp_path: Path
) -> None:
    llm.say("m", tool_call("pay", {"amount": 1}, "c1"), text("paid"))
    where = (llm.base_url, str(tmp_path), "openai")
    request_id = said_by(ASK, *where)["pending"]["id"]
    script = CLIENT + "    sys.stdin.readline()\n" + ANSWER
    with running(script, *where, request_id) as one, running(script, *where, request_id) as two:
        one.go_on()
        two.go_on()
        told = [json.loads(child.stdout.readline()) for child in (one, two)]
        for child in (one, two):
            child.end()

    assert Counter(each["text"] for each in told) == {"paid": 2}
    assert [word for word, _, _ in executions(tmp_path)] == ["pay 1"]
    assert len(llm.requests) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("which", ["client.conversation()", "client.conversation(id='u1')"])
def test_a_conversation_that_a_fork_found_busy_is_free_in_the_child(which: str) -> None:
    script = """
        import warnings
        from toolnexus import CancelToken, LlmClient
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads is the point
        go_on, inside = threading.Event(), threading.Event()

        def generate(body):
            inside.set()
            go_on.wait(60)
            return {"text": "hello"}

        client = LlmClient.in_process(model="m", generate=generate)
        talk = eval(sys.argv[1])
        thread = threading.Thread(target=talk.send, args=("one",))
        thread.start()
        inside.wait(60)
        if os.fork() == 0:
            go_on.set()
            say(talk.send("two").text)
            os._exit(0)
        sys.stdin.readline()
        go_on.set()
        thread.join()
        client.close()
    """
    with running(script, which) as child:
        child.expect("hello")
        child.go_on()
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")
