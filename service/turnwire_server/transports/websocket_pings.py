"""Pings a WebSocket client that says nothing."""

from __future__ import annotations

import asyncio

from aiohttp import web

__all__ = ["Pings"]


class Pings:
    """One timer per connection that looks now and then: nothing is set up for a message.

    A timeout around each read costs a turn more than reading does.
    """

    __slots__ = ("_heard_at", "_interval_s", "_loop", "_ping", "_socket", "_timer", "_transport")

    def __init__(
        self, socket: web.WebSocketResponse, transport: asyncio.Transport, interval_s: float
    ) -> None:
        """Begin; call it inside the running loop, and `stop` in the end.

        Args:
            socket: The client's socket.
            transport: Its transport.
            interval_s: Ping after so long without a frame.
        """
        self._socket = socket
        self._transport = transport
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._ping: asyncio.Task[None] | None = None
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(interval_s, self._look)

    def heard(self) -> None:
        """Note a frame of the client."""
        self._heard_at = self._loop.time()

    def stop(self) -> None:
        """Ping no more."""
        self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    def _look(self) -> None:
        silent_s = self._loop.time() - self._heard_at
        if silent_s < self._interval_s:
            self._timer = self._loop.call_later(self._interval_s - silent_s, self._look)
            return
        self._timer = self._loop.call_later(self._interval_s, self._look)
        # What waits to be written is a probe itself, and so is a ping that waits.
        if self._transport.get_write_buffer_size() == 0 and self._ping is None:
            self._ping = self._loop.create_task(self._probe())

    async def _probe(self) -> None:
        try:
            await self._socket.ping()
        except ConnectionError:
            pass  # The reader sees the end.
        finally:
            self._ping = None
