"""Shaping a request: the same rules for a run, a stream, a translation and an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest
import requests

from tests.conftest import LIMIT, MakeClient
from tests.http.raw_servers import Background
from tests.http.test_client_hooks import Counter, Note
from tests.runtime.streams import one_handle, read
from tests.runtime.support import Make, run_turn
from toolnexus import (
    AgentDef,
    CancelToken,
    ClientOptions,
    Hooks,
    LlmClient,
    MetricEvent,
    RuntimeOptions,
    TranslateRequest,
)
from toolnexus.budget import RETRYABLE_STATUSES
from toolnexus.testing import ScriptedLlm, text, tool_call
from toolnexus.wire.base import ModelRequest

InBackground = Callable[[Callable[[], Any]], Background]
Way = Callable[..., Any]


def ask(client: LlmClient, cancel: CancelToken | None = None) -> str:
    return client.run("hi", cancel=cancel).text


def stream(client: LlmClient, cancel: CancelToken | None = None) -> str:
    return "".join(
        event.delta for event in client.stream("hi", cancel=cancel) if event.kind == "text"
    )


def told(client: LlmClient, cancel: CancelToken | None = None) -> str:
    words: list[str] = []
    client.ask("hi", id="u1", on_text=words.append, cancel=cancel)
    return "".join(words)


def translate(client: LlmClient, cancel: CancelToken | None = None) -> str:
    request = TranslateRequest([{"role": "user", "content": "hi"}])
    return str(client.translate(request, cancel)["choices"][0]["message"]["content"])


WAYS = pytest.mark.parametrize("way", [ask, stream, told, translate], ids=lambda w: w.__name__)
STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])


# -- defaults ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [ClientOptions, RuntimeOptions])
def test_the_defaults(cls: Any) -> None:
    options = cls()

    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS
    assert options.retryable_statuses == RETRYABLE_STATUSES == {429, 500, 502, 503, 504, 529}


DEFAULTS = {
    "retries": 2,
    "retry_base_ms": 500,
    "max_retry_wait_ms": 60_000,
    "timeout_ms": None,
    "connect_timeout_ms": 10_000,
    "read_timeout_ms": 600_000,
    "style": "openai",
    "max_part_bytes": 20 * 1024 * 1024,
}


def test_a_client_makes_at_most_6_turns_unless_told_otherwise(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    llm.say("m", *[tool_call("count", {"n": 1})] * 6)
    result = make_client().run("go", tools=[Counter()])

    assert (result.status, result.limit, result.turns) == ("incomplete", "maxTurns", 6)
    llm.assert_done()


# -- the body ----------------------------------------------------------------------------------


@STYLES
@pytest.mark.parametrize(
    ("prompt", "skills", "system"),
    [
        ("Be brief.", "Skills: none.", "Be brief.\n\nSkills: none."),
        ("Be brief.", "", "Be brief."),
        ("", "Skills: none.", "Skills: none."),
        ("", "", ""),
    ],
)
def test_the_system_prompt_and_the_skills_stand_a_blank_line_apart(
    llm: ScriptedLlm,
    make_client: MakeClient,
    style: str,
    prompt: str,
    skills: str,
    system: str,
) -> None:
    llm.say("m", text("a"))
    client = make_client(style=style, system_prompt=prompt, skills_prompt=skills)
    client.run("hi")
    (request,) = llm.requests

    assert request.system == system
    assert ("system" in request.body) is (style == "anthropic" and system != "")


@WAYS
@STYLES
def test_params_go_over_the_hooks_request_and_the_transform_sees_the_whole(
    llm: ScriptedLlm, make_client: MakeClient, way: Way, style: str
) -> None:
    bodies: list[dict[str, Any]] = []

    class Cap(Hooks):
        def before_llm(self, request: ModelRequest) -> ModelRequest:
            return attrs.evolve(request, max_tokens=1, params={"seed": 1, "top_p": 1})

    def transform(body: dict[str, Any]) -> dict[str, Any]:
        bodies.append(dict(body))
        return {**body, "top_k": 3}

    params = {"max_tokens": 2, "seed": 2, "stream": "no", "messages": [], "tools": []}
    llm.say("m", text("hello"))
    client = make_client(
        style=style, hooks=Cap(), request_params=params, body_transform=transform
    )

    assert way(client) == "hello"
    (body,) = bodies
    assert (body["max_tokens"], body["seed"], body["top_p"]) == (2, 2, 1)
    assert body.get("stream") is (True if way in (stream, told) else None)
    assert llm.requests[0].body == {**body, "top_k": 3}
    assert "tools" not in body


class ModelOfTheTurn(Hooks):
    """Asks another model in each turn."""

    def __init__(self, *models: str) -> None:
        self._models = iter(models)

    def before_llm(self, request: ModelRequest) -> ModelRequest:
        return attrs.evolve(request, model=next(self._models))


@STYLES
@pytest.mark.parametrize("way", ["run", "stream", "turn", "streamed turn"])
def test_a_hook_chooses_the_model_of_each_turn(
    llm: ScriptedLlm, make_client: MakeClient, make_runtime: Make, style: str, way: str
) -> None:
    events: list[MetricEvent] = []
    llm.say("small", tool_call("count", {"n": 1}).with_thinking("hm"))
    llm.say("large", text("done"))
    options: dict[str, Any] = {
        "style": style,
        "hooks": ModelOfTheTurn("small", "large"),
        "on_metric": events.append,
    }
    if way in ("run", "stream"):
        client = make_client(**options)
        if way == "run":
            client.run("go", tools=[Counter()])
        else:
            list(client.stream("go", tools=[Counter()]))
        metrics = client.metrics()
    else:
        rt, handle = one_handle(make_runtime, Counter(), **options)
        _ = run_turn(rt, handle) if way == "turn" else read(rt.stream(handle, "go"))
        metrics = rt.metrics()

    assert [request.model for request in llm.requests] == ["small", "large"]
    assert [event.model for event in events if event.kind == "llm"] == ["small", "large"]
    assert [event.model for event in events if event.kind == "run"] == ["m"]
    for model in ("small", "large"):
        assert f'requests_total{{model="{model}",status="ok"}} 1' in metrics
    # What one model thought is no business of the other.
    assert "thinking" not in str(llm.requests[1].messages)


# -- hooks -------------------------------------------------------------------------------------

ORDER = [
    *("a before_llm", "b before_llm", "b after_llm tool_calls", "a after_llm tool_calls"),
    *("a before_tool count {'n': 1} #1", "b before_tool count {'n': 1} #1"),
    *("b after_tool counted 1", "a after_tool counted 1"),
    *("a before_llm", "b before_llm", "b after_llm stop", "a after_llm stop"),
]


@pytest.mark.parametrize("way", ["stream", "turn", "streamed turn", "translate"])
@pytest.mark.parametrize("several", [list, tuple])
def test_hooks_run_forwards_before_and_backwards_after(
    llm: ScriptedLlm, make_client: MakeClient, make_runtime: Make, way: str, several: Any
) -> None:
    log: list[str] = []
    hooks = several([Note("a", log), Note("b", log)])
    llm.say("m", tool_call("count", {"n": 1}), text("done"))
    if way == "stream":
        list(make_client(hooks=hooks).stream("go", tools=[Counter()]))
    elif way == "translate":
        llm.say("m", text("never"))
        messages: list[Mapping[str, Any]] = [{"role": "user", "content": "go"}]
        request = TranslateRequest(messages, toolkit=[Counter()])  # type: ignore[arg-type]
        make_client(hooks=hooks).translate(request)
    else:
        rt, handle = one_handle(make_runtime, Counter(), hooks=hooks)
        _ = run_turn(rt, handle) if way == "turn" else read(rt.stream(handle, "go"))

    assert log == (ORDER[:4] if way == "translate" else ORDER)


@pytest.mark.parametrize("own_hooks", [False, True])
@pytest.mark.parametrize("own_metric", [False, True])
def test_a_definitions_hooks_and_metric_go_before_the_runtimes_each_by_itself(
    llm: ScriptedLlm, make_runtime: Make, own_hooks: bool, own_metric: bool
) -> None:
    log: list[str] = []
    mine: list[str] = []
    theirs: list[str] = []
    definition = AgentDef(
        "a",
        hooks=Note("mine", log) if own_hooks else None,
        on_metric=(lambda event: mine.append(event.kind)) if own_metric else None,
    )
    rt = make_runtime(
        definition,
        hooks=Note("theirs", log),
        on_metric=lambda event: theirs.append(event.kind),
    )
    llm.say("m", text("done"))
    run_turn(rt, rt.spawn(rt.root, "a").handle)

    whose = "mine" if own_hooks else "theirs"
    assert log == [f"{whose} before_llm", f"{whose} after_llm stop"]
    assert (mine, theirs) == ((["llm", "run"], []) if own_metric else ([], ["llm", "run"]))


# -- a session of one's own --------------------------------------------------------------------


@WAYS
def test_a_session_of_ones_own_carries_every_request_and_stays_open(
    llm: ScriptedLlm, make_client: MakeClient, way: Way
) -> None:
    llm.say("m", text("one"), text("two"))
    with requests.Session() as session:
        session.headers["x-app"] = "mine"
        client = make_client(session=session)
        assert [way(client), way(client)] == ["one", "two"]
        client.close()
        assert {request.headers["x-app"] for request in llm.requests} == {"mine"}
        url = f"{llm.base_url}/nowhere"
        assert session.get(url, timeout=LIMIT).status_code == 404
        assert llm.open_connections == 1
