"""Conversations by id: what was said before, one run at a time, what a parked one waits on."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager

from toolnexus.cancel import CancelToken
from toolnexus.checkpoint import Checkpoint
from toolnexus.client.calls import give_up_open_calls
from toolnexus.client.locks import locks_of
from toolnexus.client.resuming import (
    accept,
    begun,
    superseded,
    tools_to_go_on_with,
    was_answered,
)
from toolnexus.client.running import (
    OnText,
    Runner,
    Steps,
    events_of,
    result_with,
    standing_result,
)
from toolnexus.client.turn import Turn, stalled_checkpoint
from toolnexus.clock import Clock
from toolnexus.errors import (
    ConfigError,
    ConversationParked,
    NothingSuspended,
    StoreError,
    ToolnexusError,
)
from toolnexus.events import Event
from toolnexus.failures import failure_text
from toolnexus.messages import Message
from toolnexus.parts.part import Content, Prompt
from toolnexus.results import RunResult
from toolnexus.stores.conversations import ConversationStore, lock_of
from toolnexus.suspension import Answer, Request, check_answer
from toolnexus.toolspec import Tool

logger = logging.getLogger(__name__)


class Conversations:
    """One store's conversations, each open to one run at a time. Thread-safe."""

    def __init__(self, store: ConversationStore, runner: Runner, clock: Clock) -> None:
        self.store = store
        self._runner = runner
        self._clock = clock
        self._locks = locks_of(store)

    def content(self, prompt: Prompt) -> Content:
        """Return what a prompt is stored as; see `Runner.content`."""
        return self._runner.content(prompt)

    def ask(
        self,
        conversation_id: str,
        content: Content,
        tools: Mapping[str, Tool],
        cancel: CancelToken | None = None,
        *,
        supersede: bool = False,
        streams: bool = False,
    ) -> Steps:
        """Say something on top of what was said; a run that raises saves nothing.

        Raises:
            ConversationParked: A call waits for an answer, and `supersede` does not drop it.
        """
        with self._hold(conversation_id, cancel) as (messages, key):
            history = ready_for_text(messages, supersede=supersede)
            turn = self._runner.fresh(history, content)
            steps = self._runner.steps(turn, tools, cancel, streams=streams, conversation=key)
            result = yield from self._on_any_thread(conversation_id, steps)
            self._save(conversation_id, result)
            dropped = Checkpoint.from_messages(messages)
            if dropped is not None:
                give_up_open_calls(Turn.restore(dropped), tools)
            return result

    def answer(
        self,
        conversation_id: str,
        answer: Answer,
        tools: Mapping[str, Tool] | None,
        cancel: CancelToken | None = None,
        *,
        streams: bool = False,
    ) -> Steps:
        """Go on with the parked run; one that raises keeps what it did for the same answer."""
        with self._hold(conversation_id, cancel) as (messages, key):
            halted = Checkpoint.from_messages(messages)
            check_answer(answer)
            if halted is None:
                if was_answered(messages, answer):
                    return standing_result(messages)
                raise NothingSuspended(answer.id)
            if was_answered(messages, answer) and halted.is_waiting:
                return standing_result(messages)
            accepted = accept(halted, answer, tools or {}, self._clock, self._runner.vault)
            tools = tools_to_go_on_with(halted, tools) or {}
            turn = Turn.restore(accepted)
            # Before anything is executed: whoever finds this later, for this process has died
            # or could not save, must not execute it again.
            intent = begun(accepted, tools)
            if intent is not None:
                self._keep(conversation_id, intent.to_messages())
            try:
                steps = self._runner.steps(
                    turn, tools, cancel, streams=streams, conversation=key
                )
                result = yield from self._on_any_thread(conversation_id, steps)
            except BaseException:
                # The answer is consumed, and its call must not be executed again.
                left = stalled_checkpoint(turn, "the run failed")
                try:
                    self.store.save(conversation_id, left.to_messages())
                except Exception:
                    logger.exception("%s: what was done could not be saved", conversation_id)
                raise
            self._save(conversation_id, result)
            return result

    def reset(self, conversation_id: str) -> None:
        """Forget what was said, once the run that is under way has ended."""
        with self._hold(conversation_id, None):
            self.store.save(conversation_id, [])

    @contextmanager
    def _hold(
        self, conversation_id: str, cancel: CancelToken | None
    ) -> Iterator[tuple[list[Message], object]]:
        """Keep other runs out, of this process and of others that use the store.

        Yields what was said so far, and what tells the conversation from all others.
        """
        cancel, clock = cancel or CancelToken(), self._clock
        with (
            self._locks.hold(conversation_id, cancel, clock),
            lock_of(self.store, conversation_id, cancel, clock),
        ):
            yield self.messages_of(conversation_id), self._locks.key(conversation_id)

    def messages_of(self, conversation_id: str) -> list[Message]:
        """Return what was said so far.

        Raises:
            StoreError: The store could not read, or gave something else.
        """
        try:
            messages: object = self.store.get(conversation_id)
        except ToolnexusError:
            raise
        except Exception as error:
            raise StoreError(
                f"conversation {conversation_id!r}: {failure_text(error)}"
            ) from error
        if isinstance(messages, (list, tuple)) and all(
            isinstance(one, dict) for one in messages
        ):
            return list(messages)
        raise StoreError(
            f"conversation {conversation_id!r}: get of the store must give a list of messages, "
            f"[] for an id that is not known, not {type(messages).__name__}"
            + (" of something else" if isinstance(messages, (list, tuple)) else "")
        )

    def _on_any_thread(self, conversation_id: str, steps: Steps) -> Steps:
        """Go through `steps`, each on whatever thread asks for it."""
        try:
            while True:
                yield next(steps)
                self._locks.go_on_here(conversation_id)
        except StopIteration as end:
            result: RunResult = end.value
            return result
        finally:
            steps.close()

    def _save(self, conversation_id: str, result: RunResult) -> None:
        try:
            self._keep(conversation_id, list(result.messages))
        except StoreError as error:
            error.result = result  # or it would be lost
            raise

    def _keep(self, conversation_id: str, messages: list[Message]) -> None:
        try:
            self.store.save(conversation_id, messages)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(
                f"conversation {conversation_id!r}: {failure_text(error)}"
            ) from error


