"""Dialogue: what one call has asked and been told, and what it has done once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import attrs

from toolnexus import checks, codec
from toolnexus.answering import unsealed
from toolnexus.checkpoint import CallState, Exchange
from toolnexus.clock import Clock
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError, Declined, StoreError, WireFormatError
from toolnexus.forms import check_question, is_same_question, masked
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import ToolResult
from toolnexus.vault import Vault, masker

if TYPE_CHECKING:
    from toolnexus.client.turn import Turn

T = TypeVar("T")

_LOST: Final = "_lost"
"""The one key of what is kept where a result could not be."""

_AFTER: Final = "the call is over: ctx.ask and ctx.once work while its tool runs"

_SEALED: Final = "_sealed"
"""The one key of what is kept where a result has a secret in it: that is in the vault."""


class Unwind(BaseException):
    """Takes a tool down to its caller, who finds out why in the dialogue.

    No `Exception`: a tool that catches those must not go on without an answer.
    """

    def __init__(self, dialogue: Dialogue) -> None:
        super().__init__()
        self.dialogue = dialogue


class Dialogue:
    """The questions and steps of one call, replayed on each retry. Thread-safe.

    Attributes:
        past: Questions that have their answers, as they are kept.
        verdict: What the execution comes to, whatever the tool returns or raises; None where
            that is for the tool to say.
        place: Which question is open; None for none.
        mask: Puts `***` for what the answers say in secret; None where nothing is that could
            be told apart in a text.
        has_secrets: Whether they say anything in secret.
        failure: Why the run cannot go on, whatever the tool does; None where it can.
    """

    def __init__(
        self,
        turn: Turn,
        index: int,
        call: CallState,
        vault: Vault,
        clock: Clock,
        kept: Callable[[], None],
    ) -> None:
        """Begin an execution.

        Args:
            turn: Keeps what the steps give.
            index: The call's position there.
            call: As it was before this execution, its accepted answer included.
            vault: Where secrets are, and results that have one in them.
            clock: Says when a question is asked.
            kept: Called when a step has been noted in the turn, before the tool goes on.
        """
        self.past = call.by.past
        self.verdict: ToolResult | None = None
        self.place: int | None = None
        self.mask: Callable[[Any], Any] | None = None
        self.has_secrets = False
        self.failure: StoreError | None = None
        self._turn = turn
        self._index = index
        self._vault = vault
        self._clock = clock
        self._kept = kept
        self._once = call.once
        self._asked = 0
        self._is_in_step = False
        self._is_over = False
        # A tool may have threads of its own; re-entrant, for a step may have steps.
        self._lock = threading.RLock()
        if call.request is not None or call.by.past:
            self._take_up(call)

    def _take_up(self, call: CallState) -> None:
        """Go on where the call has asked before."""
        request = call.request
        if call.by.place is not None and call.answer is not None and request is not None:
            self.past = (*call.by.past, Exchange(request, call.answer))
        asked = [one.request for one in call.by.past]
        ids = [one.id for one in ([*asked, request] if request is not None else asked)]
        secrets = tuple(filter(None, map(self._vault.get, ids)))
        self.mask, self.has_secrets = masker(secrets), bool(secrets)

    def end(self) -> None:
        """Let nothing more be asked or kept: a thread of the tool's may live on."""
        # Without the lock, which such a thread may hold for long.
        self._is_over = True

    def ask(
        self,
        kind: str,
        prompt: str,
        *,
        url: str | None,
        data: Mapping[str, JsonValue] | None,
        schema: Mapping[str, JsonValue] | None,
        expires_in: float | timedelta | None,
        on_decline: Literal["raise", "return"],
    ) -> Answer:
        """Return the answer, or unwind the tool. See `ToolContext.ask`."""
        if on_decline not in ("raise", "return"):
            raise ConfigError(f"on_decline must be 'raise' or 'return', not {on_decline!r}")
        with self._lock:
            self._raise_if_over()
            if self._is_in_step:
                # A retry that skips the step skips its questions, so that the next one would
                # be given the answer to one of these.
                raise ConfigError("ctx.ask inside ctx.once: ask before the step, not in it")
            request = self._request(kind, prompt, url, data, schema, expires_in)
            place, self._asked = self._asked, self._asked + 1
            if place < len(self.past):
                asked = self.past[place].request
                # Both masked: when it was asked, not all was secret that is so now.
                before, now = self._masked(asked), self._masked(request)
                if not is_same_question(before, now):
                    raise self._end(_changed(place, before, now))
                answer = unsealed(asked, self.past[place].answer, self._vault)
                if answer is not None:
                    return _given(asked, answer, on_decline)
                # What was said was a secret, which another process has taken along.
                self.past = self.past[:place]
            self.place = place
            raise self._end(ToolResult.pending(self._masked(request)))

    def once(self, key: str, fn: Callable[[], T]) -> T:
        """Return what was kept, or run `fn` and keep that. See `ToolContext.once`."""
        name: object = key
        if not isinstance(name, str) or not name:
            raise ConfigError(f"ctx.once: a key is a text that is not empty, not {key!r}")
        with self._lock:
            self._raise_if_over()
            if key not in self._once:
                value = self._step(fn)
                self._note(key, value)
                return value
            kept: Any = self._once[key]
        if isinstance(kept, Mapping) and list(kept) == [_LOST]:
            raise ConfigError(f"ctx.once({key!r}) ran before, and its result is no JSON")
        if isinstance(kept, Mapping) and list(kept) == [_SEALED]:
            secret = self._vault.get(self._turn.step_name(self._index, key))
            if secret is None:
                raise ConfigError(
                    f"ctx.once({key!r}) ran before, and its result had a secret in it, which "
                    "went with its process"
                )
            kept = secret[""]
        return codec.copy(kept)  # type: ignore[no-any-return]  # JSON of what `fn` gave

    def _step(self, fn: Callable[[], T]) -> T:
        outer, self._is_in_step = self._is_in_step, True
        try:
            return fn()
        finally:
            self._is_in_step = outer

    def _note(self, key: str, value: Any) -> None:
        failure: str | None = None
        try:
            codec.check_json(value, f"the result of ctx.once({key!r})")
            kept = codec.copy(value)
            if self.mask is not None and self.mask(kept) != kept:
                self._vault.put(self._turn.step_name(self._index, key), {"": kept})
                kept = {_SEALED: True}
        except WireFormatError as error:
            # It has run all the same, and must not run again.
            kept, failure = {_LOST: type(value).__name__}, str(error)
        self._once = {**self._once, key: kept}
        if not self._is_over:  # or it would be noted for another call
            self._turn.note_once(self._index, key, kept)
            self._tell_kept()
        if failure is not None:
            raise ConfigError(failure)

    def _tell_kept(self) -> None:
        try:
            self._kept()
        except StoreError as error:
            self.failure = error
            raise Unwind(self) from None

    def _request(
        self,
        kind: str,
        prompt: str,
        url: str | None,
        data: Mapping[str, JsonValue] | None,
        schema: Mapping[str, JsonValue] | None,
        expires_in: float | timedelta | None,
    ) -> Request:
        given: object = data
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"ctx.ask: data must be a JSON object, not {data!r}")
        shown = data if schema is None else {**(data or {}), "schema": schema}
        try:
            request = Request(kind, prompt, url, shown)
        except WireFormatError as error:
            raise ConfigError(f"ctx.ask: {error}") from None
        check_question(request)
        if expires_in is None:
            return request
        try:
            span = checks.span(expires_in, "expires_in")
            if span <= timedelta(0):
                raise ConfigError(f"expires_in must be more than 0, not {expires_in!r}")
            expires_at = self._clock.now() + span
        except OverflowError:
            raise ConfigError(f"expires_in is no time: {expires_in!r}; None is never") from None
        return attrs.evolve(request, expires_at=expires_at)

    def _masked(self, request: Request) -> Request:
        return request if self.mask is None else masked(request, self.mask)

    def _raise_if_over(self) -> None:
        if self._is_over:
            raise ConfigError(_AFTER)
        # The tool has caught what it may not catch.
        if self.verdict is not None or self.failure is not None:
            raise Unwind(self)

    def _end(self, verdict: ToolResult) -> Unwind:
        # Noted before it is raised: also a tool that catches everything is at an end.
        self.verdict = verdict
        return Unwind(self)


def _given(request: Request, answer: Answer, on_decline: str) -> Answer:
    if not answer.ok and on_decline == "raise":
        raise Declined(request, answer)
    return answer


def _changed(place: int, before: Request, now: Request) -> ToolResult:
    changed = f"is {now.kind!r} {now.prompt!r}"
    if (before.kind, before.prompt) == (now.kind, now.prompt):
        # What of that is not told: it is for the person, and may be long.
        changed = "has another schema, or shows other data,"
    return ToolResult.error(
        f"not executed further: question {place + 1} of the tool was {before.kind!r} "
        f"{before.prompt!r} and {changed} on the retry, so its answer "
        "fits neither; a tool must ask the same questions in the same order each time"
    )
