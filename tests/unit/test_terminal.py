"""terminal(): what is shown, what each line comes to, and when nothing is asked."""

from __future__ import annotations

import io
import re
import sys
import threading
import unicodedata
import webbrowser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import LIMIT
from toolnexus import Answer, ConfigError, Request
from toolnexus.approvals import approval_request
from toolnexus.forms import check_question, form_faults
from toolnexus.prompts import terminal
from toolnexus.prompts.screen import Screen

ARGS = {"amount": 50, "customer": "Ann"}
REFUND = approval_request("refund", ARGS, "Refund 50 to Ann?")


class Tty(io.StringIO):
    """A text in memory that claims to be a terminal."""

    def isatty(self) -> bool:
        super().isatty()  # raises where it is closed
        return True


def talk(request: Request, *typed: str) -> tuple[Answer | None, str]:
    """Ask a person who types these lines, then Ctrl-D; return the answer and what was shown."""
    output = Tty()
    lines = Tty("".join(f"{line}\n" for line in typed))
    answer = terminal(input=lines, output=output)(request)
    if answer is not None:
        assert answer.id == request.id
        assert lines.read() == "", "a line was not asked for"
    return answer, output.getvalue()


def said(request: Request, *typed: str) -> Answer:
    answer, shown = talk(request, *typed)
    assert answer is not None, shown
    return answer


def form(**fields: Any) -> Request:
    return asking({"type": "object", "properties": fields, "required": list(fields)})


def asking(schema: dict[str, Any], kind: str = "question") -> Request:
    request = Request(kind, "Say.", data={"schema": schema})
    check_question(request)
    return request


