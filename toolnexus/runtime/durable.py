"""Durable: what a runtime does because its runs are kept in a store."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

from toolnexus.clock import RealClock
from toolnexus.errors import StoreError, ToolnexusError
from toolnexus.messages import InboxItem
from toolnexus.runtime.admission import Admission
from toolnexus.runtime.announcing import Announcing
from toolnexus.runtime.beating import Beating
from toolnexus.runtime.closing import Closing
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import Ack, Handle
from toolnexus.runtime.keeping import Keeper
from toolnexus.runtime.letters import POST, Letters
from toolnexus.runtime.recovering import Recovering
from toolnexus.runtime.state import State
from toolnexus.runtime.tree import (
    CLOSE,
    INTERRUPT,
    HeldElsewhere,
    NotHeld,
    RuntimeClosed,
    run_id_of,
)
from toolnexus.stores.opening import open_store

logger = logging.getLogger(__name__)


def keeper_for(core: Core, admission: Admission) -> Keeper | None:
    """Return who keeps the runs of a runtime; None where they are kept in memory."""
    store = core.options.store
    if store is None:
        return None
    opened, is_owned = open_store(store)
    core.keeper = Keeper(core, admission, opened, is_owned=is_owned)
    return core.keeper


class Durable:
    """Recovers, hears of other processes, and lets go at the end."""

    def __init__(
        self,
        core: Core,
        keeper: Keeper,
        letters: Letters,
        recovering: Recovering,
        announcing: Announcing,
    ) -> None:
        self._core = core
        self._keeper = keeper
        self._letters = letters
        self._recovering = recovering
        self._announcing = announcing
        self._beating = Beating(core, keeper, letters.collect)
        keeper.take_letters = letters.take
        keeper.hand_over = letters.hand_over
        keeper.go_on = recovering.go_on
        keeper.on_open = self._be_there

        # What is open in the store may expire though nothing is asked here.
        announcing.watch_soon()

    def _be_there(self) -> None:
        """See to what time brings: this process has a run, or waits for another's."""
        self._beating.start()
        self._announcing.watch_soon()  # in a forked child nothing was begun before

    def after_fork(self) -> None:
        """In a forked child: whatever ran is the parent process's."""
        self._keeper.after_fork()
        self._beating.after_fork()

    def recover(self) -> tuple[str, ...]:
        """Take over what was left in the middle. See `AgentRuntime.recover`."""
        taken = self._recovering.recover()
        try:
            self._announcing.announce_again()
        except StoreError as error:
            logger.warning("who waits for an answer cannot be told again now: %s", error)
        return taken

    # -- what is asked of a run that another process has --------------------------------------

    def post(self, handle: Handle, item: InboxItem, *, is_trusted: bool) -> Ack:
        """Send an item to the process that has the handle."""
        view = self._keeper.archive.view(handle.id)
        if view is None or view.state is State.CLOSED:
            return Ack(ok=False, error=f"inbox closed: {handle.id}")
        on_their_way = sum(
            one.get("verb") == POST and one.get("handle") == handle.id
            for one in self._letters_for(handle)
        )
        if view.inbox + on_their_way >= self._core.options.inbox_cap:
            return Ack(ok=False, error=f"inbox full: {handle.id}")
        self._send(handle, POST, item=item.to_dict(), isTrusted=is_trusted)
        try:
            # The other process may have let go of the run before it could be told.
            self._letters.collect(run_id_of(handle.id))
        except NotHeld:
            pass  # it has it, and is about to look
        except ToolnexusError as error:
            logger.warning("a post for %s stays in its letter box: %s", handle.id, error)
        return Ack(ok=True)

    def interrupt(self, handle: Handle) -> None:
        """Have the process that has the handle interrupt it, and wait until it has."""
        token = secrets.token_hex(8)
        self._send(handle, INTERRUPT, token=token)
        # And no longer: what is begun after that is not meant.
        while any(one.get("token") == token for one in self._letters_for(handle)):
            try:
                self._letters.hand_over(self._letters.see_to(run_id_of(handle.id)))
            except HeldElsewhere:
                self._keeper.elsewhere.wait_a_little()
            except RuntimeClosed:
                return

    def close(
        self, handle: Handle, closing: Closing, *, force: bool, reason: str | None
    ) -> None:
        """Have the process that has the handle close it, and wait until it has."""
        self._send(handle, CLOSE, force=force, reason=reason)
        # Once more here when the other process has let go: it has done so, or has died.
        while True:
            try:
                with self._core.holding(handle, to_stop=CLOSE):
                    return closing.close(handle, force=force, reason=reason)
            except HeldElsewhere:
                if self._keeper.elsewhere.is_over(handle):
                    return None  # that process is at something else of the run
                self._keeper.elsewhere.wait_a_little()
            except RuntimeClosed:
                return None

    def _letters_for(self, handle: Handle) -> list[Mapping[str, Any]]:
        mail = self._keeper.store.mail(self._keeper.name, run_id_of(handle.id))
        return [one for one in mail.signals.values() if isinstance(one, Mapping)]

    def _send(self, handle: Handle, verb: str, **more: object) -> None:
        signal = {"verb": verb, "handle": handle.id, **more}
        self._keeper.store.send(self._keeper.name, run_id_of(handle.id), signal)

    # -- the end ------------------------------------------------------------------------------

    def detach(
        self, root: Handle, closing: Closing, *, force: bool, reason: str | None
    ) -> None:
        """Close the root: what is under way gets `shutdown_ms`, and goes on elsewhere then."""
        if not force:
            closing.let_finish()
        self.let_go()
        closing.close(root, force=True, reason=reason or "closed")

    def let_go(self) -> None:
        """Have no run any more; where the store does not answer, the leases run out."""
        has_runs = bool(self._keeper.trees or self._keeper.owing)
        try:
            self._keeper.detach()
        except StoreError as error:
            if has_runs:
                logger.warning("runs stay this process's until their leases run out: %s", error)

    def end(self, timeout: float) -> None:
        """End the thread and close the store, if it was opened here."""
        clock = RealClock()
        limit = clock.monotonic() + timeout
        self._beating.close(limit - clock.monotonic())
        self._keeper.close()
