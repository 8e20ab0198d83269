"""Streams that are dropped in a reference cycle: the collector ends them in mid-anything."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.process.child import running
from toolnexus.testing import ScriptedLlm, text

DROP = """
import gc
from toolnexus import LlmClient

class Loop:
    pass

@tool
def look() -> str:
    return "seen"

def client_of(**options):
    return LlmClient(base_url=sys.argv[1], api_key="k", model="m", retries=0, **options)

def drop(client, **given):
    # Begun, and then held by nothing but itself.
    loop = Loop()
    loop.me, loop.stream = loop, client.stream("go", **given)
    next(loop.stream)

def told(stream):
    return "".join(event.delta for event in stream if event.kind == "text")

def assert_nothing_left():
    for thread in set(threading.enumerate()) - {threading.main_thread()}:
        thread.join(8)
        assert not thread.is_alive(), thread

class AtStep:
    # Does some work again and again, with a collection one step later each time. A step is the
    # begin of a function or the end of a built-in one: there, too, the collector may come.
    def __init__(self, work):
        self.work, self.number, self.where, self.given = work, 0, "never", None

    def goes_on(self):
        gc.collect()
        if self.number and self.where == "never":
            return False
        self.number, self.left, self.where = self.number + 1, self.number + 1, "never"
        return True

    def run(self):
        sys.setprofile(self.count)
        try:
            self.given = self.work()
        finally:
            sys.setprofile(None)

    def count(self, frame, event, given):
        if event in ("call", "c_return"):
            self.left -= 1
            if not self.left:
                self.where = f"at {frame.f_code.co_filename}:{frame.f_lineno}"
                gc.collect()

client = client_of(**eval(sys.argv[2]))
told(client.stream("go"))
gc.freeze()  # or each collection would look at every module
"""

OPTIONS = pytest.mark.parametrize("options", [{}, {"timeout_ms": 60_000}], ids=["", "timed"])


@OPTIONS
def test_a_dropped_stream_may_be_collected_in_the_middle_of_another(
    llm: ScriptedLlm, options: dict[str, int]
) -> None:
    llm.answer("m", lambda request: text("hello"))
    script = """
    with client, client_of() as other:
        gc.set_threshold(1, 1, 1)
        for number in range(40):
            drop(client)
            drop(client, id=f"u{number}")
            drop(client, tools=[look])
            assert told(client.stream("go")) == "hello"
            assert told(client.stream("go", id=f"v{number % 3}")) == "hello"
            drop(other)
            assert client.run("go", tools=[look]).text == "hello"
            assert client.ask("go", id=f"v{number % 3}").text == "hello"
            assert "toolnexus_llm_requests_total" in client.metrics()
        gc.set_threshold(0)
    assert_nothing_left()
    say("done")
    """
    with running(DROP + dedent(script), llm.base_url, repr(options)) as child:
        child.expect("done")
        child.end()


@OPTIONS
def test_a_dropped_stream_may_be_collected_at_any_step_of_another(
    llm: ScriptedLlm, options: dict[str, int]
) -> None:
    llm.answer("m", lambda request: text("hello"))
    script = """
    with client:
        gc.disable()
        step = AtStep(lambda: told(client.stream("go", id="v")))
        while step.goes_on():
            drop(client)
            drop(client, id=f"u{step.number}")
            step.run()
            assert step.given == "hello"
            client.conversation_store.delete("v")
        assert step.number > 100
    assert_nothing_left()
    say("done")
    """
    with running(DROP + dedent(script), llm.base_url, repr(options)) as child:
        child.expect("done")
        child.end()


@OPTIONS
def test_a_conversation_is_free_wherever_its_dropped_stream_is_collected(
    llm: ScriptedLlm, options: dict[str, int]
) -> None:
    llm.answer("m", lambda request: text("hello"))
    script = """
    with client:
        gc.disable()
        step = AtStep(lambda: client.ask("again", id="u").text)
        while step.goes_on():
            drop(client, id="u")
            asking = threading.Thread(target=step.run, daemon=True)
            asking.start()
            asking.join(0.2 if step.number > 50 else 8)
            step.left = 0
            gc.collect()  # for one that has come to wait in fewer steps, which is the last
            asking.join(8)
            assert not asking.is_alive(), f"collected {step.where}, it waits for ever"
            assert step.given == "hello"
            client.conversation_store.delete("u")
        assert step.number > 50
    assert_nothing_left()
    say("done")
    """
    with running(DROP + dedent(script), llm.base_url, repr(options)) as child:
        child.expect("done")
        child.end()
