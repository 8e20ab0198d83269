"""A run that is taken and read in one moment."""

from __future__ import annotations

from toolnexus.stores.base import RunStore
from toolnexus.stores.records import Held, Lease, Mail, Taken, Wait
from toolnexus.testing.store_suite.base import (
    LONG_MS,
    ONE,
    RT,
    TWO,
    StoreSuite,
    answer,
    ask,
    at,
    begin,
    new,
    start,
    write,
)


def taken(store: RunStore, run_id: str, owner: str = ONE) -> Taken:
    """Take a run and read it."""
    found = store.take(RT, run_id, owner, LONG_MS, takes_busy=True)
    assert isinstance(found, Taken), found
    return found


class TakingSuite(StoreSuite):
    """What comes with a lease is what could be asked for with it."""

    def test_a_new_run_is_taken_with_its_handle(self, store: RunStore) -> None:
        run_id = start(store)
        found = taken(store, run_id)
        assert found.lease == Lease(run_id=run_id, owner=ONE, fence=1)
        assert found.handles == store.load(RT, run_id)
        assert [one.record.id for one in found.handles] == [run_id]
        assert (found.requests, found.mail) == ((), Mail())
        write(store, found.lease)

    def test_a_run_comes_whole(self, store: RunStore) -> None:
        lease = begin(store)
        top, below, gone = lease.run_id, f"{lease.run_id}/b.1", f"{lease.run_id}/b.2"
        full = at(top, head={"n": 1}, messages={0: "m", 2: "r"}, calls={0: "c"}, posts={3: "p"})
        others = (at(below, "idle", agent="b"), at(gone, "closed", agent="b"))
        write(store, lease, handles=(full, *others))
        ask(store, lease, "open")
        ask(store, lease, "said", 2)
        assert answer(store, "said")
        store.send(RT, top, "hello")
        found = taken(store, top)
        assert found.handles == store.load(RT, top)
        assert [one.record.id for one in found.handles] == [top, below]
        assert found.requests == tuple(store.requests(RT, state="open", under=top))
        assert [one.id for one in found.requests] == ["open"]
        assert found.requests[0].waits == (Wait("open", top, 1),)
        assert found.mail == store.mail(RT, top)
        assert dict(found.mail.answers) == {Wait("said", top, 2): "yes"}
        assert list(found.mail.signals.values()) == ["hello"]

    def test_nothing_of_another_run_comes_with_it(self, store: RunStore) -> None:
        mine, other = begin(store), begin(store)
        ask(store, other, "theirs")
        ask(store, other, "told", 2)
        assert answer(store, "told")
        store.send(RT, other.run_id, "hello")
        found = taken(store, mine.run_id)
        assert [one.record.id for one in found.handles] == [mine.run_id]
        assert (found.requests, found.mail) == ((), Mail())

    def test_a_login_comes_with_each_run_that_waits_for_it(self, store: RunStore) -> None:
        first, second = begin(store), begin(store)
        waits = tuple(Wait("login", one.run_id, 1) for one in (first, second))
        write(store, first, opened=(new("login", login="crm"),), waits=waits[:1])
        write(store, second, waits=waits[1:])
        for lease in (first, second):
            (request,) = taken(store, lease.run_id).requests
            assert (request.id, request.waits) == ("login", waits)

    def test_what_cannot_be_taken_is_not_read(self, store: RunStore, again: RunStore) -> None:
        assert store.take(RT, "root/a.1", ONE, LONG_MS, takes_busy=True) is None
        lease = begin(store)
        held = again.take(RT, lease.run_id, TWO, LONG_MS, takes_busy=True)
        assert held == Held(owner=ONE, is_busy=False)
        write(store, lease, is_busy=True)
        store.abandon(RT, ONE)
        busy = again.take(RT, lease.run_id, TWO, LONG_MS, takes_busy=False)
        assert busy == Held(owner=None, is_busy=True)
        found = taken(again, lease.run_id, TWO)
        assert (found.lease.was_busy, found.lease.recoveries) == (True, 0)
