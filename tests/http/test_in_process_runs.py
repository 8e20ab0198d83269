"""Runs of a model that is a function: stopped, refused to stream, parked, in a runtime."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from tests.http.raw_servers import Background
from tests.http.test_in_process import Body, Make, Says, Script, add, asks, last
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Cancelled,
    CancelToken,
    Hooks,
    LlmClient,
    LlmError,
    MetricEvent,
    RunTimeoutError,
    State,
    Usage,
    tool,
)
from toolnexus.client.translation import TranslateRequest
from toolnexus.testing import VirtualClock
from toolnexus.wire.base import ModelReply, ModelRequest


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise AssertionError("an in-process model connects to nothing")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def make() -> Iterator[Make]:
    """Make clients around a function; they are closed at the end."""
    made: list[LlmClient] = []

    def build(generate: Callable[[Body], Any], **options: Any) -> LlmClient:
        made.append(LlmClient.in_process(model="m", generate=generate, **options))
        return made[-1]

    yield build
    for client in made:
        client.close()


# -- being stopped --------------------------------------------------------------------------


def test_a_cancelled_run_ends_when_the_function_returns_and_drops_the_reply(
    make: Make, background: Callable[[Callable[[], Any]], Background]
) -> None:
    asked, release, cancel = threading.Event(), threading.Event(), CancelToken()
    ran: list[int] = []
    events: list[MetricEvent] = []

    @tool
    def note() -> None:
        """Take note."""
        ran.append(1)

    def slow(body: Body) -> Says:
        asked.set()
        assert release.wait(LIMIT)
        return {**asks("note"), "usage": {"prompt_tokens": 5}}

    client = make(slow, on_metric=events.append)
    work = background(lambda: client.run("go", tools=[note], cancel=cancel))
    assert asked.wait(LIMIT)
    cancel.cancel()
    assert not work.is_done  # nothing can end the function from outside
    release.set()

    with pytest.raises(Cancelled, match="run cancelled"):
        work.result()
    assert ran == []
    assert [(one.kind, one.status, one.usage) for one in events] == [
        ("llm", "error", Usage()),
        ("run", "interrupted", Usage()),
    ]


def test_a_run_that_is_cancelled_before_asks_nothing(make: Make) -> None:
    model, cancel = Script(), CancelToken()
    cancel.cancel("no more")
    with pytest.raises(Cancelled, match="no more"):
        make(model).run("go", cancel=cancel)

    assert model.asked == []


def test_a_function_that_takes_longer_than_the_run_may_is_late(make: Make) -> None:
    clock = VirtualClock()

    def slow(body: Body) -> Says:
        clock.advance(2.0)
        return {"text": "late"}

    with pytest.raises(RunTimeoutError, match="run timeout after 1000ms"):
        make(slow, clock=clock, timeout_ms=1000).run("go")


# -- streaming, hooks, memory ---------------------------------------------------------------


def test_a_stream_is_refused_before_any_event(make: Make) -> None:
    model = Script({"text": "hi"})
    events: list[MetricEvent] = []
    stream = make(model, on_metric=events.append).stream("go")

    with pytest.raises(LlmError, match="does not support streaming"):
        next(iter(stream))
    assert model.asked == []
    # A model that was not asked is no model call.
    assert [event.kind for event in events] == ["run"]


def test_on_text_is_refused_and_nothing_is_saved(make: Make) -> None:
    told: list[str] = []
    model = Script({"text": "hi"})
    client = make(model)
    with pytest.raises(LlmError, match="does not support streaming"):
        client.ask("go", id="u1", on_text=told.append)

    assert (told, model.asked) == ([], [])
    assert client.ask("go", id="u1").text == "hi"
    assert [message["content"] for message in model.asked[0]["messages"]] == ["go"]


def test_a_hook_may_send_another_request(make: Make) -> None:
    replies: list[str] = []

    class Rewrite(Hooks):
        def before_llm(self, request: ModelRequest) -> ModelRequest:
            masked = [{**m, "content": "***"} for m in request.messages]
            return attrs.evolve(
                request, model="n", messages=masked, max_tokens=5, params={"seed": 1}
            )

        def after_llm(self, request: ModelRequest, reply: ModelReply) -> None:
            replies.append(f"{request.model}: {reply.text}")

    model = Script({"text": "hi"})
    result = make(model, hooks=Rewrite()).run("my secret")

    assert model.asked == [
        {
            "model": "n",
            "messages": [{"role": "user", "content": "***"}],
            "max_tokens": 5,
            "seed": 1,
        }
    ]
    assert result.messages[0]["content"] == "my secret"
    assert replies == ["n: hi"]


def test_metrics_are_those_of_any_model(make: Make) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    client = make(Script({"text": "hi", "usage": usage}))
    client.run("go")

    assert 'toolnexus_llm_requests_total{model="m",status="ok"} 1\n' in client.metrics()
    assert 'toolnexus_llm_tokens_total{type="completion"} 4\n' in client.metrics()


def test_ask_and_conversation_remember(make: Make) -> None:
    model = Script(*[{"text": text} for text in ("one", "two", "three", "four")])
    client = make(model)
    client.ask("a", id="u1")
    client.ask("b", id="u1")
    talk = client.conversation()
    talk.send("c")
    talk.send("d")

    said = [[message["content"] for message in body["messages"]] for body in model.asked]
    assert said == [["a"], ["a", "one", "b"], ["c"], ["c", "three", "d"]]


def test_a_parked_run_goes_on_in_another_client(make: Make) -> None:
    charge = Charge()
    parked = make(Script(asks("charge_card"))).run("pay", tools=[charge])
    assert parked.pending is not None
    assert parked.checkpoint is not None
    model = Script({"text": "paid"})
    answer = Answer(parked.pending.id, ok=True)
    result = make(model).resume(parked.checkpoint.to_dict(), answer, tools=[charge])

    assert (result.text, charge.charged) == ("paid", [answer])
    assert last(model.asked[0]) == "charged"


def test_a_translation_asks_the_function(make: Make) -> None:
    model = Script(asks("add", {"a": 1, "b": 2}))
    reply = make(model).translate(
        TranslateRequest([{"role": "user", "content": "1 + 2?"}], toolkit=[add])
    )

    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert (call["id"], call["function"]["arguments"]) == ("call_0", '{"a":1,"b":2}')
    assert len(model.asked) == 1


# -- a whole runtime ------------------------------------------------------------------------


class Cast:
    """A model for several agents: each has its own lines, told by the model's name."""

    def __init__(self, **lines: list[Any]) -> None:
        self.lines = lines
        self.asked: dict[str, list[Body]] = {name: [] for name in lines}

    def __call__(self, body: Body) -> Any:
        self.asked[body["model"]].append(body)
        return self.lines[body["model"]].pop(0)


