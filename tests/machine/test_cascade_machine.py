"""Answers that arrive in any order, while replies come back in any order."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import LIMIT
from tests.helpers import moves
from tests.threads.invariants import check_path
from tests.threads.rig import Rig, plan_of
from toolnexus import Answer, Budget, State

LEAVES = st.sampled_from(["ask", "ask2"])


def trees(depth: int) -> st.SearchStrategy[list[Any]]:
    """Plans of one agent whose tree is at most `depth` deep below it."""
    if depth == 0:
        return LEAVES.map(lambda step: [step])
    below = st.lists(trees(depth - 1), min_size=1, max_size=2)
    return st.one_of(trees(0), below.map(lambda kids: [kids]))


def leaves(plan: list[Any]) -> list[str]:
    (step,) = plan
    return [step] if isinstance(step, str) else [leaf for kid in step for leaf in leaves(kid)]


@settings(max_examples=settings.default.max_examples // 5)
@given(
    plan=trees(2),
    workers=st.sampled_from([1, 2, 32]),
    picks=st.lists(st.integers(0, 11), max_size=40),
)
def test_no_interleaving_of_answers_and_replies_loses_or_doubles_anything(
    plan: list[Any], workers: int, picks: list[int]
) -> None:
    rig = Rig(parents=1, levels=2, max_workers=workers, budget=Budget(max_depth=4))
    with ExitStack() as stack:
        callers = stack.enter_context(ThreadPoolExecutor(32, "caller"))
        stack.callback(rig.close_all)
        top = rig.rt.spawn(rig.rt.root, "p0").handle
        rig.rt.wake(top, plan_of(1, *plan))
        rig.wait_quiet()
        resumed: list[Future[None]] = []
        choices = iter(picks)
        answered: set[str] = set()

        # An answer may come as soon as its question is open, also while a sibling still works
        # and the ancestors have not parked yet.
        while True:
            asked = sorted(rig.rt.pending(), key=lambda one: (one.path, one.call_id))
            steps: list[Any] = [*(one.request.id for one in asked), *rig.held]
            if not steps:
                break
            step = steps[(next(choices, 0)) % len(steps)]
            if isinstance(step, str):
                resumed.append(callers.submit(rig.rt.resume, Answer(step, True)))
                answered.add(step)
                rig.until(lambda: all(o.request.id not in answered for o in rig.rt.pending()))
                rig.wait_quiet()
            else:
                rig.release(step)

        for future in resumed:
            future.result(LIMIT)
        result = rig.rt.wait_on(top, LIMIT)
        assert (result.status, result.text) == ("done", "done")
        assert top.state is State.IDLE
        assert rig.ask.effects == Counter(answered)
        assert len(answered) == sum(2 if leaf == "ask2" else 1 for leaf in leaves(plan))
        check_path(rig.rt.trace())

        spawned = [line.partition(":")[0] for line in rig.rt.trace() if ": spawned" in line]
        assert len(spawned) == count_agents(plan)
        assert len(rig.llm.requests) == 2 * len(spawned), "one request for each step"
        assert [one.refusal for one in rig.llm.requests if one.refusal] == []
        assert result.total_tokens == 40 * len(rig.llm.requests)
        for handle_id in spawned[1:]:
            assert moves(rig.rt.trace(), handle_id)[-1] == "closed"
        assert rig.rt.list()[0].children == 0


def count_agents(plan: list[Any]) -> int:
    (step,) = plan
    return 1 if isinstance(step, str) else 1 + sum(count_agents(kid) for kid in step)
