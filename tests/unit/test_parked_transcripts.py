"""Messages alone say where a halted run stands, and a host that has only those can go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.support import Pay, Probe
from toolnexus import (
    Answer,
    CallState,
    Checkpoint,
    ConfigError,
    LlmClient,
    Request,
    RunResult,
    ToolCall,
    ToolContext,
    ToolResult,
    UnknownRequest,
    Usage,
    WireFormatError,
    relay_tool,
)
from toolnexus.checkpoint import Asker, CallStatus
from toolnexus.messages import Message

MakeClient = Callable[..., LlmClient]
Messages = list[dict[str, Any]]

SCHEMA = {"type": "object"}


class Model:
    """Asks for the calls it is given, then says "done"; remembers what it was asked."""

    def __init__(self, *calls: tuple[str, Any]) -> None:
        self.calls = calls
        self.asked: list[Messages] = []

    def __call__(self, body: Any) -> dict[str, Any]:
        self.asked.append(body["messages"])
        if body["messages"][-1]["role"] == "tool":
            return {"text": "done"}
        return {
            "tool_calls": [
                {"id": f"c{number}", "name": name, "arguments": args}
                for number, (name, args) in enumerate(self.calls)
            ]
        }

    @property
    def results(self) -> dict[str, str]:
        """What the model read last, by call."""
        last = self.asked[-1]
        return {one["tool_call_id"]: one["content"] for one in last if one["role"] == "tool"}


@pytest.fixture
def client_of() -> Iterator[MakeClient]:
    made: list[LlmClient] = []

    def make(model: Model, **options: Any) -> LlmClient:
        made.append(LlmClient.in_process(model="m", generate=model, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


def stored(messages: Any) -> Messages:
    """Return messages as a host reads them back from its database."""
    read: Messages = json.loads(json.dumps(messages))
    return read


def plain(messages: Any) -> Messages:
    """Return messages as a host keeps them that knows OpenAI's keys only."""
    return [{k: v for k, v in one.items() if not k.startswith("_")} for one in stored(messages)]


KEEP = pytest.mark.parametrize("keep", [stored, plain])


def pending_of(result: RunResult) -> Request:
    assert result.pending is not None
    return result.pending


# -- there and back -------------------------------------------------------------------------

jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
requests = st.builds(
    Request, st.text(max_size=5), st.text(max_size=5), data=st.none() | st.just({"a": 1})
)
answers = st.builds(Answer, st.text(min_size=1, max_size=5), st.booleans(), jsons)
results = st.builds(ToolResult, st.text(max_size=5), st.booleans())


@st.composite
def calls(draw: st.DrawFn) -> CallState:
    status: CallStatus = draw(st.sampled_from(["ready", "open", "done"]))
    return CallState(
        "",
        draw(st.sampled_from(["pay", "look"])),
        draw(st.sampled_from(["", "{}", '{"a":1}', "{oops"])),
        status=status,
        attempt=draw(st.integers(0, 3)),
        request=draw(requests) if status == "open" else None,
        answer=draw(st.none() | answers) if status == "open" else None,
        result=draw(results) if status == "done" else None,
        by=Asker(draw(st.none() | st.integers(0, 2)) if status == "open" else None),
    )


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    states = [
        CallState(**{**_fields(one), "id": f"c{number}"})
        for number, one in enumerate(draw(st.lists(calls(), min_size=1, max_size=4)))
    ]
    halted = {
        "role": "assistant",
        "content": draw(st.none() | st.text(max_size=5)),
        "tool_calls": [
            {"id": one.id, "function": {"name": one.name, "arguments": one.arguments}}
            for one in states
        ],
        "_blocks": draw(jsons),
    }
    return Checkpoint(
        run="r",
        base=draw(st.integers(0, 1)),
        messages=({"role": "user", "content": draw(st.text(max_size=5))}, halted),
        calls=tuple(states),
        turns=draw(st.integers(1, 5)),
        usage=Usage(1, 2, 3),
        tool_calls=len(states),
    )


def _fields(call: CallState) -> dict[str, Any]:
    return {name: getattr(call, name) for name in CallState.__annotations__}


@settings(deadline=None)
@given(checkpoints())
def test_messages_carry_the_whole_checkpoint(saved: Checkpoint) -> None:
    messages = saved.to_messages()
    before = json.dumps(messages)
    assert Checkpoint.from_messages(stored(messages)) == saved
    assert Checkpoint.from_messages(messages) == saved
    assert json.dumps(messages) == before
    assert [one["tool_call_id"] for one in messages if one["role"] == "tool"] == [
        call.id for call in saved.calls if call.result is not None
    ]


