"""Keeping: which runs this process has, and that whatever it decides of them is written.

A run is taken from the store when a verb or an answer needs it, and given back when nothing of
it moves any more; between the two this process alone may change it. Every decision is written
before anything follows from it (`Effects.perform`), and so is each step of a turn. What could
not be written is as if this process had died: the run is dropped here, whatever it was at, and
goes on from the store.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from toolnexus.clock import RealClock
from toolnexus.errors import StoreError
from toolnexus.runtime.admission import Admission
from toolnexus.runtime.archive import Archive
from toolnexus.runtime.book import RequestBook
from toolnexus.runtime.core import Core
from toolnexus.runtime.effects import Effects, lost_result
from toolnexus.runtime.elsewhere import Elsewhere
from toolnexus.runtime.handle import Handle
from toolnexus.runtime.loading import Loading
from toolnexus.runtime.losing import Losing
from toolnexus.runtime.owing import Owing
from toolnexus.runtime.questions import Questions
from toolnexus.runtime.shells import Shells
from toolnexus.runtime.tree import RuntimeClosed, Step, Stop, Tree, run_id_of
from toolnexus.runtime.writing import Writing, steps_locked
from toolnexus.stores.base import RunStore
from toolnexus.stores.records import Lease, Mail

if TYPE_CHECKING:
    from toolnexus.runtime.begun import Begun

GoOn: TypeAlias = Callable[[Effects], object]

logger = logging.getLogger(__name__)

_DETACH_SECONDS: Final = 1.0
"""How long the end of a runtime waits for writes under way, all together."""

# A store takes the time of the machine.
_real: Final = RealClock()


class Keeper:
    """The runs that are this process's. Thread-safe."""

    def __init__(
        self, core: Core, admission: Admission, store: RunStore, *, is_owned: bool
    ) -> None:
        options = core.options
        self._core = core
        self._admission = admission
        self.store: Final = store
        self._is_owned = is_owned
        self.name: Final = options.name
        self.archive: Final = Archive(store, options.name, options.clock)
        self.shells: Final = Shells(core, store, options.name)
        self.questions: Final = Questions(core, store, options.name)
        self.elsewhere: Final = Elsewhere(core, store, self.archive, self.shells)
        self._writing = Writing(core, store)
        self._loading = Loading(core, store, self.shells)
        # Returns what goes on with turns under way, to be called with the lock held.
        self.go_on: Callable[..., GoOn] = _not_wired
        # See to what has come for a run, and leave what that starts to the workers.
        self.take_letters: Callable[[Tree, Mail | None], list[Begun]] = _not_wired
        self.hand_over: Callable[[Iterable[Begun]], object] = _not_wired
        # Is told that there are leases to be renewed.
        self.on_open: Callable[[], object] = _not_wired
        self._start()

    def after_fork(self) -> None:
        """Start with nothing in a forked child: what the parent process has stays its own."""
        trees = list(self.trees.values())
        self._start()
        core = self._core
        with core.lock:
            for handle in (one for tree in trees for one in tree.handles.values()):
                handle._waiters = handle._watchers = None
                handle._stale_runs = 0
                core.detach_locked(handle)
            core.book = RequestBook()
            core.root._queue = None
            core.root._running_children = 0

    def _start(self) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(6)}"
        # -- guarded by the runtime's lock ------------------------------------------------
        self.trees: dict[str, Tree] = {}
        self.is_detached = False
        self.owing = Owing(self._core, self.store, self.trees)
        self.losing = Losing(self._core, self._admission, self.shells, self.owing, self.trees)

    # -- taking a run, and giving it back -----------------------------------------------------

    @contextmanager
    def holding(self, handle: Handle, *, to_stop: str | None = None) -> Iterator[None]:
        """Have the run of `handle` in memory, and let nobody else have it.

        What has come for it goes before what the caller is up to. Where that is to stop it,
        nothing goes on before: no turn that was left under way, and none by an answer.

        Args:
            handle: Whose.
            to_stop: `INTERRUPT` or `CLOSE`; None where nothing is to be stopped.

        Raises:
            HeldElsewhere: Somebody else has it.
            ConfigError: It is gone, or an agent of it is not known here.
            StoreError: The store does not work.
        """
        if handle.parent is None:
            yield
            return
        run_id, stopping = run_id_of(handle.id), Stop(to_stop, handle.id) if to_stop else None
        tree, mail = self.pin_unread(run_id, takes_busy=bool(to_stop), stopping=stopping)
        begun: list[Begun] = []
        try:
            if mail is not None and (mail.answers or mail.signals):
                begun += self.take_letters(tree, mail)
            if not to_stop:
                self.hand_over(begun)
            if handle._tree is not tree:
                # It is closed, or was pruned: it is not among what was read.
                self.shells.let_end(handle)
            yield
        finally:
            try:
                if to_stop:
                    self.hand_over(begun)  # what was not stopped
            finally:
                self.unpin(tree)

    def pin_unread(
        self, run_id: str, *, takes_busy: bool = False, stopping: Stop | None = None
    ) -> tuple[Tree, Mail | None]:
        """Have a run until `unpin`; also return what had come for it, if it was taken now.

        The caller sees to that before what it is up to. See `holding`.
        """
        while True:
            with self._core.lock:
                if self.is_detached:
                    raise RuntimeClosed(run_id)
                tree = self.trees.get(run_id)
                if tree is not None and tree.is_open:
                    tree.pins += 1
                    return tree, None
            if tree is not None:
                with tree.writing:  # another thread takes it, or gives it back
                    continue
            fresh = Tree(run_id)
            mail = self._opened(fresh, takes_busy=takes_busy, stopping=stopping)
            if mail is not None:
                return fresh, mail

    def _opened(self, tree: Tree, *, takes_busy: bool, stopping: Stop | None) -> Mail | None:
        """Take a run and let it go on; None where another thread is at it by now."""
        effects = self._core.effects()
        try:
            # By a statement of the language, as in `_write_held`. Nobody else knows of it.
            with tree.writing:
                with self._core.lock:
                    if self.trees.setdefault(tree.run_id, tree) is not tree:
                        return None
                mail = self._open(tree, effects, takes_busy=takes_busy, stopping=stopping)
            self.on_open()
            effects.perform()
        except BaseException as error:
            if tree.is_open:
                self.unpin(tree)
            elif tree.pins and tree.fault is None:  # some of its turns may go on already
                self.losing.give_up([tree], error)
            else:
                with self._core.lock:
                    self.losing.forget_locked(tree)
            if self.owing:
                self.on_open()
            raise
        return mail

    def unpin(self, tree: Tree) -> None:
        """Let go of a run; if that was the last to hold it, it is given back."""
        with self._core.lock:
            tree.pins -= 1
            is_over = tree.is_open and tree.rests_locked()
        if is_over:
            self.flush([tree])

    def _open(
        self, tree: Tree, effects: Effects, *, takes_busy: bool, stopping: Stop | None
    ) -> Mail:
        lease: Lease | None = None
        try:
            taken = self._loading.take(tree.run_id, self.owner, takes_busy=takes_busy)
            lease = taken.lease
            stored = self._loading.with_closed_children(taken.handles)
            with self._core.lock:
                halted = self._loading.fill_locked(tree, stored, taken.requests)
                # A turn may park before it is given its answers: those are no new requests.
                tree.requests |= {wait.request_id for wait, _ in taken.mail.answers}
                tree.lease = lease
            # Whatever the lease says: it may have been taken here before, and lost.
            tree.was_busy = lease.was_busy or bool(halted)
            go_on = self.go_on(tree, halted, taken.mail, stopping)
            with self._core.lock:
                if self.is_detached:
                    raise RuntimeClosed(tree.run_id)  # noqa: TRY301 - cleaned up below
                # In one step: nobody may meet the run before its turns go on.
                tree.pins, tree.is_open = 1, True
                go_on(effects)
        except BaseException as error:
            tree.is_open = False
            if lease is None:
                self.owing.doubt(error)
            elif not tree.pins:
                self.owing.give_back(lease)
            raise
        return taken.mail

    # -- writing ------------------------------------------------------------------------------

    def flush(self, trees: Iterable[Tree]) -> None:
        """Write what has changed of `trees`, all of it or nothing. Blocks.

        Raises:
            StoreError: It could not be written, or was lost before; the runs are not this
                process's any more.
        """
        ordered = sorted(trees, key=lambda one: one.run_id)
        fallout = self._core.effects(is_written=False)
        expected: list[Tree] = []
        try:
            expected = self._write_held(ordered, 0, fallout)
        finally:
            fallout.perform()
        for tree in expected:
            try:
                self.hand_over(self.take_letters(tree, None))
                self._let_go(tree)
            except Exception:  # what was decided is written; whoever beats looks again
                logger.exception("%s: what has come cannot be seen to now", tree.run_id)

    def _write_held(self, trees: list[Tree], count: int, fallout: Effects) -> list[Tree]:
        """Write `trees`, the first `count` of which are held for that."""
        if count == len(trees):
            return self._write(trees, fallout)
        # By a statement of the language: Ctrl-C cannot come in between and leave it held.
        with trees[count].writing:
            return self._write_held(trees, count + 1, fallout)

    def _let_go(self, tree: Tree) -> None:
        """Give back a run that stays for nothing but an answer which cannot be read here."""
        with tree.writing:
            with self._core.lock:
                if not (tree.spoilt and tree.is_open and tree.rests_locked()):
                    return
                if not tree.is_written_locked():
                    return  # another thread is about to write, and comes here again
                tree.is_open = False
            assert tree.lease is not None  # noqa: S101 - it was open
            try:
                self.owing.give_back(tree.lease)
            finally:
                with self._core.lock:
                    self.losing.forget_locked(tree)

    def _write(self, trees: list[Tree], fallout: Effects) -> list[Tree]:
        """Write; return the trees that stay because something has come for them."""
        core, steps = self._core, list[Step]()
        lost: StoreError | None = None
        try:
            with core.lock:
                lost = next((one.fault for one in trees if one.fault is not None), None)
                if lost is None:
                    steps += steps_locked(trees)
            if lost is not None:
                raise StoreError(str(lost)) from lost  # noqa: TRY301 - cleaned up below
            if not steps:
                return []
            kept = self._writing.write(steps)
            with core.lock:
                self._written_locked(steps, kept)
        except BaseException as error:
            # Also where Ctrl-C came before the write, or after it.
            with core.lock:
                halfway = [one for one in self.trees.values() if not one.is_open]
            hit = {*halfway, *(one.tree for one in steps)}
            dropped = [one for one in trees if lost is not None or one in hit]
            self.losing.drop(dropped, error, fallout)
            raise
        return [one.tree for one in steps if one.tree.run_id in kept]

    def _written_locked(self, steps: Iterable[Step], kept: Iterable[str]) -> None:
        for step in steps:
            if step.tree.fault is not None:
                continue  # another process took it over once this was written
            step.tree.written_locked(step)
            if step.change.releases and step.tree.run_id in kept:
                step.tree.is_open = True
            elif step.change.releases:
                self.losing.forget_locked(step.tree)

    def has_work(self) -> bool:
        """Whether there is a lease to be renewed, or somebody waits for another process."""
        return bool(self.trees or self.owing or self.elsewhere.is_watched)

    def open_trees(self) -> list[Tree]:
        """Return the runs that are this process's now."""
        return [one for one in list(self.trees.values()) if one.is_open]

    def require_kept(self, trees: Iterable[Tree]) -> None:
        """Raise a `StoreError` where a run was lost, and not because the runtime was closed."""
        lost = [one.fault for one in trees if one.fault is not None]
        if lost and not self.is_detached:
            raise StoreError(lost_result(lost[0]).text)

    # -- the end ------------------------------------------------------------------------------

    def detach(self) -> None:
        """Have nothing any more: turns under way stop here, and go on from the store."""
        fallout = self._core.effects(is_written=False)
        with self._core.lock:
            self.is_detached = True
            trees = list(self.trees.values())
        limit = _real.monotonic() + _DETACH_SECONDS
        for tree in trees:
            # Where a write hangs it is not waited for: it lands, or is as if it had not.
            is_mine = tree.writing.acquire(timeout=max(limit - _real.monotonic(), 0))
            with self._core.lock:
                if tree.is_open or tree.fault is None:
                    closed = StoreError("the runtime was closed")
                    self.losing.drop_locked(tree, closed, fallout, "interrupted")
            if is_mine:
                tree.writing.release()
        with self._core.lock:
            self.elsewhere.give_up_locked(fallout)
        # It would go on with runs that waited for a place; those are dropped like the others.
        with suppress(StoreError):
            fallout.perform()
        self.store.abandon(self.name, self.owner)

    def close(self) -> None:
        """Close the store, if it was opened here."""
        return self.store.close() if self._is_owned else None


def _not_wired(*args: object) -> Any:
    raise AssertionError(f"nobody sees to {args}")
