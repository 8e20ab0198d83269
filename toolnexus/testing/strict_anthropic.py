"""What Anthropic refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from toolnexus.testing.recorded import blocks_of
from toolnexus.testing.replies import signature_of
from toolnexus.testing.strict import (
    TOOL_NAME,
    Refusal,
    check_content_type,
    check_model_and_messages,
    check_object_schema,
    check_tool_names,
    objects,
    require,
)
from toolnexus.testing.strict_parts import check_anthropic_media

_THINKING: Final = ("thinking", "redacted_thinking")
_TOOL_USE_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "text": frozenset({"type", "text", "cache_control", "citations"}),
    "tool_use": frozenset({"type", "id", "name", "input", "cache_control", "caller"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
}
_OPAQUE: Final[Mapping[str, tuple[str, ...]]] = {
    "user": ("image", "document", "search_result", "container_upload"),
    "assistant": ("server_tool_use", "web_search_tool_result", "web_fetch_tool_result"),
    "result": ("image", "document", "search_result"),
}
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "user": ("text", "tool_result", *_OPAQUE["user"]),
    "assistant": ("text", "tool_use", *_THINKING, *_OPAQUE["assistant"]),
    "result": ("text", *_OPAQUE["result"]),
}


class ThoughtMemory:
    """The thinking blocks that a server handed out, so that it can tell altered ones.

    Not thread-safe: the server calls it under its lock.
    """

    def __init__(self) -> None:
        self._by_signature: dict[str, str] = {}
        self._by_call: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def remember(self, model: str, reply: Mapping[str, Any]) -> None:
        """Keep the thinking blocks of a reply that is about to be sent."""
        blocks = blocks_of(reply.get("content"))
        thoughts = [block for block in blocks if block.get("type") in _THINKING]
        for block in thoughts:
            if block["type"] == "thinking":
                self._by_signature[block.get("signature", "")] = block.get("thinking", "")
        for block in blocks if thoughts else ():
            if block.get("type") == "tool_use":
                self._by_call[model, block.get("id", "")] = thoughts

    def check_block(self, block: Mapping[str, Any], where: str) -> None:
        """Refuse a thinking block whose text is not the one that was signed."""
        signature, thought = block.get("signature"), block.get("thinking")
        require(isinstance(signature, str) and signature, f"{where}.signature: Field required")
        require(isinstance(thought, str), f"{where}.thinking: Field required")
        signed = self._by_signature.get(str(signature))
        is_intact = signed == thought if signed is not None else False
        if not is_intact and (signed is not None or signature_of(str(thought)) != signature):
            raise Refusal(f"{where}: Invalid `signature` in `thinking` block")

    def check_turn(self, model: str, blocks: list[dict[str, Any]], where: str) -> None:
        """Refuse a tool-use message of the present turn that lost its thinking blocks."""
        thoughts = [block for block in blocks if block.get("type") in _THINKING]
        for block in blocks:
            sent = self._by_call.get((model, block.get("id", "")))
            if sent is None or block.get("type") != "tool_use":
                continue
            require(
                blocks[0].get("type") in _THINKING,
                f"{where}.content.0.type: Expected `thinking` or `redacted_thinking`, "
                f"but found `{blocks[0].get('type')}`",
            )
            require(
                thoughts == sent,
                f"{where}: `thinking` or `redacted_thinking` blocks in the latest assistant "
                "message cannot be modified",
            )


def check_anthropic(
    headers: Mapping[str, str], body: Mapping[str, Any], memory: ThoughtMemory
) -> None:
    """Raise unless a messages request would be taken.

    Raises:
        Refusal: With the reason, in much the provider's words.
    """
    if not headers.get("x-api-key"):
        raise Refusal("x-api-key header is required", 401)
    require(headers.get("anthropic-version"), "anthropic-version: header is required")
    check_content_type(headers)
    limit = body.get("max_tokens")
    is_count = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1
    require(is_count, "max_tokens: Field required, at least 1")
    messages = check_model_and_messages(body)
    _check_system(body)
    _check_tools(body)
    _check_order(messages)
    for index, message in enumerate(messages):
        _check_message(message, f"messages.{index}", memory)
    _check_results(messages)
    _check_thoughts(body["model"], messages, memory)


def _check_system(body: Mapping[str, Any]) -> None:
    if "system" not in body:
        return
    system = body["system"]
    if isinstance(system, str):
        require(system.strip(), "system: text content blocks must be non-empty")
        return
    for index, block in enumerate(objects(system, "system")):
        require(block.get("type") == "text", f"system.{index}.type: must be 'text'")
        _check_block(block, f"system.{index}")


def _check_tools(body: Mapping[str, Any]) -> None:
    tools = body.get("tools", [])
    require(isinstance(tools, list), "tools: must be an array")
    if not tools:
        require("tool_choice" not in body, "tool_choice: may only be specified with tools")
        return
    names = [tool.get("name") for tool in objects(tools, "tools")]
    for index, tool in enumerate(tools):
        for key in tool:
            require(not key.startswith("_"), f"tools.{index}.{key}: not permitted")
        if tool.get("type", "custom") == "custom":
            check_object_schema(tool.get("input_schema"), f"tools.{index}.input_schema")
    check_tool_names(names, TOOL_NAME)
    choice = body.get("tool_choice", {"type": "auto"})
    require(isinstance(choice, dict), "tool_choice: must be an object")
    known = ("auto", "any", "none", "tool")
    require(choice.get("type") in known, f"tool_choice.type: must be one of {', '.join(known)}")
    if choice["type"] == "tool":
        require(choice.get("name") in names, "tool_choice.name: not found in tools")


def _check_order(messages: list[dict[str, Any]]) -> None:
    for index, message in enumerate(messages):
        role = message.get("role")
        require(
            role != "system",
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` '
            'parameter, not "system" as an input message role.',
        )
        require(
            role in ("user", "assistant"),
            f"messages.{index}.role: {role!r} is neither 'user' nor 'assistant'",
        )
        if index == 0:
            require(role == "user", "messages: first message must use the 'user' role")
        else:
            require(
                role != messages[index - 1]["role"],
                f"messages: roles must alternate, but messages.{index} is a second {role!r}",
            )


def _check_message(message: dict[str, Any], where: str, memory: ThoughtMemory) -> None:
    for key in message:
        require(key in ("role", "content"), f"{where}.{key}: Extra inputs are not permitted")
    content = message.get("content")
    if isinstance(content, str):
        require(content.strip(), f"{where}: text content must contain non-whitespace text")
        return
    require(content, f"{where}: all messages must have non-empty content")
    for index, block in enumerate(objects(content, f"{where}.content")):
        at = f"{where}.content.{index}"
        _check_type(block, message["role"], at)
        _check_block(block, at)
        if block["type"] == "thinking":
            memory.check_block(block, at)
    if message["role"] == "assistant":
        last = blocks_of(content)[-1]["type"]
        require(last not in _THINKING, f"{where}: the final block cannot be `{last}`")


def _check_type(block: Mapping[str, Any], place: str, where: str) -> None:
    require(
        block.get("type") in _TYPES[place],
        f"{where}: Input tag {block.get('type')!r} does not match any of the expected tags: "
        + ", ".join(_TYPES[place]),
    )


def _check_block(block: dict[str, Any], where: str) -> None:
    kind = block["type"]
    for key in block if kind in _KEYS else ():
        require(key in _KEYS[kind], f"{where}.{kind}.{key}: Extra inputs are not permitted")
    if kind == "text":
        words = block.get("text")
        require(isinstance(words, str), f"{where}.text: Field required")
        require(
            str(words).strip(), f"{where}: text content blocks must contain non-whitespace text"
        )
    elif kind in ("image", "document"):
        check_anthropic_media(block, where)
    elif kind == "tool_use":
        _check_tool_use(block, where)
    elif kind == "tool_result":
        _check_tool_result(block, where)
    elif kind == "redacted_thinking":
        require(isinstance(block.get("data"), str) and block["data"], f"{where}.data: required")


def _check_tool_use(block: Mapping[str, Any], where: str) -> None:
    use_id, name = block.get("id"), block.get("name")
    require(
        isinstance(use_id, str) and _TOOL_USE_ID.fullmatch(use_id),
        f"{where}.tool_use.id: {use_id!r} should match '^{_TOOL_USE_ID.pattern}$'",
    )
    require(
        isinstance(name, str) and TOOL_NAME.fullmatch(name),
        f"{where}.tool_use.name: {name!r} should match '^{TOOL_NAME.pattern}$'",
    )
    is_object = isinstance(block.get("input"), dict)
    require(is_object, f"{where}.tool_use.input: Input should be a valid dictionary")


def _check_tool_result(block: Mapping[str, Any], where: str) -> None:
    use_id, content = block.get("tool_use_id"), block.get("content", "")
    require(isinstance(use_id, str), f"{where}.tool_result.tool_use_id: Field required")
    is_error = block.get("is_error", False)
    require(isinstance(is_error, bool), f"{where}.tool_result.is_error: must be a boolean")
    require(content or not is_error, f"{where}: content cannot be empty if `is_error` is true")
    if isinstance(content, str):
        return
    require(isinstance(content, list), f"{where}.tool_result.content: a string or an array")
    for index, part in enumerate(objects(content, where) if content else ()):
        _check_type(part, "result", f"{where}.content.{index}")
        require(
            part["type"] == "text" or not is_error,
            f'{where}.tool_result: all content must be type "text" if `is_error` is true',
        )
        _check_block(part, f"{where}.content.{index}")


def _ids(message: Mapping[str, Any], kind: str, key: str) -> list[str]:
    return [b[key] for b in blocks_of(message.get("content")) if b["type"] == kind]


def _check_results(messages: list[dict[str, Any]]) -> None:
    """Each tool_use has exactly one tool_result, first in the message that follows."""
    seen: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        results = _ids(message, "tool_result", "tool_use_id")
        for use_id in results:
            require(
                use_id in waiting,
                f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {use_id}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the "
                "previous message.",
            )
            require(
                results.count(use_id) == 1,
                f"{where}: each tool_use must have a single result. Found multiple "
                f"`tool_result` blocks with id: {use_id}",
            )
        _require_results(waiting, results, where)
        kinds = [block["type"] for block in blocks_of(message["content"])]
        require(
            "tool_result" not in kinds[len(results) :],
            f"{where}: `tool_result` blocks must come first in the content",
        )
        waiting = _ids(message, "tool_use", "id")
        for use_id in waiting:
            require(use_id not in seen, f"{where}: `tool_use` ids must be unique: {use_id}")
            seen.add(use_id)
    _require_results(waiting, [], "the end")


def _require_results(waiting: list[str], results: list[str], where: str) -> None:
    lacking = [use_id for use_id in waiting if use_id not in results]
    require(
        not lacking,
        f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(lacking)}. Each `tool_use` block must have a corresponding `tool_result` "
        "block in the next message.",
    )


def _check_thoughts(model: str, messages: list[dict[str, Any]], memory: ThoughtMemory) -> None:
    """Only the present turn must keep its thinking: what follows the last user prompt."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message["role"] == "assistant":
            memory.check_turn(model, blocks_of(message["content"]), f"messages.{index}")
        elif not _ids(message, "tool_result", "tool_use_id"):
            return