@pytest.fixture(params=["with rich", "without rich"])
def framed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether rich draws the frames."""
    has_rich: bool = request.param == "with rich"
    if has_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    return has_rich


# -- approvals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", ["y", "Y", "yes", "YES", " yes "])
def test_y_or_yes_approves(framed: bool, typed: str) -> None:
    assert said(REFUND, typed) == Answer(REFUND.id, ok=True)


@pytest.mark.parametrize(
    "typed", ["", "yep", "ok", "1", "true", "y y", "ye", "у", "yeſ", "y\0"]
)
def test_nothing_else_approves_and_it_is_asked_again(framed: bool, typed: str) -> None:
    answer, shown = talk(REFUND, typed, "n", "")

    assert answer == Answer(REFUND.id, ok=False, reason="declined")
    assert shown.count("[y]es / [n]o") == 2


@given(st.text(st.characters(exclude_characters="\n")))
@example("Y\r")
def test_whatever_is_typed_only_a_yes_is_one(typed: str) -> None:
    answer, _ = talk(REFUND, typed)

    is_yes = re.fullmatch(r"\s*(y|yes)\s*", typed, re.IGNORECASE | re.ASCII) is not None
    assert (answer is not None and answer.ok) <= (typed.strip().lower() in ("y", "yes"))
    if is_yes:
        assert answer == Answer(REFUND.id, ok=True)


def test_a_no_may_say_why() -> None:
    answer = said(REFUND, "n", "too much")

    assert answer.to_dict() == {
        "id": REFUND.id,
        "ok": False,
        "data": {"message": "too much"},
        "reason": "declined",
    }


def test_a_no_stays_a_no_where_the_input_ends_before_the_reason() -> None:
    assert said(REFUND, "no") == Answer(REFUND.id, ok=False, reason="declined")


def test_the_prompt_the_tool_and_all_its_arguments_are_shown(framed: bool) -> None:
    args = {"to": "Ann", "note": "very long  " * 100, "more": {"deep": [1, None, "ü"]}}
    _, shown = talk(approval_request("refund", args, "Refund?"), "y")

    assert "Refund?" in shown
    assert "Tool: refund" in shown
    assert "very long  " * 100 in shown
    assert '"ü"' in shown
    assert "Run refund? [y]es / [n]o / [e]dit: " in shown


def test_edited_arguments_are_shown_and_asked_for_again() -> None:
    answer, shown = talk(REFUND, "e", '{"amount": 5, "customer": "Ann"}', "y")

    assert answer == Answer(REFUND.id, True, {"args": {"amount": 5, "customer": "Ann"}})
    assert '{"amount":50,"customer":"Ann"}' in shown
    confirmation = shown.partition("New arguments")[2]
    assert '"amount": 5,' in confirmation
    assert "Run refund with the new arguments? [y]es / [n]o / [e]dit: " in confirmation


def test_the_last_of_several_edits_counts() -> None:
    answer = said(REFUND, "e", '{"amount": 5}', "edit", '{"amount": 6}', "e", "", "y")

    assert answer.data == {"args": {"amount": 6}}


def test_arguments_may_be_edited_to_none_at_all() -> None:
    assert said(REFUND, "e", "{}", "y").data == {"args": {}}


def test_an_edit_can_be_given_up_or_declined() -> None:
    assert said(REFUND, "e", "", "y") == Answer(REFUND.id, ok=True)
    assert said(REFUND, "e", '{"amount": 5}', "n", "").ok is False


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("[1]", "must be a JSON object"),
        ('"y"', "must be a JSON object"),
        ("{amount: 5}", "no JSON"),
        ('{"amount": NaN}', "no JSON"),
        ("y", "no JSON"),
    ],
)
def test_what_is_no_json_object_is_no_edit(typed: str, why: str) -> None:
    answer, shown = talk(REFUND, "e", typed, '{"amount": 1}', "y")

    assert why in shown
    assert answer is not None
    assert answer.data == {"args": {"amount": 1}}


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"tool": "refund", "args": ARGS},
        {"tool": "refund", "args": ARGS, "digest": "sha256:0"},
        {"tool": "now", "args": {}, "digest": approval_request("now", {}, "?").data["digest"]},  # type: ignore[index]
        {"tool": 1, "args": [1], "digest": None},
    ],
)
def test_only_arguments_that_the_gate_shows_can_be_edited(data: Any) -> None:
    request = Request("approval", "Go on?", data=data)
    answer, shown = talk(request, "e", "y")

    assert answer == Answer(request.id, ok=True)
    assert "[e]dit" not in shown


def test_an_approval_with_a_schema_is_approved_and_then_filled() -> None:
    request = asking({"type": "integer"}, "approval")

    assert said(request, "y", "7") == Answer(request.id, True, 7)
    assert said(request, "n", "").ok is False


# -- questions ---------------------------------------------------------------------------------


def options(*values: Any) -> Request:
    return Request("question", "Which?", data={"options": list(values)})


@pytest.mark.parametrize("typed", ["2", "tea with milk"])
def test_an_option_is_chosen_by_its_number_or_its_text(framed: bool, typed: str) -> None:
    answer, shown = talk(options("coffee", "tea with milk"), typed)

    assert answer is not None
    assert answer.data == "tea with milk"
    assert "  1) coffee\n  2) tea with milk\n" in shown


@pytest.mark.parametrize("value", [0, "", None, False, {}, [], 1, {"a": [1]}])
def test_every_json_value_can_be_an_option(value: Any) -> None:
    answer = said(options("other", value), "#2" if str(value) == "1" else "2")

    assert (answer.ok, answer.data) == (True, value)
    assert type(answer.data) is type(value)


@pytest.mark.parametrize("typed", ["3", "0", "-1", "Tea", "t"])
def test_what_is_no_option_is_asked_again(typed: str) -> None:
    assert said(options("coffee", "tea"), typed, "1").data == "coffee"


def test_a_number_never_means_two_options() -> None:
    answer, shown = talk(options(2, 1), "1")

    assert answer is not None
    assert answer.data == 1
    assert "#1) 2\n  #2) 1\n" in shown
    assert said(options(2, 1), "#1").data == 2
    assert said(options("1", 2, "#1", "2"), "#1", "2", "#3").data == "#1"


def test_options_that_read_alike_are_told_apart_by_number_only() -> None:
    answer, shown = talk(options("1.5", 1.5), "1.5", "2")

    assert answer is not None
    assert answer.data == 1.5
    assert "Please type 1 to 2" in shown


def test_a_schema_of_one_enum_is_a_list_of_options() -> None:
    assert said(asking({"enum": ["red", "green"]}), "2").data == "green"
    assert said(asking({"type": "string", "enum": ["red", "green"]}), "red").data == "red"


@pytest.mark.parametrize("kind", ["question", "input", "a word of the host's"])
def test_without_options_or_schema_any_text_is_an_answer(framed: bool, kind: str) -> None:
    request = Request(kind, "Your name?", data={"options": []})

    assert said(request, "Ann  ") == Answer(request.id, True, "Ann  ")


def test_an_empty_line_asks_what_it_means() -> None:
    request = Request("question", "Your name?")

    assert said(request, "", "d", "none of yours").data == {"message": "none of yours"}
    assert said(request, "", "decline", "") == Answer(request.id, False, None, "declined")
    assert said(request, "", "empty") == Answer(request.id, True, "")
    assert said(request, "  ", "x", "again", "Ann") == Answer(request.id, True, "Ann")
    assert said(options("a"), "", "e", "a", "1").data == "a"


def test_broken_characters_become_whole_ones() -> None:
    assert said(Request("input", "?"), "a\udc80b").data == "a�b"


# -- forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        ({"type": "string"}, " 7 ", " 7 "),
        ({"type": "string", "format": "email"}, "a@b.example", "a@b.example"),
        ({"type": "integer"}, "-7", -7),
        ({"type": "integer"}, "7.0", 7),
        ({"type": "number"}, "7", 7),
        ({"type": "number"}, " 7.5e1 ", 75.0),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "n", False),
        ({"enum": [None, "x"]}, "null", None),
        ({"type": "integer", "enum": [10, 20]}, "2", 20),
        ({"type": "array", "items": {"enum": ["a", "b", 3]}}, "3, a", [3, "a"]),
        ({"type": "array", "items": {"enum": ["a, b", "c"]}}, "1,2", ["a, b", "c"]),
    ],
)
def test_a_line_becomes_a_value_of_the_fields_type(
    schema: dict[str, Any], typed: str, value: Any
) -> None:
    one, inside = said(asking(schema), typed).data, said(form(field=schema), typed).data

    assert one == value
    assert type(one) is type(value)
    assert inside == {"field": value}


@pytest.mark.parametrize(
    ("schema", "wrong", "fault", "right"),
    [
        ({"type": "integer"}, "seven", 'must fit {"type":"integer"}', "7"),
        ({"type": "integer"}, "7.5", 'must fit {"type":"integer"}', "7"),
        ({"type": "integer"}, "true", 'must fit {"type":"integer"}', "7"),
        ({"type": "number"}, "1e999", 'must fit {"type":"number"}', "7"),
        ({"type": "number"}, "NaN", 'must fit {"type":"number"}', "7"),
        ({"type": "integer", "minimum": 3}, "2", 'must fit {"minimum":3}', "3"),
        ({"type": "boolean"}, "perhaps", 'must fit {"type":"boolean"}', "y"),
        ({"type": "string", "minLength": 2}, "a", 'must fit {"minLength":2}', "ab"),
        (
            {"type": "string", "format": "date"},
            "soon",
            'must fit {"format":"date"}',
            "2026-01-31",
        ),
        ({"enum": ["a", "b"]}, "c", "Please type 1 to 2", "a"),
        (
            {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 1},
            "a,b",
            'must fit {"maxItems":1}',
            "b",
        ),
    ],
)
def test_what_does_not_fit_is_said_and_asked_again(
    schema: dict[str, Any], wrong: str, fault: str, right: str
) -> None:
    request = form(field=schema)
    answer, shown = talk(request, wrong, right)

    assert fault in shown
    assert answer is not None
    assert form_faults(request.schema or {}, answer.data) == []


def test_the_fields_are_asked_for_in_their_order_with_their_notes(framed: bool) -> None:
    request = asking(
        {
            "type": "object",
            "title": "A table",
            "description": "For tonight.",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "title": "Guest", "description": "Who comes"},
                "seats": {"type": "integer", "default": 2},
                "food": {"type": "array", "items": {"enum": ["meat", "fish"]}},
                "note": {"type": "string"},
            },
        }
    )
    answer, shown = talk(request, "Ann", "", "2", "")

    assert answer is not None
    assert answer.data == {"name": "Ann", "seats": 2, "food": ["fish"]}
    _, found, rest = shown.partition("A table\nFor tonight.\nGuest: Who comes\nname: ")
    assert found, shown
    assert rest == (
        "seats (a whole number; empty for 2): "
        "  1) meat\n  2) fish\n"
        "food (some of them, with commas between; may be left empty): "
        "note (may be left empty): "
    )


def test_a_required_field_is_not_left_out_by_mistake() -> None:
    request = form(name={"type": "string"}, age={"type": "integer"})

    assert said(request, "", "e", "", "a", "7").data == {"name": "", "age": 7}
    assert said(form(some={"type": "array", "items": {"enum": [1]}}), "", "e").data == {
        "some": []
    }
    declined = said(request, "Ann", "", "d", "my age is mine")
    assert declined == Answer(
        request.id, False, {"message": "my age is mine"}, reason="declined"
    )


def test_a_default_that_does_not_fit_is_not_taken() -> None:
    answer, shown = talk(form(age={"type": "integer", "default": "old"}), "", "7")

    assert answer is not None
    assert answer.data == {"age": 7}
    assert 'age is "old"' in shown


def test_a_secret_is_nowhere_in_what_is_shown(framed: bool) -> None:
    field = {"type": "string", "secret": True, "minLength": 10, "default": "canary by default"}
    answer, shown = talk(form(code=field), "canary", "canary typed")

    assert answer is not None
    assert answer.data == {"code": "canary typed"}
    assert "canary" not in shown
    assert "a secret that does not fit" in shown
    assert "is not shown" in shown


def test_a_secret_is_not_read_where_it_would_be_seen(tmp_path: Path) -> None:
    class Claiming(Tty):
        def fileno(self) -> int:
            return file.fileno()  # an echo that nothing can turn off

    request, lines = form(code={"type": "string", "secret": True}), Claiming("canary\n")
    with (tmp_path / "file").open("w") as file:
        answer = terminal(input=lines, output=Tty())(request)

    assert answer == Answer(request.id, False, None, "no terminal to type a secret at")
    assert lines.read() == "canary\n"


FORM = {
    "type": "object",
    "required": ["name", "kind"],
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": [1, "1", "b", None]},
        "age": {"type": "integer", "exclusiveMinimum": 0},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "uniqueItems": True},
        "ok": {"type": "boolean", "default": True},
    },
}
LINES = [
    "",
    "a",
    "d",
    "e",
    "1",
    "2",
    "#1",
    "b",
    "null",
    "x,y",
    "x, x",
    "y",
    "-3",
    "1e2",
    "names",
]


@given(st.lists(st.sampled_from(LINES) | st.text(st.characters(exclude_characters="\n"))))
def test_a_form_is_given_up_or_fits_whatever_is_typed(typed: list[str]) -> None:
    output = Tty()
    lines = Tty("".join(f"{line}\n" for line in typed))
    answer = terminal(input=lines, output=output)(asking(FORM))

    assert answer is None or not answer.ok or form_faults(FORM, answer.data) == []


# -- logins ------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The links that a browser was started with."""
    links: list[str] = []

    def note(url: str) -> bool:
        links.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", note)
    return links


