"""Any sequence of verbs, in any interleaving with the model's replies and the tools' ends."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.conftest import LIMIT
from tests.threads.invariants import check_path, check_transcript
from tests.threads.rig import Rig, plan_of
from toolnexus import (
    AlreadyAnswered,
    Answer,
    Budget,
    ConfigError,
    Handle,
    InboxItem,
    ResumeError,
    State,
    TaskResult,
)

STEPS = st.one_of(
    st.sampled_from(["say", "ask", "ask2", "work", "mix", "!say", "!ask"]),
    st.lists(
        st.lists(st.sampled_from(["ask", "work", "ask2", "!say", "!ask"]), max_size=2),
        min_size=1,
        max_size=2,
    ),
)
PLANS = st.lists(STEPS, max_size=3)
ENDS = ("→idle", "→suspended", "→closed")


class HandleMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(parents=3, budget=Budget(max_concurrent=2))
        self.rt = self.rig.rt
        self.serial = 0
        self.tops = [self.rt.spawn(self.rt.root, f"p{n}").handle for n in range(3)]
        self.posted: dict[Handle, list[str]] = {}
        self.futures: list[tuple[Handle, int, Future[TaskResult]]] = []
        self.resumes: list[Future[None]] = []
        self.retries: list[threading.Thread] = []
        self.answers: list[Answer] = []
        self.problems: list[BaseException] = []

    # -- what a host may do -----------------------------------------------------------------
    # Few rules, enabled nearly always: hypothesis gives up on rules that rarely are.

    @rule(n=st.integers(0, 2), plan=PLANS)
    def wake(self, n: int, plan: list[Any]) -> None:
        if self.tops[n].state is State.CLOSED:
            self.tops[n] = self.rt.spawn(self.rt.root, f"p{n}").handle
        self.serial += 1
        was = self.tops[n].state
        ack = self.rt.wake(self.tops[n], plan_of(self.serial, *plan))
        if was is not State.IDLE:
            assert not ack.ok
        self.rig.wait_quiet()

    @rule(n=st.integers(0, 2), wakes=st.booleans(), watches=st.booleans())
    def post(self, n: int, wakes: bool, watches: bool) -> None:
        handle = self.tops[n]
        self.serial += 1
        note = f"note-{self.serial}-"
        if watches:
            ends = len(self.ends_of(handle))
            self.futures.append((handle, ends, self.rt.future_result(handle)))
        if self.rt.post(handle, InboxItem("host", "test", note)).ok:
            self.posted.setdefault(handle, []).append(note)
        if wakes:
            self.rt.wake(handle)
            self.rig.wait_quiet()

    @precondition(lambda self: self.rig.held)
    @rule(picks=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def let_go(self, picks: list[int]) -> None:
        for pick in picks:
            held = self.rig.held
            if held:
                self.rig.release(held[pick % len(held)])
                self.everything_holds()

    @rule(n=st.integers(0, 9), how=st.sampled_from(["interrupt"] * 3 + ["close", "kill"]))
    def stop(self, n: int, how: str) -> None:
        handles = [self.rt.handle(view.id) for view in self.rt.list()] or self.tops
        handle = handles[n % len(handles)]
        assert handle is not None
        if how == "interrupt":
            self.rt.interrupt(handle)
            assert handle.state in (State.IDLE, State.CLOSED)
        else:
            self.rt.close(handle, force=how == "kill")
            assert handle.state is State.CLOSED
        self.rig.settle_stopped()
        self.rig.wait_quiet()

    @precondition(lambda self: self.rt.pending() or self.answers)
    @rule(n=st.integers(0, 9), how=st.sampled_from(["yes"] * 4 + ["no", "again", "other"]))
    def resume(self, n: int, how: str) -> None:
        pending = sorted(self.rt.pending(), key=lambda one: (one.path, one.call_id))
        if how in ("yes", "no") and pending:
            answer = Answer(pending[n % len(pending)].request.id, how == "yes")
            self.answers.append(answer)
        elif self.answers:
            answer = self.answers[n % len(self.answers)]
        else:
            return
        if how == "other":
            with pytest.raises(AlreadyAnswered) as refused:
                self.rt.resume(Answer(answer.id, not answer.ok))
            assert refused.value.recorded == answer
        else:
            self.resumes.append(self.rt.future_resume(answer))
            self.rig.wait_quiet()

    @rule(n=st.integers(0, 2))
    def retry(self, n: int) -> None:
        self.rig.release_stale()
        handle = self.tops[n]
        if handle.last_result is None:
            with pytest.raises(ConfigError):
                self.rt.retry(handle)
            return
        before = len(self.rt.trace())

        def work() -> None:
            try:
                self.rt.retry(handle)
            except BaseException as error:
                self.problems.append(error)

        thread = threading.Thread(target=work, name="retry", daemon=True)
        thread.start()
        self.retries.append(thread)
        self.rig.until(lambda: not thread.is_alive() or len(self.rt.trace()) > before)
        self.rig.wait_quiet()

    @rule()
    def resume_what_nobody_asked(self) -> None:
        before = self.rt.trace()
        with pytest.raises(ResumeError):
            self.rt.resume(Answer("nobody-asked", True))
        assert self.rt.trace() == before

    # -- what must hold whenever nothing moves ----------------------------------------------

    @invariant()
    def everything_holds(self) -> None:
        self.every_trace_is_a_path_of_the_table()
        self.no_future_outlives_the_end_it_waited_for()
        self.nobody_waits_while_nothing_runs()
        self.the_inbox_neither_loses_nor_doubles()
        self.the_ledgers_add_up()
        self.a_yes_has_its_effect_at_most_once_and_nothing_else_has_one()
        self.transcripts_are_balanced()
        self.the_list_is_consistent()

    def every_trace_is_a_path_of_the_table(self) -> None:
        check_path(self.rt.trace())

    def no_future_outlives_the_end_it_waited_for(self) -> None:
        for handle, ends, future in self.futures:
            if len(self.ends_of(handle)) > ends:
                future.result(LIMIT)

    def nobody_waits_while_nothing_runs(self) -> None:
        # A caller's own thread may be the one that is inside an interrupted tool.
        if self.rig.stale or any(view.state is State.RUNNING for view in self.rt.list()):
            return
        for resumed in self.resumes:
            resumed.result(LIMIT)
        for thread in self.retries:
            thread.join(LIMIT)
            assert not thread.is_alive()
        assert not self.problems

    def the_inbox_neither_loses_nor_doubles(self) -> None:
        for handle in self.tops:
            said = "\n".join(
                str(message["content"])
                for message in self.rt.transcript(handle)
                if message["role"] == "user"
            )
            waiting = "\n".join(item.text for item in handle.inbox)
            for note in self.posted.get(handle, ()):
                found = said.count(note) + waiting.count(note)
                assert found <= 1, f"{note} stands twice"
                # A replay that waits for its place keeps what its turn has read.
                if handle.state is State.IDLE and handle._run is None:
                    assert found == 1, f"{note} is lost"

    def the_ledgers_add_up(self) -> None:
        spawned = [line.partition(":")[0] for line in self.rt.trace() if ": spawned" in line]
        handles = [self.rt.root, *filter(None, map(self.rt.handle, spawned))]
        below = Counter[str]()
        for one in handles:
            if one.parent is not None:
                below[one.parent.id] += one.usage_tree
            assert one.usage_total == 40 * one.turns_total
        for one in handles:
            assert one.usage_tree == one.usage_total + below[one.id], one.id

    def a_yes_has_its_effect_at_most_once_and_nothing_else_has_one(self) -> None:
        approved = {answer.id for answer in self.answers if answer.ok}
        assert set(self.rig.ask.effects) <= approved
        assert all(count == 1 for count in self.rig.ask.effects.values())

    def transcripts_are_balanced(self) -> None:
        for view in self.rt.list():
            handle = self.rt.handle(view.id)
            assert handle is not None
            check_transcript(self.rt.transcript(handle))
        assert [one.refusal for one in self.rig.llm.requests if one.refusal] == []

    def the_list_is_consistent(self) -> None:
        views = self.rt.list()
        seen = {"root"}
        children = Counter[str]()
        for view in views:
            parent = view.id.rpartition("/")[0]
            assert parent in seen, "parents come before children"
            assert view.id not in seen
            assert view.state is not State.CLOSED
            if view.state is State.SUSPENDED and not self.is_at_work_below(view.id):
                assert view.pending is not None, f"{view.id} waits for nothing"
            seen.add(view.id)
            children[parent] += 1
        assert {view.id: view.children for view in views} == {
            view.id: children[view.id] for view in views
        }
        asked = [one.request.id for one in self.rt.pending()]
        assert len(set(asked)) == len(asked)

    def teardown(self) -> None:
        self.rig.close_all()
        for _, _, future in self.futures:
            future.result(LIMIT)
        for resumed in self.resumes:
            resumed.result(LIMIT)
        for thread in self.retries:
            thread.join(LIMIT)
            assert not thread.is_alive()
        check_path(self.rt.trace())

    # -- helpers ----------------------------------------------------------------------------

    def is_at_work_below(self, handle_id: str) -> bool:
        return any(
            view.id.startswith(f"{handle_id}/") and view.state is State.RUNNING
            for view in self.rt.list()
        )

    def ends_of(self, handle: Handle) -> list[str]:
        prefix = f"{handle.id}: "
        return [
            line
            for line in self.rt.trace()
            if line.startswith(prefix)
            and any(end in line.partition(" (")[0] for end in ENDS)
            and "Answer accepted" not in line
        ]


TestHandleMachine = HandleMachine.TestCase
