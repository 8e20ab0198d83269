"""What a relay tool may be called, and which declarations are refused when it is made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolnexus import ConfigError, relay_tool

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}}


@pytest.mark.parametrize(
    "name",
    [
        *("bash", "read", "write", "edit", "grep", "glob", "webfetch", "question"),
        *("apply_patch", "todowrite", "task", "read_output"),
    ],
)
def test_the_name_of_a_builtin_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        relay_tool(name, "?", SCHEMA)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, 7])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="name"):
        relay_tool(name, "?", SCHEMA)


def test_what_a_provider_would_refuse_is_refused_and_a_sound_schema_is_copied() -> None:
    with pytest.raises(ConfigError, match="input_schema"):
        relay_tool("find", "?", "object")  # type: ignore[arg-type]
    for schema in ({}, {"type": "string"}):  # no provider would take it
        with pytest.raises(ConfigError, match="object"):
            relay_tool("find", "?", schema)
    with pytest.raises(ConfigError, match="description"):
        relay_tool("find", None, SCHEMA)  # type: ignore[arg-type]
    schema = json.loads(json.dumps(SCHEMA))
    made = relay_tool("find", "?", schema)
    schema["properties"].clear()
    assert made.input_schema == SCHEMA
