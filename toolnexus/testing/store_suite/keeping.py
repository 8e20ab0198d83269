"""Reading many records, grants, and what is deleted."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from toolnexus.errors import LeaseLost
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import Lease, RunChange, Wait
from toolnexus.testing.store_suite.base import (
    FAR,
    RT,
    TWO,
    StoreSuite,
    answer,
    ask,
    at,
    begin,
    ids,
    messages_of,
    new,
    start,
    state_of,
    take,
    try_to_take,
    write,
)

SHORT_MS = 20


def release(store: RunStore, lease: Lease, state: str = "idle", **change: Any) -> None:
    """Write a handle for the last time, and give its run back."""
    change.setdefault("handles", (at(lease.run_id, state),))
    assert write(store, lease, releases=True, **change) == ()


class KeepingSuite(StoreSuite):
    """Many records, and what becomes of old ones."""

    def test_handles_come_run_by_run(self, store: RunStore) -> None:
        one, two, three = begin(store), begin(store), begin(store)
        for lease in (three, one):
            write(store, lease, handles=(at(f"{lease.run_id}/b.1", agent="b"),))
        write(store, two, handles=(at(two.run_id, "closed"),))
        all_of_them = [
            one.run_id,
            f"{one.run_id}/b.1",
            three.run_id,
            f"{three.run_id}/b.1",
        ]
        assert ids(store.handles(RT)) == all_of_them
        for wanted, found in (
            ({"limit": 1}, all_of_them[:2]),
            ({"limit": 2}, all_of_them),
            ({"limit": 0}, []),
            ({"under": three.run_id}, all_of_them[2:]),
            ({"under": f"{one.run_id}/b.1"}, all_of_them[1:2]),
            ({"under": "root"}, all_of_them),
            ({"under": "root", "limit": 1}, all_of_them[:2]),
            ({"under": "root/a"}, []),
            ({"under": "root/z.9"}, []),
        ):
            assert ids(store.handles(RT, **wanted)) == found, wanted
        assert ids(store.handles("another")) == []

    def test_a_name_that_begins_like_another_is_not_below_it(self, store: RunStore) -> None:
        lease = begin(store)
        top = lease.run_id
        names = [f"{top}/b.1", f"{top}/b.10", f"{top}/b.1-c.1", f"{top}/b.1.5", f"{top}/B.1"]
        write(store, lease, handles=tuple(at(name, agent="b") for name in names))
        write(store, lease, handles=(at(f"{top}/b.1/c.1", agent="c"),))
        below = ids(store.handles(RT, under=f"{top}/b.1"))
        assert below == [f"{top}/b.1", f"{top}/b.1/c.1"]
        assert ids(store.handles(RT, under=f"{top}/%")) == []

    def test_many_records_come_while_others_are_written(self, store: RunStore) -> None:
        runs = 230
        leases = [begin(store) for _ in range(runs)]
        steps = [
            RunChange(
                lease=lease,
                opened=(new(f"q{number}"),),
                waits=(Wait(f"q{number}", lease.run_id, 0),),
            )
            for number, lease in enumerate(leases)
        ]
        store.write(RT, steps)
        handles = store.handles(RT)
        requests = store.requests(RT, state="open")
        found = [next(handles).id]
        asked = [next(requests).id]
        write(store, leases[0], done=(steps[0].waits[0],))  # nothing is held meanwhile
        found += ids(handles)
        asked += ids(requests)
        assert found == [lease.run_id for lease in leases]
        assert asked == [f"q{number}" for number in range(runs)]

    # -- grants ------------------------------------------------------------------------------

    def test_grants_are_kept_and_forgotten(self, store: RunStore, again: RunStore) -> None:
        for name in ("b", "a", "c"):
            store.put_grant(RT, name, {"name": name})
        store.put_grant(RT, "a", {"name": "A"})
        assert list(again.grants(RT)) == ["b", "a", "c"]
        assert again.grants(RT)["a"] == {"name": "A"}
        assert again.remove_grant(RT, "a")
        assert not store.remove_grant(RT, "a")
        assert not store.remove_grant("another", "b")
        assert list(store.grants(RT)) == ["b", "c"]
        assert store.grants("another") == {}

    # -- pruning -----------------------------------------------------------------------------

    def soon(self, store: RunStore) -> datetime:
        """Return a time by the store's clock that is after all that was written."""
        found = store.handle(RT, begin(store, "clock").run_id)  # its lease keeps it
        assert found is not None
        return found.changed_at

    def test_a_run_at_rest_is_deleted_with_all_that_is_its(self, store: RunStore) -> None:
        lease = begin(store)
        child = f"{lease.run_id}/b.1"
        wait = ask(store, lease, "q1")
        answer(store, "q1")
        parts: Any = {"messages": {0: "m"}, "calls": {0: "c"}, "posts": {0: "p"}}
        handles = (at(lease.run_id, "idle", **parts), at(child, "closed", agent="b", **parts))
        release(store, lease, done=(wait,), handles=handles)
        self.let_pass(1)
        now = self.soon(store)
        assert store.prune(RT, now - timedelta(days=1), keep_suspended=False) == 0
        assert store.prune("another", now, keep_suspended=False) == 0
        assert store.prune(RT, now, keep_suspended=False) == 2
        assert store.handle(RT, lease.run_id) is None
        assert store.request(RT, "q1") is None
        assert messages_of(store, child) == {}
        assert store.load(RT, lease.run_id) == ()
        assert try_to_take(store, lease.run_id) is None
        assert ids(store.handles(RT)) == ["root/clock.2"]
        assert start(store) == "root/a.3"

    def test_what_is_not_at_rest_stays(self, store: RunStore) -> None:
        held, busy, told, asked = (begin(store) for _ in range(4))
        write(store, busy, is_busy=True, releases=True)
        write(store, told, releases=True)
        store.send(RT, told.run_id, "hello")
        wait = ask(store, asked, "q1")
        write(store, asked, releases=True)
        self.let_pass(1)
        assert store.prune(RT, FAR, keep_suspended=True) == 0
        assert store.prune(RT, FAR, keep_suspended=False) == 1
        left = {one.run_id for one in (held, busy, told)}
        assert set(ids(store.handles(RT))) == left
        assert store.request(RT, wait.request_id) is None

    def test_a_run_whose_owner_is_away_is_deleted_and_its_lease_void(
        self, store: RunStore
    ) -> None:
        lease = begin(store, lease_ms=SHORT_MS)
        self.let_pass(SHORT_MS)
        assert store.prune(RT, FAR, keep_suspended=True) == 1
        with pytest.raises(LeaseLost):
            write(store, lease)

    def test_closed_handles_of_a_run_that_stays_are_deleted(self, store: RunStore) -> None:
        lease = begin(store)
        names = [f"{lease.run_id}/b.{number}" for number in (1, 2, 3)]
        write(store, lease, handles=tuple(at(name, agent="b") for name in names))
        wait = Wait("q1", names[0], 0)
        write(store, lease, opened=(new("q1"),), waits=(wait,))
        closed = tuple(at(name, "closed", agent="b") for name in names[:2])
        write(store, lease, handles=closed, done=(wait,))
        self.let_pass(1)
        now = self.soon(store)
        self.let_pass(1)
        write(store, lease, handles=(at(names[2], "closed", agent="b"),))
        assert store.prune(RT, now, keep_suspended=True) == 2
        assert [store.handle(RT, name) is None for name in names] == [True, True, False]
        assert state_of(store, "q1") is None
        assert store.handle(RT, lease.run_id) is not None

    def test_closed_handles_stay_while_a_turn_is_under_way(self, store: RunStore) -> None:
        """One of its calls may still want to know what became of them."""
        lease = begin(store)
        child = f"{lease.run_id}/b.1"
        write(store, lease, handles=(at(child, agent="b"),), is_busy=True)
        write(store, lease, handles=(at(child, "closed", agent="b"),), is_busy=True)
        self.let_pass(1)
        assert store.prune(RT, FAR, keep_suspended=True) == 0
        write(store, lease, is_busy=False)
        assert store.prune(RT, FAR, keep_suspended=True) == 1

    def test_a_request_stays_while_another_run_waits_for_it(self, store: RunStore) -> None:
        one, two = begin(store), begin(store, owner=TWO)
        wait = ask(store, one, "q1")
        write(store, two, waits=(Wait("q1", two.run_id, 5),))
        write(store, one, done=(wait,), releases=True)
        self.let_pass(1)
        assert store.prune(RT, FAR, keep_suspended=False) == 1
        found = store.request(RT, "q1")
        assert found is not None
        assert (found.state, found.waits) == ("open", (Wait("q1", two.run_id, 5),))
        write(store, two, releases=True)
        self.let_pass(1)
        assert store.prune(RT, FAR, keep_suspended=True) == 0
        assert store.prune(RT, FAR, keep_suspended=False) == 1
        assert store.request(RT, "q1") is None

    def test_more_than_a_page_is_deleted(self, store: RunStore) -> None:
        kept = begin(store)
        for _ in range(150):
            start(store)
        children = tuple(
            at(f"{kept.run_id}/b.{number}", "closed", agent="b") for number in range(150)
        )
        write(store, kept, handles=children)
        assert store.prune(RT, FAR, keep_suspended=True) == 300
        assert ids(store.handles(RT)) == [kept.run_id]

    def test_a_closed_store_opens_again(self, store: RunStore) -> None:
        lease = begin(store)
        store.close()
        store.close()
        assert take(store, lease.run_id) == lease
