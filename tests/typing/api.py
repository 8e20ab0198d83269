"""The public names as a user with `mypy --strict` writes them. Checked, never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import datetime, timezone
from threading import Event
from typing import Any, Literal

import requests
from flask import Flask
from typing_extensions import assert_type

from toolnexus import (
    Ack,
    Agent,
    AgentDef,
    AgentRun,
    AgentRuntime,
    AlreadyAnswered,
    Answer,
    Budget,
    CancelToken,
    Checkpoint,
    ClientOptions,
    Handle,
    HandleView,
    Hooks,
    InboxItem,
    LlmClient,
    LlmError,
    MetricEvent,
    PendingRequest,
    Request,
    ResumeError,
    RunResult,
    RuntimeOptions,
    Spawn,
    SpawnError,
    State,
    TaskResult,
    Tool,
    ToolCall,
    ToolContext,
    ToolnexusError,
    ToolResult,
    UnknownRequest,
    agent,
    pending_of,
    tool,
)
from toolnexus.contrib.flask import Toolnexus
from toolnexus.contrib.web import answer_from, request_dict, status_of
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    VirtualClock,
    replay_tool,
    text,
    tool_call,
)

Status = Literal["done", "pending", "incomplete", "interrupted", "closed", "timeout", "error"]


# -- tools ------------------------------------------------------------------------------------


@tool
def charge(amount: int, ctx: ToolContext) -> ToolResult:
    """Charge the card."""
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", "Approve?", expires_at=now()))
    return ToolResult.ok("charged", receipt=ctx.idempotency_key)


class Lookup:
    """A plain class is a tool too."""

    name = "lookup"
    description = "Look something up."
    input_schema: Mapping[str, Any] = {"type": "object", "properties": {}}
    source = "custom"

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        ctx.cancel.raise_if_cancelled()
        return ToolResult.error("nothing found") if ctx.attempt > 1 else ToolResult.ok(None)


def now() -> datetime:
    return datetime.now(timezone.utc)


tools: list[Tool] = [charge, Lookup()]
assert_type(pending_of(ToolResult.ok("x")), Request | None)
assert_type(ToolResult.ok("x").to_dict()["output"], Any)


# -- what a host hands in ---------------------------------------------------------------------


def decide(request: Request) -> Answer | None:
    return Answer(request.id, ok=True) if request.kind == "approval" else None


def measured(event: MetricEvent) -> None:
    assert_type(event.usage.total_tokens, int)
    assert_type(event.kind, Literal["llm", "tool", "run"])


def failed(error: LlmError, attempt: int) -> Literal["retry", "fail"] | None:
    return "fail" if error.status == 401 or attempt > 3 else None


def spawned(handle: Handle) -> None:
    assert_type(handle.id, str)


def closed(handle: Handle, reason: str) -> None:
    assert_type(handle.last_result, TaskResult | None)


class Gate(Hooks):
    def before_tool(
        self, call: ToolCall, args: Mapping[str, Any], ctx: ToolContext
    ) -> ToolResult | None:
        return ToolResult.error(f"not {call.name}") if "secret" in args else None


# -- agents and the runtime -------------------------------------------------------------------

payments = AgentDef(
    "payments", "charges cards", "You charge cards.", "gpt-4o-mini", tools=tools
)
coordinator = AgentDef(
    "coordinator",
    team=["payments"],
    budget=Budget(max_turns=4, max_tokens=10_000),
    wait_for=decide,
    on_spawn=spawned,
    on_close=closed,
    hooks=[Gate()],
    on_metric=measured,
)
options = RuntimeOptions(
    base_url="https://api.openai.com/v1",
    api_key="k",
    default_model="gpt-4o-mini",
    registry=[payments, coordinator],
    headers={"x-team": "shop"},
    session=requests.Session(),
    request_params={"temperature": 0},
    on_error=failed,
    timeout_ms=60_000,
)
by_name = RuntimeOptions(registry={"payments": payments})


def use_the_verbs(rt: AgentRuntime) -> None:
    spawn = rt.spawn(rt.root, "payments", Budget(max_tokens=500))
    assert_type(spawn, Spawn)
    assert_type(spawn.error, str | None)
    handle = spawn.handle
    assert_type(handle, Handle)
    assert_type(handle.state, State)
    assert_type(handle.children, tuple[Handle, ...])
    assert_type(handle.pending_request, Request | None)
    assert handle.state is Handle.State.IDLE
    assert_type(rt.post(handle, InboxItem("crm", "note", "VIP")), Ack)
    assert_type(rt.wake(handle, "Charge."), Ack)
    assert_type(rt.future_result(handle), Future[TaskResult])
    assert_type(rt.run_turn(handle, "Charge.", timeout=1.5), TaskResult)
    result = rt.wait_on(handle)
    assert_type(result.status, Status)
    assert_type(result.pending, Request | None)
    assert_type(result.pending_path, tuple[str, ...] | None)
    assert_type(rt.retry(handle, Budget(max_tokens=900)), TaskResult)
    assert_type(rt.list(), tuple[HandleView, ...])
    assert_type(rt.list(handle), tuple[HandleView, ...])
    assert_type(rt.inspect(handle.id), HandleView | None)
    assert_type(rt.trace(), tuple[str, ...])
    rt.interrupt(handle)
    rt.close(handle, force=True, reason="no longer needed")
    rt.wake(handle, 5)  # type: ignore[arg-type]
    rt.resume("yes")  # type: ignore[arg-type]


def answer_everything(rt: AgentRuntime) -> None:
    for one in rt.pending():
        assert_type(one, PendingRequest)
        assert_type(one.asked_at, datetime)
        assert_type(one.arguments, dict[str, Any])
        try:
            rt.resume(Answer(one.request.id, ok=False, reason="declined"))
        except AlreadyAnswered as error:
            assert_type(error.recorded, Answer)
        except UnknownRequest as error:
            assert_type(error.open_count, int)
        except ResumeError as error:
            root: ToolnexusError = error
            raise SystemExit(str(root)) from None
        assert_type(rt.future_resume(Answer(one.request.id, ok=True)), Future[None])


def run_it() -> str:
    with AgentRuntime(options) as rt:
        try:
            handle = rt.spawn(rt.root, coordinator).handle
        except SpawnError as error:
            return str(error)
        return rt.run_turn(handle, "Charge 500 dollars.").text


# -- the declared form ------------------------------------------------------------------------

member = agent("payments", does="charges cards", tools=[charge])
assert_type(member, Agent)
leader = agent("leader", team=[member], tools=[member.as_tool()], budget=Budget(max_depth=2))


def run_the_agent() -> AgentRun:
    run = leader.run("Charge.", options)
    assert_type(run.status, Status)
    while run.pending is not None:
        run = run.answer(True, data={"amount": 20}, reason=None)
    assert_type(run.handle, Handle)
    assert_type(run.runtime, AgentRuntime)
    assert_type(run.result, TaskResult)
    return run


# -- a bare client ----------------------------------------------------------------------------


def ask(cancel: CancelToken) -> RunResult:
    with LlmClient(ClientOptions(base_url="https://api.openai.com/v1", model="m")) as client:
        result = client.run("Hello", tools=[charge], cancel=cancel)
        assert_type(result.checkpoint, Checkpoint | None)
        assert_type(result.messages, list[dict[str, Any]])
        return client.run("And then?", history=result.messages)


# -- values on the wire -----------------------------------------------------------------------

request = Request.from_dict({"id": "r-1", "kind": "approval", "prompt": "Approve?"})
assert_type(request.data, Mapping[str, Any] | None)
assert_type(request.expires_at, datetime | None)
assert_type(Answer.from_dict(Answer("r-1", ok=True, data=5).to_dict()), Answer)
assert_type(TaskResult.from_dict({"text": "", "status": "done"}), TaskResult)
assert_type(Budget.from_dict({"max_turns": 3}).max_turns, int | None)
Answer("r-1", ok="yes")  # type: ignore[arg-type]
request.prompt = "changed"  # type: ignore[misc]  # values are frozen


# -- in a web application ---------------------------------------------------------------------


def around(job: Callable[[], None]) -> None:
    job()


def make_app() -> Flask:
    app = Flask("app")
    agents = Toolnexus(app, default_model="m", wrap_job=around, inline=True)
    assert_type(agents.runtime, AgentRuntime)
    agents.close(app)
    return app


def over_http(pending: PendingRequest, error: ResumeError) -> None:
    assert_type(status_of(error), int)
    assert_type(answer_from(pending.request.id, {"ok": True}), Answer)
    assert_type(request_dict(pending), dict[str, Any])


AgentRuntime(wrap_job="around")  # type: ignore[arg-type]


# -- tests of one's own -----------------------------------------------------------------------


def echo(asked: RecordedRequest) -> Reply:
    return text(asked.prompt)


def try_a_tool(clock: VirtualClock) -> None:
    done: list[str] = []
    answers = [True, lambda request: request.kind == "approval", Answer("any", ok=False)]
    replay = replay_tool(charge, {"amount": 5}, answers, effects=done, clock=clock)
    assert_type(replay.result, ToolResult)
    assert_type(replay.questions, tuple[Request, ...])
    assert_type(replay.repeated, tuple[object, ...])
    assert_type(replay_tool(Lookup(), {}, effects=lambda: done).report(), str)


def try_it(clock: VirtualClock) -> None:
    hold = Event()
    with ScriptedLlm() as llm:
        llm.say("m", tool_call("charge", {"amount": 5}), text("done").held_by(hold))
        llm.answer("echo", echo)
        with AgentRuntime(base_url=llm.base_url, api_key="k", clock=clock) as rt:
            use_the_verbs(rt)
        llm.wait_asked("m", 2)
        llm.assert_done()
