"""How the tests of this folder start several calls at one moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.conftest import LIMIT


def race(*works: Callable[[], Any]) -> list[Any]:
    """Run all at one moment; return what each gave or raised."""
    barrier = threading.Barrier(len(works))
    given: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        barrier.wait(LIMIT)
        try:
            given[number] = works[number]()
        except Exception as error:
            given[number] = error

    threads = [
        threading.Thread(target=run, args=(number,), name=f"racer-{number}", daemon=True)
        for number in range(len(works))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), "a caller hangs"
    return given
