"""Hooks: where a host looks at, changes or stops what a run does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError
from toolnexus.messages import ToolCall
from toolnexus.toolspec import ToolContext, ToolResult
from toolnexus.wire.base import ModelReply, ModelRequest

logger = logging.getLogger(__name__)

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

    __slots__ = ("after_llm", "after_tool", "before_llm", "before_tool", "gate_names")

    def __init__(self, hooks: object = None) -> None:
        """Collect the methods of one hook object, or of several.

        Raises:
            ConfigError: An object has none of the hook methods.
        """
        given = as_hooks(hooks)
        self.before_llm = _methods(given, "before_llm")
        self.after_llm = _methods(reversed(given), "after_llm")
        self.before_tool = _methods(given, "before_tool")
        self.after_tool = _methods(reversed(given), "after_tool")
        self.gate_names = tuple(map(_name_of, self.before_tool))

    def request_to_send(self, request: ModelRequest) -> ModelRequest:
        """Return `request` as the before-hooks leave it; what they raise passes.

        Raises:
            ConfigError: One returned something that is no request.
        """
        if self.before_llm:
            # What they change in place changes their copy, and no transcript.
            request = attrs.evolve(request, messages=codec.copy(request.messages))
        for before in self.before_llm:
            changed = before(request)
            if changed is None:
                continue
            if not isinstance(changed, ModelRequest):
                given = type(changed).__name__
                raise ConfigError(f"before_llm gave {given}; return a ModelRequest or None")
            request = changed
        return request

    def tell_reply(self, request: ModelRequest, reply: ModelReply) -> None:
        """Show `reply` to the after-hooks; what they raise is logged."""
        for after in self.after_llm:
            try:
                after(request, attrs.evolve(reply, message=codec.copy(reply.message)))
            except Exception:
                logger.exception("after_llm hook failed")


def as_hooks(given: object) -> tuple[object, ...]:
    """Return the hook objects: of None none, of one object it alone, else what it yields.

    Raises:
        ConfigError: One has none of the hook methods.
    """
    if given is None:
        return ()
    if _is_hook(given):  # before all else: it may be empty, false or iterable in its own way
        return (given,)
    several = tuple(given) if isinstance(given, Iterable) else (given,)
    for one in several:
        if not _is_hook(one):
            raise ConfigError(f"hooks: {one!r} has none of the methods {', '.join(_METHODS)}")
    return several


def kept_hooks(given: object) -> object:
    """Return, for attrs, hooks that can be read again; None stays None."""
    return None if given is None else as_hooks(given)


def _is_hook(value: object) -> bool:
    return any(callable(getattr(value, name, None)) for name in _METHODS)


def _name_of(method: Callable[..., Any]) -> str:
    """Return what a hook is known by in another process: where its class or function is."""
    owner = getattr(method, "__self__", None)
    kind = method if owner is None else type(owner)
    name = getattr(kind, "__qualname__", type(kind).__qualname__)
    return f"{getattr(kind, '__module__', None) or '?'}.{name}"


def _methods(hooks: Iterable[object], name: str) -> tuple[Callable[..., Any], ...]:
    """Return the bound methods called `name`, without the base class's own no-ops."""
    found = []
    for hook in hooks:
        method = getattr(hook, name, None)
        if callable(method) and getattr(method, "__func__", None) is not getattr(Hooks, name):
            found.append(method)
    return tuple(found)
