"""Every exception of toolnexus, under one root.

All arguments reach `Exception.__init__`, so each error survives pickling (a Celery worker
pickles what it raises); the text is made in `__str__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from toolnexus.checkpoint import Checkpoint
    from toolnexus.results import RunResult
    from toolnexus.suspension import Answer, Request

BODY_EXCERPT_CHARS: Final = 200
"""How much of a provider's reply an error may quote."""


class ToolnexusError(Exception):
    """The root of all errors raised by toolnexus.

    Attributes:
        checkpoint: Where a client's run stands that was ended by this error: `LlmClient.resume`
            goes on from there. None for an error of anything else.
    """

    checkpoint: Checkpoint | None = None


class ConfigError(ToolnexusError):
    """Options, definitions or arguments given by the host do not make sense."""


class WireFormatError(ToolnexusError, ValueError):
    """A stored or received value is not of the form its class reads."""


class ToolSchemaError(ToolnexusError):
    """A function cannot be offered as a tool; the message names the function and the part."""


class StoreError(ToolnexusError):
    """A store could not read or write.

    Attributes:
        result: What a run gave that could not be saved; None where nothing is lost.
    """

    result: RunResult | None = None


class LeaseLost(StoreError):
    """Another process has taken a run over: what this one still does of it is thrown away.

    Attributes:
        run_ids: The runs.
    """

    def __init__(self, run_ids: tuple[str, ...]) -> None:
        super().__init__(f"another process has taken over {', '.join(run_ids)}")
        self.run_ids = run_ids

    def __reduce__(self) -> tuple[type[LeaseLost], tuple[tuple[str, ...]]]:
        return type(self), (self.run_ids,)


class RequestConflict(StoreError):
    """A request is not what a write takes it for; nothing was written.

    Its id is in use, or it is gone or unknown and nobody can wait for it any more, or it is the
    open one for a login that was to be asked for once more.

    Attributes:
        request_id: The request as the store has it.
        state: Its state there; None where there is none.
    """

    def __init__(self, request_id: str, state: str | None) -> None:
        super().__init__(request_id, state)
        self.request_id = request_id
        self.state = state

    def __str__(self) -> str:
        found = "unknown" if self.state is None else f"already {self.state}"
        return f"request {self.request_id!r} is {found}"


class Cancelled(ToolnexusError):
    """The work was told to stop through its `CancelToken`.

    Attributes:
        partial: Text that a stream had given by then; "" for none.
    """

    partial: str = ""

    def __init__(self, reason: str = "run cancelled") -> None:
        super().__init__(reason)
        self.reason = reason


class SpawnError(ToolnexusError):
    """A spawn was refused; the text is the reason."""


class IllegalTransitionError(ToolnexusError):
    """A handle was asked for a move that the state table does not have."""

    def __init__(self, handle_id: str, state: str, cause: str) -> None:
        super().__init__(handle_id, state, cause)
        self.handle_id = handle_id
        self.state = state
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.handle_id}: no move for {self.cause} from {self.state}"


class ResumeError(ToolnexusError):
    """An answer could not be accepted; nothing has changed."""


class NothingSuspended(ResumeError):
    """No handle of this runtime waits for an answer.

    Attributes:
        answer_id: The id that fits nothing.
        outcome: `cancelled` or `superseded` where a request with that id was open; None else.
        runtime: The name of the runtime in its store; None without one.
    """

    def __init__(
        self, answer_id: str, outcome: str | None = None, runtime: str | None = None
    ) -> None:
        super().__init__(answer_id, outcome, runtime)
        self.answer_id = answer_id
        self.outcome = outcome
        self.runtime = runtime

    def __str__(self) -> str:
        if self.outcome is not None:
            return f"request {self.answer_id!r} was {self.outcome}; nothing is suspended now"
        fits_none = f"nothing is suspended, so answer {self.answer_id!r} fits no request"
        if self.runtime is None:
            return fits_none
        return (
            f"{fits_none}; this looked in the runtime named {self.runtime!r} of its store,"
            " which must be the store and the name that the run was started with"
        )


