"""Parts from the caller to a strict provider: prompts, results, histories, and the logs."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from tests.conftest import MakeClient
from toolnexus import (
    Answer,
    Checkpoint,
    ConfigError,
    LlmError,
    Request,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.parts.part import Part
from toolnexus.testing import ScriptedLlm, call, raw, status, text, tool_call, tool_calls

STYLES = ("openai", "anthropic")
CANARY = bytes((7 * n + 3) % 256 for n in range(600))
PNG = b"\x89PNG\r\n\x1a\n" + CANARY
PDF = b"%PDF-1.7\n" + CANARY


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def tells_of(shown: str) -> bool:
    """Say whether any 24 characters of the canary's base64 are in a text."""
    return any(
        piece in shown
        for data in (PNG, PDF)
        for encoded in [b64(data)]
        for piece in (encoded[at : at + 24] for at in range(0, len(encoded) - 24, 24))
    )


@tool
def draw() -> list[Any]:
    """Draw a chart."""
    return ["the chart:", Part.image(PNG)]


@tool
def ask_somebody(ctx: ToolContext) -> ToolResult:
    """Ask somebody."""
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", "May I?", id="r1"))
    return ToolResult.ok("yes")


@pytest.mark.parametrize("style", STYLES)
def test_a_prompt_of_parts_reaches_the_model(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", text("a cat"), text("yes, a cat"))
    client = make_client(style=style)
    image, file = Part.image(PNG), Part.file(PDF, name="a.pdf")

    first = client.run(["what is it?", image, file])
    again = client.run("sure?", history=first.messages)

    assert first.text == "a cat"
    asked = next(m for m in again.messages if m["role"] == "user")
    assert asked["content"] == [
        {"type": "text", "text": "what is it?"},
        image.to_dict(),
        file.to_dict(),
    ]
    for request in llm.requests:
        assert request.refusal is None
        assert b64(PNG) in request.content.decode()
        assert b64(PDF) in request.content.decode()
    llm.assert_done()


@pytest.mark.parametrize("style", STYLES)
def test_a_conversation_keeps_its_parts(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", text("a cat"), text("yes"))
    client = make_client(style=style)
    client.ask(["what is it?", Part.image(PNG)], id="u1")
    client.ask("sure?", id="u1")
    assert b64(PNG) in llm.requests[1].content.decode()
    assert llm.requests[1].prompt == "sure?"
    llm.assert_done()


def test_anthropic_sees_what_a_tool_drew(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", tool_call("draw"), text("a rising line"))
    result = make_client(style="anthropic").run("draw", tools=[draw])

    told = next(m for m in result.messages if m["role"] == "tool")
    assert told["content"] == [
        {"type": "text", "text": "the chart:"},
        Part.image(PNG).to_dict(),
    ]
    (block,) = llm.requests[1].messages[-1]["content"]
    assert [part["type"] for part in block["content"]] == ["text", "image"]
    assert block["content"][1]["source"]["data"] == b64(PNG)
    llm.assert_done()


def test_openai_is_told_of_what_a_tool_drew(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", tool_call("draw"), text("a chart"))
    make_client().run("draw", tools=[draw])
    (told,) = llm.requests[1].tool_results.values()
    assert told.startswith("the chart:\n(a part of type 'image_url'")
    assert f"image/png, {len(PNG)} bytes" in told
    llm.assert_done()


@pytest.mark.parametrize("style", STYLES)
def test_a_checkpoint_keeps_what_a_tool_drew(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", tool_calls(call("draw"), call("ask_somebody")), text("done"))
    client = make_client(style=style)
    parked = client.run("go", tools=[draw, ask_somebody])
    assert parked.checkpoint is not None
    stored = json.dumps(parked.checkpoint.to_dict())

    done = client.resume(
        Checkpoint.from_dict(json.loads(stored)),
        Answer("r1", ok=True),
        tools=[draw, ask_somebody],
    )

    told = [m for m in done.messages if m["role"] == "tool"]
    assert [type(m["content"]) for m in told] == [list, str]
    assert told[0]["content"][1] == Part.image(PNG).to_dict()
    assert (b64(PNG) in llm.requests[1].content.decode()) is (style == "anthropic")
    llm.assert_done()


def test_a_history_moves_to_a_provider_that_takes_less(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("a report"), text("still one"), text("music"), text("what was it?"))
    first = make_client(style="anthropic").run(["read", Part.file("https://x.test/a.pdf?k=s3")])
    second = make_client().run("sure?", history=first.messages)
    third = make_client().run([Part.audio(b"ID3x")], history=second.messages)
    make_client(style="anthropic").run("sure?", history=third.messages)

    moved = llm.requests[1].messages[0]["content"]
    assert moved[1]["text"] == (
        "(a part of type 'file' that this provider does not take: "
        "application/pdf at x.test, a.pdf)"
    )
    assert "audio/mpeg, 4 bytes" in json.dumps(llm.requests[3].messages)
    assert second.messages[0] == first.messages[0]
    llm.assert_done()


@pytest.mark.parametrize(
    ("style", "prompt", "says"),
    [
        ("anthropic", ["hear", Part.audio(b"ID3x")], "prompt[1] (audio/mpeg, 4 bytes) cannot"),
        ("openai", [Part.file("https://x.test/a.pdf")], "'openai' style takes"),
        ("openai", ["x", Part.image(PNG)], "larger than max_part_bytes (100)"),
        ("openai", [], "empty list"),
        ("openai", ["x", 5], "prompt[1]: a part is a str"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is(
    llm: ScriptedLlm, make_client: MakeClient, style: str, prompt: Any, says: str
) -> None:
    client = make_client(style=style, max_part_bytes=100)
    for ask in (client.run, client.ask, lambda it: list(client.stream(it))):
        with pytest.raises(ConfigError) as caught:
            ask(prompt)
        assert says in str(caught.value)
    assert llm.requests == []


def test_a_tools_part_over_the_cap_is_said_to_be_left_out(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", tool_call("draw"), text("too large"))
    result = make_client(style="anthropic", max_part_bytes=100).run("draw", tools=[draw])
    (told,) = llm.requests[1].tool_results.values()
    assert told == (
        f"the chart:\n[image/png, {len(PNG)} bytes: left out, larger than 100 bytes]"
    )
    assert not tells_of(json.dumps(result.messages))
    llm.assert_done()


def echoes() -> dict[str, Any]:
    """Return failures that quote the request: as data URL, as bare base64, in odd JSON."""
    url = f"data:image/png;base64,{b64(PNG)}"
    body = {"error": {"message": f"could not read {url}", "type": "invalid_request_error"}}
    return {
        "a data URL": status(400, body),
        "base64": status(400, {"error": {"message": f"bad data {b64(PNG)[100:]}"}}),
        "slashes": status(400, json.dumps(body).replace("/", "\\/")),
        "no JSON": raw(f"<html>{url}</html>"),
        "an error for 200": raw(body),
        "no reply": raw({"echo": {"source": {"data": b64(PNG)}}}),
        # So late that only a short piece of it is left in an excerpt.
        "late": raw({"note": "word " * 24, "data": b64(PNG)}),
        "late in an error": status(400, {"note": "word " * 24, "data": b64(PNG)}),
    }


@pytest.mark.parametrize("name", echoes())
@pytest.mark.parametrize("style", STYLES)
def test_an_error_that_quotes_the_request_tells_no_base64(
    llm: ScriptedLlm,
    make_client: MakeClient,
    caplog: pytest.LogCaptureFixture,
    style: str,
    name: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    events: list[Any] = []
    llm.say("m", echoes()[name])
    client = make_client(style=style, on_metric=events.append)
    with pytest.raises(LlmError) as caught:
        client.run(["look", Part.image(PNG), Part.file(PDF)])
    error = caught.value
    assert "[base64, " in str(error)
    assert not tells_of("".join(map(repr, [error, error.args, *events])) + caplog.text)


@pytest.mark.parametrize("style", STYLES)
def test_no_log_repr_or_metric_of_a_run_tells_base64(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture, style: str
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[Any] = []

    class Hooks:
        def before_tool(self, call: Any, args: Mapping[str, Any], ctx: ToolContext) -> None:
            seen.extend([call, args, ctx])

        def after_tool(self, call: Any, args: Mapping[str, Any], result: ToolResult) -> None:
            seen.extend([call, result])

        def after_llm(self, request: Any, reply: Any) -> None:
            seen.extend([request, reply])
            raise RuntimeError("a hook that fails is logged")

    @tool
    def broken() -> list[Any]:
        """Give a part where none can be."""
        return [[Part.image(PNG)]]

    llm.say("m", tool_calls(call("draw"), call("broken"), call("nobody")), text("done"))
    client = make_client(style=style, hooks=Hooks(), on_metric=seen.append)
    result = client.run(["look", Part.image(PNG), Part.file(PDF)], tools=[draw, broken])
    assert result.text == "done"
    assert "a hook that fails is logged" in caplog.text
    assert not tells_of("".join(map(repr, [result, client, client.options, *seen])))
    assert not tells_of(caplog.text + client.metrics())
    llm.assert_done()
