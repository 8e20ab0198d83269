"""Retries: what is asked again, who says so, and how the wait before it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.http.raw_servers import Background
from tests.http.test_shaping import WAYS, Way
from tests.runtime.streams import one_handle
from tests.runtime.support import Make
from toolnexus import (
    Cancelled,
    CancelToken,
    LlmClient,
    LlmError,
    RunTimeoutError,
    Tier,
)
from toolnexus.budget import RETRYABLE_STATUSES
from toolnexus.testing import ScriptedLlm, VirtualClock, status, text

InBackground = Callable[[Callable[[], Any]], Background]


@WAYS
@pytest.mark.parametrize("code", sorted(RETRYABLE_STATUSES))
def test_what_may_pass_is_asked_again(
    llm: ScriptedLlm, make_client: MakeClient, way: Way, code: int
) -> None:
    llm.say("m", status(code), status(code), text("at last"))

    assert way(make_client(retries=2, retry_base_ms=0)) == "at last"
    assert len({request.content for request in llm.requests}) == 1


@WAYS
def test_no_other_status_of_a_wrong_request_is_asked_again(
    llm: ScriptedLlm, make_client: MakeClient, way: Way
) -> None:
    client = make_client(retries=3, retry_base_ms=0)
    codes = [code for code in range(400, 500) if code not in (408, 409, 425, 429)]
    llm.answer("m", lambda request: status(codes[len(llm.requests) - 1], "no"))
    for code in codes:
        with pytest.raises(LlmError, match=f"^LLM {code}: no$") as caught:
            way(client)
        assert (caught.value.status, caught.value.retryable) == (code, False)

    assert len(llm.requests) == len(codes)


@WAYS
@pytest.mark.parametrize(
    ("tier", "asked"), [(Tier.RETRY, 3), (Tier.FAIL, 1), (None, 1), ("retry", 3), ("fail", 1)]
)
def test_on_error_says_what_becomes_of_a_failure_that_would_not_be_retried(
    llm: ScriptedLlm, make_client: MakeClient, way: Way, tier: Any, asked: int
) -> None:
    seen: list[tuple[int | None, int]] = []

    def on_error(error: LlmError, attempt: int) -> Any:
        seen.append((error.status, attempt))
        return tier

    llm.answer("m", lambda request: status(400))
    with pytest.raises(LlmError, match="LLM 400"):
        way(make_client(retries=2, retry_base_ms=0, on_error=on_error))

    assert len(llm.requests) == asked
    assert seen == [(400, attempt) for attempt in range(asked)]


@WAYS
@pytest.mark.parametrize(("tier", "asked"), [(Tier.RETRY, 3), (Tier.FAIL, 1), (None, 3)])
def test_on_error_says_what_becomes_of_a_failure_that_may_pass(
    llm: ScriptedLlm, make_client: MakeClient, way: Way, tier: Tier | None, asked: int
) -> None:
    llm.answer("m", lambda request: status(503))
    with pytest.raises(LlmError, match="LLM 503"):
        way(make_client(retries=2, retry_base_ms=0, on_error=lambda error, attempt: tier))

    assert len(llm.requests) == asked


@WAYS
def test_what_on_error_says_beside_its_words_is_no_retry(
    llm: ScriptedLlm, make_client: MakeClient, way: Way
) -> None:
    for word in ("RETRY", True, 1, "again", object()):
        llm.say("m", status(400))
        with pytest.raises(LlmError, match="LLM 400"):
            way(make_client(retries=2, retry_base_ms=0, on_error=lambda e, n, w=word: w))
    assert len(llm.requests) == 5


def failing_once(
    client: Callable[..., LlmClient], **options: Any
) -> tuple[LlmClient, threading.Event]:
    """Return a client, and what is set once its first attempt has failed."""
    failed = threading.Event()
    return client(retries=1, on_error=lambda *_: failed.set(), **options), failed


@WAYS
def test_the_wait_before_a_retry_is_the_injected_clocks(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground, way: Way
) -> None:
    clock = VirtualClock()
    llm.say("m", status(529, headers={"retry-after": "60"}), text("at last"))
    client, failed = failing_once(make_client, clock=clock)
    run = background(lambda: way(client))
    assert failed.wait(LIMIT)
    clock.wait_parked(1)
    clock.advance(59.9)
    clock.wait_parked(1)
    assert len(llm.requests) == 1
    clock.advance(0.1)

    assert run.result() == "at last"


@WAYS
def test_a_provider_that_asks_for_a_longer_wait_is_not_waited_for(
    llm: ScriptedLlm, make_client: MakeClient, way: Way
) -> None:
    llm.say("m", status(429, headers={"retry-after": "61"}))
    with pytest.raises(LlmError, match="LLM 429") as caught:
        way(make_client(retries=5, clock=VirtualClock()))

    assert (caught.value.retry_after, caught.value.retryable) == (61.0, True)
    assert len(llm.requests) == 1


@WAYS
def test_a_cancel_ends_the_wait_before_a_retry_at_once(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground, way: Way
) -> None:
    clock, token = VirtualClock(), CancelToken()
    llm.say("m", status(503))
    client, failed = failing_once(make_client, clock=clock)
    run = background(lambda: way(client, token))
    assert failed.wait(LIMIT)
    clock.wait_parked(1)
    token.cancel()

    with pytest.raises(Cancelled, match=r"^run cancelled$"):
        run.result()
    assert clock.monotonic() == VirtualClock().monotonic(), "no time has passed"
    assert len(llm.requests) == 1


@WAYS
def test_the_wait_before_a_retry_counts_against_the_deadline(
    llm: ScriptedLlm, make_client: MakeClient, background: InBackground, way: Way
) -> None:
    clock = VirtualClock()
    llm.say("m", status(503, headers={"retry-after": "30"}))
    client, failed = failing_once(make_client, clock=clock, timeout_ms=10_000)
    run = background(lambda: way(client))
    assert failed.wait(LIMIT)
    clock.wait_parked(1)
    clock.advance(10.0)

    with pytest.raises(RunTimeoutError, match=r"^run timeout after 10000ms$"):
        run.result()
    assert len(llm.requests) == 1


def test_an_interrupt_ends_an_agents_wait_before_a_retry_at_once(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    clock, failed = VirtualClock(), threading.Event()
    llm.say("m", status(503))
    rt, handle = one_handle(
        make_runtime, clock=clock, retries=1, on_error=lambda *_: failed.set()
    )
    future = rt.future_result(handle)
    rt.wake(handle, "go")
    assert failed.wait(LIMIT)
    clock.wait_parked(1)
    rt.interrupt(handle)

    assert future.result(LIMIT).status == "interrupted"
    assert clock.monotonic() == VirtualClock().monotonic(), "no time has passed"
