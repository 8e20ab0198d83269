"""What waits on the machine's clock may wait for longer than the machine can count."""

from __future__ import annotations

import threading

from toolnexus.clock import Signal


def test_a_limit_beyond_what_a_lock_takes_is_a_limit_all_the_same() -> None:
    signal, looks = Signal(), []

    def is_over() -> bool:
        looks.append("look")
        if len(looks) == 2:  # it is about to sleep
            threading.Thread(target=signal.wake).start()
        return len(looks) > 2

    assert signal.wait_for(is_over, 1e12)
