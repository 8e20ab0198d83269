"""Translation: OpenAI's shapes in and out, whoever is asked. One request, nothing executed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from toolnexus import checks, codec
from toolnexus.cancel import CancelToken
from toolnexus.client.asking import Model, Terms
from toolnexus.client.in_process import InProcessModel
from toolnexus.client.metrics import Meter
from toolnexus.client.model import HttpModel
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError
from toolnexus.messages import Message
from toolnexus.parts.part import check_parts
from toolnexus.toolspec import ToolDeclaration, require_tool, require_tool_name
from toolnexus.wire.base import ModelReply, ModelRequest
from toolnexus.wire.parts import require_takeable

if TYPE_CHECKING:
    from toolnexus.client.hooks import HookChain
    from toolnexus.client.options import ClientOptions
    from toolnexus.client.prometheus import Counters
    from toolnexus.transport import Transport

_CHOICES: Final = ("auto", "none", "required")

_FIELDS: Final = ("model", "messages", "tools", "tool_choice")
_DEPRECATED: Final = ("functions", "function_call")

_STEERING: Final = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "metadata",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "seed",
        "service_tier",
        "store",
        "verbosity",
    }
)
"""OpenAI's words that Anthropic has none for, and whose lack no caller sees in the reply."""

_PROMISES: Final[Mapping[str, tuple[JsonValue, ...]]] = {
    "audio": (),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
    "web_search_options": (),
}
"""OpenAI's words that promise something of the reply, with the values that promise nothing."""

_REWORDED: Final[Mapping[str, Callable[[Any], dict[str, JsonValue]]]] = {
    "stop": lambda given: {"stop_sequences": [given] if isinstance(given, str) else given},
    # OpenAI's scale ends at 2; Anthropic's own OpenAI endpoint cuts it off like this.
    "temperature": lambda given: {
        "temperature": min(given, 1) if isinstance(given, (int, float)) else given
    },
    "user": lambda given: {"metadata": {"user_id": given}},
}


@attrs.frozen
class _Declared:
    """A tool of the request: somebody else's to execute."""

    name: str
    description: str
    input_schema: Mapping[str, JsonValue]


def _items(given: object, field: str) -> tuple[Any, ...]:
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)):
        return tuple(given)
    raise ConfigError(f"TranslateRequest.{field} must be a list, not {type(given).__name__}")


def _messages(given: Iterable[Message]) -> tuple[Message, ...]:
    messages = tuple(codec.copy(_items(given, "messages")))
    if not messages or not all(map(_is_message, messages)):
        raise ConfigError(
            'TranslateRequest.messages takes messages such as {"role": "user", "content": '
            '"Hello"}, at least one; a content may be a list of such parts as {"type": "text", '
            '"text": "Hello"}'
        )
    return messages


def _is_message(value: object) -> bool:
    content = value.get("content") if isinstance(value, dict) else None
    parts = content if isinstance(content, list) else ()
    return isinstance(value, dict) and all(isinstance(part, (str, dict)) for part in parts)


def _tools(
    given: Iterable[ToolDeclaration | Mapping[str, JsonValue]],
) -> tuple[ToolDeclaration, ...]:
    return tuple(_declared(one) for one in _items(given, "tools"))


def _declared(given: Any) -> ToolDeclaration:
    if not isinstance(given, Mapping):
        return given if isinstance(given, _Declared) else require_tool(given)
    function = given.get("function")
    if given.get("type") != "function" or not isinstance(function, Mapping):
        raise ConfigError(
            'TranslateRequest.tools takes {"type": "function", "function": {...}} and tools, '
            f"not a mapping of type {given.get('type')!r}"
        )
    parameters = function.get("parameters")
    if not isinstance(parameters, (Mapping, type(None))):
        raise ConfigError("TranslateRequest.tools: parameters must be a JSON Schema object")
    return _Declared(
        require_tool_name(function.get("name"), "TranslateRequest.tools: a function's name"),
        function.get("description") or "",
        # Without parameters OpenAI means none, and providers want to be told.
        {"type": "object", "properties": {}, **codec.copy(parameters or {})},
    )