def test_making_messages_of_a_checkpoint_does_not_change_it() -> None:
    state = CallState("c0", "pay", "{}", status="open", request=Request("q", "?"))
    halted: Message = {"role": "assistant", "content": None, "tool_calls": []}
    saved = Checkpoint(run="r", base=0, messages=(halted,), calls=(state,))
    saved.to_messages()[0]["content"] = "forged"
    assert saved.messages == ({"role": "assistant", "content": None, "tool_calls": []},)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
        [{"role": "tool", "tool_call_id": "c", "content": "x"}],
        [{"role": "assistant", "_parked": {"schema": 1}}, {"role": "user", "content": "hi"}],
    ],
)
def test_a_transcript_that_waits_for_nothing_has_no_checkpoint(messages: Messages) -> None:
    assert Checkpoint.from_messages(messages) is None


@pytest.mark.parametrize("rest", [{"schema": 99, "new": 1}, {"schema": 1}, [], "x", 0, {}])
def test_a_state_that_cannot_be_read_is_refused(rest: Any) -> None:
    with pytest.raises(WireFormatError):
        Checkpoint.from_messages([{"role": "assistant", "content": None, "_parked": rest}])


# -- going on from messages -----------------------------------------------------------------


@KEEP
@pytest.mark.parametrize("ok", [True, False])
def test_a_halted_run_goes_on_from_its_messages(
    client_of: MakeClient, keep: Callable[[Any], Messages], ok: bool
) -> None:
    model, pay, look = Model(("look", {}), ("pay", {"amount": 5})), Pay(), Probe("look")
    client = client_of(model)
    parked = client.run("go", tools=[pay, look])
    history = keep(parked.messages)
    before = stored(history)
    request = pending_of(parked)
    result = client.run_with_answer([pay, look], history, request, Answer(request.id, ok))

    assert (result.status, result.text, len(model.asked)) == ("done", "done", 2)
    assert pay.paid == ([(5, request.id)] if ok else [])
    assert len(look.runs) == 1
    said = "paid 5" if ok else "declined/expired: Pay 5?"
    assert model.results == {"c0": "look done", "c1": said}
    roles = [one["role"] for one in result.messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    assert history == before


def test_it_is_the_short_form_of_resume(client_of: MakeClient) -> None:
    model, pay = Model(("pay", {"amount": 5})), Pay()
    client = client_of(model)
    parked = client.run("go", tools=[pay])
    assert parked.checkpoint is not None
    request = pending_of(parked)
    answer = Answer(request.id, True)
    short = client.run_with_answer([pay], stored(parked.messages), request, answer)
    assert short == client.resume(parked.checkpoint, answer, tools=[pay])


@KEEP
def test_a_result_that_is_there_is_kept_as_it_is(
    client_of: MakeClient, keep: Callable[[Any], Messages]
) -> None:
    pay = Pay()
    look = Probe("look", lambda args, ctx: ToolResult.error("no light"))
    model = Model(("pay", {"amount": 5}), ("look", {}))
    client = client_of(model)
    parked = client.run("go", tools=[pay, look])
    history, request = keep(parked.messages), pending_of(parked)
    client.run_with_answer([pay, look], history, request, Answer(request.id, True))

    assert model.results == {"c0": "paid 5", "c1": "no light"}
    assert len(look.runs) == 1


@KEEP
def test_one_answer_never_approves_a_call_that_asked_something_else(
    client_of: MakeClient, keep: Callable[[Any], Messages]
) -> None:
    model = Model(("pay", {"amount": 1}), ("look", {}), ("pay", {"amount": 1_000_000}))
    pay, look = Pay(), Probe("look")
    client = client_of(model)
    parked = client.run("go", tools=[pay, look])
    first = pending_of(parked)
    halfway = client.run_with_answer(
        [pay, look], keep(parked.messages), first, Answer(first.id, True)
    )

    assert pay.paid == [(1, first.id)]
    assert (halfway.status, halfway.text) == ("pending", "Pay 1000000?")
    second = pending_of(halfway)
    assert second.id != first.id
    result = client.run_with_answer(
        [pay, look], keep(halfway.messages), second, Answer(second.id, False)
    )
    assert result.text == "done"
    assert pay.paid == [(1, first.id)]
    assert model.results == {
        "c0": "paid 1",
        "c1": "look done",
        "c2": "declined/expired: Pay 1000000?",
    }
    assert (len(look.runs), len(model.asked)) == (1, 2)


class Guard:
    """A hook that asks before each payment, on top of what the tool asks."""

    def before_tool(
        self, call: ToolCall, args: dict[str, Any], ctx: ToolContext
    ) -> ToolResult | None:
        return ToolResult.pending(Request("guard", f"Guard: {call.name}?"))


@KEEP
def test_an_answer_to_a_hook_is_no_answer_to_the_tool(
    client_of: MakeClient, keep: Callable[[Any], Messages]
) -> None:
    model, pay = Model(("pay", {"amount": 5})), Pay()
    client = client_of(model, hooks=Guard())
    parked = client.run("go", tools=[pay])
    guard = pending_of(parked)
    assert guard.prompt == "Guard: pay?"
    with suppress(ConfigError):  # who cannot tell who asked may refuse, but not guess
        client.run_with_answer([pay], keep(parked.messages), guard, Answer(guard.id, True))
    assert pay.paid == []


@KEEP
def test_an_answer_with_another_id_executes_nothing(
    client_of: MakeClient, keep: Callable[[Any], Messages]
) -> None:
    model, pay = Model(("pay", {"amount": 5})), Pay()
    client = client_of(model)
    parked = client.run("go", tools=[pay])
    history, request = keep(parked.messages), pending_of(parked)
    with pytest.raises(UnknownRequest):
        client.run_with_answer([pay], history, request, Answer("made-up", True))
    assert (len(pay.runs), len(model.asked)) == (1, 1)


def test_the_state_in_the_messages_counts_not_the_request_that_is_handed_in(
    client_of: MakeClient,
) -> None:
    model, pay = Model(("pay", {"amount": 5})), Pay()
    client = client_of(model)
    parked = client.run("go", tools=[pay])
    forged = Request("approval", "Pay 5?")
    with pytest.raises(UnknownRequest):
        client.run_with_answer([pay], stored(parked.messages), forged, Answer(forged.id, True))
    assert pay.paid == []


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([], "empty"),
        ([{"role": "user", "content": "hi"}], "no open call"),
        ([{"role": "assistant", "content": "hello"}], "no open call"),
        (
            [
                {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "x"}}]},
                {"role": "tool", "tool_call_id": "a", "content": "done"},
            ],
            "no open call",
        ),
    ],
)
def test_a_history_in_which_nothing_is_open_is_refused(
    client_of: MakeClient, history: Messages, message: str
) -> None:
    model, request = Model(), Request("q", "?")
    with pytest.raises(ConfigError, match=message):
        client_of(model).run_with_answer([], history, request, Answer(request.id, True))
    assert model.asked == []


