"""AgentDef: what an agent is, apart from any run of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus import checks
from toolnexus.approvals import ApprovalPolicy
from toolnexus.budget import EMPTY_BUDGET, Budget
from toolnexus.client.hooks import kept_hooks
from toolnexus.client.options import OnMetric, WaitFor
from toolnexus.client.preparing import index_tools
from toolnexus.errors import ConfigError
from toolnexus.toolspec import Tool, require_tool_name

if TYPE_CHECKING:
    from toolnexus.runtime.handle import Handle

TASK = "task"
"""The name of the tool through which a model delegates."""


def _tools_of(value: Iterable[Tool]) -> tuple[Tool, ...]:
    return _as_tuple(value, "tools")


def _names_of(value: Iterable[str]) -> tuple[str, ...]:
    return _as_tuple(value, "team")


def _as_tuple(value: Iterable[Any], field: str) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ConfigError(f"AgentDef.{field} must be a list, not {value!r}")
    return tuple(value)


def _name(_instance: AgentDef, _attribute: attrs.Attribute[Any], value: object) -> None:
    require_tool_name(value, "an agent's name")


def _tools(instance: AgentDef, _attribute: attrs.Attribute[Any], value: Any) -> None:
    names = index_tools(value)
    if instance.team and TASK in names:
        raise ConfigError(
            f"agent {instance.name!r}: the tool name {TASK!r} is taken by its team; rename it"
        )


def _team(instance: AgentDef, _attribute: attrs.Attribute[Any], value: Any) -> None:
    for member in value:
        if not isinstance(member, str):
            raise ConfigError(
                f"agent {instance.name!r}: AgentDef.team lists names of agents, not {member!r}"
                " (the function agent(...) takes agents)"
            )


@attrs.frozen(eq=False, repr=False)
class AgentDef:
    """What an agent is. Immutable: one serves any number of runtimes and threads.

    Attributes:
        name: How others call it; also the middle of its handles' ids.
        does: One line for the models that may delegate to it.
        soul: Its system prompt.
        model: A model's name; `inherit` takes the parent's, in the end the runtime's.
        tools: What its model may call.
        team: Names of the agents it may delegate to; empty for no `task` tool.
        members: Definitions of team members that go before the registry's.
        budget: Its limits.
        wait_for: Answers the requests of this agent and of everything below it, inline.
        approval_policy: Replaces the runtime's for this agent; see `ClientOptions`.
        on_spawn: Called with each new handle; what it raises refuses the spawn.
        on_close: Called with the handle and the reason before it closes; errors are logged.
        hooks: Replaces the runtime's hooks for this agent.
        on_metric: Replaces the runtime's `on_metric` for this agent.
    """

    name: str = attrs.field(validator=_name)
    does: str = attrs.field(default="", validator=checks.text)
    soul: str = attrs.field(default="", validator=checks.text)
    model: str = attrs.field(default="inherit", validator=checks.text)
    team: tuple[str, ...] = attrs.field(
        default=(), converter=_names_of, kw_only=True, validator=_team
    )
    tools: tuple[Tool, ...] = attrs.field(
        default=(), converter=_tools_of, kw_only=True, validator=_tools
    )
    members: Mapping[str, AgentDef] = attrs.field(factory=dict, kw_only=True, repr=False)
    budget: Budget = attrs.field(
        default=EMPTY_BUDGET, kw_only=True, validator=checks.instance_of(Budget)
    )
    wait_for: WaitFor | None = attrs.field(
        default=None, kw_only=True, validator=checks.can_be_called
    )
    approval_policy: ApprovalPolicy | None = attrs.field(
        default=None, kw_only=True, validator=checks.can_be_called
    )
    on_spawn: Callable[[Handle], object] | None = attrs.field(
        default=None, kw_only=True, validator=checks.can_be_called
    )
    on_close: Callable[[Handle, str], object] | None = attrs.field(
        default=None, kw_only=True, validator=checks.can_be_called
    )
    hooks: Any = attrs.field(default=None, kw_only=True, converter=kept_hooks)
    on_metric: OnMetric | None = attrs.field(
        default=None, kw_only=True, validator=checks.can_be_called
    )

    def __repr__(self) -> str:
        return f"<AgentDef {self.name}>"


def index_registry(registry: object) -> dict[str, AgentDef]:
    """Return the definitions by name.

    Args:
        registry: A mapping of names, or an iterable of definitions.

    Raises:
        ConfigError: An entry is no definition, two share a name, or a team names nobody.
    """
    if isinstance(registry, Mapping):
        pairs = list(registry.items())
    elif isinstance(registry, Iterable) and not isinstance(registry, (str, bytes)):
        pairs = [(getattr(one, "name", None), one) for one in registry]
    else:
        raise ConfigError(f"registry must be a mapping or a list of AgentDef, not {registry!r}")
    known: dict[str, AgentDef] = {}
    for name, one in pairs:
        if not isinstance(one, AgentDef):
            hint = "; give its .definition" if hasattr(one, "definition") else ""
            raise ConfigError(f"registry holds AgentDef, not {one!r}{hint}")
        if name != one.name:
            raise ConfigError(f"registry key {name!r} leads to an agent named {one.name!r}")
        if name in known:
            raise ConfigError(f"two agents are named {name!r}; rename one")
        known[str(name)] = one
    for name, one in known.items():
        strangers = [m for m in one.team if m not in known and m not in one.members]
        if strangers:
            raise ConfigError(
                f"agent {name!r}: its team names {', '.join(map(repr, strangers))}, "
                f"which the registry does not have (known: {', '.join(sorted(known))})"
            )
    return known
