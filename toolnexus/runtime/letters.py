"""Letters: what comes for a run from outside while, or before, this process has it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, Final

import attrs

from toolnexus.checkpoint import CallState
from toolnexus.errors import StoreError, ToolnexusError, WireFormatError
from toolnexus.messages import InboxItem
from toolnexus.runtime.answers import Answers
from toolnexus.runtime.begun import Begun
from toolnexus.runtime.book import Place
from toolnexus.runtime.closing import Closing
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.keeping import Keeper
from toolnexus.runtime.spawning import Spawning
from toolnexus.runtime.stored import reading
from toolnexus.runtime.tree import CLOSE, INTERRUPT, Stop, Tree
from toolnexus.runtime.waiting import Waiting
from toolnexus.stores.records import Mail, Wait
from toolnexus.suspension import Answer

logger = logging.getLogger(__name__)

POST: Final = "post"

REFUSED: Final = {"outcome": "cancelled", "effective": None}
"""What the audit is told of an answer that found its call stopped."""


@attrs.frozen
class Letter:
    """What somebody wants of a handle that another process has.

    Attributes:
        verb: `interrupt`, `close` or `post`.
        handle_id: Of which handle.
        force: Whether a close gives what is under way no time.
        reason: Why it is closed; None for no reason.
        item: What is posted.
        is_trusted: Whether it comes from above.
    """

    verb: str
    handle_id: str
    force: bool = False
    reason: str | None = None
    item: InboxItem | None = None
    is_trusted: bool = False

    @classmethod
    def read(cls, signal: Any) -> Letter:
        """Read a signal of a store.

        Raises:
            WireFormatError: It is no letter that can be followed.
            ConfigError: What is posted is no item.
        """
        if not isinstance(signal, Mapping) or not isinstance(signal.get("handle"), str):
            raise WireFormatError("it names no handle")
        verb, handle_id = signal.get("verb"), signal["handle"]
        force, reason = signal.get("force"), signal.get("reason")
        if verb == INTERRUPT:
            return cls(INTERRUPT, handle_id)
        if verb == CLOSE and isinstance(force, bool) and isinstance(reason, (str, NoneType)):
            return cls(CLOSE, handle_id, force, reason)
        if verb == POST and isinstance(signal.get("item"), Mapping):
            item = InboxItem.from_dict(signal["item"])
            return cls(POST, handle_id, item=item, is_trusted=signal.get("isTrusted") is True)
        raise WireFormatError(f"it is no whole letter of the verb {verb!r}")

    @property
    def stops(self) -> bool:
        """Whether a turn ends by it."""
        return self.verb in (INTERRUPT, CLOSE)


def stopping(mail: Mail) -> list[Stop]:
    """Return what is to be interrupted or closed, by letters that make sense."""
    letters = (_letter(one) for one in mail.signals.values())
    return [
        Stop(one.verb, one.handle_id)
        for one in letters
        if isinstance(one, Letter) and one.stops
    ]


class Letters:
    """Sees to claimed answers and signals, once for each."""

    def __init__(
        self,
        core: Core,
        keeper: Keeper,
        answers: Answers,
        spawning: Spawning,
        closing: Closing,
        waiting: Waiting,
    ) -> None:
        self._core = core
        self._keeper = keeper
        self._answers = answers
        self._spawning = spawning
        self._closing = closing
        self._waiting = waiting
        # Requests whose answers cannot be read, so that each is told once. There are few, and
        # nobody minds two threads here.
        self._unreadable: set[str] = set()

    def collect(self, run_id: str) -> None:
        """See to what has come for a run of this process, and leave the rest to the workers.

        Raises:
            NotHeld: The run is not this process's any more.
        """
        self.hand_over(self.see_to(run_id, takes_busy=False))

    def see_to(self, run_id: str, *, takes_busy: bool = True) -> list[Begun]:
        """Have a run, and see to what has come for it; see `take`.

        Raises:
            NotHeld: It is not to be had now.
        """
        tree, mail = self._keeper.pin_unread(run_id, takes_busy=takes_busy)
        try:
            return self.take(tree, mail)
        finally:
            self._keeper.unpin(tree)

    def take(self, tree: Tree, mail: Mail | None = None) -> list[Begun]:
        """See to what has come; the caller executes what that starts.

        Args:
            tree: The run it has come for.
            mail: What has come; None where the store has to be asked.
        """
        if mail is None:
            mail = self._keeper.store.mail(self._keeper.name, tree.run_id)
        if not mail.answers and not mail.signals:
            return []
        answers, spoilt = self._readable(mail)
        with self._core.deciding() as effects:
            if not tree.is_open:
                return []  # it was lost; whoever has it now sees to them
            letters = self._hear_locked(tree, mail, effects)
            begun = self._deliver_locked(tree, answers, effects)
            self._set_aside_locked(tree, spoilt)
            if begun and not tree.signals and not tree.notes and all(map(_has_place, begun)):
                # The answers are in the store, and mail until a step of these runs takes them:
                # whoever looks at the store is told of mail as of a turn under way.
                effects.leave(tree)
            elif tree.done or tree.signals or tree.notes:
                # Else another thread is at it, and gives the run back in its turn.
                effects.touch(tree)
        try:
            self._obey_all(tree, letters)
        except BaseException:
            self.hand_over(begun)
            raise
        return begun

    def hand_over(self, begun: Iterable[Begun]) -> None:
        """Leave what was begun to the workers."""
        for one in begun:
            if one.run is not None:
                self._waiting.give_to_workers(one.run)

    def _readable(self, mail: Mail) -> tuple[list[tuple[Wait, Answer]], set[Wait]]:
        """Return the answers that can be read, and who waits for the others.

        Those stay mail, until they are mended, or another release can read them.
        """
        answers, spoilt = list[tuple[Wait, Answer]](), set[Wait]()
        for wait, said in mail.answers:
            try:
                answers.append((wait, _answer(wait, said)))
            except StoreError as error:
                spoilt.add(wait)
                if wait.request_id not in self._unreadable:
                    self._unreadable.add(wait.request_id)
                    logger.error("%s", error)  # noqa: TRY400 - no traceback
        return answers, spoilt

    def _set_aside_locked(self, tree: Tree, spoilt: set[Wait]) -> None:
        """Note which answers cannot be read; of a call that was stopped it is done with."""
        for wait in spoilt - tree.given:
            if self._waiting_locked(tree, wait) is None:
                tree.given.add(wait)
                tree.done.append(wait)
                tree.notes[wait.request_id] = REFUSED
        tree.spoilt = spoilt - tree.given

    def _deliver_locked(
        self, tree: Tree, answers: Iterable[tuple[Wait, Answer]], effects: Effects
    ) -> list[Begun]:
        begun = []
        for wait, answer in answers:
            if wait in tree.given:
                continue  # another thread has seen the same letter
            one = self._give_locked(tree, wait, answer, effects)
            tree.given.add(wait)
            tree.done.append(wait)
            if one is not None:
                begun.append(one)
            elif not self._core.book.was_withdrawn(wait.request_id):
                tree.notes[wait.request_id] = REFUSED
        return begun

    def _give_locked(
        self, tree: Tree, wait: Wait, answer: Answer, effects: Effects
    ) -> Begun | None:
        """Give an answer to its call; None where that was stopped meanwhile."""
        found = self._waiting_locked(tree, wait)
        if found is None:
            return None
        place, call = found
        assert call.request is not None  # noqa: S101 - it waits for its answer
        if call.answer is not None:
            return Begun(wait.handle_id, None, tree=tree)  # another thread has given it
        self._core.book.deliver(place, call.request)
        return self._answers.give_locked(place, answer, effects)

    def _waiting_locked(self, tree: Tree, wait: Wait) -> tuple[Place, CallState] | None:
        """Return the call that waits, and where it is; None where it was stopped."""
        handle = tree.handles.get(wait.handle_id)
        calls = () if handle is None else self._core.calls_locked(handle)
        call = calls[wait.call] if wait.call < len(calls) else None
        if (
            handle is None
            or call is None
            or call.request is None
            or call.request.id != wait.request_id
            or call.status != "open"
            or handle._is_closing
        ):
            return None
        return Place(handle, wait.call), call

    def _hear_locked(self, tree: Tree, mail: Mail, effects: Effects) -> dict[int, Letter]:
        """Take posts in; return the letters that are to be obeyed without the lock."""
        others = {}
        for number, signal in mail.signals.items():
            if number in tree.heard:
                continue  # another thread has seen the same letter
            tree.heard.add(number)
            letter = _letter(signal)
            if isinstance(letter, Letter) and letter.stops:
                others[number] = letter
                continue
            if isinstance(letter, Letter):
                self._post_locked(tree, letter, effects)
            else:
                text = "letter %d for %s cannot be read, and is thrown away: %s"
                effects.add(logger.error, text, number, tree.run_id, letter)
            tree.signals.append(number)
        return others

    def _post_locked(self, tree: Tree, letter: Letter, effects: Effects) -> None:
        handle = tree.handles.get(letter.handle_id)
        if handle is None:
            text = "a post from elsewhere was dropped: %s has ended"
            effects.add(logger.warning, text, letter.handle_id)
            return
        assert letter.item is not None  # noqa: S101 - it is a post
        ack = self._spawning.post_locked(
            handle, letter.item, effects, is_trusted=letter.is_trusted, is_promised=True
        )
        if not ack.ok:
            effects.add(logger.warning, "a post from elsewhere was dropped: %s", ack.error)

    def _obey_all(self, tree: Tree, letters: Mapping[int, Letter]) -> None:
        """Do what is asked; one letter that cannot be obeyed now keeps no other from it."""
        left, failure = dict(letters), None
        try:
            for number, letter in letters.items():
                try:
                    self._obey(tree, number, letter)
                except Exception as error:  # noqa: BLE001 - raised below
                    failure = failure or error
                else:
                    del left[number]
        finally:
            with self._core.lock:
                tree.heard.difference_update(left)  # whoever looks next obeys them
        if failure is not None:
            raise failure

    def _obey(self, tree: Tree, number: int, letter: Letter) -> None:
        """Do what is asked, and only then note it as done: once more does no harm."""
        handle = tree.handles.get(letter.handle_id)
        if handle is not None and letter.verb == INTERRUPT:
            self._closing.interrupt(handle)
        elif handle is not None:
            self._closing.close(handle, force=letter.force, reason=letter.reason)
        with self._core.deciding() as effects:
            # Also while another thread's write is about to give the run back: it is not given
            # back as long as there is mail.
            if tree.fault is None:
                tree.signals.append(number)
                effects.touch(tree)


def _answer(wait: Wait, said: Any) -> Answer:
    """Return an answer as the store has it.

    Raises:
        StoreError: It cannot be read; names the request.
    """
    with reading(f"the answer to request {wait.request_id!r}"):
        return Answer.from_dict(said["answer"])


def _letter(signal: object) -> Letter | ToolnexusError:
    """Read a signal; return what is wrong with one that cannot be read."""
    try:
        return Letter.read(signal)
    except ToolnexusError as error:
        return error


def _has_place(begun: Begun) -> bool:
    """Whether what was begun is started, and does not wait for a place."""
    return begun.run is not None and begun.run.is_started
