"""What the host sees of open requests."""

from __future__ import annotations

from datetime import timedelta

from toolnexus import checks
from toolnexus.checkpoint import CallState
from toolnexus.errors import ConfigError
from toolnexus.grants import is_under
from toolnexus.runtime.audit import AuditRecord, arguments_of, waiting_record
from toolnexus.runtime.book import OpenRequest, Place
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
        shown = (view_locked(core, one, under) for one in core.book)
        found = tuple(one for one in shown if one is not None)
    if kind is not None:
        found = tuple(one for one in found if one.request.kind == kind)
    if older_than is None:
        return found
    least, now = checks.span(older_than, "older_than"), core.clock.now()
    return tuple(one for one in found if now - one.asked_at > least)


def view_locked(core: Core, found: OpenRequest, under: str = "root") -> PendingRequest | None:
    """Return an open request as the host sees it; None where nobody below `under` waits.

    The caller holds the lock.
    """
    for place in found.places:
        if is_under(place.handle.id, under):
            return view_of_place(core, found, place, core.call_locked(place))
    return None


def view_of_place(
    core: Core, found: OpenRequest, place: Place, call: CallState
) -> PendingRequest:
    """Return an open request as one of the calls that wait for it has asked it."""
    return PendingRequest(
        request=copy_of(found.request),
        path=path_of(place.handle),
        agent=place.handle.definition.name,
        tool=call.name,
        arguments=arguments_of(call),
        call_id=call.id,
        asked_at=parse_time(call.asked_at, "asked_at") or core.clock.now(),
        shared_with=tuple(one.handle.id for one in found.places if one is not place),
    )


def waiting_records(core: Core) -> list[AuditRecord]:
    """Return what the audit says of open requests. The caller holds the lock."""
    records = []
    for found in core.book:
        first, *others = core.askers_locked(found)
        shared = [(handle.id, call.id) for handle, call in others]
        records.append(waiting_record(*first, found.request, shared))
    return records
