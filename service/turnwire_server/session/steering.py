"""Steering: user messages for a response that runs, and the answers to `response.inject`.

A steer that was accepted is applied once. The response that it steers ends at its next item
boundary, or by itself; then

- a successor starts with the steers as its input, before anything that waits on the lane;
- or, when the response waits for tool outputs, the steers wait for the create that brings them
  (same parent, same lane) and are put before its input; on a rollout, for its append.

A steer that cannot be applied any more is answered by `response.steer.failed`. An `error` event
would be wrong: clients take it for the end of the turn that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwire.v1 import client_event_pb2, error_pb2, item_pb2, server_event_pb2
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import EMPTY
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.item_rules import ItemRules
from turnwire_server.session.recent_ids import RecentIds
from turnwire_server.session.required_input import required_input
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.turns import Turn

__all__ = ["Steer", "Steering", "inject_failed", "refusal_events", "steer_malformed"]

_MAX_ENDED = 1024
"""Newest responses of a session that are known to be over."""

ServerEvent = server_event_pb2.ServerEvent


@dataclass(frozen=True, slots=True, eq=False)
class Steer:
    """User messages for a response."""

    id: str
    target_id: str
    """The response that it steers."""
    lane: str | None
    items: tuple[item_pb2.Item, ...]
    """Its messages, checked, each with an id."""
    input: client_event_pb2.Input
    """The same as the client sent it, for the answer to one that failed."""
    received_at: float
    """Seconds on the driver's monotonic clock."""

    def failed(self, rejection: Rejection) -> ServerEvent:
        """Return the answer to a steer that will not be applied."""
        return _failed(rejection, self.target_id, self.input, lane=self.lane, steer_id=self.id)


@dataclass(slots=True, eq=False)
class _Waiting:
    """Steers of a response that is over and waits for tool outputs."""

    target_id: str
    steers: tuple[Steer, ...]
    required: Sequence[server_event_pb2.RequiredInput] = ()
    is_announced: bool = False


