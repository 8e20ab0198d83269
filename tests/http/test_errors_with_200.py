"""Bodies of a success that are no reply: tried again only where they say that it may pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.http.streaming import STYLES, text_in
from toolnexus import LlmClient, LlmError
from toolnexus.testing import Reply, ScriptedLlm, raw, text

Way = Callable[[LlmClient], str]


def whole(body: object) -> Reply:
    """Return a body that is never streamed, whatever was asked for."""
    said = body if isinstance(body, str) else json.dumps(body)
    return raw(said, headers={"content-type": "application/json"})


def ask(client: LlmClient) -> str:
    return client.run("hi").text


def stream(client: LlmClient) -> str:
    return text_in(client.stream("hi"))


def told(client: LlmClient) -> str:
    pieces: list[str] = []
    assert client.ask("hi", id="u1", on_text=pieces.append).text == "".join(pieces)
    return "".join(pieces)


WAYS = pytest.mark.parametrize("way", [ask, stream, told], ids=lambda way: way.__name__)
PASSING: list[dict[str, Any]] = [
    {"error": {"code": 429, "message": "slow down"}},
    {"error": {"code": "429", "message": "slow down"}},
    {"error": {"code": 529, "message": "busy"}},
    {"error": {"status": 503}},
    {"error": {"type": "overloaded_error", "message": "busy"}},
    {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
    {"type": "error", "error": {"type": "rate_limit_error"}},
]
STAYING: list[Any] = [
    {},
    [],
    "",
    "<html>oops</html>",
    '{"choices": [',
    {"choices": []},
    {"choices": [{}]},
    {"content": None},
    {"error": "code 429, overloaded_error"},
    {"error": {"code": 400, "message": "overloaded_error 429"}},
    {"error": {"code": 4290}},
    {"error": {"type": "invalid_request_error", "message": "no"}},
    {"type": "error", "error": {"type": "authentication_error"}},
]


@STYLES
@WAYS
@pytest.mark.parametrize("body", PASSING, ids=json.dumps)
def test_an_error_of_a_passing_kind_is_tried_again(
    llm: ScriptedLlm, make_client: MakeClient, style: str, way: Way, body: dict[str, Any]
) -> None:
    llm.say("m", whole(body), whole(body), text("at last"))

    assert way(make_client(style=style, retries=2, retry_base_ms=0)) == "at last"
    assert len({request.content for request in llm.requests}) == 1
    llm.assert_done()


@STYLES
@WAYS
def test_a_passing_error_that_stays_surfaces_when_the_retries_are_used_up(
    llm: ScriptedLlm, make_client: MakeClient, style: str, way: Way
) -> None:
    llm.answer("m", lambda request: whole(PASSING[0]))
    with pytest.raises(LlmError, match=r"^LLM 200: .*slow down") as caught:
        way(make_client(style=style, retries=2, retry_base_ms=0))

    assert (caught.value.status, caught.value.retryable) == (200, True)
    assert len(llm.requests) == 3


@STYLES
@WAYS
@pytest.mark.parametrize("body", STAYING, ids=json.dumps)
def test_a_body_that_is_no_reply_is_never_asked_for_again(
    llm: ScriptedLlm, make_client: MakeClient, style: str, way: Way, body: Any
) -> None:
    told: list[bool] = []
    client = make_client(
        style=style,
        retries=3,
        retry_base_ms=0,
        on_error=lambda error, attempt: told.append(error.retryable),
    )
    llm.answer("m", lambda request: whole(body))
    with pytest.raises(LlmError, match=r"^LLM 200: ") as caught:
        way(client)

    assert (caught.value.status, caught.value.retryable) == (200, False)
    assert (len(llm.requests), told) == (1, [False])
