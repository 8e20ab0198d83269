"""A runtime whose model and tools go on only when the test says so, one at a time."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from tests.conftest import LIMIT
from toolnexus import AgentDef, AgentRuntime, Request, State, ToolContext, ToolResult
from toolnexus.testing import (
    RecordedRequest,
    Reply,
    ScriptedLlm,
    call,
    status,
    text,
    tool_calls,
)

Plan: TypeAlias = list[Any]

_PATIENCE = LIMIT / 2
_SLICE = 0.01
"""How often a wait looks again by itself; most changes are announced."""


@attrs.frozen(eq=False)
class Held:
    """A model's reply or a tool that waits for its gate."""

    agent: str
    gate: threading.Event
    tasks: int = 0
    handle_id: str | None = None


class Ask:
    """Asks; once there is a yes it counts, by answer, what it did."""

    name = "ask"
    description = "Do it with permission"
    source = "custom"

    def __init__(self) -> None:
        self.input_schema: dict[str, Any] = {"type": "object", "properties": {}}
        self.lock = threading.Lock()
        self.effects: Counter[str] = Counter()

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.pending(Request("approval", f"May I, {ctx.call_id}?"))
        with self.lock:
            self.effects[ctx.answer.id] += 1
        return ToolResult.ok("did it")


class Work:
    """Works until its gate opens, whatever is cancelled."""

    name = "work"
    description = "Work"
    source = "custom"

    def __init__(self, hold: Callable[[Held], None]) -> None:
        self.input_schema: dict[str, Any] = {"type": "object", "properties": {}}
        self.hold = hold

    def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        gate = threading.Event()
        assert ctx.handle_id is not None
        self.hold(Held(agent_of(ctx.handle_id), gate, handle_id=ctx.handle_id))
        assert gate.wait(LIMIT * 6), "a tool's gate was forgotten"
        return ToolResult.ok("worked")


class _Bell(logging.Handler):
    """Tells of every line of the trace."""

    def __init__(self, changed: threading.Condition) -> None:
        super().__init__(logging.DEBUG)
        self.changed = changed

    def emit(self, record: logging.LogRecord) -> None:
        with self.changed:
            self.changed.notify_all()