def _toolkit(given: Iterable[ToolDeclaration]) -> tuple[ToolDeclaration, ...]:
    return tuple(require_tool(one) for one in _items(given, "toolkit"))


def _choice(given: JsonValue) -> JsonValue:
    if given is None or given in _CHOICES:
        return given
    if given == "any":
        return "required"
    function = given.get("function") if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(given, Mapping) and given.get("type") == "function" and name:
        return {"type": "function", "function": {"name": name}}
    raise ConfigError(
        f"TranslateRequest.tool_choice must be one of {', '.join(_CHOICES)}, or "
        f'{{"type": "function", "function": {{"name": ...}}}}, not {given!r:.80}'
    )


def _params(given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return what is given, without what says nothing.

    Raises:
        ConfigError: A word has a field of its own, or asks for what is never done here.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"TranslateRequest.params must be a mapping, not {type(given).__name__}"
        )
    for name in _FIELDS:
        if name in given:
            raise ConfigError(f"TranslateRequest.params: {name} is a field of its own")
    for name in _DEPRECATED:
        if name in given:
            raise ConfigError(f"TranslateRequest.params: give tools in place of {name}")
    if given.get("stream"):
        raise ConfigError("TranslateRequest.params: translate does not support streaming")
    if given.get("n") not in (None, 1):
        raise ConfigError("TranslateRequest.params: n must be 1, for one reply is read")
    unsaid = ("n", "stream", "stream_options")
    return {
        name: codec.copy(value)
        for name, value in given.items()
        if value is not None and name not in unsaid
    }


@attrs.frozen
class TranslateRequest:
    """A request in OpenAI's words, for whatever provider the client has.

    Attributes:
        messages: All that was said: nothing is added, no system prompt either. Keys that begin
            with an underscore are never sent.
        model: The model's name; None is the client's.
        tools: `{"type": "function", "function": {...}}`, or tools. A function's `strict` is
            left out.
        tool_choice: `auto`, `none`, `required` (or `any`), or a function; None is the
            provider's default. Left out where there are no tools.
        params: Further keys of OpenAI's body; one of None says nothing. Anthropic is told
            `max_tokens` (or `max_completion_tokens`), `stop` and `user` in its words, and a
            `temperature` of at most 1. What steers without a trace in the reply, such as
            `seed`, is left out there; what promises something of the reply, such as
            `response_format`, is refused. Any other word is sent as it is, so Anthropic's own
            are too.
        toolkit: Tools that are declared before `tools`. None is executed.

    Raises:
        ConfigError: A field is malformed, or two tools have the same name.
    """

    messages: Sequence[Message] = attrs.field(converter=_messages, repr=False)
    model: str | None = attrs.field(default=None, validator=checks.text)
    tools: Sequence[ToolDeclaration] = attrs.field(default=(), converter=_tools, kw_only=True)
    tool_choice: JsonValue = attrs.field(default=None, converter=_choice, kw_only=True)
    params: Mapping[str, JsonValue] = attrs.field(
        factory=dict, converter=_params, kw_only=True, repr=False
    )
    toolkit: Sequence[ToolDeclaration] = attrs.field(
        default=(), converter=_toolkit, kw_only=True
    )

    def __attrs_post_init__(self) -> None:
        names = [tool.name for tool in self.declarations]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ConfigError(f"two tools are named {name!r}; rename one")

    @property
    def declarations(self) -> tuple[ToolDeclaration, ...]:
        """Every tool that the model is told of, in order."""
        return (*self.toolkit, *self.tools)


