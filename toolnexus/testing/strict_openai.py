"""What OpenAI and the providers that speak its dialect refuse. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolnexus.testing.strict import (
    TOOL_NAME,
    Refusal,
    check_content_type,
    check_model_and_messages,
    check_object_schema,
    check_tool_names,
    objects,
    refuse_private_keys,
    require,
)
from toolnexus.testing.strict_parts import check_openai_media

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_LONGEST_CALL_ID: Final = 40


def check_openai(headers: Mapping[str, str], body: Mapping[str, Any]) -> None:
    """Raise unless a chat completions request would be taken.

    Raises:
        Refusal: With the reason, in much the provider's words.
    """
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme != "Bearer" or not key.strip():
        raise Refusal("You didn't provide an API key (Authorization: Bearer)", 401)
    check_content_type(headers)
    messages = check_model_and_messages(body)
    _check_tools(body)
    for index, message in enumerate(messages):
        _check_message(message, f"messages.{index}")
    _check_balance(messages)


def _check_tools(body: Mapping[str, Any]) -> None:
    if "tools" not in body:
        for key in ("tool_choice", "parallel_tool_calls"):
            require(key not in body, f"'{key}' is only allowed when 'tools' are specified")
        return
    names = []
    for index, tool in enumerate(objects(body["tools"], "tools")):
        where = f"tools.{index}"
        refuse_private_keys(tool, where)
        require(tool.get("type") == "function", f"{where}.type: must be 'function'")
        function = tool.get("function")
        require(isinstance(function, dict), f"{where}.function: must be an object")
        refuse_private_keys(function, f"{where}.function")
        names.append(tool["function"].get("name"))
        if "parameters" in tool["function"]:
            check_object_schema(tool["function"]["parameters"], f"{where}.function.parameters")
    check_tool_names(names, TOOL_NAME)
    _check_tool_choice(body.get("tool_choice", "auto"), names)


def _check_tool_choice(choice: object, names: list[Any]) -> None:
    if isinstance(choice, dict):
        function = choice.get("function")
        chosen = function.get("name") if isinstance(function, dict) else None
        require(chosen in names, f"tool_choice: no tool is named {chosen!r}")
    else:
        known = ("auto", "none", "required")
        require(choice in known, f"tool_choice: {choice!r} is not one of {', '.join(known)}")


def _check_message(message: dict[str, Any], where: str) -> None:
    role = message.get("role")
    require(role in _ROLES, f"{where}.role: {role!r} is not one of {', '.join(_ROLES)}")
    refuse_private_keys(message, where)
    if role == "assistant":
        _check_assistant(message, where)
        return
    _check_content(message.get("content"), role, where)
    require("tool_calls" not in message, f"{where}: 'tool_calls' does not fit role {role!r}")
    if role == "tool":
        call_id = message.get("tool_call_id")
        require(isinstance(call_id, str) and call_id, f"{where}.tool_call_id: is required")
    else:
        require("tool_call_id" not in message, f"{where}: 'tool_call_id' fits only role 'tool'")


def _check_content(content: object, role: object, where: str) -> None:
    if isinstance(content, str):
        return
    require(content is not None, f"{where}.content: expected a string, got null")
    for index, part in enumerate(objects(content, f"{where}.content")):
        refuse_private_keys(part, f"{where}.content.{index}")
        kind = part.get("type")
        require(isinstance(kind, str), f"{where}.content.{index}.type: is required")
        if kind == "text":
            require(isinstance(part.get("text"), str), f"{where}.content.{index}.text: missing")
        check_openai_media(part, role, f"{where}.content.{index}")


def _check_assistant(message: dict[str, Any], where: str) -> None:
    require("tool_call_id" not in message, f"{where}: 'tool_call_id' fits only role 'tool'")
    content = message.get("content")
    if content is not None:
        _check_content(content, "assistant", where)
    if "tool_calls" not in message:
        require(content, f"{where}: an assistant message needs 'content' or 'tool_calls'")
        return
    seen: set[str] = set()
    for index, call in enumerate(objects(message["tool_calls"], f"{where}.tool_calls")):
        _check_call(call, seen, f"{where}.tool_calls.{index}")


def _check_call(call: dict[str, Any], seen: set[str], where: str) -> None:
    refuse_private_keys(call, where)
    call_id = call.get("id")
    if not isinstance(call_id, str) or not call_id:
        raise Refusal(f"{where}.id: is required")
    require(
        len(call_id) <= _LONGEST_CALL_ID,
        f"{where}.id: string too long, {len(call_id)} of at most {_LONGEST_CALL_ID} characters",
    )
    require(call_id not in seen, f"{where}.id: duplicate id {call_id!r} in one message")
    seen.add(call_id)
    require(call.get("type") == "function", f"{where}.type: must be 'function'")
    function = call.get("function")
    if not isinstance(function, dict):
        raise Refusal(f"{where}.function: must be an object")
    refuse_private_keys(function, f"{where}.function")
    name, arguments = function.get("name"), function.get("arguments")
    require(
        isinstance(name, str) and TOOL_NAME.fullmatch(name),
        f"{where}.function.name: {name!r} does not match '^{TOOL_NAME.pattern}$'",
    )
    require(isinstance(arguments, str), f"{where}.function.arguments: must be a string")


def _check_balance(messages: list[dict[str, Any]]) -> None:
    """Each call has exactly one tool message, directly after its assistant message."""
    waiting: set[str] = set()
    answered: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            require(call_id not in answered, f"{where}: a second result for {call_id!r}")
            require(
                call_id in waiting,
                f"{where}: a message with role 'tool' must be a response to a preceding "
                f"message with 'tool_calls'; none has {call_id!r}",
            )
            waiting.discard(call_id)
            answered.add(call_id)
            continue
        _require_answered(waiting, where)
        waiting = {call["id"] for call in message.get("tool_calls", ())}
        answered = set()
    _require_answered(waiting, "the end")


def _require_answered(waiting: set[str], where: str) -> None:
    require(
        not waiting,
        "An assistant message with 'tool_calls' must be followed by tool messages responding "
        "to each 'tool_call_id'. The following tool_call_ids did not have response messages "
        f"before {where}: {', '.join(sorted(waiting))}",
    )
