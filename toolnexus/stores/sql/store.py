"""The contract of a run store over a database that speaks SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from toolnexus.codec import JsonValue
from toolnexus.stores.records import (
    Claim,
    HandleRecord,
    Held,
    Lease,
    Mail,
    Part,
    RequestRecord,
    RequestState,
    RunChange,
    StoredHandle,
    Taken,
)
from toolnexus.stores.sql import (
    asking,
    grants,
    owning,
    pruning,
    reading,
    requests,
    taking,
    writing,
)
from toolnexus.stores.sql.session import Database, Session
from toolnexus.stores.sql.values import to_column, to_text

_MICROS_PER_MS: Final = 1000


class SqlStore:
    """Keeps runs in a database. See `toolnexus.stores.base.RunStore`. Thread-safe.

    Attributes:
        database: What the statements run on.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    # -- owning a run -----------------------------------------------------------------------

    def start_run(
        self, runtime: str, parent: str, agent: str, head: JsonValue, *, most: int | None = None
    ) -> str | None:
        """Make a run of one handle, `idle`, that is nobody's; return its id."""
        name, text = to_text(runtime), to_column(head, f"the head of a new run of {agent!r}")

        def start(session: Session) -> str | None:
            if most is not None and owning.has_runs(session, name, most):
                return None
            return owning.start_run(session, name, parent, agent, text)

        return self.database.write(start)

    def take(
        self, runtime: str, run_id: str, owner: str, lease_ms: int, *, takes_busy: bool
    ) -> Taken | Held | None:
        """Take a run that is nobody's, or whose lease has run out, or that is `owner`'s own."""
        name, new = to_text(runtime), (owner, lease_ms * _MICROS_PER_MS)
        return self.database.write(
            lambda session: taking.take(session, name, run_id, new, takes_busy=takes_busy),
            is_light=True,
        )

    def renew(self, runtime: str, owner: str, lease_ms: int) -> None:
        """Let every lease of `owner` run for another `lease_ms` from now."""
        name, lasts = to_text(runtime), lease_ms * _MICROS_PER_MS
        self.database.write(
            lambda session: owning.renew(session, name, owner, lasts), is_light=True
        )

    def owned(self, runtime: str, owner: str) -> Mapping[str, bool]:
        """Return the runs that are `owner`'s, each with whether something has come for it."""
        name = to_text(runtime)
        return self.database.read(lambda session: owning.owned(session, name, owner))

    def release(self, runtime: str, lease: Lease, *, on_purpose: bool) -> None:
        """Give a lease back as it is; one that is void is nobody's to give back."""
        name = to_text(runtime)
        self.database.write(
            lambda session: owning.release(session, name, lease, on_purpose=on_purpose),
            is_light=True,
        )

    def abandon(self, runtime: str, owner: str) -> None:
        """Give back every lease of `owner`; turns under way stay so, for whoever comes."""
        name = to_text(runtime)
        self.database.write(lambda session: owning.abandon(session, name, owner), is_light=True)

    def abandoned(self, runtime: str) -> tuple[str, ...]:
        """Return the runs that nobody is at and that have something to do, oldest first."""
        name = to_text(runtime)
        return self.database.read(lambda session: owning.abandoned(session, name))

    def leased(self, runtime: str, *, but: str) -> tuple[int, datetime | None]:
        """Return how many runs are kept from `abandoned` by leases of others than `but` alone.

        And when the last of those leases ends, unless it is renewed. No part of the contract.
        """
        name = to_text(runtime)
        return self.database.read(lambda session: owning.leased(session, name, but))

    # -- changing it ------------------------------------------------------------------------

    def write(self, runtime: str, changes: Sequence[RunChange]) -> tuple[str, ...]:
        """Write all of `changes`, or nothing; return the runs that are not released."""
        name, steps = to_text(runtime), [writing.RunStep.of(change) for change in changes]
        is_light = not any(map(writing.has_content, changes))
        return self.database.write(
            lambda session: writing.write(session, name, steps), is_light=is_light
        )

    def claim(self, runtime: str, claims: Sequence[Claim]) -> bool:
        """Record the answers if every one of their requests is open; say whether they are."""
        name = to_text(runtime)
        answers = [
            (
                one.request_id,
                one.waits,
                to_column(one.answer, f"the answer to request {one.request_id!r}"),
            )
            for one in claims
        ]
        return self.database.write(lambda session: asking.claim(session, name, answers))

    def send(self, runtime: str, run_id: str, signal: JsonValue) -> None:
        """Put a signal in a run's letter box; one for an unknown run is dropped."""
        name, text = to_text(runtime), to_column(signal, f"a signal for run {run_id!r}")
        self.database.write(lambda session: owning.send(session, name, to_text(run_id), text))

    def mail(self, runtime: str, run_id: str) -> Mail:
        """Return what has come for a run."""
        name = to_text(runtime)
        return self.database.read(lambda session: owning.mail(session, name, to_text(run_id)))

    def announced(self, runtime: str, request_ids: Sequence[str]) -> None:
        """Note that the host was told of these requests."""
        name, ids = to_text(runtime), tuple(request_ids)
        self.database.write(lambda session: asking.announced(session, name, ids), is_light=True)

    # -- reading ----------------------------------------------------------------------------

    def load(self, runtime: str, run_id: str) -> tuple[StoredHandle, ...]:
        """Return the handles of a run that are not closed, parents before children."""
        name = to_text(runtime)
        return self.database.read(lambda session: reading.load(session, name, to_text(run_id)))

    def load_handle(
        self, runtime: str, handle_id: str, parts: Collection[Part]
    ) -> StoredHandle | None:
        """Return one handle with some of its parts; None for an unknown id."""
        name, key = to_text(runtime), to_text(handle_id)
        return self.database.read(
            lambda session: reading.load_handle(session, name, key, parts)
        )

    def handle(self, runtime: str, handle_id: str) -> HandleRecord | None:
        """Return one handle, also a closed one; None for an unknown id."""
        name = to_text(runtime)
        return self.database.read(
            lambda session: reading.handle(session, name, to_text(handle_id))
        )

    def handles(
        self,
        runtime: str,
        *,
        under: str | None = None,
        limit: int | None = None,
    ) -> Iterator[HandleRecord]:
        """Yield the handles that are not closed, run by run, parents before children."""
        return reading.each_handle(
            self.database, to_text(runtime), None if under is None else to_text(under), limit
        )

    def calls(self, runtime: str, run_id: str) -> Mapping[str, Mapping[int, JsonValue]]:
        """Return the unfinished calls of a run, by handle id and position."""
        name = to_text(runtime)
        return self.database.read(lambda session: reading.calls(session, name, to_text(run_id)))

    def request(self, runtime: str, request_id: str) -> RequestRecord | None:
        """Return one request; None for an unknown id."""
        name = to_text(runtime)
        return self.database.read(
            lambda session: requests.request(session, name, to_text(request_id))
        )

    def requests(
        self,
        runtime: str,
        *,
        state: RequestState | None = None,
        kind: str | None = None,
        under: str | None = None,
        login: str | None = None,
        due: datetime | None = None,
        is_announced: bool | None = None,
        limit: int | None = None,
    ) -> Iterator[RequestRecord]:
        """Yield requests in the order in which they opened."""
        wanted = requests.conditions(
            state=state, kind=kind, login=login, due=due, is_announced=is_announced
        )
        inside = None if under is None else to_text(under)
        return requests.each_request(
            self.database, to_text(runtime), wanted, under=inside, limit=limit
        )

    def next_expiry(self, runtime: str) -> datetime | None:
        """Return when the first open request expires; None where none does."""
        name = to_text(runtime)
        return self.database.read(lambda session: requests.next_expiry(session, name))

    # -- grants, and keeping house ----------------------------------------------------------

    def put_grant(self, runtime: str, grant_id: str, grant: JsonValue) -> None:
        """Keep a grant."""
        name, text = to_text(runtime), to_column(grant, f"grant {grant_id!r}")
        key = to_text(grant_id)
        self.database.write(lambda session: grants.put_grant(session, name, key, text))

    def remove_grant(self, runtime: str, grant_id: str) -> bool:
        """Forget a grant; say whether there was one."""
        name = to_text(runtime)
        return self.database.write(
            lambda session: grants.remove_grant(session, name, to_text(grant_id))
        )

    def grants(self, runtime: str) -> Mapping[str, JsonValue]:
        """Return the grants by id, oldest first."""
        return self.database.read(partial(grants.grants, runtime=to_text(runtime)))

    def prune(self, runtime: str, before: datetime, *, keep_suspended: bool) -> int:
        """Delete what rests since before that time; return how many handles that were."""
        return pruning.prune(
            self.database, to_text(runtime), before, keep_suspended=keep_suspended
        )

    def close(self) -> None:
        """Close connections. Idempotent; a later call opens new ones."""
        self.database.close()
