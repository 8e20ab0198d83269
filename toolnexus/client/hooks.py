"""Hooks: where a host looks at, changes or stops what a run does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError
from toolnexus.messages import ToolCall
from toolnexus.toolspec import ToolContext, ToolResult
from toolnexus.wire.base import ModelReply, ModelRequest

_METHODS = ("before_llm", "after_llm", "before_tool", "after_tool")

BeforeTool: TypeAlias = ToolResult | Mapping[str, JsonValue] | None


class Hooks:
    """No-op hooks to inherit from; any object with some of these methods will do.

    Hooks run on the thread that does the work, with no lock held. A `before_` hook is a gate:
    if it raises, what it guards does not happen. Before-hooks run in the order given,
    after-hooks in reverse.
    """

    def before_llm(self, request: ModelRequest) -> ModelRequest | None:  # noqa: ARG002
        """Look at a request; return another one to send that instead.

        What it raises ends the run with that error.
        """
        return None

    def after_llm(self, request: ModelRequest, reply: ModelReply) -> None:
        """Look at a reply. What it raises is logged."""

    def before_tool(
        self,
        call: ToolCall,  # noqa: ARG002
        args: Mapping[str, JsonValue],  # noqa: ARG002
        ctx: ToolContext,  # noqa: ARG002
    ) -> BeforeTool:
        """Look at a call once, before its first execution.

        Returns:
            None to go on; a mapping to execute with these arguments instead; a `ToolResult` to
            use that and execute nothing. What it raises becomes the call's error result.
        """
        return None

    def after_tool(
        self,
        call: ToolCall,  # noqa: ARG002
        args: Mapping[str, JsonValue],  # noqa: ARG002
        result: ToolResult,  # noqa: ARG002
    ) -> ToolResult | None:
        """Look at a final result (never a suspension); return another one to use that.

        What it raises withholds the result: the model is told that the tool ran and that its
        output is not shown.
        """
        return None


class HookChain:
    """The hooks of one run, ready to be called."""

    __slots__ = ("after_llm", "after_tool", "before_llm", "before_tool")

    def __init__(self, hooks: object = None) -> None:
        """Collect the methods of one hook object, or of several.

        Raises:
            ConfigError: An object has none of the hook methods.
        """
        given = list(hooks) if isinstance(hooks, Iterable) else [hooks] if hooks else []
        for one in given:
            if not any(callable(getattr(one, name, None)) for name in _METHODS):
                raise ConfigError(
                    f"hooks: {one!r} has none of the methods {', '.join(_METHODS)}"
                )
        self.before_llm = _methods(given, "before_llm")
        self.after_llm = _methods(reversed(given), "after_llm")
        self.before_tool = _methods(given, "before_tool")
        self.after_tool = _methods(reversed(given), "after_tool")


def require_hooks(_instance: object, _attribute: object, value: object) -> None:
    """Check, for attrs, that `value` is None, a hook object, or several."""
    HookChain(value)


def _methods(hooks: Iterable[object], name: str) -> tuple[Callable[..., Any], ...]:
    """Return the bound methods called `name`, without the base class's own no-ops."""
    found = []
    for hook in hooks:
        method = getattr(hook, name, None)
        if callable(method) and getattr(method, "__func__", None) is not getattr(Hooks, name):
            found.append(method)
    return tuple(found)
