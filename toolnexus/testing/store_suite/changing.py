"""What is written of handles is what is read."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any

import pytest

from toolnexus.codec import JsonValue
from toolnexus.errors import RequestConflict, StoreError
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import RunChange
from toolnexus.testing.store_suite.base import (
    RT,
    StoreSuite,
    ask,
    at,
    begin,
    head_of,
    messages_of,
    new,
    write,
)

VALUES: tuple[JsonValue, ...] = (
    {"b": 1, "a": [1, 1.0, True, None, -0.0, 1e300, 2**80], "": {}},
    "unpaired \ud800 and \udfff",
    {"\ud83d key": 'line\nend \u2028 nul \x00 quote " back \\ é 漢 😀'},
    "",
    0,
    False,
    [],
    [[[[[]]]]],
    0.1 + 0.2,
)


class ChangingSuite(StoreSuite):
    """Handles and their parts."""

    @pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
    def test_a_value_comes_back_as_it_was_written(
        self, store: RunStore, again: RunStore, value: JsonValue
    ) -> None:
        lease = begin(store)
        parts: Any = {"messages": {0: value}, "calls": {1: value}, "posts": {2: value}}
        write(store, lease, handles=(at(lease.run_id, head=value, **parts),))
        store.put_grant(RT, "g", value)
        store.send(RT, lease.run_id, value)
        (found,) = again.load(RT, lease.run_id)
        (signal,) = again.mail(RT, lease.run_id).signals.values()
        for read in (
            found.record.head,
            found.messages[0],
            found.calls[1],
            found.posts[2],
            again.grants(RT)["g"],
            signal,
        ):
            assert json.dumps(read) == json.dumps(value)

    @pytest.mark.parametrize("value", [math.nan, math.inf, object(), {"a": {1, 2}}])
    def test_what_is_no_json_is_refused_and_nothing_written(
        self, store: RunStore, value: Any
    ) -> None:
        lease = begin(store)
        change = at(lease.run_id, head={"n": 1}, messages={0: "fine", 1: value})
        with pytest.raises(StoreError):
            write(store, lease, handles=(change,))
        assert head_of(store, lease.run_id) == {"made": True}
        assert messages_of(store, lease.run_id) == {}

    def test_a_head_that_is_not_given_stays(self, store: RunStore) -> None:
        lease = begin(store)
        write(store, lease, handles=(at(lease.run_id, head={"n": 1}),))
        write(store, lease, handles=(at(lease.run_id, "suspended"),))
        found = store.handle(RT, lease.run_id)
        assert found is not None
        assert (found.state, found.head) == ("suspended", {"n": 1})

    def test_messages_are_added_replaced_and_cut_off(self, store: RunStore) -> None:
        lease = begin(store)
        for keep, messages, then in (
            (None, {2: "c", 0: "a"}, {0: "a", 2: "c"}),
            (None, {1: "b", 2: "C"}, {0: "a", 1: "b", 2: "C"}),
            (1, {}, {0: "a"}),
            (0, {0: "new", 1: "newer"}, {0: "new", 1: "newer"}),
            (5, {2: "last"}, {0: "new", 1: "newer", 2: "last"}),
        ):
            change = at(lease.run_id, keep=keep, messages=messages)
            write(store, lease, handles=(change,))
            found = messages_of(store, lease.run_id)
            assert list(found.items()) == list(then.items())
        assert messages_of(store, "root/a.9") == {}

    def test_calls_and_posts_are_put_replaced_and_taken_away(self, store: RunStore) -> None:
        lease = begin(store)
        puts = at(lease.run_id, calls={2: "two", 1: "one"}, posts={9: "p", 4: "q"})
        write(store, lease, handles=(puts,))
        assert store.calls(RT, lease.run_id) == {lease.run_id: {1: "one", 2: "two"}}
        takes = at(lease.run_id, calls={1: None, 2: "2", 7: None}, posts={4: None})
        write(store, lease, handles=(takes,))
        (found,) = store.load(RT, lease.run_id)
        assert (dict(found.calls), dict(found.posts)) == ({2: "2"}, {9: "p"})
        assert store.calls(RT, "root/a.9") == {}

    def test_the_parts_of_each_handle_are_its_own(self, store: RunStore) -> None:
        lease, other = begin(store), begin(store)
        child = f"{lease.run_id}/b.1"
        for owner, handle_id in ((lease, child), (lease, lease.run_id), (other, other.run_id)):
            parts: Any = {"messages": {0: handle_id}, "calls": {0: handle_id}}
            write(store, owner, handles=(at(handle_id, posts={0: handle_id}, **parts),))
        found = store.load(RT, lease.run_id)
        assert {one.record.id for one in found} == {lease.run_id, child}
        for one in found:
            for part in (one.messages, one.calls, one.posts):
                assert part == {0: one.record.id}

    def test_parents_come_before_their_children(self, store: RunStore) -> None:
        lease = begin(store)
        top = lease.run_id
        below = [f"{top}/b.1/c.1", f"{top}/b.1", f"{top}/b.2", f"{top}/b.1/c.1/d.1"]
        write(store, lease, handles=tuple(at(one, agent="b") for one in below))
        for found in (
            [one.record.id for one in store.load(RT, top)],
            [one.id for one in store.handles(RT)],
        ):
            assert set(found) == {top, *below}
            for one in below:
                assert found.index(one.rpartition("/")[0]) < found.index(one)

    def test_a_closed_handle_is_read_only_by_its_id(self, store: RunStore) -> None:
        lease = begin(store)
        child = f"{lease.run_id}/b.1"
        write(store, lease, handles=(at(child, agent="b", messages={0: "hi"}),))
        write(store, lease, handles=(at(child, "closed", agent="b", head="end"),))
        assert [one.record.id for one in store.load(RT, lease.run_id)] == [lease.run_id]
        assert [one.id for one in store.handles(RT)] == [lease.run_id]
        found = store.handle(RT, child)
        assert found is not None
        assert (found.agent, found.state, found.head) == ("b", "closed", "end")
        assert messages_of(store, child) == {0: "hi"}
        assert store.handle(RT, "root/a.9") is None
        assert store.handle("another", child) is None

    def test_all_of_several_steps_is_written_or_nothing(self, store: RunStore) -> None:
        one, two = begin(store), begin(store)
        ask(store, two, "q1")
        steps = [
            RunChange(lease=one, handles=(at(one.run_id, head=1, messages={0: "m"}),)),
            RunChange(lease=two, handles=(at(two.run_id, head=2),), opened=(new("q1"),)),
        ]
        with pytest.raises(RequestConflict):
            store.write(RT, steps)
        assert head_of(store, one.run_id) == {"made": True}
        assert messages_of(store, one.run_id) == {}
        steps[1] = RunChange(lease=two, handles=(at(two.run_id, head=2),))
        assert store.write(RT, steps) == ()
        assert (head_of(store, one.run_id), head_of(store, two.run_id)) == (1, 2)

    def test_two_steps_of_one_run_are_written_in_order(self, store: RunStore) -> None:
        lease = begin(store)
        steps = [
            RunChange(lease=lease, handles=(at(lease.run_id, head=number),), is_busy=True)
            for number in range(3)
        ]
        store.write(RT, steps)
        assert head_of(store, lease.run_id) == 2

    def test_a_handle_of_another_run_is_not_written(self, store: RunStore) -> None:
        one, two = begin(store), begin(store)
        with pytest.raises(StoreError):
            write(store, one, handles=(at(two.run_id, head="mine"),))
        assert head_of(store, two.run_id) == {"made": True}

    def test_a_handle_says_when_it_was_written_last(self, store: RunStore) -> None:
        lease = begin(store)
        before = store.handle(RT, lease.run_id)
        self.let_pass(20)
        write(store, lease, handles=(at(lease.run_id),))
        after = store.handle(RT, lease.run_id)
        assert before is not None
        assert after is not None
        assert after.changed_at.utcoffset() is not None
        assert after.changed_at - before.changed_at >= timedelta(milliseconds=20)
