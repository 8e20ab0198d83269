"""A process dies at each of its writes, in tools that may not simply run again.

What is listed is what the model reads of each call, and how often each took effect.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.conftest import LIMIT
from tests.durable.mortal import DIED, Later, MortalStore
from tests.durable.zygote import Zygote, zygote
from toolnexus import AgentDef, AgentRuntime, Answer, State, ToolContext, tool
from toolnexus.stores import SqliteStore
from toolnexus.testing import Reply, ScriptedLlm, text, tool_call
from toolnexus.testing.recorded import RecordedRequest

RUN = "root/a.1"

TABLE = """
start_run                                     | done 1, done 1        | done 1, done 1
take root/a.1                                 | done 1, done 1        | done 1, done 1
a.1 running                                   | done 1, done 1        | done 1, done 1
a.1 running: user, calls send, call 0 started | done 1, done 1        | unknown 0, done 1
a.1 running: result send, call 0 plain        | unknown 1, done 1     | done 1, done 1
a.1 running: calls post, call 0 started       | done 1, done 1        | done 1, asked, done 1
a.1 running: result post, call 0 plain        | done 1, asked, done 2 | done 1, done 1
a.1 idle: assistant; given back               | done 1, done 1        | done 1, done 1
abandon                                       | done 1, done 1        | done 1, done 1
"""
"""Every changing call of a run that does not die, each with what comes of it where the process
dies right before it, and right after it: what the model reads of `send`, whose outcome stays
unknown, and of `post`, of which a person says that it may run again; and how often each took
effect, always under one key."""

LINES = (tool_call("send", {}, "send"), tool_call("post", {}, "post"), text("done"))


def play(asked: RecordedRequest) -> Reply:
    return LINES[sum(one["role"] == "assistant" for one in asked.messages)]


# -- in processes of their own -----------------------------------------------------------------


def runtime(base_url: str, directory: str, store: Any) -> AgentRuntime:
    def take_effect(name: str, ctx: ToolContext) -> str:
        with (Path(directory) / "effects").open("a") as file:
            file.write(f"{name} {ctx.idempotency_key}\n")
        return f"{name} done"

    @tool
    def send(ctx: ToolContext) -> str:
        """Send; never again."""
        return take_effect("send", ctx)

    @tool(on_unknown="ask")
    def post(ctx: ToolContext) -> str:
        """Post; again if a person says so."""
        return take_effect("post", ctx)

    return AgentRuntime(
        base_url=base_url,
        api_key="k",
        default_model="m",
        retries=0,
        registry=[AgentDef("a", tools=[send, post])],
        store=store,
    )


def live(base_url: str, directory: str, dies_at: int | None = None, when: str = "") -> None:
    with (Path(directory) / "calls").open("w", buffering=1) as calls:
        kept = SqliteStore(Path(directory) / "runs.db", synchronous="normal")
        store = MortalStore(kept, dies_at, when, log=calls)
        finish(runtime(base_url, directory, store))


def go_on(base_url: str, directory: str) -> list[str]:
    """Finish in another process; return what the model has read of each call."""
    rt = runtime(base_url, directory, SqliteStore(Path(directory) / "runs.db", clock=Later(1)))
    rt.recover()
    return finish(rt)


def finish(rt: AgentRuntime) -> list[str]:
    handle = rt.handle(RUN) or rt.spawn(rt.root, "a").handle
    view = rt.inspect(handle)
    assert view is not None
    if view.turns == 0 and view.state is State.IDLE:
        rt.run_turn(handle, "go")
    result = rt.wait_on(handle, LIMIT)
    asked = ""
    if result.pending is not None:
        assert result.pending.kind == "unknown_outcome"
        rt.resume(Answer(result.pending.id, ok=True))
        result, asked = rt.wait_on(handle, LIMIT), "asked, "
    assert (result.text, result.status, result.turns) == ("done", "done", 3)
    told = [one["content"] for one in rt.transcript(handle) if one["role"] == "tool"]
    rt.close()
    return [*map(said, map(str, told[:1])), asked + said(str(told[1]))]


def said(result: str) -> str:
    return "unknown" if "may or may not have taken effect" in result else result.split()[-1]


# -- the tests ---------------------------------------------------------------------------------


@attrs.frozen
class Point:
    """A moment of death, and what comes of it."""

    number: int
    when: str
    outcome: str

    def __str__(self) -> str:
        return f"{self.when}-{self.number}"


def read_table() -> tuple[list[str], list[Point]]:
    labels, points = [], []
    for line in TABLE.strip().splitlines():
        label, before, after = (part.strip() for part in line.split("|"))
        labels.append(label)
        points.append(Point(len(labels), "before", before))
        points.append(Point(len(labels), "after", after))
    return labels, points


@pytest.fixture(scope="module")
def stage() -> Any:
    with ScriptedLlm() as llm, zygote() as started:
        llm.answer("m", play)
        yield llm, started


LABELS, POINTS = read_table()


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_process_dies(
    stage: tuple[ScriptedLlm, Zygote], tmp_path: Path, point: Point
) -> None:
    llm, started = stage
    where = {"base_url": llm.base_url, "directory": str(tmp_path)}
    ended = started.run(__name__, "live", **where, dies_at=point.number, when=point.when)
    assert ended.code == DIED, ended.told
    assert (tmp_path / "calls").read_text().splitlines() == LABELS[: point.number]
    send, post = started.call(__name__, "go_on", **where)
    effects = [one.split() for one in (tmp_path / "effects").read_text().splitlines()]
    times = Counter(name for name, _ in effects)
    assert f"{send} {times['send']}, {post} {times['post']}" == point.outcome
    assert len({key for _, key in effects}) == len(times)


def test_every_write_is_listed(stage: tuple[ScriptedLlm, Zygote], tmp_path: Path) -> None:
    llm, started = stage
    started.call(__name__, "live", base_url=llm.base_url, directory=str(tmp_path))
    assert (tmp_path / "calls").read_text().splitlines() == LABELS