class UnknownRequest(ResumeError):
    """No open request has the answer's id.

    Attributes:
        answer_id: The id that fits nothing.
        open_count: How many are open. Their ids are not told: who knows one may answer it.
        outcome: `cancelled` or `superseded` where a request with that id was open; None else.
    """

    def __init__(self, answer_id: str, open_count: int = 0, outcome: str | None = None) -> None:
        super().__init__(answer_id, open_count, outcome)
        self.answer_id = answer_id
        self.open_count = open_count
        self.outcome = outcome

    def __str__(self) -> str:
        if self.outcome is not None:
            return f"request {self.answer_id!r} was {self.outcome}; it cannot be answered now"
        return (
            f"no open request has the id {self.answer_id!r} ({self.open_count} open; "
            "AgentRuntime.pending() lists them)"
        )


class AlreadyAnswered(ResumeError):
    """The request was answered before, differently; `recorded` is the answer that counts.

    A conversation's transcript keeps no more of it than `ok`: its data may be a secret.
    """

    def __init__(self, recorded: Answer) -> None:
        super().__init__(recorded)
        self.recorded = recorded

    def __str__(self) -> str:
        return (
            f"request {self.recorded.id!r} was answered before, with ok={self.recorded.ok} and "
            "perhaps other data; the recorded answer stands"
        )


class RequestExpired(ResumeError):
    """The answer came after the request's `expires_at`; only a decline is still accepted."""

    def __init__(self, request_id: str, expires_at: str) -> None:
        super().__init__(request_id, expires_at)
        self.request_id = request_id
        self.expires_at = expires_at

    def __str__(self) -> str:
        return (
            f"request {self.request_id!r} expired at {self.expires_at}; it can only be declined"
        )


class InvalidAnswer(ResumeError):
    """An answer does not fit its request, which stays open; nothing has changed.

    Attributes:
        request_id: The request that it was meant for.
        faults: Everything that does not fit, one line each. A secret is not quoted.
    """

    def __init__(self, request_id: str, faults: tuple[str, ...]) -> None:
        super().__init__(request_id, faults)
        self.request_id = request_id
        self.faults = faults

    def __str__(self) -> str:
        return f"the answer to {self.request_id!r} does not fit: {'; '.join(self.faults)}"


class NotAuthorized(ResumeError):
    """`authorize` did not say True of who answers; nothing has changed.

    Attributes:
        request_id: The request that stays open.
        why: What it said instead, or that nobody was named. No text of the host's.
    """

    def __init__(self, request_id: str, why: str) -> None:
        super().__init__(request_id, why)
        self.request_id = request_id
        self.why = why

    def __str__(self) -> str:
        return f"the answer to {self.request_id!r} is not accepted: {self.why}"


class Declined(ToolnexusError):
    """Raised by `ctx.ask` in a tool: nobody said yes. Uncaught, the model is told.

    Attributes:
        request: What was asked.
        answer: What was said; `answer.outcome` is `declined`, `expired`, `cancelled` or
            `superseded`.
    """

    def __init__(self, request: Request, answer: Answer) -> None:
        super().__init__(request, answer)
        self.request = request
        self.answer = answer

    def __str__(self) -> str:
        return self.answer.declined_text(self.request)


class ConversationParked(ToolnexusError):
    """A conversation waits for answers, so nothing can be added to it; nothing has changed.

    Attributes:
        requests: What is asked, in call order. Answer them, or send with `supersede=True`.
    """

    def __init__(self, requests: tuple[Request, ...]) -> None:
        super().__init__(requests)
        self.requests = requests

    def __str__(self) -> str:
        prompts = "; ".join(request.prompt for request in self.requests)
        return (
            f"the conversation waits for {len(self.requests)} answer(s): {prompts} "
            "(ask_with_answer answers; supersede=True drops the question)"
        )


class LlmError(ToolnexusError):
    """A model could not be asked, or its reply could not be used.

    Attributes:
        message: The text, with at most 200 characters of the provider's body and never a key.
        status: HTTP status; None where there was no reply.
        retryable: Whether the same request may succeed later.
        retry_after: Seconds the provider asked to wait; None where it said nothing usable.
        partial: Text that a stream had given before it broke off; "" for none.
    """

    partial: str = ""

    def __init__(
        self,
        message: str,
        status: int | None = None,
        retryable: bool = False,  # noqa: FBT001, FBT002 - positional, so that pickling works
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, status, retryable, retry_after)
        self.message = message
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message


class RunTimeoutError(LlmError):
    """The run's own deadline (`timeout_ms`) passed."""
