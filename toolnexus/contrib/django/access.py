"""What a project calls: the runtime of this process, and a start that a commit sets off."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import transaction

from toolnexus.errors import ToolnexusError
from toolnexus.parts.part import Prompt
from toolnexus.runtime.definition import AgentDef
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.runtime import AgentRuntime

if TYPE_CHECKING:
    from toolnexus.contrib.django.apps import ToolnexusConfig

logger = logging.getLogger(__name__)

LABEL = "toolnexus"
"""The label of the application, among those of a project."""


def runtime() -> AgentRuntime:
    """Return the runtime of this process, which is made at the first call. Thread-safe.

    Raises:
        ConfigError: The setting `TOOLNEXUS` does not make sense.
        LookupError: `toolnexus.contrib.django` is not in `INSTALLED_APPS`.
    """
    config: ToolnexusConfig = apps.get_app_config(LABEL)
    return config.runtimes.get()


def start(agent: str | AgentDef, prompt: Prompt, *, using: str | None = None) -> Handle:
    """Spawn an agent, and wake it once the transaction has been committed. Never blocks.

    So its tools find the rows that the caller has written. Without a transaction it is woken
    at once. Where the transaction is rolled back the agent is never woken, and stays `idle`.
    One that cannot be woken is closed: its result says why, and so does the log.

    Args:
        agent: An agent of the registry, or a definition.
        prompt: What it is asked.
        using: The database whose transaction counts; None for the default one.

    Returns:
        The handle; its `id` is what a client asks for.

    Raises:
        SpawnError: The spawn was refused.
        ToolnexusError: From the commit: it could neither be woken nor closed. It stays `idle`.
    """
    rt = runtime()
    handle = rt.spawn(rt.root, agent).handle

    transaction.on_commit(lambda: _wake(rt, handle, prompt), using=using)
    return handle


def _wake(rt: AgentRuntime, handle: Handle, prompt: Prompt) -> None:
    """Wake an agent, or close it: one that stays idle is waited for in vain."""
    try:
        why = rt.wake(handle, prompt).error
    except ToolnexusError as error:
        logger.exception("%s was not woken", handle.id)
        why = str(error)
    else:
        if why is not None:
            logger.error("%s was not woken: %s", handle.id, why)
    if why is not None:
        rt.close(handle, force=True, reason=f"not woken: {why}")
