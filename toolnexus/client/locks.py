"""ConversationLocks: one run at a time in each conversation of a store, whoever asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from toolnexus import process
from toolnexus.cancel import CancelToken
from toolnexus.client.execution import conversations_in_use
from toolnexus.clock import Clock
from toolnexus.errors import ConfigError
from toolnexus.gate import FifoGate
from toolnexus.process import ProcessBound


class ConversationLocks(ProcessBound):
    """The conversations of one store, each open to one run at a time, in order of arrival.

    Thread-safe. Clients that share a store share its locks. Who would wait for the run that it
    is part of is refused: hooks and a stream's reader are known by their thread, tools, which
    run on any, by a context variable.
    """

    def __init__(self) -> None:
        self.after_fork()
        process.watch(self)

    def after_fork(self) -> None:
        """Forget who was in line in the parent process."""
        # Guards _gates: by id, the gate and how many are inside or wait; and _holders: by id,
        # the thread that the run's hooks and its stream's reader are on.
        self._lock = threading.RLock()
        self._gates: dict[str, tuple[FifoGate, int]] = {}
        self._holders: dict[str, threading.Thread] = {}

    def go_on_here(self, conversation_id: str) -> None:
        """Note that the run is at work on this thread: a stream may be handed to another."""
        self._holders[conversation_id] = threading.current_thread()

    def key(self, conversation_id: str) -> object:
        """Return what tells this conversation from all others of the process."""
        return (id(self), conversation_id)

    @contextmanager
    def hold(self, conversation_id: str, cancel: CancelToken, clock: Clock) -> Iterator[None]:
        """Wait until no other run is at the conversation, and keep others out.

        Raises:
            ConfigError: It is held by the run that the caller is part of.
            Cancelled: The token was thrown while waiting.
        """
        with self._lock:
            is_own = self._holders.get(conversation_id) is threading.current_thread()
        if is_own or self.key(conversation_id) in conversations_in_use.get():
            raise ConfigError(
                f"a tool, hook or stream of a run of conversation {conversation_id!r} cannot "
                "wait for that run to end: give it another id"
            )
        with self._lock:
            gate, count = self._gates.get(conversation_id) or (FifoGate(1, clock), 0)
            self._gates[conversation_id] = gate, count + 1
        try:
            with gate.hold(cancel):
                self.go_on_here(conversation_id)
                try:
                    yield
                finally:
                    with self._lock:
                        self._holders.pop(conversation_id, None)
        finally:
            with self._lock:
                found, count = self._gates.pop(conversation_id, (gate, 1))
                if count > 1:
                    self._gates[conversation_id] = found, count - 1


_by_store: Final[WeakKeyDictionary[object, ConversationLocks]] = WeakKeyDictionary()


class _Places(ProcessBound):
    """The locks of stores that keep their conversations at a place, by place."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[object, ConversationLocks] = WeakValueDictionary()
        self.after_fork()
        process.watch(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()  # guards _locks

    def of(self, place: object) -> ConversationLocks:
        with self._lock:
            found = self._locks.get(place)
            if found is None:
                found = self._locks[place] = ConversationLocks()
            return found


_places: Final = _Places()


def locks_of(store: object) -> ConversationLocks:
    """Return the locks of a store; of one that nothing can be remembered of, new ones.

    Stores of one `place`, such as two over one directory, have the same.
    """
    place = getattr(store, "place", None)
    if isinstance(place, str):
        return _places.of((type(store), place))
    try:
        # One step, so that two threads get the same.
        return _by_store.setdefault(store, ConversationLocks())
    except TypeError:  # without a hash or a weak reference
        return ConversationLocks()
