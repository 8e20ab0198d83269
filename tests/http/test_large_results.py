"""Long results of every sort, stores that fail, and a model that reads the rest itself."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

from tests.conftest import MakeClient
from tests.http.test_large_outputs import LONG, MIDDLE, NOTICE, asks, reference_in, says
from tests.runtime.streams import one_handle
from tests.runtime.support import Make, Probe, run_turn
from toolnexus import (
    AgentDef,
    Answer,
    FileOutputStore,
    MemoryOutputStore,
    ReadOutput,
    Request,
    StoreError,
    Tool,
    ToolContext,
    ToolResult,
    relay_tool,
)
from toolnexus.parts.part import Part
from toolnexus.testing import RecordedRequest, Reply, ScriptedLlm, call, text, tool_calls

STYLES = pytest.mark.parametrize("style", ["openai", "anthropic"])
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4


def shown_to(llm: ScriptedLlm, call_id: str = "c1") -> str:
    return llm.requests[-1].tool_results[call_id]


def asked_once(llm: ScriptedLlm) -> None:
    llm.say("m", tool_calls(call("report", {}, "c1")), text("done"))


# -- results of every sort ---------------------------------------------------------------------


def raises(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
    raise ValueError(LONG)


@STYLES
@pytest.mark.parametrize(
    "work", [raises, lambda args, ctx: ToolResult.error(LONG)], ids=["raised", "returned"]
)
def test_an_error_is_shortened_and_stays_an_error(
    llm: ScriptedLlm, make_client: MakeClient, style: str, work: Any
) -> None:
    asked_once(llm)
    client = make_client(style=style, max_result_chars=500)
    result = client.run("go", tools=[Probe("report", work)])
    (message,) = [one for one in result.messages if one["role"] == "tool"]

    assert message["_is_error"] is True
    assert len(shown_to(llm)) <= 500
    assert client.output_store.get(reference_in(shown_to(llm))) == LONG
    if style == "anthropic":
        assert llm.requests[1].messages[-1]["content"][0]["is_error"] is True


@pytest.mark.parametrize("output", [[LONG], {"rows": LONG}], ids=["list", "object"])
def test_json_is_shortened_as_the_text_that_it_is(
    llm: ScriptedLlm, make_client: MakeClient, output: Any
) -> None:
    asked_once(llm)
    client = make_client(max_result_chars=500)
    client.run("go", tools=[says(output)])
    whole = client.output_store.get(reference_in(shown_to(llm)))

    assert whole is not None
    assert json.loads(whole) == output


@STYLES
def test_the_text_of_a_result_with_parts_is_shortened_and_the_parts_stay(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    asked_once(llm)
    client = make_client(style=style, max_result_chars=500)
    client.run("go", tools=[says([LONG, Part.image(PNG), "and so on"])])
    content = llm.requests[1].messages[-1]["content"]
    if style == "anthropic":
        (result,) = content
        told, picture = result["content"]
        assert picture["source"]["media_type"] == "image/png"
        told = told["text"]
    else:
        told = content

    assert MIDDLE not in told
    assert len(NOTICE.sub("", told)) < 500
    whole = client.output_store.get(reference_in(told))
    assert whole is not None
    assert whole.startswith(LONG)
    assert whole.endswith("and so on")


@pytest.mark.parametrize(
    "parts", [[LONG, Part.image(PNG)], [Part.text(LONG)]], ids=["a picture", "text alone"]
)
def test_a_checkpoint_has_no_more_of_a_result_with_parts_than_is_shown(
    llm: ScriptedLlm, make_client: MakeClient, parts: Any
) -> None:
    llm.say("m", tool_calls(call("report", {}, "c1"), call("asks", {}, "c2")))
    client = make_client(max_result_chars=500)
    parked = client.run("go", tools=[says(parts), asks()])
    assert parked.checkpoint is not None

    assert "line 01999" in json.dumps(parked.checkpoint.to_dict())
    assert MIDDLE not in json.dumps(parked.checkpoint.to_dict())
    assert MIDDLE not in json.dumps(parked.messages)


def test_a_relayed_result_is_shortened_too(llm: ScriptedLlm, make_client: MakeClient) -> None:
    tool = relay_tool("report", "Report", {"type": "object"})
    asked_once(llm)
    client = make_client(
        max_result_chars=500,
        wait_for=lambda request: Answer(request.id, True, {"output": LONG}),
    )
    client.run("go", tools=[tool])

    assert client.output_store.get(reference_in(shown_to(llm))) == LONG


def test_what_a_delegated_agent_says_is_shortened_for_its_caller(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    child = AgentDef("child", does="reports", model="c")
    parent = AgentDef("parent", team=["child"], model="p")
    rt = make_runtime(parent, child, max_result_chars=500)
    llm.say("p", tool_calls(call("task", {"agent": "child", "prompt": "go"}, "c1")))
    llm.say("p", text("done"))
    llm.say("c", text(LONG))
    run_turn(rt, rt.spawn(rt.root, "parent").handle)

    assert len(shown_to(llm)) <= 500
    assert rt.output_store.get(reference_in(shown_to(llm))) == LONG


def test_a_question_that_nobody_may_ask_again_is_shortened_too(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    asked_once(llm)
    tool = Probe("report", lambda args, ctx: ToolResult.pending(Request("approval", LONG)))
    client = make_client(
        max_result_chars=500, wait_for=lambda request: Answer(request.id, True)
    )
    client.run("go", tools=[tool])

    assert shown_to(llm).startswith("unresolved: line 00000")
    assert len(shown_to(llm)) <= 500


def test_a_declined_question_is_shortened_too(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    asked_once(llm)
    tool = Probe("report", lambda args, ctx: ToolResult.pending(Request("approval", LONG)))
    make_client(max_result_chars=500, wait_for=lambda request: None).run("go", tools=[tool])

    assert shown_to(llm).startswith("declined/expired: line 00000")
    assert len(shown_to(llm)) <= 500


# -- stores ------------------------------------------------------------------------------------


class Failing:
    """A store that cannot keep anything."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def put(self, text: str) -> str:
        raise self._error

    def get(self, reference: str) -> str | None:
        raise self._error


