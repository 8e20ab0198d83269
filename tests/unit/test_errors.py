"""Every exception: one root, a text that says what was wrong, and a safe journey by pickle."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import toolnexus
from toolnexus import Answer, Request, errors

LOST = "another process has taken over root/a.1, root/b.2"

MADE: list[tuple[errors.ToolnexusError, str]] = [
    (errors.ToolnexusError("x"), "x"),
    (errors.ConfigError("bad option"), "bad option"),
    (errors.WireFormatError("bad key"), "bad key"),
    (errors.ToolSchemaError("bad hint"), "bad hint"),
    (errors.StoreError("disk full"), "disk full"),
    (errors.Cancelled(), "run cancelled"),
    (errors.Cancelled("interrupted"), "interrupted"),
    (errors.LeaseLost(("root/a.1", "root/b.2")), LOST),
    (errors.RequestConflict("r1", "gone"), "request 'r1' is already gone"),
    (errors.RequestConflict("r1", None), "request 'r1' is unknown"),
    (errors.SpawnError("parent closed"), "parent closed"),
    (
        errors.IllegalTransitionError("root/a.1", "closed", "wake"),
        "root/a.1: no move for wake from closed",
    ),
    (errors.ResumeError("no"), "no"),
    (
        errors.NothingSuspended("r1"),
        "nothing is suspended, so answer 'r1' fits no request",
    ),
    (
        errors.NothingSuspended("r1", runtime="shop"),
        "nothing is suspended, so answer 'r1' fits no request; this looked in the runtime named"
        " 'shop' of its store, which must be the store and the name that the run was started"
        " with",
    ),
    (
        errors.UnknownRequest("r1", 7),
        "no open request has the id 'r1' (7 open; AgentRuntime.pending() lists them)",
    ),
    (
        errors.AlreadyAnswered(Answer("r1", True, {"n": 1}, "fine")),
        "request 'r1' was answered before, with ok=True and perhaps other data; "
        "the recorded answer stands",
    ),
    (
        errors.RequestExpired("r1", "2026-01-31T12:00:00Z"),
        "request 'r1' expired at 2026-01-31T12:00:00Z; it can only be declined",
    ),
    (
        errors.InvalidAnswer("r1", ("n is 9, but must fit", "m is missing")),
        "the answer to 'r1' does not fit: n is 9, but must fit; m is missing",
    ),
    (
        errors.NotAuthorized("r1", "authorize did not say True of who answers"),
        "the answer to 'r1' is not accepted: authorize did not say True of who answers",
    ),
    (
        errors.Declined(
            Request("approval", "Pay 5?", id="r1"), Answer("r1", False, reason="expired")
        ),
        "declined/expired: Pay 5? (expired)",
    ),
    (
        errors.ConversationParked((Request("approval", "Pay 5?", id="r1"),)),
        "the conversation waits for 1 answer(s): Pay 5? "
        "(ask_with_answer answers; supersede=True drops the question)",
    ),
    (errors.LlmError("LLM 429: slow down", 429, True, 2.0), "LLM 429: slow down"),
    (errors.LlmError("no reply"), "no reply"),
    (errors.RunTimeoutError("run timeout after 5ms"), "run timeout after 5ms"),
]


def every_class(root: type[Any]) -> set[type[Any]]:
    return {root}.union(*(every_class(sub) for sub in root.__subclasses__()))


def test_this_file_has_an_example_of_every_error() -> None:
    assert {type(error) for error, _ in MADE} >= {
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, Exception)
    }


@pytest.mark.parametrize(("error", "text"), MADE, ids=lambda one: type(one).__name__)
def test_an_error_says_what_was_wrong(error: errors.ToolnexusError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", [error for error, _ in MADE], ids=repr)
def test_an_error_survives_pickling(error: errors.ToolnexusError, protocol: int) -> None:
    back = pickle.loads(pickle.dumps(error, protocol))

    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert vars(back) == vars(error)


@pytest.mark.parametrize("error", [error for error, _ in MADE], ids=repr)
def test_the_root_catches_all_and_the_package_offers_each(error: Exception) -> None:
    assert isinstance(error, toolnexus.ToolnexusError)
    assert getattr(toolnexus, type(error).__name__) is type(error)


def test_families() -> None:
    for one in (
        errors.NothingSuspended,
        errors.UnknownRequest,
        errors.AlreadyAnswered,
        errors.RequestExpired,
    ):
        assert issubclass(one, errors.ResumeError)
    assert issubclass(errors.RunTimeoutError, errors.LlmError)
    # Code that reads stored values by hand catches ValueError.
    assert issubclass(errors.WireFormatError, ValueError)


def test_an_llm_error_carries_its_facts() -> None:
    error = errors.LlmError("LLM 429: slow down", 429, True, 2.0)

    assert (error.status, error.retryable, error.retry_after) == (429, True, 2.0)
    quiet = errors.LlmError("no reply")
    assert (quiet.status, quiet.retryable, quiet.retry_after) == (None, False, None)


def test_no_error_hides_a_builtin() -> None:
    import builtins

    assert not {cls.__name__ for cls in every_class(errors.ToolnexusError)} & set(dir(builtins))
