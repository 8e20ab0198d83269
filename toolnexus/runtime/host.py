"""TurnHost: a handle's turn as the loop of the client sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.checkpoint import CallState
from toolnexus.codec import JsonValue
from toolnexus.errors import Cancelled
from toolnexus.runtime import ledger
from toolnexus.runtime.core import Core
from toolnexus.runtime.delegation import Delegation
from toolnexus.runtime.handle import surfaced
from toolnexus.runtime.questions import is_portable
from toolnexus.runtime.run import Run
from toolnexus.runtime.state import Cause
from toolnexus.suspension import Answer, Request, new_request_id
from toolnexus.toolspec import Tool, ToolResult, will_delegate
from toolnexus.wire.base import ModelReply

if TYPE_CHECKING:
    from toolnexus.client.options import WaitFor
    from toolnexus.client.turn import Turn
    from toolnexus.runtime.keeping import Keeper


def _spawns(call: CallState, tools: Mapping[str, Tool]) -> bool:
    """Whether `call` will make a child, and no number is set aside for that."""
    if call.child is not None or call.number is not None:
        return False
    return will_delegate(tools.get(call.name), call.arguments)


class TurnHost:
    """What the loop is told by the runtime about the handle whose turn it runs. See `Host`."""

    def __init__(self, core: Core, delegation: Delegation, run: Run) -> None:
        self._core = core
        self._delegation = delegation
        self._run = run
        self.handle_id = run.handle.id

    def due_calls(self, turn: Turn, tools: Mapping[str, Tool]) -> list[int]:
        """Return the calls to execute now; ids of children they spawn are set aside."""
        with self._core.lock:
            self._delegation.carry_locked(turn)
            due = self._delegation.due_locked(self._run)
        spawning = [index for index in due if _spawns(turn.calls[index], tools)]
        with self._core.lock:
            # In call order, so that ids do not depend on which thread is first; and for good,
            # so that a call which parks before it spawns skips none.
            for index in spawning:
                turn.reserve(index, self._core.next_number_locked(self._run.handle))
        return due

    def wants_text(self) -> bool:
        """Say whether a stream listens, or has: one that comes back wants to know it all."""
        if self._core.options.generate is not None:
            return False  # told in one piece: who looks on must not make the turn fail
        handle = self._run.handle
        return handle._event_log is not None or self._core.feeds.listens(handle)

    def limit_before_request(self, turn: Turn) -> str | None:  # noqa: ARG002
        """Name a spent limit of the handle or of one above it."""
        with self._core.lock:
            spent = ledger.exhausted(self._run.handle, self._core.clock.monotonic())
            return None if spent is None else spent.limit

    def count_reply(self, reply: ModelReply) -> None:
        """Add to the usage of the handle and everything above it."""
        with self._core.lock:
            ledger.add_usage(self._run.handle, reply.usage)

    def reserve_call(self, turn: Turn, index: int) -> str | None:
        """Book the call along the whole chain."""
        with self._core.lock:
            refused = ledger.reserve_tool_call(self._run.handle)
            if refused is None:
                turn.note_booked(index)
            return refused

    def surface(self, request: Request) -> Request:
        """Return the request with the handle's path in it."""
        keeper, handle = self._core.keeper, self._run.handle
        if keeper is not None:
            shared = keeper.questions.shared_login(handle, request)
            if shared is not None:
                return shared
            if not is_portable(request.id) or keeper.questions.is_known(request.id):
                # A tool may give every question the same id.
                request = attrs.evolve(request, id=new_request_id())
        return surfaced(request, handle)

    def is_granted(self, tool: str, args: Mapping[str, JsonValue]) -> bool:
        """Say whether a standing grant fits, and note in the trace which."""
        handle, now = self._run.handle, self._core.clock.now()
        if self._core.keeper is not None:
            return self._is_granted_there(self._core.keeper, tool, args)
        with self._core.lock:
            grants = tuple(self._core.grants.values())
        fitting = (one for one in grants if one.allows(tool, args, handle.id, now))
        grant = next(fitting, None)
        if grant is None:
            return False
        with self._core.deciding() as effects:
            # Revoked in the meantime is revoked.
            if grant.id not in self._core.grants:
                return False
            self._core.note_locked(handle, f"grant {grant.id} allows {tool}", effects)
        return True

    def _is_granted_there(
        self, keeper: Keeper, tool: str, args: Mapping[str, JsonValue]
    ) -> bool:
        handle, now = self._run.handle, self._core.clock.now()
        grants = keeper.archive.grants()
        grant = next((one for one in grants if one.allows(tool, args, handle.id, now)), None)
        if grant is None:
            return False
        with self._core.deciding() as effects:
            self._core.note_locked(handle, f"grant {grant.id} allows {tool}", effects)
        return True

    def note_expired(self, request: Request) -> None:
        """Note that a yes is carried out too late, and so not at all."""
        late = Answer(request.id, ok=False, reason="expired")
        with self._core.deciding() as effects:
            self._core.settle_request_locked(request, late, "expiry", effects)
        changes = {"outcome": "expired", "how": "expiry", "reason": "expired"}
        self._amend(request, {**changes, "effective": None})

    def note_stopped(self, request: Request) -> None:
        """Note in the audit that the call of an approved request did not run."""
        with self._core.lock:
            self._core.audit.stopped(request)
        self._amend(request, {"effective": None})

    def _amend(self, request: Request, changes: Mapping[str, JsonValue]) -> None:
        tree = self._run.handle._tree
        if tree is not None:
            with self._core.lock:
                tree.notes[request.id] = dict(changes)

    def ask_inline(self, request: Request) -> WaitFor | None:
        """Find the nearest interpreter, and suspend the handle while that decides."""
        run, handle = self._run, self._run.handle
        wait_for, who = self._interpreter()
        if wait_for is None:
            return None
        with self._core.deciding() as effects:
            run.cancel.raise_if_cancelled()
            run.asking = request
            call = self._call_of(request)
            if call is not None:
                self._core.audit.asked(handle, call, request)
            why = f'pending "{request.kind}": {request.prompt}'
            self._core.move_locked(handle, Cause.SUSPEND, why, effects)
            self._core.note_locked(handle, f"escalate → {who} answers", effects)
        if request.resource is None:
            return wait_for
        decide, logins = wait_for, self._core.logins
        return lambda asked: logins.ask(asked, decide, run.cancel)

    def _call_of(self, request: Request) -> CallState | None:
        calls = self._core.calls_locked(self._run.handle)
        return next((call for call in calls if call.request is request), None)

    def _interpreter(self) -> tuple[WaitFor | None, str]:
        """Return the nearest `wait_for` of the ancestor chain, and whose it is."""
        for one in ledger.chain(self._run.handle):
            is_root = one.parent is None
            wait_for = self._core.options.wait_for if is_root else one.definition.wait_for
            if wait_for is not None:
                return wait_for, "self" if one is self._run.handle else one.id
        return None, ""

    def answered_inline(self, turn: Turn, index: int, request: Request, answer: Answer) -> None:
        """Give the call its answer, and let the handle run on."""
        run, handle = self._run, self._run.handle
        with self._core.deciding() as effects:
            if run.is_over:
                raise Cancelled("interrupted")
            run.asking = None
            # In one step with what the audit is told, so that nobody is asked again where the
            # process ends now.
            turn.answer(index, answer)
            self._core.settle_request_locked(request, answer, "wait_for", effects)
            why = f"Answer ok={str(answer.ok).lower()}"
            self._core.move_locked(handle, Cause.ANSWER_INLINE, why, effects)

    def entering(self, turn: Turn, index: int) -> None:  # noqa: ARG002
        """Write that a call is about to be in its tool, where runs are kept."""
        if self._core.keeper is not None:
            self._keep(self._core.keeper)

    def kept(self, turn: Turn, *, is_followed: bool = False) -> None:  # noqa: ARG002
        """Write how far the turn has come, where runs are kept; in one with what follows."""
        if self._core.keeper is not None and not is_followed:
            self._keep(self._core.keeper)

    def _keep(self, keeper: Keeper) -> None:
        tree = self._run.tree
        if tree is None or self._run.is_over:
            raise Cancelled("the run is another process's now, or stopped")
        keeper.flush([tree])

    def delegate_for(self, turn: Turn, index: int) -> Callable[[Any, str], ToolResult]:
        """Return how a call runs another agent as a child of this handle."""
        return lambda target, prompt: self._delegation.delegate(
            self._run, turn, index, target, prompt
        )
