"""Carrying a conversation over a bare client: creates out as bytes, events in as they come.

What a turn costs without a client's own work, as the yardstick is measured: over grpc.aio without
serializers, and over aiohttp's WebSocket. Messages are looked into for their type alone; a create
is made before its time is taken.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import grpc
import orjson

from turnwire import _codec
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ServerFrame
from turnwire_bench.drivers import Place
from turnwire_bench.failure import BenchFailure
from turnwire_bench.lean import METHOD
from turnwire_bench.samples import TurnSample
from turnwire_bench.wire_counts import WireCounts, wire_counts

__all__ = ["BareGrpc", "BareWebSocket"]

_COMPLETED: Final = "response.completed"
_DELTA: Final = '.delta"'
_HEAD: Final = 64
"""Characters of an event's JSON within which its type stands."""


class _Bare:
    """What both share."""

    def __init__(self, place: Place, options: dict[str, Any]) -> None:
        """Speak to `place`; `options` is what every create repeats."""
        self._place = place
        self._options = {**options, "store": False}
        self._parent: str | None = None

    async def turn(self, items: Sequence[Any], *, begins_run: bool) -> TurnSample:
        """Run a turn.

        Raises:
            BenchFailure: The server says no more, or the turn did not complete.
        """
        create = {"type": "response.create", "model": self._place.model, "input": [*items]}
        if self._parent is not None:
            create["previous_response_id"] = self._parent
        message = self._encode({**create, **self._options})
        first: float | None = None
        began = time.perf_counter()
        await self._write(message)
        while True:
            is_delta, terminal = await self._read()
            if is_delta and first is None:
                first = time.perf_counter()
            if terminal is not None:
                break
        ended = time.perf_counter()
        self._parent, output_tokens, call_ids = self._outcome(terminal)
        return TurnSample(
            total_s=ended - began,
            ttft_s=None if first is None else first - began,
            output_tokens=output_tokens,
            bytes_up=len(message),
            call_ids=call_ids,
        )

    def _encode(self, create: dict[str, Any]) -> bytes:
        raise NotImplementedError

    async def _write(self, message: bytes) -> None:
        raise NotImplementedError

    async def _read(self) -> tuple[bool, Any]:
        """Return whether the next message has a delta, and its terminal event if any."""
        raise NotImplementedError

    def _outcome(self, terminal: Any) -> tuple[str, int, list[str]]:
        """Return a response's id, its output tokens, and the ids of its calls."""
        raise NotImplementedError


class BareGrpc(_Bare):
    """Over grpc.aio, messages as bytes."""

    async def open(self) -> None:
        """Open the stream."""
        self._channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{self._place.port}", options=[("grpc.max_receive_message_length", 64 << 20)]
        )
        connect: Any = self._channel.stream_stream(METHOD)
        self._call = connect()

    def _encode(self, create: dict[str, Any]) -> bytes:
        return _codec.loads(ClientEvent, orjson.dumps(create)).SerializeToString()

    async def _write(self, message: bytes) -> None:
        await self._call.write(message)

    async def _read(self) -> tuple[bool, Any]:
        frame = await self._call.read()
        if frame is grpc.aio.EOF:
            raise BenchFailure("The server ended the stream.")
        is_delta, terminal = False, None
        for event in ServerFrame.FromString(frame).events:
            arm = event.WhichOneof("event")
            if arm == "response_completed":
                terminal = event.response_completed.response
            elif arm in ("error", "response_failed", "response_incomplete"):
                raise BenchFailure(f"A turn ended with {arm}.")
            elif arm is not None and arm.endswith("_delta"):
                is_delta = True
        return is_delta, terminal

    def _outcome(self, terminal: Any) -> tuple[str, int, list[str]]:
        calls = [item.function_call.call_id for item in terminal.output]
        return terminal.id, terminal.usage.output_tokens, [call for call in calls if call]

    async def close(self) -> WireCounts | None:
        """Close the stream."""
        counts = wire_counts(self._place.port)
        self._call.cancel()
        await self._channel.close()
        return counts


class BareWebSocket(_Bare):
    """Over a WebSocket of aiohttp, messages as text."""

    async def open(self) -> None:
        """Connect."""
        self._client = aiohttp.ClientSession()
        self._socket = await self._client.ws_connect(self._place.url, max_msg_size=0)

    def _encode(self, create: dict[str, Any]) -> bytes:
        return orjson.dumps(create)

    async def _write(self, message: bytes) -> None:
        await self._socket.send_frame(message, aiohttp.WSMsgType.TEXT)

    async def _read(self) -> tuple[bool, Any]:
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise BenchFailure("The server ended the connection.")
        head = message.data[:_HEAD]
        if _DELTA in head:
            return True, None
        if _COMPLETED in head:
            return False, message.data
        if any(kind in head for kind in ('"error"', "response.failed", "response.incomplete")):
            raise BenchFailure("A turn did not complete.")
        return False, None

    def _outcome(self, terminal: Any) -> tuple[str, int, list[str]]:
        response = orjson.loads(terminal)["response"]
        calls = [item["call_id"] for item in response["output"] if "call_id" in item]
        return response["id"], response["usage"]["output_tokens"], calls

    async def close(self) -> WireCounts | None:
        """Close the socket."""
        counts = wire_counts(self._place.port)
        await self._socket.close()
        await self._client.close()
        return counts