class Rig:
    """Agents `p0`, `p1`, ... with kids `p0k0`, `p0k1` and so on; each is a model of its own.

    What a model says stands in its prompt, see `plan_of`. A step is

    * `say`: the final text, also after the last step,
    * `ask`, `ask2`, `work`, `mix`: calls of `ask` and `work`,
    * one of these behind a `!`: the provider fails the first time,
    * a list of plans: a `task` call for each kid, at the same time.
    """

    def __init__(self, parents: int = 3, levels: int = 1, **options: Any) -> None:
        # Guards what follows; notified on every change of the runtime.
        self.changed = threading.Condition()
        self.replies: dict[str, Held] = {}
        self.tools: list[Held] = []
        self.stale: list[Held] = []
        self.failed: set[str] = set()
        self.expected_kids = 0
        self.ask = Ask()
        self.llm = ScriptedLlm()
        tools = [self.ask, Work(self._hold_tool)]
        names = [f"p{number}" for number in range(parents)]
        definitions = []
        for _ in range(levels):
            kids = [f"{name}k{number}" for name in names for number in range(2)]
            for name in names:
                team = [f"{name}k0", f"{name}k1"]
                definitions.append(AgentDef(name, name, "", name, tools=tools, team=team))
            names = kids
        definitions += [AgentDef(name, name, "", name, tools=tools) for name in names]
        for definition in definitions:
            self.llm.answer(definition.name, self._answer)
        options.setdefault("shutdown_ms", 0)
        self.rt = AgentRuntime(
            base_url=self.llm.base_url,
            api_key="k",
            retries=0,
            registry=definitions,
            **options,
        )
        self.bell = _Bell(self.changed)
        self.logger = logging.getLogger("toolnexus.trace")
        self.logger.addHandler(self.bell)
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False

    def close_all(self) -> None:
        """Let everything go, end the runtime and the server."""
        self.logger.removeHandler(self.bell)
        self.logger.setLevel(logging.NOTSET)
        self.logger.propagate = True
        try:
            with self.changed:
                for held in [*self.tools, *self.stale]:
                    held.gate.set()
            self.rt.close(self.rt.root, force=True)
        finally:
            self.llm.close()

    # -- what is held -------------------------------------------------------------------------

    @property
    def held(self) -> list[Held]:
        """What can be let go, in an order that is the same in every run."""
        with self.changed:
            replies = [self.replies[name] for name in sorted(self.replies)]
            return replies + sorted(self.tools, key=lambda one: one.agent)

    def release(self, held: Held) -> None:
        """Let one reply or tool go, and wait until nothing moves any more."""
        with self.changed:
            self.replies = {k: v for k, v in self.replies.items() if v is not held}
            self.tools = [one for one in self.tools if one is not held]
            self.expected_kids += held.tasks
        held.gate.set()
        self.wait_quiet()

    def release_stale(self) -> None:
        """Let the tools of interrupted turns go, and wait until their threads are free."""
        with self.changed:
            stale, self.stale = self.stale, []
        for held in stale:
            held.gate.set()
        spawned = {line.partition(":")[0] for line in self.rt.trace() if ": spawned" in line}
        handles = [one for one in map(self.rt.handle, spawned) if one is not None]
        self.until(lambda: all(one._stale_runs == 0 for one in handles))
        self.wait_quiet()

    def release_everything(self) -> None:
        while held := self.held:
            self.release(held[0])

    # -- waiting ------------------------------------------------------------------------------

    def until(self, holds: Callable[[], object]) -> None:
        with self.changed:
            for _ in range(int(_PATIENCE / _SLICE)):
                if holds():
                    return
                self.changed.wait(_SLICE)
        raise AssertionError(f"still moving: {self.rt.list()}\n" + "\n".join(self.rt.trace()))

    def wait_quiet(self) -> None:
        """Block until each running handle waits for a gate or for a child."""
        self.until(self._is_quiet)

    def settle_stopped(self) -> None:
        """Forget the gates of turns that were stopped. Only while everything is quiet."""
        running = {view.id for view in self.rt.list() if view.state is State.RUNNING}
        agents = {agent_of(one) for one in running}
        with self.changed:
            self.replies = {k: v for k, v in self.replies.items() if k in agents}
            self.stale += [one for one in self.tools if one.handle_id not in running]
            self.tools = [one for one in self.tools if one.handle_id in running]

    def _is_quiet(self) -> bool:
        running = {view.id for view in self.rt.list() if view.state is State.RUNNING}
        kids = {line.partition(":")[0] for line in self.rt.trace() if "(wake)" in line}
        # Where threads are few a task may begin only when another one has ended.
        is_free = self.rt.options.max_workers >= 32
        if is_free and sum(one.count("/") > 1 for one in kids) < self.expected_kids:
            return False
        parents = {one.rpartition("/")[0] for one in running}
        working = {one.handle_id for one in self.tools}
        # The thread of an interrupted tool may be one that the ancestors lent.
        stuck = [one.handle_id or "" for one in self.stale]
        return all(
            agent_of(one) in self.replies
            or one in working
            or one in parents
            or any(below.startswith(f"{one}/") for below in stuck)
            for one in running
        )

    # -- the model and the tools --------------------------------------------------------------

    def _hold_tool(self, held: Held) -> None:
        with self.changed:
            self.tools.append(held)
            self.changed.notify_all()

    def _answer(self, request: RecordedRequest) -> Reply:
        gate = threading.Event()
        reply, tasks = self._reply(request)
        with self.changed:
            self.replies[request.model] = Held(request.model, gate, tasks)
            self.changed.notify_all()
        return reply.held_by(gate)

    def _reply(self, request: RecordedRequest) -> tuple[Reply, int]:
        said = 0
        for message in reversed(request.messages):
            if message["role"] == "user":
                break
            said += message["role"] == "assistant"
        unique, _, steps = request.prompt.partition("\n")[0].partition(": ")
        plan: Plan = json.loads(steps) if unique.startswith("plan ") else []
        step = plan[said] if said < len(plan) else "say"
        if isinstance(step, list):
            kids = [
                call(
                    "task", {"agent": f"{request.model}k{n}", "prompt": f"{unique}.{n}: {job}"}
                )
                for n, job in enumerate(map(json.dumps, step))
            ]
            return tool_calls(*kids), len(kids)
        if step.startswith("!"):
            key = f"{unique}#{said}"
            if key not in self.failed:
                self.failed.add(key)
                return status(500), 0
        tools = _CALLS.get(step.removeprefix("!"))
        return (tool_calls(*map(call, tools)) if tools else text("done")), 0


_CALLS = {
    "ask": ("ask",),
    "ask2": ("ask", "ask"),
    "work": ("work",),
    "mix": ("ask", "work"),
}


def plan_of(unique: object, *steps: Any) -> str:
    """Return the prompt that makes a model take these steps."""
    return f"plan {unique}: {json.dumps(steps)}"


def agent_of(handle_id: str) -> str:
    """Return the agent's name: the last part of the id without its number."""
    return handle_id.rpartition("/")[2].rpartition(".")[0]
