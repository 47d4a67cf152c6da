from __future__ import annotations

import pytest

from turnwire_server.session.lifecycle import (
    RESPONSE_TABLE,
    TURN_TABLE,
    ResponseState,
    ResponseTrigger,
    TurnState,
    TurnTrigger,
    next_state,
)

# Written out once more, so that a change of a table has to be meant.
TURN_MOVES = {
    (TurnState.QUEUED, TurnTrigger.START): TurnState.RUNNING,
    (TurnState.QUEUED, TurnTrigger.CANCEL): TurnState.CANCELLED,
    (TurnState.RUNNING, TurnTrigger.PAUSE): TurnState.PAUSED,
    (TurnState.PAUSED, TurnTrigger.RESUME): TurnState.RUNNING,
    (TurnState.PAUSED, TurnTrigger.CANCEL): TurnState.CANCELLING,
    (TurnState.PAUSED, TurnTrigger.END): TurnState.ENDED,
    (TurnState.RUNNING, TurnTrigger.CANCEL): TurnState.CANCELLING,
    (TurnState.RUNNING, TurnTrigger.END): TurnState.ENDED,
    (TurnState.CANCELLING, TurnTrigger.CANCEL): TurnState.CANCELLING,
    (TurnState.CANCELLING, TurnTrigger.END): TurnState.ENDED,
}
RESPONSE_MOVES = {
    (ResponseState.NEW, ResponseTrigger.BEGIN): ResponseState.OPEN,
    (ResponseState.OPEN, ResponseTrigger.OUTPUT): ResponseState.OPEN,
    (ResponseState.OPEN, ResponseTrigger.ASIDE): ResponseState.OPEN,
    (ResponseState.OPEN, ResponseTrigger.PAUSE): ResponseState.PAUSED,
    (ResponseState.PAUSED, ResponseTrigger.ASIDE): ResponseState.PAUSED,
    (ResponseState.PAUSED, ResponseTrigger.RESUME): ResponseState.OPEN,
    (ResponseState.PAUSED, ResponseTrigger.END): ResponseState.ENDED,
    (ResponseState.OPEN, ResponseTrigger.END): ResponseState.ENDED,
}
SWEEP = [
    *((TURN_TABLE, TURN_MOVES, state, trigger) for state in TurnState for trigger in TurnTrigger),
    *(
        (RESPONSE_TABLE, RESPONSE_MOVES, state, trigger)
        for state in ResponseState
        for trigger in ResponseTrigger
    ),
]


@pytest.mark.parametrize(
    ("table", "moves", "state", "trigger"),
    SWEEP,
    ids=[f"{state.name}-{trigger.name}" for _, _, state, trigger in SWEEP],
)
def test_every_state_takes_the_triggers_of_its_table_and_no_other(table, moves, state, trigger):
    allowed = moves.get((state, trigger))
    if allowed is None:
        with pytest.raises(RuntimeError, match=f"cannot handle {trigger} when {state}"):
            next_state(table, state, trigger)
    else:
        assert next_state(table, state, trigger) is allowed


@pytest.mark.parametrize(
    ("table", "states"), [(TURN_TABLE, TurnState), (RESPONSE_TABLE, ResponseState)]
)
def test_every_state_has_a_row(table, states):
    assert set(table) == set(states)


def test_what_is_over_stays_over():
    for state in (TurnState.ENDED, TurnState.CANCELLED):
        assert not TURN_TABLE[state]
    assert not RESPONSE_TABLE[ResponseState.ENDED]
