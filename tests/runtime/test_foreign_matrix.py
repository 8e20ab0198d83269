"""Wherever foreign code runs, its endings and its verbs leave a tree that can be closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Pay, Probe, in_thread
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Handle,
    InboxItem,
    Request,
    State,
    TaskResult,
    ToolContext,
    ToolnexusError,
    ToolResult,
)
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    text,
    tool_call,
    tool_calls,
)

# Closing the root ends what is in memory; of a store it lets go.
pytestmark = pytest.mark.in_memory

PLACES = (
    "tool",
    "before_llm",
    "after_llm",
    "before_tool",
    "after_tool",
    "wait_for",
    "on_spawn",
    "on_close",
    "on_metric",
    "callback",
    "on_cancel",
)
ENDINGS = (RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit)


class Scene:
    """An agent `a` with foreign code everywhere, beside an idle `o` and a parked `k`."""

    def __init__(
        self,
        llm: ScriptedLlm,
        make: Make,
        place: str,
        act: Callable[[Scene], object],
        workers: int,
    ) -> None:
        self.place, self.act = place, act
        self.has_acted = threading.Event()
        self.lock = threading.Lock()
        self.handle: Handle | None = None
        self.inside, self.leave = threading.Event(), threading.Event()
        llm.answer("o", lambda request: text("o end"))
        llm.answer("k", back_or(tool_call("pay")))
        llm.answer("m", back_or(tool_calls(call("t"), call("pay"))))
        tools = [Probe("t", self.tool), Pay()]
        definition = AgentDef(
            "a",
            tools=tools,
            hooks=self,
            wait_for=self.wait_for if place == "wait_for" else None,
            on_spawn=self.on_spawn,
            on_close=lambda handle, why: self.hit("on_close"),
            on_metric=lambda event: self.hit("on_metric"),
        )
        self.rt: AgentRuntime = make(
            definition,
            AgentDef("o", model="o"),
            AgentDef("k", model="k", tools=[Pay()]),
            max_workers=workers,
            shutdown_ms=50,
        )
        self.other = self.rt.spawn(self.rt.root, "o").handle
        parked = self.rt.spawn(self.rt.root, "k").handle
        self.rt.run_turn(parked, "go")

    def hit(self, place: str) -> None:
        with self.lock:
            if place != self.place or self.has_acted.is_set():
                return
            self.has_acted.set()
        self.act(self)

    def tool(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if self.place == "on_cancel":
            ctx.cancel.on_cancel(lambda: self.hit("on_cancel"))
            self.inside.set()
            self.leave.wait(LIMIT)
        self.hit("tool")
        return ToolResult.ok("t end")

    def wait_for(self, request: Request) -> Answer:
        self.hit("wait_for")
        return Answer(request.id, ok=True)

    def on_spawn(self, handle: Handle) -> None:
        self.handle = handle
        self.hit("on_spawn")

    def before_llm(self, request: Any) -> None:
        self.hit("before_llm")

    def after_llm(self, request: Any, reply: Any) -> None:
        self.hit("after_llm")

    def before_tool(self, call: Any, args: Any, ctx: Any) -> None:
        self.hit("before_tool")

    def after_tool(self, call: Any, args: Any, result: Any) -> None:
        self.hit("after_tool")

    def play(self) -> TaskResult | None:
        """Run `a` to its end; None where its spawn was refused or ended the thread."""
        spawned = None
        with suppress(*ENDINGS):
            spawned = self.rt.spawn(self.rt.root, "a")
        if spawned is None or not spawned.ok:
            return None
        handle = self.handle = spawned.handle
        future = self.rt.future_result(handle)
        future.add_done_callback(lambda _: self.hit("callback"))
        if not self.rt.wake(handle, "go").ok:
            return handle.last_result
        if self.place == "on_cancel":
            assert self.inside.wait(LIMIT)
            with suppress(*ENDINGS):
                self.rt.interrupt(handle)
            self.leave.set()
        result = future.result(LIMIT)
        if result.pending is not None:
            with suppress(*ENDINGS, ToolnexusError):
                self.rt.resume(Answer(result.pending.id, ok=True))
                # Not a future of now: a callback may have given the answer before this thread.
                result = self.rt.wait_on(handle, LIMIT)
                assert result.status != "timeout"
        return result

    def end(self) -> None:
        """Close everything; what foreign code raised may come out of it, once."""
        with suppress(*ENDINGS):
            self.rt.close(self.rt.root)
        assert self.rt.list() == ()
        assert self.rt.root.state is State.CLOSED
        assert self.handle is None or self.handle.state is State.CLOSED


def back_or(first: Reply) -> Callable[[RecordedRequest], Reply]:
    def answer(request: RecordedRequest) -> Reply:
        return text("end") if request.messages[-1]["role"] == "tool" else first

    return answer


def raising(error: type[BaseException]) -> Callable[[Scene], object]:
    def act(scene: Scene) -> object:
        raise error("ended")

    return act


@pytest.mark.parametrize("error", ENDINGS)
@pytest.mark.parametrize("place", PLACES)
def test_an_ending_leaves_no_stuck_waiter_and_no_zombie(
    llm: ScriptedLlm, make_runtime: Make, place: str, error: type[BaseException]
) -> None:
    scene = Scene(llm, make_runtime, place, raising(error), 2)
    in_thread(scene.play).result(2 * LIMIT)
    in_thread(scene.end).result(LIMIT)
    assert scene.has_acted.is_set()


def own(scene: Scene) -> Handle:
    assert scene.handle is not None
    return scene.handle


def ask_other(scene: Scene) -> object:
    future = scene.rt.future_result(scene.other)
    return future.result(LIMIT) if scene.rt.wake(scene.other, "go").ok else None


def answers(scene: Scene) -> list[Answer]:
    return [Answer(one.request.id, ok=True) for one in scene.rt.pending()]


VERBS: dict[str, Callable[[Scene], object]] = {
    "list": lambda s: (s.rt.list(), s.rt.pending(), s.rt.trace()),
    "post": lambda s: s.rt.post(own(s), InboxItem("x", "y", "z")),
    "wake own": lambda s: s.rt.wake(own(s)),
    "run own": lambda s: s.rt.run_turn(own(s), "x"),
    "run other": lambda s: s.rt.run_turn(s.other, "x"),
    "run other timed": lambda s: s.rt.run_turn(s.other, "x", timeout=LIMIT),
    "future of other": ask_other,
    "spawn and run": lambda s: s.rt.run_turn(s.rt.spawn(own(s), "o").handle, "x"),
    "interrupt own": lambda s: s.rt.interrupt(own(s)),
    "interrupt other": lambda s: s.rt.interrupt(s.other),
    "close own": lambda s: s.rt.close(own(s)),
    "close other": lambda s: s.rt.close(s.other),
    "close root": lambda s: s.rt.close(),
    "force root": lambda s: s.rt.close(force=True),
    "retry own": lambda s: s.rt.retry(own(s)),
    "resume all": lambda s: [s.rt.resume(one) for one in answers(s)],
    "future resume all": lambda s: [
        s.rt.future_resume(one).result(LIMIT) for one in answers(s)
    ],
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("place", PLACES)
def test_every_verb_comes_back_wherever_it_is_called(
    llm: ScriptedLlm, make_runtime: Make, place: str, workers: int
) -> None:
    """A verb may be refused; what it may not do is hang, or leave something behind."""
    for name, verb in VERBS.items():
        came_back = threading.Event()

        def act(scene: Scene, verb: Any = verb, came_back: Any = came_back) -> None:
            with suppress(ToolnexusError):
                verb(scene)
            came_back.set()

        scene = Scene(llm, make_runtime, place, act, workers)
        in_thread(scene.play).result(2 * LIMIT)
        in_thread(scene.end).result(LIMIT)
        assert came_back.wait(LIMIT), f"{name} does not come back"


# -- one failure on the way of a cascade ------------------------------------------------------

STEPS = ("before_llm", "after_llm", "after_tool", "tool", "on_metric", "on_close", "callback")


class Cascade:
    """Three agents in a line, the last of which asks; one foreign failure on the way back."""

    def __init__(self, llm: ScriptedLlm, make: Make, step: str, level: int, error: Any) -> None:
        self.armed: tuple[str, int] | None = None
        self.where, self.error = (step, level), error
        self.ran: list[str] = []
        self.rt: AgentRuntime = make(
            self.agent(1, team=["d2"]),
            self.agent(2, team=["d3"]),
            self.agent(3, tools=[Probe("ask", self.ask)]),
            max_workers=2,
        )
        for number in (1, 2):
            task = tool_call("task", {"agent": f"d{number + 1}", "prompt": "go"})
            llm.answer(f"d{number}", back_or(task))
        llm.answer("d3", back_or(tool_call("ask")))
        self.top = self.rt.spawn(self.rt.root, "d1").handle
        parked = self.rt.run_turn(self.top, "go")
        assert parked.pending is not None
        self.answer = Answer(parked.pending.id, ok=True)
        handle = self.top
        for depth in (1, 2, 3):
            self.rt.future_result(handle).add_done_callback(
                lambda _, depth=depth: self.hit("callback", depth)
            )
            handle = handle.children[0] if handle.children else handle

    def agent(self, level: int, **more: Any) -> AgentDef:
        hooks = {
            step: lambda *args, step=step: self.hit(step, level)
            for step in ("before_llm", "after_llm", "after_tool")
        }
        return AgentDef(
            f"d{level}",
            model=f"d{level}",
            hooks=type("Hook", (), {key: staticmethod(work) for key, work in hooks.items()})(),
            on_metric=lambda event: self.hit("on_metric", level),
            on_close=lambda handle, why: self.hit("on_close", level),
            **more,
        )

    def hit(self, step: str, level: int) -> None:
        if self.armed == (step, level):
            self.armed = None
            raise self.error("ended")

    def ask(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", "ok?"))
        self.ran.append(ctx.answer.id)
        self.hit("tool", 3)
        return ToolResult.ok("yes")

    def go_on(self, verb: Callable[[], object]) -> None:
        with suppress(*ENDINGS):
            in_thread(verb).result(LIMIT)

    def finish(self, *, in_background: bool) -> str:
        """Give the answer three times, then retry; return how the top agent ended."""
        self.armed = self.where
        for _ in range(3):
            if in_background:
                self.go_on(lambda: self.rt.future_resume(self.answer).result(LIMIT))
            else:
                self.go_on(lambda: self.rt.resume(self.answer))
        self.armed = None
        result = self.rt.wait_on(self.top, LIMIT)
        if result.status != "done":
            self.go_on(lambda: self.rt.retry(self.top))
            result = self.rt.wait_on(self.top, LIMIT)
        return result.status


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("error", ENDINGS[:3])
@pytest.mark.parametrize("step", STEPS)
def test_after_one_failure_in_a_cascade_the_same_answer_or_a_retry_finishes(
    llm: ScriptedLlm, make_runtime: Make, step: str, error: Any, *, in_background: bool
) -> None:
    for level in (1, 2, 3) if step != "tool" else (3,):
        cascade = Cascade(llm, make_runtime, step, level, error)
        before = len(llm.requests)
        assert cascade.finish(in_background=in_background) == "done", f"level {level}"
        assert cascade.ran == [cascade.answer.id]
        # A step whose agent ended with its thread is not asked again.
        assert len(llm.requests) - before <= 3, f"level {level}"


@pytest.mark.parametrize("error", ENDINGS[1:])
def test_a_retry_after_the_final_reply_came_asks_nothing(
    llm: ScriptedLlm, make_runtime: Make, error: type[BaseException]
) -> None:
    """The hook behind the reply ended the thread; the model has said all it had to say."""

    class Once:
        asked = 0

        def after_llm(self, request: Any, reply: Any) -> None:
            self.asked += 1
            if self.asked == 1:
                raise error("ended")

    llm.answer("m", lambda request: text("the end"))
    rt = make_runtime(AgentDef("a", hooks=Once()))
    handle = rt.spawn(rt.root, "a").handle
    future = rt.future_result(handle)
    rt.wake(handle, "go")
    assert future.result(LIMIT).is_error
    assert in_thread(rt.retry, handle).result(LIMIT).text == "the end"
    assert len(llm.requests) == 1
    assert [one["role"] for one in rt.transcript(handle)] == ["user", "assistant"]
