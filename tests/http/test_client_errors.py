"""What a failing provider looks like to the caller, and what never shows: the key."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import requests

from tests.conftest import MakeClient
from tests.http.raw_servers import Peer, RawServer
from toolnexus import ClientOptions, ConfigError, LlmError, RuntimeOptions
from toolnexus.testing import ScriptedLlm, raw, status, text

CANARY = "canary/Key+123=456789"


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_the_error_text_is_the_status_and_the_body(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", status(400, "  no such model\n"))
    with pytest.raises(LlmError) as caught:
        make_client(style=style).run("hi")

    assert str(caught.value) == "LLM 400: no such model"
    assert (caught.value.status, caught.value.retryable) == (400, False)
    assert caught.value.retry_after is None


def test_at_most_200_characters_of_the_body_are_quoted(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", status(400, "é" * 5000))
    with pytest.raises(LlmError) as caught:
        make_client().run("hi")

    assert str(caught.value) == "LLM 400: " + "é" * 200


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_passing_statuses_say_so_and_carry_retry_after(
    llm: ScriptedLlm, make_client: MakeClient, code: int
) -> None:
    llm.say("m", status(code, "busy", headers={"Retry-After": "7"}))
    with pytest.raises(LlmError) as caught:
        make_client().run("hi")

    error = caught.value
    assert (error.status, error.retryable, error.retry_after) == (code, True, 7.0)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed_with_a_key_in_hand(
    llm: ScriptedLlm, make_client: MakeClient, code: int
) -> None:
    with ScriptedLlm() as other:
        llm.say("m", status(code, "", headers={"Location": f"{other.base_url}/x"}))
        with pytest.raises(LlmError, match=rf"^LLM {code}: redirects are not followed") as one:
            make_client().run("hi")

        assert other.requests == []
        assert other.base_url.split("/")[2] in str(one.value)
        assert not one.value.retryable


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("<html>oops</html>", "not JSON"),
        ("", "not JSON"),
        ('{"choices": NaN}', "not JSON"),
        ("[]", "no JSON object"),
        ("null", "no JSON object"),
        ("{}", "no choices"),
        ('{"choices": []}', "no choices"),
        ('{"choices": [{}]}', "no message"),
        ('{"error": {"message": "broken inside"}}', "broken inside"),
    ],
)
def test_a_200_that_is_no_reply_is_an_error_with_the_body(
    llm: ScriptedLlm, make_client: MakeClient, body: str, says: str
) -> None:
    llm.say("m", raw(body))
    with pytest.raises(LlmError, match=r"^LLM 200: ") as caught:
        make_client().run("hi")

    assert says in str(caught.value)
    assert caught.value.status == 200


def test_a_failed_run_leaves_the_callers_history_alone(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", status(500), text("hi"))
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    before = [dict(message) for message in history]
    client = make_client()
    with pytest.raises(LlmError):
        client.run("hi", history=history)

    assert history == before
    assert client.run("hi", history=history).text == "hi"


def test_nobody_listens(make_client: MakeClient, serve: Callable[..., RawServer]) -> None:
    server = serve(lambda peer: None)
    server.close()
    with pytest.raises(LlmError, match=r"127\.0\.0\.1:\d+ failed: NewConnection") as caught:
        make_client(base_url=server.base_url).run("hi")

    assert caught.value.retryable
    assert caught.value.status is None


@pytest.mark.parametrize(
    ("reply", "is_retryable"),
    [
        (b"", True),
        # It was answered, and will be billed.
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", False),
        (b"\0\0\r\n", True),
    ],
)
def test_a_connection_that_breaks_off_is_a_network_error(
    make_client: MakeClient,
    serve: Callable[..., RawServer],
    reply: bytes,
    is_retryable: bool,
) -> None:
    def play(peer: Peer) -> None:
        peer.request()
        peer.send(reply)

    for timeout_ms in (None, 60_000):  # the body is read differently under a deadline
        with pytest.raises(LlmError, match=r"^LLM request to 127\.0\.0\.1") as caught:
            make_client(base_url=serve(play).base_url, timeout_ms=timeout_ms).run("hi")
        assert caught.value.retryable is is_retryable


def test_silence_longer_than_the_read_timeout_is_not_retried(
    make_client: MakeClient, serve: Callable[..., RawServer]
) -> None:
    def play(peer: Peer) -> None:
        peer.request()
        peer.wait_gone()

    server = serve(play)
    with pytest.raises(LlmError, match="read timeout") as caught:
        make_client(
            base_url=server.base_url,
            read_timeout_ms=50,
            connect_timeout_ms=3_600_000,
            retries=3,
        ).run("hi")

    assert not caught.value.retryable
    assert server.accepted == 1


# -- secrets -----------------------------------------------------------------------------------


def everything_shown(error: BaseException) -> str:
    """Return all texts in which an error may end up in a log or a queue."""
    return "\n".join(
        [
            str(error),
            repr(error),
            "".join(traceback.format_exception(error)),
            pickle.dumps(error).decode("latin-1"),
        ]
    )


@pytest.mark.parametrize(
    "given",
    [
        {"api_key": CANARY},
        {"api_key": None, "headers": {"Authorization": f"Bearer {CANARY}"}},
        {"api_key": None, "headers": {"x-api-key": CANARY}, "style": "anthropic"},
        {"api_key": CANARY, "style": "anthropic"},
    ],
    ids=["key", "own header", "own x-api-key", "anthropic"],
)
@pytest.mark.parametrize(
    "reply",
    [
        status(401, f"Incorrect API key provided: {CANARY}. " * 99),
        status(400, {"error": {"message": "x" * 190 + CANARY}}),
        raw({"error": {"message": f"bad key {CANARY}"}}),
        raw(f"<html>{CANARY}</html>"),
        raw({"key": CANARY}),
    ],
    ids=["401", "at the cut", "200 with an error", "not JSON", "no reply"],
)
def test_a_provider_that_echoes_the_key_does_not_make_us_tell(
    serve: Callable[..., RawServer],
    make_client: MakeClient,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, Any],
    reply: Any,
) -> None:
    def play(peer: Peer) -> None:
        while peer.request():
            body = reply.body
            peer.reply(body.encode() if isinstance(body, str) else body, reply.status)

    seen: list[Any] = []
    caplog.set_level(logging.DEBUG)
    client = make_client(
        base_url=serve(play).base_url,
        **given,
        on_metric=seen.append,
        on_error=lambda error, attempt: seen.append(error),
    )
    with pytest.raises(LlmError) as caught:
        client.run("hi")

    for half in (CANARY, CANARY[:12]):
        assert half not in everything_shown(caught.value)
        assert half not in caplog.text
        assert half not in repr(seen)


def test_what_looks_like_somebody_elses_key_is_hidden_too(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", status(401, "no: sk-proj-abcdefgh12345678 of org-ABCDEFGHIJKL"))
    with pytest.raises(LlmError) as caught:
        make_client().run("hi")

    assert str(caught.value) == "LLM 401: no: *** of ***"


@pytest.mark.parametrize("cls", [ClientOptions, RuntimeOptions])
def test_options_never_show_a_key(cls: Any) -> None:
    options = cls(
        api_key=CANARY, headers={"Authorization": CANARY}, base_url="http://127.0.0.1/v1"
    )

    assert CANARY not in repr(options)
    assert CANARY not in str(options)


def test_a_key_of_the_wrong_type_is_refused_without_showing_it() -> None:
    for wrong in ({"api_key": CANARY.encode()}, {"headers": [("Authorization", CANARY)]}):
        with pytest.raises(ConfigError) as caught:
            ClientOptions(**wrong)  # type: ignore[arg-type]
        assert CANARY not in everything_shown(caught.value)


def reachable(start: object) -> Iterator[Any]:
    """Yield every object of ours that a chain of attributes and containers leads to."""
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += one
        elif type(one).__module__.partition(".")[0] == "toolnexus":
            yield one
            waiting += attributes_of(one).values()


def attributes_of(one: object) -> dict[str, Any]:
    slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    found = {name: getattr(one, name) for name in slots if hasattr(one, name)}
    return {**found, **getattr(one, "__dict__", {})}


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_nothing_that_works_for_a_client_shows_the_key(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    llm.say("m", text("hi"))
    with requests.Session() as session:
        session.headers["X-Proxy-Key"] = CANARY
        headers = {"X-Other-Key": CANARY}
        client = make_client(api_key=CANARY, headers=headers, session=session, style=style)
        client.run("hi")
        parts = list(reachable(client))
        knowing = {type(one).__name__ for one in parts if CANARY in repr(attributes_of(one))}

        assert {"ClientOptions", "Endpoint", "_Route"} <= knowing, "the test must see the key"
        for one in parts:
            assert CANARY not in repr(one)
            assert CANARY not in str(one)


def test_a_password_in_the_url_is_not_quoted(
    make_client: MakeClient, serve: Callable[..., RawServer]
) -> None:
    server = serve(lambda peer: None)
    server.close()
    url = server.base_url.replace("://", "://user:canary-password@")
    with pytest.raises(LlmError) as caught:
        make_client(base_url=url).run("hi")

    assert "canary-password" not in everything_shown(caught.value)
    assert "canary-password" not in repr(ClientOptions(base_url=url))
