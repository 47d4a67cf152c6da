"""Sessions over the lean clients: creates out, deltas and terminal events in."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from turnwire import _codec
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ServerFrame
from turnwire_bench.lean_call import LeanCall, LeanConnection
from turnwire_bench.lean_socket import LeanSocket

__all__ = [
    "LeanSession",
    "LeanWire",
    "Link",
    "close_all",
    "connect_lean",
    "create_of",
    "one_byte_tokens",
    "open_lean",
]

LeanWire = Literal["ws", "grpc"]
Link = LeanSocket | LeanCall

METHOD: Final = "/turnwire.v1.SessionService/Connect"
PATH: Final = "/v1/responses"
MOST_ONE_BYTE_TOKENS: Final = 400
"""Longest text of `one_byte_tokens`: a value of metadata has at most 512 characters."""

_HOST: Final = "127.0.0.1"
_CLOSE_S: Final = 10.0
_TERMINAL: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "error"}
)
_TERMINAL_ARMS: Final = frozenset(kind.replace(".", "_") for kind in _TERMINAL)


@dataclass(slots=True)
class Counts:
    """What came in so far."""

    events: int = 0
    messages: int = 0
    """Frames of gRPC, text messages of a WebSocket."""


class LeanSession:
    """One session. Events are told by calls, in order."""

    def __init__(
        self,
        wire: LeanWire,
        *,
        on_text: Callable[[str], None] | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        """Tell of what comes.

        Args:
            wire: Which client it is over.
            on_text: Called with the text of each delta.
            on_end: Called with the type of each terminal event.
        """
        self.counts = Counts()
        self.link: Link
        self._on_text = on_text
        self._on_end = on_end
        self.take: Callable[[bytes], None] = self._frame if wire == "grpc" else self._text
        """Takes one message as it came."""

    def send(self, message: bytes) -> None:
        """Send an event, as `create_of` makes it."""
        self.link.send(message)

    async def turn(self, message: bytes) -> str:
        """Send a create and wait for its terminal event's type; "" when the stream ended."""
        ended = asyncio.get_running_loop().create_future()
        before, self._on_end = self._on_end, ended.set_result
        try:
            self.send(message)
            await asyncio.wait((ended, self.link.closed), return_when=asyncio.FIRST_COMPLETED)
            return str(ended.result()) if ended.done() else ""
        finally:
            self._on_end = before

    def _frame(self, data: bytes) -> None:
        counts = self.counts
        counts.messages += 1
        for event in ServerFrame.FromString(data).events:
            counts.events += 1
            arm = event.WhichOneof("event")
            if arm == "response_output_text_delta":
                if self._on_text is not None:
                    self._on_text(event.response_output_text_delta.delta)
            elif arm in _TERMINAL_ARMS and self._on_end is not None:
                self._on_end(str(arm))

    def _text(self, data: bytes) -> None:
        self.counts.messages += 1
        self.counts.events += 1
        event = orjson.loads(data)
        kind = event["type"]
        if kind == "response.output_text.delta":
            if self._on_text is not None:
                self._on_text(event["delta"])
        elif kind in _TERMINAL and self._on_end is not None:
            self._on_end(kind.replace(".", "_"))


async def open_lean(
    wire: LeanWire,
    port: int,
    take: Callable[[bytes], None],
    *,
    path: str | None = None,
    window: int | None = None,
    receive_buffer: int | None = None,
) -> Link:
    """Connect, and wait until the server speaks.

    Args:
        wire: Which client.
        port: Of this machine.
        take: Called with each message.
        path: Of another service than sessions.
        window: Bytes that a gRPC server may send in all.
        receive_buffer: Size of the kernel's buffer, for readers that stop.

    Raises:
        OSError: There is no server, or it refused.
    """
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    link: Link
    protocol: LeanSocket | LeanConnection
    if wire == "ws":
        link = protocol = LeanSocket(port, path or PATH, take)
    else:
        protocol = LeanConnection(port, **({} if window is None else {"window": window}))
        link = protocol.call(path or METHOD, take)
    await _connect(port, protocol, connection)
    return link


async def connect_lean(port: int) -> LeanConnection:
    """Open a gRPC connection for calls that share it.

    Raises:
        OSError: There is no server, or it refused.
    """
    connection = LeanConnection(port)
    await _connect(port, connection, socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    return connection


async def _connect(
    port: int, protocol: LeanSocket | LeanConnection, connection: socket.socket
) -> None:
    """Connect a socket, and wait until the server speaks."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    try:
        await loop.sock_connect(connection, (_HOST, port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.create_connection(lambda: protocol, sock=connection)
    except BaseException:
        connection.close()
        raise
    await protocol.opened


def create_of(wire: LeanWire, text: str, script: str, **more: Any) -> bytes:
    """Return the bytes of a create with one user message.

    Args:
        wire: Which client sends it.
        text: The message.
        script: What tells the simulated engine what to say.
        more: Members of the create beside these.
    """
    event = {
        "type": "response.create",
        "model": "sim",
        "input": text,
        "store": False,
        "metadata": {"turnwire.sim": script},
        **more,
    }
    data = orjson.dumps(event)
    return data if wire == "ws" else _codec.loads(ClientEvent, data).SerializeToString()


def one_byte_tokens(count: int, rate: float) -> str:
    """Return the script of a text whose tokens are one byte each.

    However the server joins tokens that come together, the length of the text is their number.

    Args:
        count: How many, at most `MOST_ONE_BYTE_TOKENS`.
        rate: Tokens per second.
    """
    return json.dumps({"text": "x" * count, "split_characters": True, "tokens_per_second": rate})


async def close_all(links: Sequence[Link], *, politely: bool = True) -> None:
    """Close connections; without politeness they are cut, and so are the turns on them."""
    for link in links:
        if politely and not link.closed.done():
            link.transport.resume_reading()
            link.close()
    if links and politely:
        await asyncio.wait([link.closed for link in links], timeout=_CLOSE_S)
    for link in links:
        link.transport.abort()
    # The transports' own callbacks run in the next iteration.
    await asyncio.sleep(0)
