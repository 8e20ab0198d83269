"""Hooks in whatever form they are given: a gate that was given is a gate that shuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.runtime.support import Make, Probe, start
from toolnexus import AgentDef, ConfigError, ToolResult, agent
from toolnexus.testing import ScriptedLlm, text, tool_call


class Gate:
    """Denies every call."""

    def before_tool(self, *given: Any) -> ToolResult:
        return ToolResult.error("denied by policy")


class Empty(Gate):
    """A gate that keeps a list, still an empty one."""

    def __len__(self) -> int:
        return 0


class Off(Gate):
    """A gate that passes for false."""

    def __bool__(self) -> bool:
        return False


class Log(Gate):
    """A gate that can be iterated over, and holds no hooks."""

    def __iter__(self) -> Iterator[str]:
        return iter(["what was said", "so far"])


class Nothing(Gate):
    """A gate that can be iterated over, and holds nothing."""

    def __iter__(self) -> Iterator[object]:
        return iter(())


def once() -> Iterator[Gate]:
    yield Gate()


FORMS = pytest.mark.parametrize(
    "given",
    [
        Gate,
        lambda: [Gate()],
        lambda: (Gate(),),
        once,
        lambda: iter([Gate()]),
        lambda: {"only": Gate()}.values(),
        Empty,
        Off,
        lambda: [Off(), Empty()],
        Log,
        Nothing,
        lambda: [Nothing()],
    ],
    ids=[
        "an object",
        "a list",
        "a tuple",
        "a generator",
        "an iterator",
        "a view",
        "an empty object",
        "a false object",
        "false ones in a list",
        "an object with items",
        "an object without items",
        "one without items in a list",
    ],
)


@FORMS
def test_a_clients_gate_shuts_in_every_run(
    llm: ScriptedLlm, make_client: MakeClient, given: Callable[[], Any]
) -> None:
    wipe, client = Probe("wipe"), make_client(hooks=given())
    for _ in range(2):
        llm.say("m", tool_call("wipe", id="c1"), text("ok"))
        client.run("go", tools=[wipe])

        assert llm.requests[-1].tool_results == {"c1": "denied by policy"}
    assert wipe.runs == []


@FORMS
@pytest.mark.parametrize("place", ["runtime", "definition", "declared"])
def test_an_agents_gate_shuts_for_every_handle(
    llm: ScriptedLlm, make_runtime: Make, given: Callable[[], Any], place: str
) -> None:
    wipe = Probe("wipe")
    if place == "runtime":
        rt = make_runtime(AgentDef("a", tools=[wipe]), hooks=given())
    elif place == "definition":
        rt = make_runtime(AgentDef("a", tools=[wipe], hooks=given()))
    else:
        rt = make_runtime(agent("a", tools=[wipe], hooks=given()).definition)
    for _ in range(2):
        llm.say("m", tool_call("wipe", id="c1"), text("ok"))
        start(rt, "a")

        assert llm.requests[-1].tool_results == {"c1": "denied by policy"}
    assert wipe.runs == []


@pytest.mark.parametrize("given", [object(), [object()], "gate", [Gate(), None], 0, False])
def test_what_is_no_hook_is_refused_where_it_is_given(
    make_client: MakeClient, make_runtime: Make, given: Any
) -> None:
    with pytest.raises(ConfigError, match="hooks"):
        make_client(hooks=given)
    with pytest.raises(ConfigError, match="hooks"):
        make_runtime(hooks=given)
    with pytest.raises(ConfigError, match="hooks"):
        AgentDef("a", hooks=given)


@pytest.mark.parametrize("given", [None, [], ()])
def test_no_hooks_are_none(llm: ScriptedLlm, make_client: MakeClient, given: Any) -> None:
    llm.say("m", tool_call("look", id="c1"), text("ok"))
    make_client(hooks=given).run("go", tools=[Probe("look")])

    assert llm.requests[-1].tool_results == {"c1": "look done"}
