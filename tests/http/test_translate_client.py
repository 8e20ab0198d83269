"""What a client's translation does beside asking: hooks, metrics, retries, an end in time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from tests.conftest import MakeClient
from tests.http.raw_servers import Background
from tests.http.test_translate import HELLO, Untouched
from toolnexus import (
    Cancelled,
    CancelToken,
    ConfigError,
    Hooks,
    LlmError,
    MetricEvent,
    RunTimeoutError,
    ToolCall,
    ToolContext,
    ToolResult,
    Usage,
)
from toolnexus.client.translation import TranslateRequest
from toolnexus.testing import ScriptedLlm, VirtualClock, raw, status, text, tool_call
from toolnexus.wire.base import ModelReply, ModelRequest

# -- hooks ----------------------------------------------------------------------------------


class Note(Hooks):
    """Hooks that note what they see, and change what they are told to."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.log: list[str] = []

    def before_llm(self, request: ModelRequest) -> ModelRequest | None:
        self.log.append(f"before_llm {request.model}")
        return attrs.evolve(request, **self.changes) if self.changes else None

    def after_llm(self, request: ModelRequest, reply: ModelReply) -> None:
        self.log.append(f"after_llm {request.model} {reply.finish_reason}")
        reply.message.clear()

    def before_tool(self, call: ToolCall, args: Mapping[str, Any], ctx: ToolContext) -> None:
        self.log.append("before_tool")

    def after_tool(self, call: ToolCall, args: Mapping[str, Any], result: ToolResult) -> None:
        self.log.append("after_tool")


