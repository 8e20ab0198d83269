"""Which failures are tried again, after how long, and who may say otherwise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.http.raw_servers import Background, Peer, RawServer
from toolnexus import CancelToken, ConfigError, LlmError, RunTimeoutError
from toolnexus.testing import ScriptedLlm, VirtualClock, status, text

InBackground = Callable[[Callable[[], Any]], Background]


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_passing_statuses_are_tried_again(
    llm: ScriptedLlm, make_client: MakeClient, code: int
) -> None:
    llm.say("m", status(code), status(code), text("at last"))

    assert make_client(retries=2, retry_base_ms=0).run("hi").text == "at last"
    assert len({request.content for request in llm.requests}) == 1
    llm.assert_done()


@pytest.mark.parametrize("code", [400, 401, 403, 404, 413, 422, 501])
def test_other_statuses_surface_at_once(
    llm: ScriptedLlm, make_client: MakeClient, code: int
) -> None:
    llm.say("m", status(code))
    with pytest.raises(LlmError, match=f"^LLM {code}: "):
        make_client(retries=5, retry_base_ms=0).run("hi")

    assert len(llm.requests) == 1


def test_the_total_is_one_more_than_the_retries(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", *[status(503)] * 3, status(500, "the last one"))
    with pytest.raises(LlmError, match="LLM 500: the last one"):
        make_client(retries=3, retry_base_ms=0).run("hi")

    assert len(llm.requests) == 4


def test_a_broken_connection_is_tried_again(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", text("lost").cut_before_headers(), text("at last"))

    assert make_client(retries=1, retry_base_ms=0).run("hi").text == "at last"


def test_own_statuses_replace_the_usual_ones(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", status(409), text("tea"), status(503))
    client = make_client(retries=1, retry_base_ms=0, retryable_statuses=[409])

    assert client.run("hi").text == "tea"
    with pytest.raises(LlmError, match="LLM 503"):
        client.run("hi")


@pytest.mark.parametrize(
    "statuses", [(400,), (418,), ("429",), (True,), (200,), b"ab", 429, ([],)]
)
def test_what_cannot_pass_is_no_status_to_retry(make_client: MakeClient, statuses: Any) -> None:
    with pytest.raises(ConfigError, match="retryable_statuses"):
        make_client(retryable_statuses=statuses)


def test_each_round_trip_has_retries_of_its_own(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    from tests.http.test_client_run import add
    from toolnexus.testing import tool_call

    llm.say("m", status(503), tool_call("add", {"a": 1, "b": 2}), status(503), text("3"))

    assert make_client(retries=1, retry_base_ms=0).run("hi", tools=[add]).text == "3"


def test_backoff_doubles_and_jitters_by_at_most_100_ms(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    clock = VirtualClock()
    llm.say("m", status(503), status(503), status(503), text("at last"))
    run = background(lambda: make_client(retries=3, clock=clock).run("hi"))
    for attempt, least in enumerate((0.5, 1.0, 2.0), start=1):
        clock.wait_parked(1)
        clock.advance(least - 0.001)
        clock.wait_parked(1)  # still waiting
        assert len(llm.requests) == attempt
        clock.advance(0.101)

    assert run.result().text == "at last"


@pytest.mark.parametrize(("header", "seconds"), [("30", 30.0), (" 2 ", 2.0), ("007", 7.0)])
def test_retry_after_is_kept_to_the_second(
    llm: ScriptedLlm,
    make_client: MakeClient,
    background: InBackground,
    header: str,
    seconds: float,
) -> None:
    clock = VirtualClock()
    llm.say("m", status(429, headers={"Retry-After": header}), text("at last"))
    run = background(lambda: make_client(retries=1, clock=clock).run("hi"))
    clock.wait_parked(1)
    clock.advance(seconds - 0.001)
    clock.wait_parked(1)
    assert len(llm.requests) == 1
    clock.advance(0.001)

    assert run.result().text == "at last"


def test_retry_after_0_means_now(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", status(429, headers={"Retry-After": "0"}), text("at last"))

    # A clock that stands still: any wait would last for ever.
    assert make_client(retries=1, clock=VirtualClock()).run("hi").text == "at last"


@pytest.mark.parametrize(
    "header", ["1.5", "-1", "+9", "Wed, 21 Oct 2026 07:28:00 GMT", "2147483648"]
)
def test_any_other_retry_after_is_ignored(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground, header: str
) -> None:
    clock = VirtualClock()
    llm.say("m", status(429, headers={"Retry-After": header}), text("at last"))
    run = background(lambda: make_client(retries=1, clock=clock).run("hi"))
    clock.wait_parked(1)
    clock.advance(0.6)  # the first backoff with all of its jitter

    assert run.result().text == "at last"


# -- on_error ----------------------------------------------------------------------------------


def test_on_error_is_told_every_failed_attempt(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    told: list[tuple[int | None, int]] = []
    llm.say("m", status(503), status(429), status(500))
    with pytest.raises(LlmError, match="LLM 500"):
        make_client(
            retries=2, retry_base_ms=0, on_error=lambda e, n: told.append((e.status, n))
        ).run("hi")

    assert told == [(503, 0), (429, 1), (500, 2)]


def test_on_error_can_let_a_failure_surface_at_once(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", status(503, "no use"))
    with pytest.raises(LlmError, match="LLM 503: no use"):
        make_client(retries=5, on_error=lambda error, attempt: "fail").run("hi")

    assert len(llm.requests) == 1


def test_on_error_can_ask_for_another_attempt_within_the_budget(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", status(400), status(400), status(400, "enough"))
    with pytest.raises(LlmError, match="LLM 400: enough"):
        make_client(retries=2, retry_base_ms=0, on_error=lambda e, n: "retry").run("hi")

    assert len(llm.requests) == 3


def test_an_on_error_that_fails_leaves_it_to_the_policy(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    llm.say("m", status(503), text("at last"))
    with caplog.at_level(logging.ERROR, "toolnexus"):
        result = make_client(retries=1, retry_base_ms=0, on_error=lambda e, n: 1 / 0).run("hi")

    assert result.text == "at last"
    assert "on_error failed" in caplog.text


# -- the deadline of a run ---------------------------------------------------------------------


def silent(peer: Peer) -> None:
    peer.request()
    peer.wait_gone()


def trickling(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while not peer.closing.wait(0.005):
        peer.send(b" ")


@pytest.mark.parametrize("play", [silent, trickling])
def test_a_run_ends_at_its_deadline(
    make_client: MakeClient, serve: Callable[..., RawServer], play: Callable[[Peer], None]
) -> None:
    server = serve(play)
    told: list[Any] = []
    with pytest.raises(RunTimeoutError, match=r"^run timeout after 150ms$") as caught:
        make_client(
            base_url=server.base_url,
            timeout_ms=150,
            retries=9,
            retry_base_ms=0,
            on_error=lambda error, attempt: told.append(error),
        ).run("hi")

    assert server.accepted == 1
    assert told == []
    assert not caught.value.retryable


def test_a_deadline_cuts_a_retry_wait_short(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground
) -> None:
    clock = VirtualClock()
    llm.say("m", status(429, headers={"Retry-After": "30"}), text("too late"))
    # The request itself is parked on its deadline; only after it has failed is it the retry.
    failed = threading.Event()
    client = make_client(
        retries=1, timeout_ms=10_000, clock=clock, on_error=lambda *_: failed.set()
    )
    run = background(lambda: client.run("hi"))
    assert failed.wait(LIMIT)
    clock.wait_parked(1)
    clock.advance(10.0)

    with pytest.raises(RunTimeoutError, match="run timeout after 10000ms"):
        run.result()
    assert len(llm.requests) == 1


def test_nothing_is_asked_once_a_tool_has_used_the_time_up(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    from toolnexus import tool
    from toolnexus.testing import tool_call

    clock = VirtualClock()

    @tool
    def dawdle() -> str:
        """Take a minute."""
        clock.advance(60.0)
        return "done"

    llm.say("m", tool_call("dawdle"), text("too late"))
    with pytest.raises(RunTimeoutError, match="run timeout after 59000ms"):
        make_client(timeout_ms=59_000, clock=clock).run("hi", tools=[dawdle])

    assert len(llm.requests) == 1


def test_a_deadline_of_0_asks_nothing(llm: ScriptedLlm, make_client: MakeClient) -> None:
    with pytest.raises(RunTimeoutError, match="run timeout after 0ms"):
        make_client(timeout_ms=0).run("hi")

    assert llm.requests == []


def test_a_run_within_its_deadline_does_not_notice_it(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("x" * 300_000))

    assert len(make_client(timeout_ms=60_000).run("hi").text) == 300_000


def test_a_cancel_between_attempts_is_no_attempt(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    from toolnexus import Cancelled

    token, told = CancelToken(), threading.Event()

    def on_error(error: LlmError, attempt: int) -> None:
        token.cancel()
        told.set()

    llm.say("m", status(503), text("unwanted"))
    with pytest.raises(Cancelled):
        make_client(retries=3, retry_base_ms=0, on_error=on_error).run("hi", cancel=token)

    assert told.is_set()
    assert len(llm.requests) == 1
