"""Failures as they are told: typed, short, and nowhere with a key or an account in them."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from tests.conftest import MakeClient
from tests.http.raw_servers import Peer, RawServer
from tests.http.streaming import delta, sse
from tests.http.test_shaping import STYLES, WAYS, Way
from tests.runtime.streams import one_handle, read
from tests.runtime.support import Make
from toolnexus import LlmError
from toolnexus.testing import Reply, ScriptedLlm, raw, status

CANARY = "canary/Key+123=456789"
ACCOUNT = "org-AbCdEf123456"
SAYS = f"no quota for {ACCOUNT} with {CANARY}"
STREAM = {"content-type": "text/event-stream"}


class Spans:
    """Records every span as text."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def start(self, *given: Any) -> Spans:
        self.told.append(given)
        return self

    child = start

    def set(self, attributes: Any) -> None:
        self.told.append(dict(attributes))

    def end(self, *given: Any) -> None:
        self.told.append(given)

    def current(self) -> Any:
        return contextlib.nullcontext()


@attrs.define
class Told:
    """Everything that a host may be shown of a failure."""

    spans: Spans = attrs.field(factory=Spans)
    seen: list[Any] = attrs.field(factory=list)

    @property
    def options(self) -> dict[str, Any]:
        """Client options that listen to all of it."""
        return {
            "api_key": CANARY,
            "tracing": self.spans,
            "on_metric": self.seen.append,
            "on_error": lambda error, attempt: self.seen.extend(self.texts(error)),
        }

    @staticmethod
    def texts(error: BaseException) -> list[str]:
        """Return the error and what led to it, in every way in which it may be shown."""
        shown = ["".join(traceback.format_exception(error)), _pickled(error)]
        for one in chain(error):
            shown += [str(one), repr(one), repr(one.args), repr(vars(one))]
        return shown

    def everything(self, caplog: pytest.LogCaptureFixture) -> str:
        return "\n".join([repr(self.seen), repr(self.spans.told), caplog.text])


def _pickled(error: BaseException) -> str:
    return pickle.dumps(error, 0).decode("latin-1")


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that led to it, what a traceback leaves out included."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in seen:
            seen.append(one)
            waiting += [one.__cause__, one.__context__]
            yield one


def assert_untold(shown: str, *secrets: str) -> None:
    for secret in (CANARY, CANARY[:12], ACCOUNT, *secrets):
        assert secret not in shown


def whole(body: dict[str, Any]) -> Reply:
    """Return a body that is never streamed."""
    return raw(json.dumps(body), headers={"content-type": "application/json"})


FAILURES: dict[str, Reply] = {
    "401": status(401, SAYS),
    "429": status(429, {"error": {"message": SAYS, "code": CANARY}}),
    "503 at the cut": status(503, "x" * (200 - len(SAYS) + 5) + SAYS),
    "302": status(302, SAYS, headers={"location": f"https://x.example/?key={CANARY}"}),
    "200 with an error": whole({"error": {"message": SAYS}}),
    "200 that is no JSON": raw(f"<html>{SAYS}</html>"),
    "200 without a choice": whole({"key": SAYS}),
    "200 with a strange choice": whole({"choices": [{"error": {"message": SAYS}}]}),
    "a strange content type": raw(SAYS, headers={"content-type": f"text/plain; k={CANARY}"}),
}


