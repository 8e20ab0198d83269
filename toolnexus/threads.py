"""Threads of the library's own, and the host's hook around what is done on them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

WrapJob: TypeAlias = Callable[[Callable[[], None]], object]
"""Is given a job, which it calls once, before it returns, with what the job needs around it."""


class OwnThread(threading.Thread):
    """A daemon thread that the library starts; `wrap_job` goes around each job on it."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str,
        wrap_job: WrapJob | None = None,
        args: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)
        self.wrap_job = wrap_job


def wrapped(work: Callable[[], T]) -> T:
    """Do `work`, on a thread of the library's own within the hook that this was given.

    Called in the context variables of the work, so that the hook may set them. A hook that
    fails is logged, and work that it did not begin is done without it: no run is lost.

    Raises:
        BaseException: Whatever `work` raised. The hook does not see it.
    """
    thread = threading.current_thread()
    if not isinstance(thread, OwnThread) or thread.wrap_job is None:
        return work()
    done: list[T] = []
    raised: list[BaseException] = []

    def job() -> None:
        if done or raised:
            raise RuntimeError("a job is done once")
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below, behind the hook
            raised.append(error)

    try:
        thread.wrap_job(job)
    except BaseException:
        logger.exception("wrap_job failed")
    if not done and not raised:
        logger.error("wrap_job did not call its job, which is done without it")
        job()
    if raised:
        raise raised[0]
    return done[0]
