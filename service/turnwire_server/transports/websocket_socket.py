"""The two ends of one WebSocket: aiohttp's, with closes that are heard, and the way out.

What leaves is framed here (RFC 6455, 5.2; a server does not mask), so that a batch of events is
one write; with compression the frames are aiohttp's.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.abc import AbstractStreamWriter

from turnwire_server.session.events import Outgoing
from turnwire_server.transports.encoding import JsonEncoder

__all__ = ["FAULTS", "Close", "Socket", "TextSink"]

_LENGTH_16 = struct.Struct(">BBH")
_LENGTH_64 = struct.Struct(">BBQ")
_FINAL_TEXT = 0x81

Close = tuple[int, bytes]
"""Close code and reason."""

FAULTS = {
    WSCloseCode.PROTOCOL_ERROR: b"protocol error",
    WSCloseCode.INVALID_TEXT: b"not UTF-8",
    WSCloseCode.MESSAGE_TOO_BIG: b"message over %(limit)d bytes",
}
"""What a client can do wrong below the level of events, and the reason that it is given."""


_UNANNOUNCED = frozenset(
    {
        WSCloseCode.GOING_AWAY,
        WSCloseCode.ABNORMAL_CLOSURE,
        WSCloseCode.INTERNAL_ERROR,
        WSCloseCode.SERVICE_RESTART,
    }
)
"""Close codes of clients that did not mean to end their session; others do."""


class Socket(web.WebSocketResponse):
    """Leaves it to `fail` to close after a fault.

    aiohttp closes at once and without a reason when it finds a fault, and while the rest of an
    oversize message is still on its way that resets the connection before the client has read
    the close frame.
    """

    client_code: int | None = None
    """The code of the client's close frame, 0 for a frame without one; None before it."""

    @property
    def was_lost(self) -> bool:
        """Whether a client that is gone did not mean to end its session."""
        return self.client_code is None or self.client_code in _UNANNOUNCED

    async def close(
        self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True
    ) -> bool:
        """Close with a handshake, unless a fault was found."""
        if code in FAULTS:
            return False
        return await super().close(code=code, message=message, drain=drain)

    def forget_fault(self) -> None:
        """Let go of the frames in which aiohttp noticed that the client was gone: they hold this.

        Until the next full collection that would keep the connection.
        """
        error = self.exception()
        if error is not None:
            error.__traceback__ = error.__context__ = None

    async def fail(self, transport: asyncio.Transport, close: Close, *, linger_s: float) -> None:
        """Close for the client's fault, and read on until it has seen it.

        Cancelled (by aiohttp, when the client hangs up) or after `linger_s`, it is over.
        """
        code, reason = close
        try:
            await self.send_frame(code.to_bytes(2, "big") + reason, WSMsgType.CLOSE)
            if transport.can_write_eof():
                transport.write_eof()
            await asyncio.sleep(linger_s)
        except ConnectionError:
            pass
        finally:
            transport.abort()


class TextSink:
    """Writes events to one socket, a batch in one write."""

    __slots__ = ("_drain", "_encoder", "_is_compressed", "_socket", "_transport")

    def __init__(
        self, socket: Socket, transport: asyncio.Transport, writer: AbstractStreamWriter
    ) -> None:
        self._encoder = JsonEncoder()
        self._socket = socket
        self._transport = transport
        self._drain = writer.drain
        self._is_compressed = bool(socket.compress)

    def encode(self, event: Outgoing) -> bytes:
        """Return the event as a text frame; as its payload when frames are compressed."""
        payload = self._encoder.encode(event)
        if self._is_compressed:
            return payload
        size = len(payload)
        if size < 126:
            return bytes((_FINAL_TEXT, size)) + payload
        if size < 65_536:
            return _LENGTH_16.pack(_FINAL_TEXT, 126, size) + payload
        return _LENGTH_64.pack(_FINAL_TEXT, 127, size) + payload

    def write_now(self, batch: Sequence[bytes]) -> bool:
        """Write the frames if the system has taken all that was written before."""
        if self._is_compressed or self._socket.closed or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size():
            return False
        self._transport.write(batch[0] if len(batch) == 1 else b"".join(batch))
        return True

    async def write(self, batch: Sequence[bytes]) -> None:
        """Write the frames.

        Raises:
            ConnectionError: The socket is closed or closing.
        """
        if self._socket.closed or self._transport.is_closing():
            raise ConnectionResetError("the socket is closed")
        if self._is_compressed:
            for payload in batch:
                await self._socket.send_frame(payload, WSMsgType.TEXT)
        else:
            frames = b"".join(batch)
            del batch  # a slow reader's wait in one copy, not in two
            self._transport.write(frames)
            del frames
        await self._drain()

    def heartbeat(self) -> bytes | None:
        """Return None: pings are the transport's, keepalive events the session's."""
        return None