@STYLES
@WAYS
@pytest.mark.parametrize("failure", FAILURES)
def test_no_failure_tells_a_key_or_an_account(
    llm: ScriptedLlm,
    make_client: MakeClient,
    caplog: pytest.LogCaptureFixture,
    style: str,
    way: Way,
    failure: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    told = Told()
    llm.say("m", FAILURES[failure])
    client = make_client(style=style, **told.options)
    with pytest.raises(LlmError) as caught:
        way(client)

    assert_untold("\n".join(Told.texts(caught.value)) + told.everything(caplog))
    assert_untold(repr(client) + client.metrics())


@STYLES
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("streams", [False, True])
def test_no_failure_of_an_agent_tells_a_key_or_an_account(
    llm: ScriptedLlm,
    make_runtime: Make,
    caplog: pytest.LogCaptureFixture,
    style: str,
    failure: str,
    streams: bool,
) -> None:
    caplog.set_level(logging.DEBUG)
    told = Told()
    llm.say("m", FAILURES[failure])
    rt, handle = one_handle(make_runtime, style=style, **told.options)
    result: Any = read(rt.stream(handle, "hi")) if streams else rt.run_turn(handle, "hi")

    assert "LLM" in repr(result)
    assert_untold(repr(result) + told.everything(caplog))
    assert_untold("\n".join(rt.trace()) + repr(rt) + repr(rt.list()) + rt.metrics())


STREAMS: dict[str, str] = {
    "an error": sse({"error": {"message": SAYS}}),
    "an error after text": sse(delta("hel"), {"error": {"message": SAYS}}),
    "no JSON": sse(delta("hel"), SAYS),
    "a choice's error": sse({"choices": [{"error": {"message": SAYS}}]}),
    "no end": sse({"key": SAYS}),
}


@pytest.mark.parametrize("body", STREAMS)
@pytest.mark.parametrize("is_agent", [False, True])
def test_no_failure_within_a_stream_tells_a_key_or_an_account(
    llm: ScriptedLlm,
    make_client: MakeClient,
    make_runtime: Make,
    caplog: pytest.LogCaptureFixture,
    body: str,
    is_agent: bool,
) -> None:
    caplog.set_level(logging.DEBUG)
    told = Told()
    llm.say("m", raw(STREAMS[body], headers=STREAM))
    if is_agent:
        rt, handle = one_handle(make_runtime, **told.options)
        shown = repr(read(rt.stream(handle, "hi"))) + "\n".join(rt.trace())
    else:
        with pytest.raises(LlmError) as caught:
            list(make_client(**told.options).stream("hi"))
        shown = "\n".join(Told.texts(caught.value))

    assert_untold(shown + told.everything(caplog))


def quoting(peer: Peer) -> None:
    """Answer each request with its own headers in place of a chunk's size."""
    while True:
        seen = peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        peer.send(f"{seen.headers.get('authorization')}\r\n\r\n".encode())


@WAYS
def test_a_body_that_is_not_chunked_as_it_says_tells_no_key(
    make_client: MakeClient, serve: Any, way: Way
) -> None:
    server: RawServer = serve(quoting)
    with pytest.raises(LlmError, match="the reply broke off") as caught:
        way(make_client(base_url=server.base_url, api_key=CANARY))

    assert_untold("\n".join(Told.texts(caught.value)))


@WAYS
@pytest.mark.parametrize("value", [f"{CANARY}\u2026", f"{CANARY}\nx", f" {CANARY}"])
def test_a_header_that_cannot_be_sent_is_not_quoted(
    llm: ScriptedLlm, make_client: MakeClient, way: Way, value: str
) -> None:
    with pytest.raises(LlmError) as caught:
        way(make_client(headers={"x-secret": value}, retries=3))

    assert not caught.value.retryable
    assert_untold("\n".join(Told.texts(caught.value)))
    assert llm.requests == []


# -- what counts as a secret -------------------------------------------------------------------


@pytest.mark.parametrize(
    "escaped",
    [
        CANARY,
        CANARY.replace("/", "\\/"),
        CANARY.replace("+", "\\u002b"),
        CANARY.replace("+", "\\u002B").replace("=", "\\u003D"),
        quote(CANARY, safe=""),
    ],
    ids=["plain", "slash", "lower", "upper", "percent"],
)
def test_the_key_is_known_however_the_provider_escapes_it(
    llm: ScriptedLlm, make_client: MakeClient, escaped: str
) -> None:
    llm.say("m", raw(f'{{"error": {{"message": "bad key {escaped}"}}}}'))
    llm.say("m", Reply(body=f"bad key {escaped}.", status=401))
    client = make_client(api_key=CANARY)
    for _ in range(2):
        with pytest.raises(LlmError) as caught:
            client.run("hi")
        assert "canary" not in str(caught.value)
        assert "456789" not in str(caught.value)


@pytest.mark.parametrize(
    "identifier",
    [
        "sk-proj-abcdefgh12345678",
        "sk-ant-api03-AbC_d-123456",
        "org-ABCDEFGHIJKL",
        "proj_abcdef123456",
        "acct_1A2b3C4d5E6f",
        "user-abcdef123456",
        "user_2abcDEF456",
        "6f8b2b0e-1c1d-4e0a-9f5b-0123456789ab",
    ],
)
def test_accounts_are_known_by_their_form(
    llm: ScriptedLlm, make_client: MakeClient, identifier: str
) -> None:
    llm.say("m", status(429, f"over the limit (org: {identifier}, model: m-1)"))
    with pytest.raises(LlmError) as caught:
        make_client().run("hi")

    assert str(caught.value) == "LLM 429: over the limit (org: ***, model: m-1)"


@WAYS
def test_a_body_is_quoted_up_to_200_characters(
    llm: ScriptedLlm, make_client: MakeClient, way: Way
) -> None:
    llm.say("m", status(400, "é" * 201), raw("é" * 5000))
    client = make_client()
    with pytest.raises(LlmError) as caught:
        way(client)
    assert str(caught.value) == "LLM 400: " + "é" * 200
    with pytest.raises(LlmError) as caught:
        way(client)
    assert str(caught.value).count("é") <= 200


@WAYS
def test_an_error_survives_pickling_with_all_it_says(
    llm: ScriptedLlm, make_client: MakeClient, way: Way
) -> None:
    llm.say("m", status(503, "busy", headers={"retry-after": "7"}))
    with pytest.raises(LlmError) as caught:
        way(make_client())
    again = pickle.loads(pickle.dumps(caught.value))

    assert (str(again), again.status, again.retryable) == ("LLM 503: busy", 503, True)
    assert again.retry_after == 7.0
    assert again.checkpoint == caught.value.checkpoint
