"""ClientOptions: everything that shapes how a model is asked."""

from __future__ import annotations

import base64
import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

import attrs

from toolnexus import checks
from toolnexus.approvals import ApprovalPolicy
from toolnexus.budget import DEFAULT_MAX_TURNS, RETRYABLE_STATUSES, RetryPolicy, Tier
from toolnexus.client.hooks import kept_hooks
from toolnexus.clock import Clock, RealClock
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError, LlmError
from toolnexus.parts.part import DEFAULT_MAX_PART_BYTES
from toolnexus.shortening import LEAST_CHARS
from toolnexus.suspension import Answer, Request

if TYPE_CHECKING:
    import requests
    from typing_extensions import TypedDict

    from toolnexus.client.in_process import Generate
    from toolnexus.client.metrics import MetricEvent
    from toolnexus.client.tracing import Tracing
    from toolnexus.stores.conversations import ConversationStore
    from toolnexus.stores.outputs import OutputStore

    class ClientOptionFields(TypedDict, total=False):
        """The options by name, for whoever checks types; see `ClientOptions`."""

        base_url: str
        style: str
        api_key: str | None
        model: str
        system_prompt: str
        headers: Mapping[str, str] | None
        session: requests.Session | None
        timeout_ms: int | None
        connect_timeout_ms: int
        read_timeout_ms: int
        retries: int
        retry_base_ms: int
        max_retry_wait_ms: int
        retryable_statuses: Iterable[int]
        max_turns: int
        max_tokens: int | None
        request_params: Mapping[str, JsonValue] | None
        body_transform: BodyTransform | None
        on_error: OnError | None
        hooks: Any
        on_metric: OnMetric | None
        wait_for: WaitFor | None
        approval_policy: ApprovalPolicy | None
        skills_prompt: str
        generate: Generate | None
        conversation_store: ConversationStore | None
        max_part_bytes: int
        max_result_chars: int
        max_turn_chars: int
        output_store: OutputStore | None
        tracing: Tracing | None
        max_workers: int
        clock: Clock


WaitFor: TypeAlias = Callable[[Request], Answer | None]
"""Answers a request inline, blocking. None, or an answer to another id, declines."""

OnMetric: TypeAlias = Callable[["MetricEvent"], object]
OnError: TypeAlias = Callable[[LlmError, int], Tier | Literal["retry", "fail"] | None]
"""Is told the error and the attempt (0 is the first); None leaves it to the retry policy."""

BodyTransform: TypeAlias = Callable[[dict[str, JsonValue]], dict[str, JsonValue] | None]

STYLES: Final = ("openai", "anthropic")

_PASSING: Final = (408, 409, 425, 429)
"""What a provider says of its own state, not of the request, among the client's errors."""

_KEY_VARIABLES: Final = {
    "openai": ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    "anthropic": ("OPENROUTER_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"),
}
_HARMLESS_HEADERS: Final = frozenset(
    {"accept", "accept-encoding", "connection", "content-type", "user-agent"}
)
_KEY_HEADERS: Final = ("authorization", "x-api-key", "api-key")