@pytest.mark.parametrize(
    ("request_", "answer", "message"),
    [
        (None, Answer("x", True), "Request"),
        (Request("q", "?", id="x"), {"id": "x", "ok": True}, "Answer"),
        (Request("q", "?", id="x"), None, "Answer"),
    ],
)
def test_what_is_no_request_or_answer_is_refused_as_such(
    client_of: MakeClient, request_: Any, answer: Any, message: str
) -> None:
    call = {"id": "a", "function": {"name": "pay", "arguments": "{}"}}
    history = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    pay = Pay()
    with pytest.raises(ConfigError, match=message):
        client_of(Model()).run_with_answer([pay], history, request_, answer)
    assert pay.runs == []


@KEEP
def test_relayed_calls_without_a_result_are_told_so(
    client_of: MakeClient, keep: Callable[[Any], Messages]
) -> None:
    model = Model(("find", {"q": 1}), ("pay", {"amount": 5}), ("find", {"q": 2}))
    find, pay = relay_tool("find", "Find", SCHEMA), Pay()
    client = client_of(model)
    parked = client.run("go", tools=[find, pay])
    relayed = pending_of(parked)
    data = {"results": [{"id": "c2", "output": "two"}]}
    halfway = client.run_with_answer(
        [find, pay], keep(parked.messages), relayed, Answer(relayed.id, True, data)
    )

    assert (halfway.status, halfway.text, pay.paid) == ("pending", "Pay 5?", [])
    asked = pending_of(halfway)
    client.run_with_answer([find, pay], keep(halfway.messages), asked, Answer(asked.id, True))
    assert model.results == {
        "c0": "no result was supplied for the relayed call c0",
        "c1": "paid 5",
        "c2": "two",
    }
    assert pay.paid == [(5, asked.id)]
