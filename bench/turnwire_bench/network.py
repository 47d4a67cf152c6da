"""What a network does to bytes, as far as the relay models it: delay, rate, connects.

Pure: times come in and go out as numbers, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["PROFILES", "Direction", "Passage", "Profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """A network between client and server."""

    name: str
    round_trip_s: float = 0.0
    bits_per_second: float = 0.0
    """Of each direction; 0: no limit."""

    @property
    def is_modelled(self) -> bool:
        """Whether a relay is needed for it."""
        return bool(self.round_trip_s or self.bits_per_second)

    def transmission_s(self, size: int) -> float:
        """Return how long `size` bytes take to be put on the wire."""
        return size * 8 / self.bits_per_second if self.bits_per_second else 0.0

    def turn_s(self, *, round_trips: int, bytes_up: int) -> float:
        """Return what a turn owes to the network alone.

        Args:
            round_trips: How often it crosses the network and back: 1 on an open connection, with
                TCP and TLS handshakes 3.
            bytes_up: What it sends. What comes back crosses while the engine works, but for the
                last event, which is too small to count.
        """
        return round_trips * self.round_trip_s + self.transmission_s(bytes_up)


PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile("loopback"),
        Profile("region", round_trip_s=0.002),
        Profile("internet", round_trip_s=0.030, bits_per_second=50e6),
    )
}


class Direction:
    """One direction of a link, shared by all its connections: their bytes wait for each other."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.free_at = 0.0
        """When the last byte that was taken so far is on the wire."""

    def taken(self, now: float, size: int) -> float:
        """Put bytes on the wire, behind what is there; return when the last of them is on it."""
        self.free_at = max(self.free_at, now) + self.profile.transmission_s(size)
        return self.free_at


class Passage:
    """One direction of one connection. Bytes leave in the order in which they came."""

    def __init__(self, direction: Direction, *, opened_at: float) -> None:
        """Open at `opened_at`.

        The kernel connects on loopback in no time, so the round trip that a TCP handshake takes
        is charged to the first bytes: they are not under way before it would be over.
        """
        self._direction = direction
        self._delay_s = direction.profile.round_trip_s / 2
        self._ready_at = opened_at + direction.profile.round_trip_s
        self._last = 0.0

    def arrives_at(self, now: float, size: int) -> float:
        """Return when bytes that came at `now` are on the other side."""
        under_way = max(self._direction.taken(now, size), self._ready_at)
        self._last = max(self._last, under_way + self._delay_s)
        return self._last
