"""`toolnexus.contrib.django`: settings, connections, the start after a commit, the admin."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.conftest import LIMIT
from tests.web.sites import DJANGO, MODEL
from toolnexus import (
    AgentDef,
    AgentRuntime,
    ConfigError,
    Handle,
    RuntimeOptions,
    StoreError,
    TaskResult,
    checks,
)
from toolnexus.stores import MemoryStore
from toolnexus.testing import ScriptedLlm, call, text, tool_call, tool_calls

ASKED = tool_call("refund", {"amount": 80, "customer": "<Ann>"})
LIST = "/admin/toolnexus/openrequest/"


@pytest.fixture(scope="module")
def project(prepared: Path) -> Iterator[None]:
    """The Django example in this process; it has one project for good."""
    with pytest.MonkeyPatch.context() as patch:
        with ScriptedLlm() as nobody:
            for name, value in DJANGO.environment(nobody, prepared, {}).items():
                if not name.startswith("PYTHON"):
                    patch.setenv(name, value)
        patch.syspath_prepend(str(DJANGO.folder))
        import django

        django.setup()
        yield
        from django.db import connections

        connections.close_all()


@pytest.fixture
def configure(project: None, llm: ScriptedLlm) -> Iterator[Callable[..., AgentRuntime]]:
    """Give the process a runtime that asks the scripted model; return it."""
    from django.conf import settings
    from django.test import override_settings

    from toolnexus.contrib.django import runtime

    made = []

    def give(**options: Any) -> AgentRuntime:
        given = {**settings.TOOLNEXUS, "base_url": llm.base_url, **options}
        override = override_settings(TOOLNEXUS=given)
        override.enable()
        made.append(override)
        return runtime()

    yield give
    for override in made:
        override.disable()


@pytest.fixture(autouse=True)
def clean(project: None) -> Iterator[None]:
    yield
    from django.contrib.auth.models import User
    from django.db import connection
    from refunds.models import Refund

    Refund.objects.all().delete()
    User.objects.exclude(username="ann").delete()
    connection.close()


@pytest.fixture
def client(project: None) -> Any:
    """A browser in which ann, who may do everything, has logged in."""
    from django.test import Client

    browser = Client(SERVER_NAME="localhost")
    assert browser.login(username="ann", password="ann")
    return browser


def refunds() -> list[tuple[str, int]]:
    from refunds.models import Refund

    return [(one.customer, one.amount) for one in Refund.objects.order_by("id")]


def ended(rt: AgentRuntime, handle: Handle) -> TaskResult:
    return rt.wait_on(handle, timeout=LIMIT)


def test_a_worker_leaves_no_connection(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection
    from django.db.backends.signals import connection_created

    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)
    opened: list[tuple[str, Any]] = []
    calls = [call("refund", {"amount": n, "customer": "Ann"}) for n in range(1, 9)]
    gate = threading.Event()
    llm.say(MODEL, tool_calls(*calls), text("done").held_by(gate))
    rt = configure(approval_policy=allow)

    def note(sender: object, connection: Any, **_: object) -> None:
        opened.append((threading.current_thread().name, connection))

    connection_created.connect(note)
    try:
        handle = rt.spawn(rt.root, "desk").handle
        future = rt.future_result(handle)
        rt.wake(handle, "go")
        llm.wait_asked(MODEL, 2)
        # The model is at it: nobody needs a connection meanwhile.
        assert opened
        assert all(name.startswith("toolnexus") for name, _ in opened)
        assert [one for _, one in opened if one.connection is not None] == []
        gate.set()
        assert future.result(LIMIT).status == "done"
    finally:
        connection_created.disconnect(note)
    assert [one for _, one in opened if one.connection is not None] == []
    assert len(refunds()) == 8


def allow(call: object) -> str:
    return "allow"


def test_a_run_begins_after_the_commit(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm
) -> None:
    from django.db import transaction
    from refunds.models import Refund

    from toolnexus.contrib.django import start

    rt = configure()
    llm.say(MODEL, text("done"))
    with transaction.atomic():
        Refund.objects.create(key="before", customer="Bob", amount=1)
        handle = start("desk", "go")
        assert rt.wait_on(handle, timeout=0).status == "timeout"
        assert not llm.requests
    assert ended(rt, handle).status == "done"


def test_a_transaction_that_is_rolled_back_starts_nothing(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm
) -> None:
    from django.db import transaction

    from toolnexus.contrib.django import start

    rt = configure()
    with transaction.atomic():
        handle = start("desk", "go")
        transaction.set_rollback(True)
    assert handle.last_result is None
    assert [view.state.value for view in rt.list()] == ["idle"]
    assert not llm.requests


def test_without_a_transaction_a_run_begins_at_once(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm
) -> None:
    from toolnexus.contrib.django import start

    rt = configure()
    llm.say(MODEL, text("done"))
    assert ended(rt, start("desk", "go")).status == "done"


class Failing(MemoryStore):
    """A store that fails in what `fails` names."""

    fails: frozenset[str] = frozenset()

    def take(self, *args: Any, **more: Any) -> Any:
        self._require("take")
        return super().take(*args, **more)

    def claim(self, *args: Any) -> bool:
        self._require("claim")
        return super().claim(*args)

    def requests(self, *args: Any, **more: Any) -> Any:
        self._require("requests")
        return super().requests(*args, **more)

    def _require(self, what: str) -> None:
        if what in self.fails:
            if "and again" not in self.fails:
                self.fails = frozenset()
            raise StoreError("out of order")


def test_a_run_that_cannot_be_woken_is_closed_and_says_why(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm, caplog: pytest.LogCaptureFixture
) -> None:
    from django.db import transaction

    from toolnexus.contrib.django import start

    store = Failing()
    rt = configure(store=store)
    with transaction.atomic():
        handle = start("desk", "go")
        store.fails = frozenset({"take"})
    result = ended(rt, handle)
    assert (result.status, result.text) == ("closed", "not woken: out of order")
    assert f"{handle.id} was not woken" in caplog.text
    assert not llm.requests


def test_a_run_that_is_refused_its_turn_is_told_in_the_log(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm, caplog: pytest.LogCaptureFixture
) -> None:
    from django.db import transaction

    from toolnexus.contrib.django import start

    rt = configure()
    with transaction.atomic():
        handle = start("desk", "go")
        rt.close(handle, reason="not wanted any more")
    assert f"{handle.id} was not woken: closed" in caplog.text
    assert ended(rt, handle).text == "not wanted any more"
    assert not llm.requests


def test_one_that_can_neither_be_woken_nor_closed_is_an_error_of_the_commit(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm
) -> None:
    from django.db import transaction

    from toolnexus.contrib.django import start

    store = Failing()
    rt = configure(store=store)

    def start_and_commit() -> None:
        with transaction.atomic():
            start("desk", "go")
            store.fails = frozenset({"take", "and again"})

    with pytest.raises(StoreError, match="out of order"):
        start_and_commit()
    assert [view.state.value for view in rt.list()] == ["idle"]
    assert not llm.requests


def test_inline_everything_is_within_the_transaction_of_the_test(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm, client: Any
) -> None:
    from django.db import transaction
    from django.test import TestCase

    rt = configure(inline=True)
    llm.say(MODEL, ASKED, text("done"))
    with transaction.atomic():
        with TestCase.captureOnCommitCallbacks(execute=True):
            client.post("/runs", {"prompt": "go"}, content_type="application/json")
        (asked,) = rt.pending()
        path = f"/requests/{asked.request.id}"
        client.post(path, {"ok": True}, content_type="application/json")
        assert client.get(f"/runs/{asked.run_id}").json()["text"] == "done"
        assert refunds() == [("<Ann>", 80)]
        transaction.set_rollback(True)
    assert refunds() == []


def test_the_admin_lists_and_answers(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm, client: Any
) -> None:
    rt = configure()
    llm.say(MODEL, ASKED, text("done"))
    handle = rt.spawn(rt.root, "desk").handle
    asked = rt.run_turn(handle, "go").pending
    assert asked is not None
    page = client.get(LIST).content.decode()
    assert "Refund $80 to &lt;Ann&gt;?" in page
    assert "<Ann>" not in page
    assert "Open requests" in client.get("/admin/").content.decode()

    form = {"id": asked.id, "ok": "yes", "data": '{"args": {"amount": 5, "customer": "Ann"}}'}
    answered = client.post(f"{LIST}answer/", form, follow=True)
    assert "Answered." in answered.content.decode()
    assert "Nothing is open." in answered.content.decode()
    assert ended(rt, handle).text == "done"
    assert refunds() == [("Ann", 5)]
    (record,) = rt.audit()
    assert record.principal == "ann"
    assert client.get("/admin/").status_code == 200

    again = client.post(f"{LIST}answer/", {"id": asked.id, "ok": "no"}, follow=True)
    assert "was answered before" in again.content.decode()


def test_the_admin_declines(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm, client: Any
) -> None:
    rt = configure()
    llm.say(MODEL, ASKED, text("As you wish."))
    handle = rt.spawn(rt.root, "desk").handle
    asked = rt.run_turn(handle, "go").pending
    assert asked is not None
    for ok, data in (("maybe", ""), ("yes", "{no json"), ("", "")):
        wrong = client.post(
            f"{LIST}answer/", {"id": asked.id, "ok": ok, "data": data}, follow=True
        )
        assert "No answer" in wrong.content.decode()
        assert rt.pending()
    client.post(f"{LIST}answer/", {"id": asked.id, "ok": "no", "reason": "too dear"})
    assert ended(rt, handle).text == "As you wish."
    assert "too dear" in str(llm.requests[-1].tool_results)
    assert refunds() == []


def test_the_admin_lists_page_by_page(
    configure: Callable[..., AgentRuntime],
    llm: ScriptedLlm,
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from django.contrib import admin

    from toolnexus.contrib.django.models import OpenRequest

    listed = admin.site.get_model_admin(OpenRequest)
    monkeypatch.setattr(listed, "list_per_page", 2)
    rt = configure()
    asking = tool_call("refund", {"amount": 80, "customer": "Ann"})
    llm.answer(MODEL, lambda one: text("end") if one.tool_results else asking)
    for _ in range(5):
        rt.run_turn(rt.spawn(rt.root, "desk").handle, "go")
    ids = [one.request.id for one in rt.pending()]

    def shown(page: str) -> list[str]:
        content = client.get(f"{LIST}{page}").content.decode()
        return [one for one in ids if f'value="{one}"' in content]

    assert shown("") == shown("?p=1") == ids[:2]
    assert shown("?p=2") == ids[2:4]
    assert shown("?p=3") == shown("?p=99") == ids[4:]
    page = client.get(f"{LIST}?p=2").content.decode()
    assert "Page 2 of 3, 5 in all" in page
    assert 'href="?p=1"' in page
    assert 'href="?p=3"' in page
    assert "These are the oldest" not in page
    monkeypatch.setattr(listed, "list_max", 3)
    assert shown("?p=2") == shown("?p=3") == ids[2:3]
    assert "These are the oldest 3" in client.get(LIST).content.decode()
    monkeypatch.setattr(listed, "list_max", 5)
    form = {"id": ids[2], "ok": "no"}
    assert f"{LIST}answer/?p=2" in page
    answered = client.post(f"{LIST}answer/?p=2", form)
    assert answered.headers["Location"] == f"{LIST}?p=2"


@pytest.mark.parametrize("fails", ["claim", "requests"])
def test_the_admin_tells_what_goes_wrong(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm, client: Any, fails: str
) -> None:
    store = Failing()
    rt = configure(store=store)
    llm.say(MODEL, ASKED)
    asked = rt.run_turn(rt.spawn(rt.root, "desk").handle, "go").pending
    assert asked is not None
    store.fails = frozenset({fails})
    form = {"id": asked.id, "ok": "yes"}
    if fails == "claim":
        page = client.post(f"{LIST}answer/", form, follow=True)
    else:
        page = client.get(LIST)
    assert page.status_code == 200
    assert "Out of order" in page.content.decode()
    assert "Nothing is open." not in page.content.decode()
    store.fails = frozenset()
    (still_open,) = rt.pending()
    assert still_open.request.id == asked.id


def test_the_admin_tells_of_an_agent_that_is_gone(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm, client: Any
) -> None:
    store = MemoryStore()
    rt = configure(store=store)
    llm.say(MODEL, ASKED)
    asked = rt.run_turn(rt.spawn(rt.root, "desk").handle, "go").pending
    assert asked is not None
    configure(store=store, registry=[AgentDef("other")])
    form = {"id": asked.id, "ok": "yes"}
    page = client.post(f"{LIST}answer/", form, follow=True)
    assert page.status_code == 200
    assert "desk" in page.content.decode()
    assert "Answered." not in page.content.decode()


def test_the_admin_asks_for_permissions_and_a_token(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm
) -> None:
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    rt = configure()
    llm.say(MODEL, ASKED)
    asked = rt.run_turn(rt.spawn(rt.root, "desk").handle, "go").pending
    assert asked is not None
    form = {"id": asked.id, "ok": "yes"}
    user = User.objects.create_user("bob", is_staff=True)
    browser = Client(SERVER_NAME="localhost")
    browser.force_login(user)
    assert browser.get(LIST).status_code == 403
    assert browser.post(f"{LIST}answer/", form).status_code == 403

    user.user_permissions.add(Permission.objects.get(codename="view_openrequest"))
    page = browser.get(LIST)
    assert "Refund $80" in page.content.decode()
    assert f'value="{asked.id}"' not in page.content.decode()
    assert browser.post(f"{LIST}answer/", form).status_code == 403

    user.user_permissions.add(Permission.objects.get(codename="change_openrequest"))
    strict = Client(SERVER_NAME="localhost", enforce_csrf_checks=True)
    strict.force_login(user)
    assert strict.post(f"{LIST}answer/", form).status_code == 403
    assert strict.get(f"{LIST}answer/").status_code == 405
    assert rt.pending()


def test_who_may_not_answer_is_refused_by_the_runtime(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm
) -> None:
    from django.contrib.auth.models import User
    from django.test import Client

    rt = configure()
    llm.say(MODEL, ASKED)
    asked = rt.run_turn(rt.spawn(rt.root, "desk").handle, "go").pending
    assert asked is not None
    browser = Client(SERVER_NAME="localhost")
    browser.force_login(User.objects.create_user("bob"))
    path = f"/requests/{asked.id}"
    refused = browser.post(path, {"ok": True}, content_type="application/json")
    assert refused.status_code == 403
    assert "authorize did not say True" in refused.json()["error"]
    assert rt.pending()


def test_the_application_adds_no_migration_and_passes_the_checks(project: None) -> None:
    from django.core.management import call_command

    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
    call_command("check")


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ({"registry": "refunds.agents.NOBODY"}, "NOBODY"),
        ({"default_modell": "m"}, "did you mean default_model"),
        ("gpt", "must be a mapping"),
    ],
)
def test_a_setting_that_makes_no_sense_is_found_by_the_checks(
    project: None, setting: Any, problem: str
) -> None:
    from django.core.management import call_command
    from django.core.management.base import SystemCheckError
    from django.test import override_settings

    from toolnexus.contrib.django import runtime

    with override_settings(TOOLNEXUS=setting):
        with pytest.raises(SystemCheckError, match=problem):
            call_command("check")
        with pytest.raises(ConfigError, match=problem):
            runtime()


def test_the_settings_name_objects_by_their_path(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm
) -> None:
    rt = configure()
    assert sys.modules["refunds.agents"].may_answer is rt.options.authorize
    assert rt.options.base_url == llm.base_url


def test_every_option_that_is_a_function_can_be_named_by_its_path(project: None) -> None:
    from toolnexus.contrib.django.conf import PATHS

    fields = attrs.fields_dict(RuntimeOptions)
    callables = {name for name, one in fields.items() if one.validator is checks.can_be_called}
    assert callables <= PATHS <= set(fields)


def test_the_prune_command_deletes_and_says_so(
    configure: Callable[..., AgentRuntime], llm: ScriptedLlm, tmp_path: Path
) -> None:
    from django.core.management import CommandError, call_command

    rt = configure(store=f"sqlite:///{tmp_path}/runs.db")
    llm.say(MODEL, text("done"), ASKED)
    for status in ("done", "pending"):
        assert rt.run_turn(rt.spawn(rt.root, "desk").handle, "go").status == status
    said = io.StringIO()
    call_command("toolnexus_prune", "--older-than", "0s", stdout=said)
    assert said.getvalue().startswith("1 agent deleted that nobody has touched since ")
    assert [view.id for view in rt.list()] == ["root/desk.2"]
    for arguments, says in ((["--older-than", "30"], "such as 30d"), ([], "--older-than")):
        with pytest.raises(CommandError, match=says):
            call_command("toolnexus_prune", *arguments)
