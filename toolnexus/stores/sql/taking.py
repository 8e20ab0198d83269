"""A run that is taken and read in one transaction."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from toolnexus.stores.records import Held, Lease, Mail, RequestRecord, Taken
from toolnexus.stores.sql import owning, reading, requests
from toolnexus.stores.sql.session import Session


def take(
    session: Session, runtime: str, run_id: str, new: tuple[str, int], *, takes_busy: bool
) -> Taken | Held | None:
    """Take a run and return it whole; `new` is as for `owning.acquire`.

    Raises:
        StoreError: A handle, or what has come, cannot be read; names it.
    """
    row = owning.locked(session, runtime, run_id)
    if row is None:
        return None
    lease = owning.acquire(session, run_id, row, new, takes_busy=takes_busy)
    if not isinstance(lease, Lease):
        return lease
    return Taken(
        lease=lease,
        handles=reading.load_run(session, runtime, row.key),
        requests=_open_requests(session, runtime, row.key),
        mail=owning.mail(session, runtime, run_id) if row.mail else Mail(),
    )


def _open_requests(session: Session, runtime: str, run: int) -> tuple[RequestRecord, ...]:
    rows = requests.open_of_run(session, runtime, run)
    return tuple(requests.to_request(list(same)) for _, same in groupby(rows, itemgetter(0)))
