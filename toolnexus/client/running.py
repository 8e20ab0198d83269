"""Runner: one run outside a runtime, from its first message to its result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus import codec, process
from toolnexus.cancel import CancelToken
from toolnexus.checkpoint import Checkpoint
from toolnexus.client.calls import give_up_open_calls
from toolnexus.client.hooks import HookChain
from toolnexus.client.limits import OutputLimits
from toolnexus.client.loop import Finished, Kit, Outcome, OverLimit, drive, run_loop
from toolnexus.client.metrics import Meter
from toolnexus.client.options import ClientOptions, WaitFor
from toolnexus.client.preparing import model_for, opening
from toolnexus.client.prometheus import Counters
from toolnexus.client.tracing import end_failed, end_run, guarded, run_attributes
from toolnexus.client.translation import TranslateRequest, Translator
from toolnexus.client.turn import Turn, stalled_checkpoint
from toolnexus.codec import JsonValue
from toolnexus.deadlines import Deadlines
from toolnexus.errors import Cancelled, ConfigError, RunTimeoutError
from toolnexus.events import Done, Event, UsageUpdate
from toolnexus.messages import Message
from toolnexus.parts.part import Content, Prompt
from toolnexus.process import ProcessBound
from toolnexus.results import RunResult
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import Tool, ToolResult
from toolnexus.transport import Transport
from toolnexus.vault import Vault
from toolnexus.wire.base import ModelReply
from toolnexus.wire.content import text_of
from toolnexus.wire.parts import prompt_content
from toolnexus.workers import WorkerPool

if TYPE_CHECKING:
    from toolnexus.messages import Status

Steps = Generator[Event, None, RunResult]
"""What happens in a run; its return value is the result. Closing it stops the run at once."""

OnText = Callable[[str], object]
"""Is given each piece of the model's text as it comes; what it raises ends the run."""


@attrs.frozen
class RunEnd:
    """How a run ended, for metrics; `error` is None where nothing failed."""

    status: Status
    error: str | None = None


