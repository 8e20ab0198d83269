"""What the host sees of open requests."""

from __future__ import annotations

from datetime import timedelta

from toolnexus import checks
from toolnexus.errors import ConfigError
from toolnexus.runtime.audit import arguments_of
from toolnexus.runtime.book import OpenRequest
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import PendingRequest, path_of
from toolnexus.suspension import copy_of, parse_time


def open_requests(
    core: Core,
    kind: str | None = None,
    older_than: float | timedelta | None = None,
    under: str = "root",
) -> tuple[PendingRequest, ...]:
    """Return open requests: oldest first, those of one turn in call order."""
    if kind is not None and not isinstance(kind, str):
        raise ConfigError(f"kind must be a text such as 'approval', not {kind!r}")
    with core.lock:
        found = tuple(view_locked(core, one) for one in core.book)
    found = tuple(one for one in found if one.is_under(under))
    if kind is not None:
        found = tuple(one for one in found if one.request.kind == kind)
    if older_than is None:
        return found
    least, now = checks.span(older_than, "older_than"), core.clock.now()
    return tuple(one for one in found if now - one.asked_at > least)


def view_locked(core: Core, found: OpenRequest) -> PendingRequest:
    """Return an open request as the host sees it. The caller holds the lock."""
    handle = found.places[0].handle
    call = core.calls_locked(handle)[found.places[0].index]
    return PendingRequest(
        request=copy_of(found.request),
        path=path_of(handle),
        agent=handle.definition.name,
        tool=call.name,
        arguments=arguments_of(call),
        call_id=call.id,
        asked_at=parse_time(call.asked_at, "asked_at") or core.clock.now(),
        shared_with=tuple(one.handle.id for one in found.places[1:]),
    )
