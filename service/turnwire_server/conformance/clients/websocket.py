"""The WebSocket client."""

from __future__ import annotations

import json
from typing import Final

import aiohttp

from turnwire_server.conformance.checks import Json, Transport
from turnwire_server.conformance.clients.persistent import PersistentConnection
from turnwire_server.conformance.findings import Findings
from turnwire_server.conformance.stream import StreamJudge

__all__ = ["WebSocketConnection"]

_PROBE: Final = b"turnwire-conformance"


class WebSocketConnection(PersistentConnection):
    """One socket."""

    transport: Transport = "websocket"

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse[bool],
        findings: Findings,
        judge: StreamJudge,
        timeout_s: float,
    ) -> None:
        """Take over an open socket, opened without automatic pongs."""
        super().__init__(findings, judge, timeout_s)
        self._socket = socket
        self._pongs = 0

    @property
    def subprotocol(self) -> str | None:
        """The subprotocol that the server selected."""
        return self._socket.protocol

    async def send_text(self, text: str) -> None:
        """Send any text as one frame; only an error event can answer it."""
        self._judge.sent_garbage()
        await self._send(text)

    async def ping(self) -> None:
        """Ping, and wait for the pong; what else comes is kept.

        Raises:
            Lost: The connection is over.
        """
        before = self._pongs
        await self._socket.ping(_PROBE)
        while self._pongs == before:
            await self._take()

    async def _write(self, event: Json) -> None:
        await self._send(json.dumps(event))

    async def _send(self, text: str) -> None:
        try:
            await self._socket.send_str(text)
        except (ConnectionError, aiohttp.ClientError):
            raise self._lost(f"close code {self._socket.close_code}") from None

    async def _take(self) -> None:
        message = await self._socket.receive()
        match message.type:
            case aiohttp.WSMsgType.TEXT | aiohttp.WSMsgType.BINARY:
                is_text = message.type is aiohttp.WSMsgType.TEXT
                self._findings.require("frame.text", is_text, "a binary frame")
                self._event(message.data)
            case aiohttp.WSMsgType.PING:
                await self._socket.pong(message.data)
            case aiohttp.WSMsgType.PONG:
                self._pongs += 1
            case _:
                raise self._lost(f"close code {self._socket.close_code}")

    def _event(self, data: str | bytes) -> None:
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        right = isinstance(event, dict) and isinstance(event.get("type"), str)
        if self._findings.require("frame.json", right, "a frame that is no event", str(data)):
            self._put(event)

    async def _barrier(self) -> None:
        await self.ping()

    async def _leave(self) -> None:
        await self._socket.close()
