"""Requests, their answers, and what comes for a run."""

from __future__ import annotations

from datetime import timedelta, timezone

import attrs
import pytest

from toolnexus.errors import RequestConflict, StoreError
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import Mail, RequestRecord, RunChange, Wait
from toolnexus.testing.store_suite.base import (
    FAR,
    RT,
    StoreSuite,
    answer,
    answers_of,
    ask,
    at,
    begin,
    claim,
    ids,
    later,
    new,
    state_of,
    take,
    write,
)


class AskingSuite(StoreSuite):
    """A request is open until it is answered or gone, and knows which calls wait for it."""

    def test_a_request_is_read_as_it_was_opened(self, store: RunStore, again: RunStore) -> None:
        lease = begin(store)
        wait = ask(store, lease, "q1", kind="login \ud800", login="git\x00hub", expires_at=FAR)
        found = again.request(RT, "q1")
        assert found == RequestRecord(
            id="q1",
            kind="login \ud800",
            state="open",
            body={"asks": "q1"},
            waits=(wait,),
            expires_at=FAR,
        )
        assert again.request("another", "q1") is None
        assert ids(again.requests(RT, login="git\x00hub", kind="login \ud800")) == ["q1"]

    def test_times_are_kept_to_the_microsecond(self, store: RunStore) -> None:
        lease = begin(store)
        time = FAR.replace(microsecond=123_457).astimezone(timezone(timedelta(hours=-9)))
        ask(store, lease, "q1", expires_at=time)
        found = store.request(RT, "q1")
        assert found is not None
        assert found.expires_at == time == store.next_expiry(RT)

    def test_an_id_is_used_once(self, store: RunStore) -> None:
        lease = begin(store)
        wait = ask(store, lease, "q1")
        for state in ("open", "gone"):
            with pytest.raises(RequestConflict) as conflict:
                ask(store, lease, "q1", 2)
            assert (conflict.value.request_id, conflict.value.state) == ("q1", state)
            write(store, lease, done=(wait,))
        with pytest.raises(RequestConflict):
            write(store, lease, opened=(new("q2"), new("q2")))
        assert store.request(RT, "q2") is None

    def test_one_request_is_open_for_a_login(self, store: RunStore) -> None:
        lease, other = begin(store), begin(store)
        wait = ask(store, lease, "q1", login="github")
        ask(store, lease, "q2", 2, login="gitlab")
        with pytest.raises(RequestConflict) as conflict:
            ask(store, other, "q3", login="github")
        assert (conflict.value.request_id, conflict.value.state) == ("q1", "open")
        write(store, lease, done=(wait,))
        ask(store, other, "q3", login="github")
        assert ids(store.requests(RT, state="open", login="github")) == ["q3"]
        assert ids(store.requests(RT, login="github")) == ["q1", "q3"]

    def test_a_login_may_be_of_any_length(self, store: RunStore) -> None:
        """A form is part of what is logged in to."""
        lease, login = begin(store), "crm \x00 \ud800" * 20_000
        ask(store, lease, "q1", login=login)
        assert ids(store.requests(RT, login=login)) == ["q1"]
        with pytest.raises(RequestConflict):
            ask(store, lease, "q2", 1, login=login)

    @pytest.mark.parametrize("text", ["a\x00b", "a\ud800b", '"a', ""])
    def test_an_id_that_cannot_be_is_unknown(self, store: RunStore, text: str) -> None:
        begin(store)
        assert store.request(RT, text) is None
        assert store.handle(RT, text) is None
        assert store.load_handle(RT, text, ()) is None
        assert store.load(RT, text) == ()
        assert store.mail(RT, text) == Mail()
        assert list(store.requests(RT, under=text)) == []
        assert list(store.handles(RT, under=text)) == []
        assert not store.remove_grant(RT, text)
        store.put_grant(RT, text, 1)
        assert store.grants(RT) == {text: 1}
        assert store.remove_grant(RT, text)

    def test_a_request_nobody_waits_for_any_more_is_gone(self, store: RunStore) -> None:
        lease, other = begin(store), begin(store)
        first = ask(store, lease, "q1")
        second = Wait("q1", other.run_id, 4)
        write(store, other, waits=(second,))
        found = store.request(RT, "q1")
        assert found is not None
        assert set(found.waits) == {first, second}
        write(store, lease, done=(first,))
        assert state_of(store, "q1") == "open"
        write(store, other, done=(second,))
        assert state_of(store, "q1") == "gone"
        assert not answer(store, "q1")

    def test_a_wait_that_moves_in_one_step_keeps_the_request_open(
        self, store: RunStore
    ) -> None:
        lease, other = begin(store), begin(store)
        first, second = ask(store, lease, "q1"), Wait("q1", other.run_id, 4)
        steps = [RunChange(lease=lease, done=(first,)), RunChange(lease=other, waits=(second,))]
        store.write(RT, steps)
        found = store.request(RT, "q1")
        assert found is not None
        assert (found.state, found.waits) == ("open", (second,))

    def test_a_request_that_nothing_waits_for_is_gone_at_once(self, store: RunStore) -> None:
        lease = begin(store)
        write(store, lease, opened=(new("q1"),), notes={"q1": "asked and answered at once"})
        found = store.request(RT, "q1")
        assert found is not None
        assert (found.state, found.note) == ("gone", "asked and answered at once")
        assert ids(store.requests(RT, state="open")) == []

    def test_what_is_gone_or_unknown_is_not_waited_for(self, store: RunStore) -> None:
        lease = begin(store)
        write(store, lease, done=(ask(store, lease, "q1"),))
        for request_id, state in (("q1", "gone"), ("q9", None)):
            with pytest.raises(RequestConflict) as conflict:
                write(store, lease, waits=(Wait(request_id, lease.run_id, 2),))
            assert (conflict.value.request_id, conflict.value.state) == (request_id, state)

    def test_a_handle_of_the_run_waits(self, store: RunStore) -> None:
        lease = begin(store)
        with pytest.raises(StoreError):
            write(store, lease, opened=(new("q1"),), waits=(Wait("q1", "root/z.9", 1),))
        assert store.request(RT, "q1") is None

    # -- answers -----------------------------------------------------------------------------

    def test_an_answer_is_claimed_once_whoever_owns_the_run(self, store: RunStore) -> None:
        lease = begin(store)
        wait = ask(store, lease, "q1")
        write(store, lease, releases=True)
        assert store.claim(RT, [claim("q1", {"n": 1})])
        assert not store.claim(RT, [claim("q1", {"n": 2})])
        found = store.request(RT, "q1")
        assert found is not None
        assert (found.state, found.answer, found.note) == ("answered", {"n": 1}, None)
        assert found.waits == (wait,)
        assert answers_of(store, lease.run_id) == {wait: {"n": 1}}

    def test_all_answers_are_recorded_or_none(self, store: RunStore) -> None:
        lease = begin(store)
        ask(store, lease, "q1")
        for others in (["q9"], ["q1"]):
            assert not store.claim(RT, [claim("q1"), *map(claim, others)])
            assert state_of(store, "q1") == "open"
        ask(store, lease, "q2", 2)
        assert store.claim(RT, [claim("q2"), claim("q1")])
        assert not store.claim("another", [claim("q1")])
        assert store.claim(RT, [])

    def test_an_answer_that_was_looked_at_for_other_calls_is_not_recorded(
        self, store: RunStore
    ) -> None:
        lease, other = begin(store), begin(store)
        wait = ask(store, lease, "q1")
        ask(store, lease, "q2", 2)
        further = Wait("q1", other.run_id, 4)
        write(store, other, waits=(further,))
        for known in ((), (wait,), (further,), (wait, Wait("q1", other.run_id, 5))):
            looked_at = attrs.evolve(claim("q1"), waits=known)
            assert not store.claim(RT, [claim("q2"), looked_at])
        assert state_of(store, "q1") == state_of(store, "q2") == "open"
        write(store, lease, done=(wait,))  # one that waits no more does not count
        assert store.claim(RT, [claim("q2"), attrs.evolve(claim("q1"), waits=(further,))])

    def test_requests_of_one_step_are_listed_as_it_has_them(self, store: RunStore) -> None:
        lease = begin(store)
        names = ("q2", "q3", "q1")
        opened = (new("q2", login="z"), new("q3"), new("q1", login="a"))
        waits = tuple(Wait(name, lease.run_id, 1) for name in names)
        write(store, lease, opened=opened, waits=waits)
        assert tuple(ids(store.requests(RT))) == names

    def test_an_answer_comes_to_every_call_that_waits(self, store: RunStore) -> None:
        lease, other = begin(store), begin(store)
        first, second = ask(store, lease, "q1"), Wait("q1", other.run_id, 4)
        write(store, other, waits=(second,))
        answer(store, "q1")
        assert answers_of(store, lease.run_id) == {first: "yes"}
        assert answers_of(store, other.run_id) == {second: "yes"}
        write(store, lease, done=(first,))
        assert answers_of(store, lease.run_id) == {}
        assert answers_of(store, other.run_id) == {second: "yes"}
        assert state_of(store, "q1") == "answered"

    def test_a_call_that_begins_to_wait_too_late_has_its_answer(self, store: RunStore) -> None:
        lease, other = begin(store), begin(store)
        ask(store, lease, "q1")
        answer(store, "q1")
        wait = Wait("q1", other.run_id, 4)
        assert write(store, other, waits=(wait,), releases=True) == (other.run_id,)
        assert answers_of(store, other.run_id) == {wait: "yes"}

    def test_a_run_is_not_given_back_before_its_answer_is_taken(self, store: RunStore) -> None:
        lease = begin(store)
        wait = ask(store, lease, "q1")
        answer(store, "q1")
        assert write(store, lease, releases=True) == (lease.run_id,)
        assert store.owned(RT, lease.owner) == {lease.run_id: True}
        assert write(store, lease, done=(wait,), releases=True) == ()
        assert store.owned(RT, lease.owner) == {}
        assert store.abandoned(RT) == ()

    # -- signals -----------------------------------------------------------------------------

    def test_signals_are_read_in_order_until_they_are_dealt_with(self, store: RunStore) -> None:
        lease = begin(store)
        for text in ("one", "two", "three"):
            store.send(RT, lease.run_id, text)
        signals = store.mail(RT, lease.run_id).signals
        assert list(signals.values()) == ["one", "two", "three"]
        first, *rest = sorted(signals)
        assert write(store, lease, signals=(first,), releases=True) == (lease.run_id,)
        assert list(store.mail(RT, lease.run_id).signals) == rest
        assert write(store, lease, signals=tuple(rest), releases=True) == ()
        assert store.mail(RT, lease.run_id).signals == {}

    def test_the_number_of_a_signal_is_not_given_again(self, store: RunStore) -> None:
        lease = begin(store)
        store.send(RT, lease.run_id, "old")
        (old,) = store.mail(RT, lease.run_id).signals
        write(store, lease, signals=(old,))
        store.send(RT, lease.run_id, "new")
        write(store, lease, signals=(old,))  # somebody who is late
        assert list(store.mail(RT, lease.run_id).signals.values()) == ["new"]

    def test_a_signal_for_nobody_is_dropped(self, store: RunStore) -> None:
        store.send(RT, "root/a.1", "early")
        lease = begin(store)
        store.send("another", lease.run_id, "elsewhere")
        assert store.mail(RT, lease.run_id).signals == {}
        assert store.mail(RT, "root/a.9").answers == ()

    def test_what_has_come_waits_for_who_takes_the_run(self, store: RunStore) -> None:
        lease = begin(store)
        wait = ask(store, lease, "q1")
        write(store, lease, handles=(at(lease.run_id, "suspended"),), releases=True)
        store.send(RT, lease.run_id, "hello")
        answer(store, "q1", 7)
        assert store.abandoned(RT) == (lease.run_id,)
        newer = take(store, lease.run_id, "two")
        mail = store.mail(RT, lease.run_id)
        assert mail.answers == ((wait, 7),)
        done = {"done": (wait,), "signals": tuple(mail.signals)}
        assert write(store, newer, releases=True, **done) == ()

    # -- looking for them --------------------------------------------------------------------

    def test_requests_are_found_by_what_they_are(self, store: RunStore) -> None:
        lease, other = begin(store), begin(store)
        child = f"{lease.run_id}/b.1"
        write(store, lease, handles=(at(child, agent="b"), at(f"{child}0", agent="b")))
        ask(store, lease, "q3", kind="form", expires_at=later(5))
        write(store, lease, opened=(new("q1"),), waits=(Wait("q1", child, 0),))
        deep = (Wait("q4", f"{child}0", 0),)
        write(store, lease, opened=(new("q4", expires_at=later(1)),), waits=deep)
        ask(store, other, "q2", kind="form", expires_at=later(3))
        gone = ask(store, other, "q5", 2, expires_at=later(0))
        write(store, other, done=(gone,))
        answer(store, "q4")
        store.announced(RT, ["q5", "q1"])
        assert ids(store.requests(RT)) == ["q3", "q1", "q4", "q2", "q5"]
        for wanted, found in (
            ({"state": "open"}, ["q3", "q1", "q2"]),
            ({"state": "answered"}, ["q4"]),
            ({"state": "gone"}, ["q5"]),
            ({"kind": "form"}, ["q3", "q2"]),
            ({"under": child}, ["q1"]),
            ({"under": lease.run_id}, ["q3", "q1", "q4"]),
            ({"under": other.run_id}, ["q2", "q5"]),
            ({"under": "root"}, ["q3", "q1", "q4", "q2", "q5"]),
            ({"under": "root/a"}, []),
            ({"login": "github"}, []),
            ({"due": later(3)}, ["q4", "q2", "q5"]),
            ({"state": "open", "due": later(3)}, ["q2"]),
            ({"state": "open", "due": later(5)}, ["q3", "q2"]),
            ({"state": "open", "due": later(2.999_999)}, []),
            ({"state": "open", "kind": "form", "under": "root", "due": FAR}, []),
            ({"state": "open", "limit": 2}, ["q3", "q1"]),
            ({"limit": 0}, []),
            ({"is_announced": True}, ["q1", "q5"]),
            ({"is_announced": False, "state": "open"}, ["q3", "q2"]),
            ({"is_announced": False, "limit": 2}, ["q3", "q4"]),
        ):
            assert ids(store.requests(RT, **wanted)) == found, wanted
        assert ids(store.requests("another")) == []

    def test_the_next_expiry_is_that_of_an_open_request(self, store: RunStore) -> None:
        lease = begin(store)
        assert store.next_expiry(RT) is None
        waits = [ask(store, lease, f"q{n}", n, expires_at=later(n)) for n in (2, 1, 3)]
        ask(store, lease, "q9", 9)
        assert store.next_expiry(RT) == later(1)
        answer(store, "q1")
        assert store.next_expiry(RT) == later(2)
        write(store, lease, done=(waits[0],))
        assert store.next_expiry(RT) == later(3)
        assert store.next_expiry("another") is None

    def test_notes_and_announcements(self, store: RunStore) -> None:
        lease = begin(store)
        ask(store, lease, "q1")
        store.announced(RT, ["q1", "q9"])
        write(store, lease, notes={"q1": {"n": 1}, "q9": "nobody's"})
        write(store, lease, notes={"q1": {"n": 2}})
        found = store.request(RT, "q1")
        assert found is not None
        assert (found.is_announced, found.note) == (True, {"n": 2})
        answer(store, "q1")
        found = store.request(RT, "q1")
        assert found is not None
        assert (found.is_announced, found.note) == (True, None)
