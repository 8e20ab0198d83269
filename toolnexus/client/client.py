"""LlmClient: the loop for a user who has one endpoint and a few tools."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus import process
from toolnexus.cancel import CancelToken
from toolnexus.client.calls import give_up_open_calls
from toolnexus.client.hooks import HookChain
from toolnexus.client.loop import Finished, Kit, Outcome, OverLimit, run_loop
from toolnexus.client.metrics import Meter, MetricEvent
from toolnexus.client.model import Model
from toolnexus.client.options import ClientOptions, WaitFor
from toolnexus.client.turn import Turn
from toolnexus.deadlines import Deadlines
from toolnexus.errors import Cancelled, ConfigError, RunTimeoutError
from toolnexus.messages import Message
from toolnexus.results import RunResult
from toolnexus.suspension import Answer, Request
from toolnexus.toolspec import Tool, ToolResult, require_tool
from toolnexus.transport import Transport
from toolnexus.wire.base import ModelReply
from toolnexus.workers import WorkerPool

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from toolnexus.client.options import ClientOptionFields


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
        self.options = options_from(ClientOptions, options, given)
        self._hooks = HookChain(self.options.hooks)
        self._transport = Transport(self.options.session, self.options.max_workers)
        self._deadlines = Deadlines(self.options.clock)
        self._model = Model(self.options, self._transport)
        self._pool = WorkerPool(self.options.max_workers, "toolnexus-client")
        self._lifetime = _Lifetime(self._pool, self._transport, self._deadlines)
        process.watch(self._lifetime)

    def run(
        self,
        prompt: str,
        *,
        tools: Iterable[Tool] = (),
        history: Sequence[Message] = (),
        cancel: CancelToken | None = None,
    ) -> RunResult:
        """Run `prompt` to its end, to a question, or to a limit. Blocks.

        Args:
            prompt: What the user says.
            tools: What the model may call.
            history: `messages` of an earlier result; it is not changed.
            cancel: Ends the run from another thread, also in mid-request.

        Returns:
            `done` with the text, `pending` with the request and a checkpoint, or `incomplete`.

        Raises:
            LlmError: The model could not be asked.
            RunTimeoutError: `timeout_ms` passed.
            Cancelled: `cancel` was thrown.
            ConfigError: Two tools of one name, an object that is no tool, or no API key.
        """
        if not isinstance(prompt, str):
            raise ConfigError(f"the prompt must be a str, not {type(prompt).__name__}")
        if not isinstance(history, Sequence):
            raise ConfigError(
                f"history must be a list of messages, such as an earlier result's `messages`, "
                f"not {type(history).__name__}"
            )
        by_name = index_tools(tools)
        for tool in by_name.values():
            if getattr(tool, "requires_runtime", False):
                raise ConfigError(
                    f"tool {tool.name!r} is an agent and needs a runtime: "
                    "as_tool(base_url=..., ...) gives it one of its own"
                )
        if not self.options.model:
            raise ConfigError("no model: give LlmClient(model=...)")
        messages = list(history)
        turn = Turn([*messages, *self._opening(messages, prompt)], len(messages))
        return self._run(turn, by_name, cancel or CancelToken())

    def close(self) -> None:
        """End the threads and connections. A run in progress fails at its next request."""
        process.unwatch(self._lifetime)
        self._pool.close(timeout=1.0)
        self._deadlines.close()
        self._transport.close()

    def __enter__(self) -> LlmClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _opening(self, history: Sequence[Message], prompt: str) -> list[Message]:
        return opening(self.options.style, self.options.system_prompt, history, prompt)

    def _run(self, turn: Turn, tools: dict[str, Tool], cancel: CancelToken) -> RunResult:
        options, clock = self.options, self.options.clock
        began = clock.monotonic()
        stop = CancelToken()
        forget = [cancel.on_cancel(lambda: stop.cancel(cancel.reason or "run cancelled"))]
        if options.timeout_ms is not None:
            instant = began + options.timeout_ms / 1000
            stop.set_deadline(clock, instant, f"run timeout after {options.timeout_ms}ms")
            forget.append(self._deadlines.call_at(instant, stop.expire))
        meter = Meter(options.on_metric)
        kit = Kit(
            model=self._model,
            model_name=options.model,
            max_tokens=options.max_tokens,
            system=options.system_prompt,
            tools=tools,
            hooks=self._hooks,
            meter=meter,
            pool=self._pool,
            clock=clock,
            cancel=stop,
            max_turns=options.max_turns,
            host=_BareHost(options.wait_for),
        )
        status, error = "error", None
        try:
            result = _result(turn, run_loop(turn, kit))
            status = result.status
            return result
        except Cancelled as cancelled:
            error = str(cancelled)
            if stop.is_late:
                raise RunTimeoutError(error) from None
            status = "interrupted"
            raise
        except Exception as failure:
            error = str(failure)
            raise
        finally:
            for undo in forget:
                undo()
            if status != "pending":
                give_up_open_calls(turn, kit)
            meter.emit(
                lambda: MetricEvent(
                    kind="run",
                    ms=(clock.monotonic() - began) * 1000,
                    model=options.model,
                    status=status,
                    usage=turn.usage,
                    error=error,
                )
            )


class _Lifetime:
    """What a client does when the process forks or ends."""

    def __init__(self, pool: WorkerPool, transport: Transport, deadlines: Deadlines) -> None:
        self._pool = pool
        self._transport = transport
        self._deadlines = deadlines

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork(self) -> None:
        self._pool.after_fork()
        self._transport.after_fork()
        self._deadlines.after_fork()

    def at_exit(self) -> None:
        # Workers are daemons; this lets idle ones end before the interpreter does.
        self._pool.close(timeout=0.1)


class _BareHost:
    """A run outside a runtime: no budget, no tree, at most a `wait_for`."""

    handle_id = None

    def __init__(self, wait_for: WaitFor | None) -> None:
        self._wait_for = wait_for

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

    def reserve_call(self) -> str | None:
        return None

    def surface(self, request: Request) -> Request:
        return request

    def ask_inline(self, request: Request) -> WaitFor | None:  # noqa: ARG002
        return self._wait_for

    def answered_inline(self, request: Request, answer: Answer) -> None:
        pass

    def delegate_for(
        self,
        turn: Turn,  # noqa: ARG002
        index: int,  # noqa: ARG002
    ) -> Callable[[Any, str], ToolResult] | None:
        return None


def options_from(cls: type[Any], options: Any, given: Mapping[str, object]) -> Any:
    """Return `options`, or a new `cls` of the keywords.

    Raises:
        ConfigError: Both were given, a keyword is unknown, or `options` is of another class.
    """
    name = cls.__name__
    if options is not None and given:
        raise ConfigError(f"give {name} or keywords, not both")
    if options is not None:
        if not isinstance(options, cls):
            raise ConfigError(f"options must be {name}, not {type(options).__name__}")
        return options
    known = [field.name for field in attrs.fields(cls)]
    for word in given:
        if word not in known:
            close = difflib.get_close_matches(word, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise ConfigError(f"{name} has no option {word!r}; {hint}")
    return cls(**given)


def opening(style: str, system: str, history: Sequence[Message], prompt: str) -> list[Message]:
    """Return the messages that begin a turn.

    In the OpenAI style the system prompt is the transcript's first message; in the Anthropic
    style it travels beside it, every time.
    """
    user: Message = {"role": "user", "content": prompt}
    if system and not history and style == "openai":
        return [{"role": "system", "content": system}, user]
    return [user]


def index_tools(tools: object) -> dict[str, Tool]:
    """Return the tools by name.

    Raises:
        ConfigError: One is no tool, or two share a name.
    """
    if not isinstance(tools, Iterable) or isinstance(tools, (str, bytes)):
        raise ConfigError(f"tools must be a list of tools, not {tools!r}")
    by_name: dict[str, Tool] = {}
    for one in tools:
        checked = require_tool(one)
        if checked.name in by_name:
            raise ConfigError(f"two tools are named {checked.name!r}; rename one")
        by_name[checked.name] = checked
    return by_name


def _result(turn: Turn, outcome: Outcome) -> RunResult:
    common: dict[str, Any] = {
        "messages": turn.transcript(),
        "turns": turn.turns,
        "usage": turn.usage,
        "tool_calls": turn.tool_calls,
    }
    if isinstance(outcome, Finished):
        return RunResult(text=outcome.text, **common)
    if isinstance(outcome, OverLimit):
        text = f"hit {outcome.limit} without a final answer"
        return RunResult(text=text, status="incomplete", limit=outcome.limit, **common)
    checkpoint = turn.checkpoint()
    pending = checkpoint.pending
    assert pending is not None  # noqa: S101 - Parked says so
    return RunResult(
        text=pending.prompt, status="pending", pending=pending, checkpoint=checkpoint, **common
    )
