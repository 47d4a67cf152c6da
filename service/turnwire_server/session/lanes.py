"""Lanes: FIFO within, side by side across, with the public limits."""

from __future__ import annotations

import re
from collections import deque

from turnwire.v1 import error_pb2
from turnwire_server.session.errors import Rejection
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.turns import Turn

__all__ = ["Lanes", "check_lane_name"]

_LANE_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,256}", re.ASCII)


def check_lane_name(name: str) -> Rejection | None:
    """Check a `stream_id` as a client gave it."""
    if _LANE_NAME.fullmatch(name):
        return None
    return Rejection(
        error_pb2.ERROR_REASON_INVALID_STREAM_ID,
        "stream_id must be a non-empty string of at most 256 characters: letters, digits, "
        "underscores, hyphens and periods only.",
        param="stream_id",
    )


class Lanes:
    """The queues of one session and who runs now."""

    __slots__ = ("_queued_bytes", "_queues", "_running", "_settings", "queued")

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._queues: dict[str | None, deque[Turn]] = {None: deque()}
        self._running: dict[str | None, Turn] = {}
        self.queued = 0
        """How many turns wait."""
        self._queued_bytes = 0

    @property
    def running(self) -> list[Turn]:
        """Turns in flight."""
        return list(self._running.values())

    @property
    def in_flight(self) -> int:
        """How many turns are in flight."""
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._running and not self.queued

    def admit(self, name: str | None) -> Rejection | None:
        """Open the lane `name` if it is new; None is the default lane and always open.

        The name must have passed `check_lane_name`.
        """
        if name in self._queues:
            return None
        limit = self._settings.max_named_lanes
        if len(self._queues) > limit:
            return Rejection(
                error_pb2.ERROR_REASON_WEBSOCKET_STREAM_LIMIT_REACHED,
                f"This connection has used its limit of {limit} stream_ids. Reuse one of them or "
                "open a new connection.",
                param="stream_id",
            )
        self._queues[name] = deque()
        return None

    def enqueue(self, turn: Turn) -> Rejection | None:
        """Put a turn at the end of its lane, which must have been admitted."""
        settings = self._settings
        if (
            self.queued >= settings.max_queued
            or self._queued_bytes + turn.size > settings.max_queued_bytes
        ) and not self._could_start(turn):
            return Rejection(
                error_pb2.ERROR_REASON_RATE_LIMIT_EXCEEDED,
                f"Too many creates wait on this connection (limits: {settings.max_queued} creates, "
                f"{settings.max_queued_bytes} bytes). Wait for a response to end.",
            )
        self._queues[turn.lane].append(turn)
        self.queued += 1
        self._queued_bytes += turn.size
        return None

    def enqueue_first(self, turn: Turn) -> None:
        """Put a turn in front of its lane, whatever waits there; no bound holds it."""
        self._queues[turn.lane].appendleft(turn)
        self.queued += 1
        self._queued_bytes += turn.size

    def _could_start(self, turn: Turn) -> bool:
        """Whether `turn` would not wait at all, so that the bounds on waiting do not hold it."""
        return (
            not turn.waits_for_parent
            and turn.lane not in self._running
            and not self._queues[turn.lane]
            and len(self._running) < self._settings.max_in_flight
        )

    def pop_ready(self) -> Turn | None:
        """Take the next turn that may start now, None when there is none."""
        if len(self._running) >= self._settings.max_in_flight:
            return None
        ready: Turn | None = None
        for lane, queue in self._queues.items():
            if not queue or lane in self._running:
                continue
            head = queue[0]
            if head.waits_for_parent:
                continue
            if ready is None or head.number < ready.number:
                ready = head
        if ready is None:
            return None
        self.withdraw(ready)
        self._running[ready.lane] = ready
        return ready

    def run_if_idle(self, turn: Turn) -> bool:
        """Let a turn run at once if nothing runs and nothing waits; return whether it does."""
        if not self.is_idle:
            return False
        self._running[turn.lane] = turn
        return True

    def withdraw(self, turn: Turn) -> None:
        """Take a waiting turn out of its lane."""
        self._queues[turn.lane].remove(turn)
        self.queued -= 1
        self._queued_bytes -= turn.size

    def release(self, turn: Turn) -> None:
        """Note that a running turn is over."""
        del self._running[turn.lane]

    def running_on(self, lane: str | None) -> Turn | None:
        """Return the turn that runs on `lane`."""
        return self._running.get(lane)

    def waiting(self) -> list[Turn]:
        """Return the turns that wait, in order of receipt."""
        return sorted(
            (turn for queue in self._queues.values() for turn in queue),
            key=lambda turn: turn.number,
        )
