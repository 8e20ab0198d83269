"""A store in whose process a test can choose the moment of death, and how its writes read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TextIO

from toolnexus.clock import RealClock
from toolnexus.stores import RunStore
from toolnexus.stores.records import HandleChange, RunChange

DIED = 70
"""The exit code of a process that its store has ended."""

# `renew` is left out: when it comes is a matter of time, and it changes nothing but that.
CHANGING = ("start_run", "take", "release", "abandon", "write", "claim", "send", "announced")
READING = (
    *("load", "load_handle", "handle", "handles", "calls", "request", "requests"),
    *("next_expiry", "mail", "owned", "abandoned", "grants"),
)
OTHERS = ("renew", "put_grant", "remove_grant", "prune", "close")


class MortalStore:
    """A store that ends the process before, or after, one of its changing calls."""

    def __init__(
        self,
        store: RunStore,
        dies_at: int | None = None,
        when: str = "before",
        log: TextIO | None = None,
        told: Callable[[str, tuple[Any, ...]], object] | None = None,
    ) -> None:
        """Wrap a store.

        Args:
            store: Where it is done.
            dies_at: At which changing call, counted from 1; None for never.
            when: `before` or `after`.
            log: Where each changing call is told, in a line.
            told: Called with each changing call that has been done: its name and arguments.
        """
        self.store = store
        self._dies_at, self._when = dies_at, when
        self._log, self._told = log, told
        self._lock = threading.Lock()
        self._count = 0

    def change(self, name: str, *args: Any, **more: Any) -> Any:
        with self._lock:  # one after the other, so that each has its number
            self._count += 1
            is_last = self._count == self._dies_at
            if self._log is not None:
                self._log.write(label_of(name, args) + "\n")
            if is_last and self._when == "before":
                os._exit(DIED)
            given = getattr(self.store, name)(*args, **more)
            if is_last:
                os._exit(DIED)
        if self._told is not None:
            self._told(name, args)
        return given


def _changing(name: str) -> Any:
    return lambda self, *args, **more: self.change(name, *args, **more)


def _forwarding(name: str) -> Any:
    return lambda self, *args, **more: getattr(self.store, name)(*args, **more)


def forward_all(store: type, names: Iterable[str] = CHANGING) -> None:
    """Give a class the methods of a store: those named go to its `change`."""
    for name in (*CHANGING, *READING, *OTHERS):
        setattr(store, name, _changing(name) if name in names else _forwarding(name))


forward_all(MortalStore)


class Later(RealClock):
    """The time some hours from now: for it every lease of an hour before has run out."""

    def __init__(self, hours: int) -> None:
        super().__init__()
        self._later = timedelta(hours=hours)

    def now(self) -> datetime:
        return super().now() + self._later


# -- how a change reads ------------------------------------------------------------------------


def label_of(name: str, args: tuple[Any, ...]) -> str:
    """Return what a changing call does, in one line that is the same in every run."""
    if name == "write":
        return " | ".join(map(_change, args[1]))
    return f"{name} {args[1]}" if name == "take" else name


def _change(change: RunChange) -> str:
    parts = [_handle(one) for one in change.handles]
    parts += ["asks"] * len(change.opened)
    parts += ["answer taken"] * len(change.done)
    parts += ["given back"] if change.releases else []
    return "; ".join(parts) or ("busy" if change.is_busy else "at rest")


def _handle(change: HandleChange) -> str:
    name = change.id.rpartition("/")[2]
    told = [*_messages(change.messages.values()), *_calls(change.calls)]
    if change.keep is not None:
        told.insert(0, f"keep {change.keep}")
    if change.posts:
        told.append("inbox")
    return f"{name} {change.state}" + (f": {', '.join(told)}" if told else "")


def _messages(messages: Iterable[Any]) -> list[str]:
    told = []
    for one in messages:
        if one["role"] == "tool":
            told.append(f"result {one['tool_call_id']}")
        elif one.get("tool_calls"):
            told.append(f"calls {'+'.join(call['id'] for call in one['tool_calls'])}")
        else:
            told.append(one["role"])
    return told


def _calls(calls: Mapping[int, Any]) -> list[str]:
    return [f"call {index} {_status(row)}" for index, row in sorted(calls.items())]


def _status(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "plain"
    if row["status"] == "open" and row.get("answer"):
        return "answered"
    return f"{row['status']}{' child' if row.get('child') else ''}"