def test_a_runtime_delegates_parks_and_goes_on_without_key_url_or_http() -> None:
    charge = Charge()
    model = Cast(
        m=[asks("task", {"agent": "clerk", "prompt": "charge it"}), {"text": "all done"}],
        c=[asks("charge_card"), {"text": "the card is charged"}],
    )
    lead = AgentDef("lead", "leads", team=["clerk"])
    clerk = AgentDef("clerk", "charges cards", model="c", tools=[charge])
    registry = [lead, clerk]
    with AgentRuntime(generate=model, default_model="m", registry=registry) as rt:
        handle = rt.spawn(rt.root, "lead").handle
        parked = rt.run_turn(handle, "sell", timeout=LIMIT)
        assert parked.status == "pending"
        assert parked.pending is not None
        assert handle.state is State.SUSPENDED
        rt.resume(Answer(parked.pending.id, ok=True))
        result = rt.wait_on(handle, LIMIT)

    assert (result.text, result.status) == ("all done", "done")
    assert [answer.ok for answer in charge.charged] == [True]
    assert last(model.asked["c"][1]) == "charged"
    assert last(model.asked["m"][1]) == "the card is charged"
    assert 'toolnexus_llm_requests_total{model="m",status="ok"} 2\n' in rt.metrics()


def test_a_function_that_fails_ends_the_turn_and_a_retry_finishes_it() -> None:
    model = Script(OSError("disk"), {"text": "done"})
    agent = AgentDef("one", "works")
    with AgentRuntime(generate=model, default_model="m", registry=[agent]) as rt:
        handle = rt.spawn(rt.root, "one").handle
        failed = rt.run_turn(handle, "go", timeout=LIMIT)
        assert (failed.status, failed.is_error) == ("error", True)
        assert "in-process model failed: disk" in failed.text
        assert len(model.asked) == 1
        rt.retry(handle)
        result = rt.wait_on(handle, LIMIT)

    assert (result.text, result.status) == ("done", "done")


def test_a_runtime_asks_as_many_at_once_as_it_may() -> None:
    most, now, lock = 0, 0, threading.Lock()
    about_to_ask, release = threading.Semaphore(0), threading.Event()

    class Tell(Hooks):
        def before_llm(self, request: ModelRequest) -> None:
            about_to_ask.release()

    def generate(body: Body) -> Says:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        assert release.wait(LIMIT)
        with lock:
            now -= 1
        return {"text": "done"}

    agent = AgentDef("one", "works", hooks=Tell())
    with AgentRuntime(
        generate=generate, default_model="m", registry=[agent], max_concurrent_turns=2
    ) as rt:
        handles = [rt.spawn(rt.root, "one").handle for _ in range(4)]
        futures = [rt.future_result(handle) for handle in handles]
        for handle in handles:
            assert rt.wake(handle, "go").ok
        for _ in handles:
            assert about_to_ask.acquire(timeout=LIMIT)
        release.set()
        results = [future.result(LIMIT).text for future in futures]

    assert (results, most) == (["done"] * 4, 2)


def test_an_interrupted_handle_is_idle_at_once_and_the_late_reply_is_dropped() -> None:
    asked, release = threading.Event(), threading.Event()

    def slow(body: Body) -> Says:
        asked.set()
        assert release.wait(LIMIT)
        return {"text": "late"}

    agent = AgentDef("one", "works")
    with AgentRuntime(generate=slow, default_model="m", registry=[agent]) as rt:
        handle = rt.spawn(rt.root, "one").handle
        future = rt.future_result(handle)
        assert rt.wake(handle, "go").ok
        assert asked.wait(LIMIT)
        rt.interrupt(handle)
        assert future.result(LIMIT).status == "interrupted"
        assert handle.state is State.IDLE
        release.set()

    assert "late" not in str(rt.transcript(handle))
