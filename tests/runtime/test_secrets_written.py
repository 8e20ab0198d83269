"""A secret is found in whatever form a tool writes it, and is handed on to whoever asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.runtime.support import Make, approve, start, told
from toolnexus import AgentDef, Answer, ConfigError, Part, ToolContext, agent, tool
from toolnexus.testing import ScriptedLlm, text, tool_call

FORM = {
    "type": "object",
    "properties": {"pw": {"type": "string", "secret": True}},
    "required": ["pw"],
}
KEY = "-----BEGIN KEY-----\nAbCdEfGhIj\nKlMnOpQrSt\n-----END KEY-----"
SECRETS = ['hun"ter2', r"back\slash1", KEY, "pässwört", 'it\'s "me"', "tab\there"]
WAYS: dict[str, Any] = {
    "json": lambda secret: {"pw": secret},
    "json in json": lambda secret: {"body": json.dumps({"pw": secret})},
    "repr": lambda secret: f"{secret!r}",
    "ascii": lambda secret: f"{secret!a}",
    "list": lambda secret: [[secret]],
}


def _give(llm: ScriptedLlm, make_runtime: Make, work: Any, secret: str) -> str:
    """Let a tool ask for a secret and do something with it; return what the model is told."""

    @tool
    def use(ctx: ToolContext) -> Any:
        """Use it."""
        return work(ctx.ask("input", "?", schema=FORM))

    llm.say("m", tool_call("use"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[use]))
    handle, _ = start(rt, "a")
    approve(rt, handle.pending_request, data={"pw": secret})
    said = (rt.transcript(handle), llm.requests[-1].body)
    return json.dumps(said, ensure_ascii=False) + told(llm)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("way", WAYS)
def test_a_secret_is_masked_however_it_is_written(
    llm: ScriptedLlm, make_runtime: Make, way: str, secret: str
) -> None:
    write = WAYS[way]
    said = _give(llm, make_runtime, lambda answer: write(answer.secret("pw")), secret)
    assert "***" in said
    middle = [one for one in secret.replace("\\", '"').split('"') if len(one) > 3]
    assert not [one for one in (secret, *middle) if one in said]
    assert "AbCdEfGhIj" not in said


def test_a_secret_is_masked_in_an_exception(llm: ScriptedLlm, make_runtime: Make) -> None:
    def fail(answer: Answer) -> Any:
        raise KeyError(answer.secret("pw"))

    assert "slash1" not in _give(llm, make_runtime, fail, r"back\slash1")


def test_an_answer_that_a_tool_returns_has_no_secrets_in_it(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    said = _give(llm, make_runtime, lambda answer: answer, "973")
    assert "973" not in said


@pytest.mark.parametrize(
    "part",
    [
        lambda secret: Part.image(f"https://a.test/x.png?token={secret}"),
        lambda secret: Part.file(b"%PDF-", name=f"{secret}.pdf", media_type="application/pdf"),
        lambda secret: [Part.text("see"), Part.image(f"https://{secret}.test/x.png")],
    ],
)
def test_a_secret_in_the_address_or_name_of_a_part_is_masked(
    llm: ScriptedLlm, make_runtime: Make, part: Any
) -> None:
    said = _give(llm, make_runtime, lambda answer: part(answer.secret("pw")), "hunter2222")
    assert "hunter2222" not in said


def test_the_bytes_of_a_part_stay_what_they_are(llm: ScriptedLlm, make_runtime: Make) -> None:
    part = Part.file(b"%PDF-1.7 is here", name="a.pdf", media_type="application/pdf")
    data = part.to_dict()["file"]["file_data"]

    def give(answer: Answer) -> Part:
        assert answer.secret("pw") in data
        return part

    assert data in _give(llm, make_runtime, give, data[-12:-8])


def test_what_fails_with_a_short_secret_is_not_logged(
    llm: ScriptedLlm, make_runtime: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(answer: Answer) -> Any:
        raise ValueError(f"bad code {answer.secret('pw')}")

    _give(llm, make_runtime, fail, "973")
    assert "failed: ValueError" in caplog.text
    assert "973" not in caplog.text


def test_what_is_no_answer_is_not_quoted(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"))
    given: Any = {"id": "x", "ok": True, "data": {"pw": "hunter2222"}}
    with pytest.raises(ConfigError, match=r"not dict; Answer\.from_dict reads one$"):
        rt.resume(given)


def test_an_agent_as_a_tool_of_a_client_is_told_the_secret_it_asks_for(
    llm: ScriptedLlm,
    make_client: MakeClient,
) -> None:
    heard: list[Any] = []

    @tool
    def log_in(ctx: ToolContext) -> str:
        """Log in."""
        heard.append(ctx.ask("input", "?", schema=FORM).secret("pw"))
        return "in"

    worker = agent("w", model="w", tools=[log_in])
    as_tool = worker.as_tool(base_url=llm.base_url, api_key="k", retries=0)
    llm.say("m", tool_call("w", {"prompt": "go"}), text("end"))
    llm.say("w", tool_call("log_in"), text("worked"))
    client = make_client()
    asked = client.run("go", tools=[as_tool])
    assert asked.checkpoint is not None
    assert asked.pending is not None
    answer = Answer(asked.pending.id, ok=True, data={"pw": "hunter2222"})
    assert client.resume(asked.checkpoint, answer, tools=[as_tool]).text == "end"
    assert heard == ["hunter2222"]


def test_an_agent_as_a_tool_of_a_client_asks_again_after_an_edit_that_does_not_fit(
    llm: ScriptedLlm,
    make_client: MakeClient,
) -> None:
    paid: list[int] = []

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay.

        Args:
            amount: How much.
        """
        paid.append(amount)
        return "paid"

    worker = agent("w", model="w", tools=[pay])
    as_tool = worker.as_tool(base_url=llm.base_url, api_key="k", retries=0)
    llm.say("m", tool_call("w", {"prompt": "go"}), text("end"))
    llm.say("w", tool_call("pay", {"amount": 5}), text("worked"))
    client = make_client()
    result = client.run("go", tools=[as_tool])
    for amount in ("four", 4):
        assert result.checkpoint is not None
        assert result.pending is not None
        answer = Answer(result.pending.id, ok=True, data={"args": {"amount": amount}})
        result = client.resume(result.checkpoint, answer, tools=[as_tool])
    assert (result.text, paid) == ("end", [4])
