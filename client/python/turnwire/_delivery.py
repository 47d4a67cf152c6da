"""How a turn's create gets to the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnwire._create import Create
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCancel
from turnwire.v1.item_pb2 import Item

if TYPE_CHECKING:
    from turnwire._turn_state import TurnState

__all__ = ["Delivery", "cancel_event"]


@dataclass(slots=True)
class Delivery:
    """What becomes of a create until its turn is over, over one session after the other."""

    asked: ClientEvent | Create | None
    """The create as the user asked for it; None for a turn that follows a steered one."""
    is_exact: bool = False
    """Whether it may not begin again once any event was given out, even one without output."""
    is_sent: bool = False
    """Whether it was given to the session that there is, or to the one that was lost."""
    is_held: bool = False
    """Whether something must be found out before it may be sent."""
    is_tentative: bool = False
    """Whether it was sent without knowing that the server still has its parent."""
    needs_history: bool = False
    """Whether the server does not have its parent, so that it brings the whole conversation."""
    resends: int = 0
    """How often it was begun again."""
    former_ids: list[str] = field(default_factory=list)
    """Ids of its responses that were lost."""
    succeeds: str | None = None
    """Of a turn that follows a steered one by itself: that one's response."""
    steered: list[Item] = field(default_factory=list)
    """Of such a turn: its input."""
    tried_until: float | None = None
    """When nothing more is tried, on the loop's clock; of a wire without a connection."""

    @property
    def create(self) -> ClientEvent | None:
        """`asked` as a message."""
        asked = self.asked
        return asked.whole if isinstance(asked, Create) else asked

    @property
    def may_be_stored(self) -> bool:
        """Whether the server was to store the response."""
        event = self.create
        if event is None:
            return True  # As the turn before it, whose settings it has.
        create = event.response_create
        return create.store or not create.HasField("store")


def cancel_event(state: TurnState) -> ClientEvent:
    """Return what asks the server to end a turn."""
    if state.response_id is not None:
        cancel = ClientEvent(response_cancel=ResponseCancel(response_id=state.response_id))
    else:
        # Still queued, as far as one can know: the create is named by its own event_id.
        cancel = ClientEvent(event_id=state.event_id, response_cancel=ResponseCancel())
    if state.stream_id is not None:
        cancel.stream_id = state.stream_id
    return cancel
