"""TaskTool: the tool through which a model delegates."""

from __future__ import annotations

from collections.abc import Mapping

from toolnexus.codec import JsonValue
from toolnexus.runtime.definition import TASK, AgentDef
from toolnexus.schema import parse_arguments
from toolnexus.toolspec import Tool, ToolContext, ToolResult


class TaskTool:
    """Spawns an agent of the team, wakes it, waits and closes it, in one call.

    It exists only on agents whose definition names a team. A child that suspends suspends the
    call; when the turn is replayed the call reattaches to the same child.
    """

    name = TASK
    source = "agent"

    def __init__(self, team: Mapping[str, str]) -> None:
        """Make the tool for a team: what each member does, by name."""
        self._team = tuple(sorted(team))
        members = "; ".join(f"{name}: {team[name]}".removesuffix(": ") for name in self._team)
        self.description = (
            "Delegate a self-contained task to a specialist agent and get its final answer. "
            f"Agents: {members}"
        )
        self.input_schema: Mapping[str, JsonValue] = {
            "type": "object",
            "properties": {
                "agent": {"type": "string", "description": "Name of the agent."},
                "prompt": {
                    "type": "string",
                    "description": "The whole task; the agent sees nothing else.",
                },
            },
            "required": ["agent", "prompt"],
            "additionalProperties": False,
        }

    def delegates(self, arguments: str) -> bool:
        """Say whether a call with these arguments will spawn a child."""
        args = parse_arguments(arguments, self.input_schema)
        return isinstance(args, dict) and args.get("agent") in self._team

    def execute(self, args: dict[str, JsonValue], ctx: ToolContext) -> ToolResult:
        """Run the task to its end, or to its first question."""
        agent = args["agent"]
        if agent not in self._team:
            members = ", ".join(self._team) or "none"
            return ToolResult.error(f'agent "{agent}" not in this agent\'s team ({members})')
        if ctx.delegate is None:
            return ToolResult.error("task works only inside an AgentRuntime")
        return ctx.delegate(agent, args["prompt"])


def tool_of(definition: AgentDef, name: str) -> Tool | None:
    """Return the tool that a model of this agent calls by `name`; None where there is none."""
    if name == TASK and definition.team:
        return TaskTool(dict.fromkeys(definition.team, ""))
    return next((one for one in definition.tools if one.name == name), None)
