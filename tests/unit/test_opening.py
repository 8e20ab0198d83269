"""A URL becomes a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from toolnexus.errors import ConfigError
from toolnexus.stores import MemoryStore, PostgresStore, RunStore, SqliteStore, open_store

SECRET = "s3cr3t-canary"


def test_a_store_is_returned_as_it_is_and_stays_its_makers() -> None:
    store = MemoryStore()
    assert isinstance(store, RunStore)
    assert open_store(store) == (store, False)


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("memory://", MemoryStore, "MemoryStore()"),
        ("sqlite:///runs.db", SqliteStore, "SqliteStore('{here}/runs.db')"),
        ("sqlite:///a%20b/runs.db", SqliteStore, "SqliteStore('{here}/a b/runs.db')"),
        ("sqlite:////var/runs.db", SqliteStore, "SqliteStore('/var/runs.db')"),
        (
            "sqlite:///r.db?synchronous=normal&timeout=2",
            SqliteStore,
            "SqliteStore('{here}/r.db')",
        ),
        (
            f"postgresql://me:{SECRET}@db.example:5433/runs",
            PostgresStore,
            "PostgresStore('postgresql://me@db.example:5433/runs')",
        ),
        ("postgresql:///runs", PostgresStore, "PostgresStore('postgresql:///runs')"),
        (
            "postgres://db/runs?pool_size=3&timeout=2.5&sslmode=require",
            PostgresStore,
            "PostgresStore('postgresql://db/runs')",
        ),
    ],
)
def test_a_url_makes_a_store_and_opens_nothing(
    url: str, kind: type, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store, is_owned = open_store(url)
    assert type(store) is kind
    assert is_owned
    assert repr(store) == shown.format(here=os.path.realpath(tmp_path))
    assert list(tmp_path.iterdir()) == []
    store.close()


def test_options_reach_the_store() -> None:
    store: Any = open_store("sqlite:///r.db?synchronous=normal&timeout=2.5")[0]
    assert (store.database._synchronous, store.database._timeout) == ("normal", 2.5)
    store = open_store("postgresql://db/runs?sslmode=require&pool_size=3&timeout=2")[0]
    assert (store.database._pool_size, store.database._timeout) == (3, 2.0)
    assert store.database._conninfo == "postgresql://db/runs?sslmode=require"
    store = open_store("postgresql:///runs?host=/run/sockets&timeout=2")[0]
    assert store.database._conninfo == "postgresql:///runs?host=/run/sockets"


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (f"mysql://me:{SECRET}@db/runs", "begins with 'mysql'"),
        (f"runs.db?{SECRET}", "not 'runs.db'"),
        (f"me:{SECRET}@db/runs", "begins with 'me'"),
        (f"{SECRET}@db/runs", "begins with ''"),
        (f"postgresql://a:{SECRET}@[", "cannot be read"),
        (f"postgresql://a:{SECRET}@h/db?nonsense={SECRET}", "cannot be read"),
        (f"postgresql://a:{SECRET}@h/db?pool_size={SECRET}", "pool_size must be a number"),
        (f"postgresql://a:{SECRET}@h/db?pool_size=0", "from 1 on"),
        ("sqlite://runs.db", "three slashes"),
        ("sqlite://", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("sqlite:///r.db?mode=ro", "not mode"),
        ("sqlite:///r.db?synchronous=off", "full or normal"),
        ("sqlite:///r.db?timeout=soon", "timeout must be a number"),
        ("memory://x", "nothing behind it"),
        (Path("runs.db"), "PosixPath"),
        (None, "NoneType"),
        (object(), "object"),
    ],
)
def test_anything_else_is_refused_and_no_password_told(where: Any, says: str) -> None:
    with pytest.raises(ConfigError) as told:
        open_store(where)
    assert says in str(told.value)
    assert SECRET not in str(told.value)


def test_what_is_no_store_is_told_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match=r"or a RunStore, not int$"):
        open_store(3)  # type: ignore[arg-type]

    class Other:
        def __getattr__(self, name: str) -> object:
            if name in ("take", "prune"):
                raise AttributeError(name)
            return print

    with pytest.raises(ConfigError, match=r"not Other, which lacks take, prune$"):
        open_store(Other())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "sqlite:///runs.db",
            "SqliteStore('runs.db'), or AgentRuntime(store='sqlite:///runs.db')",
        ),
        ("sqlite:////var/runs.db?timeout=2", "AgentRuntime(store='sqlite:////var/runs.db')"),
        ("sqlite://runs.db", "AgentRuntime(store='sqlite:///runs.db')"),
        ("sqlite:///", "SqliteStore('runs.db')"),
        (f"postgresql://me:{SECRET}@db/runs", "not a URL of postgresql"),
    ],
)
def test_a_url_is_no_path(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as told:
        SqliteStore(url)
    assert says in str(told.value)
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(
    "path", ["runs.db", "/var/a:b//c.db", "C://runs.db", "://", Path("r.db")]
)
def test_what_is_no_url_is_a_path(path: str | Path) -> None:
    assert SqliteStore(path).path == os.path.abspath(path)


@pytest.mark.parametrize("path", [":memory:", "runs\0.db"])
def test_a_path_that_is_none_of_a_file_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="a file's path is due"):
        SqliteStore(path)
    with pytest.raises(ConfigError, match="a file's path is due"):
        open_store(f"sqlite:///{path}")
