"""Grants: standing approvals, each for one tool, some arguments, some agents, some time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from toolnexus import codec
from toolnexus.codec import JsonValue, refuse_unknown
from toolnexus.errors import ConfigError
from toolnexus.keywords import LIMITS, RULES, TYPES, matches
from toolnexus.schema import faults
from toolnexus.suspension import format_time, new_request_id, parse_time
from toolnexus.toolspec import require_tool_name

if TYPE_CHECKING:
    from toolnexus.runtime.handle import Handle, PendingRequest

_IMPLIED: Final[Mapping[str, str]] = {**LIMITS, "pattern": "string"}
"""What a keyword says nothing of unless the value is one: it must be one."""

_KEYS: Final = ("id", "tool", "where", "under", "expiresAt")


def id_of(handle: Any) -> Any:
    """Return the id of a handle; what is none is found out by a validator."""
    return handle if isinstance(handle, str) else getattr(handle, "id", handle)


def is_under(handle_id: str, above: str) -> bool:
    """Say whether a handle is another one, or below it, by their ids."""
    return f"{handle_id}/".startswith(f"{above}/")


def _tool(_instance: object, _attribute: attrs.Attribute[Any], value: object) -> None:
    require_tool_name(value, "Grant.tool")


def _where(_instance: object, _attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"Grant.where must map arguments to JSON Schemas, not {value!r}")
    codec.check_json(value, "Grant.where")
    for name, schema in value.items():
        if schema is not True and not _is_exact(schema):
            raise ConfigError(
                f"Grant.where[{name!r}] must be True for any value, or a JSON Schema of the "
                f"keywords {', '.join(map(str, RULES))}, such as {{'maximum': 100}}, "
                f"not {schema!r}"
            )


def _is_exact(schema: object) -> bool:
    """Whether a schema says something, and nothing that would be passed over."""
    if not isinstance(schema, Mapping) or not schema:
        return False
    for keyword, wanted in schema.items():
        if keyword not in RULES:
            return False
        if keyword == "type" and (not isinstance(wanted, str) or wanted not in TYPES):
            return False
        if keyword == "enum" and not (isinstance(wanted, list) and wanted):
            return False
        if keyword == "pattern" and matches("", wanted) is None:
            return False
        if keyword in LIMITS and not TYPES["number"](wanted):
            return False
    return True


def _with_type(schema: JsonValue) -> JsonValue:
    if schema is True:
        return True
    implied = [{"type": _IMPLIED[keyword]} for keyword in schema if keyword in _IMPLIED]
    return {"allOf": [schema, *implied]}


def _under(_instance: object, _attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"Grant.under must be a handle's id, such as 'root', not {value!r}")


def _expiry(_instance: object, _attribute: attrs.Attribute[Any], value: object) -> None:
    if value is None or (isinstance(value, datetime) and value.utcoffset() is not None):
        return
    raise ConfigError(f"Grant.expires_at must be a datetime with a time zone, not {value!r}")


@attrs.frozen
class Grant:
    """A standing yes. A call that it fits is not asked for.

    Attributes:
        tool: The tool's name.
        where: A JSON Schema for each argument. A call with an argument that is not named here
            does not fit; `True` takes any value of one. Empty fits calls without arguments.
        under: The handle, or its id, whose agents, itself included, it is for.
        expires_at: Aware datetime at which it ends; None: never.
        id: What it is revoked by.
    """

    tool: str = attrs.field(validator=_tool)
    where: Mapping[str, JsonValue] = attrs.field(converter=codec.copy, validator=_where)
    under: str = attrs.field(converter=id_of, validator=_under)
    expires_at: datetime | None = attrs.field(default=None, validator=_expiry)
    id: str = attrs.field(factory=new_request_id, kw_only=True)

    @classmethod
    def of(
        cls, pending: PendingRequest, under: Handle | str, expires_at: datetime | None = None
    ) -> Grant:
        """Return the grant for calls with just the arguments of one of `rt.pending()`."""
        if not hasattr(pending, "arguments"):
            raise ConfigError(f"Grant.of takes one of AgentRuntime.pending(), not {pending!r}")
        where = {name: {"const": value} for name, value in pending.arguments.items()}
        return cls(pending.tool, where, id_of(under), expires_at)

    def has_ended(self, now: datetime) -> bool:
        """Say whether its time has passed."""
        return self.expires_at is not None and now >= self.expires_at

    def allows(
        self, tool: str, args: Mapping[str, JsonValue], handle_id: str, now: datetime
    ) -> bool:
        """Say whether a call fits, now."""
        if tool != self.tool or not is_under(handle_id, self.under) or self.has_ended(now):
            return False
        schema = {
            "type": "object",
            "properties": {name: _with_type(wanted) for name, wanted in self.where.items()},
            "required": [name for name, wanted in self.where.items() if wanted is not True],
            "additionalProperties": False,
        }
        return not faults(dict(args), schema)

    def to_dict(self) -> dict[str, JsonValue]:
        """Return JSON, for a host that keeps it."""
        out: dict[str, JsonValue] = {
            "id": self.id,
            "tool": self.tool,
            "where": codec.copy(self.where),
            "under": self.under,
        }
        if self.expires_at is not None:
            out["expiresAt"] = format_time(self.expires_at)
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> Grant:
        """Read what `to_dict` wrote.

        Raises:
            WireFormatError: A key is unknown or missing.
            ConfigError: A value makes no sense.
        """
        data = refuse_unknown("Grant", data, _KEYS, _KEYS[:4])
        expires_at = parse_time(data.get("expiresAt"), "Grant.expiresAt")
        return cls(data["tool"], data["where"], data["under"], expires_at, id=data["id"])
