"""Unknown outcomes: what a tool wants done about a call that was in flight when all ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from toolnexus.errors import ConfigError

if TYPE_CHECKING:
    from toolnexus.toolspec import Tool

logger = logging.getLogger(__name__)

UNKNOWN: Final = "unknown_outcome"
"""The kind of a request whether a call that may have taken effect is to run again."""

OnUnknown: TypeAlias = Literal["error", "ask"]
Policy: TypeAlias = Literal["retry", "ask", "error"]


def policy_of(tool: Tool) -> Policy:
    """Return what is done about a call of `tool` that may have taken effect.

    What cannot be read runs nothing.
    """
    try:
        is_safe = getattr(tool, "retry_safe", False)
        otherwise = getattr(tool, "on_unknown", "error")
    except Exception:
        logger.exception("what tool %s wants for an unknown outcome cannot be read", tool.name)
        return "error"
    if isinstance(otherwise, str) and otherwise == "ask":
        return "ask"
    return "retry" if is_safe is True else "error"


def require_policy(retry_safe: object, on_unknown: object, owner: str) -> None:
    """Check what `tool` was given.

    Raises:
        ConfigError: It makes no sense.
    """
    if not isinstance(retry_safe, bool):
        raise ConfigError(f"{owner}: retry_safe must be True or False, not {retry_safe!r}")
    if on_unknown not in ("error", "ask"):
        raise ConfigError(f"{owner}: on_unknown must be 'error' or 'ask', not {on_unknown!r}")
    if retry_safe and on_unknown == "ask":
        raise ConfigError(
            f"{owner}: retry_safe runs a call again without asking, so on_unknown='ask' would "
            "ask nobody; give one of them"
        )


def require_one_policy(tool: object, owner: str) -> None:
    """Check that a tool of any class does not want both.

    Raises:
        ConfigError: It does.
    """
    try:
        is_safe = getattr(tool, "retry_safe", False) is True
        asks = getattr(tool, "on_unknown", "error")
    except Exception:  # noqa: BLE001 - a tool's own code, which is asked again when it matters
        return
    if is_safe and isinstance(asks, str):
        require_policy(is_safe, asks, owner)
