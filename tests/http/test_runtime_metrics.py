"""What a runtime counts: the Prometheus text of a tree of agents, exact to the byte."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Budget,
    Handle,
    Hooks,
    MetricEvent,
    tool,
)
from toolnexus.events import Event
from toolnexus.testing import (
    Reply,
    ScriptedLlm,
    VirtualClock,
    status,
    text,
    tool_call,
)
from toolnexus.wire.base import ModelRequest

Make = Callable[..., AgentRuntime]

EMPTY = """\
# HELP toolnexus_llm_requests_total Total LLM requests.
# TYPE toolnexus_llm_requests_total counter
# HELP toolnexus_llm_tokens_total Total tokens, by type.
# TYPE toolnexus_llm_tokens_total counter
# HELP toolnexus_llm_request_duration_seconds LLM request duration in seconds.
# TYPE toolnexus_llm_request_duration_seconds histogram
# HELP toolnexus_tool_calls_total Total tool calls.
# TYPE toolnexus_tool_calls_total counter
# HELP toolnexus_tool_duration_seconds Tool execution duration in seconds.
# TYPE toolnexus_tool_duration_seconds histogram
# HELP toolnexus_run_errors_total Total run errors.
# TYPE toolnexus_run_errors_total counter
"""


def durations(name: str, label: str, count: int, seconds: str = "0") -> list[str]:
    """Return the lines of a histogram; all durations are `seconds` together, or at once."""
    bounds = ("0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60", "+Inf")
    limit = float(seconds) if count == 1 else 0.0
    return [
        *(
            f'{name}_bucket{{{label},le="{bound}"}} {count if float(bound) >= limit else 0}'
            for bound in bounds
        ),
        f"{name}_sum{{{label}}} {seconds}",
        f"{name}_count{{{label}}} {count}",
    ]


def exposition(
    requests: list[str],
    tokens: list[str],
    request_seconds: list[str],
    calls: list[str],
    tool_seconds: list[str],
    errors: list[str],
) -> str:
    """Return the whole text: the heads of the six metrics, each with its series."""
    heads = EMPTY.splitlines()
    families = (requests, tokens, request_seconds, calls, tool_seconds, errors)
    lines: list[str] = []
    for number, series in enumerate(families):
        lines += [*heads[2 * number : 2 * number + 2], *series]
    return "\n".join(lines) + "\n"


def counters(rt: AgentRuntime) -> list[str]:
    """Return the series that are no histograms."""
    return [
        line
        for line in rt.metrics().splitlines()
        if not line.startswith("#") and "duration" not in line
    ]


def stream(rt: AgentRuntime, handle: Handle, prompt: str) -> None:
    """Run a turn as a stream, to its end."""
    events: list[Event] = []
    reader = threading.Thread(target=lambda: events.extend(rt.stream(handle, prompt)))
    reader.start()
    reader.join(LIMIT)
    assert not reader.is_alive(), "the stream does not end"


WAYS = pytest.mark.parametrize("run", [AgentRuntime.run_turn, stream], ids=["run", "stream"])


def test_a_runtime_that_did_nothing_has_the_heads_only(make_runtime: Make) -> None:
    assert make_runtime(AgentDef("a")).metrics() == EMPTY


@WAYS
def test_the_text_of_a_small_tree_is_exact(
    llm: ScriptedLlm, make_runtime: Make, run: Callable[..., Any]
) -> None:
    clock = VirtualClock()

    @tool
    def stock(item: str) -> int:
        """Say how many there are."""
        clock.advance(0.25)
        return 12

    keeper = AgentDef("keeper", "keeps", "", "small", tools=[stock, Charge()])
    boss = AgentDef("boss", team=["keeper"], model="big")
    rt = make_runtime(boss, keeper, clock=clock)
    llm.say("big", tool_call("task", {"agent": "keeper", "prompt": "tea?"}), text("12."))
    llm.say("small", tool_call("stock", {"item": "tea"}), text("There are 12."))
    llm.say("small", tool_call("charge_card"), status(400, "no"))
    run(rt, rt.spawn(rt.root, "boss").handle, "How much tea?")
    run(rt, rt.spawn(rt.root, "keeper").handle, "Charge.")
    (pending,) = rt.pending()
    rt.resume(Answer(pending.request.id, ok=True))
    rt.close(rt.root)

    request, seconds = "toolnexus_llm_requests_total", "toolnexus_llm_request_duration_seconds"
    calls, took = "toolnexus_tool_calls_total", "toolnexus_tool_duration_seconds"
    assert rt.metrics() == exposition(
        [
            f'{request}{{model="big",status="ok"}} 2',
            f'{request}{{model="small",status="error"}} 1',
            f'{request}{{model="small",status="ok"}} 3',
        ],
        [
            'toolnexus_llm_tokens_total{type="completion"} 50',
            'toolnexus_llm_tokens_total{type="prompt"} 150',
        ],
        [*durations(seconds, 'model="big"', 2), *durations(seconds, 'model="small"', 4)],
        [
            f'{calls}{{tool="charge_card",source="custom",is_error="false",pending="false"}} 1',
            f'{calls}{{tool="charge_card",source="custom",is_error="false",pending="true"}} 1',
            f'{calls}{{tool="stock",source="native",is_error="false",pending="false"}} 1',
            f'{calls}{{tool="task",source="agent",is_error="false",pending="false"}} 1',
        ],
        [
            *durations(took, 'tool="charge_card"', 2),
            *durations(took, 'tool="stock"', 1, "0.25"),
            *durations(took, 'tool="task"', 1, "0.25"),
        ],
        ['toolnexus_run_errors_total{model="small"} 1'],
    )


@WAYS
def test_turns_of_all_handles_are_counted_together(
    llm: ScriptedLlm, make_runtime: Make, run: Callable[..., Any]
) -> None:
    rt = make_runtime(AgentDef("a"), AgentDef("b", model="other"))
    llm.answer("m", lambda request: text("hi", usage=(7, 3)))
    llm.answer("other", lambda request: text("hi", usage=(1, 1)))
    for name in ("a", "a", "b"):
        handle = rt.spawn(rt.root, name).handle
        run(rt, handle, "one")
        run(rt, handle, "two")
        rt.close(handle)

    assert counters(rt) == [
        'toolnexus_llm_requests_total{model="m",status="ok"} 4',
        'toolnexus_llm_requests_total{model="other",status="ok"} 2',
        'toolnexus_llm_tokens_total{type="completion"} 14',
        'toolnexus_llm_tokens_total{type="prompt"} 30',
    ]


def test_the_model_is_the_one_that_was_asked(llm: ScriptedLlm, make_runtime: Make) -> None:
    class Choose(Hooks):
        def before_llm(self, request: ModelRequest) -> ModelRequest:
            return attrs.evolve(request, model="chosen")

    rt = make_runtime(AgentDef("a"), hooks=Choose())
    llm.say("chosen", text("hi"), status(400, "no"))
    handle = rt.spawn(rt.root, "a").handle
    rt.run_turn(handle, "one")
    rt.run_turn(handle, "two")

    assert counters(rt) == [
        'toolnexus_llm_requests_total{model="chosen",status="error"} 1',
        'toolnexus_llm_requests_total{model="chosen",status="ok"} 1',
        'toolnexus_llm_tokens_total{type="completion"} 10',
        'toolnexus_llm_tokens_total{type="prompt"} 30',
        # A run may have asked several; it is counted under its agent's own.
        'toolnexus_run_errors_total{model="m"} 1',
    ]


ENDS: dict[str, tuple[list[Reply], int]] = {
    "done": ([text("hi")], 0),
    "pending": ([tool_call("charge_card")], 0),
    "incomplete": ([tool_call("gone"), tool_call("gone")], 0),
    "error": ([status(500)], 1),
}


@WAYS
@pytest.mark.parametrize("end", ENDS)
def test_only_a_turn_that_failed_is_a_run_error(
    llm: ScriptedLlm, make_runtime: Make, run: Callable[..., Any], end: str
) -> None:
    replies, errors = ENDS[end]
    rt = make_runtime(AgentDef("a", tools=[Charge()], budget=Budget(max_turns=2)))
    llm.say("m", *replies)
    handle = rt.spawn(rt.root, "a").handle
    run(rt, handle, "go")
    rt.close(rt.root)

    assert handle.last_result is not None
    assert handle.last_result.status == ("closed" if end == "pending" else end)
    counted = [line for line in counters(rt) if line.startswith("toolnexus_run_errors")]
    assert counted == ['toolnexus_run_errors_total{model="m"} 1'] * errors


@pytest.mark.parametrize("streams", [False, True])
def test_a_turn_that_is_interrupted_is_no_run_error(
    llm: ScriptedLlm, make_runtime: Make, streams: bool
) -> None:
    rt = make_runtime(AgentDef("a"))
    never = threading.Event()
    llm.say("m", text("hi").held_by(never))
    handle = rt.spawn(rt.root, "a").handle
    run = stream if streams else AgentRuntime.run_turn
    thread = threading.Thread(target=run, args=(rt, handle, "go"))
    thread.start()
    llm.wait_asked("m")
    rt.interrupt(handle)
    thread.join(LIMIT)
    rt.close(rt.root)

    assert counters(rt) == ['toolnexus_llm_requests_total{model="m",status="error"} 1']


def test_a_wake_that_is_refused_counts_nothing(llm: ScriptedLlm, make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a", budget=Budget(max_tokens=1)))
    llm.say("m", text("hi"))
    handle = rt.spawn(rt.root, "a").handle
    rt.run_turn(handle, "go")
    before = rt.metrics()
    assert rt.run_turn(handle, "again").status == "incomplete"
    stream(rt, handle, "again")
    stream(rt, rt.root, "go")

    assert rt.metrics() == before


@WAYS
def test_a_broken_reply_and_its_retry_are_two_requests_of_one_error(
    llm: ScriptedLlm, make_runtime: Make, run: Callable[..., Any]
) -> None:
    rt = make_runtime(AgentDef("a"))
    llm.say("m", text("hi").cut_before_headers(), text("hi"))
    handle = rt.spawn(rt.root, "a").handle
    run(rt, handle, "go")
    assert rt.retry(handle).text == "hi"

    assert counters(rt) == [
        'toolnexus_llm_requests_total{model="m",status="error"} 1',
        'toolnexus_llm_requests_total{model="m",status="ok"} 1',
        'toolnexus_llm_tokens_total{type="completion"} 10',
        'toolnexus_llm_tokens_total{type="prompt"} 30',
        'toolnexus_run_errors_total{model="m"} 1',
    ]


@WAYS
def test_an_on_metric_of_an_agents_own_takes_nothing_away(
    llm: ScriptedLlm, make_runtime: Make, run: Callable[..., Any]
) -> None:
    general: list[MetricEvent] = []
    own: list[MetricEvent] = []
    rt = make_runtime(
        AgentDef("a"), AgentDef("b", on_metric=own.append), on_metric=general.append
    )
    llm.answer("m", lambda request: text("hi"))
    for name in ("a", "b"):
        run(rt, rt.spawn(rt.root, name).handle, "go")
    rt.close(rt.root)

    assert [(one.kind, one.handle_id) for one in general] == [
        ("llm", "root/a.1"),
        ("run", "root/a.1"),
    ]
    assert [(one.kind, one.handle_id) for one in own] == [
        ("llm", "root/b.2"),
        ("run", "root/b.2"),
    ]
    assert counters(rt)[0] == 'toolnexus_llm_requests_total{model="m",status="ok"} 2'


def test_two_runtimes_count_apart(llm: ScriptedLlm, make_runtime: Make) -> None:
    first, second = make_runtime(AgentDef("a")), make_runtime(AgentDef("a"))
    llm.say("m", text("hi"))
    first.run_turn(first.spawn(first.root, "a").handle, "go")

    assert second.metrics() == EMPTY
    assert len(counters(first)) == 3
