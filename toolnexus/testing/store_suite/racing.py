"""Threads and processes at once, and processes that die."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from toolnexus.errors import LeaseLost
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import Lease
from toolnexus.testing.store_suite.base import (
    RT,
    TWO,
    StoreSuite,
    answer,
    ask,
    at,
    begin,
    head_of,
    messages_of,
    start,
    state_of,
    take,
    try_to_take,
    write,
)
from toolnexus.testing.store_suite.processes import Forked, Tell, in_processes, in_threads

THREADS: Final = 8
ROUNDS: Final = 10
PROCESSES: Final = 3

needs_fork: Final = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the system cannot fork a process"
)


class RacingSuite(StoreSuite):
    """Nothing depends on who comes first, and who dies leaves nothing half done."""

    # -- threads -----------------------------------------------------------------------------

    def test_threads_that_answer_at_once_have_one_winner(self, store: RunStore) -> None:
        lease = begin(store)
        for round_ in range(ROUNDS):
            request_id = f"q{round_}"
            ask(store, lease, request_id, round_)
            won = in_threads(lambda number, q=request_id: answer(store, q, number), THREADS)  # type: ignore[misc]
            found = store.request(RT, request_id)
            assert found is not None
            assert won.count(True) == 1
            assert found.answer == won.index(True)

    def test_threads_that_take_a_run_at_once_have_one_winner(self, store: RunStore) -> None:
        for _ in range(ROUNDS):
            run_id = start(store)

            def grab(number: int, run_id: str = run_id) -> object:
                return try_to_take(store, run_id, f"o{number}")

            won = [one for one in in_threads(grab, THREADS) if isinstance(one, Lease)]
            assert [one.fence for one in won] == [1]
            write(store, won[0])

    def test_threads_that_start_runs_leave_no_gap(self, store: RunStore) -> None:
        def several(_: int) -> list[str]:
            return [start(store) for _ in range(ROUNDS)]

        found = sorted(ids_of(in_threads(several, THREADS)))
        assert found == list(range(1, THREADS * ROUNDS + 1))
        numbers = [int(one.id.rpartition(".")[2]) for one in store.handles(RT)]
        assert numbers == found

    def test_threads_that_start_runs_start_no_more_than_there_may_be(
        self, store: RunStore
    ) -> None:
        def several(_: int) -> list[str | None]:
            return [store.start_run(RT, "root", "a", {}, most=ROUNDS) for _ in range(ROUNDS)]

        started = [one for ids in in_threads(several, THREADS) for one in ids if one]
        assert sorted(ids_of([started])) == list(range(1, ROUNDS + 1))

    def test_threads_with_runs_of_their_own_do_not_mix_them(self, store: RunStore) -> None:
        leases = [begin(store, owner=f"o{number}") for number in range(THREADS)]

        def turns(number: int) -> None:
            lease = leases[number]
            for turn in range(ROUNDS):
                change = at(lease.run_id, head=turn, messages={turn: [number, turn]})
                write(store, lease, handles=(change,), is_busy=True)
                assert messages_of(store, lease.run_id)[turn] == [number, turn]
            write(store, lease, releases=True)

        in_threads(turns, THREADS)
        for number, lease in enumerate(leases):
            (found,) = store.load(RT, lease.run_id)
            assert found.record.head == ROUNDS - 1
            assert list(found.messages.values()) == [[number, turn] for turn in range(ROUNDS)]

    def test_a_handle_is_read_as_it_is_at_one_moment(self, store: RunStore) -> None:
        lease = begin(store)

        def turns(number: int) -> None:
            if number == 0:
                for turn in range(ROUNDS * 4):
                    parts: Any = {name: {turn: turn} for name in ("messages", "calls", "posts")}
                    write(store, lease, handles=(at(lease.run_id, head=turn, **parts),))
                return
            for _ in range(ROUNDS * 2):
                found = store.load_handle(RT, lease.run_id, ("messages", "calls", "posts"))
                assert found is not None
                head: Any = found.record.head
                count = 0 if head == {"made": True} else head + 1
                for part in (found.messages, found.calls, found.posts):
                    assert list(part.values()) == list(range(count))

        in_threads(turns, THREADS)

    def test_no_letter_is_lost_where_a_run_is_given_back(self, store: RunStore) -> None:
        for round_ in range(2 * ROUNDS):
            lease = begin(store)
            ask(store, lease, f"q{round_}")

            def act(number: int, lease: Lease = lease, round_: int = round_) -> object:
                if number == 0:
                    return write(store, lease, releases=True)
                if number == 1:
                    return answer(store, f"q{round_}")
                store.send(RT, lease.run_id, number)
                return None

            kept, answered, *_ = in_threads(act, 4)
            assert answered
            mail = store.mail(RT, lease.run_id)
            assert len(mail.answers) == 1
            assert sorted(mail.signals.values()) == [2, 3]
            if kept:
                assert store.owned(RT, lease.owner)[lease.run_id]
            else:
                assert lease.run_id in store.abandoned(RT)

    def test_runs_that_share_requests_wait_for_each_other_without_end_never(
        self, store: RunStore
    ) -> None:
        leases = [begin(store, owner=f"o{number}") for number in range(4)]
        for round_ in range(ROUNDS):
            names = [f"q{round_}-{number}" for number in range(len(leases))]
            waits = [ask(store, one, name) for one, name in zip(leases, names, strict=True)]

            def act(number: int, names: list[str] = names, waits: list[object] = waits) -> None:  # type: ignore[assignment]
                if number < len(leases):
                    write(store, leases[number], done=(waits[number],))
                else:
                    answer(store, names[number - len(leases)])

            in_threads(act, 2 * len(leases))
            assert states_of(store, names) <= {"answered", "gone"}

    # -- processes ---------------------------------------------------------------------------

    @needs_fork
    def test_processes_race_as_threads_do(self, store: RunStore, tmp_path: Path) -> None:
        self.need_sharing()
        lease = begin(store)
        run_id = start(store)
        for number in range(ROUNDS):
            ask(store, lease, f"q{number}", number)

        def work(number: int, tell: Tell) -> None:
            mine = self.make_store(tmp_path)
            started = [start(mine) for _ in range(ROUNDS)]
            won = [answer(mine, f"q{number}", os.getpid()) for number in range(ROUNDS)]
            taken = try_to_take(mine, run_id, f"o{number}")
            tell([started, won, isinstance(taken, Lease)])
            mine.close()

        told = [lines[0] for lines in in_processes(work, PROCESSES)]
        found = sorted(ids_of([started for started, _, _ in told]))
        assert found == list(range(3, 3 + PROCESSES * ROUNDS))
        for won in zip(*(won for _, won, _ in told), strict=True):
            assert won.count(True) == 1
        assert [taken for _, _, taken in told].count(True) == 1

    @needs_fork
    def test_a_forked_child_and_its_parent_go_on_with_one_store(self, store: RunStore) -> None:
        lease, other = begin(store), begin(store, owner=TWO)

        def work(tell: Tell) -> None:
            for turn in range(ROUNDS):
                write(store, lease, handles=(at(lease.run_id, head=turn),))
            tell(head_of(store, lease.run_id))
            store.close()

        child = Forked(work)
        child.go()
        for turn in range(ROUNDS):
            write(store, other, handles=(at(other.run_id, head=turn),))
        assert child.end() == [ROUNDS - 1]
        assert head_of(store, other.run_id) == ROUNDS - 1
        if self.can_be_shared:
            assert head_of(store, lease.run_id) == ROUNDS - 1

    @needs_fork
    def test_a_fork_amid_the_work_of_threads(self, store: RunStore) -> None:
        def work(tell: Tell) -> None:
            tell(head_of(store, begin(store, owner=TWO).run_id))

        def act(number: int) -> object:
            if number == 0:
                children = [Forked(work) for _ in range(3)]
                for child in children:
                    child.go()
                return [child.end() for child in children]
            lease = begin(store, owner=f"o{number}")
            for turn in range(ROUNDS):
                write(store, lease, handles=(at(lease.run_id, head=turn),))
            return head_of(store, lease.run_id)

        told, *heads = in_threads(act, 4)
        assert told == [[{"made": True}]] * 3
        assert heads == [ROUNDS - 1] * 3

    @needs_fork
    def test_what_a_process_has_written_outlives_it(
        self, store: RunStore, tmp_path: Path
    ) -> None:
        self.need_sharing()
        lease = begin(store)

        def work(tell: Tell) -> None:
            del tell
            write(self.make_store(tmp_path), lease, handles=(at(lease.run_id, head="last"),))
            os._exit(70)

        child = Forked(work)
        child.go()
        child.end(code=70)
        assert head_of(store, lease.run_id) == "last"

    @needs_fork
    @pytest.mark.parametrize("steps", [1, 5, 20])
    def test_a_process_that_is_killed_leaves_whole_steps(
        self, store: RunStore, tmp_path: Path, steps: int
    ) -> None:
        self.need_sharing()
        run_id = start(store)

        def work(tell: Tell) -> None:
            mine = self.make_store(tmp_path)
            lease = take(mine, run_id)
            turn = 0
            while True:
                big = {turn * 3 + place: "x" * 5000 for place in range(3)}
                change = at(run_id, head=turn, messages=big, calls={turn: turn, turn - 1: None})
                write(mine, lease, handles=(change,), is_busy=True)
                tell(turn)
                turn += 1

        child = Forked(work)
        child.go()
        told = [child.line() for _ in range(steps)][-1]
        child.kill()
        (found,) = store.load(RT, run_id)
        turn = int(found.record.head or 0)
        assert turn >= told
        assert list(found.messages) == list(range((turn + 1) * 3))
        assert found.calls == {turn: turn}
        with pytest.raises(LeaseLost):
            write(store, Lease(run_id=run_id, owner=TWO, fence=2))

    def need_sharing(self) -> None:
        """Skip the test where processes have no runs in common."""
        if not self.can_be_shared:
            pytest.skip("other processes do not see what is in this store")


def ids_of(started: list[list[str]]) -> list[int]:
    """Return the numbers of runs that several have started."""
    return [int(one.rpartition(".")[2]) for some in started for one in some]


def states_of(store: RunStore, request_ids: list[str]) -> set[str | None]:
    """Return which states the requests have."""
    return {state_of(store, one) for one in request_ids}
