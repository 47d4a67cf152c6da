"""Sessions that rest: what continues them is compressed until their client comes back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Protocol

from turnwire_server.ports.clock import Clock
from turnwire_server.session.session import Session

__all__ = ["REST_S", "RestingSessions"]

REST_S: Final = 5.0
"""Seconds after the end of its last turn from which on a session rests."""
_DONE: Final = object()


class _Host(Protocol):
    @property
    def session(self) -> Session: ...


class RestingSessions:
    """Knows which sessions have had no turn for a while."""

    def __init__(self, clock: Clock) -> None:
        """Know none."""
        self._clock = clock
        self._ended: OrderedDict[_Host, float] = OrderedDict()
        """When the newest turn of a session ended, the longest ago first."""
        self._begun: tuple[_Host, Iterator[None]] | None = None
        """The session that is being compressed, and the steps that are left."""

    def note(self, host: _Host) -> None:
        """Note that a turn of a session is over now."""
        self._ended[host] = self._clock.monotonic()
        self._ended.move_to_end(host)

    def forget(self, host: _Host) -> None:
        """Note that a session is over."""
        self._ended.pop(host, None)
        if self._begun is not None and self._begun[0] is host:
            self._begun = None

    def rest_one(self) -> bool:
        """Compress a part of what the next session holds that rests; return whether there was one.

        A session that is running again is left alone: it is noted anew.
        """
        if self._begun is None:
            if not self._ended:
                return False
            host, ended = next(iter(self._ended.items()))
            if self._clock.monotonic() - ended < REST_S:
                return False
            del self._ended[host]
            self._begun = host, host.session.rest()
        host, steps = self._begun
        if not host.session.is_idle or next(steps, _DONE) is _DONE:
            self._begun = None
        return True
