"""A run whose host keeps every step, as JSON, outside a runtime."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs

from toolnexus import CallState, Checkpoint, ClientOptions, StoreError, Tool, ToolResult
from toolnexus.client.in_process import API_KEY, BASE_URL
from toolnexus.client.loop import Kit, Outcome, drive, run_loop
from toolnexus.client.options import WaitFor
from toolnexus.client.recovering import Verdict, recover_calls
from toolnexus.client.running import Runner, _BareHost
from toolnexus.client.turn import Turn
from toolnexus.clock import Clock, RealClock

Delegate = Callable[[Any, str], ToolResult]


class KeepingHost(_BareHost):
    """Keeps the turn at each step; a step whose name is in `fails` cannot be kept.

    Attributes:
        steps: `entering <n>`, `kept`, and what the test's own tools add.
        stored: The turn as it was kept, step by step, as another process would read it.
    """

    def __init__(
        self, wait_for: WaitFor | None = None, delegate: Delegate | None = None
    ) -> None:
        super().__init__(wait_for, streams=False)
        self.steps: list[str] = []
        self.stored: list[Checkpoint] = []
        self.fails: Callable[[str, Turn], bool] = lambda step, turn: False
        self._delegate = delegate
        self._lock = threading.Lock()

    def entering(self, turn: Turn, index: int) -> None:
        self._keep(f"entering {index}", turn)

    def kept(self, turn: Turn, *, is_followed: bool = False) -> None:
        self._keep("kept", turn)

    def delegate_for(self, turn: Turn, index: int) -> Delegate | None:
        return self._delegate

    def _keep(self, step: str, turn: Turn) -> None:
        with self._lock:
            self.steps.append(step)
            if self.fails(step, turn):
                raise StoreError(f"no room for {step}")
            written = json.dumps(turn.stored().to_dict())
            self.stored.append(Checkpoint.from_dict(json.loads(written)))

    @property
    def calls(self) -> tuple[CallState, ...]:
        """The calls as they were kept last."""
        return self.stored[-1].calls


def asks_for(*calls: tuple[str, Mapping[str, Any]]) -> Callable[[Any], Mapping[str, Any]]:
    """Return a model that makes `calls` in one reply, and is content with what comes back."""
    asked = [{"name": name, "arguments": dict(args)} for name, args in calls]
    replies: Iterator[Mapping[str, Any]] = iter(({"tool_calls": asked}, {"text": "done"}))
    return lambda _body: next(replies)


@contextmanager
def kit_for(
    host: KeepingHost, model: Callable[[Any], Mapping[str, Any]], *tools: Tool, **options: Any
) -> Iterator[Kit]:
    """Give what a run with `host` works with."""
    given = {"base_url": BASE_URL, "api_key": API_KEY, "model": "m", "retries": 0, **options}
    runner = Runner(ClientOptions(generate=model, **given))
    try:
        kit = runner._kit({one.name: one for one in tools}, streams=False, conversation=None)
        yield attrs.evolve(kit, host=host)
    finally:
        runner.close()


def fresh() -> Turn:
    """Return the turn that a user's word begins."""
    return Turn([{"role": "user", "content": "go"}], 0)


def run(turn: Turn, kit: Kit) -> Outcome:
    """Go on with `turn` until it is done or parked."""
    return drive(run_loop(turn, kit))


def recovered(
    saved: Checkpoint, *tools: Tool, clock: Clock | None = None
) -> tuple[Turn, dict[int, Verdict]]:
    """Return the turn as another process takes it over, and what was decided there."""
    turn = Turn.restore(saved, keeps_in_flight=True)
    decided = recover_calls(
        turn,
        {one.name: one for one in tools},
        surface=lambda request: attrs.evolve(
            request, data={**(request.data or {}), "path": ["root", "a.1"]}
        ),
        clock=clock or RealClock(),
    )
    return turn, decided


def lost_in(
    host: KeepingHost, model: Callable[[Any], Mapping[str, Any]], *tools: Tool, **options: Any
) -> Checkpoint:
    """Return what is stored of a run when a call has last entered its tool.

    That is all there is where the process ends then; here it goes on.
    """
    with kit_for(host, model, *tools, **options) as kit:
        run(fresh(), kit)
    entered = [place for place, step in enumerate(host.steps) if step.startswith("entering")]
    return host.stored[entered[-1]]
