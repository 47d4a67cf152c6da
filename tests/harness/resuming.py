"""What tests of resumed sessions do: start one, know what was seen, lose it, take it up again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.peers import Peer
from harness.reading import arm_of, public
from turnwire.v1.server_event_pb2 import ServerEvent, TurnwireSessionStarted

__all__ = ["Ticket", "anonymous", "resume_event", "start_session"]


@dataclass(slots=True)
class Ticket:
    """What a client keeps of its session."""

    session_id: str
    token: str
    seen: dict[str | None, tuple[str, int]] = field(default_factory=dict)
    """Lane -> response and number of the newest event."""

    def see(self, events: Iterable[ServerEvent]) -> None:
        """Note events that were received."""
        for event in events:
            arm = arm_of(event)
            if not event.HasField("sequence_number"):
                continue
            lane = event.stream_id if event.HasField("stream_id") else None
            if arm == "response_created":
                self.seen[lane] = (event.response_created.response.id, 0)
            elif lane in self.seen:
                response_id, number = self.seen[lane]
                self.seen[lane] = (response_id, max(number, event.sequence_number))


async def start_session(peer: Peer) -> Ticket:
    """Start a session that may be resumed."""
    await peer.send({"type": "turnwire.session.start", "resume": True})
    started = (await peer.until("turnwire_session_started")).turnwire_session_started
    return ticket_of(started)


def ticket_of(started: TurnwireSessionStarted) -> Ticket:
    """Return the ticket of an answer to a start."""
    assert started.resume_token and started.resume_grace_s > 0
    return Ticket(started.session_id, started.resume_token)


def resume_event(ticket: Ticket, **changes: Any) -> dict[str, Any]:
    """Return the event that takes the session up."""
    last_seen = [
        {
            **({} if lane is None else {"stream_id": lane}),
            "response_id": response_id,
            "sequence_number": number,
        }
        for lane, (response_id, number) in ticket.seen.items()
    ]
    return {
        "type": "turnwire.session.resume",
        "session_id": ticket.session_id,
        "token": ticket.token,
        "last_seen": last_seen,
        **changes,
    }


def anonymous(events: Iterable[ServerEvent]) -> list[Any]:
    """Return events as JSON in which every id is replaced by the order of its first occurrence."""
    names: dict[str, str] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, str) and value.startswith(("resp_", "msg_", "rs_", "fc_", "call_")):
            return names.setdefault(value, f"id{len(names)}")
        if isinstance(value, int) and value > 1_000_000_000:
            return "time"
        return value

    return [plain(public(event)) for event in events]
