"""One definition and one runtime for many threads, and for a thread beside an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.threads.invariants import check_path, check_transcript
from tests.threads.racing import race
from toolnexus import AgentDef, AgentRuntime, Answer, Request, ToolContext, ToolResult
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    text,
    tool_call,
    tool_calls,
)

Make = Callable[..., AgentRuntime]
THREADS = 50


class Whisper:
    """Asks, then tells what it was told; every call sees its own arguments and answer."""

    name = "whisper"
    description = "Say it"
    source = "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {
            "type": "object",
            "properties": {"word": {"type": "string"}},
        }

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", args["word"]))
        return ToolResult.ok(f"{args['word']}/{ctx.answer.data}")


def whispering(request: RecordedRequest) -> Reply:
    if request.messages[-1]["role"] == "tool":
        return text(list(request.tool_results.values())[-1])
    return tool_call("whisper", {"word": request.prompt})


@pytest.mark.usefixtures("threads_change_often")
@pytest.mark.parametrize("is_shared", [True, False], ids=["one runtime", "a runtime each"])
def test_fifty_threads_use_one_definition_without_cross_talk(
    llm: ScriptedLlm, make_runtime: Make, is_shared: bool
) -> None:
    llm.answer("m", whispering)
    definition = AgentDef("whisperer", tools=[Whisper()])
    shared = make_runtime(definition)

    def talk(number: int) -> str:
        rt = shared if is_shared else make_runtime(definition)
        handle = rt.spawn(rt.root, definition).handle
        for turn in range(3):
            parked = rt.run_turn(handle, f"word-{number}-{turn}")
            assert parked.pending is not None
            assert parked.pending.prompt == f"word-{number}-{turn}"
            rt.resume(Answer(parked.pending.id, True, number))
            assert rt.wait_on(handle).text == f"word-{number}-{turn}/{number}"
        check_transcript(rt.transcript(handle))
        # Asked, called with, told and said, in each of three turns; and nobody else's word.
        said = str(rt.transcript(handle))
        assert said.count(f"word-{number}-") == said.count("word-") == 12
        rt.close(handle)
        return "fine"

    given = race(*(lambda n=number: talk(n) for number in range(THREADS)))

    assert given == ["fine"] * THREADS
    assert len(llm.requests) == THREADS * 3 * 2
    check_path(shared.trace())


def test_each_turn_sees_the_context_of_the_thread_that_woke_it(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")

    class Tell:
        name = "tell"
        description = "Who"
        source = "custom"
        input_schema: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012

        def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
            return ToolResult.ok(who.get())

    def answer(request: RecordedRequest) -> Reply:
        if request.messages[-1]["role"] == "tool":
            return text("|".join(request.tool_results.values()))
        return tool_calls(call("tell"), call("tell"), call("tell"))

    llm.answer("m", answer)
    rt = make_runtime(AgentDef("a", tools=[Tell()]), max_workers=4)

    def talk(number: int) -> str:
        who.set(f"caller-{number}")
        handle = rt.spawn(rt.root, "a").handle
        future = rt.future_result(handle)
        assert rt.wake(handle, "Go.").ok
        return future.result(LIMIT).text

    given = race(*(lambda n=number: talk(n) for number in range(8)))
    assert given == ["|".join([f"caller-{number}"] * 3) for number in range(8)]


def test_threads_beside_an_event_loop(llm: ScriptedLlm, make_runtime: Make) -> None:
    gate = threading.Event()
    llm.answer("m", lambda request: text(f"echo {request.prompt}").held_by(gate))
    rt = make_runtime(AgentDef("a"))

    async def main() -> list[str]:
        handles = [rt.spawn(rt.root, "a").handle for _ in range(4)]
        turns = [
            asyncio.create_task(asyncio.to_thread(rt.run_turn, one, f"word {number}"))
            for number, one in enumerate(handles)
        ]
        await asyncio.to_thread(llm.wait_asked, "m", 4)
        # The loop is free while four turns hang.
        gate.set()
        results = await asyncio.wait_for(asyncio.gather(*turns), LIMIT)
        wrapped = asyncio.wrap_future(rt.future_result(handles[0]))
        rt.wake(handles[0], "as a future")
        last = await asyncio.wait_for(wrapped, LIMIT)
        return [one.text for one in (*results, last)]

    assert asyncio.run(main()) == [
        *(f"echo word {number}" for number in range(4)),
        "echo as a future",
    ]


def test_a_verb_called_on_the_event_loops_own_thread(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", text("done"))
    rt = make_runtime(AgentDef("a"))

    async def main() -> str:
        return rt.run_turn(rt.spawn(rt.root, "a").handle, "Go.").text

    assert asyncio.run(main()) == "done"
