"""The state table, row by row: every state with every cause."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import toolnexus
from toolnexus.errors import IllegalTransitionError
from toolnexus.runtime.state import EDGES, Cause, State, next_state

# Written out here a second time on purpose: read from EDGES it would agree with any table.
LEGAL = {
    (State.IDLE, Cause.WAKE): State.RUNNING,
    (State.IDLE, Cause.REPLAY): State.RUNNING,
    (State.IDLE, Cause.CLOSE): State.CLOSED,
    (State.RUNNING, Cause.FINISH): State.IDLE,
    (State.RUNNING, Cause.INTERRUPT): State.IDLE,
    (State.RUNNING, Cause.SUSPEND): State.SUSPENDED,
    (State.RUNNING, Cause.CLOSE): State.CLOSED,
    (State.SUSPENDED, Cause.ANSWER_INLINE): State.RUNNING,
    (State.SUSPENDED, Cause.ACCEPT): State.IDLE,
    (State.SUSPENDED, Cause.WITHDRAW): State.IDLE,
    (State.SUSPENDED, Cause.CLOSE): State.CLOSED,
}


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("state", State)
def test_a_cause_moves_a_state_by_the_table_or_is_refused(state: State, cause: Cause) -> None:
    after = LEGAL.get((state, cause))
    if after is not None:
        assert next_state("root/a.1", state, cause) is after
        return
    with pytest.raises(IllegalTransitionError) as refused:
        next_state("root/a.1", state, cause)
    assert str(refused.value) == f"root/a.1: no move for {cause.value} from {state.value}"


def test_the_table_has_no_row_more() -> None:
    assert dict(EDGES) == LEGAL


def test_closed_is_the_end() -> None:
    assert not [cause for (state, cause) in EDGES if state is State.CLOSED]


def test_a_state_is_changed_in_one_place_only() -> None:
    assert toolnexus.__file__ is not None
    writers = []
    for path in sorted(Path(toolnexus.__file__).parent.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            targets = [
                target
                for node in ast.walk(function)
                if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            ]
            writers += [
                f"{path.name}:{function.name}"
                for target in targets
                if isinstance(target, ast.Attribute) and target.attr == "_state"
            ]
    # The last two do not move a handle: they read where it is.
    read = ["shells.py:_know", "stored.py:_refill"]
    assert writers == ["core.py:move_locked", "handle.py:__init__", *read]
