"""The values of a conversation: tool calls, usage, and what a run gives back.

The transcript itself is a list of OpenAI-shaped dicts, whatever provider spoke. A key that
begins with an underscore is ours and is never sent:

`_origin`   who said an assistant message, `"<style> <host> <model>"`, on messages that carry
            parts only that provider understands;
`_blocks`   the content blocks of a reply as received, where they are more than plain text;
`_is_error` True on a tool message whose result was an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import attrs

from toolnexus.codec import refuse_unknown
from toolnexus.suspension import require_text

if TYPE_CHECKING:
    pass

Message: TypeAlias = dict[str, Any]
"""One OpenAI-shaped message: `role`, `content`, and `tool_calls` or `tool_call_id`."""

Status: TypeAlias = Literal[
    "done", "pending", "incomplete", "interrupted", "closed", "timeout", "error"
]
STATUSES: Final[tuple[Status, ...]] = get_args(Status)


@attrs.frozen
class ToolCall:
    """One call that a model asked for.

    Attributes:
        id: Unique within its assistant message.
        name: The tool's name as the model wrote it.
        arguments: JSON text as the model wrote it; may be malformed.
    """

    id: str
    name: str
    arguments: str


@attrs.frozen
class Usage:
    """Tokens, as the provider counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
        )

    def to_dict(self) -> dict[str, int]:
        """Return the three counts under their field names."""
        return attrs.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, int]) -> Usage:
        """Read what `to_dict` wrote."""
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        return cls(**refuse_unknown("Usage", data, names, ()))


@attrs.frozen
class InboxItem:
    """Something posted to an agent.

    Attributes:
        sender: Who posted it, as the model is told; a name proves nothing.
        channel: What sort of thing it is, such as `note` or `timer`.
        text: The text; untrusted unless an ancestor sent it.
    """

    sender: str = attrs.field(validator=require_text)
    channel: str = attrs.field(validator=require_text)
    text: str = attrs.field(validator=require_text)

    def to_dict(self) -> dict[str, str]:
        """Return the three texts under their field names."""
        return attrs.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> InboxItem:
        """Read what `to_dict` wrote.

        Raises:
            WireFormatError: A key is unknown or missing, or a value is no text.
        """
        keys = ("sender", "channel", "text")
        return cls(**refuse_unknown("InboxItem", data, keys, keys))
