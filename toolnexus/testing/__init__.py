"""Fakes for tests of code that uses toolnexus.

`ScriptedLlm` is a model server over real HTTP that says what the test tells it to,
`VirtualClock` a clock that moves when the test says so, and `replay_tool` takes one tool
through all its questions. `StoreContract` is the contract of a run store as tests of one's own
store. With pytest the first two come as the fixtures `scripted_llm` and
`virtual_clock`:

    from toolnexus.testing import text, tool_call

    def test_the_agent_adds(scripted_llm):
        scripted_llm.say("gpt-test", tool_call("add", {"a": 1, "b": 2}), text("It is 3."))
        with AgentRuntime(base_url=scripted_llm.base_url, api_key="k", registry=[adder]) as rt:
            ...

Names load at first use: pytest imports this package in every session.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolnexus.testing.clock import VirtualClock
    from toolnexus.testing.llm import AnswerFunction, ScriptedLlm
    from toolnexus.testing.recorded import Headers, RecordedRequest
    from toolnexus.testing.replaying import Replay, replay_tool
    from toolnexus.testing.replies import (
        Call,
        Gate,
        Reply,
        call,
        raw,
        status,
        text,
        tool_call,
        tool_calls,
    )
    from toolnexus.testing.store_contract import StoreContract

__all__ = [
    "AnswerFunction",
    "Call",
    "Gate",
    "Headers",
    "RecordedRequest",
    "Replay",
    "Reply",
    "ScriptedLlm",
    "StoreContract",
    "VirtualClock",
    "call",
    "raw",
    "replay_tool",
    "status",
    "text",
    "tool_call",
    "tool_calls",
]

_HOMES: Final = {
    "AnswerFunction": "llm",
    "Headers": "recorded",
    "RecordedRequest": "recorded",
    "Replay": "replaying",
    "ScriptedLlm": "llm",
    "StoreContract": "store_contract",
    "VirtualClock": "clock",
    "replay_tool": "replaying",
}


# A type checker must not learn that every name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(
            importlib.import_module(f"{__name__}.{_HOMES.get(name, 'replies')}"), name
        )
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
