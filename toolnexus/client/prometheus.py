"""Counts of metric events as Prometheus text.

Made here, for `prometheus_client` cannot give these bytes: it writes every number as a float
(`1.0`, `le="1.0"`) and adds a `_created` series to each counter.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from toolnexus.client.metrics import MetricEvent

_BOUNDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds of all buckets but the last, which has none."""

_Key = TypeVar("_Key", bound=tuple[str, ...])
_T = TypeVar("_T")


class Counters:
    """Counts events, and renders the counts. Thread-safe.

    `record` never waits: the event goes into a queue, which is counted by whoever has the lock.
    So a finaliser that runs in the middle of a count, on the same thread, may record too.

    There is one series for each tool and model that was used. Nothing that a model invents
    makes one: a call of an unknown tool is no execution.
    """

    def __init__(self) -> None:
        self.after_fork()

    def record(self, event: MetricEvent) -> None:
        """Count `event`."""
        self._queue.append(event)
        # Whoever holds the lock may be past its last look at the queue; then the event is
        # counted by the next record or by `text`.
        if self._lock.acquire(blocking=False):
            try:
                self._count_locked()
            finally:
                self._lock.release()

    def text(self) -> str:
        """Return the counts of all events recorded before, in Prometheus' text format."""
        with self._lock:
            self._count_locked()
            lines = list(self._lines_locked())
        return "\n".join(lines) + "\n"

    def after_fork(self) -> None:
        """Start from nothing: what was counted is told by the parent process.

        A thread that the child does not have may hold the old lock.
        """
        self._lock = threading.Lock()
        self._queue: deque[MetricEvent] = deque()
        self._requests: dict[tuple[str, str], _Series] = {}
        self._tokens: dict[tuple[str], int] = {}
        self._calls: dict[tuple[str, str, str, str], _Series] = {}
        self._run_errors: dict[tuple[str], int] = {}

    def _count_locked(self) -> None:
        while self._queue:
            self._add(self._queue.popleft())

    def _add(self, event: MetricEvent) -> None:
        if event.kind == "llm":
            key = (event.model, event.status)
            series = self._requests.get(key)
            if series is None:
                series = self._requests[key] = _Series()
            series.add(event.ms / 1000)
            if event.status == "ok":
                # No `total`: a sum over the types would count each token twice.
                _add(self._tokens, ("prompt",), event.usage.prompt_tokens)
                _add(self._tokens, ("completion",), event.usage.completion_tokens)
        elif event.kind == "tool":
            called = (event.tool, event.source, _word(event.is_error), _word(event.pending))
            series = self._calls.get(called)
            if series is None:
                series = self._calls[called] = _Series()
            series.add(event.ms / 1000)
        elif event.error is not None:
            _add(self._run_errors, (event.model,), 1)

    def _lines_locked(self) -> Iterator[str]:
        yield from _counter(
            "toolnexus_llm_requests_total",
            "Total LLM requests.",
            ("model", "status"),
            {key: series.count for key, series in self._requests.items()},
        )
        yield from _counter(
            "toolnexus_llm_tokens_total", "Total tokens, by type.", ("type",), self._tokens
        )
        yield from _histogram(
            "toolnexus_llm_request_duration_seconds",
            "LLM request duration in seconds.",
            "model",
            _by_first(self._requests),
        )
        yield from _counter(
            "toolnexus_tool_calls_total",
            "Total tool calls.",
            ("tool", "source", "is_error", "pending"),
            {key: series.count for key, series in self._calls.items()},
        )
        yield from _histogram(
            "toolnexus_tool_duration_seconds",
            "Tool execution duration in seconds.",
            "tool",
            _by_first(self._calls),
        )
        yield from _counter(
            "toolnexus_run_errors_total", "Total run errors.", ("model",), self._run_errors
        )


class _Series:
    """How many durations fell between each two bounds, and their sum."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BOUNDS, seconds)] += 1
        self.seconds += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


def _add(series: dict[_Key, int], key: _Key, amount: int) -> None:
    series[key] = series.get(key, 0) + amount


def _by_first(series: Mapping[_Key, _Series]) -> dict[tuple[str], _Series]:
    """Return the durations summed over all labels but the first."""
    sums: dict[tuple[str], _Series] = {}
    for key, one in series.items():
        total = sums.setdefault((key[0],), _Series())
        total.counts = [sum(pair) for pair in zip(total.counts, one.counts, strict=True)]
        total.seconds += one.seconds
    return sums


def _counter(
    name: str, help_text: str, labels: tuple[str, ...], series: Mapping[_Key, int]
) -> Iterator[str]:
    yield from _head(name, help_text, "counter")
    for written, value in _by_labels(labels, series):
        yield f"{name}{{{written}}} {value}"


def _histogram(
    name: str, help_text: str, label: str, series: Mapping[tuple[str], _Series]
) -> Iterator[str]:
    yield from _head(name, help_text, "histogram")
    for written, one in _by_labels((label,), series):
        total = 0
        for bound, count in zip((*_BOUNDS, None), one.counts, strict=True):
            total += count
            le = "+Inf" if bound is None else _number(bound)
            yield f'{name}_bucket{{{written},le="{le}"}} {total}'
        yield f"{name}_sum{{{written}}} {_number(one.seconds)}"
        yield f"{name}_count{{{written}}} {total}"


def _head(name: str, help_text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _by_labels(labels: tuple[str, ...], series: Mapping[_Key, _T]) -> list[tuple[str, _T]]:
    """Return each series with its labels as they are written, sorted by them."""
    written = [
        (
            ",".join(
                f'{label}="{_escape(value)}"'
                for label, value in zip(labels, values, strict=True)
            ),
            one,
        )
        for values, one in series.items()
    ]
    return sorted(written, key=itemgetter(0))


def _escape(value: object) -> str:
    # A hook may have put anything in the model's place.
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _word(value: bool) -> str:  # noqa: FBT001 - it is the value that is written
    return "true" if value else "false"


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
