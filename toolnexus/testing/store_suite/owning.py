"""Whose a run is."""

from __future__ import annotations

import pytest

from toolnexus.errors import LeaseLost
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import Held, Lease, RunChange
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
    head_of,
    start,
    take,
    try_to_take,
    write,
)

SHORT_MS = 20


class OwningSuite(StoreSuite):
    """A run is changed by whoever has it, and by nobody else."""

    def test_runs_are_counted_whatever_their_agents(self, store: RunStore) -> None:
        assert [start(store, agent) for agent in ("a", "b", "a")] == [
            "root/a.1",
            "root/b.2",
            "root/a.3",
        ]
        assert start(store, "a", runtime="another") == "root/a.1"

    def test_a_new_run_is_idle_and_nobodys(self, store: RunStore) -> None:
        run_id = start(store)
        (found,) = store.load(RT, run_id)
        assert (found.record.id, found.record.agent, found.record.state) == (
            run_id,
            "a",
            "idle",
        )
        assert found.record.head == {"made": True}
        assert store.abandoned(RT) == ()
        lease = try_to_take(store, run_id, takes_busy=False)
        assert lease == Lease(run_id=run_id, owner=ONE, fence=1)

    def test_there_are_no_more_runs_than_there_may_be(self, store: RunStore) -> None:
        def start_one(most: int, runtime: str = RT) -> str | None:
            return store.start_run(runtime, "root", "a", {}, most=most)

        assert start_one(0) is None
        assert [start_one(2) for _ in range(3)] == ["root/a.1", "root/a.2", None]
        assert start_one(1, "another") == "root/a.1"
        lease = take(store, "root/a.1")
        write(store, lease, handles=(at("root/a.1/b.1"), at("root/a.1/b.2")))
        assert start_one(3) == "root/a.3"
        write(store, lease, handles=(at("root/a.1", "closed"),))
        assert [start_one(3) for _ in range(2)] == ["root/a.4", None]

    def test_a_run_that_is_not_there_cannot_be_taken(self, store: RunStore) -> None:
        assert try_to_take(store, "root/a.1") is None
        start(store)
        assert try_to_take(store, "root/a.1", runtime="another") is None

    def test_a_run_that_is_held_is_not_given_to_another(
        self, store: RunStore, again: RunStore
    ) -> None:
        lease = begin(store)
        found = try_to_take(again, lease.run_id, TWO)
        assert found == Held(owner=ONE, is_busy=False)
        write(store, lease, is_busy=True)
        found = try_to_take(again, lease.run_id, TWO)
        assert found == Held(owner=ONE, is_busy=True)

    def test_its_owner_takes_it_again_and_both_leases_are_good(self, store: RunStore) -> None:
        lease = begin(store)
        write(store, lease, is_busy=True)
        assert try_to_take(store, lease.run_id, takes_busy=False) == lease
        write(store, lease, is_busy=True)

    def test_a_lease_that_ran_out_goes_to_who_comes(self, store: RunStore) -> None:
        old = begin(store, lease_ms=SHORT_MS)
        self.let_pass(SHORT_MS)
        lease = take(store, old.run_id, TWO)
        assert (lease.owner, lease.fence, lease.was_busy) == (TWO, old.fence + 1, False)

    def test_time_alone_takes_no_lease_away(self, store: RunStore) -> None:
        lease = begin(store, lease_ms=SHORT_MS)
        self.let_pass(SHORT_MS)
        assert write(store, lease, handles=(at(lease.run_id, head="late"),)) == ()
        assert head_of(store, lease.run_id) == "late"
        assert store.owned(RT, ONE) == {lease.run_id: False}

    def test_a_lease_that_is_renewed_goes_on(self, store: RunStore) -> None:
        runs = [begin(store, lease_ms=SHORT_MS).run_id for _ in range(2)]
        other = begin(store, owner=TWO, lease_ms=SHORT_MS)
        store.renew(RT, ONE, LONG_MS)
        self.let_pass(SHORT_MS)
        for run_id in runs:
            assert isinstance(try_to_take(store, run_id, TWO, lease_ms=1), Held)
        assert take(store, other.run_id, ONE).fence == other.fence + 1

    def test_a_void_lease_writes_nothing(self, store: RunStore) -> None:
        old, kept = begin(store, lease_ms=SHORT_MS), begin(store)
        self.let_pass(SHORT_MS)
        lease = take(store, old.run_id, TWO)
        steps = [
            RunChange(lease=one, handles=(at(one.run_id, head="mine"),)) for one in (kept, old)
        ]
        with pytest.raises(LeaseLost) as lost:
            store.write(RT, steps)
        assert lost.value.run_ids == (old.run_id,)
        assert head_of(store, kept.run_id) == {"made": True}
        assert head_of(store, old.run_id) == {"made": True}
        write(store, lease)

    def test_a_lease_is_void_once_it_was_given_back(self, store: RunStore) -> None:
        lease = begin(store)
        assert write(store, lease, releases=True) == ()
        with pytest.raises(LeaseLost):
            write(store, lease)
        assert store.owned(RT, ONE) == {}
        newer = take(store, lease.run_id)
        assert newer.fence == lease.fence + 1
        with pytest.raises(LeaseLost):
            write(store, lease)

    def test_a_lease_of_a_run_that_is_not_there_is_void(self, store: RunStore) -> None:
        with pytest.raises(LeaseLost, match=r"root/a\.9"):
            write(store, Lease(run_id="root/a.9", owner=ONE, fence=1))

    # -- turns under way ---------------------------------------------------------------------

    def test_a_turn_that_was_left_is_for_who_wants_it(self, store: RunStore) -> None:
        old = begin(store)
        write(store, old, is_busy=True)
        store.abandon(RT, ONE)
        found = try_to_take(store, old.run_id, TWO, takes_busy=False)
        assert found == Held(owner=None, is_busy=True)
        lease = take(store, old.run_id, TWO)
        assert (lease.was_busy, lease.recoveries) == (True, 0)

    def test_recoveries_count_until_the_run_is_given_back_at_rest(
        self, store: RunStore
    ) -> None:
        lease = begin(store, lease_ms=SHORT_MS)
        write(store, lease, is_busy=True)
        for count in (1, 2):
            self.let_pass(SHORT_MS)
            lease = take(store, lease.run_id, f"owner {count}", lease_ms=SHORT_MS)
            assert (lease.was_busy, lease.recoveries) == (True, count)
            # Left on purpose in between, which counts for nothing.
            store.abandon(RT, lease.owner)
            lease = take(store, lease.run_id, f"heir {count}", lease_ms=SHORT_MS)
            assert (lease.was_busy, lease.recoveries) == (True, count)
        write(store, lease, is_busy=True, releases=True)
        lease = take(store, lease.run_id)
        assert (lease.was_busy, lease.recoveries) == (True, 3)
        write(store, lease, is_busy=False, releases=True)
        lease = take(store, lease.run_id)
        assert (lease.was_busy, lease.recoveries) == (False, 0)

    @pytest.mark.parametrize("recoveries", [0, 1])
    def test_a_lease_is_given_back_with_all_that_is_to_be_done(
        self, store: RunStore, recoveries: int
    ) -> None:
        """Whatever has come for the run, and whether a turn is under way."""
        quiet, asked = begin(store), begin(store)
        ask(store, asked, "q1")
        write(store, quiet, is_busy=True)
        assert answer(store, "q1")
        for lease in (quiet, asked):
            store.release(RT, lease, on_purpose=recoveries == 0)
            with pytest.raises(LeaseLost):
                write(store, lease)
        assert store.abandoned(RT) == (quiet.run_id, asked.run_id)
        lease = take(store, quiet.run_id, TWO)
        assert (lease.was_busy, lease.recoveries) == (True, recoveries)
        lease = take(store, asked.run_id, TWO)
        assert (lease.was_busy, lease.recoveries) == (False, 0)

    def test_who_has_lost_a_lease_does_not_give_it_back(self, store: RunStore) -> None:
        old = begin(store, lease_ms=SHORT_MS)
        self.let_pass(SHORT_MS)
        lease = take(store, old.run_id, TWO)
        store.release(RT, old, on_purpose=True)
        store.release("another", lease, on_purpose=True)
        assert store.owned(RT, TWO) == {lease.run_id: False}
        write(store, lease)

    def test_what_is_abandoned_has_something_to_do_and_nobody_at_it(
        self, store: RunStore
    ) -> None:
        busy, asked, told, idle, held = (begin(store) for _ in range(5))
        write(store, busy, is_busy=True)
        ask(store, asked, "q1")
        store.abandon(RT, ONE)
        assert take(store, held.run_id, TWO, lease_ms=SHORT_MS).owner == TWO
        store.send(RT, held.run_id, "hello")
        assert store.abandoned(RT) == (busy.run_id,)
        assert answer(store, "q1")
        store.send(RT, told.run_id, "hello")
        assert store.abandoned(RT) == (busy.run_id, asked.run_id, told.run_id)
        self.let_pass(SHORT_MS)
        assert store.abandoned(RT)[-1] == held.run_id
        assert idle.run_id not in store.abandoned(RT)
        assert store.abandoned("another") == ()

    def test_owned_runs_tell_whether_something_has_come(self, store: RunStore) -> None:
        quiet, told = begin(store), begin(store)
        begin(store, owner=TWO)
        store.send(RT, told.run_id, "hello")
        assert store.owned(RT, ONE) == {quiet.run_id: False, told.run_id: True}
        assert store.owned("another", ONE) == {}
