"""Failures: what is said of an exception that foreign code has raised."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolnexus.toolspec import ToolContext


def failure_text(error: Exception) -> str:
    """Return the message of the cause, else of the exception; with its class if mute alone."""
    told = error.__cause__ or error
    name = type(told).__name__
    try:
        text = str(told)
    except Exception:  # noqa: BLE001 - a foreign __str__ that fails tells nothing
        return name
    if not text.strip():
        return name
    is_mute = type(told).__str__ is KeyError.__str__ or isinstance(told, StopIteration)
    return f"{name}: {text}" if is_mute else text


def log_failure(logger: logging.Logger, name: str, error: Exception, ctx: ToolContext) -> None:
    """Log that a tool has raised; without its texts where they may hold a secret."""
    if ctx.has_secrets:
        logger.error("tool %s failed: %s", name, type(error).__name__)
    else:
        logger.error("tool %s failed", name, exc_info=error)
