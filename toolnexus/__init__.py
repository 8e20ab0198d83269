"""toolnexus: LLM agents from ordinary blocking Python.

Names load on first use, so importing the package costs little.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolnexus.agents.agent import Agent, AgentRun, agent
    from toolnexus.budget import Budget, RetryPolicy
    from toolnexus.cancel import CancelToken
    from toolnexus.checkpoint import CallState, Checkpoint
    from toolnexus.client.client import LlmClient
    from toolnexus.client.hooks import Hooks
    from toolnexus.client.metrics import MetricEvent
    from toolnexus.client.options import ClientOptions
    from toolnexus.clock import Clock, RealClock
    from toolnexus.errors import (
        AlreadyAnswered,
        Cancelled,
        ConfigError,
        IllegalTransitionError,
        LlmError,
        NothingSuspended,
        RequestExpired,
        ResumeError,
        RunTimeoutError,
        SpawnError,
        StoreError,
        ToolnexusError,
        ToolSchemaError,
        UnknownRequest,
        WireFormatError,
    )
    from toolnexus.messages import InboxItem, ToolCall, Usage
    from toolnexus.results import RunResult, TaskResult
    from toolnexus.runtime.definition import AgentDef
    from toolnexus.runtime.handle import Ack, Handle, HandleView, PendingRequest, Spawn
    from toolnexus.runtime.options import RuntimeOptions
    from toolnexus.runtime.runtime import AgentRuntime
    from toolnexus.runtime.state import State
    from toolnexus.suspension import Answer, Request
    from toolnexus.tools.native import NativeTool, tool
    from toolnexus.toolspec import Tool, ToolContext, ToolResult, pending_of, sanitize

__version__ = "0.1.0"

_HOMES = {
    "agents.agent": ("Agent", "AgentRun", "agent"),
    "budget": ("Budget", "RetryPolicy"),
    "cancel": ("CancelToken",),
    "checkpoint": ("CallState", "Checkpoint"),
    "client.client": ("LlmClient",),
    "client.hooks": ("Hooks",),
    "client.metrics": ("MetricEvent",),
    "client.options": ("ClientOptions",),
    "clock": ("Clock", "RealClock"),
    "errors": (
        "AlreadyAnswered",
        "Cancelled",
        "ConfigError",
        "IllegalTransitionError",
        "LlmError",
        "NothingSuspended",
        "RequestExpired",
        "ResumeError",
        "RunTimeoutError",
        "SpawnError",
        "StoreError",
        "ToolSchemaError",
        "ToolnexusError",
        "UnknownRequest",
        "WireFormatError",
    ),
    "messages": ("InboxItem", "ToolCall", "Usage"),
    "results": ("RunResult", "TaskResult"),
    "runtime.definition": ("AgentDef",),
    "runtime.handle": ("Ack", "Handle", "HandleView", "PendingRequest", "Spawn"),
    "runtime.options": ("RuntimeOptions",),
    "runtime.runtime": ("AgentRuntime",),
    "runtime.state": ("State",),
    "suspension": ("Answer", "Request"),
    "tools.native": ("NativeTool", "tool"),
    "toolspec": ("Tool", "ToolContext", "ToolResult", "pending_of", "sanitize"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    # agents
    "Agent",
    "AgentDef",
    "AgentRun",
    "agent",
    # the runtime
    "Ack",
    "AgentRuntime",
    "Budget",
    "Handle",
    "HandleView",
    "InboxItem",
    "PendingRequest",
    "RuntimeOptions",
    "Spawn",
    "State",
    "TaskResult",
    # the client
    "ClientOptions",
    "Hooks",
    "LlmClient",
    "MetricEvent",
    "RetryPolicy",
    "RunResult",
    "ToolCall",
    "Usage",
    # asking people
    "Answer",
    "CallState",
    "Checkpoint",
    "Request",
    # tools
    "NativeTool",
    "Tool",
    "ToolContext",
    "ToolResult",
    "pending_of",
    "sanitize",
    "tool",
    # time and stopping
    "CancelToken",
    "Clock",
    "RealClock",
    # errors
    "AlreadyAnswered",
    "Cancelled",
    "ConfigError",
    "IllegalTransitionError",
    "LlmError",
    "NothingSuspended",
    "RequestExpired",
    "ResumeError",
    "RunTimeoutError",
    "SpawnError",
    "StoreError",
    "ToolSchemaError",
    "ToolnexusError",
    "UnknownRequest",
    "WireFormatError",
    "__version__",
]


# A type checker must not learn that every name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'toolnexus' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"toolnexus.{home}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return list(__all__)
