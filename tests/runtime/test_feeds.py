"""Feeds and their readers: what is kept for a reader, and readers in tools and callbacks."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.streams import (
    Tree,
    assert_nobody_listens,
    read,
    result_of,
    short,
    spoken,
    started,
    taken,
    text_of,
    told,
)
from tests.runtime.support import Make, Probe, in_thread
from toolnexus import (
    AgentDef,
    AgentRuntime,
    ConfigError,
    ToolContext,
    ToolResult,
    Usage,
)
from toolnexus.clock import RealClock
from toolnexus.events import Event, TextDelta, UsageUpdate
from toolnexus.runtime.feeds import EventLog
from toolnexus.testing import ScriptedLlm, text, tool_call


def test_unread_text_becomes_one_piece() -> None:
    log = EventLog()
    for piece in ("a", "b", "", "c"):
        log.add(TextDelta(piece, "x"))

    assert list(log) == [TextDelta("abc", "x")]


def test_other_events_keep_their_place_in_the_text() -> None:
    log = EventLog()
    events: list[Event] = [
        TextDelta("a", "x"),
        started(1, "x"),
        TextDelta("b", "x"),
        started(2, "x"),
    ]
    for event in events:
        log.add(event)

    assert list(log) == events
    assert list(log) == events, "reading takes nothing away"


def test_an_empty_log_is_false() -> None:
    log = EventLog()
    assert not log
    log.add(TextDelta("", "x"))
    assert log


def test_texts_that_alternate_become_one_piece_for_each_handle() -> None:
    log = EventLog()
    for number in range(1000):
        log.add(TextDelta(f"{number},", "xy"[number % 2]))

    assert sorted(event.handle_id or "" for event in log) == ["x", "y"]
    assert text_of(list(log), "x") == "".join(f"{number}," for number in range(0, 1000, 2))


def test_text_does_not_move_over_an_event_of_its_own_handle() -> None:
    log = EventLog()
    events: list[Event] = [
        TextDelta("a", "x"),
        TextDelta("b", "y"),
        started(1, "x"),
        TextDelta("c", "x"),
    ]
    for event in events:
        log.add(event)

    assert [event for event in log if event.handle_id == "x"] == [
        TextDelta("a", "x"),
        started(1, "x"),
        TextDelta("c", "x"),
    ]


def test_a_feed_hears_its_handle_and_no_other(make_runtime: Make) -> None:
    tree = Tree(make_runtime)
    feed = tree.listen()
    everybody = (tree.parent, tree.child, tree.other, tree.grandchild)
    for handle in everybody:
        tree.feeds.tell(tree.run_of(handle), started(1))

    assert [tree.feeds.listens(handle) for handle in everybody] == [False, True, False, False]
    assert taken(feed) == [started(1, tree.child.id)]


def test_a_feed_of_a_tree_hears_everything_below_too(make_runtime: Make) -> None:
    tree = Tree(make_runtime)
    feed = tree.listen(tree=True)
    everybody = (tree.parent, tree.child, tree.other, tree.grandchild)
    for handle in everybody:
        tree.feeds.tell(tree.run_of(handle), started(1))

    assert [tree.feeds.listens(handle) for handle in everybody] == [False, True, False, True]
    assert [event.handle_id for event in taken(feed)] == [tree.child.id, tree.grandchild.id]


def test_who_joins_is_told_what_others_were_told_before(make_runtime: Make) -> None:
    tree = Tree(make_runtime)
    run = tree.run_of(tree.child)
    tree.feeds.tell(run, started(0))  # nobody listens yet, and it is not kept
    first = tree.listen()
    tree.feeds.tell(run, started(1))
    second = tree.listen(joins=True)
    tree.feeds.tell(run, started(2))

    both = [started(1, tree.child.id), started(2, tree.child.id)]
    assert (taken(first), taken(second)) == (both, both)


def test_what_is_told_after_the_last_listener_left_is_kept_for_the_next(
    make_runtime: Make,
) -> None:
    tree = Tree(make_runtime)
    run = tree.run_of(tree.child)
    first = tree.listen()
    tree.feeds.tell(run, started(1))
    tree.feeds.close(first)
    tree.feeds.tell(run, started(2))
    second = tree.listen(joins=True)

    assert taken(first) == [started(1, tree.child.id)]
    assert [short(event) for event in taken(second)] == ["look", "look"]


def test_a_feed_that_is_over_is_told_nothing_more(make_runtime: Make) -> None:
    tree = Tree(make_runtime)
    run = tree.run_of(tree.child)
    feed = tree.listen()
    feed.finish()
    tree.feeds.tell(run, UsageUpdate(Usage(1, 1, 2)))

    assert taken(feed) == []


def test_a_reader_waits_for_the_next_event(make_runtime: Make) -> None:
    tree = Tree(make_runtime)
    run = tree.run_of(tree.child)
    feed = tree.listen()
    for number in range(3):
        reading = in_thread(feed.take, RealClock())
        tree.feeds.tell(run, started(number))
        assert reading.result(LIMIT) == [started(number, tree.child.id)]


def test_a_feed_can_be_closed_twice(make_runtime: Make) -> None:
    tree = Tree(make_runtime)
    feed = tree.listen()
    tree.feeds.close(feed)
    tree.feeds.close(feed)

    assert not tree.feeds.listens(tree.child)


KID = AgentDef("kid", "works", "", "kid")

# -- tools and callbacks that stream --------------------------------------------------------


def streaming_tool(rt: list[AgentRuntime], seen: list[Event], gate: threading.Event) -> Probe:
    """Return a tool that streams a child of its own handle, and opens a gate at the text."""

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        (runtime,) = rt
        me = runtime.handle(ctx.handle_id or "")
        assert me is not None
        for event in runtime.stream(runtime.spawn(me, "kid").handle, "go"):
            seen.append(event)
            if event.kind == "text":
                gate.set()
        return ToolResult.ok(text_of(seen))

    return Probe("relay", work)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_tool_streams_a_child_on_the_only_worker(
    llm: ScriptedLlm, make_runtime: Make, workers: int
) -> None:
    made: list[AgentRuntime] = []
    seen: list[Event] = []
    relay = streaming_tool(made, seen, threading.Event())
    rt = make_runtime(AgentDef("a", tools=[relay]), KID, max_workers=workers)
    made.append(rt)
    llm.say("m", tool_call("relay"), text("relayed"))
    llm.say("kid", spoken("x", "y"))
    handle = rt.spawn(rt.root, "a").handle
    events = read(rt.stream(handle, "go"))

    assert (text_of(seen), result_of(seen).text) == ("xy", "xy")
    assert ("tool_result", "xy") in told(events)
    assert_nobody_listens(rt, handle)


def test_a_tool_reads_its_childs_text_while_the_model_still_speaks(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    made: list[AgentRuntime] = []
    seen: list[Event] = []
    gate = threading.Event()
    relay = streaming_tool(made, seen, gate)
    rt = make_runtime(AgentDef("a", tools=[relay]), KID, max_workers=1)
    made.append(rt)
    llm.say("m", tool_call("relay"), text("relayed"))
    llm.say("kid", spoken("x", "y").paused_after(1, gate))
    handle = rt.spawn(rt.root, "a").handle
    try:
        assert rt.run_turn(handle, "go", timeout=LIMIT / 4).text == "relayed"
    finally:
        gate.set()
    assert told(seen)[:2] == [("text", "x"), ("text", "y")]


def test_a_tool_may_not_stream_the_turn_it_works_for(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    refused: list[Exception] = []

    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        try:
            list(rt.stream(handle))
        except ConfigError as error:
            refused.append(error)
        return ToolResult.ok("fine")

    rt = make_runtime(AgentDef("a", tools=[Probe("look", work)]))
    handle = rt.spawn(rt.root, "a").handle
    llm.say("m", tool_call("look"), text("done"))

    assert result_of(read(rt.stream(handle, "go"))).text == "done"
    assert "could never end" in str(refused[0])
    assert_nobody_listens(rt, handle)
