"""Values that hold on every path: asked at once or streamed, by a client or by an agent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest

from tests.conftest import LIMIT, MakeClient
from tests.http.test_shaping import WAYS, Way
from tests.runtime.streams import one_handle, read
from tests.runtime.support import Make, Probe, run_turn
from toolnexus import (
    Answer,
    Cancelled,
    CancelToken,
    ConfigError,
    Request,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import (
    Reply,
    ScriptedLlm,
    VirtualClock,
    call,
    text,
    tool_call,
    tool_calls,
)

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])


@attrs.frozen
class Path:
    """One way to have a prompt run, and what came of it."""

    make_client: MakeClient
    make_runtime: Make
    name: str

    def go(self, *tools: Any, **options: Any) -> Any:
        """Run one prompt this way and return its result."""
        if self.name in ("turn", "streamed turn"):
            rt, handle = one_handle(self.make_runtime, *tools, **options)
            if self.name == "turn":
                return run_turn(rt, handle)
            return _result_of(read(rt.stream(handle, "go")))
        client = self.make_client(**options)
        if self.name == "run":
            return client.run("go", tools=tools)
        if self.name == "ask":
            return client.ask("go", id="u1", tools=tools, on_text=lambda word: None)
        return _result_of(client.stream("go", tools=tools))


def _result_of(events: Iterable[Any]) -> Any:
    *_, done = events
    assert done.kind == "done"
    return done.result


@pytest.fixture(params=["run", "stream", "ask", "turn", "streamed turn"])
def path(request: Any, make_client: MakeClient, make_runtime: Make) -> Path:
    return Path(make_client, make_runtime, request.param)


# -- questions ---------------------------------------------------------------------------------


@STYLES
def test_the_first_question_is_that_of_the_first_call_though_it_comes_last(
    llm: ScriptedLlm, path: Path, style: str
) -> None:
    others = [threading.Event() for _ in "bc"]

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        name = args["name"]
        if name == "a":
            assert all(event.wait(LIMIT) for event in others)
        else:
            others["bc".index(name)].set()
        return ToolResult.pending(Request("approval", f"{name}?"))

    llm.say("m", tool_calls(*(call("asks", {"name": name}, name) for name in "abc")))
    result = path.go(Probe("asks", work), style=style)

    assert (result.status, result.text) == ("pending", "a?")
    assert result.pending.prompt == "a?"
    if hasattr(result, "checkpoint"):
        assert [one.prompt for one in result.checkpoint.requests] == ["a?", "b?", "c?"]


Answers = Callable[[Request], "Answer | None"]
YES: Answers = lambda request: Answer(request.id, True, {"n": 1})  # noqa: E731
NO: Answers = lambda request: Answer(request.id, False, None, "too dear")  # noqa: E731


@STYLES
@pytest.mark.parametrize(
    ("wait_for", "handles_decline", "asks", "told", "is_error"),
    [
        (YES, False, 1, "ok=True n=1", False),
        (NO, False, 1, "declined/expired: Pay 1? (too dear)", True),
        (NO, True, 1, "ok=False", False),
        (YES, False, 2, "unresolved: Pay 2?", True),
        (NO, True, 2, "unresolved: Pay 2?", True),
        (lambda request: Answer("another", True), False, 1, "declined/expired: Pay 1?", True),
        (lambda request: None, False, 1, "declined/expired: Pay 1? (cancelled)", True),
        (lambda request: 1 / 0, False, 1, "declined/expired: Pay 1?", True),
    ],
    ids=["yes", "no", "handled", "twice", "twice, handled", "another's", "none", "raises"],
)
def test_what_an_inline_answer_leads_to(
    llm: ScriptedLlm,
    path: Path,
    style: str,
    wait_for: Answers,
    handles_decline: bool,
    asks: int,
    told: str,
    is_error: bool,
) -> None:
    asked: list[str] = []

    def ask(request: Request) -> Answer | None:
        asked.append(request.prompt)
        return wait_for(request)

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.attempt <= asks:
            return ToolResult.pending(Request("approval", f"Pay {ctx.attempt}?"))
        assert ctx.answer is not None
        said = f" n={ctx.answer.data['n']}" if ctx.answer.data else ""
        return ToolResult.ok(f"ok={ctx.answer.ok}{said}")

    tool = Probe("pay", work, handles_decline=handles_decline)
    llm.say("m", tool_call("pay", {}, "c1"), text("done"))
    result = path.go(tool, style=style, wait_for=ask)

    assert (result.status, result.text) == ("done", "done")
    assert asked == ["Pay 1?"]
    ((shown),) = llm.requests[1].tool_results.values()
    assert shown.startswith(told)
    if style == "anthropic":
        (block,) = llm.requests[1].messages[-1]["content"]
        assert block.get("is_error", False) is is_error


# -- arguments, limits, counts -----------------------------------------------------------------


@STYLES
@pytest.mark.parametrize("arguments", ['{"n": ', "[1]", '"x"', "null", '{"n": "x"}', "{}"])
def test_arguments_that_do_not_fit_execute_nothing(
    llm: ScriptedLlm, path: Path, style: str, arguments: str
) -> None:
    tool = Probe("count")
    tool.input_schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
    }
    llm.say("m", tool_call("count", arguments, "c1"), text("sorry"))
    result = path.go(tool, style=style)

    assert result.text == "sorry"
    assert tool.runs == []
    assert "arguments" in llm.requests[1].tool_results["c1"]


@STYLES
def test_an_unknown_tool_is_told_by_its_name(llm: ScriptedLlm, path: Path, style: str) -> None:
    llm.say("m", tool_call("nothing", {}, "c1"), text("sorry"))
    path.go(Probe("count"), style=style)

    assert llm.requests[1].tool_results == {"c1": "Unknown tool: nothing"}


EMPTY_DURATION = "".join(
    f'{{name}}_bucket{{{{{{label}},le="{bound}"}}}} {{count}}\n'
    for bound in ["0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60", "+Inf"]
)


def durations(name: str, label: str, count: int) -> str:
    """Return the series of a histogram whose every duration was 0."""
    buckets = EMPTY_DURATION.format(name=name, label=label, count=count)
    return f"{buckets}{name}_sum{{{label}}} 0\n{name}_count{{{label}}} {count}\n"


EXACT = f"""\
# HELP toolnexus_llm_requests_total Total LLM requests.
# TYPE toolnexus_llm_requests_total counter
toolnexus_llm_requests_total{{model="m",status="ok"}} 2
# HELP toolnexus_llm_tokens_total Total tokens, by type.
# TYPE toolnexus_llm_tokens_total counter
toolnexus_llm_tokens_total{{type="completion"}} 20
toolnexus_llm_tokens_total{{type="prompt"}} 60
# HELP toolnexus_llm_request_duration_seconds LLM request duration in seconds.
# TYPE toolnexus_llm_request_duration_seconds histogram
{durations("toolnexus_llm_request_duration_seconds", 'model="m"', 2)}\
# HELP toolnexus_tool_calls_total Total tool calls.
# TYPE toolnexus_tool_calls_total counter
toolnexus_tool_calls_total{{tool="ask",source="custom",is_error="false",pending="false"}} 1
toolnexus_tool_calls_total{{tool="ask",source="custom",is_error="false",pending="true"}} 1
# HELP toolnexus_tool_duration_seconds Tool execution duration in seconds.
# TYPE toolnexus_tool_duration_seconds histogram
{durations("toolnexus_tool_duration_seconds", 'tool="ask"', 2)}\
# HELP toolnexus_run_errors_total Total run errors.
# TYPE toolnexus_run_errors_total counter
"""


@STYLES
@pytest.mark.parametrize("is_agent", [False, True])
@pytest.mark.parametrize("streams", [False, True])
def test_the_metrics_of_a_run_are_exact_to_the_byte(
    llm: ScriptedLlm,
    make_client: MakeClient,
    make_runtime: Make,
    style: str,
    is_agent: bool,
    streams: bool,
) -> None:
    tool = Probe(
        "ask",
        lambda args, ctx: (
            ToolResult.ok("yes") if ctx.answer else ToolResult.pending(Request("q", "?"))
        ),
    )
    llm.say("m", tool_call("ask", {}, "c1"), text("done"))
    options = {"style": style, "clock": VirtualClock(), "wait_for": YES}
    if is_agent:
        rt, handle = one_handle(make_runtime, tool, **options)
        _ = read(rt.stream(handle, "go")) if streams else run_turn(rt, handle)
        metrics = rt.metrics()
    else:
        client = make_client(**options)
        if streams:
            list(client.stream("go", tools=[tool]))
        else:
            client.run("go", tools=[tool])
        metrics = client.metrics()

    assert metrics == EXACT


# -- what every way of asking says -------------------------------------------------------------


@WAYS
@STYLES
def test_without_a_key_nothing_is_asked_whatever_the_way(
    llm: ScriptedLlm, make_client: MakeClient, way: Way, style: str
) -> None:
    with pytest.raises(ConfigError, match=r"^No API key"):
        way(make_client(api_key=None, style=style))

    assert llm.requests == []


@WAYS
def test_a_cancelled_run_says_run_cancelled(
    llm: ScriptedLlm, make_client: MakeClient, way: Way
) -> None:
    token = CancelToken()
    llm.answer("m", lambda request: _thrown(token))
    with pytest.raises(Cancelled, match=r"^run cancelled$"):
        way(make_client(retries=3, retry_base_ms=0), token)

    assert len(llm.requests) == 1


def _thrown(token: CancelToken) -> Reply:
    token.cancel()
    return text("too late")


@WAYS
def test_a_cancel_is_no_failure_that_on_error_is_asked_about(
    llm: ScriptedLlm, make_client: MakeClient, way: Way
) -> None:
    token, asked = CancelToken(), []
    llm.answer("m", lambda request: _thrown(token))
    with pytest.raises(Cancelled):
        way(make_client(retries=3, on_error=lambda *given: asked.append(given)), token)

    assert asked == []
