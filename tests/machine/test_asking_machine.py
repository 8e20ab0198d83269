"""Many questions, parent and child, answered in any order by many threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import LIMIT
from toolnexus import AgentDef, AgentRuntime, Answer, Request, ToolContext, tool
from toolnexus.testing import RecordedRequest, ScriptedLlm, call, text, tool_calls

QUESTIONS = 3
FALSY: list[Any] = [None, False, 0, 0.0, "", [], {}]


class Clerks:
    """Two tools of three questions each, for the parent and for the child."""

    def __init__(self, gated: bool) -> None:
        self.lock = threading.Lock()
        self.steps: Counter[str] = Counter()
        self.heard: dict[str, list[Any]] = {}
        self.tools = [self.make(name, gated) for name in ("first", "second")]

    def make(self, name: str, gated: bool) -> Any:
        @tool(name=name, needs_approval="Begin {who}?" if gated else False)
        def clerk(who: str, ctx: ToolContext) -> str:
            me = f"{who} {name}"
            answers = []
            for number in range(QUESTIONS):
                with_step = f"{me} {number}"
                ctx.once(str(number), partial(self.count, with_step))
                answers.append(ctx.ask("question", with_step).data)
            with self.lock:
                assert me not in self.heard
                self.heard[me] = answers
            return "done"

        return clerk

    def count(self, step: str) -> None:
        with self.lock:
            self.steps[step] += 1


def play(llm: ScriptedLlm) -> None:
    def answer(request: RecordedRequest) -> Any:
        if request.messages[-1]["role"] == "tool":
            return text("end")
        who = request.body["model"]
        calls = [call("first", {"who": who}), call("second", {"who": who})]
        if who == "parent":
            calls.insert(1, call("task", {"agent": "child", "prompt": "go"}))
        return tool_calls(*calls)

    llm.answer("parent", answer)
    llm.answer("child", answer)


def said_to(request: Request) -> Any:
    """Return what is said to a question: every question has a value of its own."""
    if request.kind == "approval":
        return None
    number = sum(map(ord, request.prompt))
    return FALSY[number % len(FALSY)] if number % 2 else request.prompt


@settings(max_examples=settings.default.max_examples // 3)
@given(
    order=st.lists(st.integers(0, 100), min_size=1, max_size=40),
    workers=st.sampled_from([1, 2, 8]),
    gated=st.booleans(),
    twice=st.booleans(),
    batch=st.integers(1, 3),
)
def test_every_answer_reaches_exactly_its_question(
    order: list[int], workers: int, gated: bool, twice: bool, batch: int
) -> None:
    clerks = Clerks(gated)
    with ScriptedLlm() as llm, ThreadPoolExecutor(8, "caller") as callers:
        play(llm)
        rt = AgentRuntime(
            base_url=llm.base_url,
            api_key="k",
            registry=[
                AgentDef("parent", model="parent", tools=clerks.tools, team=["child"]),
                AgentDef("child", model="child", tools=clerks.tools),
            ],
            max_workers=workers,
        )
        try:
            handle = rt.spawn(rt.root, "parent").handle
            assert callers.submit(rt.run_turn, handle, "go").result(LIMIT).status == "pending"
            answered = answer_all(rt, callers, order, twice, batch)
            result = callers.submit(rt.wait_on, handle, LIMIT).result(LIMIT)
        finally:
            rt.close(force=True)
    assert result.text == "end"
    names = [f"{who} {name}" for who in ("parent", "child") for name in ("first", "second")]
    prompts = [f"{name} {number}" for name in names for number in range(QUESTIONS)]
    assert clerks.heard == {
        name: [said_to(Request("question", f"{name} {n}")) for n in range(QUESTIONS)]
        for name in names
    }
    for name in names:
        for number, heard in enumerate(clerks.heard[name]):
            wanted = said_to(Request("question", f"{name} {number}"))
            assert type(heard) is type(wanted)
    assert clerks.steps == Counter(prompts)
    assert Counter(answered) == Counter([*prompts, *(gates(names) if gated else [])])
    assert {one.outcome for one in rt.audit()} == {"answered"}
    assert len(rt.audit()) == len(answered)
    # Each model spoke twice, whatever was asked in between.
    assert Counter(one.body["model"] for one in llm.requests) == {"parent": 2, "child": 2}


def gates(names: Sequence[str]) -> list[str]:
    return [f"Begin {name.split()[0]}?" for name in names]


def answer_all(
    rt: AgentRuntime, callers: ThreadPoolExecutor, order: list[int], twice: bool, batch: int
) -> list[str]:
    """Answer what is open in the order that `order` chooses, several at a time."""
    answered: list[str] = []
    turn = 0
    while open_now := rt.pending():
        chosen = []
        for _ in range(min(len(open_now), 4)):
            left = [one for one in open_now if one not in chosen]
            chosen.append(left[order[turn % len(order)] % len(left)])
            turn += 1
        answered += [one.request.prompt for one in chosen]
        answers = [Answer(one.request.id, True, said_to(one.request)) for one in chosen]
        groups = [answers[at : at + batch] for at in range(0, len(answers), batch)]
        jobs = [callers.submit(rt.resume, group) for group in groups * (2 if twice else 1)]
        for job in jobs:
            job.result(LIMIT)
    return answered
