"""Logins: an inline interpreter is asked once for what several agents need at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import attrs

from toolnexus.cancel import CancelToken
from toolnexus.clock import Clock, Signal
from toolnexus.forms import login_key
from toolnexus.suspension import Answer, Request

_asking: Final[ContextVar[frozenset[str]]] = ContextVar("toolnexus_logins", default=frozenset())
"""Logins that this thread, or what it works for, is asking for; see `login_key`."""


@attrs.define
class _Login:
    """One question that is being asked now."""

    is_over: Signal = attrs.field(factory=Signal)
    answer: Answer | None = None


class Logins:
    """Who is asked for which resource right now. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.after_fork()

    def after_fork(self) -> None:
        """Forget what threads of the parent process ask."""
        # A leaf: nothing else is taken under it, and no foreign code runs.
        self._lock = threading.Lock()
        self._going: dict[str, _Login] = {}

    def ask(
        self,
        request: Request,
        wait_for: Callable[[Request], Answer | None],
        cancel: CancelToken,
    ) -> Answer | None:
        """Ask, or wait for what another thread is asking, and take its answer for this one."""
        login = login_key(request)
        if login is None or login in _asking.get():
            return wait_for(request)
        mine = _Login()
        with self._lock:
            going = self._going.setdefault(login, mine)
        if going is mine:
            return self._ask_first(request, login, mine, wait_for)
        forget = cancel.on_cancel(going.is_over.wake, is_urgent=True)
        try:
            going.is_over.wait_for(lambda: going.is_over.is_set() or cancel.is_cancelled)
        finally:
            forget()
        if not isinstance(going.answer, Answer):
            return None
        return attrs.evolve(going.answer, id=request.id)

    def _ask_first(
        self,
        request: Request,
        login: str,
        mine: _Login,
        wait_for: Callable[[Request], Answer | None],
    ) -> Answer | None:
        token = _asking.set(_asking.get() | {login})
        try:
            answer = wait_for(request)
            if isinstance(answer, Answer) and answer.id == request.id:
                mine.answer = answer
            return answer
        finally:
            _asking.reset(token)
            with self._lock:
                if self._going.get(login) is mine:
                    del self._going[login]
            mine.is_over.set()
