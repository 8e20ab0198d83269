"""A field marked `secret` goes to the tool that asked, and nowhere else."""

from __future__ import annotations

import gc
import json
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.runtime.support import SCHEMA, Make, Probe, answer_all, chain_of, start, told, within
from toolnexus import (
    AgentDef,
    AlreadyAnswered,
    Answer,
    Budget,
    ConfigError,
    InvalidAnswer,
    MemoryConversationStore,
    Request,
    ToolContext,
    ToolResult,
    tool,
)
from toolnexus.otel import OtelTracing
from toolnexus.suspension import with_secrets
from toolnexus.testing import ScriptedLlm, text, tool_call

CANARY = "canary-hunter2-" + "s3cr3t"

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "user": {"type": "string"},
        "password": {"type": "string", "secret": True},
    },
    "required": ["user", "password"],
}
SAID = {"user": "ann", "password": CANARY}


class Leaky:
    """A tool that does what a careless author would do with a password."""

    description, source = "d", "custom"
    name = "login"
    input_schema = SCHEMA

    def __init__(self, how: str) -> None:
        self.how = how
        self.heard: list[tuple[Any, Any]] = []

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> Any:
        answer = ctx.ask("input", "Log in.", schema=FORM)
        password = answer.secret("password")
        self.heard.append((answer.data, password))
        logging.getLogger("a.tool").info("%s %r %s", answer, answer, ctx)
        if self.how == "raises":
            raise ValueError(f"bad password {password}")
        if self.how == "raises from":
            raise RuntimeError("no") from ValueError(password)
        if self.how == "asks":
            ctx.ask("question", f"Is {password} right?", data={"tried": [password]})
            ctx.ask("question", "And now?")
        if self.how == "returns a question" and ctx.attempt == 2:
            return ToolResult.pending(Request("question", f"{password}?", url=password))
        if self.how == "once":
            ctx.once("step", lambda: {"used": password})
            ctx.ask("question", "Next?")
        if self.how == "str":
            return f"used {password}"
        return ToolResult.ok(f"used {password}", used=password)


