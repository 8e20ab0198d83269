"""What callbacks raise becomes a result or a log line, never a zombie or a stuck waiter."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge, moves
from tests.runtime.support import Make, Probe, approve, run_turn, start, within
from toolnexus import AgentDef, Handle, MetricEvent, State, TaskResult
from toolnexus.testing import ScriptedLlm, text, tool_call


def boom(*args: Any) -> Any:
    raise RuntimeError("boom")


def test_on_spawn_that_raises_refuses_the_spawn(make_runtime: Make) -> None:
    closed: list[str] = []
    rt = make_runtime(
        AgentDef("a", on_spawn=boom, on_close=lambda handle, why: closed.append(why)),
        AgentDef("ok"),
    )
    spawned = rt.spawn(rt.root, "a")
    assert not spawned.ok
    assert spawned.error is not None
    assert "boom" in spawned.error
    assert rt.list() == ()
    assert rt.root.children == ()
    assert rt.spawn(rt.root, "ok").handle.id == "root/ok.2"


def test_on_spawn_that_raises_is_the_models_to_judge(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("task", {"agent": "w", "prompt": "x"}, "c1"), text("without it"))
    rt = make_runtime(AgentDef("lead", team=["w"]), AgentDef("w", on_spawn=boom))
    lead, result = start(rt, "lead")
    assert result.text == "without it"
    assert "boom" in llm.requests[-1].tool_results["c1"]
    assert lead.children == ()


def test_on_spawn_sees_an_idle_handle(make_runtime: Make) -> None:
    seen: list[tuple[str, State]] = []
    rt = make_runtime(AgentDef("a", on_spawn=lambda h: seen.append((h.id, h.state))))
    rt.spawn(rt.root, "a")
    assert seen == [("root/a.1", State.IDLE)]


def test_on_close_that_raises_does_not_stop_the_cascade(
    make_runtime: Make, caplog: pytest.LogCaptureFixture
) -> None:
    rt = make_runtime(AgentDef("a", on_close=boom))
    top = rt.spawn(rt.root, "a").handle
    leaf = rt.spawn(top, "a").handle
    waiting = rt.future_result(leaf)
    with caplog.at_level(logging.ERROR):
        within(rt.close, top)
    assert (top.state, leaf.state) == (State.CLOSED, State.CLOSED)
    assert waiting.result(LIMIT).status == "closed"
    assert rt.list() == ()
    assert len([one for one in caplog.records if "on_close" in one.message]) == 2


class Hook:
    """One hook method that raises."""

    def __init__(self, name: str) -> None:
        setattr(self, name, boom)


def test_before_llm_that_raises_ends_the_turn_and_releases_the_waiter(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt = make_runtime(AgentDef("a", hooks=Hook("before_llm")))
    handle, result = start(rt, "a")
    assert (result.status, result.is_error) == ("error", True)
    assert "boom" in result.text
    assert handle.state is State.IDLE
    assert rt.transcript(handle) == ()
    assert f"{handle.id}: running→idle (error: boom)" in rt.trace()
    assert llm.requests == []


def test_after_llm_that_raises_is_logged(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", text("fine"))
    rt = make_runtime(AgentDef("a", hooks=Hook("after_llm")))
    assert start(rt, "a")[1].text == "fine"


def test_before_tool_that_raises_keeps_the_gate_shut(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("mail", id="c1"), text("ok"))
    mail = Probe("mail")
    rt = make_runtime(AgentDef("a", tools=[mail], hooks=Hook("before_tool")))
    assert start(rt, "a")[1].text == "ok"
    assert mail.runs == []
    assert "not executed" in llm.requests[-1].tool_results["c1"]


def test_after_tool_that_raises_withholds_the_output(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("mail", id="c1"), text("ok"))
    mail = Probe("mail")
    rt = make_runtime(AgentDef("a", tools=[mail], hooks=Hook("after_tool")))
    assert start(rt, "a")[1].text == "ok"
    assert len(mail.runs) == 1
    assert "mail done" not in llm.requests[-1].tool_results["c1"]


def test_on_metric_that_raises_changes_nothing(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", tool_call("charge_card"), text("ok"))
    charge = Charge()
    rt = make_runtime(AgentDef("a", tools=[charge], on_metric=boom))
    handle, parked = start(rt, "a")
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "ok"
    assert len(charge.charged) == 1


def test_every_hook_that_raises_on_the_way_of_a_cascade_leaves_it_whole(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    """The parent's before_llm fails once at the replay; the same answer again goes on."""
    llm.say("lead", tool_call("task", {"agent": "pay", "prompt": "x"}), text("all"))
    llm.say("pay", tool_call("charge_card"), text("charged"))
    charge = Charge()

    class Once:
        calls = 0

        def before_llm(self, request: object) -> None:
            self.calls += 1
            if self.calls == 2:
                raise RuntimeError("boom")

    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"], hooks=Once()),
        AgentDef("pay", "", "", "pay", tools=[charge]),
    )
    lead, parked = start(rt, "lead")
    approve(rt, parked.pending)
    assert rt.wait_on(lead, LIMIT).status == "error"
    assert lead.state is State.IDLE
    approve(rt, parked.pending)
    assert rt.wait_on(lead, LIMIT).text == "all"
    assert len(charge.charged) == 1
    llm.assert_done()


