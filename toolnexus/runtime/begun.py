"""Begun: what an answer has set going."""

from __future__ import annotations

import attrs

from toolnexus.runtime.run import Run
from toolnexus.runtime.tree import Tree


@attrs.frozen
class Begun:
    """A handle that an answer went to, and the run that this has started, if any.

    Attributes:
        handle_id: The handle.
        run: None where one is under way already, or nothing was to be done.
        request_id: The request, where another process sees the answer through.
        is_taken: Whether the call has taken the answer just now.
        tree: The run in the store, where this process has it; None else.
        turns: Ids of the turns that another process is to see through.
    """

    handle_id: str
    run: Run | None
    request_id: str | None = None
    is_taken: bool = False
    tree: Tree | None = None
    turns: frozenset[str] = frozenset()
