"""From what a host says of its store to the store."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from toolnexus.errors import ConfigError
from toolnexus.stores.base import RunStore

_FORMS: Final = (
    "memory://, sqlite:///relative/path.db, sqlite:////absolute/path.db or"
    " postgresql://user@host/database"
)
_POSTGRES: Final = ("postgres", "postgresql")


def open_store(where: str | RunStore) -> tuple[RunStore, bool]:
    """Return the store that `where` stands for, and whether the caller has to close it.

    A store is returned as it is, and its maker closes it. A URL makes a new one: `memory://`;
    `sqlite:///runs.db`, a file in the current directory, or `sqlite:////var/lib/runs.db`;
    `postgresql://user:password@host/database`. After a `?` come options of the store:
    `synchronous` and `timeout` of `SqliteStore`, `pool_size` and `timeout` of `PostgresStore`;
    what else stands there is left to PostgreSQL. Nothing is opened before the first call.

    Raises:
        ConfigError: It is neither, or an option is not known; no password is quoted.
    """
    if not isinstance(where, str):
        if isinstance(where, RunStore):
            return where, False
        raise ConfigError(_no_store(where))
    try:
        url = urlsplit(where)
    except ValueError:
        raise ConfigError(f"the URL of the store cannot be read; it is {_FORMS}") from None
    if url.scheme == "memory":
        return _memory(url), True
    if url.scheme == "sqlite":
        return _sqlite(url), True
    if url.scheme in _POSTGRES:
        return _postgres(where), True
    if not url.scheme and "@" not in where:
        raise ConfigError(f"the URL of a store is {_FORMS}, not {where.partition('?')[0]!r}")
    # The rest may be anything, so also a password.
    raise ConfigError(f"the URL of a store is {_FORMS}; this one begins with {url.scheme!r}")


def _no_store(given: object) -> str:
    methods = [name for name in vars(RunStore) if not name.startswith("_")]
    lacking = [name for name in methods if not hasattr(given, name)]
    why = f", which lacks {', '.join(lacking)}" if len(lacking) < len(methods) else ""
    return f"a store is a URL ({_FORMS}) or a RunStore, not {type(given).__name__}{why}"


def _memory(url: SplitResult) -> RunStore:
    if url.netloc or url.path or url.query:
        raise ConfigError("the URL of a store in memory is memory://, with nothing behind it")
    return _store("memory", "MemoryStore")


def _sqlite(url: SplitResult) -> RunStore:
    path = unquote(url.path[1:])
    if url.netloc or not path:
        raise ConfigError(
            "the URL of an SQLite file has three slashes and a path, sqlite:///runs.db, or four"
            " before an absolute one, sqlite:////var/lib/runs.db"
        )
    options = dict(parse_qsl(url.query, keep_blank_values=True))
    known = _options(options, {"synchronous": str, "timeout": float})
    if options:
        raise ConfigError(
            f"the URL of an SQLite file has the options synchronous and timeout, not"
            f" {', '.join(options)}"
        )
    return _store("sqlite", "SqliteStore", path, **known)


def _postgres(url: str) -> RunStore:
    # Taken apart by hand: put together again, a URL without a host lacks two of its slashes.
    place, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = _options(options, {"pool_size": int, "timeout": float})
    rest = "&".join(part for part in query.split("&") if part.partition("=")[0] not in known)
    conninfo = f"{place}?{rest}" if rest else place
    return _store("postgres", "PostgresStore", conninfo, **known)


def _options(given: dict[str, str], known: Mapping[str, type]) -> dict[str, Any]:
    """Take the known options out of those given, each as its type.

    Raises:
        ConfigError: One is no number.
    """
    found: dict[str, Any] = {}
    for name, kind in known.items():
        if name in given:
            try:
                found[name] = kind(given.pop(name))
            except ValueError:
                raise ConfigError(f"the store's option {name} must be a number") from None
    return found


def _store(module: str, name: str, *args: Any, **options: Any) -> RunStore:
    # Not before it is wanted: each brings its database's driver along.
    made = getattr(importlib.import_module(f"toolnexus.stores.{module}"), name)
    store: RunStore = made(*args, **options)
    return store
