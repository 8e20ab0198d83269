"""The wire styles by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toolnexus.errors import ConfigError
from toolnexus.wire import anthropic, openai
from toolnexus.wire.base import Dialect

_DIALECTS: Final[Mapping[str, Dialect]] = {"anthropic": anthropic, "openai": openai}


def dialect_of(style: str) -> Dialect:
    """Return the module that speaks `style`.

    Raises:
        ConfigError: No such style; the message lists the known ones.
    """
    for name, dialect in _DIALECTS.items():
        if name == style:
            return dialect
    raise ConfigError(f"style must be one of {', '.join(_DIALECTS)}, not {style!r}")
