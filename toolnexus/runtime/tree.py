"""Tree: a run that is this process's, and what of it is written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import attrs

from toolnexus.codec import JsonValue
from toolnexus.errors import StoreError
from toolnexus.forms import login_key
from toolnexus.messages import Status
from toolnexus.results import TaskResult
from toolnexus.runtime import ledger
from toolnexus.runtime.snapshots import Marks, snapshot
from toolnexus.runtime.state import State
from toolnexus.stores.records import Lease, NewRequest, RunChange, Wait
from toolnexus.suspension import Outcome, Request, copy_of, new_request_id

if TYPE_CHECKING:
    from toolnexus.checkpoint import CallState
    from toolnexus.runtime.book import RequestBook
    from toolnexus.runtime.handle import Handle


INTERRUPT: Final = "interrupt"
CLOSE: Final = "close"


@attrs.frozen
class Stop:
    """What is to be stopped, for who takes a run for that.

    Attributes:
        verb: `INTERRUPT` or `CLOSE`.
        handle_id: Which handle is interrupted or closed.
    """

    verb: str
    handle_id: str


class NotHeld(Exception):
    """A run is not to be had now."""


class HeldElsewhere(NotHeld):
    """Somebody else has a run, or is to take it over.

    Attributes:
        owner: Whose it is; None where its process ended in the middle of a turn.
    """

    def __init__(self, run_id: str, owner: str | None) -> None:
        super().__init__(run_id, owner)
        self.run_id = run_id
        self.owner = owner

    def __str__(self) -> str:
        if self.owner is None:
            return "busy (its process ended in the middle of a turn; recover() goes on with it)"
        return "busy (another process is at it)"


class RuntimeClosed(NotHeld):
    """No run is to be had any more: the runtime is closed."""

    def __str__(self) -> str:
        return "closed"


def held_result(why: NotHeld) -> TaskResult:
    """Return what a verb says that cannot have the run."""
    status: Status = "closed" if isinstance(why, RuntimeClosed) else "error"
    return TaskResult(str(why), is_error=True, status=status)


def run_id_of(handle_id: str) -> str:
    """Return the id of the run that a handle belongs to."""
    return "/".join(handle_id.split("/", 2)[:2])


@attrs.frozen(eq=False)
class Step:
    """What is about to be written of a tree.

    Attributes:
        tree: Which.
        change: What is written.
        marks: What the store has of each handle once it is.
        inline: Those of the requests that were asked and answered at once, by their new ids.
        done: Waits that are over whatever the handles say; the others are found anew.
    """

    tree: Tree
    change: RunChange
    marks: dict[str, Marks]
    inline: dict[str, tuple[str, JsonValue]]
    done: tuple[Wait, ...]


class Tree:
    """A run in memory: an agent right below the root, and everything live below it.

    Attributes:
        run_id: Its id.
        writing: Held by the one thread that reads or writes it in the store. Taken before the
            runtime's lock, never under it.
        lease: The right to write it; None until it is open.
        handles: Its handles by id, parents before children; a closed one until that is written.
        pins: Verbs that are at it: it is not given back under them.
        is_open: Whether it is loaded, and neither given back nor lost.
        fault: Why it was lost; None where it was not.
        notes: What the audit is to be told of requests that are stored, by id.
        inline: What it is to be told of others, each with its kind: asked and answered at once.
        done: Waits that are over though their call never knew of the answer.
        doomed: Ids of handles that are being closed; written, so that a crash does not leave
            them half closed.
        given: Waits whose answers were seen to, for as long as the tree is here: another thread
            may have read the same mail.
        heard: Numbers of signals that were seen to, likewise.
        spoilt: Waits whose answers cannot be read.
        renamed: Requests that have become others while they were written, by their first id.
        signals: Numbers of signals that were dealt with, to be written.
        was_busy: Whether a turn was under way when it was written last.
    """

    __slots__ = (
        "done",
        "doomed",
        "fault",
        "given",
        "handles",
        "heard",
        "inline",
        "is_open",
        "lease",
        "marks",
        "notes",
        "pins",
        "renamed",
        "requests",
        "run_id",
        "signals",
        "spoilt",
        "was_busy",
        "writing",
    )

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.writing = threading.Lock()
        # -- guarded by the runtime's lock ------------------------------------------------
        self.lease: Lease | None = None
        self.handles: dict[str, Handle] = {}
        self.marks: dict[str, Marks] = {}
        self.requests: frozenset[str] = frozenset()
        self.notes: dict[str, JsonValue] = {}
        self.inline: list[tuple[str, JsonValue]] = []
        self.done: list[Wait] = []
        self.doomed: set[str] = set()
        self.given: set[Wait] = set()
        self.heard: set[int] = set()
        self.spoilt: set[Wait] = set()
        self.renamed: dict[str, Request] = {}
        self.signals: list[int] = []
        self.pins = 0
        self.is_open = False
        self.was_busy = False
        self.fault: StoreError | None = None

    def add(self, handle: Handle) -> None:
        """Take in a handle that nothing is written of. The lock is held."""
        self.handles[handle.id] = handle
        self.marks[handle.id] = Marks()

    def is_ending(self, handle: Handle) -> bool:
        """Whether a handle is to be closed, whatever becomes of this process."""
        return handle.id in self.doomed and handle._state is not State.CLOSED

    def of_its_own(self) -> list[Handle]:
        """Return the handles that are in this tree and not in a later one of the same run."""
        return [one for one in self.handles.values() if one._tree is self]

    def rests_locked(self) -> bool:
        """Whether nobody is at it any more, or all of it is closed and nothing can follow."""
        top = self.handles.get(self.run_id)
        is_closed = top is not None and top._state is State.CLOSED
        return (self.pins == 0 or is_closed) and not any(
            one._run is not None or one._stale_runs for one in self.handles.values()
        )

    def note_locked(self, request: Request, note: JsonValue) -> None:
        """Keep what became of a request, for the audit."""
        if request.id in self.requests:
            # What one run says of a login that others wait for too is not the last word.
            if login_key(request) is None:
                self.notes[request.id] = note
        else:
            self.inline.append((request.kind, note))

    def note_stopped_locked(
        self, calls: Iterable[CallState], outcome: Outcome, book: RequestBook
    ) -> None:
        """Keep what became of answers that were accepted and find their calls stopped."""
        for call in calls:
            waits = call.status == "open" and call.child is None and call.answer is None
            request = call.request if waits else None
            if request is not None and not book.was_withdrawn(request.id):
                book.note_withdrawn(request.id, outcome)
                self.notes[request.id] = {"outcome": outcome, "effective": None}

    def step_locked(self) -> Step | None:
        """Return what is to be written now; None for nothing.

        A tree at rest is closed by this: it is given back in the same write.
        """
        assert self.lease is not None  # noqa: S101 - it is open
        taken = {one.id: snapshot(one, self.marks[one.id]) for one in self.handles.values()}
        changes = tuple(one.change for one in taken.values() if one.change is not None)
        waits = [pair for one in taken.values() for pair in one.waits]
        opened = self._opened_locked(waits)
        done = (*self.done, *(wait for one in taken.values() for wait in one.done))
        has_notes = self.notes or self.inline or self.signals
        is_busy = any(
            one._run is not None or self.is_ending(one) for one in self.handles.values()
        )
        releases = self.rests_locked()
        if not (changes or waits or done or has_notes or releases or is_busy != self.was_busy):
            return None
        inline = {new_request_id(): one for one in self.inline}
        change = RunChange(
            lease=self.lease,
            handles=changes,
            opened=(
                *opened,
                *(NewRequest(id=key, kind=kind, body={}) for key, (kind, _) in inline.items()),
            ),
            waits=tuple(wait for _, wait in waits),
            done=done,
            notes={**self.notes, **{key: note for key, (_, note) in inline.items()}},
            signals=tuple(self.signals),
            is_busy=is_busy,
            releases=releases,
        )
        self.is_open = not releases
        self.requests |= {one.id for one in opened}
        step = Step(
            self, change, {key: one.marks for key, one in taken.items()}, inline, (*self.done,)
        )
        # Where the write fails, all of this is lost with the tree.
        self.notes, self.inline, self.done, self.signals = {}, [], [], []
        return step

    def is_written_locked(self) -> bool:
        """Whether the store has all of it."""
        step = self.step_locked()
        if step is None:
            return True
        self.undo_locked(step)
        change = step.change
        news = (change.handles, change.opened, change.waits, change.done, change.notes)
        return not any(news) and not change.signals and change.is_busy == self.was_busy

    def undo_locked(self, step: Step) -> None:
        """Have back what `step` was to write: it was not written, and is asked for again."""
        change = step.change
        self.is_open = True
        notes = {key: note for key, note in change.notes.items() if key not in step.inline}
        self.notes = {**notes, **self.notes}
        self.inline = [*step.inline.values(), *self.inline]
        # Not what the handles were found not to wait for: they may by the next time.
        self.done = [*step.done, *self.done]
        self.signals = [*change.signals, *self.signals]
        self.requests -= {one.id for one in change.opened}

    def rename_locked(self, request_id: str) -> None:
        """Let what waits for a request wait for one of its own: that id cannot be had."""
        fresh = new_request_id()
        self.requests -= {request_id}
        self._ask_instead_locked(
            lambda one: attrs.evolve(one, id=fresh) if one.id == request_id else one
        )

    def join_locked(self, request: Request) -> None:
        """Let what is about to ask for a login wait for another run's request for it."""
        login = login_key(request)
        self.requests |= {request.id}
        self._ask_instead_locked(lambda one: request if login_key(one) == login else one)

    def _ask_instead_locked(self, instead: Callable[[Request], Request]) -> None:
        entries = {}
        for handle in self.handles.values():
            book = handle._core.book
            entries.update(book.entries_of(handle))
            book.forget(handle)
            turn = None if handle._run is None else handle._run.turn
            if handle._parked is not None:
                calls = tuple(self._asking(handle._parked.calls, instead))
                handle._parked = attrs.evolve(handle._parked, calls=calls)
            elif turn is not None:
                turn.calls = self._asking(turn.calls, instead)
            book.reopen_all(handle)
        # What was said of them already is said of those that they have become.
        for request_id, now in self.renamed.items():
            # One that other runs wait for is theirs, and stays what it is.
            if request_id in entries and not entries[request_id].places:
                entries[request_id].request = now
        for handle in self.handles.values():
            last = handle.last_result
            now_asked = last and last.pending and self.renamed.get(last.pending.id)
            if last is not None and now_asked:
                handle.last_result = attrs.evolve(last, pending=copy_of(now_asked))

    def _asking(
        self, calls: Iterable[CallState], instead: Callable[[Request], Request]
    ) -> list[CallState]:
        asking = []
        for call in calls:
            asked = call.request
            if asked is not None and call.answer is None and call.child is None:
                now = instead(asked)
                if now is not asked:
                    self.renamed[asked.id] = now
                    call = attrs.evolve(call, request=now)
            asking.append(call)
        return asking

    def written_locked(self, step: Step) -> None:
        """Note that `step` is written."""
        self.marks.update(step.marks)
        self.was_busy = step.change.is_busy
        for change in step.change.handles:
            if change.state == "closed":
                closed = self.handles.pop(change.id, None)
                self.marks.pop(change.id, None)
                if closed is not None:
                    closed._tree = None
                    # Read from the store by whoever wants it.
                    closed._transcript = []

    def _opened_locked(self, waits: list[tuple[CallState, Wait]]) -> list[NewRequest]:
        opened: dict[str, NewRequest] = {}
        for call, wait in waits:
            request = call.request
            if request is None or request.id in self.requests:
                continue
            if request.id not in opened:
                body = body_of(self.handles[wait.handle_id], call)
                opened[request.id] = NewRequest(
                    id=request.id,
                    kind=request.kind,
                    body=body,
                    login=login_key(request),
                    expires_at=request.expires_at,
                )
        return list(opened.values())


def body_of(handle: Handle, call: CallState) -> dict[str, JsonValue]:
    """Return what a store keeps of a request: the call that asks, and who lets it go on."""
    row = call.to_dict()
    for key in ("answer", "result", "past", "once"):
        row.pop(key, None)
    return {
        "handle": handle.id,
        "agent": handle.definition.name,
        "call": row,
        "turns": sorted(ledger.turns_of(handle)),
    }
