"""Where the pages lead: to files and headings that are there, and to tests of that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, name_of

LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
NOT_A_PAGE = ("http://", "https://", "mailto:")


def links_of(page: Path) -> list[tuple[str, str]]:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [(one["text"], one["target"]) for one in LINK.finditer(text)]


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings, as the host of the pages makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", one.lower()) for one in headings)
    return {one.replace(" ", "-") for one in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for text, target in links_of(page):
        if target.startswith(NOT_A_PAGE):
            continue
        path, _, anchor = target.partition("#")
        found = page if not path else (page.parent / path).resolve()
        assert found.exists(), f"[{text}]({target})"
        if anchor and found.suffix == ".md":
            assert anchor in anchors_of(found), f"[{text}]({target})"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_that_is_named_is_there(page: Path) -> None:
    for text, target in links_of(page):
        name = text.strip("`")
        if not name.startswith("test_"):
            continue
        found = (page.parent / target).resolve()
        is_there = found.stem == name or f"def {name}(" in found.read_text("utf-8")
        assert is_there, f"[{text}]({target})"
