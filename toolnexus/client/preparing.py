"""What a run needs before it begins: who is asked, with which tools, from which messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolnexus.client.asking import Gate, Model
from toolnexus.client.in_process import InProcessModel
from toolnexus.client.model import HttpModel
from toolnexus.client.options import ClientOptions
from toolnexus.errors import ConfigError
from toolnexus.messages import Message
from toolnexus.parts.part import Content
from toolnexus.toolspec import Tool, require_tool
from toolnexus.transport import Transport


def model_for(options: ClientOptions, transport: Transport, gate: Gate | None = None) -> Model:
    """Return who the options say is asked."""
    if options.generate is not None:
        return InProcessModel(options, gate)
    return HttpModel(options, transport, gate)


def opening(
    style: str, system: str, history: Sequence[Message], content: Content
) -> list[Message]:
    """Return the messages that begin a turn.

    In the OpenAI style the system prompt is the transcript's first message; in the Anthropic
    style it travels beside it, every time.
    """
    user: Message = {"role": "user", "content": content}
    if system and not history and style == "openai":
        return [{"role": "system", "content": system}, user]
    return [user]


def index_tools(tools: object) -> dict[str, Tool]:
    """Return the tools by name.

    Raises:
        ConfigError: One is no tool, or two share a name.
    """
    if not isinstance(tools, Iterable) or isinstance(tools, (str, bytes)):
        raise ConfigError(f"tools must be a list of tools, not {tools!r}")
    by_name: dict[str, Tool] = {}
    for one in tools:
        checked = require_tool(one)
        if checked.name in by_name:
            raise ConfigError(f"two tools are named {checked.name!r}; rename one")
        by_name[checked.name] = checked
    return by_name


def check_history(history: object) -> list[Message]:
    """Return what was said before as a list.

    Raises:
        ConfigError: It is no list of messages.
    """
    if isinstance(history, Sequence) and all(isinstance(one, dict) for one in history):
        return list(history)
    raise ConfigError(
        "history must be a list of messages, each a dict, such as an earlier result's "
        f"`messages`; {type(history).__name__} is not, or holds something else"
    )


def check_tools(tools: object) -> dict[str, Tool]:
    """Return the tools of a run outside a runtime, by name.

    Raises:
        ConfigError: One is no tool or needs a runtime, or two share a name.
    """
    by_name = index_tools(tools)
    for tool in by_name.values():
        if getattr(tool, "requires_runtime", False):
            raise ConfigError(
                f"tool {tool.name!r} is an agent and needs a runtime: "
                "as_tool(base_url=..., ...) gives it one of its own"
            )
    return by_name
