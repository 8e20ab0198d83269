"""Metric events: one for each model call, tool execution and run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import attrs

from toolnexus.messages import Usage

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class MetricEvent:
    """Something that was done, and how long it took.

    Attributes:
        kind: `llm` for a model call with its retries, `tool` for an execution, `run` for a run
            (or a handle's turn), last and once.
        ms: Milliseconds it took.
        model: The model's name; "" for tools.
        status: `ok` or `error` for `llm`; the run's status for `run`; "" for tools.
        tool: The tool's name; "" unless `tool`.
        source: The tool's source; "" unless `tool`.
        is_error: Whether a tool's result is an error. A suspension is not.
        pending: Whether a tool suspended.
        usage: Tokens; zero unless the provider counted them.
        error: What went wrong; None where nothing did.
        handle_id: Whose turn it was; None outside a runtime.
    """

    kind: Literal["llm", "tool", "run"]
    ms: float
    model: str = ""
    status: str = ""
    tool: str = ""
    source: str = ""
    is_error: bool = False
    pending: bool = False
    usage: Usage = attrs.field(factory=Usage)
    error: str | None = None
    handle_id: str | None = None


class Meter:
    """Hands events to the host's `on_metric`; what that raises is logged, never more."""

    __slots__ = ("_handle_id", "_sink")

    def __init__(
        self, sink: Callable[[MetricEvent], object] | None, handle_id: str | None = None
    ) -> None:
        self._sink = sink
        self._handle_id = handle_id

    def emit(self, make: Callable[[], MetricEvent]) -> None:
        """Build an event and hand it over with the handle's id; free where nobody listens."""
        if self._sink is None:
            return
        try:
            self._sink(attrs.evolve(make(), handle_id=self._handle_id))
        except Exception:
            logger.exception("on_metric failed")