def login(url: str | None, **data: Any) -> Request:
    return Request("authorization", "Log in to the shop.", url, data)


def test_a_login_is_opened_on_request_only(framed: bool, opened: list[str]) -> None:
    request = login("https://shop.example/login?a=1")
    answer, shown = talk(request, "d")

    assert answer == Answer(request.id, ok=True)
    assert opened == []
    assert "Link: https://shop.example/login?a=1\n" in shown
    assert "The link leads to shop.example. [o]pen / [d]one / [s]kip: " in shown
    assert said(request, "o", "done").ok is True
    assert opened == ["https://shop.example/login?a=1"]


def test_a_skipped_login_is_declined(opened: list[str]) -> None:
    request = login("https://shop.example/")

    assert said(request, "", "y", "s") == Answer(request.id, False, None, "declined")
    assert opened == []


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "ftp://shop.example/",
        "-new-window",
        "https:///login",
        "https:shop.example",
        "https://shop.example\\@evil.example/",
        "https://shop.example/ --flag",
        " https://shop.example/",
        "https://shop.example/\n",
        "ht\ttps://shop.example/",
        "https://shöp.example/",
        "https://[shop.example/",
        "https://shop.example/\x1b]0;title\x07",
        "",
        None,
    ],
)
def test_a_link_that_is_no_plain_web_address_is_only_printed(
    opened: list[str], url: str | None
) -> None:
    answer, shown = talk(login(url), "o", "open", "d")

    assert answer is not None
    assert answer.ok is True
    assert opened == []
    assert "[o]pen" not in shown
    assert ("Link: " in shown) is (url is not None)


