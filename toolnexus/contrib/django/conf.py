"""The setting TOOLNEXUS: options of the runtime, with dotted paths to what is an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.db import close_old_connections, connections
from django.utils.module_loading import import_string

from toolnexus.client.options import options_from
from toolnexus.errors import ConfigError
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.threads import WrapJob

SETTING: Final = "TOOLNEXUS"

PATHS: Final = frozenset(
    {
        "approval_policy",
        "authorize",
        "body_transform",
        "budget",
        "clock",
        "generate",
        "hooks",
        "on_error",
        "on_metric",
        "on_suspend",
        "output_store",
        "registry",
        "session",
        "tracing",
        "wait_for",
        "wrap_job",
    }
)
"""Options that a text names by a dotted path, as other settings of Django do."""


def options_from_settings() -> RuntimeOptions:
    """Return the options that the setting gives.

    Raises:
        ConfigError: It is no mapping, a path leads nowhere, or an option does not make sense.
    """
    configured = getattr(settings, SETTING, {})
    if not isinstance(configured, Mapping):
        raise ConfigError(f"{SETTING} must be a mapping of options to their values")
    given = {name: _value(name, value) for name, value in configured.items()}
    given["wrap_job"] = partial(_with_connections, given.get("wrap_job"))
    options: RuntimeOptions = options_from(RuntimeOptions, None, given)
    return options


def _value(name: str, value: Any) -> Any:
    if name not in PATHS or not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise ConfigError(f"{SETTING}[{name!r}]: {error}") from error


def _with_connections(wrap_job: WrapJob | None, job: Callable[[], None]) -> None:
    """Do a job, and leave its thread without connections.

    Persistent ones are closed too: a worker ends after a while without work, and nobody would
    close what it has.
    """
    close_old_connections()
    try:
        if wrap_job is None:
            job()
        else:
            wrap_job(job)
    finally:
        for connection in connections.all(initialized_only=True):
            # A tool in the middle of a transaction may run another agent's turn on its thread.
            if not connection.in_atomic_block:
                connection.close()
