"""Housekeeping: the verbs that are about all runs at once."""

from __future__ import annotations

from datetime import datetime, timedelta

from toolnexus import checks
from toolnexus.errors import ConfigError
from toolnexus.grants import Grant
from toolnexus.runtime.core import Core
from toolnexus.runtime.durable import Durable


class Housekeeping:
    """The verbs of `AgentRuntime` that let calls pass, take runs over and throw runs away."""

    _core: Core
    _durable: Durable | None

    def grant(self, grant: Grant) -> Grant:
        """Let calls that fit `grant` be executed without asking, from now on; return it.

        Kept in the store, or else in memory. A request that is open already stays open.
        """
        if not isinstance(grant, Grant):
            raise ConfigError(f"grant takes a Grant, not {grant!r}")
        text = f"grant {grant.id} for {grant.tool} under {grant.under}"
        keeper = self._core.keeper
        if keeper is not None:
            keeper.store.put_grant(keeper.name, grant.id, grant.to_dict())
        with self._core.deciding() as effects:
            if keeper is None:
                self._core.grants[grant.id] = grant
            self._core.note_locked(self._core.root, text, effects)
        return grant

    def revoke(self, grant: Grant | str) -> bool:
        """Take a grant back, given it or its id; False where there is none."""
        key = grant.id if isinstance(grant, Grant) else grant
        keeper = self._core.keeper
        found = keeper is not None and keeper.store.remove_grant(keeper.name, key)
        with self._core.deciding() as effects:
            if keeper is None:
                found = self._core.grants.pop(key, None) is not None
            if found:
                self._core.note_locked(self._core.root, f"grant {key} revoked", effects)
        return found

    def recover(self) -> tuple[str, ...]:
        """Take over runs whose process ended, or fell silent, in the middle of something.

        Their turns go on on the workers; so do answers that were accepted and not yet acted
        on. What runs again and what does not is told in the guarantees. A run that was taken
        over more than `max_recoveries` times in a row ends its turn in an error, and `retry`
        tries once more. Never blocks for a turn.

        Returns:
            Ids of the runs that were taken over; none without a store.
        """
        return () if self._durable is None else self._durable.recover()

    def prune(
        self, *, older_than: float | timedelta | datetime, keep_suspended: bool = True
    ) -> int:
        """Delete from the store what nobody has touched for long; return how many handles.

        That is whole runs at rest, with their requests and what the audit knows of them; and
        closed agents of the runs that stay. Never a run that anybody is at, or that something
        has come for. Grants that ended before that time are deleted too.

        Args:
            older_than: Seconds, a timedelta, or the time before which it was touched last. An
                agent that is idle and could be woken again is deleted as well.
            keep_suspended: Whether runs stay that wait for an answer.
        """
        keeper = self._core.keeper
        if keeper is None:
            return 0
        if isinstance(older_than, datetime):
            before = older_than
            if before.tzinfo is None:
                raise ConfigError(f"older_than must be aware, not {older_than!r}")
        else:
            span = checks.span(older_than, "older_than")
            if span < timedelta(0):
                raise ConfigError(f"older_than must not be negative, not {older_than!r}")
            try:
                before = self._core.clock.now() - span
            except OverflowError:
                why = f"older_than goes back to no date: {older_than!r}"
                raise ConfigError(why) from None
        for grant in keeper.archive.grants():
            if grant.has_ended(before):
                keeper.store.remove_grant(keeper.name, grant.id)
        return keeper.store.prune(keeper.name, before, keep_suspended=keep_suspended)


def leased_elsewhere(rt: Housekeeping) -> tuple[int, datetime | None]:
    """Return how many runs `recover` leaves alone because another process's lease still lasts.

    And when the last of those leases ends, unless it is renewed; 0 and None where the store
    has no `leased`, which is no part of what it has to promise.
    """
    keeper = rt._core.keeper
    tell = None if keeper is None else getattr(keeper.store, "leased", None)
    if keeper is None or tell is None:
        return 0, None
    runs, until = tell(keeper.name, but=keeper.owner)
    return runs, until


def kept_in(rt: Housekeeping) -> str:
    """Return where a runtime's runs are kept, for people; without a password."""
    keeper = rt._core.keeper
    return "memory" if keeper is None else f"{keeper.store!r}, runtime {keeper.name!r}"
