"""Rollouts: a response that pauses for tool outputs and goes on when they are appended.

A turn with `rollout: true` whose model called tools is PAUSED: `response.done` is sent, the turn
keeps its lane and counts as in flight. One append that passes these rules resumes it; any other
is one error, and the pause stands.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnwire.v1 import client_event_pb2, error_pb2, item_pb2, server_event_pb2
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.item_rules import ItemRules
from turnwire_server.session.lifecycle import TurnTrigger
from turnwire_server.session.steering import Steer
from turnwire_server.session.turns import Turn

__all__ = ["Appended", "take_append"]

_OUTPUTS = ("function_call_output", "custom_tool_call_output")


@dataclass(frozen=True, slots=True, eq=False)
class Appended:
    """Input that resumes a turn."""

    items: tuple[item_pb2.Item, ...]
    """Messages of steers, then the input; each with an id."""
    steers: tuple[Steer, ...] = ()
    """The steers among them."""
    stream_id: str | None = None
    """The lane that the append named."""
    event_id: str | None = None
    """The append's id."""

    def error(self, rejection: Rejection) -> server_event_pb2.ServerEvent:
        """Return the answer to an append that cannot be used after all."""
        return rejection.event(self.stream_id, self.event_id)


def take_append(
    append: client_event_pb2.ResponseAppend,
    turn: Turn | None,
    rules: ItemRules,
    stream_id: str | None,
    event_id: str | None,
) -> Rejection | None:
    """Resume a paused turn with the input of an append, put behind the turn's steers.

    Args:
        append: The append.
        turn: The turn in flight that it names, None when there is none.
        rules: The rules for its items.
        stream_id: The lane that it names, None when it names none.
        event_id: Its id.

    Returns:
        Why it is refused, and nothing changed; None when the turn goes on.
    """
    conversation = turn.paused_at if turn is not None and turn.is_paused else None
    if turn is None or conversation is None:
        return Rejection(
            error_pb2.ERROR_REASON_RESPONSE_NOT_FOUND,
            f"No paused response {quoted(append.response_id)} waits for input.",
            param="response_id",
        )
    if stream_id is not None and stream_id != turn.lane:
        return Rejection(
            error_pb2.ERROR_REASON_INVALID_VALUE,
            "The response is not on this lane.",
            param="stream_id",
        )
    for index, item in enumerate(append.input.items.items):
        arm = item.WhichOneof("item")
        if arm == "message" and item.message.role not in ("", "user"):
            return _unusable(f"input[{index}].role")
        if arm is not None and arm != "message" and arm not in _OUTPUTS:
            return _unusable(f"input[{index}].type")
    checked = rules.check(
        append.input if append.HasField("input") else None,
        conversation,
        outputs_required=True,
        before=[item for steer in turn.steers for item in steer.items],
    )
    if isinstance(checked, Rejection):
        return checked
    turn.move(TurnTrigger.RESUME)
    turn.appended = Appended(checked.items, turn.steers, stream_id, event_id)
    turn.steers = ()
    return None


def _unusable(path: str) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_INVALID_VALUE,
        "An append takes outputs of the calls that wait, and user messages.",
        param=path,
    )
