"""h2 for a server of many streams. It overrides what `fast_data` has tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event
from h2.exceptions import FrameTooLargeError
from hyperframe.frame import Frame, GoAwayFrame

from turnwire_server.transports.grpclib.fast_inbound import FRAME_HEAD, take_plain

if TYPE_CHECKING:
    from h2._typing import Buffer

__all__ = ["LeanH2"]


class LeanH2(H2Connection):
    """h2, with a cheap count of streams, and without the end at a peer's polite GOAWAY."""

    _sweep_at = 64

    @property
    def open_inbound_streams(self) -> int:
        """0: the limit is kept by `Processor`. Closed streams are forgotten now and then.

        h2 goes through all streams for each new one.
        """
        if len(self.streams) >= self._sweep_at:
            super().open_inbound_streams  # noqa: B018 - the look is what forgets them
            self._sweep_at = 2 * len(self.streams) + 64
        return 0

    def receive_data(self, data: Buffer) -> list[Event]:
        """Process what arrived: plain frames at its beginning in the short way, the rest in h2."""
        packet = data if isinstance(data, bytes) else bytes(data)
        events, taken = take_plain(self, packet)
        if taken == len(packet):
            return events
        return events + self._receive_rest(packet[taken:])

    def _receive_rest(self, data: bytes) -> list[Event]:
        """Process what arrived; end the connection at a frame that is announced too large.

        h2 would wait for all of it: up to 16 MiB.
        """
        events = super().receive_data(data)
        waiting = self.incoming_buffer._data
        if len(waiting) >= FRAME_HEAD.size:
            length = int.from_bytes(waiting[:3])
            if length > self.max_inbound_frame_size:
                self.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
                raise FrameTooLargeError(f"a frame of {length} bytes")
        return events

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """Go on with the streams that are open, as RFC 9113 (6.8) wants it."""
        if frame.error_code != ErrorCodes.NO_ERROR:
            return super()._receive_goaway_frame(frame)
        event = ConnectionTerminated()
        event.error_code = ErrorCodes.NO_ERROR
        event.last_stream_id = frame.last_stream_id
        return [], [event]
