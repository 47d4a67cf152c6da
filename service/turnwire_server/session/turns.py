"""A turn: one create, from its receipt to its terminal event."""

from __future__ import annotations

from turnwire.v1 import client_event_pb2
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.errors import Rejection
from turnwire_server.session.lifecycle import TURN_TABLE, TurnState, TurnTrigger, next_state

__all__ = ["Turn"]


class Turn:
    """One create on its lane. Made by the session, run by the driver."""

    __slots__ = (
        "create",
        "event_id",
        "lane",
        "number",
        "parent",
        "parent_turn",
        "received_at",
        "refusal",
        "response_id",
        "size",
        "state",
    )

    def __init__(
        self,
        create: client_event_pb2.ResponseCreate,
        *,
        lane: str | None,
        number: int,
        response_id: str,
        event_id: str | None,
        size: int,
        received_at: float,
        refusal: Rejection | None = None,
    ) -> None:
        self.create = create
        self.lane = lane
        self.number = number
        """Order of receipt within the session."""
        self.response_id = response_id
        """The id that the response gets when the turn starts."""
        self.event_id = event_id
        self.size = size
        """Bytes of the create on the wire."""
        self.received_at = received_at
        """Seconds on the driver's monotonic clock."""
        self.refusal = refusal
        """Set when the create was refused at the edge: it waits only to be answered in order."""
        self.parent: CachedResponse | None = None
        """The pinned parent, if it was cached."""
        self.parent_turn: Turn | None = None
        """The parent while it still runs on this session."""
        self.state = TurnState.QUEUED

    @property
    def previous_response_id(self) -> str | None:
        """Id of the parent, None when there is none; an empty string counts as none."""
        return self.create.previous_response_id or None

    @property
    def waits_for_parent(self) -> bool:
        """Whether the parent still runs."""
        return self.parent_turn is not None

    @property
    def is_cancelled(self) -> bool:
        """Whether the client wants it ended."""
        return self.state in (TurnState.CANCELLING, TurnState.CANCELLED)

    @property
    def is_warm_up(self) -> bool:
        """Whether it prepares state and generates nothing."""
        create = self.create
        return (create.HasField("generate") and not create.generate) or (
            create.prompt_cache_options.prewarm
        )

    def move(self, trigger: TurnTrigger) -> None:
        """Move along `TURN_TABLE`."""
        self.state = next_state(TURN_TABLE, self.state, trigger)