def ready_for_text(messages: list[Message], *, supersede: bool) -> list[Message]:
    """Return a transcript to which the user may add something.

    Raises:
        ConversationParked: A call waits for an answer, and `supersede` does not say to drop it.
    """
    parked = Checkpoint.from_messages(messages)
    if parked is None:
        return messages
    if parked.requests and not supersede:
        raise ConversationParked(parked.requests)
    return superseded(parked)


class Conversation:
    """What was said between one user and the model. Made by `LlmClient.conversation`.

    Thread-safe: sends from several threads queue.
    """

    def __init__(
        self,
        conversations: Conversations,
        conversation_id: str,
        tools: Mapping[str, Tool] | None,
    ) -> None:
        self.id = conversation_id
        self._conversations = conversations
        self._tools = tools

    @property
    def messages(self) -> list[Message]:
        """What was said so far, as a copy; also while a run is under way."""
        return self._conversations.messages_of(self.id)

    @property
    def pending(self) -> Request | None:
        """The first open request in call order; None where nothing is asked."""
        parked = Checkpoint.from_messages(self.messages)
        return None if parked is None else parked.pending

    def send(
        self,
        prompt: Prompt,
        *,
        on_text: OnText | None = None,
        supersede: bool = False,
        cancel: CancelToken | None = None,
    ) -> RunResult:
        """Say something and return what comes of it. See `LlmClient.ask`."""
        return result_with(
            self._steps(prompt, cancel, supersede=supersede, streams=on_text is not None),
            on_text,
        )

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        answer: Answer | None = None,
        supersede: bool = False,
        cancel: CancelToken | None = None,
    ) -> Generator[Event, None, None]:
        """Say or answer something, and yield what happens. See `LlmClient.stream`."""
        if prompt is not None and answer is None:
            steps = self._steps(prompt, cancel, supersede=supersede, streams=True)
        elif prompt is None and answer is not None:
            steps = self._conversations.answer(
                self.id, answer, self._tools, cancel, streams=True
            )
        else:
            raise ConfigError("give stream a prompt or an answer")
        return events_of(steps)

    def answer(
        self,
        answer: Answer,
        *,
        on_text: OnText | None = None,
        cancel: CancelToken | None = None,
    ) -> RunResult:
        """Answer what is asked and go on. See `LlmClient.ask_with_answer`."""
        steps = self._conversations.answer(
            self.id, answer, self._tools, cancel, streams=on_text is not None
        )
        return result_with(steps, on_text)

    def reset(self) -> None:
        """Forget what was said, once the run that is under way has ended."""
        self._conversations.reset(self.id)

    def __repr__(self) -> str:
        return f"<Conversation {self.id}>"

    def _steps(
        self, prompt: Prompt, cancel: CancelToken | None, *, supersede: bool, streams: bool
    ) -> Steps:
        return self._conversations.ask(
            self.id,
            self._conversations.content(prompt),
            self._tools or {},
            cancel,
            supersede=supersede,
            streams=streams,
        )
