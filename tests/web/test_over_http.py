"""`toolnexus.contrib.web`: errors as statuses, requests as JSON, JSON as answers."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.runtime.support import Make, Probe
from toolnexus import (
    AgentDef,
    Answer,
    ConfigError,
    NothingSuspended,
    StoreError,
    ToolContext,
    ToolnexusError,
    ToolResult,
    UnknownRequest,
    WireFormatError,
)
from toolnexus.contrib.web import answer_from, request_dict, status_of
from toolnexus.errors import LeaseLost
from toolnexus.testing import ScriptedLlm, tool_call


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownRequest("x"), 404),
        (NothingSuspended("x"), 404),
        (WireFormatError("x"), 400),
        (StoreError("x"), 503),
        (LeaseLost(("x",)), 503),
        (ConfigError("x"), 500),
    ],
)
def test_an_error_has_the_status_of_its_kind(error: ToolnexusError, status: int) -> None:
    assert status_of(error) == status


def test_an_open_request_is_json(llm: ScriptedLlm, make_runtime: Make) -> None:
    form = {"type": "object", "properties": {"pin": {"type": "string", "secret": True}}}

    def ask(args: dict[str, Any], ctx: ToolContext) -> ToolResult:
        ctx.ask("input", "Pin?", schema=form, expires_in=timedelta(days=1))
        return ToolResult.ok("never")

    llm.say("m", tool_call("ask"))
    rt = make_runtime(AgentDef("asker", tools=[Probe("ask", ask)]))
    rt.run_turn(rt.spawn(rt.root, "asker").handle, "go")
    (pending,) = rt.pending()
    told = json.loads(json.dumps(request_dict(pending)))
    assert told == {
        "id": pending.request.id,
        "kind": "input",
        "prompt": "Pin?",
        "url": None,
        "schema": form,
        "run": "root/asker.1",
        "agent": "asker",
        "tool": "ask",
        "arguments": {},
        "asked_at": pending.asked_at.isoformat(),
        "expires_at": told["expires_at"],
    }
    assert told["expires_at"].endswith("+00:00")


def test_an_answer_is_read_from_json() -> None:
    given = {"ok": True, "data": {"n": 1}, "reason": "why"}
    assert answer_from("r", given) == Answer("r", True, {"n": 1}, "why")
    assert answer_from("r", {"ok": False}) == Answer("r", False)


def test_the_id_is_that_of_the_url() -> None:
    assert answer_from("r", {"id": "another", "ok": True}).id == "r"


@pytest.mark.parametrize(
    "given",
    [None, True, "yes", ["ok"], {}, {"ok": "yes"}, {"ok": 1}, {"ok": True, "more": 1}],
    ids=repr,
)
def test_what_is_no_answer_approves_nothing(given: Any) -> None:
    with pytest.raises(WireFormatError):
        answer_from("r", given)
