"""A turn: one create, from its receipt to its terminal event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwire.v1 import client_event_pb2, item_pb2
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.errors import Rejection
from turnwire_server.session.lifecycle import TURN_TABLE, TurnState, TurnTrigger, next_state

if TYPE_CHECKING:
    from turnwire_server.session.rollout import Appended
    from turnwire_server.session.steering import Steer

__all__ = ["Turn"]


class Turn:
    """One create on its lane. Made by the session, run by the driver."""

    __slots__ = (
        "appended",
        "applies",
        "create",
        "event_id",
        "has_begun",
        "is_successor",
        "lane",
        "number",
        "parent",
        "parent_turn",
        "paused_at",
        "received_at",
        "refusal",
        "response_id",
        "size",
        "state",
        "steers",
        "takes_steers",
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
        self.has_begun = False
        """Whether `response.created` was sent: from then on the client knows its id."""
        self.takes_steers = False
        """Whether it may be steered; set when it begins."""
        self.steers: tuple[Steer, ...] = ()
        """Steers that it was given and has not applied, oldest first."""
        self.applies: tuple[Steer, ...] = ()
        """Steers of its parent: their messages come before its own input."""
        self.is_successor = False
        """Whether no client asked for it: it follows a response that was steered."""
        self.paused_at: Conversation | None = None
        """Everything up to and with the calls that it waits for, while it is paused."""
        self.appended: Appended | None = None
        """The input that ended the pause, until the driver takes it."""

    @property
    def previous_response_id(self) -> str | None:
        """Id of the parent, None when there is none; an empty string counts as none."""
        create = self.create
        return create.previous_response_id if create.HasField("previous_response_id") else None

    @property
    def waits_for_parent(self) -> bool:
        """Whether the parent still runs."""
        return self.parent_turn is not None

    @property
    def is_cancelled(self) -> bool:
        """Whether the client wants it ended."""
        return self.state in (TurnState.CANCELLING, TurnState.CANCELLED)

    @property
    def is_paused(self) -> bool:
        """Whether it is a rollout that waits for input."""
        return self.state is TurnState.PAUSED

    @property
    def pending_steers(self) -> int:
        """Steers that wait for it; those too that an append may still give back."""
        return len(self.steers) + (len(self.appended.steers) if self.appended else 0)

    @property
    def steered_items(self) -> list[item_pb2.Item]:
        """The messages of the steers that it applies, in order."""
        return [item for steer in self.applies for item in steer.items] if self.applies else []

    @property
    def is_warm_up(self) -> bool:
        """Whether it prepares state and generates nothing."""
        create = self.create
        return (create.HasField("generate") and not create.generate) or (
            create.prompt_cache_options.prewarm
        )

    def begin(self, *, takes_steers: bool) -> None:
        """Note that `response.created` is sent."""
        self.has_begun = True
        self.takes_steers = takes_steers

    def move(self, trigger: TurnTrigger) -> None:
        """Move along `TURN_TABLE`."""
        self.state = next_state(TURN_TABLE, self.state, trigger)
