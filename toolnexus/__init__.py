"""toolnexus: LLM agents from ordinary blocking Python.

Names load on first use, so importing the package costs little.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolnexus.agents.agent import Agent, AgentRun, agent
    from toolnexus.approvals import ApprovalPolicy, ProposedCall
    from toolnexus.budget import Budget, RetryPolicy, Tier
    from toolnexus.cancel import CancelToken
    from toolnexus.checkpoint import CallState, Checkpoint
    from toolnexus.client.client import LlmClient
    from toolnexus.client.conversation import Conversation
    from toolnexus.client.hooks import Hooks
    from toolnexus.client.metrics import MetricEvent
    from toolnexus.client.options import ClientOptions
    from toolnexus.client.relay import RelayTool, relay_tool
    from toolnexus.client.tracing import Span, Tracing
    from toolnexus.client.translation import TranslateRequest
    from toolnexus.clock import Clock, RealClock
    from toolnexus.errors import (
        AlreadyAnswered,
        Cancelled,
        ConfigError,
        ConversationParked,
        Declined,
        IllegalTransitionError,
        InvalidAnswer,
        LeaseLost,
        LlmError,
        NotAuthorized,
        NothingSuspended,
        RequestConflict,
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
    from toolnexus.events import (
        Done,
        Event,
        Pending,
        TextDelta,
        ToolCallStarted,
        ToolResultReady,
        UsageUpdate,
    )
    from toolnexus.grants import Grant
    from toolnexus.messages import InboxItem, ToolCall, Usage
    from toolnexus.parts.part import Part
    from toolnexus.results import RunResult, TaskResult
    from toolnexus.runtime.audit import AuditRecord
    from toolnexus.runtime.definition import AgentDef
    from toolnexus.runtime.handle import Ack, Handle, HandleView, PendingRequest, Spawn
    from toolnexus.runtime.options import RuntimeOptions
    from toolnexus.runtime.runtime import AgentRuntime
    from toolnexus.runtime.state import State
    from toolnexus.stores.conversations import (
        ConversationStore,
        FileConversationStore,
        MemoryConversationStore,
    )
    from toolnexus.stores.outputs import (
        FileOutputStore,
        MemoryOutputStore,
        OutputStore,
        ReadOutput,
    )
    from toolnexus.suspension import Answer, Request
    from toolnexus.tools.native import NativeTool, tool
    from toolnexus.toolspec import Tool, ToolContext, ToolResult, pending_of, sanitize

__version__ = "0.1.0"

_HOMES = {
    "agents.agent": ("Agent", "AgentRun", "agent"),
    "approvals": ("ApprovalPolicy", "ProposedCall"),
    "budget": ("Budget", "RetryPolicy", "Tier"),
    "cancel": ("CancelToken",),
    "checkpoint": ("CallState", "Checkpoint"),
    "client.client": ("LlmClient",),
    "client.conversation": ("Conversation",),
    "client.hooks": ("Hooks",),
    "client.metrics": ("MetricEvent",),
    "client.options": ("ClientOptions",),
    "client.relay": ("RelayTool", "relay_tool"),
    "client.tracing": ("Span", "Tracing"),
    "client.translation": ("TranslateRequest",),
    "clock": ("Clock", "RealClock"),
    "errors": (
        "AlreadyAnswered",
        "Cancelled",
        "ConfigError",
        "ConversationParked",
        "Declined",
        "IllegalTransitionError",
        "InvalidAnswer",
        "LeaseLost",
        "LlmError",
        "NotAuthorized",
        "NothingSuspended",
        "RequestConflict",
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
    "events": (
        "Done",
        "Event",
        "Pending",
        "TextDelta",
        "ToolCallStarted",
        "ToolResultReady",
        "UsageUpdate",
    ),
    "grants": ("Grant",),
    "messages": ("InboxItem", "ToolCall", "Usage"),
    "parts.part": ("Part",),
    "results": ("RunResult", "TaskResult"),
    "runtime.audit": ("AuditRecord",),
    "runtime.definition": ("AgentDef",),
    "runtime.handle": ("Ack", "Handle", "HandleView", "PendingRequest", "Spawn"),
    "runtime.options": ("RuntimeOptions",),
    "runtime.runtime": ("AgentRuntime",),
    "runtime.state": ("State",),
    "stores.conversations": (
        "ConversationStore",
        "FileConversationStore",
        "MemoryConversationStore",
    ),
    "stores.outputs": ("FileOutputStore", "MemoryOutputStore", "OutputStore", "ReadOutput"),
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
    "Conversation",
    "Hooks",
    "LlmClient",
    "MetricEvent",
    "Part",
    "RetryPolicy",
    "RunResult",
    "Span",
    "Tier",
    "Tracing",
    "ToolCall",
    "TranslateRequest",
    "Usage",
    # what a stream tells
    "Done",
    "Event",
    "Pending",
    "TextDelta",
    "ToolCallStarted",
    "ToolResultReady",
    "UsageUpdate",
    # what is kept
    "ConversationStore",
    "FileConversationStore",
    "FileOutputStore",
    "MemoryConversationStore",
    "MemoryOutputStore",
    "OutputStore",
    "ReadOutput",
    # asking people
    "Answer",
    "ApprovalPolicy",
    "AuditRecord",
    "CallState",
    "Checkpoint",
    "Grant",
    "ProposedCall",
    "Request",
    # tools
    "NativeTool",
    "RelayTool",
    "Tool",
    "ToolContext",
    "ToolResult",
    "pending_of",
    "relay_tool",
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
    "ConversationParked",
    "Declined",
    "IllegalTransitionError",
    "InvalidAnswer",
    "LeaseLost",
    "LlmError",
    "NotAuthorized",
    "NothingSuspended",
    "RequestConflict",
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
