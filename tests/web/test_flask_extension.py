"""`toolnexus.contrib.flask`: one runtime per process, made late; jobs with an application."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, g, has_app_context, has_request_context

from tests.conftest import LIMIT
from tests.process.child import running
from tests.runtime.support import Pay, Probe
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    ConfigError,
    Handle,
    State,
    ToolContext,
    ToolResult,
)
from toolnexus.contrib.flask import Toolnexus
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

MakeApp = Callable[..., Flask]


@pytest.fixture
def make_app(llm: ScriptedLlm) -> Iterator[MakeApp]:
    """Make applications whose runtimes ask the scripted model; they are closed at the end."""
    made: list[tuple[Toolnexus, Flask]] = []

    def make(name: str = "app", agents: Toolnexus | None = None, **options: Any) -> Flask:
        app = Flask(name)
        given = {"base_url": llm.base_url, "api_key": "k", "default_model": "m", "retries": 0}
        app.config["TOOLNEXUS"] = given
        agents = agents or Toolnexus(**options)
        agents.init_app(app)
        made.append((agents, app))
        return app

    yield make
    for agents, app in made:
        agents.close(app)


def rt_of(app: Flask) -> AgentRuntime:
    with app.app_context():
        return Toolnexus().runtime


def wake(rt: AgentRuntime, agent: str = "a") -> Handle:
    handle = rt.spawn(rt.root, agent).handle
    assert rt.wake(handle, "go").ok
    return handle


class Looker(Probe):
    """A tool that notes what Flask has for it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        super().__init__("look", self._look)

    def _look(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        has_app = has_app_context()
        self.seen.append(
            {
                "app": current_app.name if has_app else None,
                "request": has_request_context(),
                "user": g.get("user") if has_app else None,
                "g": id(g._get_current_object()) if has_app else None,
            }
        )
        return ToolResult.ok("looked")


def test_a_tool_has_an_application_context_of_its_own_and_no_request(
    llm: ScriptedLlm, make_app: MakeApp
) -> None:
    looker, ended = Looker(), []
    app = make_app("shop", registry=[AgentDef("a", tools=[looker])])
    app.teardown_appcontext(lambda error: ended.append(threading.current_thread().name))
    llm.say("m", tool_call("look"), text("done"))
    with app.test_request_context("/"):
        g.user = "ann"
        rt = Toolnexus().runtime
        handle = wake(rt)
        assert rt.wait_on(handle, timeout=LIMIT).status == "done"
    (seen,) = looker.seen
    assert (seen["app"], seen["request"], seen["user"]) == ("shop", False, None)
    # That of the tool, and that of the turn: both on the worker.
    assert ended.count("toolnexus-1") == 2


def test_a_turn_in_a_views_own_thread_has_what_the_view_has(
    llm: ScriptedLlm, make_app: MakeApp
) -> None:
    looker = Looker()
    app = make_app(registry=[AgentDef("a", tools=[looker])])
    llm.say("m", tool_call("look"), text("done"))
    with app.test_request_context("/"):
        g.user = "ann"
        rt = Toolnexus().runtime
        assert rt.run_turn(rt.spawn(rt.root, "a").handle, "go").status == "done"
    (seen,) = looker.seen
    assert (seen["request"], seen["user"]) == (True, "ann")


def test_parallel_tools_do_not_share_a_context(llm: ScriptedLlm, make_app: MakeApp) -> None:
    looker = Looker()
    both = threading.Barrier(2)
    look = looker.work

    def meet(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        both.wait(LIMIT)
        result = look(args, ctx)
        both.wait(LIMIT)  # so that neither's `g` is gone before the other's is made
        return result

    looker.work = meet
    app = make_app(registry=[AgentDef("a", tools=[looker])])
    llm.say("m", tool_calls(call("look"), call("look")), text("done"))
    rt = rt_of(app)
    assert rt.wait_on(wake(rt), timeout=LIMIT).status == "done"
    first, second = looker.seen
    assert first["g"] != second["g"]


def test_what_an_answer_sets_going_has_the_application(
    llm: ScriptedLlm, make_app: MakeApp
) -> None:
    found: list[tuple[str, bool]] = []
    pay = Pay()
    ask = pay.work

    def look(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        found.append((current_app.name, has_request_context()))
        return ask(args, ctx)

    pay.work = look
    app = make_app("shop", registry=[AgentDef("a", tools=[pay])])
    llm.say("m", tool_call("pay"), text("done"))
    rt = rt_of(app)
    parked = rt.wait_on(wake(rt), timeout=LIMIT)
    assert parked.pending is not None
    with app.test_request_context("/"):
        future = rt.future_resume(Answer(parked.pending.id, ok=True))
    future.result(LIMIT)
    assert found == [("shop", False)] * 2


def test_the_hosts_own_hook_is_called_in_the_application(
    llm: ScriptedLlm, make_app: MakeApp
) -> None:
    names: list[str] = []

    def hook(job: Callable[[], None]) -> None:
        names.append(current_app.name)
        job()

    app = make_app("shop", registry=[AgentDef("a")], wrap_job=hook)
    llm.say("m", text("done"))
    rt = rt_of(app)
    rt.wait_on(wake(rt), timeout=LIMIT)
    assert names == ["shop"]


def test_one_extension_has_a_runtime_for_each_application(
    llm: ScriptedLlm, make_app: MakeApp
) -> None:
    looker = Looker()
    agents = Toolnexus(registry=[AgentDef("a", tools=[looker])])
    llm.say("m", tool_call("look"), text("done"), tool_call("look"), text("done"))
    first, second = make_app("first", agents), make_app("second", agents)
    assert rt_of(first) is not rt_of(second)
    for app in (first, second):
        rt_of(app).wait_on(wake(rt_of(app)), timeout=LIMIT)
    assert [one["app"] for one in looker.seen] == ["first", "second"]


def test_many_threads_get_the_same_runtime(make_app: MakeApp) -> None:
    app = make_app()
    start = threading.Barrier(8)

    def get(_: int) -> int:
        start.wait(LIMIT)
        return id(rt_of(app))

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(get, range(8)))) == 1


def test_after_close_the_next_use_makes_a_new_runtime(make_app: MakeApp) -> None:
    agents = Toolnexus()
    app = make_app("app", agents)
    first = rt_of(app)
    agents.close(app)
    agents.close(app)
    assert first.root.state is State.CLOSED
    assert rt_of(app).root.state is State.IDLE


def test_settings_go_over_arguments(make_app: MakeApp) -> None:
    app = make_app(default_model="another", max_turns=3)
    options = rt_of(app).options
    assert (options.default_model, options.max_turns) == ("m", 3)


def test_misuse_says_what_is_wrong(make_app: MakeApp) -> None:
    app = Flask("app")
    app.config["TOOLNEXUS"] = {"default_modell": "m"}
    with pytest.raises(ConfigError, match="did you mean default_model"):
        Toolnexus(app)
    app.config["TOOLNEXUS"] = "gpt"
    with pytest.raises(ConfigError, match="is a mapping"):
        Toolnexus(app)
    with app.app_context(), pytest.raises(ConfigError, match="call init_app"):
        Toolnexus().runtime  # noqa: B018 - the point
    with pytest.raises(RuntimeError, match="outside of application context"):
        Toolnexus().runtime  # noqa: B018 - the point


FORKING = """
import flask
from toolnexus.contrib.flask import Toolnexus

agents = Toolnexus(registry=[AgentDef("a")], default_model="m", api_key="k", retries=0)
app = flask.Flask("app")
app.config["TOOLNEXUS"] = {"base_url": sys.argv[1]}
agents.init_app(app)
assert threading.active_count() == 1

def work():
    with app.app_context():
        rt = agents.runtime
        assert rt.list() == (), rt.list()
        handle = rt.spawn(rt.root, "a").handle
        rt.wake(handle, "go")
        return rt.wait_on(handle).text, rt
"""


def test_a_forked_worker_has_a_runtime_of_its_own_that_ends_with_it(llm: ScriptedLlm) -> None:
    llm.answer("m", lambda asked: text("hello"))
    script = """
    mine = work()[1]
    for _ in range(3):
        pid = os.fork()
        if not pid:
            said, rt = work()
            assert rt is not mine
            sys.exit(0 if said == "hello" else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert len(mine.list()) == 1
    say("ended")
    """
    with running(FORKING + "\n" + unindented(script), llm.base_url) as child:
        child.expect("ended")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_a_fork_in_the_middle_of_the_making_leaves_no_lock(llm: ScriptedLlm) -> None:
    llm.answer("m", lambda asked: text("hello"))
    script = """
    from toolnexus.contrib.per_process import PerProcess
    inside, go_on = threading.Event(), threading.Event()

    def make_slowly():
        inside.set()
        go_on.wait(10)
        return make()

    place = PerProcess(make_slowly)
    maker = threading.Thread(target=place.get)
    maker.start()
    inside.wait(10)
    pid = os.fork()
    if not pid:
        go_on.set()
        place.get()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    go_on.set()
    maker.join(10)
    say("ended")
    """
    with running(script, llm.base_url) as child:
        child.expect("ended")
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def test_a_runtime_that_is_made_while_another_one_is_closed_is_closed_at_the_end() -> None:
    script = """
    import atexit
    from toolnexus.contrib.per_process import PerProcess

    class Made:
        def __init__(self):
            made.append(self)
            self.number = len(made)

        def close(self):
            say(f"closed {self.number}")

    class Between:
        # Is compared with what is to be unregistered, in the middle of that.
        def __eq__(self, other):
            if not makers:
                makers.append(threading.Thread(target=place.get))
                makers[0].start()
                makers[0].join(0.1)
            return False

        def __call__(self):
            pass

        __hash__ = None

    made, makers = [], []
    place = PerProcess(Made)
    atexit.register(Between())
    place.get()
    place.close()
    makers[0].join(10)
    say("ended")
    """
    with running(script) as child:
        for line in ("closed 1", "ended", "closed 2"):
            child.expect(line)
        child.end()
    assert (child.process.returncode, child.errors) == (0, "")


def unindented(script: str) -> str:
    return "\n".join(line[4:] for line in script.splitlines())


@pytest.mark.parametrize("framework", ["flask", "django"])
def test_a_missing_framework_is_told_with_its_extra(framework: str) -> None:
    script = f"""
    sys.modules["{framework}"] = None
    try:
        import toolnexus.contrib.{framework}
    except Exception as error:
        say(type(error).__name__ + ": " + str(error))
    """
    name = framework.capitalize()
    expected = (
        f"ConfigError: toolnexus.contrib.{framework} needs {name}: "
        f"pip install 'toolnexus[{framework}]'"
    )
    with running(script) as child:
        child.expect(expected)
        child.end()


def test_nobody_needs_a_framework_for_the_rest() -> None:
    script = """
    import toolnexus.contrib.web
    import toolnexus.contrib.per_process
    say(str(bool({"flask", "django", "werkzeug"} & set(sys.modules))))
    """
    with running(script) as child:
        child.expect("False")
        child.end()


def test_the_prune_command_deletes_and_says_so(
    llm: ScriptedLlm, make_app: MakeApp, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    app = make_app(registry=[AgentDef("a", tools=[Pay()])], store=store)
    llm.say("m", text("done"), tool_call("pay"))
    rt = rt_of(app)
    for status in ("done", "pending"):
        assert rt.wait_on(wake(rt), timeout=LIMIT).status == status
    runner = app.test_cli_runner()
    done = runner.invoke(args=["toolnexus", "prune", "--older-than", "0s"])
    assert done.exit_code == 0
    assert done.output.startswith("1 agent deleted that nobody has touched since ")
    assert [view.id for view in rt.list()] == ["root/a.2"]
    for arguments, says in ((["--older-than", "30"], "such as 30d"), ([], "Missing option")):
        wrong = runner.invoke(args=["toolnexus", "prune", *arguments])
        assert wrong.exit_code == 2
        assert says in wrong.output
