"""How much a peer may ask for that moves nothing: budgets for frames that are cheap to send."""

from __future__ import annotations

from typing import Final

__all__ = ["Abuse", "Budget"]

_BURST: Final = 1000
_PER_SECOND: Final = 33
"""What other HTTP/2 servers allow by default; clients that behave stay far below."""
_UPDATES_PER_FRAME: Final = 10
"""Window updates for each frame that we sent, beside the burst."""


class Budget:
    """So many at once, and so many per second after that."""

    __slots__ = ("_at", "_burst", "_left", "_per_second")

    def __init__(self, burst: int, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._at = 0.0

    def spend(self, now: float) -> bool:
        """Take one; return whether there was one left at `now` seconds."""
        earned = max(now - self._at, 0.0) * self._per_second
        self._left = min(self._left + earned, float(self._burst))
        self._at = now
        self._left -= 1.0
        return self._left >= 0.0


class Abuse:
    """Counts one connection's frames; each method returns whether it is still bearable."""

    __slots__ = (
        "_idle",
        "_max_strikes",
        "_min_ping_interval_s",
        "_pinged_after",
        "_pinged_at",
        "_resets",
        "_strikes",
        "_updates",
    )

    def __init__(self, *, min_ping_interval_s: float, max_ping_strikes: int) -> None:
        """Begin with full budgets.

        Args:
            min_ping_interval_s: Pings closer together are strikes, unless we sent something
                between them.
            max_ping_strikes: Strikes that are borne; 0 for any number.
        """
        self._min_ping_interval_s = min_ping_interval_s
        self._max_strikes = max_ping_strikes
        self._resets = Budget(_BURST, _PER_SECOND)
        self._idle = Budget(_BURST, _PER_SECOND)
        self._updates = 0
        self._strikes = 0
        self._pinged_at = float("-inf")
        self._pinged_after = -1

    def reset(self, now: float) -> bool:
        """Count a stream that the peer opened and gave up (CVE-2023-44487)."""
        return self._resets.spend(now)

    def idle_frame(self, now: float) -> bool:
        """Count a frame that changes nothing: SETTINGS, PRIORITY, empty DATA, unknown ones."""
        return self._idle.spend(now)

    def window_update(self, frames_sent: int) -> bool:
        """Count a WINDOW_UPDATE of a peer that we have sent so many frames."""
        self._updates += 1
        return self._updates <= _BURST + _UPDATES_PER_FRAME * frames_sent

    def ping(self, now: float, frames_sent: int) -> bool:
        """Count a PING of a peer that we have sent so many frames."""
        if frames_sent != self._pinged_after:  # It measures what it gets: not a strike.
            self._strikes = 0
        elif now - self._pinged_at < self._min_ping_interval_s:
            self._strikes += 1
        self._pinged_after = frames_sent
        self._pinged_at = now
        return self._max_strikes == 0 or self._strikes <= self._max_strikes
