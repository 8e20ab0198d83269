"""JSON in and out: strict in both directions, and surrogates that break nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import WireFormatError
from toolnexus.codec import check_json, dumps, encode, loads, refuse_unknown, well_formed

TEXTS = st.text(st.characters())  # the whole of Unicode, lone surrogates too
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_json_comes_back_as_it_went(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert loads(encode(value)) == value
    check_json(value, "value")


@given(TEXTS)
def test_any_text_can_be_sent(text: str) -> None:
    sent = encode({"text": text})

    assert json.loads(sent.decode("utf-8"))["text"] == well_formed(text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_well_formed_text_stays_as_it_is(text: str) -> None:
    assert well_formed(text) is text


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("x\ud83d", "x\ufffd"),
    ],
)
def test_pairs_are_joined_and_lone_surrogates_replaced(text: str, repaired: str) -> None:
    assert well_formed(text) == repaired
    assert encode(text) == f'"{repaired}"'.encode()


def test_a_lone_surrogate_in_a_key_can_be_sent() -> None:
    assert encode({"\ud800": 1}) == '{"\ufffd":1}'.encode()


def test_text_is_compact_and_not_escaped() -> None:
    assert dumps({"a": [1, None, True], "ü": "→"}) == '{"a":[1,null,true],"ü":"→"}'


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_lacks_are_not_written(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"n": number})


@pytest.mark.parametrize(
    "text",
    ["NaN", "[Infinity]", '{"a":-Infinity}', "1e999", "-1e999", "", "{", "{'a':1}", "nul"],
)
def test_what_is_not_strict_json_is_not_read(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is the decoder's own
        loads(text)


def test_a_byte_order_mark_is_no_fault() -> None:
    assert loads(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


def test_bytes_that_are_not_utf_8_are_no_json() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        loads(b'"\xff"')


def test_nesting_without_end_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        loads("[" * 200_000)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {1: 2}}, r"x\['a'\] must have string keys, not 1"),
        ([{None: 2}], r"x\[0\] must have string keys, not None"),
        ({"a": object()}, "x must be JSON: .*object"),
        ({"a": b"bytes"}, "x must be JSON: .*bytes"),
        ({"a": float("nan")}, "x must be JSON"),
    ],
)
def test_check_json_names_the_place(value: object, message: str) -> None:
    with pytest.raises(WireFormatError, match=message):
        check_json(value, "x")


def test_check_json_refuses_a_value_that_holds_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(WireFormatError, match="x must be JSON"):
        check_json(loop, "x")


def test_refuse_unknown_gives_the_mapping_back() -> None:
    data = {"a": 1}

    assert refuse_unknown("Thing", data, ("a", "b"), ("a",)) is data
