"""Life-cycle tables: what may happen to a turn, an item and the event stream of a response.

Each table is data, `{state: {trigger: next state}}`; what is not in it is a fault of the
driver, never of a peer, and raises `RuntimeError`. The documentation draws these tables.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

__all__ = [
    "RESPONSE_TABLE",
    "TURN_TABLE",
    "ResponseState",
    "ResponseTrigger",
    "TurnState",
    "TurnTrigger",
    "next_state",
]


class _Key(enum.Enum):
    """Members that are looked up for every turn; they are singletons, so identity is their hash."""

    __hash__ = object.__hash__  # that of `Enum` is a call of Python


class TurnState(_Key):
    """Where a turn stands, from the receipt of its create to its terminal event."""

    QUEUED = enum.auto()
    RUNNING = enum.auto()
    PAUSED = enum.auto()
    """A rollout whose model called tools: it waits for their outputs, still in flight."""
    CANCELLING = enum.auto()
    CANCELLED = enum.auto()
    ENDED = enum.auto()


class TurnTrigger(_Key):
    """What moves a turn."""

    START = enum.auto()
    PAUSE = enum.auto()
    RESUME = enum.auto()
    CANCEL = enum.auto()
    END = enum.auto()


TURN_TABLE: Mapping[TurnState, Mapping[TurnTrigger, TurnState]] = {
    TurnState.QUEUED: {
        TurnTrigger.START: TurnState.RUNNING,
        TurnTrigger.CANCEL: TurnState.CANCELLED,
    },
    TurnState.RUNNING: {
        TurnTrigger.PAUSE: TurnState.PAUSED,
        TurnTrigger.CANCEL: TurnState.CANCELLING,
        TurnTrigger.END: TurnState.ENDED,
    },
    TurnState.PAUSED: {
        TurnTrigger.RESUME: TurnState.RUNNING,
        TurnTrigger.CANCEL: TurnState.CANCELLING,
        TurnTrigger.END: TurnState.ENDED,
    },
    TurnState.CANCELLING: {
        TurnTrigger.CANCEL: TurnState.CANCELLING,
        TurnTrigger.END: TurnState.ENDED,
    },
    TurnState.CANCELLED: {},
    TurnState.ENDED: {},
}


class ResponseState(_Key):
    """Where the event stream of a response stands."""

    NEW = enum.auto()
    OPEN = enum.auto()
    PAUSED = enum.auto()
    """It said `response.done`: the model says nothing until it is resumed."""
    ENDED = enum.auto()


class ResponseTrigger(_Key):
    """What moves the event stream of a response."""

    BEGIN = enum.auto()
    OUTPUT = enum.auto()
    ASIDE = enum.auto()
    """A sign of life."""
    PAUSE = enum.auto()
    RESUME = enum.auto()
    END = enum.auto()


RESPONSE_TABLE: Mapping[ResponseState, Mapping[ResponseTrigger, ResponseState]] = {
    ResponseState.NEW: {ResponseTrigger.BEGIN: ResponseState.OPEN},
    ResponseState.OPEN: {
        ResponseTrigger.OUTPUT: ResponseState.OPEN,
        ResponseTrigger.ASIDE: ResponseState.OPEN,
        ResponseTrigger.PAUSE: ResponseState.PAUSED,
        ResponseTrigger.END: ResponseState.ENDED,
    },
    ResponseState.PAUSED: {
        ResponseTrigger.ASIDE: ResponseState.PAUSED,
        ResponseTrigger.RESUME: ResponseState.OPEN,
        ResponseTrigger.END: ResponseState.ENDED,
    },
    ResponseState.ENDED: {},
}

_State = TypeVar("_State")
_Trigger = TypeVar("_Trigger")


def next_state(
    table: Mapping[_State, Mapping[_Trigger, _State]], state: _State, trigger: _Trigger
) -> _State:
    """Return the state after `trigger`.

    Raises:
        RuntimeError: the table does not allow it; the driver is at fault, nothing changed.
    """
    try:
        return table[state][trigger]
    except KeyError:
        raise RuntimeError(f"cannot handle {trigger} when {state}") from None
