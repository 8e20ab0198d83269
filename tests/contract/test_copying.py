"""Runs taken from one store to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

import attrs
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.postgres import Postgres
from toolnexus.errors import ConfigError, StoreError
from toolnexus.stores import MemoryStore, PostgresStore, RunStore, SqliteStore, copy_runs
from toolnexus.stores.records import RunChange, Wait
from toolnexus.testing.store_suite.base import (
    LONG_MS,
    RT,
    answer,
    ask,
    at,
    begin,
    later,
    messages_of,
    new,
    start,
    take,
    write,
)

Make: TypeAlias = "Callable[[str], RunStore]"


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[RunStore] = []

    def store(kind: str) -> RunStore:
        if kind == "memory":
            made.append(MemoryStore())
        elif kind == "sqlite":
            made.append(SqliteStore(tmp_path / f"{len(made)}.db"))
        else:
            server: Postgres = request.getfixturevalue("postgres")
            made.append(PostgresStore(server.schema(f"{tmp_path.name}_{len(made)}")))
        return made[-1]

    yield store
    for one in made:
        one.close()


def fill(store: RunStore) -> None:
    """Write some of everything."""
    lease, other = begin(store), begin(store)
    child = f"{lease.run_id}/b.1"
    parts: Any = {"messages": {0: "m \ud800", 5: [1.0]}, "calls": {1: {}}, "posts": {7: "p"}}
    handles = (
        at(lease.run_id, "suspended", head={"z": 1, "a": 2}, **parts),
        at(child, **parts),
    )
    write(store, lease, handles=handles)
    write(store, lease, handles=(at(child, "closed"),))
    ask(store, lease, "q1", login="github", expires_at=later(1))
    write(store, other, waits=(Wait("q1", other.run_id, 3),))
    write(store, lease, done=(ask(store, lease, "q2", 2),), notes={"q2": "note"})
    write(store, other, is_busy=True, releases=True)
    other = take(store, other.run_id)
    ask(store, lease, "q3", 3)
    answer(store, "q3")
    store.announced(RT, ["q3"])
    store.send(RT, other.run_id, {"n": 1})
    store.send(RT, other.run_id, {"n": 2})
    write(store, other, is_busy=True)
    steps = [
        RunChange(lease=lease, opened=(new(f"m{n}"),), waits=(Wait(f"m{n}", lease.run_id, n),))
        for n in range(450)
    ]
    store.write(RT, steps)
    store.put_grant(RT, "g2", 2)
    store.put_grant(RT, "g1", 1)
    store.abandon(RT, "one")
    start(store, "x", runtime="another \x00")


def told(store: RunStore) -> dict[str, Any]:
    """Return all that a store tells."""
    numbers = {f"root/a.{n}": dict(store.mail(RT, f"root/a.{n}").signals) for n in (1, 2)}
    return {
        "handles": list(store.handles(RT)),
        "loaded": [store.load(RT, f"root/a.{n}") for n in (1, 2)],
        "child": store.handle(RT, "root/a.1/b.1"),
        "messages": messages_of(store, "root/a.1/b.1"),
        "requests": list(store.requests(RT)),
        "below": [one.id for one in store.requests(RT, under="root/a.2")],
        "signals": {run: list(signals.values()) for run, signals in numbers.items()},
        "answers": store.mail(RT, "root/a.1").answers,
        "grants": list(store.grants(RT).items()),
        "abandoned": store.abandoned(RT),
        "expiry": store.next_expiry(RT),
        "another": [attrs.evolve(one) for one in store.handles("another \x00")],
    }


@pytest.mark.parametrize(
    ("kind", "to"),
    [
        ("sqlite", "postgres"),
        ("postgres", "sqlite"),
        ("postgres", "postgres"),
        ("memory", "sqlite"),
        ("sqlite", "memory"),
    ],
)
def test_a_copy_tells_what_its_source_tells(make: Make, kind: str, to: str) -> None:
    source, target = make(kind), make(to)
    fill(source)
    before = told(source)
    assert copy_runs(source, target) == 3
    assert told(target) == before == told(source)
    assert start(source) == start(target) == "root/a.3"
    assert take(target, "root/a.2", "new").fence == 3
    assert take(target, "root/a.2", "new").recoveries == 1


def test_the_runs_of_one_runtime_are_copied(make: Make) -> None:
    source, target = make("sqlite"), make("sqlite")
    fill(source)
    assert copy_runs(source, target, runtime=RT) == 2
    assert list(target.handles("another \x00")) == []
    assert copy_runs(source, target, runtime="another \x00") == 1
    assert copy_runs(source, target, runtime="nobody's") == 0
    assert told(target) == told(source)


@pytest.mark.parametrize("to", ["sqlite", "postgres"])
def test_nothing_is_copied_over_what_is_there(make: Make, to: str) -> None:
    source, target = make("sqlite"), make(to)
    fill(source)
    start(target, "z", runtime="another \x00")
    with pytest.raises(StoreError, match="already"):
        copy_runs(source, target)
    assert list(target.handles(RT)) == []
    assert target.grants(RT) == {}
    assert start(target) == "root/a.1"


def test_a_login_that_is_open_in_both_is_in_the_way(make: Make) -> None:
    source, target = make("sqlite"), make("memory")
    start(target)
    lease = begin(target)
    ask(target, lease, "mine", login="github")
    start(source)
    start(source)
    ask(source, begin(source), "theirs", login="github")
    source.abandon(RT, "one")
    with pytest.raises(StoreError):
        copy_runs(source, target)


def test_a_run_in_use_is_not_copied(make: Make) -> None:
    source, target = make("sqlite"), make("sqlite")
    lease = begin(source, lease_ms=LONG_MS)
    with pytest.raises(StoreError, match=r"root/a\.1"):
        copy_runs(source, target)
    write(source, lease, releases=True)
    assert copy_runs(source, target) == 1


def test_stores_of_other_kinds_are_refused(make: Make) -> None:
    store: Any = make("memory")
    with pytest.raises(ConfigError):
        copy_runs(store, store)
    other: Any = object()
    with pytest.raises(ConfigError):
        copy_runs(other, store)


def test_urls_are_opened_and_closed_again(make: Make, tmp_path: Path) -> None:
    source = make("sqlite")
    fill(source)
    old, new = f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/new.db"
    assert copy_runs(old, new) == 3
    # The last connection to a file takes what is beside it along.
    assert sorted(path.name for path in tmp_path.glob("new.db*")) == ["new.db"]
    assert told(SqliteStore(tmp_path / "new.db")) == told(source)


def test_a_url_of_postgres_is_one_too(make: Make, postgres: Postgres, tmp_path: Path) -> None:
    source = make("sqlite")
    known = conninfo_to_dict(postgres.schema(f"{tmp_path.name}_urls"))
    target = f"postgresql:///?{urlencode(known, quote_via=quote)}"
    fill(source)
    assert copy_runs(source, target) == 3
    store = PostgresStore(target)
    assert told(store) == told(source)
    store.close()


def test_a_file_that_is_not_there_is_named_and_not_made(make: Make, tmp_path: Path) -> None:
    target = make("memory")
    for source in (SqliteStore(tmp_path / "runs.db"), f"sqlite:///{tmp_path}/runs.db"):
        with pytest.raises(StoreError, match=f"{tmp_path}/runs.db: there is no such file"):
            copy_runs(source, target)
    assert list(tmp_path.iterdir()) == []


def test_the_url_of_a_store_in_memory_is_no_place_to_copy_from_or_to(make: Make) -> None:
    for source, target in (("memory://", make("memory")), (make("memory"), "memory://")):
        with pytest.raises(ConfigError, match="a new store each time"):
            copy_runs(source, target)
