"""Over HTTP: an error as a status, an open request as JSON, JSON as an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolnexus.codec import JsonValue
from toolnexus.errors import (
    AlreadyAnswered,
    InvalidAnswer,
    NotAuthorized,
    NothingSuspended,
    RequestExpired,
    StoreError,
    ToolnexusError,
    UnknownRequest,
    WireFormatError,
)
from toolnexus.runtime.handle import PendingRequest
from toolnexus.suspension import Answer

STATUSES: Final[tuple[tuple[type[ToolnexusError], int], ...]] = (
    (UnknownRequest, 404),
    (NothingSuspended, 404),
    (AlreadyAnswered, 409),
    (RequestExpired, 409),
    (InvalidAnswer, 422),
    (NotAuthorized, 403),
    (WireFormatError, 400),
    (StoreError, 503),
)


def status_of(error: ToolnexusError) -> int:
    """Return the HTTP status that says what `error` does; 500 where the fault is the host's."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def request_dict(pending: PendingRequest) -> dict[str, Any]:
    """Return what a browser needs to show an open request; JSON.

    Its texts come from a model: a page has to escape them.
    """
    request = pending.request
    expires_at = request.expires_at
    return {
        "id": request.id,
        "kind": request.kind,
        "prompt": request.prompt,
        "url": request.url,
        "schema": None if pending.schema is None else dict(pending.schema),
        "run": pending.run_id,
        "agent": pending.agent,
        "tool": pending.tool,
        "arguments": pending.arguments,
        "asked_at": pending.asked_at.isoformat(),
        "expires_at": None if expires_at is None else expires_at.isoformat(),
    }


def answer_from(request_id: str, given: JsonValue) -> Answer:
    """Return the answer to a request that the JSON body of an HTTP request gives.

    Args:
        request_id: The id, which is taken from the URL.
        given: `{"ok": true}`, and `data` and `reason` if wanted.

    Raises:
        WireFormatError: It is no such object. Only exactly `true` is a yes.
    """
    if not isinstance(given, Mapping):
        raise WireFormatError('an answer is a JSON object such as {"ok": true}')
    return Answer.from_dict({**given, "id": request_id})