@pytest.fixture
def everything_said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Collect texts; at the end none of them, and no log line, may have the canary."""
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        yield said
    assert said
    for record in caplog.records:
        said.append(record.getMessage())
        if record.exc_info:
            said.append("".join(traceback.format_exception(*record.exc_info)))
    for line in said:
        assert CANARY not in line


HOWS = ["plain", "str", "raises", "raises from", "asks", "returns a question", "once"]


@pytest.mark.in_memory
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("depth", [1, 4])
def test_a_canary_is_nowhere_in_a_runtime(
    llm: ScriptedLlm,
    make_runtime: Make,
    everything_said: list[str],
    how: str,
    inline: bool,
    depth: int,
) -> None:
    leaky = Leaky(how)
    for level in range(1, depth):
        task = tool_call("task", {"agent": f"d{level + 1}", "prompt": "go"})
        llm.say(f"d{level}", task, text("end"))
    llm.say(f"d{depth}", tool_call("login"), text("end"))
    metrics: list[Any] = []

    def decide(request: Request) -> Answer:
        return Answer(request.id, True, SAID if request.kind == "input" else "yes")

    rt = make_runtime(
        *chain_of(depth, [leaky]),
        wait_for=decide if inline else None,
        budget=Budget(max_depth=6),
        on_metric=metrics.append,
        on_suspend=lambda pending: everything_said.append(repr(pending)),
    )
    handle = rt.spawn(rt.root, "d1").handle
    rt.wake(handle, "go", streams=True)
    rt.wait_on(handle, LIMIT)
    while rt.pending():
        (one,) = rt.pending()
        everything_said += [repr(one), json.dumps(one.request.to_dict()), str(one)]
        parked = rt._core.handles[one.handle_id]._parked
        assert parked is not None
        everything_said += [repr(parked), json.dumps(parked.to_dict())]
        within(rt.resume, decide(one.request))
    assert rt.wait_on(handle, LIMIT).text == "end"
    assert leaky.heard[0] == ({"user": "ann"}, CANARY)
    everything_said += [repr(event) for event in rt.stream(handle)]
    everything_said += [
        str(metrics),
        *rt.trace(),
        str(rt.audit()),
        str(rt.list()),
        rt.metrics(),
    ]
    everything_said += [json.dumps(one.to_dict()) for one in rt.audit()]
    for one in (handle, *rt._core.closed.values()):
        everything_said.append(json.dumps(rt.transcript(one)))
    everything_said += [json.dumps(request.body) for request in llm.requests]
    if how not in ("asks", "once"):
        shown = [r for request in llm.requests for r in request.tool_results.values()]
        assert any("***" in str(one) for one in shown) or how == "raises from"


@pytest.mark.parametrize("how", HOWS)
def test_a_canary_is_nowhere_in_a_clients_store(
    llm: ScriptedLlm,
    make_client: MakeClient,
    everything_said: list[str],
    how: str,
) -> None:
    leaky, store = Leaky(how), MemoryConversationStore()
    llm.say("m", tool_call("login"), text("end"))
    client = make_client(conversation_store=store)
    result = client.ask("go", id="u", tools=[leaky])
    while result.pending is not None:
        everything_said += [repr(result), json.dumps(result.to_dict())]
        data = SAID if result.pending.kind == "input" else "yes"
        answer = Answer(result.pending.id, True, data)
        result = client.ask_with_answer([leaky], "u", answer)
        again = client.ask_with_answer([leaky], "u", answer)
        assert again.text == result.text
    everything_said += [json.dumps(store.get("u")), json.dumps(result.to_dict())]
    everything_said += [json.dumps(request.body) for request in llm.requests]
    assert result.text == "end"


def test_a_canary_is_in_no_span(
    llm: ScriptedLlm, make_runtime: Make, everything_said: list[str]
) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = OtelTracing(provider)
    for how in ("raises", "plain"):
        llm.say("m", tool_call("login"), text("end"))
        rt = make_runtime(AgentDef("a", tools=[Leaky(how)]), tracing=tracing)
        handle, _ = start(rt, "a")
        answer_all(rt, handle, SAID)
    spans = exporter.get_finished_spans()
    assert any(span.name.startswith("execute_tool") for span in spans)
    everything_said += [span.to_json() for span in spans]


@pytest.mark.in_memory
def test_an_error_of_resume_does_not_tell_a_secret(
    llm: ScriptedLlm, make_runtime: Make, everything_said: list[str]
) -> None:
    schema = {
        "type": "object",
        "properties": {"pin": {"type": "string", "maxLength": 4, "secret": True}},
    }
    probe = Probe(
        "t", lambda _, ctx: ctx.ask("input", "?", schema=schema).secret("pin") and "ok"
    )
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe]))
    _, result = start(rt, "a")
    assert result.pending is not None
    with pytest.raises(InvalidAnswer) as wrong:
        rt.resume(Answer(result.pending.id, True, {"pin": CANARY}))
    assert "pin is a secret that does not fit" in str(wrong.value)
    within(rt.resume, Answer(result.pending.id, True, {"pin": "1234"}))
    within(rt.resume, Answer(result.pending.id, True, {"pin": "1234"}))
    with pytest.raises(AlreadyAnswered) as answered:
        rt.resume(Answer(result.pending.id, True, {"pin": "9876"}))
    assert answered.value.recorded.data == {}
    for error in (wrong.value, answered.value):
        everything_said += [str(error), repr(error), str(vars(error)), str(error.args)]


def test_an_answer_to_a_login_may_be_a_token_and_is_not_kept(
    llm: ScriptedLlm, make_runtime: Make, everything_said: list[str]
) -> None:
    heard: list[Any] = []

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.auth_required("https://crm.example/login", resource="crm")
        heard.append((ctx.answer.data, ctx.answer.secret()))
        return ToolResult.ok(f"with {ctx.answer.data}")

    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", work)]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, CANARY)
    assert heard == [(CANARY, CANARY)]
    assert told(llm) == "with ***"
    everything_said += [*rt.trace(), str(rt.audit()), json.dumps(rt.transcript(handle))]


def test_a_secret_of_another_process_is_asked_again(
    llm: ScriptedLlm,
    make_client: MakeClient,
) -> None:
    steps: list[str] = []
    heard: list[Any] = []

    @tool
    def login(ctx: ToolContext) -> str:
        ctx.once("open", lambda: steps.append("open"))
        first = ctx.ask("input", "Log in.", schema=FORM)
        second = ctx.ask("question", "Which account?")
        heard.append((first.secret("password"), second.data))
        return "in"

    llm.say("m", tool_call("login"), text("end"))
    parked = make_client().run("go", tools=[login])
    assert parked.checkpoint is not None
    assert parked.pending is not None
    here = make_client()
    answer = Answer(parked.pending.id, True, SAID)
    second = here.resume(parked.checkpoint, answer, tools=[login])
    assert second.checkpoint is not None
    assert second.pending is not None
    assert second.pending.prompt == "Which account?"
    stored = json.loads(json.dumps(second.checkpoint.to_dict()))
    elsewhere = make_client()
    again = elsewhere.resume(stored, Answer(second.pending.id, True, 1), tools=[login])
    assert again.checkpoint is not None
    assert again.pending is not None
    assert again.pending.prompt == "Log in."
    for data in (SAID, 2):
        assert again.checkpoint is not None
        assert again.pending is not None
        again = elsewhere.resume(
            again.checkpoint, Answer(again.pending.id, True, data), tools=[login]
        )
    assert (again.text, heard, steps) == ("end", [(CANARY, 2)], ["open"])


def test_a_tool_that_is_done_leaves_no_secret_behind(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("login"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Leaky("plain")]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, SAID)
    gc.collect()
    assert dict(rt._core.vault._entries) == {}


REFUSED = [
    "password",
    "apiKey",
    "api_key",
    "access-token",
    "token",
    "userPIN_",
    "cvv",
    "Secret",
]


@pytest.mark.parametrize("kind", ["input", "question", "approval"])
@pytest.mark.parametrize(
    "name", ["password", "apiKey", "api_key", "access-token", "token", "cvv"]
)
def test_a_field_that_looks_like_a_credential_must_be_marked(
    llm: ScriptedLlm, make_runtime: Make, kind: str, name: str
) -> None:
    schema: Any = {"type": "object", "properties": {name: {"type": "string"}}}
    probe = Probe("t", lambda _, ctx: ctx.ask(kind, "?", schema=schema).data)
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe]))
    _, result = start(rt, "a")
    assert result.text == "end"
    assert f"field {name!r} looks like a credential" in told(llm)
    assert "kind 'authorization' and a url" in told(llm)


def test_no_secret_of_that_name() -> None:
    with pytest.raises(ConfigError, match="no secret field 'x'"):
        Answer("r", True, {"x": 1}).secret("x")


def test_what_a_person_says_with_a_no_is_for_the_model(
    llm: ScriptedLlm, make_runtime: Make, everything_said: list[str]
) -> None:
    field = {"type": "string", "secret": True}
    probe = Probe("t", lambda _, ctx: ctx.ask("input", "?", schema=field).secret())
    llm.say("m", tool_call("t"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[probe]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, Answer("x", False, {"message": "not today", "pw": CANARY}))
    assert told(llm) == "declined/expired: ? (not today)"
    everything_said += [str(rt.audit()), json.dumps(rt.transcript(handle)), *rt.trace()]


@pytest.mark.parametrize("how", ["interrupt", "close", "supersede", "finish"])
def test_a_secret_does_not_outlive_its_call(
    llm: ScriptedLlm, make_runtime: Make, how: str
) -> None:
    @tool
    def login(ctx: ToolContext) -> str:
        ctx.ask("input", "Log in.", schema=FORM)
        ctx.ask("question", "Which account?")
        return "in"

    llm.say("m", tool_call("login"), text("end"))
    rt = make_runtime(AgentDef("a", tools=[login]))
    handle, _ = start(rt, "a")
    answer_all(rt, handle, SAID)
    assert len(rt._core.vault._entries) == 1
    if how == "finish":
        answer_all(rt, handle, 1)
    elif how == "supersede":
        assert rt.supersede(handle, "never mind").ok
        rt.wait_on(handle, LIMIT)
    else:
        within(getattr(rt, how), handle)
    assert dict(rt._core.vault._entries) == {}


def test_an_answer_that_is_pickled_leaves_its_secrets_behind() -> None:
    import pickle

    told_to_tool = with_secrets(Answer("r", True, {"user": "ann"}), {"password": CANARY})
    assert told_to_tool.secret("password") == CANARY
    copy = pickle.loads(pickle.dumps(told_to_tool))
    assert copy == told_to_tool
    assert CANARY.encode() not in pickle.dumps(told_to_tool)


def test_a_logins_token_of_another_process_is_asked_for_again(
    llm: ScriptedLlm,
    make_client: MakeClient,
) -> None:
    heard: list[Any] = []

    @tool
    def login(ctx: ToolContext) -> str:
        token = ctx.ask("authorization", "Log in.", url="https://x.example").data
        heard.append((token, ctx.ask("question", "Which account?").data))
        return "in"

    llm.say("m", tool_call("login"), text("end"))
    result = make_client().run("go", tools=[login])
    prompts = []
    for data in (CANARY, 1, CANARY, 2):
        assert result.checkpoint is not None
        assert result.pending is not None
        prompts.append(result.pending.prompt)
        stored = json.loads(json.dumps(result.checkpoint.to_dict()))
        assert CANARY not in json.dumps(stored)
        if len(prompts) < 3:
            here = make_client()  # another process at the first two steps
        result = here.resume(stored, Answer(result.pending.id, True, data), tools=[login])
    assert prompts == ["Log in.", "Which account?", "Log in.", "Which account?"]
    assert (result.text, heard) == ("end", [(CANARY, 2)])
