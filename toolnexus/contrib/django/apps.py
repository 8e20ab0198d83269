"""The application: it has the runtime of this process."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed

from toolnexus.contrib.django.access import LABEL
from toolnexus.contrib.django.conf import SETTING, options_from_settings
from toolnexus.contrib.per_process import PerProcess
from toolnexus.errors import ConfigError
from toolnexus.runtime.runtime import AgentRuntime


class ToolnexusConfig(AppConfig):
    """The application of a project that has agents.

    Attributes:
        runtimes: Has the runtime of this process; see `toolnexus.contrib.django.runtime`.
    """

    name = "toolnexus.contrib.django"
    label = LABEL
    verbose_name = "Agents"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.runtimes = PerProcess(lambda: AgentRuntime(options_from_settings()))

    def ready(self) -> None:
        """Let `manage.py check` look at the setting; nothing is made or started.

        A test that overrides the setting has a runtime of its own.
        """
        checks.register(_check_setting)
        setting_changed.connect(self._forget)

    def _forget(self, *, setting: str, **_: object) -> None:
        if setting == SETTING:
            self.runtimes.close()


def _check_setting(**_: object) -> list[checks.Error]:
    try:
        options_from_settings()
    except ConfigError as error:
        return [checks.Error(str(error), id="toolnexus.E001")]
    return []