class Runner(ProcessBound):
    """Runs turns with the threads, connections and counters of one client. Thread-safe."""

    def __init__(self, options: ClientOptions) -> None:
        self.counters = Counters()
        self.limits = OutputLimits(options)
        self.vault = Vault()
        self._options = options
        self._hooks = HookChain(options.hooks)
        self._tracing = guarded(options.tracing)
        self._transport = Transport(options.session, options.max_workers)
        self._deadlines = Deadlines(options.clock)
        self._model = model_for(options, self._transport)
        self._translator = Translator(options, self._transport, self._hooks, self.counters)
        self._pool = WorkerPool(options.max_workers, "toolnexus-client")
        process.watch(self)

    @property
    def transport(self) -> Transport:
        """What requests go through."""
        return self._transport

    def close(self) -> None:
        """End the threads and connections."""
        process.unwatch(self)
        self._pool.close(timeout=1.0)
        # A run in progress is as bound by its deadline as before.
        self._deadlines.close(is_due_kept=True)
        self._transport.close()

    def after_fork(self) -> None:
        """Begin without the parent process's threads and connections."""
        self.counters.after_fork()
        self.vault.after_fork()
        self._pool.after_fork()
        self._transport.after_fork()
        self._deadlines.after_fork()

    def at_exit(self) -> None:
        """Let idle workers end before the interpreter does; they are daemons."""
        self._pool.close(timeout=0.2)

    def content(self, prompt: Prompt) -> Content:
        """Return what a prompt is stored as.

        Raises:
            ConfigError: It is no prompt, or has a part that is too large or not taken; or no
                model is named.
        """
        options = self._options
        if not options.model:
            raise ConfigError("no model: give LlmClient(model=...)")
        return prompt_content(prompt, style=options.style, max_bytes=options.max_part_bytes)

    def fresh(self, history: Sequence[Message], content: Content) -> Turn:
        """Return the turn that a user's message begins."""
        opened = opening(self._options.style, self._options.system, history, content)
        return Turn([*history, *opened], len(history))

    def steps(
        self,
        turn: Turn,
        tools: Mapping[str, Tool],
        cancel: CancelToken | None = None,
        *,
        streams: bool = False,
        conversation: object = None,
    ) -> Steps:
        """Go on with `turn` to its end, to a question, or to a limit.

        Args:
            turn: Fresh or restored.
            tools: By name.
            cancel: Ends the run from another thread.
            streams: Whether text is told as it comes.
            conversation: Key of the conversation that the run holds; None for none.

        Raises:
            LlmError: The model could not be asked.
            RunTimeoutError: `timeout_ms` passed.
            Cancelled: `cancel` was thrown.
            Exception: What a hook or the caller of an event raised. As on the errors above,
                `checkpoint` is where the run stands.
        """
        began = self._options.clock.monotonic()
        kit = self._kit(tools, streams=streams, conversation=conversation)
        end = RunEnd("error", "ended with its thread")
        kept = {index for index, call in enumerate(turn.calls) if call.status == "open"}
        try:
            with self._stopping(kit.cancel, cancel, began):
                result = result_of(turn, (yield from run_loop(turn, kit)))
            end = RunEnd(result.status)
            return result
        except BaseException as failure:
            raised = _as_raised(failure, kit.cancel)
            end = _failed_end(raised)
            end_failed(kit.span, raised)
            kit.cancel.cancel("interrupted")
            if isinstance(raised, Exception):
                _give_checkpoint(raised, stalled_checkpoint(turn, str(raised)))
            if raised is failure:
                raise
            raise raised from None
        finally:
            if end.status != "pending":
                give_up_open_calls(turn, tools, kept)
            end_run(kit.span, end.status)
            self._meter_run(kit, turn, end, began)

    def translate(
        self, request: TranslateRequest, cancel: CancelToken | None = None
    ) -> dict[str, JsonValue]:
        """Ask once and return OpenAI's reply. See `Translator.translate`.

        Raises:
            RunTimeoutError: `timeout_ms` passed.
        """
        stop = CancelToken()
        try:
            with self._stopping(stop, cancel, self._options.clock.monotonic()):
                return self._translator.translate(request, stop)
        except Cancelled as failure:
            raise _as_raised(failure, stop) from None

    def _kit(self, tools: Mapping[str, Tool], *, streams: bool, conversation: object) -> Kit:
        options = self._options
        return Kit(
            model=self._model,
            model_name=options.model,
            max_tokens=options.max_tokens,
            system=options.system,
            tools=tools,
            hooks=self._hooks,
            limits=self.limits,
            meter=Meter(self.counters.record, options.on_metric),
            pool=self._pool,
            clock=options.clock,
            cancel=CancelToken(),
            max_turns=options.max_turns,
            host=_BareHost(options.wait_for, streams=streams),
            vault=self.vault,
            approval_policy=options.approval_policy,
            span=self._tracing.start("", run_attributes(options.model)),
            conversation=conversation,
        )

    def _meter_run(self, kit: Kit, turn: Turn, end: RunEnd, began: float) -> None:
        kit.meter.emit(
            "run",
            (kit.clock.monotonic() - began) * 1000,
            model=kit.model_name,
            status=end.status,
            usage=turn.usage,
            error=end.error,
        )

    @contextmanager
    def _stopping(
        self, stop: CancelToken, cancel: CancelToken | None, began: float
    ) -> Iterator[None]:
        """Let the caller's token and the deadline throw `stop` meanwhile."""
        options = self._options
        with ExitStack() as undo:
            if cancel is not None:
                undo.callback(
                    cancel.on_cancel(lambda: stop.cancel(cancel.reason or "run cancelled"))
                )
            if options.timeout_ms is not None:
                instant = began + options.timeout_ms / 1000
                text = f"run timeout after {options.timeout_ms}ms"
                stop.set_deadline(options.clock, instant, text)
                undo.callback(self._deadlines.call_at(instant, stop.expire))
            yield


def result_of(turn: Turn, outcome: Outcome) -> RunResult:
    """Return what a run gave."""
    checkpoint = turn.checkpoint()
    is_parked = bool(checkpoint.calls)
    common: dict[str, Any] = {
        # Parked, a copy: what a caller does to it must not reach the checkpoint.
        "messages": codec.copy(checkpoint.to_messages())
        if is_parked
        else list(checkpoint.messages),
        "turns": turn.turns,
        "usage": turn.usage,
        "tool_calls": turn.tool_calls,
    }
    if isinstance(outcome, Finished):
        return RunResult(text=outcome.text, **common)
    if isinstance(outcome, OverLimit):
        text = f"hit {outcome.limit} without a final answer"
        return RunResult(text=text, status="incomplete", limit=outcome.limit, **common)
    pending = checkpoint.pending
    assert pending is not None  # noqa: S101 - Parked says so
    return RunResult(
        text=pending.prompt, status="pending", pending=pending, checkpoint=checkpoint, **common
    )


