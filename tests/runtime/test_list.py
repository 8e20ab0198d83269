"""What `list` and `inspect` say of a tree: which part of it, and who is busy."""

from __future__ import annotations

import threading

from tests.conftest import LIMIT
from tests.runtime.support import Make
from toolnexus import AgentDef, AgentRuntime, Budget, Handle
from toolnexus.testing import ScriptedLlm, text


def ids(rt: AgentRuntime, under: Handle | str | None = None) -> list[str]:
    return [one.id for one in rt.list(under)]


def test_a_part_of_the_tree(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"), AgentDef("ab"))
    top, other = (rt.spawn(rt.root, name).handle for name in ("a", "ab"))
    child = rt.spawn(top, "a").handle
    leaf = rt.spawn(child, "a").handle
    below = [top.id, child.id, leaf.id]
    assert ids(rt) == ids(rt, rt.root)
    assert sorted(ids(rt)) == [*below, other.id]
    assert ids(rt, top) == ids(rt, top.id) == below
    assert ids(rt, child) == below[1:]
    assert ids(rt, other) == [other.id]
    assert ids(rt, "root/a.9") == []
    rt.close(child)
    assert ids(rt, child.id) == []
    assert ids(rt, top) == [top.id]


def test_who_runs_or_waits_for_a_place_is_busy(make_runtime: Make, llm: ScriptedLlm) -> None:
    gate = threading.Event()
    llm.say("m", text("one").held_by(gate), text("two"))
    rt = make_runtime(AgentDef("a"), budget=Budget(max_concurrent=1))
    handles = [rt.spawn(rt.root, "a").handle for _ in range(3)]
    futures = [rt.future_result(one) for one in handles[:2]]
    rt.wake(handles[0], "go")
    llm.wait_asked("m")
    rt.wake(handles[1], "go")
    views = rt.list()
    assert [(one.state.value, one.is_busy) for one in views] == [
        *(("running", True), ("idle", True), ("idle", False)),
    ]
    assert tuple(rt.inspect(one) for one in handles) == views
    gate.set()
    assert [one.result(LIMIT).text for one in futures] == ["one", "two"]
    assert [one.is_busy for one in rt.list()] == [False] * 3
