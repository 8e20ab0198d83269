"""Grants: a standing yes, for one tool, some arguments, some agents, some time."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.conftest import LIMIT
from tests.runtime.support import Make, start, within
from toolnexus import AgentDef, Answer, ConfigError, Grant, WireFormatError, tool
from toolnexus.testing import RecordedRequest, ScriptedLlm, VirtualClock, text, tool_call

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)

FITS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"amount": {"maximum": 100}}, {"amount": 100}, True),
    ({"amount": {"maximum": 100}}, {"amount": 101}, False),
    ({"amount": {"maximum": 100}}, {"amount": "1"}, False),
    ({"amount": {"maximum": 100}}, {"amount": None}, False),
    ({"amount": {"maximum": 100}}, {"amount": True}, False),
    ({"amount": {"maximum": 100}}, {"amount": 5, "to": "eve"}, False),
    ({"amount": {"maximum": 100}}, {}, False),
    ({"amount": {"maximum": 100}, "to": True}, {"amount": 5, "to": "eve"}, True),
    ({"amount": {"maximum": 100}, "to": True}, {"amount": 5}, True),
    ({"to": {"const": "ann"}}, {"to": "ann"}, True),
    ({"to": {"const": "ann"}}, {"to": "Ann"}, False),
    ({"to": {"enum": ["ann", "bob"]}}, {"to": "bob"}, True),
    ({"to": {"pattern": "^a"}}, {"to": "ann"}, True),
    ({"to": {"pattern": "^a"}}, {"to": ["^a"]}, False),
    ({"to": {"pattern": "^ann$"}}, {"to": "ann\n"}, False),
    ({"flag": {"const": True}}, {"flag": 1}, False),
    ({}, {}, True),
    ({}, {"amount": 1}, False),
]


@pytest.mark.parametrize(("where", "args", "fits"), FITS)
def test_a_grant_fits_what_it_names_and_nothing_else(
    where: dict[str, Any], args: dict[str, Any], fits: bool
) -> None:
    grant = Grant("pay", where, "root")
    assert grant.allows("pay", args, "root/a.1", NOW) is fits
    assert not grant.allows("refund", args, "root/a.1", NOW)


@pytest.mark.parametrize(
    ("under", "handle", "fits"),
    [
        ("root", "root/a.1", True),
        ("root/a.1", "root/a.1", True),
        ("root/a.1", "root/a.1/b.2", True),
        ("root/a.1", "root/a.10", False),
        ("root/a.1", "root/b.2", False),
        ("root/a.1/b.2", "root/a.1", False),
    ],
)
def test_a_grant_holds_below_its_handle(under: str, handle: str, fits: bool) -> None:
    assert Grant("pay", {}, under).allows("pay", {}, handle, NOW) is fits


def test_a_grant_ends_at_its_instant() -> None:
    grant = Grant("pay", {}, "root", NOW)
    assert grant.allows("pay", {}, "root", NOW - timedelta(microseconds=1))
    assert not grant.allows("pay", {}, "root", NOW)


WRONG: list[dict[str, Any]] = [
    {"where": {"amount": {}}},
    {"where": {"amount": None}},
    {"where": {"amount": False}},
    {"where": {"amount": {"maxmum": 100}}},
    {"where": {"amount": {"maximum": "100"}}},
    {"where": {"amount": {"maximum": True}}},
    {"where": {"amount": {"enum": []}}},
    {"where": {"amount": {"type": "int"}}},
    {"where": {"amount": {"pattern": "("}}},
    {"where": {"amount": {"type": ["string"]}}},
    {"where": None},
    {"where": [1]},
    {"under": ""},
    {"under": None},
    {"tool": ""},
    {"tool": "*"},
    {"expires_at": datetime(2026, 1, 1)},  # noqa: DTZ001 - what is refused
    {"expires_at": 5},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_would_mean_any_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, WireFormatError)):
        Grant(**{"tool": "pay", "where": {}, "under": "root", **wrong})


def test_a_grant_survives_json() -> None:
    grant = Grant("pay", {"amount": {"maximum": 5}}, "root/a.1", NOW)
    assert Grant.from_dict(grant.to_dict()) == grant
    forever = Grant("pay", {"amount": True}, "root")
    assert Grant.from_dict(forever.to_dict()) == forever
    with pytest.raises(WireFormatError):
        Grant.from_dict({"tool": "pay"})


class Paying:
    def __init__(self) -> None:
        self.paid: list[int] = []

        @tool(needs_approval="Pay {amount}?")
        def pay(amount: int) -> str:
            self.paid.append(amount)
            return "paid"

        self.tool = pay


def pays(llm: ScriptedLlm, amount: int) -> None:
    def answer(request: RecordedRequest) -> Any:
        is_asked = request.messages[-1]["content"] == "go"
        return tool_call("pay", {"amount": amount}) if is_asked else text("end")

    llm.answer("m", answer)


def test_always_allow_is_one_line_beside_the_answer(
    llm: ScriptedLlm, make_runtime: Make
) -> None:
    clock, paying = VirtualClock(), Paying()
    pays(llm, 5)
    rt = make_runtime(AgentDef("a", tools=[paying.tool]), clock=clock)
    handle, _ = start(rt, "a")
    (one,) = rt.pending()
    until = clock.now() + timedelta(hours=1)
    grant = rt.grant(Grant.of(one, under=handle.id, expires_at=until))
    within(rt.resume, Answer(one.request.id, ok=True))
    assert within(rt.run_turn, handle, "go").text == "end"
    assert paying.paid == [5, 5]
    assert rt.trace_has(f"grant {grant.id} allows pay")
    assert start(rt, "a")[1].status == "pending"  # another handle
    pays(llm, 6)
    assert within(rt.run_turn, handle, "go").status == "pending"  # another amount
    assert rt.supersede(handle, "x").ok
    rt.wait_on(handle, LIMIT)
    pays(llm, 5)
    clock.advance(3600)
    assert within(rt.run_turn, handle, "go").status == "pending"  # another time
    assert rt.grants() == ()


def test_a_grant_is_listed_and_revoked(llm: ScriptedLlm, make_runtime: Make) -> None:
    paying = Paying()
    pays(llm, 5)
    rt = make_runtime(AgentDef("a", tools=[paying.tool]))
    grant = rt.grant(Grant("pay", {"amount": {"maximum": 5}}, "root"))
    assert rt.grants() == (grant,)
    assert start(rt, "a")[1].text == "end"
    assert rt.audit() == ()
    assert rt.revoke(grant.id)
    assert not rt.revoke(grant)
    rt.grant(grant)
    assert rt.revoke(grant)
    assert rt.grants() == ()
    assert start(rt, "a")[1].status == "pending"
    with pytest.raises(ConfigError):
        rt.grant("all")  # type: ignore[arg-type]


def test_a_policy_that_denies_goes_before_a_grant(llm: ScriptedLlm, make_runtime: Make) -> None:
    paying = Paying()
    pays(llm, 5)
    rt = make_runtime(AgentDef("a", tools=[paying.tool]), approval_policy=lambda one: "deny")
    rt.grant(Grant("pay", {"amount": True}, "root"))
    assert start(rt, "a")[1].text == "end"
    assert paying.paid == []