class Steering:
    """The steers of one session, but for those that their turns hold."""

    __slots__ = ("_ended", "_max_pending", "_new_id", "_rules", "waiting")

    def __init__(
        self, settings: SessionSettings, rules: ItemRules, *, new_id: Callable[[str], str]
    ) -> None:
        """Make it for a session with these limits and these rules for messages."""
        self._max_pending = settings.max_pending_steers
        self._rules = rules
        self._new_id = new_id
        self.waiting: dict[str | None, _Waiting] = {}
        """Lane -> steers of its newest response; mostly empty, and then there is little to ask."""
        self._ended = RecentIds(_MAX_ENDED)

    def take(
        self, steer: client_event_pb2.ResponseSteer, target: Turn | None, *, now: float
    ) -> ServerEvent:
        """Take a steer of the running turn `target`, None when none runs, and return the answer."""
        accepted = self._accept(steer, target, now)
        if isinstance(accepted, Rejection):
            return _steer_failed(steer, target, accepted)
        shown = server_event_pb2.Steer(id=accepted.id, previous_response_id=accepted.target_id)
        return ServerEvent(
            sequence_number=0,
            stream_id=accepted.lane,
            response_steer_accepted=server_event_pb2.ResponseSteerAccepted(steer=shown),
        )

    def end(
        self, turn: Turn, outcome: CachedResponse | None, *, closed: Rejection | None
    ) -> tuple[Turn | None, list[ServerEvent]]:
        """Decide what becomes of the steers of a turn that ends.

        Args:
            turn: The turn.
            outcome: What continues it, None when it failed or was refused.
            closed: Why the session takes no more creates, None when it does.

        Returns:
            The turn to start next on its lane, if any, and what to answer.
        """
        if turn.has_begun:
            self._ended.add(turn.response_id)
        elif turn.applies and not turn.is_successor:
            self.put_back(turn)
        steers, turn.steers = turn.steers, ()
        if not steers:
            return None, []
        if outcome is None:
            rejection = _not_created("The response failed: nothing can follow it.")
            return None, _all_failed(steers, rejection)
        if turn.is_cancelled:
            return None, _all_failed(steers, _not_active("The response was cancelled."))
        if closed is not None:
            return None, _all_failed(steers, _not_created(closed.message))
        if outcome.conversation.open_calls:
            output = map(item_pb2.Item.FromString, outcome.conversation.own_items)
            required = required_input(output)
            self.waiting[turn.lane] = _Waiting(turn.response_id, steers, required)
            return None, []
        return self._successor(turn, outcome, steers), []

    def start(self, turn: Turn) -> list[ServerEvent]:
        """Let a turn that starts take the steers that wait for it; return what to answer.

        Steers that wait on its lane for another create will not be applied: their response is no
        longer the lane's newest.
        """
        waiting = self.waiting.pop(turn.lane, None)
        if waiting is None:
            return []
        if waiting.target_id == turn.previous_response_id:
            turn.applies = waiting.steers
            return []
        rejection = _not_active("The lane went on without the outputs that it waited for.")
        return _all_failed(waiting.steers, rejection)

    def put_back(self, turn: Turn) -> None:
        """Take back the steers of a create that never began: they wait for the next one."""
        (target_id,) = {steer.target_id for steer in turn.applies}
        self.waiting[turn.lane] = _Waiting(target_id, turn.applies, is_announced=True)
        turn.applies = ()

    def announce(self) -> list[ServerEvent]:
        """Return `response.steer.pending` for steers that wait and were not announced."""
        events = []
        for lane, waiting in self.waiting.items():
            if waiting.is_announced:
                continue
            waiting.is_announced = True
            events += [_pending(steer, lane, waiting.required) for steer in waiting.steers]
        return events

    def drop_all(self, rejection: Rejection | None) -> list[ServerEvent]:
        """Forget what waits for creates, which will not come; return what to answer.

        Args:
            rejection: Why; None when there is nobody to answer.
        """
        waiting, self.waiting = self.waiting, {}
        if rejection is None:
            return []
        reason = _not_created(rejection.message)
        return [steer.failed(reason) for one in waiting.values() for steer in one.steers]

    # Private.

    def _accept(
        self, steer: client_event_pb2.ResponseSteer, target: Turn | None, now: float
    ) -> Steer | Rejection:
        if target is None or not target.has_begun:
            return self._unknown(steer)
        if not target.takes_steers:
            return _refused(
                error_pb2.ERROR_REASON_STEERING_NOT_SUPPORTED, "This response cannot be steered."
            )
        if target.is_cancelled:
            return _not_active("The response is being cancelled.")
        if target.pending_steers >= self._max_pending:
            return _refused(
                error_pb2.ERROR_REASON_TOO_MANY_PENDING_STEERS,
                f"{self._max_pending} steers wait for this response already.",
            )
        items = self._messages(steer)
        if isinstance(items, Rejection):
            return items
        steer_id = self._new_id("steer_")
        accepted = Steer(steer_id, target.response_id, target.lane, items, steer.input, now)
        target.steers += (accepted,)
        return accepted

    def _unknown(self, steer: client_event_pb2.ResponseSteer) -> Rejection:
        shown = quoted(steer.previous_response_id)
        if steer.previous_response_id in self._ended:
            return _refused(
                error_pb2.ERROR_REASON_RESPONSE_ALREADY_COMPLETED,
                f"The response {shown} is over. Continue it with a create.",
            )
        return _refused(
            error_pb2.ERROR_REASON_RESPONSE_NOT_FOUND,
            f"No response {shown} runs on this connection.",
        )

    def _messages(
        self, steer: client_event_pb2.ResponseSteer
    ) -> tuple[item_pb2.Item, ...] | Rejection:
        """Return the messages of a steer, which must be a text or user messages."""
        for index, item in enumerate(steer.input.items.items):
            if item.WhichOneof("item") != "message" or item.message.role != "user":
                return _invalid_input("A steer takes user messages only.", f"input[{index}]")
        # A copy: the answer to a steer that fails shows its input as it was sent.
        copy = client_event_pb2.Input.FromString(steer.input.SerializeToString())
        checked = self._rules.check(copy, EMPTY, outputs_required=False)
        if isinstance(checked, Rejection):
            return _invalid_input(checked.message, checked.param)
        if not checked.items:
            return _invalid_input("A steer needs a text or at least one message.", "input")
        return checked.items

    def _successor(self, turn: Turn, parent: CachedResponse, steers: tuple[Steer, ...]) -> Turn:
        """Return the turn that follows `parent` with its settings and the steers as its input."""
        create = client_event_pb2.ResponseCreate()
        create.CopyFrom(turn.create)
        create.ClearField("input")
        create.previous_response_id = turn.response_id
        successor = Turn(
            create,
            lane=turn.lane,
            number=turn.number,  # older than all that waits on the lane
            response_id=self._new_id("resp_"),
            event_id=None,
            size=0,
            received_at=steers[0].received_at,
        )
        successor.parent = parent
        successor.applies = steers
        successor.is_successor = True
        return successor


