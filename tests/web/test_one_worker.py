"""The examples behind one worker that keeps its runs in memory: the API, the page, the end."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import LIMIT
from tests.web.sites import DJANGO, FLASK, MODEL, Framework, Visitor, is_alive, served, until
from toolnexus.testing import ScriptedLlm, text, tool_call

Place = Callable[[Framework], Path]
ASKED = tool_call("refund", {"amount": 80, "customer": "<Ann>"})

SERVERS = [
    pytest.param(FLASK, ("-k", "gthread", "--threads", "4"), id="flask-gthread"),
    pytest.param(FLASK, ("--preload",), id="flask-sync-preload"),
    pytest.param(DJANGO, ("-k", "gthread", "--threads", "4", "--preload"), id="django-gthread"),
    pytest.param(DJANGO, (), id="django-sync"),
]


@pytest.mark.parametrize(("framework", "arguments"), SERVERS)
def test_a_run_is_started_shown_and_answered(
    llm: ScriptedLlm, place: Place, framework: Framework, arguments: tuple[str, ...]
) -> None:
    gate = threading.Event()
    llm.say(MODEL, ASKED.held_by(gate), text("Ann has her money."))
    with served(framework, llm, place(framework), *arguments) as site:
        ann = site.visitor()
        run_id, _ = ann.start()
        llm.wait_asked(MODEL)
        told = {"id": run_id, "status": "running", "text": "", "open": []}
        assert ann.get(f"/runs/{run_id}").json() == told
        gate.set()
        asked = ann.wait_open()
        assert asked["prompt"] == "Refund $80 to <Ann>?"
        assert asked["arguments"] == {"amount": 80, "customer": "<Ann>"}
        assert asked["run"] == run_id
        assert ann.wait_status(run_id, "pending")["open"] == [asked]
        assert ann.get("/runs").json() == {"runs": [{"id": run_id, "state": "suspended"}]}
        check_page(ann)
        check_refusals(ann)
        check_answers(ann, asked["id"])
        done = ann.wait_status(run_id, "done")
        assert (done["text"], done["open"]) == ("Ann has her money.", [])
        assert ann.answer(asked["id"], ok=True) == 200
        assert ann.answer(asked["id"], ok=False) == 409
        assert site.refunds() == [("<Ann>", 80)]
    llm.assert_done()


def check_page(visitor: Visitor) -> None:
    page = visitor.get("/").text
    assert "Refund $80 to &lt;Ann&gt;?" in page
    assert "<Ann>" not in page


def check_refusals(visitor: Visitor) -> None:
    """What is refused is told as JSON, whoever refuses it: the view, the framework, we."""
    as_json = {"Content-Type": "application/json"}
    broken = visitor.session.post(
        f"{visitor.url}/runs", data="{", headers=as_json, timeout=LIMIT
    )
    refused = {
        404: [visitor.get("/runs/root/nobody.9"), visitor.post("/requests/x", {"ok": True})],
        400: [broken, visitor.post("/runs", {}), visitor.post("/requests/x", ["yes"])],
    }
    for status, responses in refused.items():
        for one in responses:
            assert one.status_code == status
            assert isinstance(one.json()["error"], str)


def check_answers(visitor: Visitor, request_id: str) -> None:
    path = f"/requests/{request_id}"
    assert visitor.answer("unheard-of", ok=True) == 404
    assert visitor.post(path, {"ok": 1}).status_code == 400
    assert visitor.post(path, {"ok": True, "more": 1}).status_code == 400
    assert visitor.post(path, ["yes"]).status_code == 400
    edited = {"ok": True, "data": {"args": {"amount": "lots", "customer": "Ann"}}}
    assert visitor.post(path, edited).status_code == 422
    assert visitor.get("/requests").json()["open"]
    assert visitor.answer(request_id, ok=True) == 200


@pytest.mark.parametrize("framework", [FLASK, DJANGO], ids=["flask", "django"])
def test_the_page_starts_and_answers(
    llm: ScriptedLlm, place: Place, framework: Framework
) -> None:
    llm.say(MODEL, ASKED, text("As you wish."))
    with served(framework, llm, place(framework)) as site:
        ann = site.visitor()
        hidden = hidden_fields(ann.get("/").text)
        (token,) = [name for name in hidden if "csrf" in name]
        form = {token: hidden[token], "prompt": "Refund Ann."}
        assert ann.send("/start", {**form, token: "forged" * 8}).status_code == 403
        assert ann.send("/start", {"prompt": "Refund Ann."}).status_code == 403
        assert ann.get("/runs").json() == {"runs": []}
        assert "started root/desk.1" in ann.send("/start", form).text
        asked = ann.wait_open()
        hidden = hidden_fields(ann.get("/").text)
        assert hidden["id"] == asked["id"]
        forged = {"id": asked["id"], "ok": "yes"}
        assert ann.send("/answer", forged).status_code == 403
        said = {**hidden, "ok": "no", "reason": "too dear"}
        assert "Nothing is open." in ann.send("/answer", said).text
        until(lambda: "As you wish." in ann.get("/").text, "the page has no result")
        assert ann.wait_status("root/desk.1", "done")["text"] == "As you wish."
        assert "root/desk.1: done" in ann.get("/").text
        assert "root/desk.1" not in site.visitor().get("/").text
        assert "was answered before" in ann.send("/answer", {**said, "ok": "yes"}).text
        assert site.refunds() == []
    (said_to_model,) = llm.requests[-1].tool_results.values()
    assert "too dear" in said_to_model


def hidden_fields(page: str) -> dict[str, str]:
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    return dict(fields)


@pytest.mark.parametrize("framework", [FLASK, DJANGO], ids=["flask", "django"])
def test_a_worker_that_is_told_to_end_does_not_wait_for_the_model(
    llm: ScriptedLlm, place: Place, framework: Framework
) -> None:
    llm.say(MODEL, ASKED.held_by(threading.Event()))
    with served(framework, llm, place(framework)) as site:
        _, pid = site.visitor().start()
        llm.wait_asked(MODEL)
        os.kill(pid, signal.SIGTERM)
        llm.wait_connections(0, LIMIT)
        until(lambda: not is_alive(pid), "the worker lives on")


def test_who_has_not_logged_in_is_kept_out(llm: ScriptedLlm, place: Place) -> None:
    with served(DJANGO, llm, place(DJANGO)) as site:
        stranger = Visitor(site.url, FLASK)
        assert stranger.get("/requests").status_code == 401
        assert stranger.get("/admin/toolnexus/openrequest/").url.startswith(
            f"{site.url}/admin/login/"
        )
        assert stranger.post("/runs", {"prompt": "x"}).status_code == 403


def test_an_answer_of_who_may_not_give_it_is_refused(llm: ScriptedLlm, place: Place) -> None:
    llm.say(MODEL, ASKED)
    approvers = {"FLASK_APPROVERS": '["boss"]'}
    with served(FLASK, llm, place(FLASK), variables=approvers) as site:
        ann = site.visitor()
        ann.start()
        asked = ann.wait_open()
        assert ann.answer(asked["id"], ok=True) == 403
        assert ann.wait_open() == asked
        assert site.refunds() == []
