"""Continuing: from an answer that a store has accepted to the run that goes on with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from toolnexus.checkpoint import CallState
from toolnexus.errors import ToolnexusError, UnknownRequest
from toolnexus.runtime.answers import Answers
from toolnexus.runtime.begun import Begun
from toolnexus.runtime.claims import Claims, Found
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import PendingRequest
from toolnexus.runtime.keeping import Keeper
from toolnexus.runtime.letters import Letters
from toolnexus.runtime.tree import HeldElsewhere, RuntimeClosed, run_id_of
from toolnexus.suspension import Answer

logger = logging.getLogger(__name__)


class StoredAnswers:
    """Claims answers, and has the runs that wait for them take them."""

    def __init__(
        self, core: Core, keeper: Keeper, claims: Claims, letters: Letters, answers: Answers
    ) -> None:
        self._core = core
        self._keeper = keeper
        self._claims = claims
        self._letters = letters
        self._answers = answers

    def accept(
        self,
        answers: Sequence[Answer],
        may: Callable[[CallState, PendingRequest, Answer], object],
        by: str | None,
    ) -> list[Begun]:
        """Record answers, all of them or none, and start what they set going.

        Args:
            answers: Each to a request of its own, or the same again.
            may: Raises where the host does not let one be given.
            by: Who answers, for the audit.

        Raises:
            ResumeError: One fits nothing; nothing has changed.
            ToolnexusError: The answers are recorded, and a run cannot go on by them now.
        """
        begun: list[Begun] = []
        failure: ToolnexusError | None = None
        try:
            for one in self._claims.claim(answers, may, "resume", by):
                try:
                    self._let_go_on(one, begun)
                except ToolnexusError as error:
                    failure = failure or error  # it keeps no other run from going on
            if failure is not None:
                raise failure  # noqa: TRY301 - with all that was begun
        except BaseException:
            # What was begun must not wait for a thread that has left.
            self._letters.hand_over(begun)
            raise
        return begun

    def expire_due(self) -> tuple[list[Begun], tuple[str, ...]]:
        """Settle what has expired; return what that starts, and the requests."""
        begun: list[Begun] = []
        expired = self._claims.expire_due()
        for one in expired:
            try:
                self._let_go_on(one, begun)
            except Exception:
                logger.exception("request %s has expired", one.asked.record.id)
        return begun, tuple(one.asked.record.id for one in expired)

    def _let_go_on(self, found: Found, begun: list[Begun]) -> None:
        """Have the runs that wait for a claimed answer take it, or see that they do."""
        before = len(begun)
        for handle_id in found.handle_ids:
            try:
                tree, mail = self._keeper.pin_unread(run_id_of(handle_id), takes_busy=True)
            except HeldElsewhere:
                request_id = found.asked.record.id
                elsewhere = Begun(handle_id, None, request_id, is_taken=True, turns=found.turns)
                begun.append(elsewhere)
                continue
            except RuntimeClosed:
                # The answer is recorded all the same.
                begun.append(Begun(handle_id, None, is_taken=True))
                continue
            try:
                started = self._letters.take(tree, mail)
                begun += started
                if not started:
                    with self._core.deciding() as effects:
                        run = self._answers.retry_locked(handle_id, found.turns, effects)
                    begun.append(Begun(handle_id, run, tree=tree))
            finally:
                self._keeper.unpin(tree)
        if found.claim is not None and not any(one.is_taken for one in begun[before:]):
            self._require_taken(found.asked.record.id)

    def _require_taken(self, request_id: str) -> None:
        """Refuse an answer that was accepted in the moment in which its call was stopped.

        Raises:
            UnknownRequest: It was.
        """
        outcome = self._keeper.archive.outcome(request_id)
        if outcome in ("cancelled", "superseded"):
            raise UnknownRequest(request_id, outcome=outcome)

    def wait_elsewhere(self, handle_id: str, request_id: str, turns: frozenset[str]) -> None:
        """Wait until another process has seen an answer through; do it here if that ends.

        Where this runtime is closed meanwhile, the answer is recorded all the same.
        """
        elsewhere = self._keeper.elsewhere
        while elsewhere.is_under_way(handle_id, request_id, turns):
            try:
                begun = self._letters.see_to(run_id_of(handle_id))
            except HeldElsewhere:
                elsewhere.wait_a_little()
                continue
            except RuntimeClosed:
                return
            self._answers.see_through([*begun, Begun(handle_id, None)])
            if not begun:
                elsewhere.wait_a_little()  # another thread here is about to do it
        self._require_taken(request_id)
