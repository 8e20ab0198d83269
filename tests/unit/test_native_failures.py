"""What the host sees when a tool fails, and what the model is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from toolnexus.cancel import CancelToken
from toolnexus.errors import Cancelled
from toolnexus.suspension import Request
from toolnexus.tools.native import tool
from toolnexus.toolspec import ToolContext, ToolResult

CTX = ToolContext()


def raising(error: BaseException, cause: BaseException | None = None) -> Callable[[], None]:
    def f() -> None:
        raise error from cause

    return f


class Refused(KeyError):
    def __str__(self) -> str:
        return "no such account"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def price_of(product: str) -> int:
        return {"tea": 3}[product]

    result = price_of.execute({"product": "secret-coffee"}, CTX)

    assert result == ToolResult("KeyError: 'secret-coffee'", is_error=True)
    [record] = caplog.records
    assert record.name == "toolnexus.tools.native"
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "tool price_of failed"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


def test_a_failure_in_a_method_is_logged_under_the_name_the_model_uses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Desk:
        @tool(name="refund-2")
        def refund(self) -> None:
            raise ValueError("closed")

    assert Desk().refund.execute({}, CTX).output == "closed"
    assert [record.getMessage() for record in caplog.records] == ["tool refund-2 failed"]


def test_an_exception_that_cannot_say_anything_is_logged_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert tool(raising(Mute())).execute({}, CTX) == ToolResult("Mute", is_error=True)
    assert "tool f failed" in caplog.text


@pytest.mark.parametrize(
    ("error", "output"),
    [
        (KeyError("price"), "KeyError: 'price'"),
        (KeyError(), "KeyError"),
        (StopIteration(), "StopIteration"),
        (StopIteration(5), "StopIteration: 5"),
        (AssertionError(), "AssertionError"),
        (AssertionError("the sum is wrong"), "the sum is wrong"),
        (ValueError("  "), "ValueError"),
        (ValueError("5"), "5"),
        (IndexError("list index out of range"), "list index out of range"),
        (Refused("x"), "no such account"),
    ],
)
def test_a_message_that_says_nothing_alone_gets_its_class(
    error: Exception, output: str
) -> None:
    assert tool(raising(error)).execute({}, CTX) == ToolResult(output, is_error=True)


@pytest.mark.parametrize(
    ("cause", "output"),
    [
        (OSError("disk full"), "disk full"),
        (KeyError("price"), "KeyError: 'price'"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_cause_is_told_in_place_of_the_exception(cause: Exception, output: str) -> None:
    failed = tool(raising(RuntimeError("outer"), cause)).execute({}, CTX)
    assert failed == ToolResult(output, is_error=True)


def test_a_tool_that_stops_because_it_was_told_to_is_no_failure_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    def count(ctx: ToolContext) -> None:
        ctx.cancel.raise_if_cancelled()

    token = CancelToken()
    token.cancel("interrupted")
    with pytest.raises(Cancelled, match="interrupted"):
        count.execute({}, ToolContext(cancel=token))
    assert caplog.records == []

    assert tool(raising(Cancelled("a token of its own"))).execute({}, CTX).is_error
    assert "tool f failed" in caplog.text


def test_arguments_that_do_not_fit_are_the_models_matter_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    def spend(amount: int) -> None:
        raise AssertionError("it ran")

    assert "nothing was executed" in spend.execute({"amount": "ten"}, CTX).output
    assert caplog.records == []


def test_a_bare_request_is_an_error_that_names_the_fix(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    def charge(amount: int) -> Any:
        return Request("approval", f"Approve ${amount}?")

    result = charge.execute({"amount": 500}, CTX)

    assert result.is_error
    assert result.request is None
    assert "ToolResult.pending(request)" in result.output
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.name == "toolnexus.tools.native"
    assert "charge" in record.getMessage()
    assert "ToolResult.pending(request)" in record.getMessage()
    assert "500" not in record.getMessage()
