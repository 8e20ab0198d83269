"""The values of a conversation: messages, tool calls, usage.

The transcript itself is a list of OpenAI-shaped dicts, whatever provider spoke. A key that
begins with an underscore is ours and is never sent:

`_origin`   who said an assistant message, `"<style> <host> <model>"`, on messages that carry
            parts only that provider understands;
`_blocks`   the content blocks of a reply as received, where they are more than plain text;
`_is_error` True on a tool message whose result was an error;
`_parked`   on the last assistant message of a parked transcript: where its calls stand, a
            `Checkpoint` without its messages;
`_answered` on an assistant message whose calls asked: by request, a digest of each answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from toolnexus.codec import refuse_unknown
from toolnexus.errors import WireFormatError
from toolnexus.suspension import require_text

Message: TypeAlias = dict[str, Any]
"""One OpenAI-shaped message: `role`, `content`, and `tool_calls` or `tool_call_id`."""

PARKED: Final = "_parked"
ANSWERED: Final = "_answered"

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
        """Read what `to_dict` wrote.

        Raises:
            WireFormatError: A key is unknown, or a count is no whole number.
        """
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        data = refuse_unknown("Usage", data, names, ())
        for name, count in data.items():
            if type(count) is not int:
                raise WireFormatError(f"Usage.{name} must be a JSON integer, not {count!r}")
        return cls(**data)


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
