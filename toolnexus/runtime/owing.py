"""Owing: leases that this process has and no use for, until the store takes them back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from toolnexus.errors import ConfigError, LeaseLost, StoreError
from toolnexus.runtime.core import Core
from toolnexus.runtime.stored import is_busy
from toolnexus.runtime.tree import NotHeld, Tree
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import Lease, RunChange

_LOOKS: Final = 2  # what was asked of the store before the first doubt does not show it


class Owing:
    """Gives back the leases of runs that were dropped because a write had failed."""

    def __init__(self, core: Core, store: RunStore, trees: dict[str, Tree]) -> None:
        """Begin with nothing owed.

        Args:
            core: The runtime's.
            store: Where runs are kept.
            trees: The runs of this process, guarded by the runtime's lock. A lease is given
                back under the name of its run there, so that nobody takes that meanwhile.
        """
        self._core = core
        self._store = store
        self._name = core.options.name
        self._trees = trees
        # -- guarded by the runtime's lock ------------------------------------------------
        self._leases: list[Lease] = []
        self._strays: frozenset[str] = frozenset()
        self._looks = 0  # how often strays are looked for at least

    def __bool__(self) -> bool:
        return bool(self._leases or self._looks)

    def add_locked(self, lease: Lease) -> None:
        """Owe a lease."""
        self._leases.append(lease)

    def pay(self) -> None:
        """Give back what is owed, now that the store may work again."""
        with self._core.lock:
            leases, self._leases = self._leases, []
        for lease in leases:
            with self._core.lock:
                if lease.run_id in self._trees:
                    continue  # taken again, and the lease with it
                tree = self._trees[lease.run_id] = Tree(lease.run_id)
                tree.writing.acquire()  # nobody else knows of it
            try:
                self.give_back(lease)
            finally:
                with self._core.lock:
                    if self._trees.get(lease.run_id) is tree:  # the runtime may be closed
                        del self._trees[lease.run_id]
                tree.writing.release()

    def give_back(self, lease: Lease) -> None:
        """Give a lease back, or owe it. Nobody else may be at its run here."""
        try:
            change = RunChange(lease=lease, is_busy=self._is_busy(lease), releases=True)
            self._store.write(self._name, [change])
        except LeaseLost:
            pass
        except StoreError:
            with self._core.lock:
                self._leases.append(lease)

    def _is_busy(self, lease: Lease) -> bool:
        """Whether a turn is under way: a write that has failed may have been done for all that.

        Else nobody would ever go on with it.
        """
        heads = [one.head for one in self._store.handles(self._name, under=lease.run_id)]
        readable = [head for head in heads if isinstance(head, Mapping)]
        return any(map(is_busy, readable)) if len(readable) == len(heads) else lease.was_busy

    def doubt(self, error: BaseException) -> None:
        """Look for a lease that the store may have given in a call that failed all the same."""
        if not isinstance(error, (NotHeld, ConfigError)):
            with self._core.lock:
                self._looks = _LOOKS

    def strays(self, owned: Iterable[str]) -> frozenset[str]:
        """Return the runs that are this process's, and have not been known here for two looks.

        A call of the store that has taken them has failed all the same.
        """
        with self._core.lock:
            owed = {lease.run_id for lease in self._leases}
            found = frozenset(owned) - self._trees.keys() - owed
            strays, self._strays = found & self._strays, found
            self._looks = _LOOKS if found else max(self._looks - 1, 0)
        return strays
