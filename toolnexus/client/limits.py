"""OutputLimits: what of a tool's result is shown to the model, and what is kept elsewhere."""

from __future__ import annotations

import logging

import attrs

from toolnexus.client.options import ClientOptions
from toolnexus.shortening import limit_for, shorten
from toolnexus.stores.outputs import MemoryOutputStore, OutputStore
from toolnexus.toolspec import ToolResult, bound_parts

logger = logging.getLogger(__name__)


class OutputLimits:
    """Fits results into the options' limits, before anything keeps or sends them. Thread-safe.

    Attributes:
        store: Where the whole of a text is kept that was shortened.
    """

    def __init__(self, options: ClientOptions) -> None:
        given = options.output_store
        self.store: OutputStore = MemoryOutputStore() if given is None else given
        self._per_result = options.max_result_chars
        self._per_turn = options.max_turn_chars
        self._part_bytes = options.max_part_bytes

    def fit(self, result: ToolResult, calls: int) -> ToolResult:
        """Return `result` as it will be kept.

        Args:
            result: Final.
            calls: How many calls the assistant message has, which share the turn's limit.
        """
        result = bound_parts(result, self._part_bytes)
        limit = limit_for(self._per_result, self._per_turn, calls)
        if len(result.output) <= limit:
            return result
        shown = shorten(result.output, limit, self._keep(result.output))
        # The texts among the parts are in it; kept beside it they would be stored whole.
        rest = tuple(part for part in result.parts if part.kind != "text")
        return attrs.evolve(result, output=shown, parts=rest)

    def _keep(self, text: str) -> str | None:
        try:
            return self.store.put(text)
        except Exception:  # a store is the host's own code, and the tool has run
            logger.exception("a long output could not be kept; what is left out is lost")
            return None
