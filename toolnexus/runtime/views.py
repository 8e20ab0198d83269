"""What the host sees of open requests."""

from __future__ import annotations

from toolnexus import codec
from toolnexus.runtime.book import OpenRequest
from toolnexus.runtime.core import Core
from toolnexus.runtime.handle import PendingRequest, path_of
from toolnexus.suspension import copy_of, parse_time


def open_requests(core: Core) -> tuple[PendingRequest, ...]:
    """Return every open request: oldest first, those of one turn in call order."""
    with core.lock:
        return tuple(_view_locked(core, one) for one in core.book)


def _view_locked(core: Core, found: OpenRequest) -> PendingRequest:
    handle = found.handle
    call = core.calls_locked(handle)[found.index]
    assert call.request is not None  # noqa: S101 - its request is open
    return PendingRequest(
        request=copy_of(call.request),
        path=path_of(handle),
        agent=handle.definition.name,
        tool=call.name,
        arguments=_arguments(call.arguments),
        call_id=call.id,
        asked_at=parse_time(call.asked_at, "asked_at") or core.clock.now(),
    )


def _arguments(text: str) -> dict[str, codec.JsonValue]:
    # The tool has run with them once, so they are an object, or empty.
    return codec.loads(text) if text.strip() else {}
