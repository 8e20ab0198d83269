"""The declared form: an agent and its team in one expression, run in one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.approvals import ApprovalPolicy
from toolnexus.budget import EMPTY_BUDGET, Budget
from toolnexus.client.options import OnMetric, WaitFor, options_from
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError, InvalidAnswer
from toolnexus.messages import Status
from toolnexus.parts.part import Prompt
from toolnexus.results import TaskResult
from toolnexus.runtime.definition import AgentDef, index_registry
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.runtime.runtime import AgentRuntime
from toolnexus.schema import parse_arguments
from toolnexus.suspension import Answer, Request, opened
from toolnexus.toolspec import Tool, ToolContext, ToolResult

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from toolnexus.runtime.options import RuntimeOptionFields


def agent(  # noqa: PLR0913 - all but the name are keywords
    name: str,
    *,
    does: str = "",
    soul: str = "",
    model: str = "inherit",
    tools: Iterable[Tool] = (),
    team: Iterable[Agent] = (),
    budget: Budget = EMPTY_BUDGET,
    wait_for: WaitFor | None = None,
    approval_policy: ApprovalPolicy | None = None,
    on_spawn: Callable[[Handle], object] | None = None,
    on_close: Callable[[Handle, str], object] | None = None,
    hooks: Any = None,
    on_metric: OnMetric | None = None,
) -> Agent:
    """Declare an agent.

    Args:
        name: How others call it.
        does: One line for the models that may delegate to it.
        soul: Its system prompt.
        model: A model's name; `inherit` takes the caller's.
        tools: What its model may call.
        team: Agents it may delegate to.
        budget: Its limits.
        wait_for: Answers requests inline, its own and its team's.
        approval_policy: Decides on each of its calls; see `ClientOptions`.
        on_spawn: Called with each new handle; what it raises refuses the spawn.
        on_close: Called with the handle and the reason before it closes.
        hooks: Replaces the runtime's hooks.
        on_metric: Replaces the runtime's `on_metric`.

    Raises:
        ConfigError: A part has the wrong type, or two tools or members share a name.
    """
    members = tuple(team)
    for member in members:
        if not isinstance(member, Agent):
            raise ConfigError(f"agent {name!r}: a team lists agents, not {member!r}")
    return Agent(
        AgentDef(
            name,
            does,
            soul,
            model,
            tools=tuple(tools),
            team=[member.name for member in members],
            members=index_registry([member.definition for member in members]),
            budget=budget,
            wait_for=wait_for,
            approval_policy=approval_policy,
            on_spawn=on_spawn,
            on_close=on_close,
            hooks=hooks,
            on_metric=on_metric,
        )
    )


@attrs.frozen(repr=False)
class Agent:
    """A declared agent. Immutable; one serves any number of runs and threads.

    Attributes:
        definition: What runtimes know it by; its team comes with it.
    """

    definition: AgentDef

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.definition.name

    def __repr__(self) -> str:
        return f"<Agent {self.name}>"

    def registry(self) -> dict[str, AgentDef]:
        """Return the agent and, through teams of teams, everybody it may delegate to.

        Raises:
            ConfigError: Two different agents share a name.
        """
        found: dict[str, AgentDef] = {}
        waiting = [self.definition]
        while waiting:
            one = waiting.pop()
            if found.setdefault(one.name, one) is not one:
                raise ConfigError(f"two agents are named {one.name!r}; rename one")
            waiting.extend(m for m in one.members.values() if found.get(m.name) is not m)
        return found

    def run(
        self,
        prompt: Prompt,
        options: RuntimeOptions | None = None,
        **given: Unpack[RuntimeOptionFields],
    ) -> AgentRun:
        """Run `prompt` in a runtime of its own, which closes at the end unless the run parks.

        Blocks.

        Args:
            prompt: What the agent is asked: a text, or a list of texts and `Part`.
            options: The runtime's options.
            **given: The same by name.

        Raises:
            ConfigError: An option does not fit.
        """
        chosen: RuntimeOptions = options_from(RuntimeOptions, options, given)
        others = index_registry(chosen.registry)
        registry = {**others, **self.registry()}
        runtime = AgentRuntime(attrs.evolve(chosen, registry=registry))
        try:
            handle = runtime.spawn(runtime.root, self.definition).handle
            result = runtime.run_turn(handle, prompt)
        except BaseException:
            runtime.close(runtime.root, force=True)
            raise
        return AgentRun.of(runtime, handle, result)

    def as_tool(
        self, options: RuntimeOptions | None = None, **given: Unpack[RuntimeOptionFields]
    ) -> AgentTool:
        """Return the agent as a tool for other agents, or for a bare client.

        Inside a runtime it runs as a child of the caller, and its questions are the caller's.

        Args:
            options: For use outside a runtime: the options of the runtime it then makes.
            **given: The same by name.
        """
        own = options_from(RuntimeOptions, options, given) if options or given else None
        return AgentTool(self, own)


@attrs.frozen
class AgentRun:
    """What `Agent.run` gave. A context manager that closes a parked run's runtime.

    Attributes:
        result: The agent's result.
        runtime: The runtime; closed unless the run is pending.
        handle: The agent's handle in it.
    """

    result: TaskResult
    runtime: AgentRuntime = attrs.field(repr=False)
    handle: Handle = attrs.field(repr=False)

    @classmethod
    def of(cls, runtime: AgentRuntime, handle: Handle, result: TaskResult) -> AgentRun:
        """Return the run, its runtime closed unless it is pending."""
        if result.status != "pending":
            runtime.close(runtime.root)
        return cls(result, runtime, handle)

    @property
    def status(self) -> Status:
        """One of the seven strings of `STATUSES`."""
        return self.result.status

    @property
    def text(self) -> str:
        """The final text, or the open request's prompt."""
        return self.result.text

    @property
    def pending(self) -> Request | None:
        """The first open request in call order; None unless `pending`."""
        return self.result.pending

    def answer(
        self,
        ok: bool,  # noqa: FBT001 - run.answer(True) is how a person speaks
        data: JsonValue = None,
        reason: str | None = None,
    ) -> AgentRun:
        """Answer `pending` and return the run as it is afterwards. Blocks.

        Raises:
            ConfigError: Nothing is pending.
            ResumeError: The request was answered or withdrawn meanwhile, or has expired.
        """
        if self.pending is None:
            raise ConfigError(f"nothing to answer: the run is {self.status}")
        return self.resume(Answer(self.pending.id, ok, data, reason))

    def close(self) -> None:
        """Give up a parked run. Idempotent."""
        self.runtime.close(self.runtime.root, force=True)

    def resume(self, answer: Answer) -> AgentRun:
        """Give an answer to one of several open requests; else like `answer`. Blocks."""
        self.runtime.resume(answer)
        return AgentRun.of(self.runtime, self.handle, self.runtime.wait_on(self.handle))

    def __enter__(self) -> AgentRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AgentTool:
    """An agent as a tool. Made by `Agent.as_tool`. Thread-safe."""

    source = "agent"
    # A "no" goes to the agent that asked, which has the last word.
    handles_decline = True

    def __init__(self, agent: Agent, options: RuntimeOptions | None) -> None:
        self._agent = agent
        self._options = options
        self.requires_runtime = options is None
        self.name = agent.name
        self.description = agent.definition.does or f"Ask the agent {agent.name}."
        self.input_schema: Mapping[str, JsonValue] = {
            "type": "object",
            "properties": {
                "prompt": {
                    "type": "string",
                    "description": "The whole task; the agent sees nothing else.",
                }
            },
            "required": ["prompt"],
            "additionalProperties": False,
        }
        # Guards _parked: runs of calls outside a runtime that wait for an answer. Re-entrant,
        # for a dropped stream may be finalised in the middle of anything.
        self._lock = threading.RLock()
        self._parked: dict[str, AgentRun] = {}

    @property
    def definition(self) -> AgentDef:
        """What runtimes know the agent by."""
        return self._agent.definition

    def delegates(self, arguments: str) -> bool:
        """Say whether a call with these arguments will spawn a child."""
        return isinstance(parse_arguments(arguments, self.input_schema), dict)

    def close(self) -> None:
        """Give up the runs that calls outside a runtime have left parked."""
        with self._lock:
            parked, self._parked = list(self._parked.values()), {}
        for run in parked:
            run.close()

    def give_up(self, key: str) -> None:
        """End the run that the call with this idempotency key has left parked."""
        with self._lock:
            run = self._parked.pop(key, None)
        if run is not None:
            run.close()

    def execute(self, args: dict[str, JsonValue], ctx: ToolContext) -> ToolResult:
        """Run the agent, or go on with the run that this call had parked."""
        if ctx.delegate is not None:
            return ctx.delegate(self._agent.definition, args["prompt"])
        if self._options is None:
            return ToolResult.error(f"agent {self.name} runs only inside an AgentRuntime")
        with self._lock:
            run = self._parked.get(ctx.idempotency_key)
        if run is None and ctx.attempt > 1:
            return ToolResult.error(
                f"the parked run of agent {self.name} is not in this process"
            )
        if run is None:
            run = self._agent.run(args["prompt"], self._options)
        elif ctx.answer is not None and run.pending is not None:
            # What does not fit the agent's question leaves it open: it is asked again.
            with suppress(InvalidAnswer):
                run = run.resume(opened(ctx.answer, run.pending.id))
        with self._lock:
            self._parked.pop(ctx.idempotency_key, None)
            if run.pending is not None:
                self._parked[ctx.idempotency_key] = run
                return ToolResult.pending(run.pending)
        text = run.text if run.status == "done" else f"[{run.status}] {run.text}"
        return ToolResult(text, is_error=run.status != "done")