def test_the_leafs_hook_that_raises_at_the_resume_loses_no_answer(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("charge_card"), text("charged"))
    charge = Charge()

    class Once:
        calls = 0

        def before_llm(self, request: object) -> None:
            self.calls += 1
            if self.calls == 2:
                raise RuntimeError("boom")

    rt = make_runtime(AgentDef("a", tools=[charge], hooks=Once()))
    handle, parked = start(rt, "a")
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).status == "error"
    approve(rt, parked.pending)
    assert rt.wait_on(handle, LIMIT).text == "charged"
    assert len(charge.charged) == 1


def test_a_future_callback_that_raises_stops_nobody(
    llm: ScriptedLlm, make_runtime: Make, caplog: pytest.LogCaptureFixture
) -> None:
    llm.say("m", text("fine"))
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    futures = [rt.future_result(handle) for _ in range(3)]
    futures[0].add_done_callback(boom)
    rt.wake(handle, "go")
    assert [future.result(LIMIT).text for future in futures] == ["fine"] * 3
    assert not futures[1].cancel()


def test_a_future_callback_may_use_the_runtime(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", text("first"), text("second"))
    rt = make_runtime(AgentDef("a"), max_workers=1)
    handle = rt.spawn(rt.root, "a").handle
    done: list[TaskResult] = []
    finished = threading.Event()

    def next_turn(future: Any) -> None:
        done.append(future.result())
        rt.future_result(handle).add_done_callback(last_turn)
        rt.wake(handle, "again")

    def last_turn(future: Any) -> None:
        done.append(future.result())
        finished.set()

    rt.future_result(handle).add_done_callback(next_turn)
    rt.wake(handle, "go")
    assert finished.wait(LIMIT)
    assert [one.text for one in done] == ["first", "second"]


def test_hooks_and_metrics_of_a_definition_replace_the_runtimes(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.answer("m", lambda request: text("x"))
    calls: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def before_llm(self, request: object) -> None:
            calls.append(f"hook of {self.name}")

    def metric(name: str) -> Any:
        def note(event: MetricEvent) -> None:
            if event.kind == "run":
                calls.append(f"metric of {name}")

        return note

    rt = make_runtime(
        AgentDef("plain"),
        AgentDef("hooked", hooks=Named("it")),
        AgentDef("metered", on_metric=metric("it")),
        hooks=Named("all"),
        on_metric=metric("all"),
    )
    seen = {}
    for name in ("plain", "hooked", "metered"):
        handle: Handle = rt.spawn(rt.root, name).handle
        within(rt.run_turn, handle, "go")
        seen[name], calls[:] = list(calls), []
    assert seen == {
        "plain": ["hook of all", "metric of all"],
        "hooked": ["hook of it", "metric of all"],
        "metered": ["hook of all", "metric of it"],
    }


def test_a_suspension_is_no_error_for_metrics_and_hooks(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("m", tool_call("charge_card"), text("charged"))
    events: list[MetricEvent] = []
    after: list[str] = []

    class Watch:
        def after_tool(self, call: Any, args: Any, result: Any) -> None:
            after.append(result.output)

    rt = make_runtime(AgentDef("a", tools=[Charge()], on_metric=events.append, hooks=Watch()))
    handle, parked = start(rt, "a")
    approve(rt, parked.pending)
    tools = [(e.is_error, e.pending) for e in events if e.kind == "tool"]
    assert tools == [(False, True), (False, False)]
    assert [e.status for e in events if e.kind == "run"] == ["pending", "done"]
    assert after == ["charged"]
    assert moves(rt.trace(), handle.id)[-1] == "idle"


def test_a_wait_for_that_raises_at_a_parent_declines_the_childs_question(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    llm.say("lead", tool_call("task", {"agent": "pay", "prompt": "x"}), text("told"))
    llm.say("pay", tool_call("charge_card"), text("not charged"), text("again"))
    charge = Charge()
    rt = make_runtime(
        AgentDef("lead", "", "", "lead", team=["pay"], wait_for=boom),
        AgentDef("pay", "", "", "pay", tools=[charge]),
    )
    lead, result = start(rt, "lead")
    assert result.text == "told"
    assert charge.charged == []
    llm.say("lead", text("fine"))
    assert run_turn(rt, lead).text == "fine"
