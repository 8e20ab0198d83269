"""The Prometheus text of metric events, to the byte."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.docs.pages import code_of, rows_below
from toolnexus import MetricEvent, Usage
from toolnexus.client.prometheus import Counters

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

EVENTS = [
    MetricEvent(kind="llm", ms=250, model="m", status="ok", usage=Usage(30, 10, 40)),
    MetricEvent(kind="llm", ms=1500.5, model="m", status="ok", usage=Usage(5, 1, 6)),
    MetricEvent(
        kind="llm", ms=90_000, model="m", status="error", usage=Usage(7, 7, 14), error="LLM 500"
    ),
    MetricEvent(kind="llm", ms=0, model="a", status="ok"),
    MetricEvent(kind="tool", ms=50, tool="charge", source="native", pending=True),
    MetricEvent(kind="tool", ms=50.1, tool="charge", source="native"),
    MetricEvent(
        kind="tool", ms=60_000, tool="add", source="mcp", is_error=True, error="no such sum"
    ),
    MetricEvent(kind="run", ms=1, model="m", status="pending"),
    MetricEvent(kind="run", ms=1, model="m", status="done", usage=Usage(5, 1, 6)),
    MetricEvent(kind="run", ms=1, model="m", status="error", error="LLM 500"),
]

GOLDEN = """\
# HELP toolnexus_llm_requests_total Total LLM requests.
# TYPE toolnexus_llm_requests_total counter
toolnexus_llm_requests_total{model="a",status="ok"} 1
toolnexus_llm_requests_total{model="m",status="error"} 1
toolnexus_llm_requests_total{model="m",status="ok"} 2
# HELP toolnexus_llm_tokens_total Total tokens, by type.
# TYPE toolnexus_llm_tokens_total counter
toolnexus_llm_tokens_total{type="completion"} 11
toolnexus_llm_tokens_total{type="prompt"} 35
# HELP toolnexus_llm_request_duration_seconds LLM request duration in seconds.
# TYPE toolnexus_llm_request_duration_seconds histogram
toolnexus_llm_request_duration_seconds_bucket{model="a",le="0.05"} 1
toolnexus_llm_request_duration_seconds_bucket{model="a",le="0.1"} 1
toolnexus_llm_request_duration_seconds_bucket{model="a",le="0.25"} 1
toolnexus_llm_request_duration_seconds_bucket{model="a",le="0.5"} 1
toolnexus_llm_request_duration_seconds_bucket{model="a",le="1"} 1
toolnexus_llm_request_duration_seconds_bucket{model="a",le="2.5"} 1
toolnexus_llm_request_duration_seconds_bucket{model="a",le="5"} 1
toolnexus_llm_request_duration_seconds_bucket{model="a",le="10"} 1
toolnexus_llm_request_duration_seconds_bucket{model="a",le="30"} 1
toolnexus_llm_request_duration_seconds_bucket{model="a",le="60"} 1
toolnexus_llm_request_duration_seconds_bucket{model="a",le="+Inf"} 1
toolnexus_llm_request_duration_seconds_sum{model="a"} 0
toolnexus_llm_request_duration_seconds_count{model="a"} 1
toolnexus_llm_request_duration_seconds_bucket{model="m",le="0.05"} 0
toolnexus_llm_request_duration_seconds_bucket{model="m",le="0.1"} 0
toolnexus_llm_request_duration_seconds_bucket{model="m",le="0.25"} 1
toolnexus_llm_request_duration_seconds_bucket{model="m",le="0.5"} 1
toolnexus_llm_request_duration_seconds_bucket{model="m",le="1"} 1
toolnexus_llm_request_duration_seconds_bucket{model="m",le="2.5"} 2
toolnexus_llm_request_duration_seconds_bucket{model="m",le="5"} 2
toolnexus_llm_request_duration_seconds_bucket{model="m",le="10"} 2
toolnexus_llm_request_duration_seconds_bucket{model="m",le="30"} 2
toolnexus_llm_request_duration_seconds_bucket{model="m",le="60"} 2
toolnexus_llm_request_duration_seconds_bucket{model="m",le="+Inf"} 3
toolnexus_llm_request_duration_seconds_sum{model="m"} 91.7505
toolnexus_llm_request_duration_seconds_count{model="m"} 3
# HELP toolnexus_tool_calls_total Total tool calls.
# TYPE toolnexus_tool_calls_total counter
toolnexus_tool_calls_total{tool="add",source="mcp",is_error="true",pending="false"} 1
toolnexus_tool_calls_total{tool="charge",source="native",is_error="false",pending="false"} 1
toolnexus_tool_calls_total{tool="charge",source="native",is_error="false",pending="true"} 1
# HELP toolnexus_tool_duration_seconds Tool execution duration in seconds.
# TYPE toolnexus_tool_duration_seconds histogram
toolnexus_tool_duration_seconds_bucket{tool="add",le="0.05"} 0
toolnexus_tool_duration_seconds_bucket{tool="add",le="0.1"} 0
toolnexus_tool_duration_seconds_bucket{tool="add",le="0.25"} 0
toolnexus_tool_duration_seconds_bucket{tool="add",le="0.5"} 0
toolnexus_tool_duration_seconds_bucket{tool="add",le="1"} 0
toolnexus_tool_duration_seconds_bucket{tool="add",le="2.5"} 0
toolnexus_tool_duration_seconds_bucket{tool="add",le="5"} 0
toolnexus_tool_duration_seconds_bucket{tool="add",le="10"} 0
toolnexus_tool_duration_seconds_bucket{tool="add",le="30"} 0
toolnexus_tool_duration_seconds_bucket{tool="add",le="60"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="+Inf"} 1
toolnexus_tool_duration_seconds_sum{tool="add"} 60
toolnexus_tool_duration_seconds_count{tool="add"} 1
toolnexus_tool_duration_seconds_bucket{tool="charge",le="0.05"} 1
toolnexus_tool_duration_seconds_bucket{tool="charge",le="0.1"} 2
toolnexus_tool_duration_seconds_bucket{tool="charge",le="0.25"} 2
toolnexus_tool_duration_seconds_bucket{tool="charge",le="0.5"} 2
toolnexus_tool_duration_seconds_bucket{tool="charge",le="1"} 2
toolnexus_tool_duration_seconds_bucket{tool="charge",le="2.5"} 2
toolnexus_tool_duration_seconds_bucket{tool="charge",le="5"} 2
toolnexus_tool_duration_seconds_bucket{tool="charge",le="10"} 2
toolnexus_tool_duration_seconds_bucket{tool="charge",le="30"} 2
toolnexus_tool_duration_seconds_bucket{tool="charge",le="60"} 2
toolnexus_tool_duration_seconds_bucket{tool="charge",le="+Inf"} 2
toolnexus_tool_duration_seconds_sum{tool="charge"} 0.1001
toolnexus_tool_duration_seconds_count{tool="charge"} 2
# HELP toolnexus_run_errors_total Total run errors.
# TYPE toolnexus_run_errors_total counter
toolnexus_run_errors_total{model="m"} 1
"""


def text_of(*events: MetricEvent) -> str:
    counters = Counters()
    for event in events:
        counters.record(event)
    return counters.text()


def series_of(text: str) -> list[str]:
    return [line for line in text.split("\n") if line and not line.startswith("#")]


def test_without_events_there_are_the_names_alone() -> None:
    assert Counters().text() == EMPTY


def test_the_page_lists_the_six_with_their_types_and_labels() -> None:
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", GOLDEN, re.MULTILINE))
    series = (SERIES.fullmatch(line) for line in series_of(GOLDEN))
    labels = {one["name"]: re.findall(r'(\w+)="', one["labels"]) for one in series if one}
    rows = rows_below("metrics.md", "Prometheus")

    assert {code_of(row[0])[0]: row[1] for row in rows} == types
    for row in rows:
        (name,) = code_of(row[0])
        assert code_of(row[2]) == labels.get(name, labels.get(f"{name}_count"))


def test_the_text_is_exact_to_the_byte() -> None:
    assert text_of(*EVENTS) == GOLDEN


def test_the_order_of_events_does_not_matter_to_the_order_of_series() -> None:
    assert text_of(*reversed(EVENTS)) == GOLDEN


def test_reading_resets_nothing() -> None:
    counters = Counters()
    counters.record(EVENTS[0])
    assert counters.text() == counters.text() != EMPTY


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ('say "hi"', r"say \"hi\""),
        ("back\\slash", r"back\\slash"),
        ("two\nlines", r"two\nlines"),
        ("\\n", r"\\n"),
        ("return\r, tab\t, ü", "return\r, tab\t, ü"),
        ("", ""),
    ],
)
def test_a_label_is_escaped(name: str, written: str) -> None:
    text = text_of(MetricEvent(kind="run", ms=0, model=name, status="error", error="no"))
    assert series_of(text) == [f'toolnexus_run_errors_total{{model="{written}"}} 1']


def test_tokens_of_a_failed_request_are_not_counted() -> None:
    failed = MetricEvent(kind="llm", ms=0, model="m", status="error", usage=Usage(1, 1, 2))
    assert "toolnexus_llm_tokens_total{" not in text_of(failed)


def test_a_run_that_fails_without_words_is_counted() -> None:
    text = text_of(MetricEvent(kind="run", ms=0, model="m", status="error", error=""))
    assert series_of(text) == ['toolnexus_run_errors_total{model="m"} 1']


@pytest.mark.parametrize(
    ("ms", "bound"), [(50, "0.05"), (50.000001, "0.1"), (1000, "1"), (60_000.01, "+Inf")]
)
def test_a_bucket_holds_its_upper_bound(ms: float, bound: str) -> None:
    text = text_of(MetricEvent(kind="tool", ms=ms, tool="t", source="native"))
    buckets = re.findall(r'_bucket\{tool="t",le="(.+?)"\} 1\n', text)
    assert buckets[0] == bound


# -- any sequence of events --------------------------------------------------------------------

NAMES = (
    "toolnexus_llm_requests_total",
    "toolnexus_llm_tokens_total",
    "toolnexus_llm_request_duration_seconds",
    "toolnexus_tool_calls_total",
    "toolnexus_tool_duration_seconds",
    "toolnexus_run_errors_total",
)
LABEL = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
SERIES = re.compile(rf"(?P<name>[a-z_]+)\{{(?P<labels>{LABEL}(?:,{LABEL})*)\}} (?P<value>\S+)")
LE = re.compile(r',le="([^"]+)"$')


def metrics_of(text: str) -> dict[str, list[tuple[str, str, float]]]:
    """Return `(suffix, labels, value)` of each series by metric; strict about all else."""
    assert text.endswith("\n")
    found: dict[str, list[tuple[str, str, float]]] = {}
    lines = iter(text[:-1].split("\n"))
    name = ""
    for line in lines:
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert re.fullmatch(rf"# TYPE {name} (counter|histogram)", next(lines))
            assert name not in found
            found[name] = []
            continue
        parsed = SERIES.fullmatch(line)
        assert parsed is not None, line
        assert parsed["name"].startswith(name), line
        assert not parsed["value"].endswith(".0"), line
        suffix = parsed["name"].removeprefix(name)
        found[name].append((suffix, parsed["labels"], float(parsed["value"])))
    return found


def check_histogram(series: list[tuple[str, str, float]]) -> float:
    """Check each group of buckets, sum and count; return how many were observed in all."""
    observed, seen = 0.0, []
    for start in range(0, len(series), 13):
        *buckets, (sum_suffix, labels, total), (count_suffix, again, count) = series[
            start : start + 13
        ]
        assert (sum_suffix, count_suffix, labels) == ("_sum", "_count", again)
        bounds = [LE.search(one) for _, one, _ in buckets]
        assert [bound and bound[1] for bound in bounds] == [
            *("0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60", "+Inf")
        ]
        assert {(suffix, LE.sub("", one)) for suffix, one, _ in buckets} == {
            ("_bucket", labels)
        }
        values = [value for _, _, value in buckets]
        assert values == sorted(values)
        assert values[-1] == count > 0
        assert total >= 0
        observed += count
        seen.append(labels)
    assert seen == sorted(set(seen))
    return observed


words = st.text(max_size=6) | st.sampled_from(
    ["", '"', "\\", "\n", "\r\n", "a,b", "}", "é\u2028"]
)
times = st.floats(0, 1e9) | st.sampled_from([0.0, 50.0, 50.1, 1000.0, 60_000.0])
tokens = st.integers(0, 10**12)
events = st.builds(
    MetricEvent,
    kind=st.sampled_from(["llm", "tool", "run"]),
    ms=times,
    model=words,
    status=st.sampled_from(["ok", "error"]),
    tool=words,
    source=words,
    is_error=st.booleans(),
    pending=st.booleans(),
    usage=st.builds(Usage, tokens, tokens, tokens),
    error=st.none() | words,
)


@given(st.lists(events, max_size=12))
def test_any_events_give_a_text_that_says_what_they_were(all_events: list[MetricEvent]) -> None:
    metrics = metrics_of(text_of(*all_events))

    assert tuple(metrics) == NAMES
    asked, spent, asking, called, calling, failed = metrics.values()
    for counter in (asked, spent, called, failed):
        labels = [labels for _, labels, _ in counter]
        assert labels == sorted(set(labels))
        assert {suffix for suffix, _, _ in counter} <= {""}
    llm = [event for event in all_events if event.kind == "llm"]
    tools = [event for event in all_events if event.kind == "tool"]
    usages = [event.usage for event in llm if event.status == "ok"]
    assert sum(value for *_, value in asked) == check_histogram(asking) == len(llm)
    assert sum(value for *_, value in called) == check_histogram(calling) == len(tools)
    completion = sum(usage.completion_tokens for usage in usages)
    prompt = sum(usage.prompt_tokens for usage in usages)
    assert [value for *_, value in spent] == ([completion, prompt] if usages else [])
    assert sum(value for *_, value in failed) == sum(
        event.kind == "run" and event.error is not None for event in all_events
    )
