"""LlmClient: the loop for a user who has one endpoint and a few tools."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from toolnexus.cancel import CancelToken
from toolnexus.checkpoint import Checkpoint
from toolnexus.client import resuming
from toolnexus.client.conversation import Conversation, Conversations, ready_for_text
from toolnexus.client.in_process import API_KEY, BASE_URL, Generate
from toolnexus.client.options import ClientOptions, options_from
from toolnexus.client.preparing import check_history, check_tools
from toolnexus.client.running import (
    OnText,
    Runner,
    Steps,
    events_of,
    result_with,
)
from toolnexus.client.translation import TranslateRequest
from toolnexus.client.turn import Turn
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError, UnknownRequest
from toolnexus.events import Event
from toolnexus.messages import Message
from toolnexus.parts.part import Prompt
from toolnexus.results import RunResult
from toolnexus.stores.conversations import (
    ConversationStore,
    MemoryConversationStore,
    checked_id,
)
from toolnexus.stores.outputs import OutputStore, ReadOutput
from toolnexus.suspension import Answer, Request, check_answer
from toolnexus.toolspec import Tool

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from toolnexus.client.options import ClientOptionFields


_HISTORY_OR_ID: Final = "give history or id, not both: the store has what was said"


class LlmClient:
    """Runs a prompt against one endpoint: model call, tool calls, model call, until it is done.

    Thread-safe: any number of runs may go on at once. A context manager; `close` gives threads
    and connections back.
    """

    def __init__(
        self, options: ClientOptions | None = None, **given: Unpack[ClientOptionFields]
    ) -> None:
        """Make a client from options, or from the same names given as keywords.

        Raises:
            ConfigError: An option has the wrong type or value.
        """
        self.options: ClientOptions = options_from(ClientOptions, options, given)
        self._runner = Runner(self.options)
        store = self.options.conversation_store
        self._conversations = Conversations(
            MemoryConversationStore() if store is None else store,
            self._runner,
            self.options.clock,
        )

    @classmethod
    def in_process(cls, *, model: str, generate: Generate, **given: Any) -> LlmClient:
        """Make a client whose model is a function: no key, no URL, no HTTP.

        Args:
            model: The name it goes by.
            generate: Is given a request body in OpenAI's shape, and returns a mapping with
                `text`, `tool_calls` and `usage`; called once for each question.
            given: Further options of `ClientOptions`.
        """
        if not callable(generate):
            raise ConfigError(f"in_process needs a generate to call, not {generate!r}")
        given = {"base_url": BASE_URL, "api_key": API_KEY, "retries": 0, **given}
        return cls(model=model, generate=generate, **given)

    @property
    def conversation_store(self) -> ConversationStore:
        """Where `ask` keeps conversations."""
        return self._conversations.store

    @property
    def output_store(self) -> OutputStore:
        """Where the whole of long tool results is kept; `ReadOutput` reads from it."""
        return self._runner.limits.store

    def read_output(self) -> ReadOutput:
        """Return the tool with which a model reads what of a long result it was not shown."""
        return ReadOutput(self.output_store, self.options.max_result_chars)

    # -- one run ----------------------------------------------------------------------------

    def run(
        self,
        prompt: Prompt,
        *,
        tools: Iterable[Tool] = (),
        history: Sequence[Message] = (),
        supersede: bool = False,
        cancel: CancelToken | None = None,
    ) -> RunResult:
        """Run `prompt` to its end, to a question, or to a limit. Blocks.

        Args:
            prompt: What the user says: a text, or a list of texts and `Part`.
            tools: What the model may call.
            history: `messages` of an earlier result; it is not changed.
            supersede: Where that waits for an answer: settle the open calls as not executed.
            cancel: Ends the run from another thread, also in mid-request.

        Returns:
            `done` with the text, `pending` with the request and a checkpoint, or `incomplete`.

        Raises:
            LlmError: The model could not be asked. On this and on all that end the run,
                `checkpoint` is where it stands.
            RunTimeoutError: `timeout_ms` passed.
            Cancelled: `cancel` was thrown.
            ConversationParked: `history` waits for an answer; carries the open requests.
            ConfigError: Two tools of one name, an object that is no tool, or no API key.
        """
        steps = self._steps(prompt, tools, cancel, history=history, supersede=supersede)
        return result_with(steps)

    def stream(
        self,
        prompt: Prompt,
        *,
        tools: Iterable[Tool] = (),
        history: Sequence[Message] = (),
        id: str | None = None,  # noqa: A002 - the word that `ask` has for it
        supersede: bool = False,
        cancel: CancelToken | None = None,
    ) -> Generator[Event, None, None]:
        """Run `prompt` and yield what happens while it happens; the last event is `Done`.

        The run goes on while the caller asks for events, on the caller's thread. Closing the
        generator, or dropping it, aborts the request at once; a conversation stays as it was.

        Args:
            prompt: What the user says.
            tools: What the model may call.
            history: What was said before; not together with `id`.
            id: The conversation, as for `ask`. `Conversation.stream` can go on with an answer.
            supersede: As for `run` and `ask`.
            cancel: Ends the run from another thread, also in mid-request.

        Raises:
            LlmError: As `run`, while iterating; an error after the first text has it in
                `partial`, and nothing of a reply that broke off is executed.
        """
        steps = self._steps(
            prompt, tools, cancel, id=id, history=history, supersede=supersede, streams=True
        )
        return events_of(steps)

    def resume(
        self,
        checkpoint: Checkpoint | Mapping[str, object],
        answer: Answer | None = None,
        *,
        tools: Iterable[Tool] | None = None,
        on_text: OnText | None = None,
        cancel: CancelToken | None = None,
    ) -> RunResult:
        """Go on with a parked run, or with one that failed, in any process. Blocks.

        The halted call is executed with the answer (a decline executes nothing), then the run
        goes on; finished calls are not executed again. A checkpoint is a value: whoever goes
        on twice from the same one executes its open call twice, with the same idempotency
        key. Conversations with an id (`ask_with_answer`) take each answer once.

        Args:
            checkpoint: `RunResult.checkpoint`, an error's `checkpoint`, or their `to_dict()`.
            answer: For one of its open requests; None where nothing is asked.
            tools: The same as for the run; one that is gone is an error the model reads.
            on_text: Is given the text as it comes.
            cancel: Ends the run from another thread, also in mid-request.

        Returns:
            As `run`; `pending` again where other requests are open.

        Raises:
            UnknownRequest: No open request has the answer's id.
            NothingSuspended: No request is open.
            AlreadyAnswered: It was answered differently.
            RequestExpired: The answer came too late and is no decline.
            InvalidAnswer: It does not fit the request's schema, or the tool.
            WireFormatError: The checkpoint was written by a newer release, or is malformed.
        """
        checkpoint, streams = resuming.read_checkpoint(checkpoint), on_text is not None
        by_name = check_tools(resuming.tools_to_go_on_with(checkpoint, tools))
        if answer is not None:
            checkpoint = resuming.accept(
                checkpoint, answer, by_name, self.options.clock, self._runner.vault
            )
        turn = Turn.restore(checkpoint)
        return result_with(self._runner.steps(turn, by_name, cancel, streams=streams), on_text)

    def run_with_answer(
        self,
        tools: Iterable[Tool],
        history: Sequence[Message],
        pending: Request,
        answer: Answer,
        *,
        on_text: OnText | None = None,
        cancel: CancelToken | None = None,
    ) -> RunResult:
        """Go on with a halted run from its `messages` alone. See `resume`.

        Args:
            tools: The same as for the run.
            history: `RunResult.messages` of the halted run.
            pending: `RunResult.pending` of the halted run.
            answer: The answer to it.
            on_text: Is given the text as it comes.
            cancel: Ends the run from another thread, also in mid-request.

        Raises:
            UnknownRequest: The answer is to another request.
            ConfigError: The history is empty, or nothing in it is open.
        """
        check_answer(answer)
        checkpoint = resuming.rebuilt(history, pending)
        if answer.id != pending.id:
            raise UnknownRequest(answer.id, len(checkpoint.requests))
        return self.resume(checkpoint, answer, tools=tools, on_text=on_text, cancel=cancel)

    # -- conversations ----------------------------------------------------------------------

    def ask(
        self,
        prompt: Prompt,
        *,
        id: str | None = None,  # noqa: A002 - what every user of a chat calls it
        tools: Iterable[Tool] = (),
        on_text: OnText | None = None,
        supersede: bool = False,
        cancel: CancelToken | None = None,
    ) -> RunResult:
        """Say something in a conversation and return what comes of it. Blocks.

        Asks in one conversation queue, so none loses a turn. A run that raises saves nothing.

        Args:
            prompt: What the user says.
            id: The conversation in `conversation_store`; None for none, as `run`.
            tools: What the model may call.
            on_text: Is given the text as it comes.
            supersede: Where the conversation waits for an answer: settle the open calls as
                not executed, and go on with `prompt`.
            cancel: Ends the run from another thread, also while it queues.

        Raises:
            ConversationParked: It waits for an answer; carries the open requests.
            StoreError: The store could not read or write.
            LlmError: As `run`.
        """
        streams = on_text is not None
        steps = self._steps(prompt, tools, cancel, id=id, supersede=supersede, streams=streams)
        return result_with(steps, on_text)

    def ask_with_answer(
        self,
        tools: Iterable[Tool],
        id: str,  # noqa: A002 - as `ask` has it
        answer: Answer,
        *,
        on_text: OnText | None = None,
        cancel: CancelToken | None = None,
    ) -> RunResult:
        """Answer what a conversation waits for, and go on. Blocks.

        An answer is taken once: the same again executes nothing and returns how things stand.
        Where the run raises after the call was executed, what it did is kept, and the same
        answer goes on from there.

        Args:
            tools: The same as for `ask`.
            id: The conversation.
            answer: To one of its open requests.
            on_text: Is given the text as it comes.
            cancel: Ends the run from another thread.

        Raises:
            ResumeError: As `resume`.
        """
        steps = self._conversations.answer(
            checked_id(id), answer, check_tools(tools), cancel, streams=on_text is not None
        )
        return result_with(steps, on_text)

    def conversation(
        self,
        *,
        tools: Iterable[Tool] | None = None,
        history: Sequence[Message] = (),
        id: str | None = None,  # noqa: A002 - as `ask` has it
    ) -> Conversation:
        """Return a conversation that keeps what was said.

        Args:
            tools: What the model may call in it.
            history: What was said before; not together with `id`.
            id: One in `conversation_store`; None for one of its own, in memory.
        """
        by_name = None if tools is None else check_tools(tools)
        if id is not None:
            if history:
                raise ConfigError(_HISTORY_OR_ID)
            return Conversation(self._conversations, checked_id(id), by_name)
        store, own_id = MemoryConversationStore(), secrets.token_hex(8)
        if history:
            store.save(own_id, check_history(history))
        own = Conversations(store, self._runner, self.options.clock)
        return Conversation(own, own_id, by_name)

    # -- one request ------------------------------------------------------------------------

    def translate(
        self, request: TranslateRequest, cancel: CancelToken | None = None
    ) -> dict[str, JsonValue]:
        """Ask once in OpenAI's shapes, whatever the provider; return its reply in them. Blocks.

        Nothing is executed and nothing is kept.

        Args:
            request: What is asked.
            cancel: Ends it from another thread, also in mid-request.

        Returns:
            OpenAI's `chat.completion`: `choices[0].message`, `usage`, ...

        Raises:
            LlmError: The model could not be asked.
            RunTimeoutError: `timeout_ms` passed.
            Cancelled: `cancel` was thrown.
            ConfigError: No model, or a parameter that the provider cannot keep.
        """
        return self._runner.translate(request, cancel)

    # -- what it has done, and its end ------------------------------------------------------

    def metrics(self) -> str:
        """Return what was done so far as Prometheus text."""
        return self._runner.counters.text()

    def close(self) -> None:
        """End the threads and connections. A run in progress fails at its next request."""
        self._runner.close()

    def __enter__(self) -> LlmClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _steps(
        self,
        prompt: Prompt,
        tools: Iterable[Tool],
        cancel: CancelToken | None,
        *,
        id: str | None = None,  # noqa: A002 - as `ask` has it
        history: Sequence[Message] = (),
        supersede: bool = False,
        streams: bool = False,
    ) -> Steps:
        """Return the run of `prompt`, with its input checked; nothing of it has begun."""
        by_name = check_tools(tools)
        if id is not None and history:
            raise ConfigError(_HISTORY_OR_ID)
        content = self._runner.content(prompt)
        if id is not None:
            return self._conversations.ask(
                checked_id(id), content, by_name, cancel, supersede=supersede, streams=streams
            )
        said = ready_for_text(check_history(history), supersede=supersede)
        turn = self._runner.fresh(said, content)
        return self._runner.steps(turn, by_name, cancel, streams=streams)
