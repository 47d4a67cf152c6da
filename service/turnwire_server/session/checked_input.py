"""An input that was checked, and the short way to one: a message alone, as most turns bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from turnwire.v1 import client_event_pb2, error_pb2, item_pb2, response_pb2
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.errors import Rejection

__all__ = ["ROLES", "CheckedInput", "check_answered", "check_message_alone"]

ROLES = frozenset({"user", "assistant", "system", "developer"})
"""Roles of messages."""


@dataclass(slots=True)  # not frozen: made per turn
class CheckedInput:
    """The new items of a create, each with an id."""

    items: tuple[item_pb2.Item, ...]
    warnings: tuple[response_pb2.Warning, ...] = ()
    covered: int = 0
    """How many of `items` come before a compaction that stands in their place, and in that of
    the whole conversation before them; 0 when there is none."""
    is_covering: bool = False
    """Whether there is such a compaction: `items[covered]`."""
    wants_compaction: bool = False
    """Whether a `compaction_trigger` came last; it is not among `items`."""


def check_message_alone(
    given: client_event_pb2.Input | None,
    conversation: Conversation,
    new_id: Callable[[str], str],
    *,
    outputs_required: bool,
    before: Sequence[item_pb2.Item] = (),
) -> CheckedInput | Rejection | None:
    """Check an input that is one text or one message without parts, as those of most turns.

    Such a message keeps all rules but for the calls that wait for their outputs.

    Args:
        given: See `ItemRules.check`, as for the others.
        conversation: What comes before it.
        new_id: Returns a new id with the given prefix.
        outputs_required: Whether every open call must be answered.
        before: Messages to be put before it.

    Returns:
        None for any other input.
    """
    if given is None:
        return None
    if text := given.text:
        item = item_pb2.Item()
        message = item.message
        message.role = "user"
        message.content.parts.parts.add().input_text.text = text
    else:
        listed = given.items.items
        if len(listed) != 1:
            return None
        item = listed[0]
        message = item.message
        if not message.content.text or message.role not in ROLES:
            return None
    if outputs_required and conversation.open_calls:
        return check_answered(conversation.open_calls)
    if not message.id:
        message.id = new_id("msg_")
    return CheckedInput((*before, item))


def check_answered(open_calls: Mapping[str, str]) -> Rejection | None:
    """Check that no call waits for its output.

    Args:
        open_calls: `call_id` -> arm of the output that must answer it.
    """
    if not open_calls:
        return None
    call_id, output = next(iter(open_calls.items()))
    kind = output.removesuffix("_output").replace("_", " ")
    message = f"No tool output found for {kind} {call_id[:80]}."
    return Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, message, param="input")