@pytest.mark.parametrize(
    "error", [StoreError("disk full at /srv/x"), OSError("disk full at /srv/x"), KeyError("x")]
)
@pytest.mark.parametrize("is_agent", [False, True])
def test_a_store_that_fails_costs_what_is_left_out_and_no_more(
    llm: ScriptedLlm,
    make_client: MakeClient,
    make_runtime: Make,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    is_agent: bool,
) -> None:
    asked_once(llm)
    options = {"max_result_chars": 500, "output_store": Failing(error)}
    if is_agent:
        result: Any = run_turn(*one_handle(make_runtime, says(LONG), **options))
    else:
        result = make_client(**options).run("go", tools=[says(LONG)])

    assert (result.status, result.text) == ("done", "done")
    found = NOTICE.search(shown_to(llm))
    assert found
    assert found[2] is None
    assert len(shown_to(llm)) <= 500
    assert "could not be kept" in caplog.text
    assert MIDDLE not in caplog.text


def test_a_text_beyond_the_stores_limit_is_shown_without_a_reference(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    asked_once(llm)
    client = make_client(max_result_chars=500, output_store=MemoryOutputStore(1000))
    client.run("go", tools=[says(LONG)])

    assert "the whole text" not in shown_to(llm)
    assert "characters left out" in shown_to(llm)


def test_files_keep_the_whole_for_another_process(
    llm: ScriptedLlm, make_client: MakeClient, tmp_path: Any
) -> None:
    asked_once(llm)
    client = make_client(max_result_chars=500, output_store=FileOutputStore(tmp_path))
    client.run("go", tools=[says(LONG + "é\ud800")])

    again = FileOutputStore(tmp_path)
    assert again.get(reference_in(shown_to(llm))) == LONG + "é\ud800"


def test_a_log_tells_nothing_of_what_is_left_out(
    llm: ScriptedLlm, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked_once(llm)
    client = make_client(max_result_chars=500)
    client.run("go", tools=[says(LONG)])

    assert MIDDLE not in caplog.text
    assert MIDDLE not in repr(client) + repr(client.options) + repr(client.output_store)


# -- read again --------------------------------------------------------------------------------


def reading(request: RecordedRequest) -> Reply:
    """Ask for the report, then read it part by part to its end."""
    shown = request.tool_results
    if not shown:
        return tool_calls(call("report", {}, "c0"))
    parts = list(shown.values())
    goes_on = re.search(r"go on with offset=(\d+)", parts[-1])
    if len(parts) > 1 and goes_on is None:
        return text("read")
    offset = int(goes_on[1]) if goes_on else 0
    args = {"reference": reference_in(parts[0]), "offset": offset}
    return tool_calls(call("read_output", args, f"c{len(parts)}"))


def parts_read(llm: ScriptedLlm) -> str:
    """Return what was read of the report, in one piece."""
    _, *parts = llm.requests[-1].tool_results.values()
    return "".join(one.partition("\n[... characters ")[0] for one in parts)


@STYLES
@pytest.mark.parametrize("is_agent", [False, True])
def test_the_model_may_read_the_whole_in_the_same_run(
    llm: ScriptedLlm, make_client: MakeClient, make_runtime: Make, style: str, is_agent: bool
) -> None:
    report = LONG[:3_000]
    store = MemoryOutputStore()
    tools: list[Tool] = [says(report), ReadOutput(store, max_chars=900)]
    options = {"style": style, "max_result_chars": 900, "output_store": store}
    llm.answer("m", reading)
    if is_agent:
        rt, handle = one_handle(make_runtime, *tools, **options)
        run_turn(rt, handle)
    else:
        make_client(**options).run("go", tools=tools)

    assert len(llm.requests[-1].tool_results) == 1 + 4
    assert parts_read(llm) == report


def test_a_reader_that_is_made_of_the_clients_own_store_reads_what_it_kept(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    client = make_client(max_result_chars=1_000)
    llm.answer("m", reading)
    tools: list[Tool] = [says(LONG[:2_000]), ReadOutput(client.output_store, max_chars=1_000)]

    assert client.run("go", tools=tools).text == "read"


@STYLES
def test_a_clients_reader_reads_in_the_same_run_what_was_left_out(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    client = make_client(style=style, max_result_chars=900)
    llm.answer("m", reading)
    tools: list[Tool] = [says(LONG[:3_000]), client.read_output()]

    assert client.run("go", tools=tools).text == "read"
    assert parts_read(llm) == LONG[:3_000]


@STYLES
def test_a_runtimes_reader_reads_in_the_same_turn_what_was_left_out(
    llm: ScriptedLlm, make_runtime: Make, style: str
) -> None:
    rt = make_runtime(style=style, max_result_chars=900)
    llm.answer("m", reading)
    one = AgentDef("a", tools=[says(LONG[:3_000]), rt.read_output()])

    assert run_turn(rt, rt.spawn(rt.root, one).handle).text == "read"
    assert parts_read(llm) == LONG[:3_000]


@STYLES
def test_an_unknown_reference_is_an_error_that_the_model_reads(
    llm: ScriptedLlm, make_client: MakeClient, style: str
) -> None:
    store = MemoryOutputStore()
    llm.say("m", tool_calls(call("read_output", {"reference": "0" * 32}, "c1")), text("done"))
    client = make_client(style=style, output_store=store)
    result = client.run("go", tools=[ReadOutput(store, max_chars=1_000)])
    (message,) = [one for one in result.messages if one["role"] == "tool"]

    assert message["_is_error"] is True
    assert message["content"].startswith(f"unknown output '{'0' * 32}'")
    assert result.text == "done"


def test_a_part_that_is_larger_than_the_limit_is_shortened_again(
    llm: ScriptedLlm, make_client: MakeClient
) -> None:
    store = MemoryOutputStore()
    reference = store.put(LONG)
    llm.say("m", tool_calls(call("read_output", {"reference": reference}, "c1")), text("done"))
    client = make_client(max_result_chars=500, output_store=store)
    client.run("go", tools=[ReadOutput(store, max_chars=2_000)])

    assert len(shown_to(llm)) <= 500
    again = store.get(reference_in(shown_to(llm)))
    assert again is not None
    assert again.startswith(LONG[:1_800])