def test_the_site_is_where_the_link_leads_not_what_it_looks_like() -> None:
    _, shown = talk(login("https://bank.example@evil.example/bank.example"))

    assert "The link leads to evil.example." in shown


def test_a_browser_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str) -> bool:
        raise webbrowser.Error("no browser")

    monkeypatch.setattr(webbrowser, "open", fail)
    answer, shown = talk(login("http://shop.example/"), "o", "d")

    assert answer is not None
    assert answer.ok is True
    assert "No browser could be started." in shown


def test_a_login_with_a_schema_is_filled_when_it_is_done() -> None:
    request = login("https://shop.example/", schema={"type": "string", "secret": True})

    assert said(request, "d", "code") == Answer(request.id, True, "code")
    assert said(request, "s").ok is False


# -- the end of the input ----------------------------------------------------------------------

KINDS = {
    "approval": REFUND,
    "question": options("a", "b"),
    "text": Request("input", "?"),
    "form": form(name={"type": "string"}),
    "login": login("https://shop.example/"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_d_cancels(framed: bool, kind: str) -> None:
    assert talk(KINDS[kind])[0] is None


@pytest.mark.parametrize("unfinished", ["y", "yes", "1", "d"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_line_that_was_not_entered_is_no_answer(kind: str, unfinished: str) -> None:
    assert terminal(input=Tty(unfinished), output=Tty())(KINDS[kind]) is None


def test_ctrl_d_in_the_middle_of_a_form_cancels_it() -> None:
    assert talk(form(a={"type": "string"}, b={"type": "string"}), "x")[0] is None


class Failing(Tty):
    """A terminal whose next reads fail."""

    def __init__(self, *errors: BaseException, then: str = "") -> None:
        super().__init__(then)
        self.failures = list(errors)

    def readline(self, *args: Any) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        return super().readline(*args)


def test_ctrl_c_passes_and_the_next_question_can_be_asked() -> None:
    ask = terminal(input=Failing(KeyboardInterrupt(), then="y\n"), output=Tty())
    with pytest.raises(KeyboardInterrupt):
        ask(REFUND)

    assert ask(REFUND) == Answer(REFUND.id, ok=True)


def test_a_terminal_that_is_gone_cancels() -> None:
    assert terminal(input=Failing(OSError(5, "gone")), output=Tty())(REFUND) is None


def test_bytes_that_are_no_text_are_asked_for_again() -> None:
    broken = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    output = Tty()
    answer = terminal(input=Failing(broken, then="y\n"), output=output)(REFUND)

    assert answer == Answer(REFUND.id, ok=True)
    assert "That is no text in utf-8." in output.getvalue()


# -- no terminal -------------------------------------------------------------------------------


class Untouched(io.StringIO):
    """No terminal; whoever reads it fails the test."""

    def readline(self, *args: Any) -> Any:
        raise AssertionError("was read")


def closed() -> Tty:
    stream = Tty("y\n")
    stream.close()
    return stream


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("lines", "output"),
    [
        (Untouched, Tty),
        (lambda: Failing(AssertionError("was read")), io.StringIO),
        (closed, Tty),
        (lambda: Tty("y\n"), closed),
    ],
    ids=["input is none", "output is none", "input is closed", "output is closed"],
)
def test_where_there_is_no_terminal_nothing_is_read_and_everything_declined(
    lines: Callable[[], Any], output: Callable[[], Any], kind: str
) -> None:
    request = KINDS[kind]
    answer = terminal(input=lines(), output=output())(request)

    assert answer == Answer(request.id, False, None, "no terminal to ask at")


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_a_process_without_standard_streams_has_no_terminal(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Tty("y\n"))
    monkeypatch.setattr(sys, "stdout", Tty())
    monkeypatch.setattr(sys, name, None)

    answer = terminal()(REFUND)

    assert answer == Answer(REFUND.id, ok=False, reason="no terminal to ask at")


def test_the_lack_of_a_terminal_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    ask = terminal(input=Untouched(), output=Tty())
    ask(REFUND)
    ask(REFUND)

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no terminal to ask at" in caplog.text
    assert "Ann" not in caplog.text


def test_the_standard_streams_are_those_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = terminal()
    monkeypatch.setattr(sys, "stdin", Tty("y\n"))
    monkeypatch.setattr(sys, "stdout", Tty())

    assert ask(REFUND) == Answer(REFUND.id, ok=True)


@pytest.mark.parametrize("given", [{"input": "y\n"}, {"output": b"x"}, {"input": object()}])
def test_what_is_no_stream_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="text streams"):
        terminal(**given)


# -- foreign words -----------------------------------------------------------------------------

HOSTILE = (
    "\x1b[2J\x1b]0;x\x07\x9b2J\b\x7f\r\x85\v\f\u2028\u2029"
    "\u202e\u2066\u200b\u200f\u061c\ufeff\u00ad\U000e0041\ud800"
)
HOSTILE_REQUESTS = {
    "approval": approval_request("re" + HOSTILE, {HOSTILE: [HOSTILE]}, "Refund?" + HOSTILE),
    "kind": Request("q" + HOSTILE, "?"),
    "options": options(HOSTILE, {HOSTILE: 1}),
    "form": asking(
        {
            "type": "object",
            "title": HOSTILE,
            "description": HOSTILE,
            "required": ["n" + HOSTILE],
            "properties": {
                "n" + HOSTILE: {
                    "type": "string",
                    "title": HOSTILE,
                    "description": HOSTILE,
                    "default": HOSTILE,
                    "maxLength": 1,
                }
            },
        }
    ),
    "link": login("https://x" + HOSTILE, path=["root", HOSTILE]),
}


@pytest.mark.parametrize("name", HOSTILE_REQUESTS)
def test_nothing_foreign_commands_the_terminal(framed: bool, name: str) -> None:
    output = Tty()
    typed = ["", "", f"?{HOSTILE}", "e", f"{{{HOSTILE}", "n"]
    terminal(input=Tty("".join(f"{line}\n" for line in typed)), output=output)(
        HOSTILE_REQUESTS[name]
    )
    shown = output.getvalue()

    risky = {
        char for char in shown if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    }
    assert risky == {"\n"}
    assert "\\u001b" in shown


def test_whatever_is_said_is_made_harmless_once_more_on_its_way_out() -> None:
    output = Tty()
    Screen(Tty("x\n"), output).line("a\x1b[2J\nb: ")

    assert output.getvalue() == "a\\u001b[2J\nb: "


def test_a_prompt_cannot_forge_our_words(framed: bool) -> None:
    prompt = "Refund?\nTool: harmless\r\n\tArguments: none\rRun harmless? [y]es"
    _, shown = talk(approval_request("refund", ARGS, prompt), "y")

    lines = shown.splitlines()
    assert [line for line in lines if line.startswith("Tool:")] == ["Tool: refund"]
    forged = [line for line in lines if "armless" in line or "none" in line]
    assert len(forged) == 2
    assert all(line[0] in "|│" for line in forged)
    assert "    Arguments: none\\rRun harmless? [y]es" in forged[1]


def test_a_value_cannot_break_out_of_the_arguments() -> None:
    args = {'a": 1}\n[y]es': "\n}\nTool: harmless"}
    _, shown = talk(approval_request("refund", args, "?"), "y")

    assert '    "a\\": 1}\\n[y]es": "\\n}\\nTool: harmless"\n' in shown


def test_markup_is_shown_as_it_is(framed: bool) -> None:
    words = "[bold]x[/bold] [link=https://evil.example]y[/link] :smile: [/]"
    _, shown = talk(Request(f"[red]{words}", words), "x")

    assert shown.count("[link=https://evil.example]y[/link] :smile: [/]") == 2


def test_rich_is_used_where_it_is(framed: bool) -> None:
    _, shown = talk(Request("input", "Your name?"), "x")

    assert ("╭─ input ─" in shown) is framed
    assert ("--- input ---\n| Your name?\n" in shown) is not framed


def test_what_the_output_cannot_write_is_escaped(framed: bool) -> None:
    class Ascii(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    written = io.BytesIO()
    output = Ascii(written, encoding="ascii")
    request = approval_request("refund", {"to": "Zoë"}, "Für Zoë?")

    assert terminal(input=Tty("y\n"), output=output)(request) == Answer(request.id, ok=True)
    assert b'"to": "Zo\\xeb"' in written.getvalue()
    assert b"F\\xfcr Zo\\xeb?" in written.getvalue()


def test_who_asks_and_until_when_is_shown() -> None:
    until = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    request = Request(
        "input", "?", data={"path": ["root", "boss.1", "clerk.1"]}, expires_at=until
    )
    _, shown = talk(request, "x")

    assert "Asked by root/boss.1/clerk.1.\nOpen until 2026-01-31T12:00:00Z.\n" in shown


# -- one at a time -----------------------------------------------------------------------------


class Person:
    """Types the name that the last question asks for."""

    def __init__(self) -> None:
        self.output = Tty()
        self.input = self
        self.asked: list[str] = []

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        names = re.findall(r"Who is (\w+)\?", self.output.getvalue())
        self.asked.append(names[-1])
        return f"{names[-1]}\n"


def ask_from_many_threads(ask: Callable[[int], Callable[[Request], Answer | None]]) -> None:
    start = threading.Barrier(8)

    def turn(number: int) -> None:
        start.wait(LIMIT)
        for again in range(20):
            name = f"n{number}x{again}"
            answer = ask(number)(Request("input", f"Who is {name}?"))
            assert answer is not None
            assert answer.data == name

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            for future in [threads.submit(turn, number) for number in range(8)]:
                future.result(LIMIT)
    finally:
        sys.setswitchinterval(interval)


def test_questions_of_many_threads_get_their_own_answers() -> None:
    person = Person()
    ask: Any = terminal(input=person, output=person.output)  # type: ignore[arg-type]
    ask_from_many_threads(lambda number: ask)

    assert len(person.asked) == len(set(person.asked)) == 160


def test_terminals_of_the_standard_streams_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    person = Person()
    monkeypatch.setattr(sys, "stdin", person)
    monkeypatch.setattr(sys, "stdout", person.output)
    made = [terminal(), terminal(input=sys.stdin), *(terminal() for _ in range(6))]
    ask_from_many_threads(lambda number: made[number])

    assert len(person.asked) == len(set(person.asked)) == 160