def standing_result(messages: Sequence[Message]) -> RunResult:
    """Return what a transcript says of its last run; counts and a limit are not kept there."""
    halted = Checkpoint.from_messages(messages)
    pending = None if halted is None else halted.pending
    if halted is None or pending is None:
        last = messages[-1] if messages else {}
        is_final = last.get("role") == "assistant" and not last.get("tool_calls")
        return RunResult(
            text=text_of(last.get("content")) if is_final else "",
            status="done" if is_final else "incomplete",
            messages=list(messages),
        )
    return RunResult(
        text=pending.prompt,
        status="pending",
        messages=list(messages),
        turns=halted.turns,
        usage=halted.usage,
        tool_calls=halted.tool_calls,
        pending=pending,
        checkpoint=halted,
    )


def result_with(steps: Steps, on_text: OnText | None = None) -> RunResult:
    """Run to the end and return the result; each piece of text goes to `on_text`."""
    if on_text is None:
        return drive(steps)
    tell = on_text
    return drive(steps, lambda event: tell(event.delta) if event.kind == "text" else None)


def events_of(steps: Steps) -> Generator[Event, None, None]:
    """Yield what happens and, last, the result."""
    result = yield from steps
    if result.status == "done":
        yield UsageUpdate(result.usage)
    yield Done(result)


def _give_checkpoint(error: Exception, checkpoint: Checkpoint) -> None:
    """Let an error, also a hook's own, say where the run stands: what was done is not lost."""
    with suppress(AttributeError, TypeError):  # an exception with slots
        setattr(error, "checkpoint", checkpoint)  # noqa: B010 - of any class


def _failed_end(error: BaseException) -> RunEnd:
    if isinstance(error, (Cancelled, GeneratorExit)):
        return RunEnd("interrupted")
    return RunEnd("error", str(error) if isinstance(error, Exception) else None)


def _as_raised(failure: BaseException, stop: CancelToken) -> BaseException:
    """Return what the caller is told: a run that was stopped by its deadline is late."""
    if isinstance(failure, Cancelled) and stop.is_late:
        late = RunTimeoutError(str(failure))
        late.partial = failure.partial
        return late
    return failure


class _BareHost:
    """A run outside a runtime: no budget, no tree, at most a `wait_for`."""

    handle_id = None

    def __init__(self, wait_for: WaitFor | None, *, streams: bool) -> None:
        self._wait_for = wait_for
        self._streams = streams

    def wants_text(self) -> bool:
        return self._streams

    def due_calls(self, turn: Turn, tools: Mapping[str, Tool]) -> list[int]:  # noqa: ARG002
        return [
            index
            for index, call in enumerate(turn.calls)
            if call.status == "ready" or (call.status == "open" and call.answer is not None)
        ]

    def limit_before_request(self, turn: Turn) -> str | None:  # noqa: ARG002
        return None

    def count_reply(self, reply: ModelReply) -> None:
        pass

    def reserve_call(self, turn: Turn, index: int) -> str | None:  # noqa: ARG002
        return None

    def surface(self, request: Request) -> Request:
        return request

    def is_granted(self, tool: str, args: Mapping[str, JsonValue]) -> bool:  # noqa: ARG002
        return False

    def note_expired(self, request: Request) -> None:
        pass

    def note_stopped(self, request: Request) -> None:
        pass

    def ask_inline(self, request: Request) -> WaitFor | None:  # noqa: ARG002
        return self._wait_for

    def answered_inline(
        self,
        turn: Turn,
        index: int,
        request: Request,  # noqa: ARG002
        answer: Answer,
    ) -> None:
        turn.answer(index, answer)

    def entering(self, turn: Turn, index: int) -> None:
        pass

    def kept(self, turn: Turn, *, is_followed: bool = False) -> None:
        pass

    def delegate_for(
        self,
        turn: Turn,  # noqa: ARG002
        index: int,  # noqa: ARG002
    ) -> Callable[[Any, str], ToolResult] | None:
        return None
