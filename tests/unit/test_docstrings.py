"""Docstrings of the three styles, and the summary that describes a tool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus.tools.docstrings import Documentation, read_docstring

GOOGLE = """Charge the card.

    More words about it: these are no entry.

    Args:
        amount (int, optional): Whole dollars
            to charge: never cents.

        note: For the
            statement.
        **extra: Anything.

    Returns:
        text: The receipt.
    """
NUMPY = """
    Charge the card.

    Parameters
    ----------
    amount : int, optional
        Whole dollars
        to charge: never cents.
    note : str
        For the statement.
    extra
        Anything.

    Returns
    -------
    text : str
        The receipt.
    """
REST = """Charge the card.

    :param int amount: Whole dollars
        to charge: never cents.
    :type amount: int
    :param note: For the statement.
    :keyword extra: Anything.
    :returns: The receipt.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST])
def test_the_styles_say_the_same(text: str) -> None:
    assert read_docstring(text) == Documentation(
        "Charge the card.",
        {
            "amount": "Whole dollars to charge: never cents.",
            "note": "For the statement.",
            "extra": "Anything.",
        },
    )


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (None, ""),
        ("  \n ", ""),
        ("One line", "One line"),
        ("First sentence.\nSecond.", "First sentence."),
        (
            "A sentence that runs\nover two lines.\n\nMore.",
            "A sentence that runs over two lines.",
        ),
        ("\n    Indented.\n    ", "Indented."),
        ("Args:\n    a: only this", ""),
        ("Title\n:param a: x", "Title"),
        ("Warning:\n    It costs money.", ""),
        ("Look: it works", "Look: it works"),
    ],
)
def test_the_summary_is_the_first_sentence_or_paragraph(text: str | None, summary: str) -> None:
    assert read_docstring(text).summary == summary


def test_numpy_names_can_share_a_text() -> None:
    text = "Add.\n\nParameters\n----------\na, b : int\n    Terms.\n"
    assert read_docstring(text).parameters == {"a": "Terms.", "b": "Terms."}


def test_attributes_of_a_class_are_read() -> None:
    assert read_docstring("A.\n\nAttributes:\n    x: Left.\n").parameters == {"x": "Left."}


@given(
    st.text()
    | st.lists(st.sampled_from([*GOOGLE.splitlines(), *NUMPY.splitlines(), ":", "-"])).map(
        "\n".join
    )
)
def test_no_docstring_is_an_error(text: str) -> None:
    read = read_docstring(text)
    assert "\n" not in read.summary
    assert all(words and words == " ".join(words.split()) for words in read.parameters.values())
