"""InProcessModel: a model that is a function of this process. No key, no URL, no HTTP."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, TypeAlias

from toolnexus import codec
from toolnexus.client.asking import Gate, ObservedCall, OpenGate, Terms
from toolnexus.client.endpoint import shaped
from toolnexus.client.options import ClientOptions
from toolnexus.codec import JsonValue
from toolnexus.errors import Cancelled, ConfigError, LlmError
from toolnexus.events import TextDelta
from toolnexus.failures import failure_text
from toolnexus.wire import openai
from toolnexus.wire.base import ModelReply, ModelRequest

Generate: TypeAlias = Callable[[Mapping[str, JsonValue]], Mapping[str, JsonValue]]
"""Is given a request body in OpenAI's shape, and returns `text`, `tool_calls`, `usage`.

A call is `{"name", "arguments", "id"}`: `arguments` are an object or JSON text, `id` may be
left out. `usage` is `{"prompt_tokens", "completion_tokens", "total_tokens"}`, all optional. A
whole OpenAI reply (with `choices`) is taken as well.

Nothing can end it from outside: a run that is stopped meanwhile ends when it returns, and its
reply is dropped.
"""

BASE_URL: Final = "http://in-process.invalid/v1"
API_KEY: Final = "in-process"


class InProcessModel:
    """Asks a function. Thread-safe as far as the function is."""

    def __init__(self, options: ClientOptions, gate: Gate | None = None) -> None:
        if options.generate is None:
            raise ConfigError("an in-process model needs a generate to call")
        self._generate = options.generate
        self._options = options
        self._gate = gate or OpenGate()

    def origin(self, model: str) -> str:
        """Return `"openai in-process.invalid <model>"`."""
        return f"openai in-process.invalid {model}"

    def ask(self, request: ModelRequest, terms: Terms) -> ModelReply:
        """Call the function once; what it raises is an `LlmError` and is not tried again."""
        with ObservedCall(request, terms, self._options.clock, "in_process") as watch:
            terms.cancel.raise_if_cancelled()
            body = {**openai.request_body(request), **request.params}
            body = codec.copy(shaped(body, self._options))
            with self._gate.hold(terms.cancel):
                terms.raise_if_refused()
                given = self._call(body, terms)
            terms.cancel.raise_if_cancelled()
            reply = _reply_of(given, self.origin(request.model))
            watch.answered(reply)
            return reply

    def stream(
        self,
        request: ModelRequest,  # noqa: ARG002
        terms: Terms,  # noqa: ARG002
    ) -> Generator[TextDelta, None, ModelReply]:
        """Refuse; no metric event, for nothing is asked.

        Raises:
            LlmError: Always.
        """
        raise LlmError(
            "the in-process model does not support streaming: call run, or ask without on_text"
        )
        yield TextDelta("")  # a generator, as the protocol has it

    def _call(self, body: dict[str, Any], terms: Terms) -> dict[str, Any]:
        try:
            given = self._generate(body)
        except Exception as error:
            if isinstance(error, Cancelled) and terms.cancel.is_cancelled:
                raise
            raise LlmError(f"in-process model failed: {failure_text(error)}") from error
        if not isinstance(given, Mapping):
            raise LlmError(
                f"generate must return a mapping with text and tool_calls, "
                f"not {type(given).__name__}"
            )
        try:
            # What is kept must be JSON, and nobody else's to change.
            plain: dict[str, Any] = codec.loads(codec.encode(given))
        except (TypeError, ValueError, RecursionError) as error:
            raise LlmError(f"generate returned what is not JSON: {error}") from None
        return plain


def _reply_of(given: dict[str, Any], origin: str) -> ModelReply:
    try:
        return openai.read_reply(_payload(given), origin)
    except LlmError as error:
        # There was no HTTP, so no status of it either.
        said = error.message.removeprefix("LLM 200: ")
        raise LlmError(f"generate gave no reply: {said}") from None


def _payload(given: dict[str, Any]) -> dict[str, Any]:
    """Return what was generated as OpenAI's reply."""
    if "choices" in given:
        return given
    if "text" not in given and "tool_calls" not in given:
        raise LlmError(f"neither text nor tool_calls among {', '.join(given) or 'no keys'}")
    text, calls = given.get("text"), given.get("tool_calls") or []
    if not isinstance(text, (str, list, type(None))):
        raise LlmError(f"text must be a str, not {type(text).__name__}")
    if not isinstance(calls, list):
        raise LlmError(f"tool_calls must be a list, not {type(calls).__name__}")
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [_call_of(index, call) for index, call in enumerate(calls)]
    return {
        "choices": [{"message": message, "finish_reason": given.get("finish_reason")}],
        "usage": given.get("usage"),
    }


def _call_of(index: int, call: object) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise LlmError(f"a tool call must be a mapping with a name, not {call!r:.80}")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = codec.dumps({} if arguments is None else arguments)
    return {
        "id": call.get("id") or f"call_{index}",
        "type": "function",
        "function": {"name": function.get("name"), "arguments": arguments},
    }
