"""Request and Answer: the question a suspended call waits on, and what a person said."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final, Literal, TypeAlias

import attrs

from toolnexus.codec import JsonValue, check_json, copy, refuse_unknown
from toolnexus.errors import ConfigError, WireFormatError

RELAYED: Final = "tool_call"
"""The kind of the request through which relayed calls surface, several by one."""

LOGIN: Final = "authorization"
"""The kind of a request that sends a person to a `url`, such as a login page."""

Outcome: TypeAlias = Literal["answered", "declined", "cancelled", "expired", "superseded"]
"""What came of a request: somebody said yes or gave a value; somebody said no; it was
withdrawn; its time passed; the user said something else instead."""

NOT_ANSWERED: Final[tuple[Outcome, ...]] = ("declined", "cancelled", "expired", "superseded")

_REQUEST_KEYS: Final = ("id", "kind", "prompt", "url", "data", "expiresAt")
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_ANSWER_KEYS: Final = ("id", "ok", "data", "reason")


def new_request_id() -> str:
    """Return a fresh id that nobody can guess: 128 random bits, URL-safe."""
    return secrets.token_urlsafe(16)


def require_text(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Attrs validator: a `str`."""
    if not isinstance(value, str):
        raise WireFormatError(
            f"{type(instance).__name__}.{attribute.name} must be a str, not {value!r}"
        )


