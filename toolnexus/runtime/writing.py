"""Writing: steps of runs into the store, also where two ask for the same thing at once."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from toolnexus.clock import RealClock, Signal
from toolnexus.errors import RequestConflict
from toolnexus.forms import login_key
from toolnexus.runtime.core import Core
from toolnexus.runtime.requests import asked
from toolnexus.runtime.tree import Step, Tree
from toolnexus.stores.base import RunStore

logger = logging.getLogger(__name__)

_TRIES: Final = 40
"""How often a write is tried again whose requests others have opened in the same moment."""

_TRIES_AT_ONCE: Final = 4
_PAUSE_SECONDS: Final = 0.005
"""How often without a pause, and how long it is before each other try."""

# Other processes' time is not virtual.
_real: Final = RealClock()


class Writing:
    """Writes steps. The caller holds `Tree.writing` of each, and not the runtime's lock."""

    def __init__(self, core: Core, store: RunStore) -> None:
        self._core = core
        self._store = store
        self._name = core.options.name

    def write(self, steps: list[Step]) -> tuple[str, ...]:
        """Write all of `steps`, or nothing; see `RunStore.write`.

        Where a request cannot be opened they are taken anew, in place, with another id for it.
        """
        for number in range(_TRIES):
            if number >= _TRIES_AT_ONCE:
                _real.wait(Signal(), _PAUSE_SECONDS)
            try:
                return self._store.write(self._name, [one.change for one in steps])
            except RequestConflict as conflict:
                logger.info("%s", conflict)
                self._settle(steps, conflict.request_id)
        return self._store.write(self._name, [one.change for one in steps])

    def _settle(self, steps: list[Step], request_id: str) -> None:
        """Ask under another id, or with another run that has asked for the same login."""
        record = self._store.request(self._name, request_id)
        is_open = record is not None and record.state == "open"
        theirs = asked(record).request if record is not None and is_open else None
        with self._core.lock:
            steps[:] = [one for one in steps if one.tree.fault is None]
            for step in steps:
                step.tree.undo_locked(step)
                if theirs is not None and login_key(theirs) is not None:
                    step.tree.join_locked(theirs)
                else:
                    step.tree.rename_locked(request_id)
            steps[:] = steps_locked(one.tree for one in steps)


def steps_locked(trees: Iterable[Tree]) -> list[Step]:
    """Return what is to be written of the runs that are open."""
    return [step for one in trees if one.is_open and (step := one.step_locked()) is not None]
