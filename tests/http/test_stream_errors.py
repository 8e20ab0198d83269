"""Failures before and in a stream: what is tried again, and what none shows: the key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.http.raw_servers import Background
from tests.http.streaming import (
    STYLES,
    anthropic_error,
    body_of,
    delta,
    scripted,
    sse,
    text_in,
    until_broken,
)
from tests.http.test_client_errors import everything_shown
from toolnexus import LlmError
from toolnexus.testing import (
    ScriptedLlm,
    VirtualClock,
    status,
    text,
)

InBackground = Callable[[Callable[[], Any]], Background]

CANARY = "canary/Key+123=456789"
BEFORE = '{"type":"error","error":{"type":"overloaded_error","message":"'
AT_THE_CUT = ("no " * 99)[: 200 - len(BEFORE) - 13] + CANARY
"""A message of which an excerpt of 200 characters has half a key."""


# -- before the stream -------------------------------------------------------------------------


@STYLES
@pytest.mark.parametrize("code", [429, 500, 502, 503, 504, 529])
def test_a_passing_status_is_tried_again(
    llm: ScriptedLlm, make_client: MakeClient, style: str, code: int
) -> None:
    llm.say("m", status(code), status(code), text("at last"))
    client = make_client(style=style, retries=2, retry_base_ms=0)

    assert text_in(client.stream("hi")) == "at last"
    assert len({request.content for request in llm.requests}) == 1
    assert llm.open_connections == 1


@pytest.mark.parametrize(
    "code", [400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 415, 422, 425, 451, 499, 501]
)
def test_any_other_status_surfaces_at_once(
    llm: ScriptedLlm, make_client: MakeClient, code: int
) -> None:
    llm.say("m", status(code, "no use"), status(code, "no use"))
    client = make_client(retries=5, retry_base_ms=0)
    told, error = until_broken(client.stream("hi"))
    with pytest.raises(LlmError, match=f"^LLM {code}: no use$"):
        client.run("hi")

    assert told == []
    assert (str(error), error.status, error.retryable) == (f"LLM {code}: no use", code, False)
    assert len(llm.requests) == 2


@pytest.mark.parametrize("code", [408, 409, 425])
def test_statuses_that_may_pass_are_tried_again_where_the_host_says_so(
    llm: ScriptedLlm, make_client: MakeClient, code: int
) -> None:
    llm.say("m", status(code), text("at last"))
    client = make_client(retries=1, retry_base_ms=0, retryable_statuses=[408, 409, 425])

    assert text_in(client.stream("hi")) == "at last"


def test_a_wait_before_the_next_attempt_is_the_clocks(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    clock = VirtualClock()
    llm.say("m", status(429, headers={"retry-after": "7"}), text("at last"))
    client = make_client(retries=1, clock=clock)
    run = background(lambda: text_in(client.stream("hi")))
    clock.wait_parked(1)
    clock.advance(6.999)
    clock.wait_parked(1)
    assert len(llm.requests) == 1
    clock.advance(0.001)

    assert run.result() == "at last"


# -- errors within the stream ------------------------------------------------------------------

OPENAI_ERROR = {"error": {"message": "the model fell over", "type": "server_error"}}


def test_an_error_after_text_ends_the_stream_with_the_text(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", scripted(sse(delta("hel"), OPENAI_ERROR, delta("lo"))))
    told, error = until_broken(make_client(retries=3, retry_base_ms=0).stream("hi"))

    assert text_in(told) == error.partial == "hel"
    assert "the model fell over" in str(error)
    assert (error.status, error.retryable) == (200, False)
    assert len(llm.requests) == 1


def test_an_anthropic_error_after_text_ends_the_stream_with_the_text(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    body = body_of(llm, "anthropic", text("hello").ended_after(3))
    llm.say("m", scripted(body + anthropic_error("overloaded_error")))
    client = make_client(style="anthropic", retries=3, retry_base_ms=0)
    told, error = until_broken(client.stream("hi"))

    assert text_in(told) == error.partial == "hel"
    assert "overloaded_error" in str(error)
    assert not error.retryable


@pytest.mark.parametrize(
    ("style", "body"),
    [
        ("openai", sse(OPENAI_ERROR)),
        ("openai", sse({"error": {"code": 429, "message": "slow down"}})),
        ("openai", sse({"error": {"code": 529, "message": "overloaded"}})),
        ("openai", sse(delta(role="assistant"), {"error": {"code": "503"}})),
        ("anthropic", anthropic_error("overloaded_error")),
        ("anthropic", anthropic_error("api_error")),
    ],
    ids=["server_error", "429", "529", "503 after a role", "overloaded", "api_error"],
)
def test_a_passing_error_before_any_text_is_tried_again(
    llm: ScriptedLlm, make_client: MakeClient, style: str, body: str
) -> None:
    llm.say("m", scripted(body), text("at last"))
    client = make_client(style=style, retries=1, retry_base_ms=0)

    assert text_in(client.stream("hi")) == "at last"


@pytest.mark.parametrize(
    ("style", "body"),
    [
        ("openai", sse({"error": {"code": 400, "type": "invalid_request_error"}})),
        ("openai", sse("this is no JSON")),
        ("anthropic", anthropic_error("invalid_request_error")),
    ],
)
def test_an_error_that_stays_is_not_tried_again(
    llm: ScriptedLlm, make_client: MakeClient, style: str, body: str
) -> None:
    llm.say("m", scripted(body), text("never"))
    client = make_client(style=style, retries=3, retry_base_ms=0)
    _, error = until_broken(client.stream("hi"))

    assert not error.retryable
    assert len(llm.requests) == 1


def test_no_retry_is_forced_once_text_was_given(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", scripted(sse(delta("hel"), {"choices": [{"error": {"code": 500}}]})))
    llm.say("m", text("twice"))
    client = make_client(retries=3, retry_base_ms=0, on_error=lambda error, n: "retry")
    told, error = until_broken(client.stream("hi"))

    assert text_in(told) == error.partial == "hel"
    assert len(llm.requests) == 1


def test_a_stream_that_adds_up_to_an_error_keeps_its_text(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    start = {"type": "message_start", "message": {"error": {"type": "api_error"}}}
    word = {"type": "text_delta", "text": "hello"}
    body = sse(start, {"type": "content_block_delta", "index": 0, "delta": word})
    llm.say("m", scripted(body + 'event: message_stop\ndata: {"type":"message_stop"}\n\n'))
    llm.say("m", text("twice"))
    client = make_client(style="anthropic", retries=3, on_error=lambda error, n: "retry")
    told, error = until_broken(client.stream("hi"))

    assert text_in(told) == error.partial == "hello"
    assert len(llm.requests) == 1


# -- secrets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "body"),
    [
        ("openai", sse({"error": {"message": f"bad key {CANARY}"}})),
        ("openai", sse(delta("hel"), {"error": {"message": f"bad key {CANARY}"}})),
        ("openai", sse(delta("hel"), f"no JSON {CANARY}")),
        ("openai", sse(delta("hel"), delta(finish="stop"), f"no JSON {CANARY}", "[DONE]")),
        ("anthropic", anthropic_error("authentication_error", CANARY)),
        ("anthropic", anthropic_error("overloaded_error", AT_THE_CUT)),
    ],
    ids=["error", "error after text", "no JSON", "after the end", "anthropic", "at the cut"],
)
def test_a_stream_that_echoes_the_key_does_not_make_us_tell(
    llm: ScriptedLlm,
    make_client: MakeClient,
    caplog: pytest.LogCaptureFixture,
    style: str,
    body: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[Any] = []
    llm.say("m", scripted(body))
    client = make_client(
        style=style,
        api_key=CANARY,
        on_metric=seen.append,
        on_error=lambda error, attempt: seen.append(error),
    )
    shown = ""
    try:
        seen.extend(client.stream("hi"))
    except LlmError as error:
        shown = everything_shown(error) + error.partial

    assert seen
    for half in (CANARY, CANARY[:12]):
        assert half not in shown
        assert half not in caplog.text
        assert half not in repr(seen)


def test_the_partial_text_is_not_in_the_errors_text(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("a private matter").ended_after(2))
    _, error = until_broken(make_client().stream("hi"))

    assert error.partial == "a privat"
    assert "privat" not in str(error)
    assert "privat" not in repr(error)
