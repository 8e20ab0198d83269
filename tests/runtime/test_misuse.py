"""Wrong use by the host says what was wrong, with which value, and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.helpers import Charge
from tests.runtime.support import Make, Probe, start
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Budget,
    ClientOptions,
    ConfigError,
    Handle,
    InboxItem,
    RuntimeOptions,
    SpawnError,
    ToolnexusError,
    agent,
)
from toolnexus.testing import ScriptedLlm, text, tool_call


def test_an_unknown_agent_lists_the_known_ones_sorted(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("zeta"), AgentDef("alpha"))
    spawned = rt.spawn(rt.root, "beta")
    assert (spawned.ok, spawned.error) == (False, 'unknown agent "beta" (known: alpha, zeta)')
    with pytest.raises(SpawnError, match=r'^unknown agent "beta" \(known: alpha, zeta\)$'):
        _ = spawned.handle
    assert rt.list() == ()


VERBS: dict[str, Callable[[AgentRuntime, Any], Any]] = {
    "spawn": lambda rt, handle: rt.spawn(handle, "a"),
    "post": lambda rt, handle: rt.post(handle, InboxItem("x", "y", "z")),
    "wake": lambda rt, handle: rt.wake(handle, "go"),
    "run_turn": lambda rt, handle: rt.run_turn(handle, "go", 1.0),
    "future_result": lambda rt, handle: rt.future_result(handle),
    "wait_on": lambda rt, handle: rt.wait_on(handle, 1.0),
    "interrupt": lambda rt, handle: rt.interrupt(handle),
    "close": lambda rt, handle: rt.close(handle),
    "retry": lambda rt, handle: rt.retry(handle),
    "inspect": lambda rt, handle: rt.inspect(handle),
    "transcript": lambda rt, handle: rt.transcript(handle),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_handle_of_another_runtime_is_refused(make_runtime: Make, verb: str) -> None:
    rt, other = make_runtime(AgentDef("a")), make_runtime(AgentDef("a"))
    stranger = other.spawn(other.root, "a").handle
    with pytest.raises(ConfigError, match=r"root/a\.1.*another runtime"):
        VERBS[verb](rt, stranger)
    assert stranger.state is Handle.State.IDLE
    assert rt.trace() == ()


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "inspect"])
@pytest.mark.parametrize("wrong", ["root/a.1", None, 5])
def test_what_is_no_handle_is_refused(make_runtime: Make, verb: str, wrong: Any) -> None:
    rt = make_runtime(AgentDef("a"))
    with pytest.raises(ConfigError, match="Handle"):
        VERBS[verb](rt, wrong)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "inspect"])
def test_an_id_in_place_of_a_handle_is_told_how_to_get_it(
    make_runtime: Make, verb: str
) -> None:
    rt = make_runtime(AgentDef("a"))
    with pytest.raises(ConfigError, match=r"; rt\.handle\('root/a\.1'\) gives it, or None"):
        VERBS[verb](rt, "root/a.1")


def test_inspect_of_an_unknown_id_is_none(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"))
    assert rt.inspect("root/a.1") is None
    with pytest.raises(ConfigError, match="Handle"):
        rt.inspect(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["yes", True, None, {"id": "x", "ok": True}])
def test_resume_takes_an_answer(llm: ScriptedLlm, make_runtime: Make, wrong: Any) -> None:
    llm.say("m", tool_call("charge_card"))
    rt = make_runtime(AgentDef("a", tools=[Charge()]))
    handle, _ = start(rt, "a")
    for verb in (rt.resume, rt.future_resume):
        with pytest.raises(ConfigError, match=r"Answer\(request\.id, ok=True\)"):
            verb(wrong)
    assert handle.state is Handle.State.SUSPENDED


@pytest.mark.parametrize("wrong", ["text", None, ("a", "b", "c")])
def test_post_takes_an_inbox_item(make_runtime: Make, wrong: Any) -> None:
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    with pytest.raises(ConfigError, match="InboxItem"):
        rt.post(handle, wrong)
    assert handle.inbox == ()


@pytest.mark.parametrize("wrong", [5, b"go", [5], []])
def test_a_prompt_is_a_text(make_runtime: Make, wrong: Any) -> None:
    rt = make_runtime(AgentDef("a"))
    handle = rt.spawn(rt.root, "a").handle
    for verb in (rt.wake, rt.run_turn):
        with pytest.raises(ConfigError, match="prompt"):
            verb(handle, wrong)
    assert handle.state is Handle.State.IDLE


def test_spawn_takes_a_name_and_a_budget(make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"))
    with pytest.raises(ConfigError, match="AgentDef"):
        rt.spawn(rt.root, 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Budget"):
        rt.spawn(rt.root, "a", 5)  # type: ignore[arg-type]
    assert rt.list() == ()


def test_two_tools_of_one_name() -> None:
    with pytest.raises(ConfigError, match="'mail'"):
        AgentDef("a", tools=[Probe("mail"), Probe("mail")])
    with pytest.raises(ConfigError, match="'mail'"):
        agent("a", tools=[Probe("mail"), Probe("mail")])


def test_a_tool_named_like_the_teams_own() -> None:
    with pytest.raises(ConfigError, match="'task'"):
        AgentDef("a", tools=[Probe("task")], team=["b"])
    assert AgentDef("a", tools=[Probe("task")]).name == "a"


def test_a_function_that_is_no_tool_hints_at_the_decorator() -> None:
    def mail() -> str:
        return "sent"

    with pytest.raises(ConfigError, match="@tool"):
        AgentDef("a", tools=[mail])


def test_a_team_that_names_nobody(llm: ScriptedLlm) -> None:
    with pytest.raises(ConfigError, match=r"'lead'.*'ghost'.*known: lead"):
        AgentRuntime(registry=[AgentDef("lead", team=["ghost"])])


def test_two_agents_of_one_name() -> None:
    with pytest.raises(ConfigError, match="'a'"):
        AgentRuntime(registry=[AgentDef("a"), AgentDef("a")])


WRONG: list[tuple[str, Any]] = [
    ("base_url", 5),
    ("base_url", "api.openai.com/v1"),
    ("style", "gemini"),
    ("api_key", 5),
    ("default_model", None),
    ("default_model", 5),
    ("model", 5),
    ("registry", "a"),
    ("registry", 5),
    ("registry", [5]),
    ("registry", {"a": 5}),
    ("inbox_cap", "8"),
    ("inbox_cap", 0),
    ("max_concurrent_turns", 0),
    ("max_concurrent_turns", 1.5),
    ("max_workers", 0),
    ("max_workers", True),
    ("shutdown_ms", -1),
    ("trace_limit", "many"),
    ("retries", -1),
    ("retry_base_ms", "500"),
    ("timeout_ms", "soon"),
    ("timeout_ms", -1),
    ("max_turns", 1.5),
    ("headers", "x: y"),
    ("request_params", 5),
    ("body_transform", 5),
    ("on_error", 5),
    ("on_metric", 5),
    ("wait_for", "yes"),
    ("hooks", object()),
    ("session", "session"),
    ("clock", 5),
    ("budget", {"max_tokens": 5}),
    ("retryable_statuses", 429),
    ("system_prompt", 5),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_an_option_of_the_wrong_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        AgentRuntime(**{name: value})


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigError, match="max_worker"):
        AgentRuntime(max_worker=5)


def test_options_and_keywords_do_not_mix() -> None:
    with pytest.raises(ConfigError, match="not both"):
        AgentRuntime(RuntimeOptions(), max_workers=5)
    with pytest.raises(ConfigError, match="RuntimeOptions"):
        AgentRuntime(ClientOptions())  # type: ignore[arg-type]


WRONG_PARTS: list[tuple[str, Any]] = [
    ("does", 5),
    ("soul", None),
    ("model", 5),
    ("tools", [5]),
    ("tools", "mail"),
    ("team", "b"),
    ("team", [5]),
    ("budget", 5),
    ("wait_for", 5),
    ("on_spawn", 5),
    ("on_close", "x"),
    ("hooks", object()),
    ("on_metric", 5),
]


@pytest.mark.parametrize(("name", "value"), WRONG_PARTS)
def test_a_part_of_a_definition_of_the_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        AgentDef("a", **{name: value})


@pytest.mark.parametrize("name", ["", "a/b", "a b", None, 5, "x" * 65])
def test_an_agents_name_is_checked(name: Any) -> None:
    with pytest.raises(ConfigError, match="name"):
        AgentDef(name)


@pytest.mark.parametrize("value", [-1, 1.5, "5", True])
@pytest.mark.parametrize("field", ["max_turns", "max_tokens", "max_depth", "max_concurrent"])
def test_a_limit_is_a_whole_number(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        Budget(**{field: value})


def test_an_agent_without_a_model_says_how_to_give_one(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    rt = make_runtime(AgentDef("a"), default_model="")
    _, result = start(rt, "a")
    assert result.status == "error"
    assert "default_model" in result.text
    assert llm.requests == []


def test_a_missing_key_is_an_error_result(
    llm: ScriptedLlm, make_runtime: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    rt = make_runtime(AgentDef("a"), api_key=None)
    handle, result = start(rt, "a")
    assert result.status == "error"
    assert result.text.startswith("No API key")
    assert handle.state is Handle.State.IDLE


def test_the_root_runs_no_turns(llm: ScriptedLlm, make_runtime: Make) -> None:
    rt = make_runtime(AgentDef("a"))
    ack = rt.wake(rt.root, "go")
    assert not ack.ok
    assert rt.run_turn(rt.root, "go").is_error
    assert rt.root.state is Handle.State.IDLE
    assert llm.requests == []


def test_every_error_of_misuse_has_one_root() -> None:
    for error in (ConfigError, SpawnError):
        assert issubclass(error, ToolnexusError)


@pytest.mark.in_memory
def test_one_definition_serves_two_runtimes(llm: ScriptedLlm, make_runtime: Make) -> None:
    llm.say("m", text("one"), text("two"))
    definition = AgentDef("a")
    first, second = make_runtime(definition), make_runtime(definition)
    assert start(first, "a")[1].text == "one"
    assert start(second, "a")[1].text == "two"
    assert first.spawn(first.root, definition).handle.id == "root/a.2"
    with pytest.raises(AttributeError):
        definition.name = "b"  # type: ignore[misc]
    assert first.wait_on(first.root.children[0], LIMIT).text == "one"
