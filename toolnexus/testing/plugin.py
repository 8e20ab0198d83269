"""The pytest plugin: fixtures `scripted_llm` and `virtual_clock`.

pytest loads this module in every session of everybody who has toolnexus installed, so it
imports nothing of toolnexus until a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from toolnexus.testing.clock import VirtualClock
    from toolnexus.testing.llm import ScriptedLlm


@pytest.fixture
def scripted_llm() -> Iterator[ScriptedLlm]:
    """A model server on loopback; after the test it must be done with its script.

    A test that leaves replies over, or has requests refused, on purpose says
    `scripted_llm.check_done = False`.
    """
    from toolnexus.testing.llm import ScriptedLlm

    with ScriptedLlm() as llm:
        yield llm
    if llm.check_done:
        llm.assert_done()


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that stands still until the test advances it."""
    from toolnexus.testing.clock import VirtualClock

    return VirtualClock()
