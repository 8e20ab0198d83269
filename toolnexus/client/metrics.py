"""Metric events: one for each model call, tool execution and run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import attrs

from toolnexus.messages import Usage

logger = logging.getLogger(__name__)


_NO_USAGE: Final = Usage()

Kind: TypeAlias = Literal["llm", "tool", "run"]


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

    kind: Kind
    ms: float
    model: str = ""
    status: str = ""
    tool: str = ""
    source: str = ""
    is_error: bool = False
    pending: bool = False
    usage: Usage = _NO_USAGE
    error: str | None = None
    handle_id: str | None = None


Sink: TypeAlias = Callable[[MetricEvent], object]


class Meter:
    """Hands events to whoever listens; what a listener raises is logged, never more."""

    __slots__ = ("_handle_id", "_sinks")

    def __init__(self, *sinks: Sink | None, handle_id: str | None = None) -> None:
        self._sinks = [sink for sink in sinks if sink is not None]
        self._handle_id = handle_id

    def emit(self, kind: Kind, ms: float, **fields: Any) -> None:
        """Make an event of what was done, and hand it over."""
        try:
            event = MetricEvent(kind=kind, ms=ms, handle_id=self._handle_id, **fields)
        except Exception:
            logger.exception("a metric event could not be made")
            return
        for sink in self._sinks:
            try:
                sink(event)
            except Exception:
                logger.exception("on_metric failed")