class Translator:
    """Asks one provider in OpenAI's shapes. Thread-safe."""

    def __init__(
        self,
        options: ClientOptions,
        transport: Transport,
        hooks: HookChain,
        counters: Counters,
    ) -> None:
        self._options = options
        self._hooks = hooks
        self._meter = Meter(counters.record, options.on_metric)
        self._model: Model = (
            HttpModel(options, transport, is_for_translation=True)
            if options.generate is None
            else InProcessModel(options)
        )

    def translate(
        self, request: TranslateRequest, cancel: CancelToken | None = None
    ) -> dict[str, JsonValue]:
        """Ask once (retries aside) and return OpenAI's `chat.completion`. Blocks.

        Nothing is executed or stored. Of the hooks those around the model are called, once;
        there is one metric event, of kind `llm`.

        Args:
            request: What is asked.
            cancel: Ends it from another thread, also in mid-request.

        Raises:
            LlmError: The model could not be asked.
            Cancelled: `cancel` was thrown.
            ConfigError: No model, or a parameter or a part that this provider does not take.
        """
        if not isinstance(request, TranslateRequest):
            raise ConfigError(
                f"translate takes a TranslateRequest, not {type(request).__name__}"
            )
        asked = self._prepared(request)
        reply = self._model.ask(asked, Terms(meter=self._meter, cancel=cancel or CancelToken()))
        self._hooks.tell_reply(asked, reply)
        return self._completion(asked.model, reply)

    def _prepared(self, request: TranslateRequest) -> ModelRequest:
        """Return the request in the provider's words, as the before-hooks leave it."""
        model = request.model or self._options.model
        if not model:
            raise ConfigError("no model: give TranslateRequest(model=...) or the client one")
        for content in _said_now(request.messages):
            check_parts(content, self._options.max_part_bytes)
            require_takeable(content, self._options.style)
        limit, params = _reworded(request.params, self._options.style)
        if limit is None and "max_completion_tokens" not in params:
            limit = self._options.max_tokens
        asked = ModelRequest(
            model=model,
            messages=request.messages,
            tools=request.declarations,
            max_tokens=limit,
            tool_choice=codec.copy(request.tool_choice),
            params=params,
        )
        asked = self._hooks.request_to_send(asked)
        if not asked.tools:
            params = {k: v for k, v in asked.params.items() if k != "parallel_tool_calls"}
            asked = attrs.evolve(asked, params=params)
        return attrs.evolve(asked, origin=self._model.origin(asked.model))

    def _completion(self, model: str, reply: ModelReply) -> dict[str, JsonValue]:
        return {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": int(self._options.clock.now().timestamp()),
            "model": model,
            "choices": [
                {"index": 0, "message": _said(reply), "finish_reason": _finish_reason(reply)}
            ],
            "usage": reply.usage.to_dict(),
        }


def _said_now(messages: Sequence[Message]) -> Iterator[JsonValue]:
    """Yield the contents of the user's that no reply stands behind yet.

    What is older was taken once, maybe by another provider: the wire has placeholders for it.
    """
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return
        if message.get("role") == "user":
            yield message.get("content")


def _reworded(
    given: Mapping[str, JsonValue], style: str
) -> tuple[int | None, dict[str, JsonValue]]:
    """Return the length limit, and the rest in the provider's words.

    Raises:
        ConfigError: The provider has no word for a promise.
    """
    params: dict[str, JsonValue] = codec.copy(given)
    limit = params.pop("max_tokens", None)
    if style == "openai":
        return limit, params
    limit = params.pop("max_completion_tokens", limit)
    words: dict[str, JsonValue] = {}
    for name, value in params.items():
        if name in _PROMISES:
            if value not in _PROMISES[name]:
                raise ConfigError(
                    f"TranslateRequest.params: Anthropic has no {name}; give what it has, in "
                    "its own words, or leave it out"
                )
        elif name in _REWORDED:
            words.update(_REWORDED[name](value))
        elif name not in _STEERING:
            words[name] = value
    return limit, words


def _said(reply: ModelReply) -> Message:
    """Return the reply's message, without what is ours in it."""
    message: Message = {
        key: codec.copy(value)
        for key, value in reply.message.items()
        if not key.startswith("_")
    }
    for call in message.get("tool_calls", ()):
        function = call["function"]
        if not function["arguments"].strip():
            # Some providers have an empty text for none; whoever reads this parses it.
            function["arguments"] = "{}"
    return message


def _finish_reason(reply: ModelReply) -> str:
    if reply.calls:
        return "tool_calls"
    if reply.truncated:
        return "length"
    is_refused = reply.finish_reason in ("content_filter", "refusal")
    return "content_filter" if is_refused else "stop"
