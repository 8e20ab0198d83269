"""Conversation stores: the transcript of each conversation, by id."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from toolnexus import codec
from toolnexus.cancel import CancelToken
from toolnexus.clock import Clock
from toolnexus.errors import ConfigError
from toolnexus.messages import Message
from toolnexus.stores import files
from toolnexus.stores.journal import (
    Journal,
    header_id,
    own_copy,
    read_journal,
    shared_length,
)

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.02
"""How often a process that waits for another one's conversation looks again."""

_ENDING: Final = ".jsonl"
_LOCK_ENDING: Final = ".lock"


@runtime_checkable
class ConversationStore(Protocol):
    """Keeps whole transcripts by conversation id. Any object with these two methods is one."""

    def get(self, conversation_id: str) -> list[Message]:
        """Return a copy of the transcript; [] for an id that is not known."""

    def save(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """Keep a copy of `messages` as the whole transcript."""


@runtime_checkable
class LockingConversationStore(ConversationStore, Protocol):
    """A store that processes share."""

    def hold_conversation(
        self, conversation_id: str, cancel: CancelToken, clock: Clock
    ) -> AbstractContextManager[None]:
        """Keep other processes out, from before `get` until after `save`.

        Raises:
            Cancelled: On entering, `cancel` was thrown while another process was in.
        """


def lock_of(
    store: ConversationStore, conversation_id: str, cancel: CancelToken, clock: Clock
) -> AbstractContextManager[None]:
    """Return the store's lock for a conversation; one that excludes nobody where it has none.

    Raises:
        Cancelled: On entering, `cancel` was thrown while another process held the lock.
    """
    if not isinstance(store, LockingConversationStore):
        return nullcontext()
    return store.hold_conversation(conversation_id, cancel, clock)


class MemoryConversationStore:
    """Keeps transcripts for as long as the process lives. Thread-safe.

    `save` compares what it has with what it is given and copies only the rest: a message dict
    may have been changed by its owner, so the same object proves nothing.
    """

    def __init__(self) -> None:
        # Without a lock, so that a fork finds none held: a transcript in here is never
        # changed, only replaced, in one step.
        self._transcripts: dict[str, tuple[Message, ...]] = {}

    def get(self, conversation_id: str) -> list[Message]:
        """Return a copy of the transcript; [] for an id that is not known."""
        kept = self._transcripts.get(checked_id(conversation_id), ())
        return [codec.copy(message) for message in kept]

    def save(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """Keep a copy of `messages` as the whole transcript.

        Raises:
            StoreError: A message is not JSON; the transcript is as it was.
        """
        given = list(messages)
        before = self._transcripts.get(checked_id(conversation_id), ())
        shared = shared_length(before, given)
        added = [
            own_copy(given[index], conversation_id, index)
            for index in range(shared, len(given))
        ]
        self._transcripts[conversation_id] = (*before[:shared], *added)

    def delete(self, conversation_id: str) -> bool:
        """Forget a conversation; False where there was none."""
        return self._transcripts.pop(checked_id(conversation_id), None) is not None

    def ids(self) -> list[str]:
        """Return the ids of all conversations that were saved, sorted."""
        return sorted(self._transcripts)


class FileConversationStore:
    """Keeps each conversation as a file of JSON lines, for threads and processes alike.

    `save` adds to the file, in one write, what differs from the transcript in it. A process
    that dies in the midst of that leaves the transcript as it was before; the next save cuts
    the rest of the write off. Nothing is held between two calls, not even an open file, so a
    store may be used after a fork and by any number of threads.

    On Windows, where files have no such locks, `lock` excludes nobody and saves of one id from
    two processes at once can damage its file: keep each conversation to one process there.
    """

    def __init__(self, directory: str | os.PathLike[str], *, fsync: bool = True) -> None:
        """Keep conversations in `directory`, which is made if need be.

        Args:
            directory: One on a local disk: locks of network file systems are less sure.
            fsync: Whether `save` returns only when the transcript would outlast a power cut.
                A transcript outlasts the end of the process in either case.

        Raises:
            StoreError: The directory cannot be made.
        """
        self._directory = files.make_directory(directory)
        self.place: Final = os.path.realpath(self._directory)
        self._fsync = fsync
        if not files.HAS_LOCKS:
            logger.warning("no file locks here: keep each conversation to one process")

    def __repr__(self) -> str:
        return f"FileConversationStore({str(self._directory)!r})"

    def get(self, conversation_id: str) -> list[Message]:
        """Return the transcript as it was saved last; [] for an id that is not known.

        Raises:
            StoreError: The file cannot be read, is damaged, or of a newer schema.
        """
        path = self._path(conversation_id, _ENDING)
        with files.store_errors(path, "read"):
            data = files.read_shared(path)
        return [] if data is None else read_journal(data, path, conversation_id).messages

    def save(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """Make `messages` the whole transcript.

        Raises:
            StoreError: A message is not JSON, or the file cannot be written, is damaged, or of
                a newer schema. The transcript is as it was.
        """
        given = list(messages)
        path = self._path(conversation_id, _ENDING)
        with files.store_errors(path, "write"), self._writing(path) as descriptor:
            data = files.content(descriptor)
            journal = read_journal(data, path, conversation_id)
            entry = journal.entry(given)
            if entry:
                self._add(descriptor, path, journal, len(data), entry)
            elif self._fsync:
                # Whoever wrote it may have died, or cared less.
                os.fsync(descriptor)

    @contextmanager
    def hold_conversation(
        self, conversation_id: str, cancel: CancelToken, clock: Clock
    ) -> Iterator[None]:
        """Keep other processes and threads from asking on a conversation meanwhile.

        Blocks until it is free, and looks for that every `POLL_SECONDS`; who waits longest
        does not necessarily come first. The end of a process frees what it held. Not
        re-entrant.

        Raises:
            Cancelled: `cancel` was thrown while this one waited.
            StoreError: The lock file cannot be made or locked.
        """
        path = self._path(conversation_id, _LOCK_ENDING)
        descriptor = _wait_for(path, cancel, clock)
        try:
            yield
        finally:
            files.give_back(descriptor)

    def delete(self, conversation_id: str) -> bool:
        """Delete the file of a conversation, whatever is in it; False where there was none.

        A save in progress elsewhere may make it anew.

        Raises:
            StoreError: It cannot be deleted.
        """
        path = self._path(conversation_id, _ENDING)
        self._delete_lock(self._path(conversation_id, _LOCK_ENDING))
        with files.store_errors(path, "delete"):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
            if self._fsync:
                files.sync_names(path.parent)
        return True

    def ids(self) -> list[str]:
        """Return the ids of all conversations that have a file, sorted.

        One whose very first save was cut short by a crash may be among them.

        Raises:
            StoreError: The directory cannot be read, or a file whose name does not tell its id.
        """
        with files.store_errors(self._directory, "read"):
            names = [name for name in os.listdir(self._directory) if name.endswith(_ENDING)]
            found = [self._id_of(name.removesuffix(_ENDING)) for name in names]
        return sorted(one for one in found if one is not None)

    def _path(self, conversation_id: str, ending: str) -> Path:
        return self._directory / (files.file_stem(checked_id(conversation_id)) + ending)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[files.Held]:
        """Hold the file of a conversation; where nothing comes of it, leave no empty one."""
        descriptor = files.take(path)
        try:
            yield descriptor
        except BaseException:
            with suppress(OSError):
                if os.fstat(descriptor).st_size == 0:
                    path.unlink()
            raise
        finally:
            files.give_back(descriptor)

    def _add(
        self, descriptor: int, path: Path, journal: Journal, size: int, entry: bytes
    ) -> None:
        if size > journal.end:
            cut = size - journal.end
            logger.warning("%s: %d bytes of a save that never ended are cut off", path, cut)
        if self._fsync and not journal.end:
            # Before the entry: after it, nothing may fail any more.
            files.sync_names(path.parent)
        files.append(descriptor, journal.end, entry, is_synced=self._fsync)

    def _delete_lock(self, path: Path) -> None:
        """Delete the lock file, unless somebody holds it."""
        if not path.exists():
            return
        with files.store_errors(path, "delete"):
            descriptor = files.try_take(path)
            if descriptor is None:
                return
            try:
                path.unlink()
            finally:
                files.give_back(descriptor)

    def _id_of(self, stem: str) -> str | None:
        """Return whose file it is; None for one that is no conversation's."""
        key = files.key_of(stem)
        if key is None and "~" in stem:
            with (
                suppress(FileNotFoundError),  # deleted meanwhile
                open(self._directory / (stem + _ENDING), "rb") as file,
            ):
                key = header_id(file.readline())
        return key if key and files.file_stem(key) == stem else None


def _wait_for(path: Path, cancel: CancelToken, clock: Clock) -> files.Held:
    while True:
        cancel.raise_if_cancelled()
        with files.store_errors(path, "lock"):
            descriptor = files.try_take(path)
        if descriptor is not None:
            return descriptor
        cancel.wait(clock, POLL_SECONDS)


def checked_id(conversation_id: object) -> str:
    """Return `conversation_id` if it is one.

    Raises:
        ConfigError: It is no text, or an empty one.
    """
    if isinstance(conversation_id, str) and conversation_id:
        return conversation_id
    raise ConfigError(
        f"a conversation's id is a text that is not empty, not {conversation_id!r}"
    )
