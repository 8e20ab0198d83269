"""Dialects by name, and the small parts that both share."""

from __future__ import annotations

from typing import Any

import pytest

from toolnexus.errors import ConfigError
from toolnexus.wire import anthropic, openai
from toolnexus.wire.calls import WireIds, is_portable_id, unique_ids
from toolnexus.wire.content import json_text
from toolnexus.wire.styles import dialect_of


def test_known_styles() -> None:
    assert dialect_of("openai") is openai
    assert dialect_of("anthropic") is anthropic


@pytest.mark.parametrize("style", ["OpenAI", "", None, [], "gemini"])
def test_unknown_style(style: Any) -> None:
    with pytest.raises(ConfigError, match="style must be one of anthropic, openai, not"):
        dialect_of(style)


@pytest.mark.parametrize(
    ("received", "ids"),
    [
        ([], []),
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a_2", "a_3"]),
        (["a", "a", "a_2"], ["a", "a_3", "a_2"]),
        ([None, "call_0"], ["call_0_2", "call_0"]),
        ([None, 5, " "], ["call_0", "call_1", "call_2"]),
    ],
)
def test_unique_ids(received: list[Any], ids: list[str]) -> None:
    assert unique_ids(received) == ids


def test_wire_ids_are_given_out_once_and_do_not_change_with_later_calls() -> None:
    ids = WireIds()
    first = ids.assign(["call_0", "b d"])
    second = ids.assign(["call_0", "b d"])
    made = [*first.values(), *second.values()]
    assert first["call_0"] == "call_0"
    assert len(set(made)) == 4
    assert all(is_portable_id(i) for i in made)
    assert WireIds().assign(["call_0", "b d"]) == first


def test_many_equal_ids_are_quick() -> None:
    assert len(set(unique_ids(["x"] * 20_000))) == 20_000
    ids = WireIds()
    made = {value for _ in range(20_000) for value in ids.assign(["x"]).values()}
    assert len(made) == 20_000


def test_json_text_never_raises() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert json_text(deep) == "(list that is not JSON)"
    assert json_text({(1, 2): 3}) == "(dict that is not JSON)"
    assert json_text([b"x"]) == "[\"b'x'\"]"
