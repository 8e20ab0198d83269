"""Shortening: never longer than the limit, head and tail kept, nothing torn, and said so."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import ConfigError
from toolnexus.shortening import LEAST_CHARS, limit_for, shorten

NOTICE = re.compile(
    r"\[\.\.\. ([0-9,]+) characters left out"
    r'(?:; the whole text is kept as output "([^"]+)")? \.\.\.\]\n'
)
ALPHABET = st.sampled_from("ab \n\r\u0301\u200d\U0001f44d\U0001f3fd\ud83d\ude00é")
LIMITS = st.integers(LEAST_CHARS, LEAST_CHARS + 300)


def parts(shown: str) -> tuple[str, int, str]:
    """Return head, number left out, and tail of a shortened text."""
    found = NOTICE.search(shown)
    assert found
    return shown[: found.start()], int(found[1].replace(",", "")), shown[found.end() :]


def test_a_text_within_the_limit_is_left_alone() -> None:
    text = "x" * LEAST_CHARS

    assert shorten(text, LEAST_CHARS, "r") is text
    assert shorten("", LEAST_CHARS, "r") == ""


def test_a_long_text_keeps_its_head_and_tail_and_says_where_the_rest_is() -> None:
    text = "h" * 60_000 + "t" * 60_000
    shown = shorten(text, 1_000, "a1b2")
    head, missing, tail = parts(shown)

    assert len(shown) <= 1_000
    assert head == "h" * (len(head) - 1) + "\n"
    assert tail == "t" * len(tail)
    assert missing == 120_000 - (len(head) - 1) - len(tail)
    assert (
        f'[... {missing:,} characters left out; the whole text is kept as output "a1b2" ...]'
        in shown
    )
    assert "," in f"{missing:,}"


def test_room_is_used() -> None:
    shown = shorten("x" * 100_000, 2_000, "r" * 32)

    assert len(shown) > 1_990


def test_without_a_reference_it_promises_nothing() -> None:
    shown = shorten("x" * 5_000, 300, None)

    assert "characters left out ...]" in shown
    assert "kept" not in shown


def test_a_reference_too_long_for_the_limit_is_not_shown() -> None:
    shown = shorten("x" * 5_000, LEAST_CHARS, "r" * 500)

    assert len(shown) <= LEAST_CHARS
    assert "characters left out ...]" in shown


def test_cuts_fall_on_the_ends_of_lines_where_one_is_near() -> None:
    lines = [f"line {number:05}" for number in range(1_000)]
    head, missing, tail = parts(shorten("\n".join(lines), 1_000, "r"))

    kept = head.splitlines() + tail.splitlines()
    assert kept == [*lines[: len(head.splitlines())], *lines[-len(tail.splitlines()) :]]
    assert missing == 11 * (1_000 - len(kept))


def test_a_line_end_far_away_moves_no_cut() -> None:
    head, _, tail = parts(shorten("a\n" + "x" * 10_000 + "\nb", 1_000, "r"))

    assert len(head) > 400
    assert len(tail) > 400


@pytest.mark.parametrize(
    "unit", ["e\u0301", "\U0001f44d\U0001f3fd", "\U0001f469\u200d\U0001f4bb", "\ud83d\ude00"]
)
@pytest.mark.parametrize("shift", range(4))
def test_a_cut_tears_no_character_from_its_marks(unit: str, shift: int) -> None:
    head, _, tail = parts(shorten("a" * shift + unit * 2_000, 500 + shift, "r"))

    assert head.removeprefix("a" * shift).removesuffix("\n").replace(unit, "") == ""
    assert tail.replace(unit, "") == ""


def test_marks_without_end_do_not_move_the_cut_for_ever() -> None:
    head, _, tail = parts(shorten("a" + "\u0301" * 10_000, 1_000, "r"))

    assert len(head) > 400
    assert len(tail) > 400


@given(st.text(ALPHABET, max_size=1_500), LIMITS, st.none() | st.just("r" * 32))
def test_whatever_the_text_the_limit_holds_and_nothing_is_made_up(
    text: str, limit: int, reference: str | None
) -> None:
    shown = shorten(text, limit, reference)

    assert len(shown) <= limit
    if len(text) <= limit:
        assert shown == text
        return
    head, missing, tail = parts(shown)
    assert text.endswith(tail)
    assert text.startswith((head, head.removesuffix("\n")))
    own = head if text.startswith(head) else head.removesuffix("\n")
    assert len(own) + missing + len(tail) == len(text)
    assert lone_surrogates(own) + lone_surrogates(tail) <= lone_surrogates(text)


def lone_surrogates(text: str) -> int:
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "backslashreplace")
    return len(re.findall("\\\\x", joined))


@pytest.mark.parametrize("limit", [LEAST_CHARS - 1, 0, -5])
def test_a_limit_too_small_for_the_line_between_is_refused(limit: int) -> None:
    with pytest.raises(ConfigError, match=rf"at least {LEAST_CHARS} characters, not {limit}"):
        shorten("x", limit, None)


@pytest.mark.parametrize(
    ("per_result", "per_turn", "calls", "share"),
    [
        (50_000, 200_000, 1, 50_000),
        (50_000, 200_000, 4, 50_000),
        (50_000, 200_000, 5, 40_000),
        (50_000, 200_000, 3_000, LEAST_CHARS),
        (50_000, 200_000, 0, 50_000),
        (300_000, 200_000, 1, 200_000),
        (10, 10, 1, LEAST_CHARS),
    ],
)
def test_each_call_of_a_message_has_the_same_share(
    per_result: int, per_turn: int, calls: int, share: int
) -> None:
    assert limit_for(per_result, per_turn, calls) == share


@given(st.integers(200, 10**6), st.integers(200, 10**7), st.integers(1, 1_000))
def test_the_shares_keep_to_both_caps_unless_the_floor_lifts_them(
    per_result: int, per_turn: int, calls: int
) -> None:
    share = limit_for(per_result, per_turn, calls)

    assert share <= per_result
    assert share * calls <= per_turn or share == LEAST_CHARS
