"""The contract of a run store: what of a runtime outlives its process, and who may change it.

A store keeps the runs of any number of runtimes, each known by a name that the processes which
share it have in common. A *run* is an agent that the host has spawned below the root, with
everything below it; its id is that agent's. A run is the unit of ownership: whoever changes it
holds its `Lease`, which says in its `fence` how often the run has changed hands. Every write
carries the lease and lands only as long as that is the run's last one. So a process that was
stopped for longer than its lease, and goes on after another one has taken its run over, writes
nothing any more. That the time of a lease has passed makes nobody lose it; that somebody has
taken the run over then does.

What the runtime keeps of a handle is opaque to the store and comes in four parts: its `head`, a
small object that is written anew each time; its messages, by position, which are only ever
added, or cut off at the end; the unfinished calls of its last message, by position; and its
inbox, by number. Requests are not opaque, for they are looked for: each is `open` until it is
`answered` or `gone`, and knows which calls wait for it. An answer is claimed by one conditional
write, whether anybody owns the run or not; the call that it is for takes it later, in a write
of the run's owner. A run also has a letter box of *signals*, for who wants something of a run
that another process owns.

What a store must promise, and `toolnexus.testing.store_contract` checks:

- Every method is atomic: all of it has happened, or nothing, also where the process dies in it.
  Only `prune`, which may have much to delete, may do so run by run. An iterator reads page by
  page, and what is written meanwhile may or may not be in it.
- What a method has returned from is seen by every later call, in this process or another.
- Nothing is held between two calls: no transaction, no lock.
- Every method may be called by any number of threads at once, and works in a forked child.
- A value comes back as the JSON that was written: key order, unpaired surrogates and all.
- What goes wrong is a `StoreError` that says what, without the content of a record.
- A record that cannot be read is reported by its id, and hides no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class RunStore(Protocol):
    """Keeps runs. Every method raises `StoreError` where the store does not work.

    `runtime` is always the name of a runtime; its runs are apart from those of all others.
    """

    # -- owning a run -----------------------------------------------------------------------

    def start_run(
        self, runtime: str, parent: str, agent: str, head: JsonValue, *, most: int | None = None
    ) -> str | None:
        """Make a run of one handle, `idle`, that is nobody's; return its id, `parent/agent.N`.

        N counts the runs of the runtime from 1, without gaps, whatever their agents.

        Args:
            runtime: Whose.
            parent: What its id begins with.
            agent: The handle's.
            head: The handle's.
            most: How many runs that are not closed there may be; None for any number.

        Returns:
            None where there are as many; nothing has changed then.
        """

    def take(
        self, runtime: str, run_id: str, owner: str, lease_ms: int, *, takes_busy: bool
    ) -> Taken | Held | None:
        """Take a run that is nobody's, or whose lease has run out, or that is `owner`'s own.

        What comes with the lease is what `load`, `requests` of the open ones under the run, and
        `mail` would say in the same moment.

        Args:
            runtime: Whose.
            run_id: Which.
            owner: For whom.
            lease_ms: How long others respect it, unless it is renewed; milliseconds.
            takes_busy: Whether to take it also where a turn was left under way in it.

        Returns:
            None where there is no such run.

        Raises:
            StoreError: A handle, or what has come for the run, cannot be read; names it. The
                run was not taken.
        """

    def renew(self, runtime: str, owner: str, lease_ms: int) -> None:
        """Let every lease of `owner` run for another `lease_ms` from now."""

    def owned(self, runtime: str, owner: str) -> Mapping[str, bool]:
        """Return the runs that are `owner`'s, each with whether something has come for it."""

    def release(self, runtime: str, lease: Lease, *, on_purpose: bool) -> None:
        """Give a lease back, also where something has come for the run; a void one is not.

        Args:
            runtime: Whose.
            lease: Which.
            on_purpose: Whether a turn under way, which stays so, is as often recovered as it
                was before the run was taken over. See `abandon`.
        """

    def abandon(self, runtime: str, owner: str) -> None:
        """Give back every lease of `owner`; turns under way stay so, for whoever comes.

        They were left on purpose: that somebody goes on with them is no recovery.
        """

    def abandoned(self, runtime: str) -> tuple[str, ...]:
        """Return the runs that nobody is at and that have something to do, oldest first.

        Those with a turn under way, and those that an answer or a signal has come for.
        """

    # -- changing it ------------------------------------------------------------------------

    def write(self, runtime: str, changes: Sequence[RunChange]) -> tuple[str, ...]:
        """Write all of `changes`, or nothing.

        Returns:
            The runs that were to be released and are not, because something has come for them.

        Raises:
            LeaseLost: A lease is void; names the runs.
            RequestConflict: A new request has an id that is in use, or is a login for which
                another one is open, which the error names; or a call is to wait for a request
                that is gone or unknown.
            StoreError: The store does not work, or a handle is of another run.
        """

    def claim(self, runtime: str, claims: Sequence[Claim]) -> bool:
        """Record the answers if every one of their requests is open; say whether they are.

        Of two answers to one request neither is recorded. A note that a request had is gone.
        """

    def send(self, runtime: str, run_id: str, signal: JsonValue) -> None:
        """Put a signal in a run's letter box; one for an unknown run is dropped."""

    def mail(self, runtime: str, run_id: str) -> Mail:
        """Return what has come for a run."""

    def announced(self, runtime: str, request_ids: Sequence[str]) -> None:
        """Note that the host was told of these requests."""

    # -- reading ----------------------------------------------------------------------------

    def load(self, runtime: str, run_id: str) -> tuple[StoredHandle, ...]:
        """Return the handles of a run that are not closed, parents before children.

        Raises:
            StoreError: One of its records cannot be read; names the handle.
        """

    def load_handle(
        self, runtime: str, handle_id: str, parts: Collection[Part]
    ) -> StoredHandle | None:
        """Return one handle, also a closed one, as it is at one moment; None for an unknown id.

        Args:
            runtime: Whose.
            handle_id: Which.
            parts: What is wanted of it besides its head; the others are empty.

        Raises:
            StoreError: One of those cannot be read; names the handle.
        """

    def handle(self, runtime: str, handle_id: str) -> HandleRecord | None:
        """Return one handle, also a closed one; None for an unknown id."""

    def handles(
        self,
        runtime: str,
        *,
        under: str | None = None,
        limit: int | None = None,
    ) -> Iterator[HandleRecord]:
        """Yield the handles that are not closed, run by run, parents before children.

        Args:
            runtime: Whose.
            under: Only this handle and those below it.
            limit: At most so many runs.
        """

    def calls(self, runtime: str, run_id: str) -> Mapping[str, Mapping[int, JsonValue]]:
        """Return the unfinished calls of a run, by handle id and position."""

    def request(self, runtime: str, request_id: str) -> RequestRecord | None:
        """Return one request; None for an unknown id."""

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
        """Yield requests in the order in which they opened.

        Args:
            runtime: Whose.
            state: Only those in this state.
            kind: Only those of this kind.
            under: Only those that this handle, or one below it, has waited for.
            login: Only those that are a login to this.
            due: Only those that expire at this time or before.
            is_announced: Only those that the host was told of, or was not.
            limit: At most so many.
        """

    def next_expiry(self, runtime: str) -> datetime | None:
        """Return when the first open request expires; None where none does."""

    # -- grants, and keeping house ----------------------------------------------------------

    def put_grant(self, runtime: str, grant_id: str, grant: JsonValue) -> None:
        """Keep a grant."""

    def remove_grant(self, runtime: str, grant_id: str) -> bool:
        """Forget a grant; say whether there was one."""

    def grants(self, runtime: str) -> Mapping[str, JsonValue]:
        """Return the grants by id, oldest first."""

    def prune(self, runtime: str, before: datetime, *, keep_suspended: bool) -> int:
        """Delete what was changed last before that time and is at rest.

        That is: whole runs, unless a lease of theirs lasts, or a turn is under way in them, or
        something has come for them, or, with `keep_suspended`, one of their requests is open.
        And closed handles of the runs that stay, other than a run's first, unless a turn is
        under way in them. A request goes with the last handle that has waited for it.

        Returns:
            How many handles were deleted.
        """

    def close(self) -> None:
        """Close connections. Idempotent; a later call opens new ones."""
