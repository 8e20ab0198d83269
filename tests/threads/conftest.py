"""A fixture for races: threads take turns after every few instructions."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
