"""What every provider refuses; the two dialects build on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from toolnexus.codec import JsonValue, dumps, loads

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Refusal(Exception):
    """A request that a real provider would not have taken."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, status)
        self.message = message
        self.status = status


def require(condition: object, message: str) -> None:
    """Raise `Refusal` unless `condition` is true."""
    if not condition:
        raise Refusal(message)


def parse_body(content: bytes) -> dict[str, Any]:
    """Return the JSON object that `content` is.

    Raises:
        Refusal: It is not strict JSON, not UTF-8, or holds a lone surrogate.
    """
    try:
        body: JsonValue = loads(content.decode())
        dumps(body).encode()  # a lone surrogate can be escaped in JSON, but not encoded
    except UnicodeEncodeError:
        raise Refusal("invalid request body: it holds a lone surrogate") from None
    except (ValueError, RecursionError) as error:
        raise Refusal(f"could not parse the JSON body of your request: {error}") from None
    require(isinstance(body, dict), "the request body must be a JSON object")
    return body  # type: ignore[no-any-return]


def check_content_type(headers: Mapping[str, str]) -> None:
    """Refuse a body that does not say it is JSON."""
    kind = headers.get("content-type", "")
    require(
        kind.partition(";")[0].strip().lower() == "application/json",
        f"content-type must be application/json, not {kind!r}",
    )


def check_model_and_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a body that has a model and at least one message."""
    model = body.get("model")
    require(isinstance(model, str) and model, "model: field required, a non-empty string")
    messages = body.get("messages")
    require(isinstance(messages, list), "messages: field required, an array")
    require(messages, "messages: at least one message is required")
    for index, message in enumerate(messages or []):
        require(isinstance(message, dict), f"messages.{index}: must be an object")
    refuse_private_keys(body, "the request")
    return messages or []


def check_tool_names(names: list[Any], pattern: re.Pattern[str]) -> None:
    """Refuse names that do not match and names that come twice."""
    for index, name in enumerate(names):
        require(
            isinstance(name, str) and pattern.fullmatch(name),
            f"tools.{index}.name: {name!r} does not match '^{pattern.pattern}$'",
        )
        require(name not in names[:index], f"tools: tool names must be unique: {name!r}")


def check_object_schema(schema: object, where: str) -> None:
    """Refuse a tool schema that is not one of an object."""
    require(
        isinstance(schema, dict) and schema.get("type") == "object",
        f"{where}: schema must be a JSON Schema of 'type: \"object\"'",
    )


def refuse_private_keys(value: object, where: str) -> None:
    """Refuse keys that begin with an underscore: nobody's API has them."""
    for key in value if isinstance(value, dict) else ():
        require(not key.startswith("_"), f"{where}: unknown key {key!r}")


def objects(value: object, where: str) -> list[dict[str, Any]]:
    """Return a non-empty array of objects.

    Raises:
        Refusal: It is something else.
    """
    require(isinstance(value, list), f"{where}: must be an array, not {value!r:.80}")
    items: list[dict[str, Any]] = list(value) if isinstance(value, list) else []
    require(items, f"{where}: [] is too short")
    for index, item in enumerate(items):
        require(isinstance(item, dict), f"{where}.{index}: must be an object")
    return items