def _optional_text(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        require_text(instance, attribute, value)


def _require_id(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    require_text(instance, attribute, value)
    if not value:
        raise WireFormatError(f"{type(instance).__name__}.id must not be empty")


def _require_bool(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    # `1`, "yes" and None are not an approval: a gate opens for exactly True.
    if value is not True and value is not False:
        raise WireFormatError(
            f"{type(instance).__name__}.{attribute.name} must be True or False, not {value!r}"
        )


def _require_aware(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is None:
        return
    place = f"{type(instance).__name__}.{attribute.name}"
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise WireFormatError(f"{place} must be a datetime with a time zone, not {value!r}")
    try:
        value.astimezone(timezone.utc)
    except OverflowError:
        raise WireFormatError(f"{place} is no time in UTC: {value!r}; None is never") from None


def _own_copy(data: Mapping[str, JsonValue] | None) -> Mapping[str, JsonValue] | None:
    return copy(dict(data)) if isinstance(data, Mapping) else data


def _require_object(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is None:
        return
    where = f"{type(instance).__name__}.{attribute.name}"
    if not isinstance(value, Mapping):
        raise WireFormatError(f"{where} must be a mapping or None, not {value!r}")
    check_json(value, where)


@attrs.frozen
class Request:
    """A question that a suspended call waits on.

    Attributes:
        kind: What is asked, such as `approval`, `question`, `input` or `authorization`.
        prompt: The text a person reads.
        url: Where the person has to go (a login page); None for no such place.
        data: JSON object for the host; `path` is added when the request leaves its handle.
        expires_at: Aware datetime from which on only a decline is accepted; None: never.
        id: Unguessable unless given; what an `Answer` is bound to.
    """

    kind: str = attrs.field(validator=require_text)
    prompt: str = attrs.field(validator=require_text)
    url: str | None = attrs.field(default=None, validator=_optional_text)
    data: Mapping[str, JsonValue] | None = attrs.field(
        default=None, converter=_own_copy, validator=_require_object, repr=False
    )
    expires_at: datetime | None = attrs.field(default=None, validator=_require_aware)
    id: str = attrs.field(factory=new_request_id, kw_only=True, validator=_require_id)

    @property
    def schema(self) -> Mapping[str, JsonValue] | None:
        """What the answer's data must fit (`data["schema"]`); None for anything."""
        schema = (self.data or {}).get("schema")
        return schema if isinstance(schema, Mapping) else None

    @property
    def resource(self) -> str | None:
        """What a login is for (`data["resource"]`): calls that need the same share it."""
        resource = (self.data or {}).get("resource") if self.kind == LOGIN else None
        return resource if isinstance(resource, str) and resource else None

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the wire form; absent optionals are left out."""
        out: dict[str, JsonValue] = {"id": self.id, "kind": self.kind, "prompt": self.prompt}
        if self.url is not None:
            out["url"] = self.url
        if self.data is not None:
            out["data"] = dict(self.data)
        if self.expires_at is not None:
            out["expiresAt"] = format_time(self.expires_at)
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Request:
        """Read the wire form.

        Raises:
            WireFormatError: A key is unknown or missing, or a value has the wrong type.
        """
        data = refuse_unknown("Request", data, _REQUEST_KEYS, ("id", "kind", "prompt"))
        return cls(
            data["kind"],
            data["prompt"],
            data.get("url"),
            data.get("data"),
            parse_time(data.get("expiresAt"), "Request.expiresAt"),
            id=data["id"],
        )


def copy_of(request: Request) -> Request:
    """Return an equal request, whose data the host may change without reaching this one."""
    made = object.__new__(Request)
    for name in _FIELDS:  # not by `evolve`: what was valid need not be looked through again
        object.__setattr__(made, name, getattr(request, name))
    object.__setattr__(made, "data", copy(request.data))
    return made


_FIELDS: Final = ("kind", "prompt", "url", "expires_at", "id")


@attrs.frozen
class Answer:
    """What a person said to the request with the same id.

    Attributes:
        id: The id of the `Request`.
        ok: Exactly True or False. False executes nothing.
        data: Any JSON value; `None`, `0`, `""` and `{}` are answers too. What a tool is given
            has no secret fields; `secret` gives those.
        reason: Advice for the model: one of the words of `outcome`, or a text.
    """

    id: str = attrs.field(validator=_require_id)
    ok: bool = attrs.field(validator=_require_bool)
    data: JsonValue = attrs.field(default=None, converter=copy, repr=False)
    reason: str | None = attrs.field(default=None, validator=_optional_text)
    # In no other form of the answer: a secret goes to the tool and nowhere else.
    _secrets: Mapping[str, JsonValue] | None = attrs.field(
        default=None, init=False, repr=False, eq=False
    )

    @data.validator
    def _check_data(self, _attribute: attrs.Attribute[Any], value: object) -> None:
        if value is not None:
            check_json(value, "Answer.data")

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the secrets behind: a worker may pickle what a tool has raised."""
        return Answer, (self.id, self.ok, self.data, self.reason)

    @property
    def outcome(self) -> Outcome:
        """What this answer makes of its request, in one word."""
        if self.ok:
            return "answered"
        return next((word for word in NOT_ANSWERED if word == self.reason), "declined")

    def secret(self, field: str = "") -> JsonValue:
        """Return what a person entered in a field that the schema marks `secret`.

        Args:
            field: Its name; "" where the schema is that of one value.

        Raises:
            ConfigError: No such secret was given to this tool.
        """
        if self._secrets is None or field not in self._secrets:
            known = ", ".join(map(repr, self._secrets or ())) or "none"
            raise ConfigError(f"the answer has no secret field {field!r} (it has: {known})")
        return self._secrets[field]

    def declined_text(self, request: Request) -> str:
        """Return what the model reads when this is a no; nothing was executed."""
        said = [self.reason] if self.reason else []
        message = message_of(self.data)
        if message:
            said.append(message)
        text = f"declined/expired: {request.prompt}"
        return f"{text} ({': '.join(said)})" if said else text

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the wire form; absent optionals are left out."""
        out: dict[str, JsonValue] = {"id": self.id, "ok": self.ok}
        if self.data is not None:
            out["data"] = self.data
        if self.reason is not None:
            out["reason"] = self.reason
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Answer:
        """Read the wire form.

        Raises:
            WireFormatError: A key is unknown or missing, or a value has the wrong type.
        """
        data = refuse_unknown("Answer", data, _ANSWER_KEYS, ("id", "ok"))
        return cls(data["id"], data["ok"], data.get("data"), data.get("reason"))


def check_answer(answer: object) -> None:
    """Check that it is one.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(answer, Answer):
        # By its type alone: what was meant as an answer may have a secret in it.
        hint = "; Answer.from_dict reads one" if isinstance(answer, Mapping) else ""
        raise ConfigError(
            "resume takes an Answer, such as Answer(request.id, ok=True), "
            f"not {type(answer).__name__}{hint}"
        )


def message_of(data: JsonValue) -> str | None:
    """Return what the data of a no says to the model; None where it says nothing."""
    message = data.get("message") if isinstance(data, Mapping) else None
    return message if isinstance(message, str) else None


def with_secrets(answer: Answer, secrets: Mapping[str, JsonValue]) -> Answer:
    """Return a copy of `answer` whose `secret` gives `secrets`."""
    made = attrs.evolve(answer)
    object.__setattr__(made, "_secrets", dict(secrets))
    return made


def opened(answer: Answer, request_id: str) -> Answer:
    """Return what a tool was told as the answer that was given, to hand on to `request_id`."""
    secrets: Mapping[str, JsonValue] = answer._secrets or {}  # noqa: SLF001 - of the class above
    data = answer.data
    if "" in secrets:
        data = secrets[""]
    elif secrets:
        data = {**(data if isinstance(data, Mapping) else {}), **secrets}
    return Answer(request_id, answer.ok, data, answer.reason)


def format_time(moment: datetime) -> str:
    """Return RFC 3339 text in UTC, such as `2026-01-31T12:00:00Z`."""
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def parse_time(text: object, where: str) -> datetime | None:
    """Read RFC 3339 text; None stays None.

    Raises:
        WireFormatError: Not a text of that form with an offset.
    """
    if text is None:
        return None
    found = _RFC_3339.fullmatch(text) if isinstance(text, str) else None
    if found:
        date, time, fraction, offset = found.groups()
        # Python 3.10 reads neither `Z` nor a fraction of other than 3 or 6 digits.
        offset = "+00:00" if offset in "Zz" else offset
        try:
            return datetime.fromisoformat(f"{date}T{time}.{(fraction or '')[:6]:0<6}{offset}")
        except ValueError:
            pass
    raise WireFormatError(
        f"{where} must be an RFC 3339 time with an offset, such as 2026-01-31T12:00:00Z, "
        f"not {text!r}"
    )
