"""Flask: a runtime for each process of an application. The extra `toolnexus[flask]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from toolnexus.client.options import options_from
from toolnexus.contrib.per_process import PerProcess
from toolnexus.contrib.pruning import AGE_HELP, age, prune
from toolnexus.contrib.recovering import EVERY_HELP, LIMIT_HELP, recover
from toolnexus.errors import ConfigError
from toolnexus.runtime.options import RuntimeOptions
from toolnexus.runtime.runtime import AgentRuntime

try:
    import click
    from flask import Flask, current_app
    from flask.cli import AppGroup
except ImportError as error:
    raise ConfigError(
        "toolnexus.contrib.flask needs Flask: pip install 'toolnexus[flask]'"
    ) from error

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from toolnexus.runtime.options import RuntimeOptionFields
    from toolnexus.threads import WrapJob

_NAME: Final = "toolnexus"


class Toolnexus:
    """The extension: one for any number of applications.

        agents = Toolnexus(registry=[desk], default_model="gpt-4o-mini")
        agents.init_app(app)
        agents.runtime.spawn(...)    # in a view, or a command

    Each process of an application makes its runtime at the first use, with the options given
    here and, over them, those of the mapping `app.config["TOOLNEXUS"]`. Turns and tools on the
    runtime's own threads have an application context each, and no request. Thread-safe.
    """

    def __init__(
        self, app: Flask | None = None, **options: Unpack[RuntimeOptionFields]
    ) -> None:
        """Keep the options; with `app`, do what `init_app` does."""
        self._options: dict[str, Any] = dict(options)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Let `app` have a runtime, and the commands `flask toolnexus ...`. Starts nothing.

        Raises:
            ConfigError: An option does not exist, or has a wrong value.
        """
        configured = app.config.get("TOOLNEXUS", {})
        if not isinstance(configured, Mapping):
            raise ConfigError("the setting TOOLNEXUS is a mapping of options to their values")
        given = {**self._options, **configured}
        given["wrap_job"] = partial(_in_app, app, given.get("wrap_job"))
        options: RuntimeOptions = options_from(RuntimeOptions, None, given)
        app.extensions[_NAME] = PerProcess(partial(AgentRuntime, options))
        app.cli.add_command(_commands(self))

    @property
    def runtime(self) -> AgentRuntime:
        """The runtime of this process for the current application.

        Raises:
            ConfigError: `init_app` was not called with that.
            RuntimeError: There is no application context.
        """
        return self._of(current_app).get()

    def close(self, app: Flask) -> None:
        """Close the runtime that this process has for `app`; its end does so by itself."""
        self._of(app).close()

    @staticmethod
    def _of(app: Flask) -> PerProcess:
        place = app.extensions.get(_NAME)
        if not isinstance(place, PerProcess):
            raise ConfigError("this application has no runtime: call init_app with it")
        return place


def _in_app(app: Flask, wrap_job: WrapJob | None, job: Callable[[], None]) -> None:
    """Do a job in an application context of its own."""
    work = job if wrap_job is None else partial(wrap_job, job)

    def push() -> None:
        with app.app_context():
            work()

    _without_request().run(push)


def _without_request() -> Context:
    """Return this context without what Flask keeps in it.

    A turn has a copy of the context in which it was set going, as a rule that of a request. Its
    request may be over, and its connections closed.
    """
    context = Context()
    for variable, value in copy_context().items():
        if not variable.name.startswith("flask."):
            context.run(variable.set, value)
    return context


def _commands(agents: Toolnexus) -> AppGroup:
    group = AppGroup(_NAME, help="Agents and their runs.")

    @group.command("recover")
    @click.option("--every", type=float, metavar="SECONDS", help=EVERY_HELP)
    @click.option("--limit", type=float, metavar="SECONDS", help=LIMIT_HELP)
    def recover_runs(every: float | None, limit: float | None) -> None:
        """Go on with runs whose process has died in the middle of a turn."""
        recover(agents.runtime, every, click.echo, limit)

    @group.command("prune")
    @click.option("--older-than", required=True, callback=_age, metavar="AGE", help=AGE_HELP)
    def prune_runs(older_than: timedelta) -> None:
        """Delete runs that nobody has touched for long."""
        prune(agents.runtime, older_than, click.echo)

    return group


def _age(_context: click.Context, _option: click.Parameter, text: str) -> timedelta:
    try:
        return age(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
