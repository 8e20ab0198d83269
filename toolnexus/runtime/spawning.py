"""Spawning and waking: how a handle comes to be, and how its turns begin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from toolnexus.budget import EMPTY_BUDGET, Budget
from toolnexus.checkpoint import CallState, Checkpoint
from toolnexus.client.turn import Turn, superseded_transcript
from toolnexus.errors import ConfigError
from toolnexus.messages import InboxItem
from toolnexus.parts.part import Content
from toolnexus.runtime import ledger
from toolnexus.runtime.admission import Admission
from toolnexus.runtime.closing import Closing
from toolnexus.runtime.core import Core
from toolnexus.runtime.definition import AgentDef
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.feeds import EventLog
from toolnexus.runtime.handle import Ack, FailedTurn, Handle, Spawn
from toolnexus.runtime.inbox import Posted
from toolnexus.runtime.run import Run, current_run
from toolnexus.runtime.settling import Settling
from toolnexus.runtime.state import Cause, State

if TYPE_CHECKING:
    from toolnexus.runtime.keeping import Keeper

logger = logging.getLogger(__name__)

BUSY_STALE: Final = "busy (its interrupted turn is still in a tool)"


class Spawning:
    """Makes handles, fills inboxes and starts turns."""

    def __init__(
        self, core: Core, admission: Admission, settling: Settling, closing: Closing
    ) -> None:
        self._core = core
        self._admission = admission
        self._settling = settling
        self._closing = closing
        self._defaults = Budget(max_turns=core.options.max_turns)

    def spawn(
        self,
        parent: Handle,
        target: AgentDef | str,
        budget: Budget | None = None,
        number: int | None = None,
        attach: Callable[[Handle], object] | None = None,
    ) -> Spawn:
        """Return a new child of `parent` in `idle`, or the reason against it.

        Args:
            parent: The handle above it.
            target: An agent's name, or a definition.
            budget: Limits that go before the definition's.
            number: The end of its id, reserved before; None takes the next.
            attach: Told of the child in the moment in which there is one, with the lock held.
        """
        core = self._core
        if budget is not None and not isinstance(budget, Budget):
            raise ConfigError(f"budget must be a Budget, not {budget!r}")
        definition = self._definition(parent, target) if isinstance(target, str) else target
        if definition is None:
            known = ", ".join(sorted(core.registry)) or "none"
            return Spawn(None, f'unknown agent "{target}" (known: {known})')
        for member in definition.team:
            if member not in definition.members and member not in core.registry:
                return Spawn(
                    None, f'agent "{definition.name}": its team names "{member}", unknown'
                )
        wanted = (budget or EMPTY_BUDGET).over(definition.budget).over(self._defaults)
        if core.keeper is not None and parent.parent is None:
            return self._start_run(core.keeper, parent, definition, wanted)
        with core.deciding() as effects:
            refusal = self._refusal_locked(parent)
            if refusal is not None:
                return Spawn(None, refusal)
            carved = ledger.carve(wanted, parent)
            child = core.add_child_locked(parent, definition, carved, effects, number)
            if attach is not None:
                attach(child)
        return self._told(child, definition)

    def _start_run(
        self, keeper: Keeper, root: Handle, definition: AgentDef, wanted: Budget
    ) -> Spawn:
        """Make a run in the store, where all processes count the children of the root."""
        with self._core.lock:
            refusal = self._refusal_locked(root)
            carved = ledger.carve(wanted, root)
        if refusal is not None:
            return Spawn(None, refusal)
        child = keeper.shells.start_run(definition, carved)
        if child is None:
            return Spawn(None, ledger.children_text(root.budget.max_children))
        return self._told(child, definition)

    def _refusal_locked(self, parent: Handle) -> str | None:
        if parent._is_closing or parent._state is State.CLOSED:
            return "parent closed"
        return ledger.spawn_refusal(parent, self._core.clock.monotonic())

    def _told(self, child: Handle, definition: AgentDef) -> Spawn:
        """Tell the definition's `on_spawn`, which may refuse the child."""
        if definition.on_spawn is not None:
            try:
                definition.on_spawn(child)
            except Exception as error:
                logger.exception("%s: on_spawn failed; the spawn is refused", child.id)
                self._refuse(child)
                return Spawn(None, f"on_spawn failed: {type(error).__name__}: {error}")
            except BaseException:
                self._refuse(child)
                raise
        return Spawn(child)

    def _refuse(self, child: Handle) -> None:
        with self._core.holding(child):
            self._closing.close(child, force=True, reason="on_spawn failed")

    def _definition(self, parent: Handle, name: str) -> AgentDef | None:
        return parent.definition.members.get(name) or self._core.registry.get(name)

    def post(self, handle: Handle, item: InboxItem, sender: Handle | None) -> Ack:
        """Append to the inbox, or say why not."""
        if not isinstance(item, InboxItem):
            raise ConfigError(f"post takes an InboxItem, not {item!r}")
        with self._core.deciding() as effects:
            is_trusted = is_ancestor(sender, handle)
            return self.post_locked(handle, item, effects, is_trusted=is_trusted)

    def post_locked(
        self,
        handle: Handle,
        item: InboxItem,
        effects: Effects,
        *,
        is_trusted: bool,
        is_promised: bool = False,
    ) -> Ack:
        """Append to the inbox, or say why not.

        Whether there is room for it was asked before where its sender has been told so.
        """
        core = self._core
        if handle._is_closing or handle._state is State.CLOSED:
            return Ack(ok=False, error=f"inbox closed: {handle.id}")
        cap = core.options.inbox_cap
        if len(handle._inbox) >= cap and not is_promised:
            text = f"post REJECTED (inbox full, cap {cap}) from {item.sender}"
            core.note_locked(handle, text, effects)
            return Ack(ok=False, error=f"inbox full: {handle.id}")
        handle._inbox.append(Posted(item, is_trusted))
        effects.touch(handle._tree)
        return Ack(ok=True)

    def wake_locked(
        self,
        handle: Handle,
        prompt: Content | None,
        effects: Effects,
        *,
        is_awaited: bool = False,
        streams: bool = False,
    ) -> tuple[Ack, Run | None]:
        """Admit a turn, or say why not; the run is None where no new one was made."""
        if handle.parent is None:
            return Ack(ok=False, error="the root runs no turns; spawn an agent"), None
        if handle._is_closing or handle._state is State.CLOSED:
            return Ack(ok=False, error="closed"), None
        if handle._stale_runs:
            return Ack(ok=False, error=BUSY_STALE), None
        if handle._run is not None or handle._state is not State.IDLE:
            if prompt is None and handle._state is State.RUNNING:
                handle._wake_again = True
                return Ack(ok=True), None
            state = "queued" if handle._state is State.IDLE else handle._state.value
            return Ack(ok=False, error=f"busy ({state})"), None
        if prompt is None and not handle._inbox:
            return Ack(ok=False, error="nothing to do: no prompt, and the inbox is empty"), None
        left = handle._failed
        handle._event_log = EventLog() if streams else None
        run = Run(handle, Cause.WAKE, prompt=prompt, is_awaited=is_awaited)
        self._admission.admit_locked(run, effects)
        if run.is_over:
            # Refused: what a retry could have gone on with is still there.
            handle._failed = left if left is not None else handle._failed
            last = handle.last_result
            return Ack(ok=False, error=last.text if last is not None else "refused"), run
        self._give_up_locked(handle, left, effects)
        return Ack(ok=True), run

    def supersede(self, handle: Handle, prompt: Content, principal: str | None) -> Ack:
        """Settle what `handle` waits for as not executed, and start a turn. Never blocks."""
        core = self._core
        with core.deciding() as effects:
            halted = handle._parked
            if halted is None or handle._is_closing:
                return self.wake_locked(handle, prompt, effects)[0]
            spent = ledger.exhausted(handle, core.clock.monotonic())
            if spent is not None:
                # The turn would be refused; then the question had better stay.
                return Ack(ok=False, error=ledger.spent_text(spent.limit))
            for child in self._closing.workers_locked(handle):
                calls = core.calls_locked(child)
                core.withdraw_locked(child, calls, "supersede", effects, principal)
            request = core.pending_of_locked(handle)
            kind = "" if request is None else request.kind
            core.withdraw_locked(handle, halted.calls, "supersede", effects, principal)
            turn = Turn.restore(halted, core.lock)
            core.vault.drop(turn.all_secrets())
            handle._transcript = superseded_transcript(turn)
            handle._parked = None
            self._close_children_locked(halted.calls, effects, force=True)
            why = f'superseded pending "{kind}"'
            core.move_locked(handle, Cause.WITHDRAW, why, effects)
            return self.wake_locked(handle, prompt, effects)[0]

    def first_turn_locked(self, child: Handle, prompt: str, effects: Effects) -> None:
        """Start the first turn of a child whose parent's thread waits for it."""
        run = Run(child, Cause.WAKE, prompt=prompt, is_awaited=True)
        self._admission.admit_locked(run, effects)

    def retry_locked(
        self, handle: Handle, effects: Effects, *, is_awaited: bool = False
    ) -> Run | None:
        """Go on with the turn that failed, here or below; None where there is none.

        A parked handle has not failed, but one of its halted task calls may wait for a retry.
        """
        if handle._parked is not None:
            return self._retry_below_locked(handle._parked, effects, is_awaited=is_awaited)
        failed = handle._failed
        if failed is None or handle._run is not None or handle._is_closing:
            return None
        if handle._stale_runs:
            return None  # a tool of the interrupted turn is still at it
        if failed.checkpoint is not None:
            settled = [call for call in failed.checkpoint.calls if call.status == "done"]
            self._close_children_locked(settled, effects)
            return self._settling.replay_locked(
                handle, failed.checkpoint, effects, is_retry=True, is_awaited=is_awaited
            )
        run = Run(
            handle,
            Cause.WAKE,
            prompt=failed.prompt,
            is_retry=True,
            is_awaited=is_awaited,
        )
        self._admission.admit_locked(run, effects)
        return run

    def _retry_below_locked(
        self, halted: Checkpoint, effects: Effects, *, is_awaited: bool
    ) -> Run | None:
        for call in halted.calls:
            child = self._core.handles.get(call.child or "")
            if child is not None and call.status != "done":
                run = self.retry_locked(child, effects, is_awaited=is_awaited)
                if run is not None:
                    return run
        return None

    def _give_up_locked(
        self, handle: Handle, failed: FailedTurn | None, effects: Effects
    ) -> None:
        """A new prompt ends what was left of a failed turn: its children have no use now."""
        handle._failed = None
        if failed is not None and failed.checkpoint is not None:
            self._close_children_locked(failed.checkpoint.calls, effects)

    def _close_children_locked(
        self, calls: Iterable[CallState], effects: Effects, *, force: bool = False
    ) -> None:
        """Close what `calls` have left behind: nobody will reattach to it."""
        for call in calls:
            child = self._core.handles.get(call.child or "")
            if child is not None:
                if child._tree is not None:
                    below = self._core.subtree_locked(child)
                    child._tree.doomed.update(one.id for one in below)
                effects.add(partial(self._closing.close, child, force=force))


def is_ancestor(sender: Handle | None, handle: Handle) -> bool:
    """Whether the post comes from above: by the handle given, or by the turn it is made in."""
    if sender is None:
        mine = current_run.get()
        # A callback of a result is the host's code, though it runs on the turn's thread.
        sender = None if mine is None or mine.is_over else mine.handle
    return sender is not None and sender is not handle and sender in ledger.chain(handle)