def _style(_instance: object, _attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in STYLES:
        raise ConfigError(f"style must be one of {', '.join(STYLES)}, not {value!r}")


def _secret_text(instance: object, _attribute: attrs.Attribute[Any], value: object) -> None:
    # The value itself is never quoted: it may well be a key.
    if value is not None and not isinstance(value, str):
        kind = type(value).__name__
        raise ConfigError(f"{type(instance).__name__}.api_key must be a str, not {kind}")


def _secret_mapping(instance: object, _attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        kind = type(value).__name__
        raise ConfigError(f"{type(instance).__name__}.headers must be a mapping, not {kind}")


def _session(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    # By its members: requests is not imported until there is something to send.
    if value is not None and not hasattr(value, "get_adapter"):
        raise ConfigError(
            f"{type(instance).__name__}.{attribute.name} must be a requests.Session, "
            f"not {value!r}"
        )


def _has(*members: str) -> Callable[[object, attrs.Attribute[Any], object], None]:
    """Return a validator: None, or an object with these methods."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        missing = [one for one in members if not callable(getattr(value, one, None))]
        if value is not None and missing:
            raise ConfigError(
                f"{type(instance).__name__}.{attribute.name}: {value!r} lacks "
                f"{', '.join(missing)}"
            )

    return check


def _statuses(value: Any) -> frozenset[int]:
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        statuses = list(value)
        if all(map(_may_pass, statuses)):
            return frozenset(statuses)
    raise ConfigError(
        "retryable_statuses must be HTTP statuses such as (429, 503), of those below 500 "
        f"only {', '.join(map(str, _PASSING))}, not {value!r}"
    )


def _may_pass(status: object) -> bool:
    return type(status) is int and (status in _PASSING or 500 <= status <= 599)


def _without_password(url: object) -> str:
    # Up to the last @: a password may hold any character, quoted or not.
    before, at, host = str(url).rpartition("@")
    scheme, slashes, _ = before.partition("//")
    return repr(f"{scheme if slashes else ''}{slashes}***@{host}" if at else str(url))


def _base_url(_instance: object, _attribute: attrs.Attribute[Any], value: object) -> None:
    if value == "":
        return
    if not isinstance(value, str) or not value.lower().startswith(("http://", "https://")):
        raise ConfigError(
            f"base_url must begin with http:// or https://, such as "
            f"https://api.openai.com/v1, not {_without_password(value)}"
        )


@attrs.frozen(kw_only=True)
class ClientOptions:
    """How a model is asked. Immutable; one value serves any number of clients and threads.

    Attributes:
        base_url: The endpoint, such as `https://api.openai.com/v1`.
        style: The wire: `openai` or `anthropic`.
        api_key: None looks in OPENROUTER_API_KEY, then the style's own variable, then the
            other's. Never shown in a repr, a log or an error.
        model: The model's name.
        system_prompt: Goes first in every conversation; empty for none.
        headers: Sent with each request, over the session's and the key's own.
        session: A `requests.Session` of yours, for proxies, certificates or adapters. It is
            never closed here. None makes one.
        timeout_ms: Milliseconds for a whole run; None for no limit.
        connect_timeout_ms: Milliseconds until a connection stands.
        read_timeout_ms: Milliseconds between two arrivals of bytes.
        retries: Further attempts after a failed request.
        retry_base_ms: Milliseconds before the first retry; doubles each time.
        max_retry_wait_ms: A provider that asks for a longer wait than this is not waited for:
            its error surfaces at once.
        retryable_statuses: HTTP statuses worth another attempt.
        max_turns: LLM calls in one run.
        max_tokens: Longest reply in tokens; None leaves it to the provider (Anthropic: 4096).
        request_params: Merged over the body; `messages`, `tools` and `stream` are ignored.
        body_transform: Sees the body last; what it returns is sent, None means unchanged.
        on_error: Consulted for every failed attempt.
        hooks: An object with the methods of `Hooks`, or a list of them.
        on_metric: Called with each `MetricEvent`; what it raises is logged.
        wait_for: Answers requests inline; without it a run that asks parks.
        approval_policy: Says of each call before it is executed whether to `allow` it, `ask` a
            person, or `deny` it; None leaves it to the tool. Where it says anything else, or
            raises, a person is asked.
        skills_prompt: Goes behind the system prompt, after a blank line.
        generate: The model itself, a function of this process; see `LlmClient.in_process`.
        conversation_store: Where `ask` keeps conversations; None for this process's memory.
        max_part_bytes: Most bytes, decoded, of one part of a prompt or of a tool's result.
        max_result_chars: Longest text of one tool's result that the model is shown.
        max_turn_chars: The same for all results of one assistant message, shared evenly.
        output_store: Where longer texts are kept whole; None for 64 MiB of memory.
        tracing: Records spans, such as `toolnexus.otel.OtelTracing`; None for none.
        max_workers: Threads for parallel tool calls.
        clock: Where time is read; a `VirtualClock` in tests.
    """

    base_url: str = attrs.field(default="", repr=_without_password, validator=_base_url)
    style: str = attrs.field(default="openai", validator=_style)
    api_key: str | None = attrs.field(default=None, repr=False, validator=_secret_text)
    model: str = attrs.field(default="", validator=checks.text)
    system_prompt: str = attrs.field(default="", validator=checks.text)
    headers: Mapping[str, str] | None = attrs.field(
        default=None, repr=False, validator=_secret_mapping
    )
    session: requests.Session | None = attrs.field(default=None, repr=False, validator=_session)
    timeout_ms: int | None = attrs.field(default=None, validator=checks.whole_from(0))
    connect_timeout_ms: int = attrs.field(default=10_000, validator=checks.whole_from(1))
    read_timeout_ms: int = attrs.field(default=600_000, validator=checks.whole_from(1))
    retries: int = attrs.field(default=2, validator=checks.whole_from(0))
    retry_base_ms: int = attrs.field(default=500, validator=checks.whole_from(0))
    max_retry_wait_ms: int = attrs.field(default=60_000, validator=checks.whole_from(0))
    retryable_statuses: Iterable[int] = attrs.field(
        default=RETRYABLE_STATUSES, converter=_statuses
    )
    max_turns: int = attrs.field(default=DEFAULT_MAX_TURNS, validator=checks.whole_from(1))
    max_tokens: int | None = attrs.field(default=None, validator=checks.whole_from(0))
    request_params: Mapping[str, JsonValue] | None = attrs.field(
        default=None, repr=False, validator=checks.mapping
    )
    body_transform: BodyTransform | None = attrs.field(
        default=None, validator=checks.can_be_called
    )
    on_error: OnError | None = attrs.field(default=None, validator=checks.can_be_called)
    hooks: Any = attrs.field(default=None, converter=kept_hooks)
    on_metric: OnMetric | None = attrs.field(default=None, validator=checks.can_be_called)
    wait_for: WaitFor | None = attrs.field(default=None, validator=checks.can_be_called)
    approval_policy: ApprovalPolicy | None = attrs.field(
        default=None, validator=checks.can_be_called
    )
    skills_prompt: str = attrs.field(default="", validator=checks.text)
    generate: Generate | None = attrs.field(default=None, validator=checks.can_be_called)
    conversation_store: ConversationStore | None = attrs.field(
        default=None, repr=False, validator=_has("get", "save")
    )
    max_part_bytes: int = attrs.field(
        default=DEFAULT_MAX_PART_BYTES, validator=checks.whole_from(1)
    )
    max_result_chars: int = attrs.field(
        default=100_000, validator=checks.whole_from(LEAST_CHARS)
    )
    max_turn_chars: int = attrs.field(default=400_000, validator=checks.whole_from(LEAST_CHARS))
    output_store: OutputStore | None = attrs.field(
        default=None, repr=False, validator=_has("get", "put")
    )
    tracing: Tracing | None = attrs.field(default=None, repr=False, validator=_has("start"))
    max_workers: int = attrs.field(default=32, validator=checks.whole_from(0))
    clock: Clock = attrs.field(
        factory=RealClock, repr=False, validator=checks.instance_of(Clock)
    )

    def __attrs_post_init__(self) -> None:
        if self.generate is not None and self.style != "openai":
            raise ConfigError("an in-process model speaks the openai style; leave style out")

    @property
    def system(self) -> str:
        """System and skills prompt, as the model reads them."""
        return "\n\n".join(part for part in (self.system_prompt, self.skills_prompt) if part)

    @property
    def retry_policy(self) -> RetryPolicy:
        """The retry options as one value."""
        return RetryPolicy(
            self.retries,
            self.retry_base_ms,
            self.max_retry_wait_ms,
            statuses=frozenset(self.retryable_statuses),
        )


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


def find_api_key(
    style: str, given: str | None, headers: Mapping[str, str], session: object = None
) -> str:
    """Return the key for `style`, or "" where the headers or the session's auth carry one.

    Raises:
        ConfigError: There is none anywhere; the message lists where it was looked for.
    """
    if given and given.strip():
        return _sendable(given)
    if any(name.lower() in _KEY_HEADERS for name in headers):
        return ""
    own: Mapping[str, str] = getattr(session, "headers", {})
    if getattr(session, "auth", None) or any(name.lower() in _KEY_HEADERS for name in own):
        return ""
    variables = _KEY_VARIABLES[style]
    for variable in variables:
        if os.environ.get(variable, "").strip():
            return _sendable(os.environ[variable])
    raise ConfigError(
        f"No API key: give api_key, or set one of {', '.join(variables)} "
        "(a local server that needs none takes any text)"
    )


def _sendable(key: str) -> str:
    """Return `key` without the white space that files and shells leave around it."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("the API key has characters that no HTTP header can carry")
    return key


def secrets_of(
    api_key: str, base_url: str, headers: Mapping[str, str], session: object = None
) -> list[str]:
    """Return every text that no error may quote, the longest first.

    The key, who logs in by the URL, what the caller's own headers say, and the session's
    headers, auth and cookies, whole and in parts. A text of less than eight characters is no
    secret but a placeholder, and masking it would garble whatever contains it.
    """
    own: Mapping[str, Any] = getattr(session, "headers", {})
    found = [api_key]
    for name, value in (*own.items(), *headers.items()):
        if name.lower() not in _HARMLESS_HEADERS and value is not None:
            found.append(value.decode("latin-1") if isinstance(value, bytes) else str(value))
    found += [str(cookie.value) for cookie in getattr(session, "cookies", ())]
    auth = getattr(session, "auth", None)
    if not isinstance(auth, tuple):
        auth = (getattr(auth, "username", ""), getattr(auth, "password", ""))
    url = urlsplit(base_url)
    for user, password in (auth, (unquote(url.username or ""), unquote(url.password or ""))):
        pair = f"{user}:{password}"
        found += [str(password), pair, base64.b64encode(pair.encode()).decode()]
    # A token may have a `=` within, as base64 has at its end.
    found += [
        part
        for text in found
        for end in (r"[\s;,]+", r"[\s=;,]+")
        for part in re.split(end, text)
    ]
    return sorted({text for text in found if len(text) >= 8}, key=len, reverse=True)
