"""On a retry a question has its own answer: no secret hides it, no step swallows it."""

from __future__ import annotations

from typing import Any

import pytest

from toolnexus import ConfigError, Request, ToolContext, ToolResult, tool
from toolnexus.testing import replay_tool

LOGIN: dict[str, Any] = {
    "type": "object",
    "properties": {"password": {"type": "string", "secret": True, "title": "Password"}},
}
TEXT: dict[str, Any] = {"type": "string", "title": "A string", "maxLength": 1000}

ORDINARY_WORDS = pytest.mark.parametrize(
    "password", ["password", "string", "1000", "Your", "input"]
)


@ORDINARY_WORDS
def test_a_secret_that_is_a_word_of_the_questions_changes_none_of_them(password: str) -> None:
    @tool
    def sign_in(ctx: ToolContext) -> str:
        first = ctx.ask("input", "Your password?", schema=LOGIN)
        ctx.ask("question", "Your name, as a string?", schema=TEXT)
        ctx.ask("question", "Really?")
        return f"{len(str(first.secret('password')))} characters"

    replay = replay_tool(sign_in, {}, [{"password": password}, "Ann", True])
    assert replay.result == ToolResult.ok(f"{len(password)} characters")
    schemas = [one.schema for one in replay.questions]
    assert schemas[0] == LOGIN
    assert schemas[1] is not None
    assert {**schemas[1], "title": "A string"} == TEXT


@ORDINARY_WORDS
def test_a_returned_question_keeps_its_schema_after_a_secret(password: str) -> None:
    @tool
    def sign_in(ctx: ToolContext) -> str | ToolResult:
        ctx.ask("input", "Your password?", schema=LOGIN)
        if ctx.request is None or ctx.request.kind != "question":
            return ToolResult.pending(Request("question", "Name?", data={"schema": TEXT}))
        return f"I am {ctx.answer.data}" if ctx.answer else ""

    replay = replay_tool(sign_in, {}, [{"password": password}, "Ann"])
    assert replay.result == ToolResult.ok("I am Ann")


def test_what_a_person_reads_in_a_schema_tells_no_secret() -> None:
    @tool
    def sign_in(ctx: ToolContext) -> str:
        said = ctx.ask("input", "Log in.", schema=LOGIN).secret("password")
        form = {
            "type": "object",
            "title": f"not {said}",
            "properties": {
                "one": {"type": "string", "description": said, "default": said},
                "two": {"type": "string", "enum": [said, "other"]},
                "many": {"type": "array", "items": {"enum": [said, "other"]}},
            },
        }
        ctx.ask("input", f"Not {said}?", url=f"https://a.test/{said}", schema=form)
        return "in"

    replay = replay_tool(sign_in, {}, [{"password": "hunter-22"}, {}])
    assert replay.result == ToolResult.ok("in")
    assert [str(one.to_dict()).count("***") for one in replay.questions] == [0, 7]
    assert not any("hunter-22" in str(one.to_dict()) for one in replay.questions)


def test_a_pattern_that_tells_a_secret_is_not_asked_with() -> None:
    @tool
    def sign_in(ctx: ToolContext) -> str:
        said = ctx.ask("input", "Log in.", schema=LOGIN).secret("password")
        ctx.ask("question", "Again?", schema={"type": "string", "pattern": f"{said}"})
        return "in"

    replay = replay_tool(sign_in, {}, [{"password": "hunter-22"}])
    assert replay.result.is_error
    assert "the question cannot be asked" in replay.result.output
    assert "hunter-22" not in replay.result.output


def test_a_step_may_not_ask_for_its_answer_would_pass_for_that_to_the_next_question() -> None:
    done: list[str] = []

    @tool
    def transfer(ctx: ToolContext) -> str:
        ctx.once("look", lambda: ctx.ask("approval", "Go on?").ok)
        ctx.ask("approval", "Go on?")
        done.append("transfer")
        return "transferred"

    replay = replay_tool(transfer, {}, effects=done)
    assert replay.result.is_error
    assert "ask before the step" in replay.result.output
    assert done == []


def test_a_step_that_failed_leaves_the_tool_free_to_ask() -> None:
    @tool
    def look(ctx: ToolContext) -> str:
        with pytest.raises(ConfigError, match="ask before the step"):
            ctx.once("outer", lambda: ctx.once("inner", lambda: ctx.ask("question", "in?").ok))
        return str(ctx.ask("question", "out?").data)

    assert replay_tool(look, {}, ["yes"]).result == ToolResult.ok("yes")
