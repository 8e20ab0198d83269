"""Logins: however many calls need the same resource, one person logs in once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conftest import LIMIT, MakeClient
from tests.runtime.support import Make, Probe, in_thread, within
from toolnexus import (
    AgentDef,
    AgentRuntime,
    Answer,
    Handle,
    NotAuthorized,
    PendingRequest,
    Request,
    ToolContext,
    ToolResult,
)
from toolnexus.testing import ScriptedLlm, call, text, tool_calls

URL = "https://crm.example/login"


class Crm(Probe):
    """Needs a login to its resource; remembers with which answer it got in."""

    def __init__(self, resource: str = "crm", name: str = "crm") -> None:
        self.entered: list[str] = []
        self.is_in = threading.Event()
        self.resource = resource
        super().__init__(name, self._enter)

    def _enter(self, args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            return ToolResult.auth_required(URL, resource=self.resource)
        self.entered.append(ctx.call_id)
        return ToolResult.ok("in")


def two_calls(llm: ScriptedLlm, model: str, name: str = "crm") -> None:
    llm.say(
        model, tool_calls(call(name, id=f"{model}1"), call(name, id=f"{model}2")), text("end")
    )


def started(rt: AgentRuntime, *names: str) -> list[Handle]:
    handles = [rt.spawn(rt.root, name).handle for name in names]
    for handle in handles:
        assert within(rt.run_turn, handle, "go").status == "pending"
    return handles


def test_the_request_says_what_it_is_for() -> None:
    request = ToolResult.auth_required(URL, resource="crm").request
    assert request is not None
    assert (request.kind, request.url, request.prompt) == (
        "authorization",
        URL,
        "Log in to crm.",
    )
    assert request.resource == "crm"
    plain = ToolResult.auth_required(URL, "Please log in.").request
    assert plain is not None
    assert (plain.prompt, plain.resource, plain.data) == ("Please log in.", None, None)


@pytest.mark.parametrize("ok", [True, False])
def test_one_request_is_open_for_all_agents_and_its_answer_is_for_all(
    llm: ScriptedLlm, make_runtime: Make, ok: bool
) -> None:
    crm = Crm()
    for name in ("a", "b", "c"):
        two_calls(llm, name)
    rt = make_runtime(*(AgentDef(name, model=name, tools=[crm]) for name in ("a", "b", "c")))
    handles = started(rt, "a", "b", "c")
    (one,) = rt.pending()
    assert one.handle_id == "root/a.1"
    assert [rt.pending(under=handle)[0].request.id for handle in handles] == [
        one.request.id
    ] * 3
    within(rt.resume, Answer(one.request.id, ok=ok))
    for handle in handles:
        assert rt.wait_on(handle, LIMIT).text == "end"
    assert sorted(crm.entered) == (["a1", "a2", "b1", "b2", "c1", "c2"] if ok else [])
    assert rt.pending() == ()
    (record,) = rt.audit()
    assert record.outcome == ("answered" if ok else "declined")
    assert {handle for handle, _ in record.shared_with} >= {"root/b.2", "root/c.3"}


def test_another_resource_is_another_request(llm: ScriptedLlm, make_runtime: Make) -> None:
    crm, mail = Crm(), Crm("mail", "mail")
    llm.say("m", tool_calls(call("crm"), call("mail"), call("crm"), call("mail")), text("end"))
    rt = make_runtime(AgentDef("a", tools=[crm, mail]))
    (handle,) = started(rt, "a")
    first, second = rt.pending()
    assert [one.request.resource for one in (first, second)] == ["crm", "mail"]
    within(rt.resume, Answer(second.request.id, ok=True))
    assert (len(crm.entered), len(mail.entered)) == (0, 2)
    within(rt.resume, Answer(first.request.id, ok=True))
    assert rt.wait_on(handle, LIMIT).text == "end"


def test_without_a_resource_nothing_is_shared(llm: ScriptedLlm, make_runtime: Make) -> None:
    crm = Crm("")
    two_calls(llm, "m")
    rt = make_runtime(AgentDef("a", tools=[crm]))
    started(rt, "a")
    assert len(rt.pending()) == 2


def test_who_still_waits_keeps_the_request_open(llm: ScriptedLlm, make_runtime: Make) -> None:
    crm = Crm()
    for name in ("a", "b"):
        two_calls(llm, name)
    rt = make_runtime(*(AgentDef(name, model=name, tools=[crm]) for name in ("a", "b")))
    first, second = started(rt, "a", "b")
    (one,) = rt.pending()
    rt.interrupt(first)
    (still,) = rt.pending()
    assert (still.request.id, still.handle_id) == (one.request.id, "root/b.2")
    assert first.pending_request is None
    within(rt.resume, Answer(one.request.id, ok=True))
    assert rt.wait_on(second, LIMIT).text == "end"
    assert sorted(crm.entered) == ["b1", "b2"]


def test_once_the_last_one_is_gone_so_is_the_request_and_a_new_one_opens(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    crm = Crm()
    two_calls(llm, "a")
    two_calls(llm, "b")
    rt = make_runtime(*(AgentDef(name, model=name, tools=[crm]) for name in ("a", "b")))
    (first,) = started(rt, "a")
    (old,) = rt.pending()
    rt.interrupt(first)
    assert rt.pending() == ()
    assert rt.audit()[0].outcome == "cancelled"
    started(rt, "b")
    (new,) = rt.pending()
    assert new.request.id != old.request.id


def test_a_login_that_did_not_help_is_asked_for_again(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.attempt < 3:
            return ToolResult.auth_required(URL, resource="crm")
        return ToolResult.ok("in")

    llm.say("m", tool_calls(call("t"), call("t")), text("end"))
    rt = make_runtime(AgentDef("a", tools=[Probe("t", work)]))
    (handle,) = started(rt, "a")
    ids = set()
    for _ in range(2):
        (one,) = rt.pending()
        ids.add(one.request.id)
        within(rt.resume, Answer(one.request.id, ok=True))
    assert len(ids) == 2
    assert rt.wait_on(handle, LIMIT).text == "end"


def test_a_clients_calls_share_a_login_too(
    llm: ScriptedLlm,
    make_client: MakeClient,
) -> None:
    crm, client = Crm(), make_client()
    two_calls(llm, "m")
    parked = client.run("go", tools=[crm])
    assert parked.checkpoint is not None
    (one,) = parked.checkpoint.requests
    result = client.resume(parked.checkpoint, Answer(one.id, ok=True), tools=[crm])
    assert (result.text, sorted(crm.entered)) == ("end", ["m1", "m2"])


@pytest.mark.in_memory
@pytest.mark.parametrize("ok", [True, False])
def test_inline_one_person_is_asked_once_by_agents_side_by_side(
    llm: ScriptedLlm, make_runtime: Make, ok: bool
) -> None:
    crm = Crm()
    asked: list[str] = []
    is_asked, may_answer = threading.Event(), threading.Event()
    started_both = threading.Barrier(2)

    def decide(request: Request) -> Answer:
        asked.append(request.id)
        is_asked.set()
        assert may_answer.wait(LIMIT)
        return Answer(request.id, ok=ok)

    def needs(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        if ctx.answer is None:
            started_both.wait(LIMIT)
        return crm.execute(args, ctx)

    for name in ("a", "b"):
        llm.say(name, tool_calls(call("t", id=name)), text("end"))
    agents = [AgentDef(name, model=name, tools=[Probe("t", needs)]) for name in ("a", "b")]
    rt = make_runtime(*agents, wait_for=decide)
    handles = [rt.spawn(rt.root, name).handle for name in ("a", "b")]
    runs = [in_thread(rt.run_turn, handle, "go") for handle in handles]
    assert is_asked.wait(LIMIT)
    # Both are suspended: one asks, the other waits for what that one is told.
    while {handle.state.value for handle in handles} != {"suspended"}:
        threading.Event().wait(0.001)
    may_answer.set()
    assert [run.result(LIMIT).text for run in runs] == ["end", "end"]
    assert len(asked) == 1
    assert sorted(crm.entered) == (["a", "b"] if ok else [])


def test_who_waits_for_anothers_login_can_be_interrupted(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    crm = Crm()
    is_asked, may_answer = threading.Event(), threading.Event()

    def decide(request: Request) -> Answer:
        is_asked.set()
        assert may_answer.wait(LIMIT)
        return Answer(request.id, ok=True)

    for name in ("a", "b"):
        llm.say(name, tool_calls(call("crm", id=name)), text("end"))
    agents = [AgentDef(name, model=name, tools=[crm]) for name in ("a", "b")]
    rt = make_runtime(*agents, wait_for=decide)
    first, second = (rt.spawn(rt.root, name).handle for name in ("a", "b"))
    one = in_thread(rt.run_turn, first, "go")
    assert is_asked.wait(LIMIT)
    other = in_thread(rt.run_turn, second, "go")
    while second.state.value != "suspended":
        threading.Event().wait(0.001)
    within(rt.interrupt, second)
    assert other.result(LIMIT).status == "interrupted"
    may_answer.set()
    assert one.result(LIMIT).text == "end"
    assert crm.entered == ["a"]


def test_an_interpreter_that_needs_the_same_login_itself_does_not_wait_for_itself(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    crm = Crm()
    asked: list[str] = []

    def decide(request: Request) -> Answer:
        asked.append(request.id)
        if len(asked) == 1:
            assert rt.run_turn(rt.spawn(rt.root, "b").handle, "go").text == "end"
        return Answer(request.id, ok=True)

    for name in ("a", "b"):
        llm.say(name, tool_calls(call("crm", id=name)), text("end"))
    agents = [AgentDef(name, model=name, tools=[crm]) for name in ("a", "b")]
    rt = make_runtime(*agents, wait_for=decide)
    assert within(rt.run_turn, rt.spawn(rt.root, "a").handle, "go").text == "end"
    assert crm.entered == ["b", "a"]
    assert len(asked) == 2


def _asks(prompt: str, **more: Any) -> Probe:
    def work(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        answer = ctx.ask("authorization", prompt, url=URL, data={"resource": "crm"}, **more)
        return ToolResult.ok(f"in with {answer.secret()}")

    return Probe(prompt.lower(), work)


@pytest.mark.parametrize("agents", [1, 2])
def test_calls_that_share_a_login_may_ask_for_it_in_words_of_their_own(
    llm: ScriptedLlm, make_runtime: Make, agents: int
) -> None:
    tools = [_asks("Read"), _asks("Write")]
    for name in ("a", "b")[:agents]:
        llm.say(name, tool_calls(call("read"), call("write")), text("end"))
    rt = make_runtime(*(AgentDef(name, model=name, tools=tools) for name in ("a", "b")))
    handles = started(rt, *("a", "b")[:agents])
    (one,) = rt.pending()
    within(rt.resume, Answer(one.request.id, ok=True, data="yes"))
    for handle in handles:
        assert rt.wait_on(handle, LIMIT).text == "end"
    for request in llm.requests[-agents:]:
        assert list(request.tool_results.values()) == ["in with yes"] * 2


def test_a_login_with_another_form_is_another_request(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    pin = {"type": "integer", "minimum": 1}
    tools = [_asks("Read"), _asks("Write", schema=pin), _asks("Erase", schema=dict(pin))]
    llm.say("m", tool_calls(call("read"), call("write"), call("erase")), text("end"))
    rt = make_runtime(AgentDef("a", tools=tools))
    (handle,) = started(rt, "a")
    first, second = rt.pending()
    assert (first.schema, second.schema) == (None, pin)
    within(rt.resume, Answer(first.request.id, ok=True, data="yes"))
    within(rt.resume, Answer(second.request.id, ok=True, data=7))
    assert rt.wait_on(handle, LIMIT).text == "end"
    said = ["in with yes", "in with 7", "in with 7"]
    assert list(llm.requests[-1].tool_results.values()) == said


def test_who_answers_a_login_is_asked_for_every_agent_that_it_lets_in(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    crm = Crm()
    for name in ("a", "b"):
        two_calls(llm, name)
    asked: list[str] = []

    def authorize(principal: Any, pending: PendingRequest) -> bool:
        asked.append(pending.handle_id)
        return principal == "admin" or f"root/{principal}." in pending.handle_id

    rt = make_runtime(
        *(AgentDef(name, model=name, tools=[crm]) for name in ("a", "b")), authorize=authorize
    )
    first, second = started(rt, "a", "b")
    (one,) = rt.pending()
    assert (one.handle_id, one.shared_with) == (first.id, (second.id,))
    (below,) = rt.pending(under=second)
    assert (below.handle_id, below.shared_with) == (second.id, (first.id,))
    for principal in ("a", "b"):
        with pytest.raises(NotAuthorized):
            rt.resume(Answer(one.request.id, ok=True), principal=principal)
    assert crm.entered == []
    assert set(asked) == {first.id, second.id}
    within(rt.resume, Answer(one.request.id, ok=True), principal="admin")
    assert len(crm.entered) == 4


def test_who_answers_is_asked_again_where_another_agent_has_come_to_wait(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    crm = Crm()
    for name in ("a", "b"):
        two_calls(llm, name)
    asked: list[str] = []

    def authorize(principal: Any, pending: PendingRequest) -> bool:
        asked.append(pending.handle_id)
        if len(asked) == 1:  # the other one comes while this decides
            in_thread(started, rt, "b").result(LIMIT)
        return pending.handle_id == "root/a.1"

    rt: AgentRuntime = make_runtime(
        *(AgentDef(name, model=name, tools=[crm]) for name in ("a", "b")), authorize=authorize
    )
    started(rt, "a")
    (one,) = rt.pending()
    with pytest.raises(NotAuthorized):
        rt.resume(Answer(one.request.id, ok=True), principal="x")
    assert asked == ["root/a.1", "root/a.1", "root/b.2"]
    assert crm.entered == []
