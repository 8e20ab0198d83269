"""Letters: what comes for a run from outside while, or before, this process has it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from toolnexus.messages import InboxItem
from toolnexus.runtime.answers import Answers, Begun
from toolnexus.runtime.book import Place
from toolnexus.runtime.closing import Closing
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects
from toolnexus.runtime.keeping import Keeper
from toolnexus.runtime.spawning import Spawning
from toolnexus.runtime.tree import Tree
from toolnexus.runtime.waiting import Waiting
from toolnexus.stores.records import Mail, Wait
from toolnexus.suspension import Answer

logger = logging.getLogger(__name__)

INTERRUPT: Final = "interrupt"
CLOSE: Final = "close"
POST: Final = "post"

REFUSED: Final = {"outcome": "cancelled", "effective": None}
"""What the audit is told of an answer that found its call stopped."""


def stopping(mail: Mail) -> list[str]:
    """Return the handles that are to be interrupted or closed, by letters that make sense."""
    letters = [one for one in mail.signals.values() if isinstance(one, Mapping)]
    told = [one.get("handle") for one in letters if one.get("verb") in (INTERRUPT, CLOSE)]
    return [one for one in told if isinstance(one, str)]


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

    def collect(self, tree: Tree, mail: Mail | None = None) -> None:
        """See to what has come, and leave what that starts to the workers."""
        self.hand_over(self.take(tree, mail))

    def see_to(self, run_id: str) -> list[Begun]:
        """Have a run, and see to what has come for it; see `take`.

        Raises:
            NotHeld: It is not to be had now.
        """
        tree, mail = self._keeper.pin_unread(run_id, takes_busy=True)
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
        with self._core.deciding() as effects:
            if not tree.is_open:
                return []  # it was lost; whoever has it now sees to them
            signals = self._hear_locked(tree, mail, effects)
            begun = self._deliver_locked(tree, mail, effects)
            is_under_way = bool(begun) and all(one.run is not None for one in begun)
            if is_under_way and not tree.signals and not tree.notes:
                # The answers are in the store, and mail until a step of these runs takes them.
                effects.leave(tree)
            elif tree.done or tree.signals or tree.notes:
                # Else another thread is at it, and gives the run back in its turn.
                effects.touch(tree)
        try:
            for number, signal in signals.items():
                self._obey(tree, number, signal)
        except BaseException:
            self.hand_over(begun)
            raise
        return begun

    def hand_over(self, begun: Iterable[Begun]) -> None:
        """Leave what was begun to the workers."""
        for one in begun:
            if one.run is not None:
                self._waiting.give_to_workers(one.run)

    def _deliver_locked(self, tree: Tree, mail: Mail, effects: Effects) -> list[Begun]:
        begun = []
        for wait, said in mail.answers:
            if wait in tree.given:
                continue  # another thread has seen the same letter
            tree.given.add(wait)
            tree.done.append(wait)
            answer = Answer.from_dict(said["answer"])
            one = self._give_locked(tree, wait, answer, effects)
            if one is not None:
                begun.append(one)
            elif not self._core.book.was_withdrawn(wait.request_id):
                tree.notes[wait.request_id] = REFUSED
        return begun

    def _give_locked(
        self, tree: Tree, wait: Wait, answer: Answer, effects: Effects
    ) -> Begun | None:
        """Give an answer to its call; None where that was stopped meanwhile."""
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
        if call.answer is not None:
            return Begun(wait.handle_id, None)  # another thread has given it
        place = Place(handle, wait.call)
        self._core.book.deliver(place, call.request)
        return self._answers.give_locked(place, answer, effects)

    def _hear_locked(
        self, tree: Tree, mail: Mail, effects: Effects
    ) -> dict[int, Mapping[str, Any]]:
        """Take posts in; return the signals that are to be obeyed without the lock."""
        others = {}
        for number, signal in mail.signals.items():
            if number in tree.heard:
                continue  # another thread has seen the same letter
            tree.heard.add(number)
            try:
                is_post, _ = signal["verb"] == POST, signal["handle"]
                if is_post:
                    self._post_locked(tree, signal, effects)
            except (KeyError, TypeError, ValueError) as error:
                text = "letter %d for %s cannot be read: %r"
                effects.add(logger.error, text, number, tree.run_id, error)
                is_post = True  # and no verb: it is done with
            if is_post:
                tree.signals.append(number)
            else:
                others[number] = signal
        return others

    def _post_locked(self, tree: Tree, signal: Mapping[str, Any], effects: Effects) -> None:
        handle = tree.handles.get(signal["handle"])
        if handle is None:
            text = "a post from elsewhere was dropped: %s has ended"
            effects.add(logger.warning, text, signal["handle"])
            return
        item = InboxItem.from_dict(signal["item"])
        ack = self._spawning.post_locked(
            handle, item, effects, is_trusted=signal["isTrusted"] is True, is_promised=True
        )
        if not ack.ok:
            effects.add(logger.warning, "a post from elsewhere was dropped: %s", ack.error)

    def _obey(self, tree: Tree, number: int, signal: Mapping[str, Any]) -> None:
        """Do what is asked, and only then note it as done: once more does no harm."""
        handle = tree.handles.get(signal["handle"])
        try:
            if handle is not None and signal["verb"] == INTERRUPT:
                self._closing.interrupt(handle)
            elif handle is not None and signal["verb"] == CLOSE:
                self._closing.close(handle, force=signal["force"], reason=signal["reason"])
        except BaseException:
            tree.heard.discard(number)  # to be obeyed by whoever looks next
            raise
        with self._core.deciding() as effects:
            if tree.is_open:
                tree.signals.append(number)
                effects.touch(tree)
