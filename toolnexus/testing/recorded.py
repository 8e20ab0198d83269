"""What a scripted model was asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import attrs

Style: TypeAlias = Literal["openai", "anthropic"]


class Headers(Mapping[str, str]):
    """Request headers; names are looked up without regard to case."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str]) -> None:
        self._items = {name.lower(): value for name, value in items.items()}

    def __getitem__(self, name: str) -> str:
        return self._items[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Headers({', '.join(sorted(self._items))})"  # names only: values hold keys


@attrs.frozen(kw_only=True)
class RecordedRequest:
    """One request that a `ScriptedLlm` received.

    Attributes:
        model: The model's name; "" where the request named none.
        style: The dialect, told by the path.
        path: The path, without the query.
        headers: Request headers, by name without regard to case.
        body: The parsed body; empty where it was not a JSON object.
        content: The body as received.
        refusal: Why the server answered 400 or 401; None where it did not.
    """

    model: str
    style: Style
    path: str
    headers: Headers = attrs.field(repr=False)
    body: dict[str, Any] = attrs.field(repr=False)
    content: bytes = attrs.field(repr=False)
    refusal: str | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The `messages` of the body; empty where it has none."""
        return blocks_of(self.body.get("messages"))

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The `tools` of the body in the request's style; empty where it has none."""
        return blocks_of(self.body.get("tools"))

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools, in order, whatever the style."""
        return [(tool.get("function") or tool).get("name", "") for tool in self.tools]

    @property
    def system(self) -> str:
        """The system prompt, whatever the style; "" for none."""
        if self.style == "anthropic":
            return text_of(self.body.get("system"))
        leading = [m for m in self.messages if m.get("role") in ("system", "developer")]
        return "\n\n".join(text_of(message.get("content")) for message in leading)

    @property
    def prompt(self) -> str:
        """The text of the last user message that has one, whatever the style; "" for none."""
        for message in reversed(self.messages):
            text = text_of(message.get("content")) if message.get("role") == "user" else ""
            if text:
                return text
        return ""

    @property
    def tool_results(self) -> dict[str, str]:
        """The text of each tool result by the id of its call, whatever the style."""
        results: dict[str, str] = {}
        for message in self.messages:
            if message.get("role") == "tool":
                results[message.get("tool_call_id", "")] = text_of(message.get("content"))
            for block in blocks_of(message.get("content")):
                if block.get("type") == "tool_result":
                    results[block.get("tool_use_id", "")] = text_of(block.get("content"))
        return results


def blocks_of(content: object) -> list[dict[str, Any]]:
    """Return the objects of a list; none for a plain text."""
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict)]


def text_of(content: object) -> str:
    """Return a plain text, or the text blocks of a list as one."""
    if isinstance(content, str):
        return content
    texts = [b.get("text", "") for b in blocks_of(content) if b.get("type") == "text"]
    return "\n".join(texts)
