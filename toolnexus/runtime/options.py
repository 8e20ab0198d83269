"""RuntimeOptions: every client option, and what a tree of agents needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from toolnexus import checks
from toolnexus.budget import EMPTY_BUDGET, Budget
from toolnexus.client.options import ClientOptions
from toolnexus.errors import ConfigError
from toolnexus.runtime.definition import AgentDef

if TYPE_CHECKING:
    from toolnexus.client.options import ClientOptionFields
    from toolnexus.runtime.handle import PendingRequest
    from toolnexus.stores.base import RunStore
    from toolnexus.stores.conversations import ConversationStore
    from toolnexus.threads import WrapJob

    class RuntimeOptionFields(ClientOptionFields, total=False):
        """The options by name, for whoever checks types; see `RuntimeOptions`."""

        registry: Mapping[str, AgentDef] | Iterable[AgentDef]
        default_model: str
        budget: Budget
        inbox_cap: int
        max_concurrent_turns: int
        shutdown_ms: int
        trace_limit: int
        audit_limit: int
        on_suspend: OnSuspend | None
        authorize: Authorize | None
        expire_requests: bool
        store: RunStore | str | None
        name: str
        lease_ms: int
        max_recoveries: int
        recover: bool
        wrap_job: WrapJob | None
        inline: bool


OnSuspend: TypeAlias = "Callable[[PendingRequest], object]"
Authorize: TypeAlias = "Callable[[Any, PendingRequest], bool]"


def _not_here(_instance: object, _attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        raise ConfigError(
            "conversation_store is for LlmClient.ask; a runtime keeps its agents' transcripts"
        )


@attrs.frozen(kw_only=True)
class RuntimeOptions(ClientOptions):
    """Every option of `ClientOptions`, and what a tree of agents needs.

    `system_prompt` goes before each agent's soul; `hooks`, `on_metric` and `wait_for` hold for
    agents that have none of their own; `max_turns` for those whose budget does not say.
    `conversation_store` is refused: it belongs to a client's conversations.

    Attributes:
        registry: Agents that can be spawned: a mapping of names, or definitions.
        default_model: The model of agents that inherit it; `model` is another word for it.
        budget: Limits of the whole tree.
        inbox_cap: Items that an inbox holds; a post to a full one is refused.
        max_concurrent_turns: LLM requests on the wire at once, over the whole tree.
        shutdown_ms: Milliseconds that a closing handle's turn has to finish by itself.
        trace_limit: Trace lines kept.
        audit_limit: Requests that the audit keeps in memory; the oldest settled ones go first.
            A store keeps all of them.
        on_suspend: Called with each `PendingRequest` after its agent has parked, at least once;
            what it raises is logged.
        authorize: Called with a principal and the `PendingRequest` that it wants to answer;
            only True lets it. Its `arguments` are those that the answer would let the call run
            with. Where it is given, `resume` has to be given a principal.
        expire_requests: Whether a timer settles what has expired; else `expire_due` does.
        store: Where runs are kept, so that they outlive this process and others share them: a
            URL such as `sqlite:///runs.db`, or an object; None keeps them in memory, to the
            runtime's end.
        name: What the runtimes that share the runs of a store have in common.
        lease_ms: Milliseconds after which others may take a run over whose process is silent.
        max_recoveries: How often in a row a run is taken over in the middle of a turn before
            its turn ends in an error.
        recover: Whether `recover` is called when the runtime is made.
        wrap_job: Called around each turn and each tool on threads of the runtime's own, with a
            function without arguments that does it, and which it calls once. What it raises is
            logged, and the work is done all the same.
        inline: Whether turns are executed by the thread that sets them going, before the verb
            returns, and none by workers: for tests within a transaction.
    """

    registry: Mapping[str, AgentDef] | Iterable[AgentDef] = attrs.field(factory=dict)
    default_model: str = attrs.field(default="", validator=checks.text)
    budget: Budget = attrs.field(default=EMPTY_BUDGET, validator=checks.instance_of(Budget))
    inbox_cap: int = attrs.field(default=8, validator=checks.whole_from(1))
    max_concurrent_turns: int = attrs.field(default=8, validator=checks.whole_from(1))
    max_workers: int = attrs.field(default=32, validator=checks.whole_from(1))
    shutdown_ms: int = attrs.field(default=200, validator=checks.whole_from(0))
    conversation_store: ConversationStore | None = attrs.field(
        default=None, repr=False, validator=_not_here
    )
    trace_limit: int = attrs.field(default=10_000, validator=checks.whole_from(0))
    audit_limit: int = attrs.field(default=10_000, validator=checks.whole_from(0))
    on_suspend: OnSuspend | None = attrs.field(default=None, validator=checks.can_be_called)
    authorize: Authorize | None = attrs.field(default=None, validator=checks.can_be_called)
    expire_requests: bool = attrs.field(default=False, validator=checks.instance_of(bool))
    store: RunStore | str | None = attrs.field(default=None, repr=False)
    name: str = attrs.field(default="default", validator=checks.text)
    lease_ms: int = attrs.field(default=30_000, validator=checks.whole_from(1))
    max_recoveries: int = attrs.field(default=3, validator=checks.whole_from(0))
    recover: bool = attrs.field(default=False, validator=checks.instance_of(bool))
    wrap_job: WrapJob | None = attrs.field(default=None, validator=checks.can_be_called)
    inline: bool = attrs.field(default=False, validator=checks.instance_of(bool))
