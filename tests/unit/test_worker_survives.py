"""Whatever a job raises, and whatever the log makes of that, its worker takes the next one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, Probe, start
from toolnexus import AgentDef
from toolnexus.testing import ScriptedLlm, text, tool_call
from toolnexus.workers import Job, WorkerPool

ENDINGS = (RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit)


class BrokenHandler(logging.Handler):
    """A handler whose store is down."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(logging.DEBUG)
        self.error = error
        self.asked = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.asked += 1
        raise self.error("log store is down")


@pytest.fixture
def break_log() -> Iterator[Callable[[type[BaseException]], BrokenHandler]]:
    """Give the library's logger a handler that raises, and nothing else."""
    logger = logging.getLogger("toolnexus")
    handlers: list[BrokenHandler] = []
    propagates, logger.propagate = logger.propagate, False

    def add(error: type[BaseException]) -> BrokenHandler:
        handlers.append(BrokenHandler(error))
        logger.addHandler(handlers[-1])
        return handlers[-1]

    yield add
    logger.propagate = propagates
    for one in handlers:
        logger.removeHandler(one)


class Raising:
    """Work that raises where a worker offers to do it."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.thread: threading.Thread | None = None

    def run_if_unclaimed(self) -> bool:
        self.thread = threading.current_thread()
        raise self.error("ended")


@pytest.mark.parametrize("error", ENDINGS)
def test_a_worker_survives_work_that_raises(error: type[BaseException]) -> None:
    pool = WorkerPool(1, "test-pool")
    raising, ran = Raising(error), []
    job = Job(lambda: ran.append(threading.current_thread()))
    done = threading.Event()
    pool.submit(raising)
    pool.submit(job)
    pool.submit(Job(done.set))
    assert done.wait(LIMIT)
    assert ran == [raising.thread]
    assert pool.close(LIMIT) == []


@pytest.mark.parametrize("log_error", [RuntimeError, SystemExit])
@pytest.mark.parametrize("error", ENDINGS)
def test_a_worker_survives_work_and_a_log_that_raise(
    break_log: Callable[[type[BaseException]], BrokenHandler],
    error: type[BaseException],
    log_error: type[BaseException],
) -> None:
    handler = break_log(log_error)
    pool, done = WorkerPool(1, "test-pool"), threading.Event()
    for _ in range(3):
        pool.submit(Raising(error))
    pool.submit(Job(done.set))
    assert done.wait(LIMIT)
    assert handler.asked == 3
    assert pool.close(LIMIT) == []


@pytest.mark.parametrize("log_error", [RuntimeError, SystemExit])
@pytest.mark.parametrize("error", ENDINGS)
def test_the_only_worker_serves_after_a_tool_and_the_log_have_raised(
    llm: ScriptedLlm,
    make_runtime: Make,
    break_log: Callable[[type[BaseException]], BrokenHandler],
    error: type[BaseException],
    log_error: type[BaseException],
) -> None:
    def fail(args: dict[str, Any], ctx: Any) -> Any:
        raise error("ended")

    llm.say("bad", tool_call("t"))
    llm.answer("bad", lambda request: text("went on"))
    llm.answer("m", lambda request: text("fine"))
    rt = make_runtime(
        AgentDef("bad", model="bad", tools=[Probe("t", fail)]),
        AgentDef("good"),
        max_workers=1,
    )
    handler = break_log(log_error)
    start(rt, "bad")
    assert start(rt, "good")[1].text == "fine"
    assert handler.asked > 0


@pytest.mark.parametrize("log_error", [RuntimeError, SystemExit])
@pytest.mark.parametrize("place", ["on_metric", "after_llm", "before_tool", "on_close"])
def test_a_log_that_raises_leaves_no_stuck_waiter(
    llm: ScriptedLlm,
    make_runtime: Make,
    break_log: Callable[[type[BaseException]], BrokenHandler],
    place: str,
    log_error: type[BaseException],
) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("ended")

    class Hook:
        def __init__(self) -> None:
            setattr(self, place, fail)

    llm.answer(
        "m",
        lambda request: (
            text("fine") if request.messages[-1]["role"] == "tool" else tool_call("t")
        ),
    )
    is_hook = place in ("after_llm", "before_tool")
    rt = make_runtime(
        AgentDef(
            "a",
            tools=[Probe("t")],
            hooks=Hook() if is_hook else None,
            on_metric=fail if place == "on_metric" else None,
            on_close=fail if place == "on_close" else None,
        ),
        max_workers=1,
    )
    break_log(log_error)
    handle, result = start(rt, "a")
    assert result.status in ("done", "error")
    assert handle.state is handle.State.IDLE
