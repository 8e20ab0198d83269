"""Answering: whether an answer fits what it answers, and what of it is kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

import attrs

from toolnexus.approvals import APPROVAL_GATE, approval_faults
from toolnexus.clock import Clock
from toolnexus.codec import JsonValue, dumps
from toolnexus.errors import InvalidAnswer, RequestExpired
from toolnexus.forms import form_faults, secret_fields
from toolnexus.schema import faults, parse_arguments
from toolnexus.suspension import (
    LOGIN,
    RELAYED,
    Answer,
    Request,
    format_time,
    message_of,
    with_secrets,
)
from toolnexus.toolspec import Tool, handles_decline
from toolnexus.vault import Vault

if TYPE_CHECKING:
    from toolnexus.checkpoint import CallState

_RESULTS: Final = (
    'a relayed call is answered with data={"results": [{"id": ..., "output": ...}]}'
)


_SEALED: Final = {"sealed": True}
"""What is kept in the place of an answer of one value, which is in the vault."""


def require_fit(call: CallState, answer: Answer, clock: Clock, tool: Tool | None) -> None:
    """Refuse an answer that its request could make nothing of, before it is accepted.

    Args:
        call: The open call.
        answer: A decline always fits.
        clock: Says whether it comes too late.
        tool: The call's; None where it is gone.

    Raises:
        InvalidAnswer: It does not fit the schema; or the arguments that it changes the call to
            do not fit the tool.
        RequestExpired: It came too late.
    """
    request = call.request
    if request is None or not answer.ok:
        return
    if request.expires_at is not None and is_expired(request, clock.now()):
        raise RequestExpired(request.id, format_time(request.expires_at))
    problems = _faults(call, request, answer.data, tool)
    if problems:
        raise InvalidAnswer(request.id, tuple(problems))


def is_expired(request: Request, now: datetime) -> bool:
    """Say whether the request's time has passed; its instant is too late already."""
    return request.expires_at is not None and now >= request.expires_at


def asks_approval(call: CallState) -> bool:
    """Say whether what the call waits for is that a person lets it be executed."""
    return call.by.gate is not None and call.by.passed[-1:] == (APPROVAL_GATE,)


def is_refused(call: CallState, tool: Tool) -> bool:
    """Say whether a no keeps the call from being executed.

    A tool may ask to hear its own no, never a gate's, nor one to running it again.
    """
    if call.answer is None or call.answer.ok:
        return False
    if call.by.gate is not None or call.by.before is not None:
        return True
    # What `ctx.ask` has asked it answers, there.
    return call.by.place is None and not handles_decline(tool)


def _faults(call: CallState, request: Request, data: JsonValue, tool: Tool | None) -> list[str]:
    if asks_approval(call):
        return approval_faults(request, data, lambda args: argument_faults(tool, args))
    if request.kind == RELAYED and data is not None and not isinstance(data, Mapping):
        return [f"{_RESULTS}, not {type(data).__name__}"]
    if request.schema is None:
        return []
    return form_faults(request.schema, data, is_secret=request.kind == LOGIN)


def argument_faults(tool: Tool | None, args: dict[str, JsonValue]) -> list[str]:
    """Return what keeps arguments from fitting `tool`; its own check goes before its schema."""
    if tool is None:
        return ["the tool is no longer available"]
    unreadable = parse_arguments(dumps(args), {})
    if isinstance(unreadable, str):
        # They are kept as text, and read again for each execution.
        return [unreadable.partition("; nothing was executed")[0]]
    own = getattr(tool, "argument_faults", None)
    return own(args) if callable(own) else faults(args, tool.input_schema)


def sealed(request: Request, answer: Answer, vault: Vault) -> Answer:
    """Return the answer as it is kept: its secret fields go into the vault."""
    secret, data = secret_fields(request), answer.data
    if not secret:
        return answer
    if not answer.ok:
        # Nobody is given the fields of a no; the word for the model is no secret.
        said = message_of(data)
        return attrs.evolve(answer, data=None if said is None else {"message": said})
    if "" in secret:
        vault.put(request.id, {"": data})
        # Of a login without a word there is nothing to lose.
        return attrs.evolve(answer, data=None if data is None else dict(_SEALED))
    fields = data if isinstance(data, Mapping) else {}
    vault.put(request.id, {name: fields[name] for name in secret if name in fields})
    return attrs.evolve(answer, data=without(data, secret))


def without(data: JsonValue, secret: Collection[str]) -> JsonValue:
    """Return an answer's data without its secret fields."""
    if not secret:
        return data
    if "" in secret or not isinstance(data, Mapping):
        return None
    return {name: value for name, value in data.items() if name not in secret}


def unsealed(request: Request, answer: Answer, vault: Vault) -> Answer | None:
    """Return the answer as the tool is given it; None where its secrets went with a process.

    Always a copy: what is kept is not the tool's to change.
    """
    if not secret_fields(request):
        return attrs.evolve(answer)
    with vault.sealing:
        secrets = vault.get(request.id)
    if not answer.ok:
        return attrs.evolve(answer)  # a no is a no without them
    if request.schema is None and answer.data is None:
        return with_secrets(answer, {"": None})  # a login's, of which most say nothing
    if secrets is None:
        return None
    if "" not in secrets:
        return with_secrets(answer, secrets)
    # Of a login without a schema nothing says that it is a secret, so it is data too.
    data = secrets[""] if request.schema is None else None
    return with_secrets(attrs.evolve(answer, data=data), secrets)