def test_hooks_of_the_model_fire_once_and_those_of_tools_never(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    note = Note()
    llm.say("m", status(500, headers={"retry-after": "0"}), tool_call("untouched", {}))
    request = TranslateRequest(HELLO, toolkit=[Untouched()])
    reply = make_client(hooks=note, retries=1).translate(request)

    assert note.log == ["before_llm m", "after_llm m tool_calls"]
    # What a hook does with the reply it is shown is its own affair.
    assert reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "untouched"


def test_a_hook_may_send_another_request(llm: ScriptedLlm, make_client: MakeClient) -> None:
    other = [{"role": "user", "content": "Bye"}]
    llm.say("n", text("Hi"))
    note = Note(model="n", messages=other, system="Be brief.", params={"seed": 3})
    reply = make_client(hooks=note).translate(TranslateRequest(HELLO, params={"seed": 1}))

    assert llm.requests[0].body == {
        "model": "n",
        "messages": [{"role": "system", "content": "Be brief."}, *other],
        "seed": 3,
    }
    assert reply["model"] == "n"


def test_a_hook_that_raises_or_gives_nonsense_stops_the_request(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    class Stop:
        def before_llm(self, request: ModelRequest) -> None:
            raise PermissionError("not today")

    class Nonsense:
        def before_llm(self, request: ModelRequest) -> str:
            return "go"

    with pytest.raises(PermissionError, match="not today"):
        make_client(hooks=Stop()).translate(TranslateRequest(HELLO))
    with pytest.raises(ConfigError, match="before_llm gave str"):
        make_client(hooks=Nonsense()).translate(TranslateRequest(HELLO))
    assert llm.requests == []


def test_an_after_hook_that_raises_is_logged_and_the_reply_is_given(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def after_llm(self, request: ModelRequest, reply: ModelReply) -> None:
            raise RuntimeError("broken")

    llm.say("m", text("Hi"))
    with caplog.at_level(logging.ERROR):
        reply = make_client(hooks=Broken()).translate(TranslateRequest(HELLO))

    assert reply["choices"][0]["message"]["content"] == "Hi"
    assert "after_llm hook failed" in caplog.text


# -- content parts --------------------------------------------------------------------------

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}


def test_parts_travel_in_the_providers_form(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", text("a cat"), text("a cat"))
    content: list[Any] = ["What is this?", PICTURE]
    request = TranslateRequest([{"role": "user", "content": content}])
    make_client().translate(request)
    make_client(style="anthropic").translate(request)

    question = {"type": "text", "text": "What is this?"}
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert [one.messages[0]["content"] for one in llm.requests] == [
        [question, PICTURE],
        [question, {"type": "image", "source": source}],
    ]


def test_what_the_user_says_now_must_be_takeable(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    request = TranslateRequest([{"role": "user", "content": [SOUND]}])
    with pytest.raises(ConfigError, match="the 'anthropic' style takes"):
        make_client(style="anthropic").translate(request)

    assert llm.requests == []


def test_what_a_reply_stands_behind_has_a_placeholder(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    heard: list[dict[str, Any]] = [
        {"role": "user", "content": [SOUND]},
        {"role": "assistant", "content": "A bell."},
    ]
    llm.say("m", text("Yes"))
    make_client(style="anthropic").translate(TranslateRequest([*heard, *HELLO]))

    assert "does not take" in llm.requests[0].messages[0]["content"]


def test_a_part_that_is_too_large_is_refused(llm: ScriptedLlm, make_client: MakeClient) -> None:
    request = TranslateRequest([{"role": "user", "content": [PICTURE]}])
    with pytest.raises(ConfigError, match="larger than max_part_bytes"):
        make_client(max_part_bytes=4).translate(request)

    assert llm.requests == []


# -- metrics, retries, stopping -------------------------------------------------------------


def test_one_llm_event_and_none_of_a_run(llm: ScriptedLlm, make_client: MakeClient) -> None:
    events: list[MetricEvent] = []
    llm.say("m", tool_call("untouched", {}))
    client = make_client(on_metric=events.append)
    client.translate(TranslateRequest(HELLO, toolkit=[Untouched()]))

    assert [attrs.evolve(event, ms=0) for event in events] == [
        MetricEvent(kind="llm", ms=0, model="m", status="ok", usage=Usage(30, 10, 40))
    ]
    assert 'toolnexus_llm_requests_total{model="m",status="ok"} 1\n' in client.metrics()
    assert "toolnexus_run_errors_total{" not in client.metrics()


def test_a_failure_is_one_llm_event_too(llm: ScriptedLlm, make_client: MakeClient) -> None:
    events: list[MetricEvent] = []
    llm.say("m", *[status(503, headers={"retry-after": "0"})] * 3)
    with pytest.raises(LlmError, match="LLM 503") as caught:
        make_client(on_metric=events.append, retries=2).translate(TranslateRequest(HELLO))

    assert caught.value.status == 503
    assert [(event.kind, event.status, event.error) for event in events] == [
        ("llm", "error", str(caught.value))
    ]
    assert len(llm.requests) == 3


def test_a_refused_request_is_not_sent_again(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", status(400))
    with pytest.raises(LlmError, match="LLM 400"):
        make_client(retries=2).translate(TranslateRequest(HELLO))

    assert len(llm.requests) == 1


def test_a_body_that_is_no_reply_is_an_error(llm: ScriptedLlm, make_client: MakeClient) -> None:
    llm.say("m", raw({"choices": []}))
    with pytest.raises(LlmError, match="no choices"):
        make_client().translate(TranslateRequest(HELLO))


def test_params_that_are_not_json_are_refused_unasked(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        make_client().translate(TranslateRequest(HELLO, params={"seed": {1, 2}}))

    assert llm.requests == []


def test_a_cancel_ends_it_in_mid_request(
    llm: ScriptedLlm,
    make_client: MakeClient,
    background: Callable[[Callable[[], Any]], Background],
) -> None:
    llm.say("m", text("late").held_by(threading.Event()))
    client, cancel = make_client(), CancelToken()
    work = background(lambda: client.translate(TranslateRequest(HELLO), cancel))
    llm.wait_asked("m")
    cancel.cancel()

    with pytest.raises(Cancelled, match="run cancelled"):
        work.result()


def test_what_is_cancelled_before_is_not_sent(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    cancel = CancelToken()
    cancel.cancel("no more")
    with pytest.raises(Cancelled, match="no more"):
        make_client().translate(TranslateRequest(HELLO), cancel)

    assert llm.requests == []


# -- beside runs -----------------------------------------------------------------------------


class Store:
    """A conversation store that must be left alone."""

    def __init__(self) -> None:
        self.touched: list[str] = []

    def get(self, conversation_id: str) -> list[dict[str, Any]]:
        self.touched.append("get")
        return []

    def save(self, conversation_id: str, messages: list[dict[str, Any]]) -> None:
        self.touched.append("save")


def test_nothing_is_kept(llm: ScriptedLlm, make_client: MakeClient) -> None:
    store = Store()
    llm.say("m", text("Hi"), text("Hi"))
    client = make_client(conversation_store=store)
    client.translate(TranslateRequest(HELLO))
    client.translate(TranslateRequest(HELLO))

    assert store.touched == []
    assert [request.messages for request in llm.requests] == [HELLO, HELLO]


def test_a_translation_has_the_clients_deadline(
    llm: ScriptedLlm,
    make_client: MakeClient,
    background: Callable[[Callable[[], Any]], Background],
) -> None:
    clock = VirtualClock()
    llm.say("m", text("late").held_by(threading.Event()))
    client = make_client(clock=clock, timeout_ms=1000)
    work = background(lambda: client.translate(TranslateRequest(HELLO)))
    llm.wait_asked("m")
    clock.wait_parked(1)
    clock.advance(1.0)

    with pytest.raises(RunTimeoutError, match="run timeout after 1000ms"):
        work.result()


def test_a_translation_and_a_run_send_the_same_body(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", text("a"), text("b"))
    client = make_client(max_tokens=50)
    client.run("Hello", tools=[Untouched()])
    client.translate(TranslateRequest(HELLO, toolkit=[Untouched()]))

    run, translation = llm.requests
    assert run.content == translation.content
