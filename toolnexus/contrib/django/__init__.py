"""Django: a runtime for each process of a project. The extra `toolnexus[django]`.

An application for `INSTALLED_APPS`, configured by the setting `TOOLNEXUS`.
"""

from __future__ import annotations

from toolnexus.errors import ConfigError

try:
    import django  # noqa: F401 - looked for here, once for all of the package
except ImportError as error:
    raise ConfigError(
        "toolnexus.contrib.django needs Django: pip install 'toolnexus[django]'"
    ) from error

from toolnexus.contrib.django.access import runtime, start

__all__ = ["runtime", "start"]