def refusal_events(turn: Turn, rejection: Rejection) -> list[ServerEvent]:
    """Return the answer to a turn that was refused or withdrawn before it began.

    For a successor, of which the client knows nothing, its steers fail.
    """
    if not turn.is_successor:
        return [rejection.event(turn.lane, turn.event_id)]
    return _all_failed(turn.applies, _not_created(rejection.message))


def steer_malformed(
    steer: client_event_pb2.ResponseSteer, target: Turn | None, malformed: Rejection
) -> ServerEvent:
    """Return the answer to a steer of `target`, None when none runs, that is not well-formed."""
    return _steer_failed(steer, target, _invalid_input(malformed.message, malformed.param))


def _steer_failed(
    steer: client_event_pb2.ResponseSteer, target: Turn | None, rejection: Rejection
) -> ServerEvent:
    given = steer.input if steer.HasField("input") else None
    lane = target.lane if target is not None else None
    return _failed(rejection, steer.previous_response_id, given, lane=lane)


def inject_failed(
    inject: client_event_pb2.ResponseInject, lane: str | None, malformed: Rejection | None
) -> ServerEvent:
    """Return the answer to an inject.

    Args:
        inject: What could be read of it.
        lane: That of its response if it runs, else its own.
        malformed: Why it is not well-formed, None when it is.
    """
    if malformed is not None:
        rejection = _invalid_input(malformed.message, malformed.param)
    else:
        rejection = _not_injected()
    return ServerEvent(
        sequence_number=0,
        stream_id=lane,
        response_inject_failed=server_event_pb2.ResponseInjectFailed(
            response_id=inject.response_id,
            input=inject.input if inject.HasField("input") else None,
            error=rejection.body(),
        ),
    )


def _not_injected() -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_RESPONSE_NOT_FOUND,
        "No response here takes injected items.",
        param="response_id",
    )


def _all_failed(steers: Sequence[Steer], rejection: Rejection) -> list[ServerEvent]:
    return [steer.failed(rejection) for steer in steers]


def _pending(
    steer: Steer, lane: str | None, required: Sequence[server_event_pb2.RequiredInput]
) -> ServerEvent:
    return ServerEvent(
        sequence_number=0,
        stream_id=lane,
        response_steer_pending=server_event_pb2.ResponseSteerPending(
            steer=server_event_pb2.Steer(id=steer.id, previous_response_id=steer.target_id),
            reason="waiting_for_required_input",
            required_input=required,
        ),
    )


def _failed(
    rejection: Rejection,
    target_id: str,
    given: client_event_pb2.Input | None,
    *,
    lane: str | None,
    steer_id: str | None = None,
) -> ServerEvent:
    return ServerEvent(
        sequence_number=0,
        stream_id=lane,
        response_steer_failed=server_event_pb2.ResponseSteerFailed(
            steer=server_event_pb2.Steer(id=steer_id, previous_response_id=target_id, input=given),
            error=rejection.body(),
        ),
    )


def _refused(reason: error_pb2.ErrorReason.ValueType, message: str) -> Rejection:
    return Rejection(reason, message, param="previous_response_id")


def _not_active(message: str) -> Rejection:
    return _refused(error_pb2.ERROR_REASON_RESPONSE_NOT_ACTIVE, message)


def _not_created(message: str) -> Rejection:
    return _refused(error_pb2.ERROR_REASON_SUCCESSOR_CREATION_FAILED, message)


def _invalid_input(message: str, path: str | None) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_INVALID_INPUT, message, param=path)
