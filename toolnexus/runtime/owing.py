"""Owing: leases that this process has and no use for, until the store takes them back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from toolnexus.errors import ConfigError, StoreError
from toolnexus.runtime.core import Core
from toolnexus.runtime.tree import NotHeld, Tree
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import Lease

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
        # Each with whether its run was left on purpose.
        self._leases: list[tuple[Lease, bool]] = []
        self._strays: frozenset[str] = frozenset()
        self._looks = 0  # how often strays are looked for at least

    def __bool__(self) -> bool:
        return bool(self._leases or self._looks)

    def add_locked(self, lease: Lease) -> None:
        """Owe the lease of a run whose turns went on: who goes on with them recovers them."""
        self._leases.append((lease, False))

    def pay(self) -> None:
        """Give back what is owed, now that the store may work again."""
        with self._core.lock:
            owed, self._leases = self._leases, []
        for lease, on_purpose in owed:
            tree = Tree(lease.run_id)
            with tree.writing:
                with self._core.lock:
                    if self._trees.setdefault(lease.run_id, tree) is not tree:
                        continue  # taken again, and the lease with it
                try:
                    self._release(lease, on_purpose=on_purpose)
                finally:
                    with self._core.lock:
                        if self._trees.get(lease.run_id) is tree:  # the runtime may be closed
                            del self._trees[lease.run_id]

    def give_back(self, lease: Lease) -> None:
        """Give back the lease of a run that could not go on, or owe it.

        Nobody else may be at the run here.
        """
        self._release(lease, on_purpose=True)

    def _release(self, lease: Lease, *, on_purpose: bool) -> None:
        try:
            self._store.release(self._name, lease, on_purpose=on_purpose)
        except StoreError:
            with self._core.lock:
                self._leases.append((lease, on_purpose))

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
            owed = {lease.run_id for lease, _ in self._leases}
            found = frozenset(owned) - self._trees.keys() - owed
            strays, self._strays = found & self._strays, found
            self._looks = _LOOKS if found else max(self._looks - 1, 0)
        return strays
